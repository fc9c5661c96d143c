// SPDX-License-Identifier: Apache-2.0
// Steps that a server found are the next one's, bit for bit, or none.
#include "engine/kv_found_steps.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>

#include "base/prng.h"
#include "base/sha256.h"
#include "sys/memory_file_system.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrint = "00000000000000ab";
constexpr KvGridShape kShape{.layers = 2, .kv_heads = 1, .head_dim = 4, .dtype = DType::kF16};

KvGrid some_grid(uint64_t seed, const KvGridShape& shape = kShape) {
  Prng random(seed);
  std::vector<float> steps(2 * static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.channels()));
  for (float& step : steps) step = 1e-3f + static_cast<float>(random.below(100'000)) * 1e-4f;
  return KvGrid::create(shape, steps).value();
}

class KvFoundStepsFile : public testing::Test {
 protected:
  KvFoundStepsFile() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    path_ = kv_found_steps_path(folder_.string(), kPrint, kShape.dtype);
  }
  ~KvFoundStepsFile() override { fs::remove_all(folder_); }

  KvFoundSteps read(const std::string& print = kPrint, const KvGridShape& shape = kShape) const {
    return read_kv_found_steps(PosixFileSystem(), path_, print, shape);
  }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // As if there were a file of these bytes.
  static KvFoundSteps read_bytes(const std::string& bytes) {
    MemoryFileSystem files;
    files.put("/steps", bytes);
    return read_kv_found_steps(files, "/steps", kPrint, kShape);
  }
  static std::string with_checksum(std::string text) {
    Sha256 sum;
    sum.update(std::as_bytes(std::span(text)));
    const Digest digest = sum.finish();
    return text.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  static void expect_refused(const KvFoundSteps& found) {
    EXPECT_FALSE(found.grid);
    EXPECT_NE(found.note.find("are not used"), std::string::npos) << found.note;
  }

  fs::path folder_ = fs::path(testing::TempDir()) / ("loralei-kv-found-" + std::to_string(::getpid()));
  std::string path_;
};

TEST_F(KvFoundStepsFile, IsReadBackBitForBitAndItsOwnersAlone) {
  EXPECT_FALSE(read().grid);
  EXPECT_TRUE(read().note.empty()) << "none is an answer";
  std::ofstream(path_ + ".part") << std::string(100'000, 'x');  // left by one that was killed
  fs::permissions(path_ + ".part", fs::perms::owner_read | fs::perms::owner_write);
  for (const uint64_t seed : {1, 2}) {
    const KvGrid grid = some_grid(seed);
    ASSERT_TRUE(write_kv_found_steps(grid, kPrint, path_).ok());
    const KvFoundSteps found = read();
    ASSERT_TRUE(found.grid) << found.note;
    EXPECT_EQ(found.grid->digest(), grid.digest());
    for (const int32_t layer : {0, 1})
      for (const int32_t v : {0, 1}) EXPECT_TRUE(std::ranges::equal(found.grid->steps(layer, v), grid.steps(layer, v)));
  }
  EXPECT_FALSE(fs::exists(path_ + ".part"));
  struct stat state;
  ASSERT_EQ(::stat(path_.c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 0777, 0600u);
  EXPECT_NE(kv_found_steps_path("d", kPrint, DType::kF16), kv_found_steps_path("d", kPrint, DType::kF32));
  EXPECT_FALSE(write_kv_found_steps(some_grid(1), kPrint, path_ + "/below-a-file").ok());
}

TEST_F(KvFoundStepsFile, CutAnywhereOrChangedAtAnyBitItIsRefused) {
  ASSERT_TRUE(write_kv_found_steps(some_grid(3), kPrint, path_).ok());
  const std::string whole = bytes();
  ASSERT_TRUE(read_bytes(whole).grid);
  for (size_t size = 0; size < whole.size(); ++size) expect_refused(read_bytes(whole.substr(0, size)));
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    expect_refused(read_bytes(changed));
  }
  expect_refused(read_bytes(whole + "x"));
  expect_refused(read_bytes(std::string(1 << 20, 'x')));
}

TEST_F(KvFoundStepsFile, OfAnotherModelShapeFormatOrVersionItIsRefused) {
  ASSERT_TRUE(write_kv_found_steps(some_grid(4), kPrint, path_).ok());
  expect_refused(read("00000000000000cd"));
  KvGridShape deeper = kShape, wider = kShape, flat = kShape, floats = kShape;
  deeper.layers = 4, deeper.head_dim = 2;  // as many steps
  wider.head_dim = 8;
  flat.kv_heads = 4, flat.head_dim = 1;
  floats.dtype = DType::kF32;
  for (const KvGridShape& other : {deeper, wider, flat, floats}) expect_refused(read(kPrint, other));
  std::string newer = bytes().substr(0, bytes().size() - sizeof(Digest));
  EXPECT_TRUE(read_bytes(with_checksum(newer)).grid);
  newer.replace(newer.find(" 1\n"), 2, " 2");
  expect_refused(read_bytes(with_checksum(newer)));
}

TEST_F(KvFoundStepsFile, UnsoundStepsAreRefusedUnderARightChecksum) {
  ASSERT_TRUE(write_kv_found_steps(some_grid(5), kPrint, path_).ok());
  const std::string text = bytes().substr(0, bytes().size() - sizeof(Digest));
  for (const uint16_t step : {0x0000, 0x8000, 0xBF80, 0x7F80, 0x7FC0, 0x0001, 0x7F00}) {
    std::string changed = text;
    changed[text.size() - 2] = static_cast<char>(step & 0xFF);
    changed[text.size() - 1] = static_cast<char>(step >> 8);
    expect_refused(read_bytes(with_checksum(changed)));
  }
  Prng random(6);
  for (int i = 0; i < 2000; ++i) {  // whatever is there is read within its bounds
    std::string changed = text;
    for (uint64_t changes = 1 + random.below(4); changes > 0; --changes)
      changed[random.below(changed.size())] = static_cast<char>(random.below(256));
    const KvFoundSteps found = read_bytes(with_checksum(changed));
    EXPECT_EQ(found.grid.has_value(), found.note.empty());
  }
}

}  // namespace
}  // namespace loralei
