// SPDX-License-Identifier: Apache-2.0
// Downloads from a hub on loopback: what arrives, what is asked for, what is refused.
#include "hub/hub_pull.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>

#include "hub/fake_hub_test_util.h"
#include "hub/hub_listing.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;
using testing_support::FakeAnswer;
using testing_support::FakeHub;
using testing_support::FakeRequest;

constexpr int64_t kPiece = 10'000;

class HubPull : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("loralei-pull-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    hub_.files = {{"config.json", "{}"},
                  {"tokenizer.json", "{\"t\":1}"},
                  {"evil.py", "import os"},
                  {"model.safetensors", bytes(95'123)}};
  }
  void TearDown() override { fs::remove_all(root_); }

  static std::string bytes(size_t count) {
    std::string text(count, '\0');
    uint64_t state = count;
    for (char& c : text) c = static_cast<char>((state = state * 6364136223846793005u + 1442695040888963407u) >> 56);
    return text;
  }
  HubSettings settings() const {
    HubSettings made;
    made.endpoint = *parse_http_url(hub_.url());
    made.endpoint.target.clear();
    made.cache_dir = root_.string();
    made.piece_bytes = kPiece;
    made.first_wait_ms = 1;
    made.variable = [](const char*) { return std::nullopt; };
    made.token = token_;
    return made;
  }
  // Where it lies, or the sentence.
  std::string pull(const std::string& text = "org/name", HubKind kind = HubKind::kAny) {
    said_.clear();
    HubReport report;
    report.say = [this](const std::string& line) { said_ += line + "\n"; };
    report.progress = [this](int64_t done, int64_t total) {
      EXPECT_LE(done, total);
      last_done_ = done;
      last_total_ = total;
    };
    meet();
    const auto place = pull_from_hub(settings(), **parse_hub_name(text), kind, report);
    meet();
    return place.ok() ? place->path : std::string(error_code_name(place.error().code)) + ": " + place.error().message;
  }
  // With the hub's threads, which read what tests change.
  void meet() const {
    (void)hub_.asked();
    (void)hub_.far_asked();
  }
  fs::path folder() const { return root_ / "models--org--name"; }
  fs::path snapshot() const { return folder() / "snapshots" / hub_.commit; }
  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  size_t blobs() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder() / "blobs"), fs::directory_iterator()));
  }
  void expect_whole() const {
    EXPECT_EQ(read(snapshot() / "model.safetensors"), hub_.files.at("model.safetensors"));
    EXPECT_EQ(read(snapshot() / "config.json"), "{}");
    EXPECT_EQ(blobs(), 3u);  // and nothing else is left
  }
  static bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  int64_t far_bytes() const {  // asked for
    int64_t sum = 0;
    for (const FakeRequest& one : hub_.far_asked()) {
      const size_t dash = one.range.find('-');
      if (!one.range.empty()) sum += std::stoll(one.range.substr(dash + 1)) - std::stoll(one.range.substr(6)) + 1;
    }
    return sum;
  }

  FakeHub hub_;
  std::string token_, said_;
  int64_t last_done_ = 0, last_total_ = 0;
  fs::path root_;
};

TEST_F(HubPull, LaysItOutAsTheLibraryDoes) {
  EXPECT_EQ(pull(), snapshot().string());
  expect_whole();
  EXPECT_EQ(read(folder() / "refs/main"), hub_.commit);
  const std::string digest = FakeHub::digest(hub_.files["model.safetensors"], true);
  EXPECT_EQ(fs::read_symlink(snapshot() / "model.safetensors"), "../../blobs/" + digest);
  EXPECT_FALSE(fs::exists(snapshot() / "evil.py"));
  EXPECT_EQ(last_done_, last_total_);
  EXPECT_TRUE(holds(said_, "3 of 3 files")) << said_;
  // In pieces, each once.
  EXPECT_EQ(hub_.far_asked().size(), 10u);
  EXPECT_EQ(far_bytes(), 95'123);
}

TEST_F(HubPull, WhatIsHereIsNotFetchedAgain) {
  pull();
  const size_t asked = hub_.asked().size();
  EXPECT_EQ(pull(), snapshot().string());
  EXPECT_EQ(hub_.asked().size(), asked + 1);  // the list
  EXPECT_TRUE(holds(said_, "is up to date")) << said_;
  // A new commit that changes one file: the others are linked.
  hub_.commit = std::string(40, 'b');
  hub_.files["config.json"] = "{ }";
  const size_t far = hub_.far_asked().size();
  EXPECT_EQ(pull(), snapshot().string());
  EXPECT_EQ(hub_.far_asked().size(), far);
  EXPECT_EQ(read(snapshot() / "config.json"), "{ }");
  EXPECT_EQ(read(folder() / "refs/main"), hub_.commit);
}

TEST_F(HubPull, ALostLinkOrBlobIsMended) {
  pull();
  fs::remove(snapshot() / "config.json");
  fs::resize_file(fs::canonical(snapshot() / "model.safetensors"), 5);
  EXPECT_EQ(pull(), snapshot().string());
  expect_whole();
}

TEST_F(HubPull, RevisionsHaveNamesOfTheirOwn) {
  EXPECT_EQ(pull("org/name@refs/pr/1"), snapshot().string());
  EXPECT_EQ(read(folder() / "refs/refs/pr/1"), hub_.commit);
  EXPECT_FALSE(fs::exists(folder() / "refs/main"));
  EXPECT_EQ(hub_.asked().front().target, "/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true");
  EXPECT_EQ(pull("org/name@" + hub_.commit), snapshot().string());
  EXPECT_FALSE(fs::exists(folder() / ("refs/" + hub_.commit)));
  EXPECT_TRUE(holds(pull("org/name@" + std::string(40, 'c')), "is of another commit"));
}

TEST_F(HubPull, AGgufFileLiesInItsFolder) {
  hub_.files = {{"Q4_K_M/n-Q4_K_M-00001-of-00002.gguf", bytes(30'000)},
                {"Q4_K_M/n-Q4_K_M-00002-of-00002.gguf", bytes(2'000)},
                {"n-Q8_0.gguf", bytes(5'000)}};
  const fs::path first = snapshot() / "Q4_K_M/n-Q4_K_M-00001-of-00002.gguf";
  EXPECT_EQ(pull("org/name:Q4_K_M"), first.string());
  EXPECT_TRUE(fs::read_symlink(first).string().starts_with("../../../blobs/"));
  EXPECT_EQ(read(first), bytes(30'000));
  EXPECT_FALSE(fs::exists(snapshot() / "n-Q8_0.gguf"));
  EXPECT_TRUE(holds(pull("org/name:Q5_K_M"), "no GGUF file of this repository is called so"));
}

TEST_F(HubPull, CutsAtAnyByteAreGoneOnWith) {
  const uint64_t seed = 7;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::atomic<uint64_t> state{seed};
  hub_.far_fault = [&](const FakeRequest& request) -> std::optional<FakeAnswer> {
    const uint64_t drawn = (state = state * 6364136223846793005u + 1442695040888963407u) >> 33;
    if (drawn % 3 == 0) return std::nullopt;
    FakeAnswer cut = hub_.part(hub_.files.at("model.safetensors"), request.range);
    cut.cut_at = drawn % cut.body.size() + 1;
    return cut;
  };
  EXPECT_EQ(pull(), snapshot().string());
  expect_whole();
}

TEST_F(HubPull, AnotherRunGoesOnWhereOneWasCut) {
  std::atomic<int> left{4};
  hub_.far_fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> {
    if (left-- > 0) return std::nullopt;
    return FakeAnswer{503, {}, "later"};
  };
  EXPECT_TRUE(pull().starts_with("unavailable: fetching model.safetensors: ")) << pull();
  EXPECT_FALSE(fs::exists(snapshot() / "model.safetensors"));
  EXPECT_FALSE(fs::exists(folder() / "refs/main"));
  hub_.far_fault = nullptr;
  const int64_t before = far_bytes();
  EXPECT_EQ(pull(), snapshot().string());
  expect_whole();
  EXPECT_EQ(far_bytes() - before, 95'123 - 4 * kPiece);
  EXPECT_TRUE(holds(said_, "are here already")) << said_;
}

TEST_F(HubPull, AServerWithoutRangesIsReadFromTheBeginning) {
  hub_.ranges = false;
  EXPECT_EQ(pull(), snapshot().string());
  expect_whole();
}

TEST_F(HubPull, AnotherChecksumIsAnotherFile) {
  std::atomic<int> left{2};
  hub_.far_fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> {
    if (left-- > 0) return std::nullopt;
    return FakeAnswer{503, {}, ""};
  };
  pull();
  hub_.far_fault = nullptr;
  hub_.files["model.safetensors"] = bytes(95'124);
  EXPECT_EQ(pull(), snapshot().string());
  EXPECT_EQ(read(snapshot() / "model.safetensors"), bytes(95'124));
}

TEST_F(HubPull, WrongBytesAreNotKept) {
  hub_.far_fault = [&](const FakeRequest& request) -> std::optional<FakeAnswer> {
    std::string other = hub_.files.at("model.safetensors");
    other[50'000] ^= 1;
    return hub_.part(other, request.range);
  };
  EXPECT_TRUE(holds(pull(), "corrupt: model.safetensors: what came is not what the hub has announced"));
  EXPECT_EQ(blobs(), 2u);
  hub_.far_fault = nullptr;
  EXPECT_EQ(pull(), snapshot().string());
  expect_whole();
}

TEST_F(HubPull, WrongBytesOfASmallFileAreNotKept) {
  hub_.fault = [&](const FakeRequest& request) -> std::optional<FakeAnswer> {
    if (request.method != "GET" || !request.target.ends_with("/config.json")) return std::nullopt;
    return FakeAnswer{200, {}, "[]"};
  };
  EXPECT_TRUE(holds(pull(), "corrupt: config.json: what came is not what the hub has announced"));
  EXPECT_FALSE(fs::exists(snapshot() / "config.json"));
}

TEST_F(HubPull, MoreThanWasSaidIsRefused) {
  hub_.far_fault = [&](const FakeRequest& request) -> std::optional<FakeAnswer> {
    FakeAnswer more = hub_.part(hub_.files.at("model.safetensors"), request.range);
    more.body += std::string(100'000, 'x');
    return more;
  };
  EXPECT_TRUE(holds(pull(), "sends more than the 95123 bytes that it has"));
}

TEST_F(HubPull, AnotherRangeIsRefused) {
  for (const char* range : {"bytes 1-9/95123", "bytes 0-9999/95124", "bytes 0-9999", "chars 0-9999/95123", ""}) {
    hub_.far_fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> {
      return FakeAnswer{206, {{"Content-Range", range}}, std::string(10'000, 'x')};
    };
    EXPECT_TRUE(holds(pull(), "sends another part than the one that was asked for")) << range;
  }
  hub_.far_fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> { return FakeAnswer{201, {}, "x"}; };
  EXPECT_TRUE(holds(pull(), "answers 201 in the place of bytes"));
  hub_.far_fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> {
    return FakeAnswer{200, {{"Content-Encoding", "gzip"}}, "x"};
  };
  EXPECT_TRUE(holds(pull(), "sends it compressed"));
}

TEST_F(HubPull, TheTokenStaysWithTheHub) {
  token_ = "hf_secret";
  EXPECT_EQ(pull(), snapshot().string());
  for (const FakeRequest& one : hub_.asked()) EXPECT_EQ(one.authorization, "Bearer hf_secret") << one.target;
  ASSERT_FALSE(hub_.far_asked().empty());
  for (const FakeRequest& one : hub_.far_asked()) EXPECT_EQ(one.authorization, "") << one.target;
}

TEST_F(HubPull, RedirectsLeadToHttpAndEnd) {
  std::string location;
  hub_.fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> {
    return FakeAnswer{302, {{"Location", location}}, ""};
  };
  for (const char* bad : {"file:///etc/passwd", "ftp://127.0.0.1/x", "", "gopher://x/"}) {
    location = bad;
    EXPECT_TRUE(holds(pull(), " is not followed: ")) << bad;
  }
  location = "/again";
  EXPECT_TRUE(holds(pull(), "redirects more than 10 times"));
}

TEST_F(HubPull, RefusalsSayWhatToDo) {
  FakeAnswer refusal;
  hub_.fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> { return refusal; };
  refusal = {401, {{"X-Error-Code", "RepoNotFound"}}, "x"};
  EXPECT_TRUE(holds(pull(), "unauthenticated: org/name is not at " + hub_.url() +
                                ", or is private: check the name, or set HF_TOKEN"));
  token_ = "hf_secret";
  EXPECT_TRUE(holds(pull(), "or may not be read with the token that is set"));
  refusal = {403, {{"X-Error-Code", "GatedRepo"}}, "x"};
  EXPECT_TRUE(holds(pull(), "accept the model's terms at " + hub_.url() + "/org/name")) << pull();
  EXPECT_FALSE(holds(pull(), token_));
  refusal = {404, {{"X-Error-Code", "RevisionNotFound"}}, "x"};
  EXPECT_TRUE(holds(pull("org/name@v9"), "not_found: org/name@v9: there is no such revision"));
  refusal = {404, {{"X-Error-Code", "RepoNotFound"}}, "x"};
  EXPECT_TRUE(holds(pull(), "check the name"));
  refusal = {418, {}, std::string(1'000'000, 'x')};
  EXPECT_TRUE(holds(pull(), "answers 418 to the request for org/name"));
}

TEST_F(HubPull, BusyHubsAreAskedAgain) {
  std::atomic<int> count{0};
  hub_.fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> {
    const int now = count++;
    if (now == 0) return FakeAnswer{429, {{"Retry-After", "0"}}, "slowly"};
    if (now == 1) return FakeAnswer{500, {}, "oh"};
    if (now == 2) return FakeAnswer{200, {}, "{\"sha\": 1}", 6};
    return std::nullopt;
  };
  EXPECT_EQ(pull(), snapshot().string());
  hub_.commit = std::string(40, 'b');
  hub_.fault = [&](const FakeRequest&) -> std::optional<FakeAnswer> { return FakeAnswer{503, {}, "oh"}; };
  EXPECT_TRUE(pull().starts_with("unavailable: " + hub_.url() + " answers 503")) << pull();
}

TEST_F(HubPull, HostileListsAndHeadsAreRefused) {
  std::string list;
  hub_.fault = [&](const FakeRequest& request) -> std::optional<FakeAnswer> {
    if (!request.target.starts_with("/api/")) return std::nullopt;
    return FakeAnswer{200, {}, list};
  };
  const std::string begin = R"({"sha":")" + hub_.commit + R"(","siblings":[{"rfilename":"config.json"},{"rfilename":")";
  for (const char* bad : {"../../x.json", "/etc/x.json", "a\\\\b", "config.json"}) {
    list = begin + bad + R"("}]})";
    EXPECT_TRUE(holds(pull(), "nothing was fetched")) << bad;
  }
  list = std::string(kMaxHubListBytes + 1, ' ');
  EXPECT_TRUE(holds(pull(), "is longer than 32"));
  EXPECT_FALSE(fs::exists(folder()));
  HttpHeaders headers;
  hub_.fault = [&](const FakeRequest& request) -> std::optional<FakeAnswer> {
    if (request.method != "HEAD") return std::nullopt;
    return FakeAnswer{200, headers, ""};
  };
  const std::string sha(40, 'c');
  headers = {{"ETag", "../../../../etc/passwd"}};
  EXPECT_TRUE(holds(pull(), "gives no checksum of it"));
  headers = {{"ETag", sha}, {"X-Repo-Commit", std::string(40, 'd')}};
  EXPECT_TRUE(holds(pull(), "answers from another commit"));
  headers = {{"ETag", sha}, {"Content-Length", "123456789"}};
  EXPECT_TRUE(holds(pull(), "says two sizes"));
  headers = {{"X-Linked-Etag", sha}, {"X-Linked-Size", "-1"}};
  EXPECT_TRUE(holds(pull(), "does not say how large it is"));
}

TEST_F(HubPull, ADiskThatIsTooSmallIsToldBefore) {
  hub_.fault = [&](const FakeRequest& request) -> std::optional<FakeAnswer> {
    if (request.target.starts_with("/api/"))
      return FakeAnswer{200, {}, R"({"sha":")" + hub_.commit + R"(","siblings":[{"rfilename":"n.gguf"}]})"};
    return FakeAnswer{
        302, {{"X-Linked-Etag", std::string(64, 'c')}, {"X-Linked-Size", "4398046511104"}, {"Location", "/x"}}, ""};
  };
  EXPECT_TRUE(holds(pull(), " more, but ")) << pull();
}

TEST_F(HubPull, TwoAtOnceFetchOnce) {
  const auto one = [this] {
    return pull_from_hub(settings(), **parse_hub_name("org/name"), HubKind::kAny, HubReport()).ok();
  };
  bool other = false;
  std::thread thread([&] { other = one(); });
  EXPECT_TRUE(one());
  thread.join();
  EXPECT_TRUE(other);
  expect_whole();
  EXPECT_EQ(far_bytes(), 95'123);
}

TEST_F(HubPull, OfflineNobodyIsAsked) {
  HubSettings offline = settings();
  offline.offline = true;
  const HubName name = **parse_hub_name("org/name");
  EXPECT_TRUE(
      holds(find_or_pull(offline, name, HubKind::kModel, HubReport()).error().message, "and the hub is not asked"));
  EXPECT_TRUE(hub_.asked().empty());
  pull();
  const size_t asked = hub_.asked().size();
  EXPECT_EQ(find_or_pull(offline, name, HubKind::kModel, HubReport())->path, snapshot().string());
  EXPECT_EQ(find_or_pull(settings(), name, HubKind::kModel, HubReport())->path, snapshot().string());
  EXPECT_EQ(hub_.asked().size(), asked);
  fs::remove(snapshot() / "model.safetensors");
  EXPECT_FALSE(find_or_pull(offline, name, HubKind::kModel, HubReport()).ok());
  EXPECT_EQ(find_or_pull(settings(), name, HubKind::kModel, HubReport())->path, snapshot().string());
  expect_whole();
}

TEST_F(HubPull, APathWins) {
  fs::create_directories(root_ / "org/name");
  const PosixFileSystem files;
  EXPECT_FALSE(*name_meant_by(files, (root_ / "org/name").string()));
  EXPECT_FALSE(*name_meant_by(files, "org/name.gguf"));
  EXPECT_TRUE(*name_meant_by(files, "no-such-org/no-such-name"));
  EXPECT_TRUE(*name_meant_by(files, "no-such-org/name.gguf:name.gguf"));
  const auto none =
      place_meant_by(settings(), "org/other", **parse_hub_name("org/other"), HubKind::kModel, HubReport());
  EXPECT_TRUE(holds(none.error().message, "'org/other' does not exist on this machine, and as a name on the hub: "))
      << none.error().message;
}

}  // namespace
}  // namespace loralei
