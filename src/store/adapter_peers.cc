// SPDX-License-Identifier: Apache-2.0
#include "store/adapter_peers.h"

#include <algorithm>
#include <span>

#include "http/client.h"
#include "sys/folder.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr size_t kAnswerShown = 200;
constexpr size_t kFailuresKept = 1000;
constexpr auto kRest = std::chrono::seconds(2);

// One peer, by one connection.
class Peer {
 public:
  Peer(const UpstreamAddress& address, const AdapterPeersOptions& options)
      : client_({.host = address.host,
                 .port = address.port,
                 .connect_timeout_ms = options.connect_timeout_ms,
                 .read_timeout_ms = options.read_timeout_ms,
                 .limits = {.max_body_bytes = INT64_MAX}}),
        key_(options.key) {}

  // The bytes of a blob from `from` on, in pieces; false from `take` stops.
  Status get(const std::string& sha256, int64_t from, const std::function<bool(std::string_view)>& take) {
    HttpHeaders headers;
    if (!key_.empty()) headers.emplace_back("Authorization", "Bearer " + key_);
    if (from > 0) headers.emplace_back("Range", "bytes=" + std::to_string(from) + "-");
    std::string error;
    int64_t skip = 0;
    bool begun = false;
    const auto on_body = [&](std::string_view piece) {
      if (!begun) {
        begun = true;
        status_ = client_.head_status();
        if (status_ == 200) skip = from;  // all of it, whatever was asked for
      }
      if (status_ != 200 && status_ != 206) {
        error += piece.substr(0, kAnswerShown - std::min(kAnswerShown, error.size()));
        return true;
      }
      const auto passed = std::min<int64_t>(skip, std::ssize(piece));
      skip -= passed;
      piece.remove_prefix(static_cast<size_t>(passed));
      return piece.empty() || take(piece);
    };
    const Result<HttpResponse> answer = client_.request("GET", "/v1/adapters/blobs/" + sha256, headers, "", on_body);
    if (!answer.ok()) return answer.error();
    if (answer->status == 200 || answer->status == 206) return {};
    const std::string said = "it answered " + std::to_string(answer->status) + (error.empty() ? "" : ": " + error);
    return Error{answer->status == 404 ? ErrorCode::kNotFound : ErrorCode::kUnavailable, said};
  }

 private:
  HttpClient client_;
  const std::string key_;
  int status_ = 0;
};

}  // namespace

Status AdapterPeers::fetch(const std::string& digest) {
  if (!is_sha256_hex(digest)) return invalid_argument("'" + digest.substr(0, 80) + "' is no digest of an adapter.");
  std::unique_lock lock(mutex_);
  while (running_.contains(digest) && !stopped_) ended_.wait(lock);
  if (store_.find(digest)) return {};
  if (stopped_) return Error{ErrorCode::kCancelled, "The server is shutting down."};
  running_.insert(digest);
  lock.unlock();
  const Status fetched = fetch_from_any(digest);
  lock.lock();
  running_.erase(digest);
  ended_.notify_all();
  ++(fetched.ok() ? fetched_ : failed_);
  if (fetched.ok()) {
    failures_.erase(digest);
  } else {
    if (failures_.size() >= kFailuresKept) failures_.clear();
    failures_.insert_or_assign(digest, Failure{std::chrono::steady_clock::now() + kRest, fetched.error()});
  }
  return fetched;
}

Status AdapterPeers::fetch_again(const std::string& digest) {
  {
    const std::lock_guard lock(mutex_);
    const auto failed = failures_.find(digest);
    if (failed != failures_.end() && std::chrono::steady_clock::now() < failed->second.until)
      return failed->second.error;
  }
  return fetch(digest);
}

Status AdapterPeers::fetch_beside(const std::string& digest) {
  const std::lock_guard lock(mutex_);
  const auto failed = failures_.find(digest);
  if (failed != failures_.end() && std::chrono::steady_clock::now() < failed->second.until) return failed->second.error;
  if (!stopped_ && std::find(later_.begin(), later_.end(), digest) == later_.end() && !running_.contains(digest)) {
    later_.push_back(digest);
    if (!thread_.joinable()) {
      TRY_ASSIGN(thread_, start_thread([this] { fetch_those_to_come(); }));
    }
    ended_.notify_all();
  }
  return Error{ErrorCode::kUnavailable,
               "The adapter '" + digest.substr(0, 12) + "...' is being fetched from a peer; try again in a moment."};
}

void AdapterPeers::fetch_those_to_come() {
  name_this_thread("fetch beside");
  std::unique_lock lock(mutex_);
  for (;;) {
    while (later_.empty() && !stopped_) ended_.wait(lock);
    if (stopped_) return;
    const std::string digest = later_.front();
    lock.unlock();
    (void)fetch(digest);  // who asks again is told how it went
    lock.lock();
    later_.pop_front();
  }
}

void AdapterPeers::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    ended_.notify_all();
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

Status AdapterPeers::fetch_from_any(const std::string& digest) {
  std::vector<UpstreamAddress> peers = options_.peers();
  if (peers.empty()) {
    return Error{ErrorCode::kUnavailable, "The adapter store has no adapter '" + digest +
                                              "', and there is no peer to fetch it from (--adapter-peer)."};
  }
  // Those of one adapter ask all in another order than those of the next.
  const size_t first = std::hash<std::string>()(digest) % peers.size();
  std::rotate(peers.begin(), peers.begin() + static_cast<ptrdiff_t>(first), peers.end());
  std::string said;
  for (const UpstreamAddress& peer : peers) {
    const Status fetched = fetch_from(peer, digest);
    if (fetched.ok()) {
      log_.event(LogLevel::kInfo, "adapter fetched", {{"digest", digest}, {"peer", address_text(peer)}});
      return fetched;
    }
    if (stopped_) return Error{ErrorCode::kCancelled, "The server is shutting down."};
    const ErrorCode code = fetched.error().code;
    if (code != ErrorCode::kNotFound) {
      log_.event(LogLevel::kWarning, "adapter not fetched", {{"digest", digest}, {"peer", address_text(peer)}},
                 fetched.error().message);
    }
    if (code == ErrorCode::kOverloaded) return fetched;  // there is no room here, wherever it comes from
    said += (said.empty() ? "" : "; ") + address_text(peer) + ": " + fetched.error().message;
  }
  return Error{ErrorCode::kUnavailable, "No peer gave the adapter '" + digest + "' (" + said + ")."};
}

Status AdapterPeers::fetch_from(const UpstreamAddress& address, const std::string& digest) {
  Peer peer(address, options_);
  std::string text;
  TRY(peer.get(digest, 0, [&](std::string_view piece) {
    text += piece;
    return text.size() <= kManifestBytesMost && !stopped_;
  }));
  if (sha256_hex(text) != digest) return corrupt("what it sent has another digest");
  TRY_ASSIGN(const AdapterManifest manifest, AdapterManifest::parse(text));
  const auto draft = store_.draft();
  for (const StoredFile& file : manifest.files) {
    TRY_ASSIGN(const int64_t there, draft->begin_known(file));
    if (there < file.bytes) {
      Status written;
      const Status sent = peer.get(file.sha256, there, [&](std::string_view piece) {
        bytes_ += piece.size();
        written = draft->write(std::as_bytes(std::span(piece)));
        return written.ok() && !stopped_;
      });
      TRY(written);
      TRY(sent);
    }
    TRY(draft->end());
  }
  TRY(draft->commit());
  return {};
}

Status PeerFiles::bring(const std::string& path) const {
  const std::string digest = store_.digest_of(path);
  if (digest.empty() || store_.find(digest)) return {};
  return waits_ ? peers_.fetch_again(digest) : peers_.fetch_beside(digest);
}

Result<std::unique_ptr<File>> PeerFiles::open(const std::string& path) const {
  TRY(bring(path));
  return files_.open(path);
}

Result<std::unique_ptr<UntrustedFolder>> PeerFiles::open_folder(const std::string& path,
                                                                const std::string& name) const {
  TRY(bring(path));
  return files_.open_folder(path, name);
}

// Whoever opens it is told why it is not there.
PathKind PeerFiles::kind(const std::string& path) const {
  (void)bring(path);
  return files_.kind(path);
}

Result<std::vector<DirEntry>> PeerFiles::list(const std::string& path) const {
  TRY(bring(path));
  return files_.list(path);
}

Result<std::string> PeerFiles::real_path(const std::string& path) const {
  TRY(bring(path));
  return files_.real_path(path);
}

Result<FileStamp> PeerFiles::stamp(const std::string& path) const {
  TRY(bring(path));
  return files_.stamp(path);
}

}  // namespace loralei
