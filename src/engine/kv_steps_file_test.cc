// SPDX-License-Identifier: Apache-2.0
// Where measured steps are looked for, and how they are written.
#include "engine/kv_steps_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "sys/memory_file_system.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrint = "00000000000000ab";
constexpr KvGridShape kShape{.layers = 1, .kv_heads = 1, .head_dim = 2};

KvSteps some_steps(float step = 0.5f, const std::string& fingerprint = kPrint) {
  KvSteps steps;
  steps.fingerprint = fingerprint;
  steps.name = "model";
  steps.layers = 1, steps.kv_heads = 1, steps.head_dim = 2;
  steps.factors = {0.25f, 0.5f};
  steps.steps.assign(4, step);
  return steps;
}
std::string text_of(const KvSteps& steps) { return kv_steps_text(steps).value(); }

TEST(KvStepsFile, LiesBesideTheModelOrInTheCacheFolder) {
  MemoryFileSystem files;
  files.put("/models/folder/config.json", "{}");
  files.put("/models/one.gguf", "GGUF");
  using Paths = std::vector<std::string>;
  EXPECT_EQ(kv_steps_paths(files, "/models/folder", "", kPrint), Paths{"/models/folder/kv-steps.json"});
  EXPECT_EQ(kv_steps_paths(files, "/models/one.gguf", "/cache", kPrint),
            (Paths{"/models/one.gguf.kv-steps.json", "/cache/00000000000000ab.kv-steps.json"}));
}

TEST(KvStepsFile, TheFirstThatCanBeUsedIs) {
  MemoryFileSystem files;
  files.put("/model/config.json", "{}");
  const auto find = [&] { return find_kv_steps(files, "/model", "/cache", kPrint, kShape); };
  EXPECT_FALSE(find().steps);
  EXPECT_TRUE(find().notes.empty());
  files.put("/cache/00000000000000ab.kv-steps.json", text_of(some_steps(2)));
  ASSERT_TRUE(find().steps);
  EXPECT_EQ(find().steps->steps[0], 2);
  EXPECT_EQ(find().path, "/cache/00000000000000ab.kv-steps.json");
  files.put("/model/kv-steps.json", text_of(some_steps(1)));
  EXPECT_EQ(find().steps->steps[0], 1);
  // What is there and cannot be used is told, and the next one is used.
  for (const std::string& bad : {text_of(some_steps(1, "00000000000000cd")), std::string("{}"), std::string()}) {
    files.put("/model/kv-steps.json", bad);
    const FoundKvSteps found = find();
    ASSERT_TRUE(found.steps);
    EXPECT_EQ(found.steps->steps[0], 2);
    ASSERT_EQ(found.notes.size(), 1u);
    EXPECT_NE(found.notes[0].find("/model/kv-steps.json"), std::string::npos) << found.notes[0];
  }
}

TEST(KvStepsFile, IsWrittenWholeInTheFolderItNeeds) {
  const fs::path folder = fs::path(testing::TempDir()) / ("loralei-kv-steps-" + std::to_string(::getpid()));
  fs::remove_all(folder);
  const std::string path = (folder / "deeper" / "kv-steps.json").string();
  ASSERT_TRUE(write_kv_steps(some_steps(4), path).ok());
  std::ofstream(path + ".part") << std::string(100'000, 'x');  // left by one that was killed
  ASSERT_TRUE(write_kv_steps(some_steps(8), path).ok());
  const auto found = find_kv_steps(PosixFileSystem(), (folder / "deeper").string(), "", kPrint, kShape);
  ASSERT_TRUE(found.steps) << (found.notes.empty() ? "" : found.notes[0]);
  EXPECT_EQ(*found.steps, some_steps(8));
  EXPECT_FALSE(fs::exists(path + ".part"));
  EXPECT_FALSE(write_kv_steps(some_steps(8), path + "/below-a-file.json").ok());
  fs::remove_all(folder);
}

}  // namespace
}  // namespace loralei
