// SPDX-License-Identifier: Apache-2.0
// Fetching over loopback, from peers that lack it, break off, lie or hang.
#include "store/adapter_peers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "http/server.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

// Serves blobs as it is told.
class TestPeer final : public HttpHandler {
 public:
  TestPeer() { server_ = HttpServer::start({}, *this, log_).value(); }
  ~TestPeer() override {
    released = true;
    server_.reset();
  }
  // Who hangs waits no longer, and neither do those to come.
  void let_go() {
    const std::lock_guard lock(mutex_);
    held_.clear();
    hangs = false;
  }
  UpstreamAddress address() const { return {"127.0.0.1", server_->port()}; }

  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    ++asked;
    if (request.header("authorization") != "Bearer secret") return void(writer->respond(401, {}, "no key"));
    const std::string_view prefix = "/v1/adapters/blobs/";
    ASSERT_TRUE(request.path.starts_with(prefix));
    const auto found = blobs.find(request.path.substr(prefix.size()));
    if (found == blobs.end()) return void(writer->respond(404, {}, "not here"));
    std::string text = found->second;
    int status = 200;
    if (const std::string_view range = request.header("range"); !range.empty() && ranges) {
      const auto from = static_cast<size_t>(std::stoul(std::string(range.substr(6))));
      from_asked.push_back(from);
      text.erase(0, from);
      status = 206;
    }
    if (hangs) {
      writer->start_stream(status, {});
      {
        const std::lock_guard lock(mutex_);
        held_.push_back(writer);
      }
      writer->write(text.substr(0, 1));
      return;
    }
    if (text.size() > breaks_off_at) {
      writer->start_stream(status, {});
      writer->write(text.substr(0, breaks_off_at));
      breaks_off_at = SIZE_MAX;      // once
      writer->on_room([writer] {});  // dropped when some of it has left: the stream is cut
      return;
    }
    if (redirects) return void(writer->respond(307, {{"Location", "http://127.0.0.1:1/x"}}, ""));
    writer->respond(status, {}, text);
  }

  std::map<std::string, std::string> blobs;
  size_t breaks_off_at = SIZE_MAX;
  bool ranges = true, redirects = false;
  std::atomic<bool> hangs{false};
  std::atomic<bool> released{false};
  std::atomic<int> asked{0};
  std::vector<size_t> from_asked;

 private:
  NullLogSink log_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<ResponseWriter>> held_;
  std::unique_ptr<HttpServer> server_;
};

class AdapterPeersTest : public testing::Test {
 protected:
  AdapterPeersTest() {
    fs::remove_all(folder_);
    store_ = AdapterStore::open({.folder = folder_}).value();
    weights_.assign(300'000, 'w');
    for (size_t i = 0; i < weights_.size(); i += 7) weights_[i] = static_cast<char>('a' + i % 23);
    manifest_ = AdapterManifest::make({{"adapter_config.json", 2, sha256_hex("{}")},
                                       {"adapter_model.safetensors", std::ssize(weights_), sha256_hex(weights_)}})
                    .value();
  }
  ~AdapterPeersTest() override {
    store_.reset();
    fs::remove_all(folder_);
  }
  void fill(TestPeer& peer) const {
    peer.blobs[manifest_.digest()] = manifest_.text();
    peer.blobs[sha256_hex("{}")] = "{}";
    peer.blobs[sha256_hex(weights_)] = weights_;
  }
  std::unique_ptr<AdapterPeers> peers_of(std::vector<const TestPeer*> peers, int64_t read_timeout_ms = 10'000) {
    std::vector<UpstreamAddress> addresses;
    for (const TestPeer* peer : peers) addresses.push_back(peer->address());
    return std::make_unique<AdapterPeers>(
        *store_,
        AdapterPeersOptions{
            .peers = [addresses] { return addresses; }, .key = "secret", .read_timeout_ms = read_timeout_ms},
        log_);
  }
  void expect_here() const {
    ASSERT_TRUE(store_->find(manifest_.digest()).has_value());
    const auto file = PosixFileSystem().open(store_->folder_of(manifest_.digest()) + "/adapter_model.safetensors");
    ASSERT_TRUE(file.ok());
    EXPECT_TRUE(*read_all(**file, 1 << 20) == weights_);
  }

  const std::string folder_ = testing::TempDir() + "adapter_peers_" + std::to_string(::getpid());
  NullLogSink log_;
  std::unique_ptr<AdapterStore> store_;
  std::string weights_;
  AdapterManifest manifest_;
};

TEST_F(AdapterPeersTest, FromTheOneThatHasIt) {
  TestPeer empty, full;
  fill(full);
  const auto peers = peers_of({&empty, &full});
  const Status fetched = peers->fetch(manifest_.digest());
  ASSERT_TRUE(fetched.ok()) << fetched.error().message;
  expect_here();
  const int asked = full.asked;
  EXPECT_TRUE(peers->fetch(manifest_.digest()).ok());
  EXPECT_EQ(full.asked, asked) << "what is here is not fetched";
  EXPECT_EQ(peers->stats().fetched, 1u);
  EXPECT_EQ(peers->stats().bytes, weights_.size() + 2);
}

TEST_F(AdapterPeersTest, NoPeerHasIt) {
  TestPeer empty;
  const auto peers = peers_of({&empty});
  const Status fetched = peers->fetch(manifest_.digest());
  ASSERT_FALSE(fetched.ok());
  EXPECT_EQ(fetched.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(fetched.error().message.find("it answered 404: not here"), std::string::npos) << fetched.error().message;
  EXPECT_FALSE(peers->fetch_again(manifest_.digest()).ok());
  EXPECT_EQ(empty.asked, 1) << "not again at once";
  EXPECT_FALSE(peers_of({})->fetch(manifest_.digest()).ok());
  EXPECT_FALSE(peers->fetch("../../etc/passwd").ok());
}

TEST_F(AdapterPeersTest, OneThatBreaksOffIsGoneOnWith) {
  TestPeer peer;
  fill(peer);
  peer.breaks_off_at = 100'000;
  const auto peers = peers_of({&peer});
  EXPECT_FALSE(peers->fetch(manifest_.digest()).ok());
  EXPECT_FALSE(store_->find(manifest_.digest()).has_value());
  const Status fetched = peers->fetch(manifest_.digest());
  ASSERT_TRUE(fetched.ok()) << fetched.error().message;
  ASSERT_EQ(peer.from_asked.size(), 1u);
  EXPECT_GT(peer.from_asked[0], 0u);
  expect_here();
}

TEST_F(AdapterPeersTest, APeerThatKnowsNoRangesIsAskedForAll) {
  TestPeer peer;
  fill(peer);
  peer.ranges = false;
  peer.breaks_off_at = 100'000;
  const auto peers = peers_of({&peer});
  EXPECT_FALSE(peers->fetch(manifest_.digest()).ok());
  ASSERT_TRUE(peers->fetch(manifest_.digest()).ok());
  expect_here();
}

// Whatever a peer sends is nothing until it has the digest that was asked for.
TEST_F(AdapterPeersTest, OneThatLiesIsLeftForAnother) {
  for (const char* lie : {"manifest", "weights", "shorter", "longer", "no manifest", "redirect"}) {
    SCOPED_TRACE(lie);
    TestPeer liar, honest;
    fill(liar);
    fill(honest);
    const std::string kind = lie;
    std::string& weights = liar.blobs[sha256_hex(weights_)];
    if (kind == "manifest")
      liar.blobs[manifest_.digest()] = AdapterManifest::make({{"x.gguf", 2, sha256_hex("{}")}})->text();
    if (kind == "no manifest") liar.blobs[manifest_.digest()] = std::string(kManifestBytesMost * 4, 'x');
    if (kind == "weights") weights[200'000] ^= 1;
    if (kind == "shorter") weights.pop_back();
    if (kind == "longer") weights += "x";
    if (kind == "redirect") liar.redirects = true;
    const Status lied = peers_of({&liar})->fetch(manifest_.digest());
    EXPECT_FALSE(lied.ok());
    EXPECT_FALSE(store_->find(manifest_.digest()).has_value());
    ASSERT_TRUE(peers_of({&liar, &honest})->fetch(manifest_.digest()).ok());
    expect_here();
    ASSERT_TRUE(store_->remove(manifest_.digest()).ok());
  }
}

TEST_F(AdapterPeersTest, OneThatHangsIsGivenUpAndAStopEndsIt) {
  TestPeer hanging, honest;
  fill(hanging);
  fill(honest);
  hanging.hangs = true;
  ASSERT_TRUE(peers_of({&hanging, &honest}, 50)->fetch(manifest_.digest()).ok());
  expect_here();
  ASSERT_TRUE(store_->remove(manifest_.digest()).ok());
  const int asked = hanging.asked;
  const auto peers = peers_of({&hanging}, 2'000);
  std::thread fetch([&] { EXPECT_EQ(peers->fetch(manifest_.digest()).error().code, ErrorCode::kCancelled); });
  while (hanging.asked == asked) std::this_thread::yield();
  peers->stop();
  fetch.join();
  EXPECT_EQ(peers->fetch(manifest_.digest()).error().code, ErrorCode::kCancelled);
}

// Who must not wait is told to come again, though a peer hangs.
TEST_F(AdapterPeersTest, BesideNobodyWaits) {
  TestPeer hanging, honest;
  fill(hanging);
  fill(honest);
  hanging.hangs = true;
  const PosixFileSystem posix;
  const std::string path = store_->folder_of(manifest_.digest()) + "/adapter_config.json";
  {
    const auto peers = peers_of({&hanging}, 600'000);
    const PeerFiles files(posix, *store_, *peers, false);
    for (int i = 0; i < 100; ++i) {
      const auto file = files.open(path);
      ASSERT_FALSE(file.ok());
      EXPECT_EQ(file.error().code, ErrorCode::kUnavailable);
      EXPECT_NE(file.error().message.find("is being fetched"), std::string::npos) << file.error().message;
    }
    hanging.let_go();
  }
  const auto peers = peers_of({&honest});
  const PeerFiles files(posix, *store_, *peers, false);
  while (!files.open(path).ok()) std::this_thread::yield();
  expect_here();
  EXPECT_EQ(peers->stats().fetched, 1u);
}

TEST_F(AdapterPeersTest, ManyWhoWantItFetchItOnce) {
  TestPeer peer;
  fill(peer);
  const auto peers = peers_of({&peer});
  const PosixFileSystem posix;
  const PeerFiles files(posix, *store_, *peers);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto file = files.open(store_->folder_of(manifest_.digest()) + "/adapter_config.json");
      EXPECT_TRUE(file.ok()) << file.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(peer.asked, 3);
  EXPECT_EQ(files.kind(store_->folder_of(std::string(64, '0'))), PathKind::kAbsent);
  EXPECT_TRUE(files.real_path(folder_).ok());
}

}  // namespace
}  // namespace loralei
