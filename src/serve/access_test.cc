// SPDX-License-Identifier: Apache-2.0
#include "serve/access.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <set>

#include "serve/adapter_paths.h"
#include "serve/routes.h"

namespace loralei {
namespace {

HttpRequest request(const std::string& method, HttpHeaders headers, const std::string& body = "") {
  HttpRequest r;
  r.method = method;
  r.headers = std::move(headers);
  r.body = body;
  r.has_body = !body.empty();
  return r;
}
int status(const AccessPolicy& policy, const HttpRequest& r, RouteClass route) {
  const auto error = policy.check(r, route);
  return error ? error->status : 200;
}

TEST(Access, ApiKeys) {
  const AccessPolicy open({}, "", "127.0.0.1");
  EXPECT_EQ(status(open, request("GET", {}), RouteClass::kApi), 200);
  const AccessPolicy keyed({"k1", "k2"}, "boss", "0.0.0.0");
  EXPECT_EQ(status(keyed, request("GET", {}), RouteClass::kApi), 401);
  EXPECT_EQ(status(keyed, request("GET", {}), RouteClass::kOpen), 200);
  EXPECT_EQ(status(keyed, request("GET", {{"Authorization", "Bearer k2"}}), RouteClass::kApi), 200);
  EXPECT_EQ(status(keyed, request("GET", {{"authorization", "bearer boss"}}), RouteClass::kApi), 200);
  for (const char* wrong : {"Bearer k", "Bearer k11", "Bearer ", "Basic k1", "k1", "Bearer k1k1"}) {
    EXPECT_EQ(status(keyed, request("GET", {{"Authorization", wrong}}), RouteClass::kApi), 401) << wrong;
  }
}

TEST(Access, Holders) {
  const auto of = [](const AccessPolicy& policy, const std::string& key) {
    return policy.holder(request("GET", {{"Authorization", "Bearer " + key}}));
  };
  const AccessPolicy policy({"k1", "k2", "k1", ""}, "boss", "0.0.0.0");
  EXPECT_EQ(of(policy, "other").number, 0u);
  EXPECT_EQ(policy.holder(request("GET", {})).number, 0u);
  EXPECT_EQ(policy.holders(), 3u);
  const std::set<uint64_t> numbers = {0, of(policy, "k1").number, of(policy, "k2").number, of(policy, "boss").number};
  EXPECT_EQ(numbers.size(), 4u);
  // A key's name is its own, wherever it stands among others, and does not tell it.
  const AccessPolicy later({"new", "k2", "k1"}, "", "0.0.0.0");
  const auto name_of = [](const AccessPolicy& of, const std::string& key) {
    return of.holder(request("GET", {{"Authorization", "Bearer " + key}})).name;
  };
  EXPECT_EQ(name_of(later, "k1"), name_of(policy, "k1"));
  EXPECT_EQ(name_of(later, "k2"), name_of(policy, "k2"));
  EXPECT_NE(name_of(later, "k2"), name_of(later, "k1"));
  EXPECT_EQ(name_of(later, "k1").size(), 32u);
  EXPECT_EQ(name_of(later, "unknown"), "");
  EXPECT_EQ(of(later, "k1").number, of(policy, "k1").number);
  EXPECT_EQ(AccessPolicy({"k"}, "", "0.0.0.0").holders(), 1u);
  EXPECT_EQ(AccessPolicy({"k", "k"}, "k", "0.0.0.0").holders(), 1u);
  EXPECT_EQ(AccessPolicy({}, "boss", "127.0.0.1").holders(), 0u) << "/v1 is open";
}

NamedKey named(const std::string& name, const std::string& key, bool admin = false, int64_t expires_s = 0) {
  NamedKey out;
  out.name = name;
  out.sha256 = key_digest(key);
  out.admin = admin;
  out.expires_s = expires_s;
  return out;
}

TEST(Access, KeysWithNamesStandBesideTheOthers) {
  const auto with = [](const std::string& key) { return request("GET", {{"Authorization", "Bearer " + key}}); };
  AccessPolicy policy({"plain"}, "", "127.0.0.1");
  const std::string plain = policy.holder(with("plain")).name;
  policy.use_keys({named("alice", "sk-a"), named("ops", "sk-ops", true), named("old", "sk-old", true, 1)});
  EXPECT_EQ(policy.holders(), 4u);
  EXPECT_EQ(status(policy, with("sk-a"), RouteClass::kApi), 200);
  EXPECT_EQ(status(policy, with("plain"), RouteClass::kApi), 200);
  EXPECT_EQ(status(policy, with("alice"), RouteClass::kApi), 401) << "its name is no key";
  EXPECT_EQ(status(policy, with("sk-a"), RouteClass::kAdmin), 403);
  EXPECT_EQ(status(policy, with("sk-ops"), RouteClass::kAdmin), 200);
  EXPECT_EQ(status(policy, with("sk-old"), RouteClass::kAdmin), 401);
  const auto expired = policy.check(with("sk-old"), RouteClass::kApi);
  ASSERT_TRUE(expired);
  EXPECT_EQ(expired->message, "The key 'old' has expired.");
  ASSERT_TRUE(policy.holder(with("sk-a")).named);
  EXPECT_EQ(policy.holder(with("sk-a")).named->name, "alice");
  EXPECT_FALSE(policy.holder(with("plain")).named);
  EXPECT_EQ(policy.holder(with("plain")).name, plain);

  // Another file: who is in both is who it was, wherever it stands.
  const KeyHolder before = policy.holder(with("sk-a"));
  policy.use_keys({named("new", "sk-n"), named("alice-2", "sk-a")});
  EXPECT_EQ(policy.holder(with("sk-a")).name, before.name);
  EXPECT_EQ(policy.holder(with("sk-a")).number, before.number);
  EXPECT_EQ(status(policy, with("sk-ops"), RouteClass::kApi), 401);
  EXPECT_EQ(status(policy, with("sk-ops"), RouteClass::kAdmin), 401);

  // The key of an option and of the file is the file's, and may do what either may.
  AccessPolicy both({"k"}, "k", "0.0.0.0");
  both.use_keys({named("k", "k")});
  EXPECT_EQ(both.holders(), 1u);
  EXPECT_EQ(status(both, with("k"), RouteClass::kAdmin), 200);
  EXPECT_EQ(both.holder(with("k")).named->name, "k");
}

TEST(Access, PagesOfItsOwnComeFromItsOwnScheme) {
  const auto from = [](const std::string& origin) {
    return request("POST", {{"Host", "localhost:8443"}, {"Origin", origin}});
  };
  const AccessPolicy plain({}, "", "127.0.0.1"), secure({}, "", "127.0.0.1", {}, true);
  EXPECT_EQ(status(plain, from("http://localhost:8443"), RouteClass::kAdmin), 200);
  EXPECT_EQ(status(plain, from("https://localhost:8443"), RouteClass::kAdmin), 403);
  EXPECT_EQ(status(secure, from("https://localhost:8443"), RouteClass::kAdmin), 200);
  EXPECT_EQ(status(secure, from("http://localhost:8443"), RouteClass::kAdmin), 403);
}

// "$KEY" of a variable that is not set must not open the door.
TEST(Access, AnEmptyKeyIsNoKey) {
  for (const std::vector<std::string>& keys : {std::vector<std::string>{""}, std::vector<std::string>{"", "k"}}) {
    const AccessPolicy policy(keys, "", "0.0.0.0");
    EXPECT_EQ(status(policy, request("GET", {}), RouteClass::kApi), 401);
    EXPECT_EQ(status(policy, request("GET", {{"Authorization", "Bearer "}}), RouteClass::kApi), 401);
    EXPECT_EQ(status(policy, request("POST", {}), RouteClass::kAdmin), 401);
    EXPECT_EQ(status(policy, request("GET", {{"Authorization", "Bearer k"}}), RouteClass::kApi),
              keys.size() == 2 ? 200 : 401);
  }
  const AccessPolicy admin({""}, "boss", "0.0.0.0");
  EXPECT_EQ(status(admin, request("POST", {}), RouteClass::kAdmin), 401);
}

TEST(Access, WebPagesMaySendTheHeadersTheirClientsHave) {
  const std::string sdk = "authorization,content-type,x-stainless-arch, x-stainless-lang";
  EXPECT_EQ(cors_request_headers(sdk), sdk);
  const std::string usual = "Authorization, Content-Type, X-Request-Id";
  for (const std::string& asked : {std::string(), std::string("a\r\nb: c"), std::string("a:b"), std::string(2049, 'a')})
    EXPECT_EQ(cors_request_headers(asked), usual) << asked.substr(0, 20);
}

TEST(Access, AdminWithKey) {
  const AccessPolicy policy({"k1"}, "boss", "0.0.0.0");
  EXPECT_EQ(status(policy, request("POST", {{"Authorization", "Bearer boss"}}), RouteClass::kAdmin), 200);
  EXPECT_EQ(status(policy, request("POST", {{"Authorization", "Bearer k1"}}), RouteClass::kAdmin), 403);
  EXPECT_EQ(status(policy, request("POST", {{"Authorization", "Bearer x"}}), RouteClass::kAdmin), 401);
  EXPECT_EQ(status(policy, request("POST", {}), RouteClass::kAdmin), 401);
}

TEST(Access, AdminWithoutKeyIsLocalOnly) {
  const AccessPolicy far({}, "", "0.0.0.0");
  const auto error = far.check(request("POST", {{"Host", "localhost"}}), RouteClass::kAdmin);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 403);
  EXPECT_NE(error->message.find("--admin-key"), std::string::npos);
  const AccessPolicy near({}, "", "127.0.0.1");
  EXPECT_EQ(status(near, request("POST", {{"Host", "localhost:8000"}}), RouteClass::kAdmin), 200);
  EXPECT_EQ(status(near, request("POST", {{"Host", "[::1]:8000"}}), RouteClass::kAdmin), 200);
  EXPECT_EQ(status(near, request("POST", {{"Host", "rebound.example"}}), RouteClass::kAdmin), 403);
  EXPECT_EQ(status(near, request("POST", {}), RouteClass::kAdmin), 403);
  EXPECT_EQ(
      status(near, request("POST", {{"Host", "localhost:1"}, {"Origin", "http://evil.example"}}), RouteClass::kAdmin),
      403);
  EXPECT_EQ(status(near, request("POST", {{"Host", "localhost:1"}, {"Origin", "null"}}), RouteClass::kAdmin), 403);
  EXPECT_EQ(
      status(near, request("POST", {{"Host", "localhost:1"}, {"Origin", "http://localhost:1"}}), RouteClass::kAdmin),
      200);
  const AccessPolicy keyed({"k"}, "", "127.0.0.1");
  EXPECT_EQ(status(keyed, request("POST", {{"Host", "localhost"}}), RouteClass::kAdmin), 401);
  EXPECT_EQ(status(keyed, request("POST", {{"Host", "localhost"}, {"Authorization", "Bearer k"}}), RouteClass::kAdmin),
            200);
}

TEST(Access, OnLoopbackWithoutAKeyOnlyLocalHostsAreAnswered) {
  const auto answers = [](const AccessPolicy& policy, HttpHeaders headers, bool on_loopback = true) {
    const auto error = policy.check_host(request("GET", std::move(headers)), on_loopback);
    if (error) {
      EXPECT_EQ(error->status, 403);
      EXPECT_NE(error->message.find("--allowed-host"), std::string::npos);
    }
    return !error;
  };
  const AccessPolicy near({}, "boss", "127.0.0.1");
  for (const char* host : {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:8080", "::1"})
    EXPECT_TRUE(answers(near, {{"Host", host}})) << host;
  for (const char* host : {"rebound.example", "rebound.example:8080", "127.0.0.1.example", "localhost.example",
                           "192.168.0.2", "", "0.0.0.0"}) {
    EXPECT_FALSE(answers(near, {{"Host", host}})) << host;
    EXPECT_TRUE(answers(near, {{"Host", host}}, false)) << host;
  }
  EXPECT_TRUE(answers(near, {})) << "HTTP/1.0";
  EXPECT_TRUE(answers(AccessPolicy({"k"}, "", "127.0.0.1"), {{"Host", "rebound.example"}}));
  const AccessPolicy some({}, "", "myhost", {"llm.example:80", "[fd00::1]"});
  for (const char* host : {"LLM.example", "llm.example:8080", "[fd00::1]:80", "myhost:8080"})
    EXPECT_TRUE(answers(some, {{"Host", host}})) << host;
  EXPECT_FALSE(answers(some, {{"Host", "rebound.example"}}));
  EXPECT_TRUE(answers(AccessPolicy({}, "", "::1", {"*"}), {{"Host", "rebound.example"}}));
}

TEST(Access, BodiesAreJson) {
  const AccessPolicy policy({}, "", "127.0.0.1");
  EXPECT_EQ(status(policy, request("POST", {}, "{}"), RouteClass::kApi), 415);
  EXPECT_EQ(status(policy, request("POST", {{"Content-Type", "text/plain"}}, "{}"), RouteClass::kApi), 415);
  EXPECT_EQ(
      status(policy, request("PUT", {{"Content-Type", "Application/JSON; charset=utf-8"}}, "{}"), RouteClass::kApi),
      200);
  EXPECT_EQ(status(policy, request("POST", {}), RouteClass::kApi), 200);
}

TEST(Access, FormsAreForUploadsAlone) {
  const AccessPolicy near({}, "", "127.0.0.1");
  const auto form = [](const char* origin) {
    HttpHeaders headers = {{"Host", "localhost:1"}, {"Content-Type", "multipart/form-data; boundary=x"}};
    if (origin != nullptr) headers.emplace_back("Origin", origin);
    return request("POST", std::move(headers), "x");
  };
  EXPECT_EQ(status(near, form(nullptr), RouteClass::kUpload), 200);
  EXPECT_EQ(status(near, form(nullptr), RouteClass::kAdmin), 415);
  EXPECT_EQ(status(near, form("http://evil.example"), RouteClass::kUpload), 403) << "a page can send forms unasked";
  EXPECT_EQ(status(near, request("POST", {{"Host", "localhost:1"}, {"Content-Type", "application/json"}}, "{}"),
                   RouteClass::kUpload),
            415);
  EXPECT_EQ(status(AccessPolicy({}, "admin", "127.0.0.1"), form(nullptr), RouteClass::kUpload), 401);
}

TEST(Access, LocalHostsIdsKeyFilesCors) {
  for (const char* local : {"localhost", "LOCALHOST:80", "127.0.0.1", "127.3.2.1:5", "::1", "[::1]", "[::1]:80"})
    EXPECT_TRUE(is_local_host(local)) << local;
  for (const char* foreign : {"", "127.example.org", "localhost.evil.org", "10.0.0.1", "[::2]:80", "0.0.0.0", "["})
    EXPECT_FALSE(is_local_host(foreign)) << foreign;
  EXPECT_EQ(usable_request_id("abc-1"), "abc-1");
  for (const char* quoting : {"a b", "a\"b", "a\\b"}) EXPECT_EQ(usable_request_id(quoting), "") << quoting;
  EXPECT_EQ(usable_request_id("a\x01"), "");
  EXPECT_EQ(usable_request_id("\xC3\xA9"), "");
  EXPECT_EQ(usable_request_id(std::string(129, 'a')), "");
  EXPECT_EQ(parse_key_lines("# keys\n a \r\n\nb").value(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(cors_headers({}, "http://a").empty());
  EXPECT_TRUE(cors_headers({"http://a"}, "http://b").empty());
  EXPECT_EQ(find_header(cors_headers({"http://a"}, "http://a"), "access-control-allow-origin"), "http://a");
  EXPECT_EQ(find_header(cors_headers({"*"}, "http://b"), "access-control-allow-origin"), "*");
}

TEST(Keys, ThoseThatNoHeaderCarriesAreRefused) {
  for (const char* good : {"k", "sk-1234", "two words", "\xC3\xBC"}) EXPECT_TRUE(check_key(good).ok()) << good;
  for (const std::string& bad : {std::string(), std::string("k\n"), std::string("k\r"), std::string(" k"),
                                 std::string("k\t"), std::string("a\nb"), std::string("a\0b", 3), std::string("a\x1b"),
                                 std::string("\xEF\xBB\xBFk"), std::string("\xFF"), std::string(5000, 'k')})
    EXPECT_FALSE(check_key(bad).ok()) << bad;
  const auto keys = parse_key_lines("a\n\nb\x01\n");
  ASSERT_FALSE(keys.ok());
  EXPECT_TRUE(keys.error().message.starts_with("line 3: The key has ")) << keys.error().message;
}

TEST(AdapterNames, NoNameIsUnclearBesideThoseOfTheBase) {
  const std::vector<std::string> bases = {"m", "m:7b", "org/x"};
  for (const char* good : {"law", "m7b", "a:b", "x:m", "M:law", "org", "x", "7", "7bx", "a b", "c++", "\xC3\xBC"})
    EXPECT_TRUE(check_adapter_name(good, bases).ok()) << good;
  // "m:7b:tax" would be "tax" of the one base or "7b:tax" of the other.
  for (const char* bad : {"m", "m:7b", "m:law", "m:7b:law", "org/x:law", "7b", "7b:tax", "", "a,b", "a\nb", "a\xFF",
                          "a\xE2\x80\xAE", "a\x7f"})
    EXPECT_FALSE(check_adapter_name(bad, bases).ok()) << bad;
}

TEST(AdapterPaths, FoldersOfTheHubAreNamedAsThere) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / ("loralei-hub-adapters-" + std::to_string(::getpid()));
  fs::remove_all(root);
  const auto add = [&](const std::string& snapshot) {
    fs::create_directories(root / snapshot);
    std::ofstream(root / snapshot / "adapter_config.json") << "{}";
  };
  add("hub/models--org--one/snapshots/aa");
  add("hub/plain");
  add("outside/aa");
  fs::create_directories(root / "hub/models--org--model/snapshots/bb");
  fs::create_directories(root / "hub/models--org--empty/snapshots");
  fs::create_directories(root / "hub/models--org--out/snapshots");
  fs::create_symlink(root / "outside/aa", root / "hub/models--org--out/snapshots/aa");
  std::vector<std::string> notes;
  const auto found = scan_adapter_root(PosixFileSystem(), (root / "hub").string(), notes);
  ASSERT_TRUE(found.ok()) << found.error().message;
  ASSERT_EQ(found->size(), 2u);
  EXPECT_EQ((*found)[0].name, "org/one");
  EXPECT_TRUE((*found)[0].path.ends_with("/hub/models--org--one/snapshots/aa")) << (*found)[0].path;
  EXPECT_EQ((*found)[1].name, "plain");
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("models--org--empty holds no snapshot"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("models--org--out is left out"), std::string::npos) << notes[1];
  fs::remove_all(root);
}

TEST(Routes, WhatIsNoneSaysWhatToSendInstead) {
  for (const auto& [method, path, instead] : std::vector<std::array<std::string, 3>>{
           {"POST", "/chat/completions", "; send POST /v1/chat/completions instead."},
           {"POST", "/completions/", "; send POST /v1/completions instead."},
           {"POST", "/v1/v1/embeddings", "; send POST /v1/embeddings instead."},
           {"GET", "/models", "; send GET /v1/models instead."},
           {"GET", "/v1/health", "; send GET /health instead."},
           {"POST", "/v1/lora-adapters", "; send POST /lora-adapters instead."},
           {"GET", "/v1/props", "; send GET /props instead."},
           {"GET", "/info", "; send GET /server_info instead."},
           {"GET", "/slots", "; send GET /props and GET /metrics instead."},
           {"POST", "/api/chat", "; send POST /v1/chat/completions instead."},
           {"POST", "/v1/api/generate", "; send POST /v1/completions instead."},
           {"GET", "/api/tags", "; send GET /v1/models instead."},
           {"POST", "/completion", "; send POST /v1/completions instead."},
           {"POST", "/load_lora_adapter", "; send POST /v1/load_lora_adapter instead."},
           {"POST", "/", "; GET / lists the routes."},
           {"GET", "/v1/v1", "; GET / lists the routes."},
           {"POST", "/something", "; GET / lists the routes."}}) {
    EXPECT_EQ(other_route(method, path), instead) << path;
  }
}

// What tells of paths or of other clients' adapters needs the key, and what changes their
// answers the admin's.
TEST(Routes, ThoseOfOtherServersAskForKeys) {
  for (const char* path : {"/lora-adapters", "/props", "/tokenizer_info", "/server_info", "/get_server_info",
                           "/model_info", "/get_model_info"})
    EXPECT_EQ(match_route("GET", path).access, RouteClass::kApi) << path;
  EXPECT_EQ(match_route("POST", "/lora-adapters").access, RouteClass::kAdmin);
  EXPECT_EQ(match_route("POST", "/lora-adapters").id, RouteId::kSetLoraAdapters);
  EXPECT_EQ(match_route("POST", "/props").id, RouteId::kWrongMethod);
}

TEST(Routes, NamesMayHoldSlashes) {
  EXPECT_EQ(match_route("GET", "/v1/models").id, RouteId::kModels);
  EXPECT_EQ(match_route("GET", "/v1/models/").id, RouteId::kModels);
  EXPECT_EQ(match_route("HEAD", "/health").id, RouteId::kHealth);
  const RouteMatch model = match_route("GET", "/v1/models/org/na%2Fme");
  EXPECT_EQ(model.id, RouteId::kModel);
  EXPECT_EQ(model.name, "org/na/me");
  const RouteMatch pin = match_route("POST", "/v1/adapters/a%20b/pin");
  EXPECT_EQ(pin.id, RouteId::kAdapterPin);
  EXPECT_EQ(pin.name, "a b");
  EXPECT_EQ(pin.access, RouteClass::kAdmin);
  EXPECT_EQ(match_route("POST", "/v1/adapters/rescan").id, RouteId::kAdapterRescan);
  EXPECT_EQ(match_route("DELETE", "/v1/adapters/x").id, RouteId::kAdapterDelete);
  const RouteMatch wrong = match_route("GET", "/v1/completions");
  EXPECT_EQ(wrong.id, RouteId::kWrongMethod);
  EXPECT_EQ(wrong.allow, "POST");
  EXPECT_EQ(match_route("OPTIONS", "/v1/completions").id, RouteId::kPreflight);
  EXPECT_EQ(match_route("GET", "/nothing").id, RouteId::kNotFound);
  EXPECT_EQ(match_route("GET", "/v1/models/%zz").id, RouteId::kNotFound);
}

}  // namespace
}  // namespace loralei
