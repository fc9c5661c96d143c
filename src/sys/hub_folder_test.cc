// SPDX-License-Identifier: Apache-2.0
#include "sys/hub_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace loralei {
namespace {

namespace fs = std::filesystem;

class HubFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("loralei-hub-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(folder() / "refs");
    fs::create_directories(folder() / "snapshots");
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path folder() const { return root_ / "models--org--some--name"; }
  void add_snapshot(const std::string& revision) { fs::create_directories(folder() / "snapshots" / revision); }
  void set_main(const std::string& text) { std::ofstream(folder() / "refs/main") << text; }
  std::string found(const fs::path& path) {
    const auto hub = find_hub_folder(PosixFileSystem(), path.string());
    if (!hub.ok()) return "error: " + hub.error().message;
    return *hub ? (*hub)->name + " " + fs::relative((*hub)->path, root_).string() : "none";
  }
  fs::path root_;
};

TEST_F(HubFolderTest, TheSnapshotOfMain) {
  add_snapshot("aa");
  add_snapshot("bb");
  set_main("bb\n");
  EXPECT_EQ(found(folder()), "org/some--name models--org--some--name/snapshots/bb");
  EXPECT_EQ(found(folder().string() + "/"), "org/some--name models--org--some--name/snapshots/bb");
  EXPECT_EQ(found(folder() / "snapshots/aa"), "org/some--name models--org--some--name/snapshots/aa");
}

TEST_F(HubFolderTest, TheOnlySnapshot) {
  EXPECT_NE(found(folder()).find("holds no snapshot"), std::string::npos);
  add_snapshot("aa");
  EXPECT_EQ(found(folder()), "org/some--name models--org--some--name/snapshots/aa");
  for (const char* bad : {"gone", "../aa", "..", "", "snapshots/aa"}) {
    set_main(bad);
    EXPECT_EQ(found(folder()), "org/some--name models--org--some--name/snapshots/aa") << bad;
  }
  add_snapshot("bb");
  EXPECT_NE(found(folder()).find("several snapshots"), std::string::npos);
}

TEST_F(HubFolderTest, NamesAndCommits) {
  EXPECT_EQ(hub_folder_of("org/some-name"), "models--org--some-name");
  EXPECT_EQ(hub_name_of("models--org--some-name"), "org/some-name");
  EXPECT_EQ(hub_name_of("datasets--org--name"), "");
  set_main("bb\n");
  EXPECT_EQ(hub_commit(PosixFileSystem(), folder(), "main"), "bb");
  EXPECT_EQ(hub_commit(PosixFileSystem(), folder(), "other"), "");
  set_main("../bb");
  EXPECT_EQ(hub_commit(PosixFileSystem(), folder(), "main"), "");
}

TEST_F(HubFolderTest, OtherFoldersAreNone) {
  fs::create_directories(root_ / "plain/snapshots/aa");
  fs::create_directories(root_ / "models--org--bare");
  for (const char* name : {"plain", "plain/snapshots/aa", "models--org--bare", "absent", "models--absent"})
    EXPECT_EQ(found(root_ / name), "none") << name;
  EXPECT_EQ(found(""), "none");
  EXPECT_EQ(found("/"), "none");
}

}  // namespace
}  // namespace loralei
