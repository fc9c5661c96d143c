// SPDX-License-Identifier: Apache-2.0
#include "wire/adapter_upload.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

std::string refused(const std::string& body) {
  const auto answer = parse_upload_answer(body);
  return answer.ok() ? "" : answer.error().message;
}

TEST(AdapterUpload, WhatOthersAreAskedToLoadIsWhatWasLoadedThere) {
  const auto answer = parse_upload_answer(
      R"({"name": "a \"b\"", "version": "v", "number": 3, "load_inplace": true, "pinned": true, "digest": "d",
          "path": "store:d/x.gguf", "bytes": 3, "files": [{"name": "x.gguf", "bytes": 3, "sha256": "s"}]})");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ASSERT_TRUE(answer->has_value());
  auto asked = parse_load_lora_request(load_lora_body(**answer));
  ASSERT_TRUE(asked.ok()) << asked.error().message;
  EXPECT_EQ(asked->name, "a \"b\"");
  EXPECT_EQ(asked->path, "store:d/x.gguf");
  EXPECT_TRUE(asked->load_inplace);
  EXPECT_TRUE(asked->pinned);
  const auto plain = parse_upload_answer(R"({"name": "a", "path": "store:d"})");
  ASSERT_TRUE(plain.ok() && plain->has_value());
  EXPECT_FALSE((*plain)->load_inplace);
  EXPECT_FALSE((*plain)->pinned);
}

TEST(AdapterUpload, OneWithoutANameWasStoredOnly) {
  const auto answer = parse_upload_answer(R"({"digest": "d", "path": "store:d", "bytes": 3, "files": []})");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_FALSE(answer->has_value());
}

TEST(AdapterUpload, AnythingElseIsRefusedWithItsField) {
  EXPECT_NE(refused(""), "");
  EXPECT_NE(refused("[]"), "");
  EXPECT_NE(refused("{}").find("path"), std::string::npos);
  EXPECT_NE(refused(R"({"name": "a"})").find("path"), std::string::npos);
  EXPECT_NE(refused(R"({"name": "a", "path": "/etc/passwd"})").find("path"), std::string::npos);
  EXPECT_NE(refused(R"({"name": "", "path": "store:d"})").find("name"), std::string::npos);
  EXPECT_NE(refused(R"({"name": 3, "path": "store:d"})").find("name"), std::string::npos);
  EXPECT_NE(refused(R"({"name": ")" + std::string(100'000, 'x') + R"(", "path": "store:d"})").find("name"),
            std::string::npos);
  EXPECT_NE(refused(R"({"name": "a", "path": "store:d", "pinned": "yes"})").find("pinned"), std::string::npos);
}

}  // namespace
}  // namespace loralei
