// SPDX-License-Identifier: Apache-2.0
// What the tests of streamed weights and of packed files share: golden models packed
// into a folder of the test's own, and a pass over streamed weights compared with
// the resident ones.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/log_test_util.h"
#include "base/units.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"
#include "weights/pack.h"
#include "weights/weight_store.h"

namespace loralei::testing_support {

namespace fs = std::filesystem;
inline const std::string kModels = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/";

class StreamingFixture : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("loralei-streaming-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A golden model, or the path of another one.
  BaseModelFile open(const std::string& name) {
    auto file = open_base_model((fs::path(kModels) / name).string());
    EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
    return std::move(file).value();
  }
  // A golden bf16 model (safetensors) as a converter stores it in f16, in a folder of the
  // test; answers its path.
  std::string in_f16(const std::string& name) {
    const fs::path to = folder_ / (name + "-in-f16");
    fs::copy(fs::path(kModels) / name, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    const std::string path = (to / "model.safetensors").string();
    std::ifstream in(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    uint64_t head = 0;
    std::memcpy(&head, bytes.data(), sizeof head);
    const size_t data = sizeof head + head;
    const std::string bf16 = "\"BF16\"", f16 = "\"F16\" ";  // as long, so that the head stays
    for (size_t at = bytes.find(bf16); at < data; at = bytes.find(bf16, at)) bytes.replace(at, bf16.size(), f16);
    for (size_t at = data; at < bytes.size(); at += 2) {
      uint16_t number = 0;
      std::memcpy(&number, bytes.data() + at, 2);
      number = f32_to_f16(bf16_to_f32(number));
      std::memcpy(bytes.data() + at, &number, 2);
    }
    std::ofstream(path, std::ios::binary) << bytes;
    return to.string();
  }
  // Turns bits of the low byte of a matrix's last number.
  static void change_last_number(const std::string& path, const std::string& name, int bits) {
    const BaseModelFile model = open_base_model(path).value();
    const auto info = std::find_if(model.index.tensors.begin(), model.index.tensors.end(),
                                   [&](const TensorInfo& tensor) { return tensor.name == name; });
    ASSERT_NE(info, model.index.tensors.end());
    std::fstream file(path + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(info->offset + 2 * info->shape[0] * info->shape[1] - 2);
    file.seekg(at);
    const int low = file.get();
    file.seekp(at);
    file.put(static_cast<char>(low ^ bits));
  }
  std::string pack(const BaseModelFile& model, const WeightOptions& options = {}) {
    const std::string path = (folder_ / "model.pack").string();
    const Status packed = pack_model(model, options, path, log_);
    EXPECT_TRUE(packed.ok()) << (packed.ok() ? "" : packed.error().message);
    return path;
  }
  Result<std::unique_ptr<WeightStore>> stream(const BaseModelFile& model, const StreamingOptions& streaming,
                                              const WeightOptions& options = {}) {
    return WeightStore::stream(model, ledger_, options, streaming, log_);
  }
  // Slots in the order of a pass, those that meet one input together.
  static std::vector<std::vector<TensorSlot>> pass_order(const BaseModelFile& model, const WeightStore& store) {
    std::vector<std::vector<TensorSlot>> order;
    for (int layer = 0; layer < model.config.layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      const auto slots = [&](std::initializer_list<const char*> names) {
        std::vector<TensorSlot>& group = order.emplace_back();
        for (const char* name : names) group.push_back(store.find(prefix + name + ".weight"));
      };
      slots({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
      slots({"self_attn.o_proj"});
      slots({"mlp.gate_proj", "mlp.up_proj"});
      slots({"mlp.down_proj"});
    }
    order.push_back({store.find(model.config.tied_head ? "model.embed_tokens.weight" : "lm_head.weight")});
    return order;
  }
  static std::vector<std::byte> resident_bytes(const WeightView& view) {
    std::vector<std::byte> bytes(static_cast<size_t>(matrix_bytes(view.dtype, view.layout, view.rows, view.cols)));
    copy_panels(view, bytes);
    return bytes;
  }
  static void copy_panels(const WeightView& view, std::vector<std::byte>& bytes) {
    const int64_t row = row_bytes(view.dtype, view.cols);
    for (const WeightPanel& panel : view.panels) {
      const int64_t rows =
          view.layout == LayoutId::kTile16 ? (panel.row_count + kRowTile - 1) / kRowTile * kRowTile : panel.row_count;
      std::memcpy(bytes.data() + panel.row_begin * row, panel.data, static_cast<size_t>(rows * row));
    }
  }
  // One pass, compared with the resident store; what failed of it, if anything.
  static Status expect_pass(const BaseModelFile& model, WeightStore& streamed, const WeightStore& resident,
                            bool with_head = true) {
    WeightPass pass(streamed);
    const auto order = pass_order(model, streamed);
    for (size_t g = 0; g < order.size() - (with_head ? 0 : 1); ++g) {
      std::vector<std::vector<std::byte>> bytes;
      for (TensorSlot slot : order[g]) {
        const WeightView& view = streamed.view(slot);
        bytes.emplace_back(static_cast<size_t>(matrix_bytes(view.dtype, view.layout, view.rows, view.cols)));
      }
      std::vector<int32_t> rows(order[g].size(), 0);
      {
        WeightUse use(streamed, order[g]);
        for (;;) {
          TRY_ASSIGN(const bool more, use.next());
          if (!more) break;
          for (size_t i = 0; i < order[g].size(); ++i) {
            copy_panels(use.view(i), bytes[i]);
            for (const WeightPanel& panel : use.view(i).panels) rows[i] += panel.row_count;
          }
        }
      }
      for (size_t i = 0; i < order[g].size(); ++i) {
        EXPECT_EQ(rows[i], streamed.view(order[g][i]).rows);
        EXPECT_TRUE(bytes[i] == resident_bytes(resident.view(order[g][i]))) << "group " << g << " matrix " << i;
      }
    }
    pass.done();
    return {};
  }

  fs::path folder_;
  Ledger ledger_{kGiB};
  CollectingLog log_;
};

}  // namespace loralei::testing_support
