// SPDX-License-Identifier: Apache-2.0
#include "wire/key_file.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

std::string refusal(const std::string& text) {
  const auto keys = parse_key_file(text);
  return keys.ok() ? "" : keys.error().message;
}

TEST(KeyFile, ReadsWhatAKeyMay) {
  const auto keys = parse_key_file(
      "# who may use the server\n\n"
      R"({"name": "alice", "key": "sk-alice", "requests_per_minute": 60, "tokens_per_minute": 100000, "max_running": 4})"
      "\r\n"
      R"(  {"name": "batch", "key_sha256": "2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B",)"
      R"( "adapters": ["team-a-*", "shared"], "expires": "2027-01-31T12:00:00Z"})"
      "\n"
      R"({"name": "ops", "key": "sk-ops", "admin": true, "adapters": [], "expires": "2027-01-31"})");
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  ASSERT_EQ(keys->size(), 3u);
  const NamedKey& alice = (*keys)[0];
  EXPECT_EQ(alice.name, "alice");
  EXPECT_EQ(alice.sha256, key_digest("sk-alice"));
  EXPECT_FALSE(alice.admin);
  EXPECT_EQ(alice.requests_per_minute, 60);
  EXPECT_EQ(alice.tokens_per_minute, 100'000);
  EXPECT_EQ(alice.max_running, 4);
  EXPECT_TRUE(alice.may_use("anything"));
  EXPECT_FALSE(alice.expired(int64_t{1} << 40));
  const NamedKey& batch = (*keys)[1];
  EXPECT_EQ(batch.sha256, key_digest("secret"));
  EXPECT_EQ(batch.requests_per_minute, 0);
  EXPECT_TRUE(batch.may_use("team-a-sql") && batch.may_use("shared"));
  EXPECT_FALSE(batch.may_use("team-b-sql") || batch.may_use("shared-not"));
  EXPECT_FALSE(batch.expired(1'801'396'799));
  EXPECT_TRUE(batch.expired(1'801'396'800));
  const NamedKey& ops = (*keys)[2];
  EXPECT_TRUE(ops.admin);
  EXPECT_FALSE(ops.may_use("shared"));
  EXPECT_EQ(ops.expires_s, 1'801'353'600);
}

TEST(KeyFile, SaysWhichLineIsWrongAndNothingOfAKey) {
  const std::string fine = "{\"name\": \"a\", \"key\": \"sk-secret\"}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"sk-secret", "no JSON object"},
      {R"({"name": "b", "key": "sk-secret")", "no JSON object"},
      {R"({"key": "sk-secret2"})", "needs a 'name'"},
      {R"({"name": "b c", "key": "sk-secret2"})", "needs a 'name'"},
      {R"({"name": "other", "key": "sk-secret2"})", "needs a 'name'"},
      {R"({"name": 7, "key": "sk-secret2"})", "name"},
      {R"({"name": "b"})", "one of 'key' and 'key_sha256'"},
      {R"({"name": "b", "key": "sk-secret2", "key_sha256": "00"})", "one of 'key' and 'key_sha256'"},
      {R"({"name": "b", "key_sha256": "secret"})", "64 hex digits"},
      {R"({"name": "b", "key": ""})", "no client could send it"},
      {R"({"name": "b", "key": " secret"})", "no client could send it"},
      {R"({"name": "b", "key": "sec\nret"})", "no client could send it"},
      {R"({"name": "b", "key": ["sk-secret2"]})", "key"},
      {R"({"name": "b", "key": "sk-secret2", "request_per_minute": 1})", "'request_per_minute', which is none"},
      {R"({"name": "b", "key": "sk-secret2", "requests_per_minute": 0})", "requests_per_minute"},
      {R"({"name": "b", "key": "sk-secret2", "max_running": 1.5})", "max_running"},
      {R"({"name": "b", "key": "sk-secret2", "tokens_per_minute": null})", "leave it out"},
      {R"({"name": "b", "key": "sk-secret2", "admin": "yes"})", "admin"},
      {R"({"name": "b", "key": "sk-secret2", "adapters": "team"})", "no list of names"},
      {R"({"name": "b", "key": "sk-secret2", "adapters": [1]})", "no list of names"},
      {R"({"name": "b", "key": "sk-secret2", "expires": "tomorrow"})", "no date"},
      {R"({"name": "b", "key": "sk-secret2", "expires": "2027-02-30"})", "no date"},
      {R"({"name": "a", "key": "sk-secret2"})", "stands twice"},
      {R"({"name": "b", "key": "sk-secret"})", "key of another name"},
  };
  for (const auto& [line, part] : cases) {
    const std::string sentence = refusal(fine + "# a remark\n" + line + "\n");
    EXPECT_TRUE(sentence.starts_with("line 3: ")) << line << " -> " << sentence;
    EXPECT_NE(sentence.find(part), std::string::npos) << line << " -> " << sentence;
    EXPECT_EQ(sentence.find("sk-"), std::string::npos) << sentence;
  }
  EXPECT_NE(refusal("# nothing\n\n").find("holds no key"), std::string::npos);
}

TEST(KeyFile, HoldsSoManyKeys) {
  std::string text;
  for (size_t i = 0; i <= kMaxNamedKeys; ++i) {
    text += "{\"name\": \"k" + std::to_string(i) + "\", \"key\": \"s" + std::to_string(i) + "\"}\n";
    if (i + 1 == kMaxNamedKeys) {
      EXPECT_EQ(refusal(text), "");
    }
  }
  EXPECT_NE(refusal(text).find("more than 10000"), std::string::npos);
}

TEST(KeyFile, Patterns) {
  for (const auto& [pattern, name, is] :
       std::vector<std::tuple<std::string, std::string, bool>>{{"a", "a", true},
                                                               {"a", "ab", false},
                                                               {"", "", true},
                                                               {"*", "", true},
                                                               {"*", "anything at all", true},
                                                               {"team-*", "team-", true},
                                                               {"team-*", "team", false},
                                                               {"*-sql", "a-sql-sql", true},
                                                               {"*a*b*", "xxaxxbxx", true},
                                                               {"*a*b*", "xxbxxaxx", false},
                                                               {"a*a", "a", false},
                                                               {"**x", "x", true},
                                                               {"v?", "v1", false}})
    EXPECT_EQ(matches(pattern, name), is) << pattern << " " << name;
  std::string stars, name(512, 'a');
  for (int i = 0; i < 250; ++i) stars += "*a";
  EXPECT_FALSE(matches(stars + "b", name)) << "and not in the end of time";
}

}  // namespace
}  // namespace loralei
