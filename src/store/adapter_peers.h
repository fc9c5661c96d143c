// SPDX-License-Identifier: Apache-2.0
// AdapterPeers: brings adapters that a store lacks from servers that have them
// (GET /v1/adapters/blobs/DIGEST). PeerFiles: the same for whoever opens their files.
//
// Thread-safe; fetch() blocks. Of one adapter one fetch runs, and who wants it meanwhile
// waits for that one; of several adapters several run at once.
// Ownership: borrows the store and the log, which outlive it.
// Invariants: a peer is asked for digests alone, and what it sends is nothing until it
// has them: not parsed, not found, not linked. What was fetched in part is gone on with,
// at another peer and after a restart too. The key goes to those that `peers` names and
// to nobody else: redirections are not followed.
// Failure: kUnavailable where no peer has it, with what each said; kCancelled behind
// stop(), which ends fetches within a read's time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "http/upstream.h"
#include "store/adapter_store.h"
#include "sys/file.h"

namespace loralei {

struct AdapterPeersOptions {
  // Who is asked, in any order, at the moment of a fetch.
  std::function<std::vector<UpstreamAddress>()> peers;
  std::string key;  // sent as "Authorization: Bearer KEY"; empty: none
  int64_t connect_timeout_ms = 3'000;
  int64_t read_timeout_ms = 10'000;  // without a byte
};

class AdapterPeers {
 public:
  AdapterPeers(AdapterStore& store, AdapterPeersOptions options, LogSink& log)
      : store_(store), options_(std::move(options)), log_(log) {}
  ~AdapterPeers() { stop(); }

  // ok: the store has it.
  Status fetch(const std::string& digest);
  // The same for who asks as often as he is asked: what has just failed is not tried
  // again at once.
  Status fetch_again(const std::string& digest);
  // The same for who must not wait: begins it on a thread of its own, and answers
  // kUnavailable until it is here.
  Status fetch_beside(const std::string& digest);
  void stop();

  struct Stats {
    uint64_t fetched = 0, failed = 0;
    uint64_t bytes = 0;  // received
  };
  Stats stats() const { return {fetched_, failed_, bytes_}; }

 private:
  void fetch_those_to_come();
  Status fetch_from_any(const std::string& digest);
  Status fetch_from(const UpstreamAddress& peer, const std::string& digest);

  AdapterStore& store_;
  const AdapterPeersOptions options_;
  LogSink& log_;
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> fetched_{0}, failed_{0}, bytes_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  struct Failure {
    std::chrono::steady_clock::time_point until;
    Error error;
  };
  // By digest; guarded by mutex_.
  std::set<std::string> running_;
  std::map<std::string, Failure> failures_;
  std::deque<std::string> later_;  // of fetch_beside(), to begin
  std::thread thread_;             // that does; begun with the first
};

// Another FileSystem, but that what lies in the store's adapters/ is fetched first where
// it is not there: whoever opens it waits, or is told to come again (waits: false), as
// where other requests would wait for him. Thread-safe; borrows all that it is given.
class PeerFiles final : public FileSystem {
 public:
  PeerFiles(const FileSystem& files, const AdapterStore& store, AdapterPeers& peers, bool waits = true)
      : files_(files), store_(store), peers_(peers), waits_(waits) {}
  Result<std::unique_ptr<File>> open(const std::string& path) const override;
  Result<std::unique_ptr<UntrustedFolder>> open_folder(const std::string& path, const std::string& name) const override;
  PathKind kind(const std::string& path) const override;
  Result<std::vector<DirEntry>> list(const std::string& path) const override;
  Result<std::string> real_path(const std::string& path) const override;
  Result<FileStamp> stamp(const std::string& path) const override;

 private:
  Status bring(const std::string& path) const;
  const FileSystem& files_;
  const AdapterStore& store_;
  AdapterPeers& peers_;
  const bool waits_;
};

}  // namespace loralei
