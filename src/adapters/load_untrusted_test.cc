// SPDX-License-Identifier: Apache-2.0
// Adapters in folders that others write: what is read lies below the root, whatever is
// put in its place meanwhile.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "adapters/load_pool.h"
#include "adapters/load_test_util.h"
#include "sys/rooted_file_system.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class UntrustedTest : public LoadTest {
 protected:
  void SetUp() override {
    LoadTest::SetUp();
    std::string pattern = (fs::temp_directory_path() / "loralei-untrusted-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    top_ = fs::canonical(pattern);
    write("root/a", 6);
    write("outside", 60);
    adapter_files_ = std::make_unique<RootedFileSystem>(disk_, std::vector<std::string>{(top_ / "root").string()});
  }
  void TearDown() override { fs::remove_all(top_); }

  void write(const std::string& folder, int alpha) {
    fs::create_directories(top_ / folder);
    config["lora_alpha"] = alpha;
    std::ofstream(top_ / folder / "adapter_config.json") << config.dump();
    std::ofstream(top_ / folder / "adapter_model.safetensors", std::ios::binary) << safetensors(tensors);
  }
  Result<AdapterLoad> load_from(const FileSystem& files) {
    return load_adapter(files, path(), base, {}, AdapterVersionId{1});
  }
  std::string path() const { return (top_ / "root/a").string(); }

  fs::path top_;
  const PosixFileSystem disk_{};
  std::unique_ptr<RootedFileSystem> adapter_files_;
};

TEST_F(UntrustedTest, ALinkThatLeadsOutIsNamed) {
  const Digest digest = load_from(disk_).value().adapter->digest;
  EXPECT_EQ(load_from(*adapter_files_).value().adapter->digest, digest);
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::rename(top_ / "root/a" / name, top_ / "spare");
    fs::create_symlink(fs::path("../../outside") / name, top_ / "root/a" / name);
    for (const Error& error : {load_from(*adapter_files_).error(), adapter_stamp(*adapter_files_, path()).error()}) {
      EXPECT_EQ(error.code, ErrorCode::kForbidden) << error.message;
      for (const std::string& word : {(top_ / "root/a" / name).string(), std::string("../../outside/") + name})
        EXPECT_NE(error.message.find(word), std::string::npos) << error.message << " lacks " << word;
    }
    fs::rename(top_ / "spare", top_ / "root/a" / name);
  }
  EXPECT_TRUE(load_from(*adapter_files_).ok());
}

TEST_F(UntrustedTest, PipesAreRefusedWithoutWaiting) {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::rename(top_ / "root/a" / name, top_ / "spare");
    ASSERT_EQ(::mkfifo((top_ / "root/a" / name).c_str(), 0600), 0);
    EXPECT_EQ(load_from(*adapter_files_).error().code, ErrorCode::kInvalidArgument) << name;
    EXPECT_EQ(adapter_stamp(*adapter_files_, path()).error().code, ErrorCode::kInvalidArgument) << name;
    fs::rename(top_ / "spare", top_ / "root/a" / name);
  }
  fs::remove_all(top_ / "root/a");
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(load_from(*adapter_files_).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(UntrustedTest, WhatIsExchangedMeanwhileIsTheInnerOneOrAnError) {
  const Digest inner = load_from(*adapter_files_).value().adapter->digest;
  const fs::path place = top_ / "root/a/adapter_config.json";
  fs::copy_file(place, top_ / "inner");
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) {
      fs::create_symlink("../../outside/adapter_config.json", top_ / "link");
      fs::rename(top_ / "link", place);
      fs::copy_file(top_ / "inner", top_ / "file");
      fs::rename(top_ / "file", place);
    }
  });
  int loaded = 0, refused = 0;
  for (int i = 0; i < 20'000 && (i < 500 || loaded < 20 || refused < 20); ++i) {
    const auto load = load_from(*adapter_files_);
    ++(load.ok() ? loaded : refused);
    if (load.ok()) {
      EXPECT_EQ(load->adapter->digest, inner);
    }
  }
  done = true;
  other.join();
  EXPECT_GT(loaded, 0);
  EXPECT_GT(refused, 0);
}

// The stamp that is remembered is the one of the files that were read.
TEST_F(UntrustedTest, AnotherFileThanTheOneLookedAtIsNotTaken) {
  AdapterSource source;
  source.stamp = [&](const std::string& path) { return adapter_stamp(*adapter_files_, path); };
  source.load = [&](const std::string&, const AdapterLoadOptions& options, AdapterVersionId version) {
    return load_adapter(disk_, (top_ / "outside").string(), base, options, version);
  };
  const LoadDone done = run_load_job(source, {.path = path(), .read = true});
  ASSERT_FALSE(done.load.ok());
  EXPECT_EQ(done.load.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace loralei
