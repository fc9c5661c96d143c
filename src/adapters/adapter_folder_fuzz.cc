// SPDX-License-Identifier: Apache-2.0
// An adapter as its folder holds it, loaded below a root as the server loads it: refused
// with a sentence, or read. The input is a list of files: a byte for the name, two for
// the length, the contents.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/peft_map.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/printable.h"
#include "base/units.h"
#include "ops/lora_factors.h"
#include "sys/memory_file_system.h"
#include "sys/rooted_file_system.h"
#include "tensor/codec.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);

namespace {

using namespace loralei;

constexpr std::array kNames = {"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "adapter.gguf",
                               "config.json",         "adapters.safetensors"};
constexpr size_t kSafetensors = 1, kMlxSafetensors = 5;
constexpr size_t kInputMax = 64 * 1024;
constexpr size_t kFileMax = UINT16_MAX;
constexpr int64_t kBytesMax = 64 * kMiB;
const std::string kFolder = "/adapters/a";

struct NamedFile {
  size_t name = 0;
  std::string contents;
};

std::vector<NamedFile> unpack(const uint8_t* data, size_t size) {
  std::vector<NamedFile> files;
  while (size >= 3) {
    const size_t wanted = data[1] | data[2] << 8, bytes = std::min(wanted, size - 3);
    files.push_back({data[0] % kNames.size(), std::string(reinterpret_cast<const char*>(data + 3), bytes)});
    data += 3 + bytes;
    size -= 3 + bytes;
  }
  return files;
}

std::string pack(const std::vector<NamedFile>& files) {
  std::string input;
  for (const NamedFile& file : files) {
    const size_t bytes = std::min(file.contents.size(), kFileMax);
    for (const size_t byte : {file.name, bytes & 0xff, bytes >> 8}) input += static_cast<char>(byte);
    input.append(file.contents, 0, bytes);
  }
  return input;
}

// tests/golden/models/llama-gqa, and biases of q, k and v, so that there are
// some to be replaced.
AdapterBase base() {
  static const std::vector<float> kBias(64, 10.0f);
  AdapterBase base;
  base.config = {.architecture = "llama",
                 .hidden = 64,
                 .layers = 2,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 16,
                 .ffn = 96,
                 .vocab = 96,
                 .tied_head = true,
                 .qkv_bias = true};
  base.bias = [](const void*, int, Module module) -> const float* {
    return module == Module::kQ || module == Module::kK || module == Module::kV ? kBias.data() : nullptr;
  };
  return base;
}

// Every number that an adapter brings, all of them finite, in one order.
class Numbers {
 public:
  explicit Numbers(const Adapter& adapter, const ModelConfig& config) {
    for (const LoraPair& pair : adapter.pairs) add_pair(pair);
    const SavedTensors& saved = adapter.saved;
    for (const WeightView* view : {&saved.embed, &saved.lm_head}) {
      add({static_cast<float>(view->rows)});
      for (const WeightPanel& panel : view->panels) {
        std::vector<float> rows(static_cast<size_t>(panel.row_count) * static_cast<size_t>(view->cols));
        decode_row(view->dtype, panel.data, rows.data(), static_cast<int64_t>(rows.size()));
        add(rows);
      }
    }
    add_row(saved.final_norm, config.hidden);
    for (size_t norm = 0; norm < kLayerNorms; ++norm) {
      for (const float* row : saved.norms[norm]) add_row(row, norm_width(config, static_cast<LayerNorm>(norm)));
    }
    add_rows(saved.embed_tokens, saved.embed_rows, adapter, config);
    add_rows(saved.head_tokens, saved.head_rows, adapter, config);
  }
  bool operator==(const Numbers& other) const {
    return all_.size() == other.all_.size() &&
           std::memcmp(all_.data(), other.all_.data(), all_.size() * sizeof(float)) == 0;
  }

 private:
  void add(const std::vector<float>& numbers) {
    for (const float number : numbers) CHECK(std::isfinite(number));
    all_.insert(all_.end(), numbers.begin(), numbers.end());
  }
  void add_row(const float* row, int64_t count) {
    add({row == nullptr ? 0.0f : 1.0f});
    if (row != nullptr) add(std::vector<float>(row, row + count));
  }
  void add_pair(const LoraPair& pair) {
    add({static_cast<float>(pair.rank), static_cast<float>(pair.dtype), pair.scaling});
    std::vector<float> a(static_cast<size_t>(pair.in)), b(static_cast<size_t>(pair.out));
    for (int32_t r = 0; r < pair.rank; ++r) {
      decode_lora_a(pair, r, a.data());
      decode_lora_b(pair, r, 0, pair.out, b.data());
      add(a);
      add(b);
    }
    add_row(pair.b_bias, pair.out);
    add_row(pair.bias_delta, pair.out);
  }
  void add_rows(const std::vector<TokenId>& tokens, const float* rows, const Adapter& adapter,
                const ModelConfig& config) {
    CHECK(tokens.empty() || rows != nullptr);
    for (size_t i = 0; i < tokens.size(); ++i) {
      CHECK(tokens[i] >= 0 && tokens[i] < adapter.vocab && (i == 0 || tokens[i - 1] < tokens[i]));
      add({static_cast<float>(tokens[i])});
      add_row(rows + static_cast<int64_t>(i) * config.hidden, config.hidden);
    }
  }

  std::vector<float> all_;
};

// What adapter.h promises of every loaded adapter.
void check_adapter(const Adapter& adapter, const ModelConfig& config) {
  CHECK(adapter.bytes > 0 && adapter.bytes <= kBytesMax);
  CHECK(adapter.vocab > 0 && adapter.vocab <= kMaxVocab);
  CHECK(adapter.pairs.size() == static_cast<size_t>(config.layers) * kLayerModules + 2);
  bool some = adapter.saved.any();
  int rank_max = 0;
  for (size_t i = 0; i < adapter.pairs.size(); ++i) {
    const LoraPair& pair = adapter.pairs[i];
    CHECK(pair.rank >= 0 && pair.rank <= kMaxLoraRank);
    CHECK(pair.rank == 0 || (pair.a != nullptr && pair.b_t != nullptr));
    rank_max = std::max(rank_max, pair.rank);
    if (pair.rank == 0 && pair.bias_delta == nullptr) continue;
    some = true;
    const size_t outside = adapter.pairs.size() - i;  // 2: the head, 1: the embedding
    const auto module = outside == 2   ? Module::kLmHead
                        : outside == 1 ? Module::kEmbed
                                       : static_cast<Module>(i % kLayerModules);
    ModuleShape shape = linear_shape(config, static_cast<int>(i) / kLayerModules, module);
    if (module == Module::kLmHead) shape.out = adapter.vocab;
    if (module == Module::kEmbed) shape.in = adapter.vocab;
    CHECK(pair.in == shape.in && pair.out == shape.out);
  }
  CHECK(adapter.rank_max == rank_max);
  for (const WeightView* view : {&adapter.saved.embed, &adapter.saved.lm_head})
    CHECK(view->empty() || (view->rows == adapter.vocab && view->cols == config.hidden));
  // One that changes nothing would answer as the base under another name.
  CHECK(some && !adapter.modules.empty());
  for (const TokenId id : adapter.alora_invocation) CHECK(id >= 0);
  for (const std::string& sentence : adapter.report) CHECK(!sentence.empty() && is_printable(sentence));
}

void check_error(const Error& error) {
  CHECK(error.code != ErrorCode::kInternal && is_printable(error.message));
  CHECK(error.message.find(kFolder) != std::string::npos);  // it says where
}

void check_same(const Result<AdapterLoad>& one, const Result<AdapterLoad>& other, const ModelConfig& config) {
  CHECK(one.ok() == other.ok());
  if (!one.ok()) {
    CHECK(one.error().code == other.error().code && one.error().message == other.error().message);
    return;
  }
  CHECK(one->adapter->digest == other->adapter->digest && one->stamp == other->stamp);
  CHECK(one->adapter->report == other->adapter->report && one->adapter->modules == other->adapter->modules);
  CHECK(one->adapter->alora_invocation == other->adapter->alora_invocation);
  CHECK(Numbers(*one->adapter, config) == Numbers(*other->adapter, config));
}

// Handed out early it ends as it does otherwise, and its arrivals with it.
void check_early(const FileSystem& files, const std::string& path, const AdapterBase& base, AdapterLoadOptions options,
                 const Result<AdapterLoad>& loaded) {
  std::optional<AdapterArriving> begun;
  const AdapterEarly early{.begun = [&](AdapterArriving&& arriving) { begun = std::move(arriving); },
                           .judge = [](const FileStamp&, Status read) { return read; }};
  options.early = &early;
  const auto again = load_adapter(files, path, base, options, AdapterVersionId{1});
  CHECK(again.ok() == loaded.ok());
  if (!begun) {
    CHECK(!again.ok() || again->adapter == nullptr);
    return;
  }
  CHECK(std::ssize(begun->bytes_through) == base.config.layers + 1);
  CHECK(begun->arrivals->whole() == again.ok() && begun->arrivals->failed() == !again.ok());
  if (again.ok()) CHECK(again->adapter == begun->adapter && again->adapter->digest == loaded->adapter->digest);
  if (!again.ok()) CHECK(begun->arrivals->status().error().message == loaded.error().message);
}

void load(const FileSystem& files, const std::string& path) {
  static const AdapterBase kBase = base();
  const ModelConfig& config = kBase.config;
  const auto load_with = [&](const AdapterLoadOptions& options) {
    auto loaded = load_adapter(files, path, kBase, options, AdapterVersionId{1});
    check_early(files, path, kBase, options, loaded);
    if (!loaded.ok()) {
      check_error(loaded.error());
      return loaded;
    }
    CHECK(loaded->stamp.has_value() && *loaded->stamp == adapter_stamp(files, path).value());
    CHECK((loaded->adapter == nullptr) == (loaded->bytes_needed > options.bytes_max));
    if (loaded->adapter != nullptr) check_adapter(*loaded->adapter, config);
    return loaded;
  };
  const auto strict = load_with({.strict = true, .bytes_max = kBytesMax});
  const auto loose = load_with({.strict = false, .bytes_max = kBytesMax});
  // The largest input cannot ask for more than is allowed here.
  CHECK(!strict.ok() || strict->adapter != nullptr);
  CHECK(!loose.ok() || loose->adapter != nullptr);
  check_same(strict, load_with({.strict = true, .bytes_max = kBytesMax}), config);
  check_same(loose, load_with({.strict = false, .bytes_max = kBytesMax}), config);
  if (strict.ok()) check_same(strict, loose, config);

  const auto int8 = load_with({.strict = false, .int8 = true, .bytes_max = kBytesMax});
  CHECK(int8.ok() == loose.ok());
  if (!loose.ok()) {
    CHECK(int8.error().message == loose.error().message);
    return;
  }
  CHECK(int8->adapter->digest == loose->adapter->digest);
  Numbers(*int8->adapter, config);
  const int64_t bytes = loose->adapter->bytes;
  const auto no_room = load_with({.strict = false, .bytes_max = bytes - 1});
  CHECK(no_room.ok() && no_room->adapter == nullptr && no_room->bytes_needed == bytes);
  CHECK(load_with({.strict = false, .bytes_max = bytes}).value().adapter != nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > kInputMax) return 0;
  MemoryFileSystem disk;
  for (NamedFile& file : unpack(data, size)) disk.put(kFolder + "/" + kNames[file.name], std::move(file.contents));
  const RootedFileSystem files(disk, {"/adapters"});
  load(files, kFolder);
  if (disk.exists(kFolder + "/adapter.gguf")) load(files, kFolder + "/adapter.gguf");
  return 0;
}

// Changes one file and says its new length; mostly the head of a safetensors file, and
// then in what it says of itself.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<NamedFile> files = unpack(data, size);
  if (files.empty() || random() % 16 == 0) return LLVMFuzzerMutate(data, size, size_max);
  NamedFile& file = files[random() % files.size()];
  std::string& contents = file.contents;
  const auto mutate = [&](std::string text) {
    const size_t before = text.size();
    text.resize(before + 256);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), before, text.size()));
    return text;
  };
  uint64_t length = 0;
  if (contents.size() >= sizeof length) std::memcpy(&length, contents.data(), sizeof length);
  if ((file.name == kSafetensors || file.name == kMlxSafetensors) &&
      length <= contents.size() - std::min(contents.size(), sizeof length) && length > 0 && random() % 4 != 0) {
    const std::string head = mutate(contents.substr(sizeof length, static_cast<size_t>(length)));
    const std::string rest = contents.substr(sizeof length + static_cast<size_t>(length));
    length = head.size();
    contents.assign(reinterpret_cast<const char*>(&length), sizeof length);
    contents += head + rest;
  } else {
    contents = mutate(contents);
  }
  const std::string input = pack(files);
  if (input.size() > size_max) return LLVMFuzzerMutate(data, size, size_max);
  std::memcpy(data, input.data(), input.size());
  return input.size();
}
