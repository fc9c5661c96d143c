// SPDX-License-Identifier: Apache-2.0
#include "apps/registry_flag.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/log_test_util.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class RegistryFlag : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "registry-flag-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }
  const PosixFileSystem files;
  CollectingLog log;

 private:
  fs::path folder_;
};

TEST_F(RegistryFlag, NoPathIsNoRegistry) { EXPECT_EQ(open_registry({}, files, log)->registry, nullptr); }

TEST_F(RegistryFlag, SaysWhichFlagIsWrong) {
  write("notes.txt", std::string(600, 'x'));
  const auto opened = open_registry({.place = in_folder("notes.txt")}, files, log);
  ASSERT_FALSE(opened.ok());
  EXPECT_TRUE(opened.error().message.starts_with("--registry: ")) << opened.error().message;
}

TEST_F(RegistryFlag, EtcdIsNamedByItsEndpoints) {
  for (const char* place : {"etcd://", "etcd://host:port", "etcd://a/b"}) {
    const auto opened = open_registry({.place = place}, files, log);
    ASSERT_FALSE(opened.ok()) << place;
    EXPECT_NE(opened.error().message.find("is no endpoint of etcd"), std::string::npos) << opened.error().message;
  }
}

TEST_F(RegistryFlag, StampsAreThoseOfTheFiles) {
  const auto use = open_registry({.place = in_folder("adapters.db")}, files, log);
  ASSERT_TRUE(use.ok()) << use.error().message;
  write("adapter_config.json", "{}");
  write("adapter_model.safetensors", "numbers");
  const auto first = use->stamp(in_folder(""));
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(*use->stamp(in_folder("")), *first);
  write("adapter_model.safetensors", "more numbers");
  EXPECT_NE(*use->stamp(in_folder("")), *first);
  EXPECT_FALSE(use->stamp(in_folder("absent")).ok());
}

}  // namespace
}  // namespace loralei
