// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_cache.h"

#include <gtest/gtest.h>

#include "sys/memory_file_system.h"

namespace loralei {
namespace {

const std::string kOne(40, '1'), kTwo(40, '2');

class HubCacheTest : public testing::Test {
 protected:
  void put(const std::string& commit, const std::string& path, const std::string& text = "{}") {
    files_.put("/c/models--org--name/snapshots/" + commit + "/" + path, text);
  }
  void put_model(const std::string& commit) {
    for (const char* path : {"config.json", "tokenizer.json", "model.safetensors"}) put(commit, path);
  }
  void put_ref(const std::string& revision, const std::string& commit) {
    files_.put("/c/models--org--name/refs/" + revision, commit);
  }
  // Which commit is found, or what is missing.
  std::string found(const std::string& text, HubKind kind = HubKind::kModel) {
    const CachedHubModel cached = find_in_hub_cache(files_, "/c", **parse_hub_name(text), kind);
    if (!cached.place) return cached.missing;
    EXPECT_EQ(cached.place->repository, "org/name");
    EXPECT_TRUE(cached.place->path.starts_with("/c/models--org--name/snapshots/" + cached.place->commit));
    return cached.place->commit;
  }
  static bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  MemoryFileSystem files_;
};

TEST_F(HubCacheTest, ARevisionNamesACommit) {
  EXPECT_EQ(found("org/name"), "org/name is not in /c");
  put_model(kOne);
  EXPECT_EQ(found("org/name"), kOne);  // the only one
  put_model(kTwo);
  EXPECT_EQ(found("org/name"), "org/name is not in /c");
  put_ref("main", kTwo);
  put_ref("refs/pr/1", kOne);
  EXPECT_EQ(found("org/name"), kTwo);
  EXPECT_EQ(found("org/name@refs/pr/1"), kOne);
  EXPECT_EQ(found("org/name@" + kOne), kOne);
  EXPECT_EQ(found("org/name@v1"), "org/name@v1 is not in /c");
  put_ref("v1", "../../" + kOne);
  EXPECT_EQ(found("org/name@v1"), "org/name@v1 is not in /c");
}

TEST_F(HubCacheTest, WhatIsNotWholeIsNotUsed) {
  put(kOne, "config.json");
  EXPECT_TRUE(holds(found("org/name"), "holds no weights"));
  put(kOne, "model.safetensors.index.json",
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  put(kOne, "model-00001-of-00002.safetensors");
  EXPECT_TRUE(holds(found("org/name"), "is not whole in /c: model-00002-of-00002.safetensors is missing"));
  put(kOne, "model-00002-of-00002.safetensors");
  EXPECT_TRUE(holds(found("org/name"), "is not whole in /c: it has no tokenizer"));
  put(kOne, "tokenizer.model");
  EXPECT_EQ(found("org/name"), kOne);
}

TEST_F(HubCacheTest, AdaptersAndGgufFiles) {
  put(kOne, "adapter_config.json");
  EXPECT_TRUE(holds(found("org/name", HubKind::kAdapter), "holds no weights"));
  put(kOne, "adapter_model.safetensors");
  EXPECT_EQ(found("org/name", HubKind::kAdapter), kOne);
  put(kOne, "n/n-Q8_0-00001-of-00002.gguf");
  EXPECT_TRUE(holds(found("org/name:Q8_0"), "the part 2 is not there"));
  put(kOne, "n/n-Q8_0-00002-of-00002.gguf");
  EXPECT_EQ(find_in_hub_cache(files_, "/c", **parse_hub_name("org/name:Q8_0"), HubKind::kModel).place->path,
            "/c/models--org--name/snapshots/" + kOne + "/n/n-Q8_0-00001-of-00002.gguf");
}

TEST_F(HubCacheTest, IsListed) {
  EXPECT_TRUE(list_hub_cache(files_, "/none").empty());
  put_model(kOne);
  put(kTwo, "config.json");
  put_ref("main", kOne);
  put_ref("v1", kOne);
  const std::string lora = "/c/models--me--lora/snapshots/" + kTwo;
  files_.put(lora + "/adapter_config.json", R"({"base_model_name_or_path": "org/name"})");
  files_.put(lora + "/adapter_model.safetensors", "12345");
  files_.put("/c/datasets--x--y/snapshots/" + kOne + "/data.json", "{}");
  files_.put("/c/models--x--notes/snapshots/" + kOne + "/README.md", "x");
  const std::vector<HubListed> found = list_hub_cache(files_, "/c");
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].repository, "me/lora");
  EXPECT_EQ(found[0].kind, "adapter");
  EXPECT_EQ(found[0].base, "org/name");
  EXPECT_TRUE(found[0].whole);
  EXPECT_EQ(found[1].commit, kOne);
  EXPECT_EQ(found[1].kind, "model");
  EXPECT_EQ(found[1].revisions, (std::vector<std::string>{"main", "v1"}));
  EXPECT_EQ(found[1].bytes, 6);
  EXPECT_TRUE(found[1].whole);
  EXPECT_EQ(found[2].commit, kTwo);
  EXPECT_FALSE(found[2].whole);
  EXPECT_TRUE(found[2].revisions.empty());
  EXPECT_EQ(found[3].kind, "other");
}

}  // namespace
}  // namespace loralei
