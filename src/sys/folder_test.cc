// SPDX-License-Identifier: Apache-2.0
#include "sys/folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "sys/memory_file_system.h"
#include "sys/rooted_file_system.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class MadeTree : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "loralei-folder-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    top_ = fs::canonical(pattern).string();
    put("root/a.txt", "inner");
    put("root/sub/b.txt", "deep");
    put("outside/keys.txt", "outer");
  }
  void TearDown() override { fs::remove_all(top_); }

  void put(const std::string& name, const std::string& contents) {
    fs::create_directories(parent_path(top_ + "/" + name));
    std::ofstream(top_ + "/" + name, std::ios::binary) << contents;
    memory_.put(top_ + "/" + name, contents);
  }
  void link(const std::string& name, const std::string& target) {
    fs::create_symlink(target, top_ + "/" + name);
    memory_.link(top_ + "/" + name, target);
  }
  static std::string text_of(const Result<std::unique_ptr<File>>& file) {
    if (!file.ok()) return "error: " + file.error().message;
    std::string text(static_cast<size_t>((*file)->size_bytes()), '\0');
    const Status read = (*file)->read_exact(0, std::as_writable_bytes(std::span<char>(text)));
    return read.ok() ? text : "error: " + read.error().message;
  }

  std::string top_;
  MemoryFileSystem memory_;
  PosixFileSystem disk_;
};

// The system's walk, ours, and the twin in memory.
class EveryFolder : public MadeTree, public testing::WithParamInterface<int> {
 protected:
  std::unique_ptr<UntrustedFolder> folder() {
    const std::string root = top_ + "/root";
    if (GetParam() == 2) return memory_.open_folder(root, "ROOT").value();
    return open_posix_folder(root, "ROOT", GetParam() == 0 ? FolderWalk::kSystem : FolderWalk::kSteps).value();
  }
  void expect_refused(const UntrustedFolder& in, const std::string& path, ErrorCode code,
                      const std::vector<std::string>& words = {}) {
    const auto file = in.open(path);
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.error().code, code) << file.error().message;
    for (const std::string& word : words)
      EXPECT_NE(file.error().message.find(word), std::string::npos) << file.error().message << " lacks " << word;
  }
};

TEST_P(EveryFolder, OpensWhatLiesBelowItAlsoThroughLinks) {
  link("root/here", "a.txt");
  link("root/sub/up", "../here");
  link("root/way", "sub");
  link("root/absolute", top_ + "/root/a.txt");
  link("root/way_back", top_ + "/root");
  const auto in = folder();
  EXPECT_EQ(text_of(in->open("a.txt")), "inner");
  EXPECT_EQ(text_of(in->open("./sub/../sub/b.txt")), "deep");
  EXPECT_EQ(text_of(in->open("here")), "inner");
  EXPECT_EQ(text_of(in->open("sub/up")), "inner");
  EXPECT_EQ(text_of(in->open("way/b.txt")), "deep");
  EXPECT_EQ(text_of(in->open("absolute")), "inner");
  EXPECT_EQ(text_of(in->open("way_back/sub/b.txt")), "deep");
  EXPECT_EQ(in->open("a.txt").value()->path(), GetParam() == 2 ? top_ + "/root/a.txt" : "ROOT/a.txt");
  EXPECT_EQ(in->look("way")->kind, PathKind::kDirectory);
  EXPECT_EQ(in->look("")->kind, PathKind::kDirectory);
  EXPECT_EQ(in->look("here")->stamp, in->look("a.txt")->stamp);
  EXPECT_EQ(in->look("here")->stamp.size_bytes, 5);
  EXPECT_EQ(in->look("none").error().code, ErrorCode::kNotFound);
  expect_refused(*in, "none", ErrorCode::kNotFound, {"ROOT/none"});
  expect_refused(*in, "sub", ErrorCode::kInvalidArgument, {"folder"});
}

TEST_P(EveryFolder, NothingLeadsOut) {
  link("root/file", "../outside/keys.txt");
  link("root/absolute", top_ + "/outside/keys.txt");
  link("root/folder", "../outside");
  link("root/chain", "file");
  link("root/near", top_ + "/root2");
  put("root2/keys.txt", "outer");
  link("root/nowhere", "gone");
  link("root/loop", "loop");
  const auto in = folder();
  expect_refused(*in, "file", ErrorCode::kForbidden, {"ROOT/file", "../outside/keys.txt", "'ROOT'", "--adapter-dir"});
  expect_refused(*in, "absolute", ErrorCode::kForbidden, {"ROOT/absolute", top_ + "/outside/keys.txt"});
  expect_refused(*in, "folder/keys.txt", ErrorCode::kForbidden, {"ROOT/folder"});
  expect_refused(*in, "chain", ErrorCode::kForbidden, {"ROOT/file"});
  expect_refused(*in, "near/keys.txt", ErrorCode::kForbidden, {"ROOT/near"});
  expect_refused(*in, "../outside/keys.txt", ErrorCode::kForbidden);
  expect_refused(*in, "sub/../../outside/keys.txt", ErrorCode::kForbidden);
  expect_refused(*in, "nowhere", ErrorCode::kInvalidArgument, {"ROOT/nowhere", "not there"});
  expect_refused(*in, "loop", ErrorCode::kIo);
  EXPECT_EQ(in->look("file").error().code, ErrorCode::kForbidden);
  EXPECT_EQ(in->list("folder").error().code, ErrorCode::kForbidden);
  std::string names;
  for (const DirEntry& entry : in->list("").value()) names += entry.name + (entry.is_directory ? "/ " : " ");
  if (GetParam() == 2)
    EXPECT_NE(names.find("sub/ "), std::string::npos) << names;
  else
    EXPECT_EQ(names, "a.txt absolute chain file folder loop near nowhere sub/ ") << "what cannot be opened is listed";
}

INSTANTIATE_TEST_SUITE_P(Walks, EveryFolder, testing::Values(0, 1, 2));

class DiskFolder : public MadeTree, public testing::WithParamInterface<FolderWalk> {};

TEST_P(DiskFolder, PipesAndDevicesAreRefusedWithoutWaiting) {
  ASSERT_EQ(::mkfifo((top_ + "/root/pipe").c_str(), 0600), 0);
  const auto in = open_posix_folder(top_ + "/root", "ROOT", GetParam()).value();
  EXPECT_EQ(in->open("pipe").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(in->look("pipe")->kind, PathKind::kOther);
  const auto devices = open_posix_folder("/dev", "/dev", GetParam()).value();
  EXPECT_EQ(devices->open("null").error().code, ErrorCode::kInvalidArgument);
  const auto process = open_posix_folder("/proc/self", "/proc/self", GetParam()).value();
  EXPECT_EQ(process->open("root/etc/passwd").error().code, ErrorCode::kForbidden) << "not even the system's own links";
}

TEST_P(DiskFolder, AFolderThatIsRenamedIsStillTheOneOpened) {
  const auto in = open_posix_folder(top_ + "/root", "ROOT", GetParam()).value();
  fs::rename(top_ + "/root", top_ + "/moved");
  fs::create_symlink("outside", top_ + "/root");
  EXPECT_EQ(text_of(in->open("a.txt")), "inner");
  EXPECT_EQ(in->open("keys.txt").error().code, ErrorCode::kNotFound);
}

// A file, and a folder on the way, are exchanged for links that lead out and back
// while they are opened.
TEST_P(DiskFolder, WhatIsExchangedMeanwhileIsWithinOrAnError) {
  const auto in = open_posix_folder(top_ + "/root", "ROOT", GetParam()).value();
  put("outside/b.txt", "outer");
  fs::create_directories(top_ + "/spare");
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) {
      fs::create_symlink("../outside/keys.txt", top_ + "/spare/link");
      fs::rename(top_ + "/spare/link", top_ + "/root/a.txt");
      fs::rename(top_ + "/root/sub", top_ + "/spare/sub");
      fs::create_symlink("../outside", top_ + "/root/sub");
      std::ofstream(top_ + "/spare/a.txt") << "inner";
      fs::rename(top_ + "/spare/a.txt", top_ + "/root/a.txt");
      fs::remove(top_ + "/root/sub");
      fs::rename(top_ + "/spare/sub", top_ + "/root/sub");
    }
  });
  int opened = 0, refused = 0;
  for (int i = 0; i < 200'000 && (i < 4000 || opened < 100 || refused < 100); ++i) {
    for (const char* path : {"a.txt", "sub/b.txt", "sub/../a.txt"}) {
      const std::string text = text_of(in->open(path));
      ++(text.starts_with("error: ") ? refused : opened);
      EXPECT_NE(text, "outer") << path;
    }
  }
  done = true;
  other.join();
  EXPECT_GT(opened, 0);
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Walks, DiskFolder, testing::Values(FolderWalk::kSystem, FolderWalk::kSteps));

class Rooted : public MadeTree {
 protected:
  Result<std::string> read(const FileSystem& files, const std::string& path) {
    return files.read_all(top_ + "/" + path, 100);
  }
  ErrorCode code(const FileSystem& files, const std::string& path) {
    const auto text = read(files, path);
    return text.ok() ? ErrorCode::kInternal : text.error().code;
  }
};

TEST_F(Rooted, ReadsBelowItsRootsAlone) {
  link("root/keys.txt", "../outside/keys.txt");
  RootedFileSystem files(disk_);
  files.add_root(top_ + "/root");
  EXPECT_EQ(read(files, "root/a.txt").value(), "inner");
  EXPECT_EQ(code(files, "root/keys.txt"), ErrorCode::kForbidden);
  EXPECT_EQ(code(files, "outside/keys.txt"), ErrorCode::kForbidden);
  EXPECT_EQ(code(files, "root/none"), ErrorCode::kNotFound);
  EXPECT_EQ(files.kind(top_ + "/root"), PathKind::kDirectory);
  EXPECT_EQ(files.kind(top_ + "/root/keys.txt"), PathKind::kAbsent);
  EXPECT_EQ(files.check_visible(top_ + "/root/keys.txt").error().code, ErrorCode::kForbidden);
  // An --adapter-dir around both lets links lead from one to the other.
  RootedFileSystem wide(disk_, {top_});
  wide.add_root(top_ + "/root");
  EXPECT_EQ(read(wide, "root/keys.txt").value(), "outer");
}

TEST_F(Rooted, WhatTheOperatorNamesMayBeALinkOrAFile) {
  link("current", "root");
  link("one.gguf", "outside/keys.txt");
  link("outside/more", "../root/a.txt");
  RootedFileSystem files(disk_);
  files.add_root(top_ + "/current");
  files.add_root(top_ + "/one.gguf");
  EXPECT_EQ(read(files, "current/a.txt").value(), "inner");
  EXPECT_EQ(read(files, "one.gguf").value(), "outer");
  fs::remove(top_ + "/current");
  fs::create_symlink("outside", top_ + "/current");
  EXPECT_EQ(read(files, "current/keys.txt").value(), "outer") << "found again where it leads now";
  EXPECT_EQ(code(files, "current/more"), ErrorCode::kForbidden);
}

TEST_F(Rooted, ACacheOfHuggingFaceIsOneRoot) {
  put("hub/models--org--name/blobs/123", "blob");
  put("hub/models--org--other/blobs/456", "foreign");
  fs::create_directories(top_ + "/hub/models--org--name/snapshots/rev");
  link("hub/models--org--name/snapshots/rev/config", "../../blobs/123");
  link("hub/models--org--name/snapshots/rev/theirs", "../../../models--org--other/blobs/456");
  const std::string rev = "hub/models--org--name/snapshots/rev";
  RootedFileSystem named(disk_), below(disk_, {top_ + "/hub/models--org--name/snapshots"}),
      wide(disk_, {top_ + "/hub"});
  named.add_root(top_ + "/" + rev);
  for (const RootedFileSystem* files : {&named, &below, &wide}) {
    EXPECT_EQ(read(*files, rev + "/config").value(), "blob");
    EXPECT_EQ(code(*files, rev + "/theirs"), files == &wide ? ErrorCode::kInternal : ErrorCode::kForbidden);
  }
  link("named", rev);
  RootedFileSystem linked(disk_);
  linked.add_root(top_ + "/named");
  EXPECT_EQ(read(linked, "named/config").value(), "blob");
}

TEST_F(Rooted, TheTwinInMemoryAnswersAlike) {
  link("root/keys.txt", top_ + "/outside/keys.txt");
  RootedFileSystem files(memory_, {top_ + "/root"});
  EXPECT_EQ(read(files, "root/a.txt").value(), "inner");
  EXPECT_EQ(code(files, "root/keys.txt"), ErrorCode::kForbidden);
  EXPECT_EQ(code(files, "outside/keys.txt"), ErrorCode::kForbidden);
}

}  // namespace
}  // namespace loralei
