// SPDX-License-Identifier: Apache-2.0
// For tests: the arrays of an adapter by the layer they arrive with, and a load that is
// looked at before each of its reads.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/watched_files_test_util.h"
#include "ops/lora_factors.h"

namespace loralei::testing_support {

using Array = std::span<const std::byte>;

inline void add_array(std::vector<Array>& arrays, const void* data, int64_t bytes) {
  if (data != nullptr) arrays.emplace_back(static_cast<const std::byte*>(data), static_cast<size_t>(bytes));
}

inline void add_pair(std::vector<Array>& arrays, const LoraPair& pair) {
  if (pair.rank > 0) {
    add_array(arrays, pair.a, pair.rank * lora_a_stride_bytes(pair));
    add_array(arrays, pair.b_t, pair.rank * lora_b_stride_bytes(pair));
    add_array(arrays, pair.a_scale, pair.rank * lora_quant_groups(pair.in) * 4);
    add_array(arrays, pair.b_scale, pair.rank * lora_quant_groups(pair.out) * 4);
  }
  add_array(arrays, pair.b_bias, pair.out * int64_t{4});
  add_array(arrays, pair.bias_delta, pair.out * int64_t{4});
}

inline void add_matrix(std::vector<Array>& arrays, const WeightView& view) {
  if (!view.empty()) add_array(arrays, view.panels[0].data, view.rows * row_bytes(view.dtype, view.cols));
}

// [layers + 1]; what a head shares with the embedding stands with both.
inline std::vector<std::vector<Array>> arrays_by_layer(const Adapter& adapter, const ModelConfig& config) {
  std::vector<std::vector<Array>> layers(static_cast<size_t>(config.layers) + 1);
  const SavedTensors& saved = adapter.saved;
  const int64_t hidden_bytes = config.hidden * int64_t{4};
  add_pair(layers.front(), adapter.embed_pair());
  add_matrix(layers.front(), saved.embed);
  add_array(layers.front(), saved.embed_rows, std::ssize(saved.embed_tokens) * hidden_bytes);
  for (int layer = 0; layer < config.layers; ++layer) {
    const auto place = static_cast<size_t>(layer);
    for (int module = 0; module < kLayerModules; ++module)
      add_pair(layers[place], adapter.pair(layer, static_cast<Module>(module)));
    for (size_t norm = 0; norm < kLayerNorms; ++norm) {
      if (saved.norms[norm].empty()) continue;
      add_array(layers[place], saved.norms[norm][place], norm_width(config, static_cast<LayerNorm>(norm)) * int64_t{4});
    }
  }
  add_array(layers.back(), saved.final_norm, hidden_bytes);
  add_pair(layers.back(), adapter.head_pair());
  add_matrix(layers.back(), saved.lm_head);
  add_array(layers.back(), saved.head_rows, std::ssize(saved.head_tokens) * hidden_bytes);
  return layers;
}

inline bool are_same(const std::vector<Array>& some, const std::vector<Array>& others) {
  if (some.size() != others.size()) return false;
  for (size_t i = 0; i < some.size(); ++i) {
    if (some[i].size() != others[i].size() || std::memcmp(some[i].data(), others[i].data(), some[i].size()) != 0)
      return false;
  }
  return true;
}

// Loads twice: at once, and handed out early, where before every read the layers that are
// there must be those of the first, and what was read so far what they take.
class ArrivalCheck {
 public:
  ArrivalCheck(const FileSystem& files, std::string path, const AdapterBase& base, AdapterLoadOptions options)
      : files_(files), path_(std::move(path)), base_(base), options_(options) {}

  void run() {
    auto whole = load_adapter(files_, path_, base_, options_, AdapterVersionId{1});
    ASSERT_TRUE(whole.ok() && whole->adapter) << path_ << ": " << (whole.ok() ? "no room" : whole.error().message);
    whole_ = whole->adapter;
    files_.watch.read = [this](const std::string&, int64_t, int64_t bytes) -> Status {
      if (begun_) look(bytes);
      return {};
    };
    bool judged = false;
    const AdapterEarly early{.begun = [this](AdapterArriving&& arriving) { begun_ = std::move(arriving); },
                             .judge =
                                 [&](const FileStamp& of, Status read) {
                                   judged = true;
                                   EXPECT_EQ(begun_->arrivals->there(), base_.config.layers);
                                   EXPECT_EQ(of, whole->stamp);
                                   return read;
                                 }};
    options_.early = &early;
    const auto loaded = load_adapter(files_, path_, base_, options_, AdapterVersionId{1});
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    if (loaded->adapter->experts.any()) {  // nobody has it before all of it is there
      ASSERT_TRUE(!begun_ && !judged);
      return;
    }
    ASSERT_TRUE(begun_ && judged);
    EXPECT_TRUE(begun_->arrivals->whole());
    EXPECT_EQ(loaded->adapter, begun_->adapter);
    look(0);
    expect_as_whole(*loaded->adapter);
  }
  int looks_within() const { return looks_within_; }  // while it was neither whole nor not begun

 private:
  void look(int64_t bytes) {
    const auto there = static_cast<size_t>(begun_->arrivals->there());
    const auto now = arrays_by_layer(*begun_->adapter, base_.config), then = arrays_by_layer(*whole_, base_.config);
    ASSERT_EQ(begun_->arrivals->total(), std::ssize(then));
    ASSERT_EQ(begun_->bytes_through.size(), then.size());
    for (size_t layer = 0; layer < there; ++layer) ASSERT_TRUE(are_same(now[layer], then[layer])) << "layer " << layer;
    int64_t before = 0;  // of the layers that are there
    if (there > 0) before = begun_->bytes_through[there - 1];
    EXPECT_GE(read_, before);
    if (there + 1 < then.size()) {
      EXPECT_LT(read_, begun_->bytes_through[there]) << "layer " << there << " is read, and does not count";
    }
    read_ += bytes;
    looks_within_ += there > 0 && there < then.size();
  }
  void expect_as_whole(const Adapter& adapter) const {
    EXPECT_EQ(adapter.digest, whole_->digest);
    EXPECT_EQ(adapter.change_norm, whole_->change_norm);
    EXPECT_EQ(adapter.report, whole_->report);
    EXPECT_EQ(adapter.doubts, whole_->doubts);
    EXPECT_EQ(adapter.modules, whole_->modules);
    EXPECT_EQ(adapter.bytes, whole_->bytes);
    EXPECT_EQ(adapter.saved.embed_tokens, whole_->saved.embed_tokens);
    EXPECT_EQ(adapter.saved.head_tokens, whole_->saved.head_tokens);
  }

  WatchedFileSystem files_;
  const std::string path_;
  const AdapterBase& base_;
  AdapterLoadOptions options_;
  std::shared_ptr<const Adapter> whole_;
  std::optional<AdapterArriving> begun_;
  int64_t read_ = 0;
  int looks_within_ = 0;
};

}  // namespace loralei::testing_support
