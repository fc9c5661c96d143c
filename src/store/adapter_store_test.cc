// SPDX-License-Identifier: Apache-2.0
#include "store/adapter_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/prng.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// All files below a folder, and what is in them.
std::map<std::string, std::string> tree(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename() == "lock") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), folder)] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

class AdapterStoreTest : public testing::Test {
 protected:
  AdapterStoreTest() { fs::remove_all(folder_); }
  ~AdapterStoreTest() override {
    store_.reset();
    fs::remove_all(folder_);
  }
  void open(int64_t max_bytes = 0) {
    store_.reset();
    auto opened = AdapterStore::open({.folder = folder_, .max_bytes = max_bytes});
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    store_ = std::move(*opened);
  }
  using Files = std::map<std::string, std::string>;
  static Status fill(AdapterDraft& draft, const Files& files) {
    for (const auto& [name, text] : files) {
      TRY(draft.begin(name));
      for (size_t at = 0; at < text.size(); at += 5) TRY(draft.write(bytes_of(text.substr(at, 5))));
      TRY(draft.end());
    }
    return {};
  }
  Result<AdapterManifest> put(const Files& files) {
    const auto draft = store_->draft();
    TRY(fill(*draft, files));
    return draft->commit();
  }
  static Files peft(const std::string& config, const std::string& weights) {
    return {{"adapter_config.json", config}, {"adapter_model.safetensors", weights}};
  }

  const std::string folder_ = testing::TempDir() + "adapter_store_" + std::to_string(::getpid());
  std::unique_ptr<AdapterStore> store_;
};

TEST_F(AdapterStoreTest, WhatIsPutIsThereUnderItsDigestAfterARestartToo) {
  open();
  const auto manifest = put(peft("{}", "weights"));
  ASSERT_TRUE(manifest.ok()) << manifest.error().message;
  const std::string digest = manifest->digest();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(store_->find(digest).has_value());
    EXPECT_EQ(*store_->find(digest), *manifest);
    EXPECT_EQ(store_->path_of(*manifest), store_->folder_of(digest));
    EXPECT_EQ(store_->digest_of(store_->path_of(*manifest)), digest);
    EXPECT_EQ(store_->digest_of(store_->path_of(*manifest) + "/adapter_config.json"), digest);
    EXPECT_EQ(store_->stats().adapters, 1u);
    const auto files = tree(folder_);
    EXPECT_EQ(files.size(), 5u);
    EXPECT_EQ(files.at("adapters/" + digest + "/adapter_config.json"), "{}");
    EXPECT_EQ(files.at("blobs/" + sha256_hex("weights")), "weights");
    EXPECT_EQ(files.at("blobs/" + digest), manifest->text());
    int64_t bytes = 0;
    for (const auto& [name, text] : files) bytes += name.starts_with("blobs/") ? std::ssize(text) : 0;
    EXPECT_EQ(store_->stats().bytes, bytes);
    const auto blob = store_->blob(sha256_hex("weights"));
    ASSERT_TRUE(blob.ok());
    EXPECT_EQ(*read_all(**blob, 100), "weights");
    open();
  }
  EXPECT_EQ(put(peft("{}", "weights"))->digest(), digest);  // again
  EXPECT_EQ(store_->stats().adapters, 1u);
  const auto gguf = put({{"x.gguf", "GGUF"}});
  EXPECT_EQ(store_->path_of(*gguf), store_->folder_of(gguf->digest()) + "/x.gguf");
  EXPECT_FALSE(store_->blob("../lock").ok());
  EXPECT_FALSE(store_->blob(std::string(64, '0')).ok());
  EXPECT_EQ(store_->digest_of(folder_ + "/adapters/" + digest + "x"), "");
}

TEST_F(AdapterStoreTest, OneProcessHasTheFolder) {
  open();
  const auto second = AdapterStore::open({.folder = folder_});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("Another server has the adapter store"), std::string::npos);
}

TEST_F(AdapterStoreTest, WhatIsNotWholeLeavesNothing) {
  open();
  const auto kept = put(peft("{}", "same weights"));
  const auto before = tree(folder_);
  const int64_t bytes = store_->stats().bytes;
  {
    const auto draft = store_->draft();  // the client leaves amid a file
    ASSERT_TRUE(draft->begin("adapter_config.json").ok());
    ASSERT_TRUE(draft->write(bytes_of("other")).ok());
    ASSERT_TRUE(draft->end().ok());
    ASSERT_TRUE(draft->begin("adapter_model.safetensors").ok());
    ASSERT_TRUE(draft->write(bytes_of("same wei")).ok());
  }
  {
    const auto draft = store_->draft();
    ASSERT_TRUE(fill(*draft, {{"adapter_model.safetensors", "same weights"}}).ok());
    EXPECT_FALSE(draft->begin("../x.gguf").ok());
    EXPECT_FALSE(draft->begin("adapter_model.safetensors").ok());
    EXPECT_FALSE(draft->commit().ok());  // no config
  }
  EXPECT_EQ(tree(folder_), before);
  EXPECT_EQ(store_->stats().bytes, bytes);
  // A crash on the way, too.
  std::ofstream(folder_ + "/incoming/17") << "half";
  std::ofstream(folder_ + "/blobs/" + sha256_hex("nobody's")) << "nobody's";
  fs::create_directories(folder_ + "/incoming/18/x");
  open();
  EXPECT_EQ(tree(folder_), before);
}

TEST_F(AdapterStoreTest, AManifestThatIsGoneOrAnotherTakesItsAdapterAlong) {
  open();
  const std::string a = put(peft("a", "1"))->digest(), b = put(peft("b", "1"))->digest();
  store_.reset();
  fs::remove(folder_ + "/blobs/" + a);
  open();
  EXPECT_FALSE(store_->find(a).has_value());
  EXPECT_TRUE(store_->find(b).has_value());
  EXPECT_EQ(tree(folder_).size(), 5u);
}

TEST_F(AdapterStoreTest, WhatIsKnownIsCheckedAndGoneOnWith) {
  open();
  const std::string text = "the weights that a peer has";
  const StoredFile known{"x.gguf", std::ssize(text), sha256_hex(text)};
  {
    const auto draft = store_->draft();
    EXPECT_EQ(*draft->begin_known(known), 0);
    ASSERT_TRUE(draft->write(bytes_of(text.substr(0, 10))).ok());
  }
  open();  // after a restart
  {
    const auto draft = store_->draft();
    EXPECT_EQ(*draft->begin_known(known), 10);
    ASSERT_TRUE(draft->write(bytes_of(text.substr(10))).ok());
    ASSERT_TRUE(draft->end().ok());
    ASSERT_TRUE(draft->commit().ok());
  }
  {
    const auto draft = store_->draft();
    EXPECT_EQ(*draft->begin_known(known), known.bytes);
    EXPECT_FALSE(draft->write(bytes_of("x")).ok());
    ASSERT_TRUE(draft->end().ok());
  }
  const StoredFile other{"x.gguf", 10, sha256_hex("0123456789")};
  {
    const auto draft = store_->draft();
    EXPECT_EQ(*draft->begin_known(other), 0);
    EXPECT_EQ(draft->write(bytes_of("01234567890")).error().code, ErrorCode::kCorrupt);  // longer
    ASSERT_TRUE(draft->write(bytes_of("0123456780")).ok());
    const Status wrong = draft->end();
    ASSERT_FALSE(wrong.ok());
    EXPECT_EQ(wrong.error().code, ErrorCode::kCorrupt);
  }
  const auto draft = store_->draft();
  EXPECT_EQ(*draft->begin_known(other), 0) << "what was wrong is not gone on with";
}

// Two adapters of one training have the same config.
TEST_F(AdapterStoreTest, TwoDraftsMayFetchTheSameFileAtOnce) {
  open();
  const std::string text = "the same";
  const StoredFile known{"x.gguf", std::ssize(text), sha256_hex(text)};
  {
    const auto one = store_->draft(), two = store_->draft(), three = store_->draft();
    EXPECT_EQ(*one->begin_known(known), 0);
    ASSERT_TRUE(one->write(bytes_of("the ")).ok());
    const auto begun = two->begin_known(known);
    ASSERT_TRUE(begun.ok()) << begun.error().message;
    EXPECT_EQ(*begun, 0) << "not behind what another one writes";
    EXPECT_EQ(*three->begin_known(known), 0);
    ASSERT_TRUE(three->write(bytes_of("the s")).ok());  // and is given up
    ASSERT_TRUE(two->write(bytes_of(text)).ok());
    ASSERT_TRUE(one->write(bytes_of("same")).ok());
    ASSERT_TRUE(one->end().ok());
    ASSERT_TRUE(two->end().ok());
    EXPECT_EQ(one->commit()->digest(), two->commit()->digest());
  }
  EXPECT_TRUE(fs::is_empty(folder_ + "/incoming"));
  EXPECT_EQ(store_->stats().adapters, 1u);
  const std::string digest = store_->list().front().digest();
  EXPECT_EQ(store_->stats().bytes, std::ssize(text) + std::ssize(store_->list().front().text()));
  ASSERT_TRUE(store_->remove(digest).ok());
  EXPECT_EQ(store_->stats().bytes, 0);
}

TEST_F(AdapterStoreTest, AFullStoreDropsWhatNobodyUses) {
  open(400);
  std::set<std::string> used;
  store_->set_in_use([&](const std::string& digest) { return used.contains(digest); });
  const std::string a = put({{"a.gguf", std::string(100, 'a')}})->digest();
  const std::string b = put({{"b.gguf", std::string(50, 'b')}})->digest();
  used = {a, b};
  const auto full = put({{"c.gguf", std::string(100, 'c')}});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::kOverloaded);
  EXPECT_NE(full.error().message.find("400 bytes"), std::string::npos);
  used = {b};
  const auto c = put({{"c.gguf", std::string(100, 'c')}});
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_FALSE(store_->find(a).has_value());
  EXPECT_TRUE(store_->find(b).has_value());
  EXPECT_LE(store_->stats().bytes, 400);
  EXPECT_FALSE(put({{"d.gguf", std::string(500, 'd')}}).ok());
}

TEST_F(AdapterStoreTest, WhatIsRemovedCanBeReadByWhoHasItOpen) {
  open();
  const auto a = put(peft("a", "shared")), b = put(peft("b", "shared"));
  const auto file = PosixFileSystem().open(store_->path_of(*a) + "/adapter_model.safetensors");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(store_->remove(a->digest()).ok());
  EXPECT_EQ(*read_all(**file, 100), "shared");
  EXPECT_TRUE(store_->has_blob(sha256_hex("shared")));
  EXPECT_FALSE(store_->has_blob(sha256_hex("a")));
  ASSERT_TRUE(store_->remove(a->digest()).ok());  // once more
  ASSERT_TRUE(store_->remove(b->digest()).ok());
  EXPECT_TRUE(tree(folder_).empty());
  EXPECT_EQ(store_->stats().bytes, 0);
}

// Several threads at once, against what must be on the disk then.
TEST_F(AdapterStoreTest, AtOnceAndAtRandom) {
  open();
  std::printf("seed 2026\n");
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([this, id] {
      Prng random(2026 + static_cast<uint64_t>(id));
      for (int round = 0; round < 60; ++round) {
        const std::string config(1 + random.below(3), 'c'), weights(1 + random.below(4), 'w');
        const auto made = put(peft(config, weights));
        ASSERT_TRUE(made.ok()) << made.error().message;
        if (random.below(2) == 0) {
          ASSERT_TRUE(store_->remove(made->digest()).ok());
        }
        if (random.below(4) == 0) {
          const auto draft = store_->draft();
          ASSERT_TRUE(fill(*draft, {{"adapter_model.safetensors", weights}}).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, std::string> want;
  int64_t bytes = 0;
  for (const AdapterManifest& manifest : store_->list()) {
    want["blobs/" + manifest.digest()] = manifest.text();
    for (const StoredFile& file : manifest.files) {
      const std::string text(static_cast<size_t>(file.bytes), file.name == "adapter_config.json" ? 'c' : 'w');
      want["blobs/" + file.sha256] = text;
      want["adapters/" + manifest.digest() + "/" + file.name] = text;
    }
  }
  for (const auto& [name, text] : want) bytes += name.starts_with("blobs/") ? std::ssize(text) : 0;
  EXPECT_EQ(tree(folder_), want);
  EXPECT_EQ(store_->stats().bytes, bytes);
}

}  // namespace
}  // namespace loralei
