// SPDX-License-Identifier: Apache-2.0
// What goes wrong with the packed file while weights are streamed: damage behind its head
// is noticed wherever it is read, and the file removed and made again; a file that could
// not be opened is tried again.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "base/units.h"
#include "sys/no_threads.h"
#include "weights/pack.h"
#include "weights/streaming_fixture.h"
#include "weights/weight_store.h"

namespace loralei {
namespace {

using namespace testing_support;

class StreamingFailure : public StreamingFixture {
 protected:
  // Turns a bit of a tile (counted from the end if negative) of one matrix, or of all.
  static void damage(const std::string& path, const std::string& name, int64_t tile) {
    const PackedIndex index = parse_packed(**PosixFileSystem().open(path)).value();
    for (const PackedMatrix& matrix : index.matrices) {
      if (!name.empty() && matrix.name != name) continue;
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      const int64_t at = matrix.at + (tile < 0 ? matrix.tiles() + tile : tile) * matrix.tile_bytes() + 64;
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 8));
    }
  }
  static void expect_removed(const Error& error, const std::string& path) {
    EXPECT_EQ(error.code, ErrorCode::kCorrupt) << error.message;
    EXPECT_NE(error.message.find("damaged in"), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("'" + path + "' has been removed"), std::string::npos) << error.message;
    EXPECT_FALSE(fs::exists(path));
  }
};

TEST_F(StreamingFailure, RowsLookedUpOnDiskAreChecked) {
  const std::string name = "model.embed_tokens.weight";
  // Single rows, shrunk tiles, and tiles of quantised rows.
  for (const auto& [folder, shrink] :
       std::initializer_list<std::pair<const char*, StreamShrink>>{{"llama2", StreamShrink::kOff},
                                                                   {"qwen2", StreamShrink::kOn},
                                                                   {"gguf-qwen3-q8_0.gguf", StreamShrink::kOff}}) {
    SCOPED_TRACE(folder);
    const BaseModelFile model = open(folder);
    WeightOptions packing;
    packing.shrink = shrink;
    int looked_up = 0;
    for (int part = 1; part <= 10 && looked_up == 0; ++part) {
      StreamingOptions streaming;
      streaming.packed_path = pack(model, packing);
      streaming.weight_bytes = WeightStore::bytes_needed(model, packing).value() * part / 20 + 20 * kKiB;
      auto store = stream(model, streaming);
      if (!store.ok()) continue;
      const TensorSlot embed = (*store)->find(name);
      if (!(*store)->view(embed).panels.empty()) continue;  // it is locked
      ++looked_up;
      const int32_t rows = (*store)->view(embed).rows;
      const std::vector<TokenId> sound = {rows - 2 * kRowTile - 1, 0, 0}, damaged = {0, rows - 1};
      damage(streaming.packed_path, name, -1);
      EXPECT_TRUE((*store)->look_up(embed, sound).ok());
      EXPECT_TRUE(fs::exists(streaming.packed_path));
      for (int again = 0; again < 2; ++again) {
        const auto found = (*store)->look_up(embed, damaged);
        ASSERT_FALSE(found.ok());
        expect_removed(found.error(), streaming.packed_path);
      }
      EXPECT_TRUE((*store)->look_up(embed, sound).ok());
    }
    EXPECT_EQ(looked_up, 1);
  }
}

TEST_F(StreamingFailure, AFileChangedInPlaceAfterItsFirstPassIsFoundOut) {
  for (const auto& [folder, shrink] :
       std::initializer_list<std::pair<const char*, StreamShrink>>{{"llama2", StreamShrink::kOff},
                                                                   {"qwen2", StreamShrink::kOn},
                                                                   {"gguf-qwen3-q8_0.gguf", StreamShrink::kOff}}) {
    SCOPED_TRACE(folder);
    const BaseModelFile model = open(folder);
    WeightOptions packing;
    packing.shrink = shrink;
    auto resident = WeightStore::load(model, ledger_, packing);
    ASSERT_TRUE(resident.ok());
    StreamingOptions streaming;
    streaming.packed_path = pack(model, packing);
    // Nearly the least that does.
    for (int part = 1; part <= 10; ++part) {
      streaming.weight_bytes = (*resident)->whole_bytes() * part / 20 + 20 * kKiB;
      if (stream(model, streaming, packing).ok()) break;
    }
    const PackedIndex index = parse_packed(**PosixFileSystem().open(streaming.packed_path)).value();
    std::set<std::string> found;
    for (const PackedMatrix& matrix : index.matrices) {
      for (const int64_t tile : {int64_t{0}, matrix.tiles() / 2, int64_t{-1}}) {
        SCOPED_TRACE(matrix.name + " tile " + std::to_string(tile));
        pack(model, packing);
        auto store = stream(model, streaming, packing);
        ASSERT_TRUE(store.ok()) << store.error().message;
        const TensorSlot embed = (*store)->find("model.embed_tokens.weight");
        const int32_t rows = (*store)->view(embed).rows;
        const std::vector<TokenId> tokens = {0, rows / 2, rows - 1};
        const auto look_up = [&]() -> Result<std::vector<std::byte>> {
          TRY_ASSIGN(const EmbeddedRows found_rows, (*store)->look_up(embed, tokens));
          std::vector<std::byte> bytes;
          const int64_t row = row_bytes(found_rows.view.dtype, found_rows.view.cols);
          for (const TokenId token : found_rows.tokens) {
            const std::byte* const data = found_rows.view.panels[0].data + token * row;
            bytes.insert(bytes.end(), data, data + row);
          }
          return bytes;
        };
        const bool looked_up = (*store)->view(embed).panels.empty();  // else as the resident store does
        const auto before = looked_up ? look_up() : Result<std::vector<std::byte>>(std::vector<std::byte>());
        ASSERT_TRUE(before.ok());
        for (int pass = 0; pass < 2; ++pass) ASSERT_TRUE(expect_pass(model, **store, **resident).ok());
        damage(streaming.packed_path, matrix.name, tile);
        // Right or an error: expect_pass compares what it is handed out.
        for (int pass = 0; pass < 2; ++pass) {
          if (const Status failed = expect_pass(model, **store, **resident); !failed.ok()) {
            expect_removed(failed.error(), streaming.packed_path);
            found.insert(matrix.name);
          }
        }
        if (!looked_up) continue;
        if (const auto after = look_up(); !after.ok()) {
          expect_removed(after.error(), streaming.packed_path);
          found.insert(matrix.name);
        } else {
          EXPECT_TRUE(*after == *before);
        }
      }
    }
    EXPECT_GT(found.size(), index.matrices.size() / 2) << "most of it is streamed";
  }
}

TEST_F(StreamingFailure, APassThatMeetsItRemovesTheFileUnlessItIsAnotherByNow) {
  const BaseModelFile model = open("llama2");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  for (const bool replaced : {false, true}) {
    StreamingOptions streaming;
    streaming.packed_path = pack(model);
    streaming.weight_bytes = (*resident)->whole_bytes() / 2;
    damage(streaming.packed_path, "model.layers.1.mlp.down_proj.weight", -1);
    auto store = stream(model, streaming);
    ASSERT_TRUE(store.ok()) << store.error().message;
    ASSERT_TRUE((*store)->streams());
    if (replaced) pack(model);
    for (int pass = 0; pass < 2; ++pass) {
      const Status failed = expect_pass(model, **store, **resident);
      ASSERT_FALSE(failed.ok());
      if (!replaced) expect_removed(failed.error(), streaming.packed_path);
    }
    EXPECT_EQ(fs::exists(streaming.packed_path), replaced);
  }
}

TEST_F(StreamingFailure, AStartThatMeetsItMakesTheFileAgain) {
  const fs::path folder = folder_ / "model";
  fs::copy(fs::path(kModels) / "llama2", folder, fs::copy_options::recursive);
  const BaseModelFile model = open(folder.string());
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  StreamingOptions streaming;
  streaming.weight_bytes = (*resident)->whole_bytes() - 12 * kKiB;
  const auto start = [&] { return WeightStore::stream_found(model, ledger_, {}, "", streaming, log_); };
  ASSERT_TRUE(start().ok());
  const std::string path = streaming.packed_path;
  EXPECT_TRUE(fs::exists(path));
  damage(path, "", 0);
  Status damaged = [&]() -> Status {
    TRY_ASSIGN(const auto store, stream(model, streaming));
    return {};
  }();
  ASSERT_FALSE(damaged.ok()) << "the first rows are those that are locked";
  expect_removed(damaged.error(), path);
  ASSERT_TRUE(start().ok());
  damage(path, "", 0);
  log_.clear();
  const auto store = start();
  ASSERT_TRUE(store.ok()) << store.error().message;
  EXPECT_NE(log_.text().find("has been removed"), std::string::npos) << log_.text();
  EXPECT_EQ(streaming.packed_path, path);
  EXPECT_TRUE(fs::exists(path));
  EXPECT_TRUE(expect_pass(model, **store, **resident).ok());
}

TEST_F(StreamingFailure, AFileThatCouldNotBeOpenedIsTriedAgainByTheNextPass) {
  const BaseModelFile model = open("llama2");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok());
  bool refused = false;
  StreamingOptions streaming;
  streaming.packed_path = pack(model);
  streaming.weight_bytes = (*resident)->whole_bytes() / 2;
  streaming.open_reader = [&](const std::string& path, const BlockReaderOptions& options) {
    if (refused) return Result<std::unique_ptr<BlockReader>>(io_error("too many open files"));
    return open_block_reader(path, options);
  };
  auto store = stream(model, streaming);
  ASSERT_TRUE(store.ok()) << store.error().message;
  refused = true;
  streaming.weight_bytes += 8 * kKiB;
  EXPECT_FALSE((*store)->resize(model, {}, streaming, log_).ok());
  EXPECT_FALSE(expect_pass(model, **store, **resident).ok());
  refused = false;
  ASSERT_TRUE(expect_pass(model, **store, **resident).ok());
  EXPECT_TRUE((*store)->streams());
  // Another file of its name is not begun with.
  refused = true;
  streaming.weight_bytes -= 8 * kKiB;
  EXPECT_FALSE((*store)->resize(model, {}, streaming, log_).ok());
  refused = false;
  pack(model);
  const Status failed = expect_pass(model, **store, **resident);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find("removed or replaced"), std::string::npos) << failed.error().message;
  EXPECT_EQ((*store)->damage(), PackedDamage::kRemoved) << "nobody would look for another";
  EXPECT_TRUE(fs::exists(streaming.packed_path));
}

TEST_F(StreamingFailure, WhereTheSystemGivesNoThreadsOneReadsEverything) {
  WeightOptions options;
  options.threads = 4;
  const BaseModelFile model = open("llama2");
  const NoThreads none;
  EXPECT_TRUE(fs::exists(pack(model, options)));
  EXPECT_TRUE(WeightStore::load(model, ledger_, options).ok());
}

TEST(ReadUnits, ThreadsShareTheRoomThereIs) {
  const auto share = [](int64_t room, int threads) {
    const RoomShare shared = share_room(room, threads, 10, 100);
    return std::pair(shared.threads, shared.bytes);
  };
  EXPECT_EQ(share(1000, 4), std::pair(4, int64_t{100}));
  EXPECT_EQ(share(200, 4), std::pair(4, int64_t{50}));
  EXPECT_EQ(share(40, 4), std::pair(4, int64_t{10}));
  EXPECT_EQ(share(39, 4), std::pair(3, int64_t{13}));
  EXPECT_EQ(share(10, 4), std::pair(1, int64_t{10}));
  EXPECT_EQ(share(0, 4), std::pair(1, int64_t{10}));
}

}  // namespace
}  // namespace loralei
