// SPDX-License-Identifier: Apache-2.0
// Random files and plans, read layer by layer, against what follows from their bytes in
// the order of the file.
#include "adapters/file_pass.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "adapters/watched_files_test_util.h"
#include "base/page_hash.h"
#include "base/prng.h"
#include "base/sha256.h"
#include "sys/memory_file_system.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int32_t kLayers = 3;
const std::string kPath = "/weights";

LoadPlan empty_plan() { return LoadPlan(ModelConfig{.layers = kLayers, .vocab = 1}, {}); }

// A file of f32 tensors [count, 1] with gaps between some; a few are not planned.
struct RandomFile {
  std::string bytes;
  std::vector<TensorInfo> tensors;  // in the order of the file
  std::vector<int64_t> cuts;
  LoadPlan plan = empty_plan();
  std::string placed;  // what the storage must hold

  explicit RandomFile(Prng& random) {
    fill(random, static_cast<int64_t>(random.below(100)));
    const auto count = static_cast<int>(random.below(20));
    FileCuts made;
    for (int i = 0; i < count; ++i) {
      const auto numbers = static_cast<int64_t>(random.below(random.below(8) == 0 ? 600'000 : 20));
      tensors.push_back(
          {.name = "t" + std::to_string(i), .shape = {numbers}, .offset = std::ssize(bytes), .bytes = numbers * 4});
      for (int64_t k = 0; k < numbers; ++k) {
        const auto value = static_cast<float>(random.below(1000));
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      made.add(tensors.back().offset, tensors.back().bytes);
      if (random.below(2) == 0) fill(random, static_cast<int64_t>(random.below(random.below(4) == 0 ? 9000 : 9)));
    }
    cuts = std::move(made).finish(std::ssize(bytes));
    for (const TensorInfo& tensor : tensors)
      if (random.below(4) != 0) place(random, tensor);
  }

 private:
  void fill(Prng& random, int64_t count) {
    for (int64_t i = 0; i < count; ++i) bytes += static_cast<char>(random.below(256));
  }
  // In one piece, or in two as the parts of a fused projection are.
  void place(Prng& random, const TensorInfo& tensor) {
    const auto layer = static_cast<int32_t>(random.below(kLayers + 1));
    const auto first =
        random.below(2) == 0 ? tensor.shape[0] : static_cast<int64_t>(random.below(3)) % (tensor.shape[0] + 1);
    for (const auto& [begin, count] : {std::pair(int64_t{0}, first), std::pair(first, tensor.shape[0] - first)}) {
      const int64_t offset = plan.reserve(count * 4);
      plan.placements.push_back(
          {.tensor = &tensor, .row_begin = begin, .row_count = count, .cols = 1, .layer = layer, .offset = offset});
      placed.resize(static_cast<size_t>(plan.bytes));
      placed.replace(static_cast<size_t>(offset), static_cast<size_t>(count * 4), bytes,
                     static_cast<size_t>(tensor.offset + begin * 4), static_cast<size_t>(count * 4));
    }
  }
};

// As adapter.h says what it is.
Digest digest_of(const std::string& config, const RandomFile& file) {
  Sha256 sha;
  const auto add = [&](const std::string& text) { sha.update(std::as_bytes(std::span(text))); };
  const auto length = [](int64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);  // this machine's order: lowest first
  };
  add(length(std::ssize(config)) + config);
  const auto part = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    PageHash own;
    own.update(
        std::as_bytes(std::span(file.bytes)).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    const Digest digest = own.finish();
    add(length(end - begin) + std::string(digest.begin(), digest.end()));
  };
  int64_t at = 0;
  for (const TensorInfo& tensor : file.tensors) {
    if (tensor.bytes == 0) continue;
    part(at, tensor.offset);
    part(tensor.offset, at = tensor.offset + tensor.bytes);
  }
  part(at, std::ssize(file.bytes));
  return sha.finish();
}

TEST(FilePass, RandomFilesArePlacedAndHashedAsInTheirOwnOrder) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const RandomFile made(random);
    MemoryFileSystem memory;
    memory.put(kPath, made.bytes);
    WatchedFileSystem files(memory);
    std::vector<int> reads(made.bytes.size()), told(made.bytes.size());
    int64_t last = -1;
    files.watch.read = [&](const std::string&, int64_t offset, int64_t bytes) -> Status {
      EXPECT_GT(offset, last) << "a layer is read by offset";
      last = offset;
      for (int64_t i = offset; i < offset + bytes; ++i) ++reads[static_cast<size_t>(i)];
      return {};
    };
    files.watch.will_read = [&](const std::string&, int64_t offset, int64_t bytes) {
      for (int64_t i = offset; i < offset + bytes; ++i) ++told[static_cast<size_t>(i)];
    };
    const auto file = files.open(kPath);
    ASSERT_TRUE(file.ok());
    std::string storage(made.placed.size(), '\0');
    FilePass pass(**file, made.cuts, made.plan, reinterpret_cast<std::byte*>(storage.data()));
    const auto of_layer = [&](const TensorInfo& tensor, int32_t layer) {
      return std::any_of(made.plan.placements.begin(), made.plan.placements.end(), [&](const Placement& placement) {
        return placement.tensor == &tensor && placement.layer == layer;
      });
    };
    for (int32_t layer = 0; layer <= kLayers; ++layer) {
      const std::vector<int> before = reads;
      last = -1;
      ASSERT_TRUE(pass.read_layer(layer).ok());
      int64_t bytes = 0;
      for (const TensorInfo& tensor : made.tensors) {
        const bool now = of_layer(tensor, layer), next = of_layer(tensor, layer + 1);
        bytes += now ? tensor.bytes : 0;
        for (int64_t i = tensor.offset; i < tensor.offset + tensor.bytes; ++i) {
          ASSERT_EQ(reads[static_cast<size_t>(i)] - before[static_cast<size_t>(i)], now) << tensor.name;
          if (next) {
            ASSERT_GE(told[static_cast<size_t>(i)], 1) << tensor.name;
          }
        }
      }
      EXPECT_EQ(pass.layer_bytes()[static_cast<size_t>(layer)], bytes);
    }
    last = -1;
    ASSERT_TRUE(pass.read_rest().ok());
    EXPECT_EQ(std::count(reads.begin(), reads.end(), 1), std::ssize(reads)) << "every byte is read once";
    EXPECT_EQ(storage, made.placed);
    EXPECT_EQ(pass.digest("config"), digest_of("config", made));
    EXPECT_NE(pass.digest("config"), pass.digest("confi"));
  }
}

TEST(FilePass, CutsAreWhereTensorsBeginAndEnd) {
  FileCuts cuts;
  cuts.add(20, 5);
  cuts.add(10, 10);
  cuts.add(12, 0);
  EXPECT_EQ(std::move(cuts).finish(30), (std::vector<int64_t>{0, 10, 20, 25, 30}));
  EXPECT_EQ(FileCuts().finish(7), (std::vector<int64_t>{0, 7}));
}

}  // namespace
}  // namespace loralei
