// SPDX-License-Identifier: Apache-2.0
// EtcdClient: calls to etcd v3 through its JSON gateway, of one or several endpoints.
//
// Thread-safe; a call blocks until its answer, its deadline or stop().
// Ownership: owns its connections; borrows the log, which outlives it. What it gives out
// (streams) ends with it.
// Invariants: where an endpoint fails the next one is asked, round after round until the
// deadline. A request that may have been done is sent again only where twice is as good
// as once: reads, leases, and transactions that compare; of these the answer says so
// (EtcdTxnAnswer::repeated), for the first may be why the compares of the second do not
// hold. Revisions and values are untrusted; sizes are bounded (etcd_messages.h).
// Failure: kUnavailable when nobody answered in time, kUnauthenticated, kForbidden,
// kTooLarge, kOverloaded, kInvalidArgument for what etcd refuses, kNotFound for a lease
// that is not there and for a revision that was compacted, kCancelled behind stop().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "http/upstream.h"
#include "store/etcd_messages.h"

namespace loralei {

struct EtcdOptions {
  std::vector<UpstreamAddress> endpoints;  // not empty
  int64_t attempt_ms = 2'000;              // of one request at one endpoint
  int64_t deadline_ms = 5'000;             // of a call, all endpoints together
  int64_t page_keys = 128;                 // that list() reads at once
  size_t list_bytes_most = size_t{256} << 20;
};

class EtcdClient {
 public:
  static Result<std::unique_ptr<EtcdClient>> start(const EtcdOptions& options, LogSink& log);
  ~EtcdClient();  // stop()

  // A deadline of 0 is the option's.
  Result<EtcdRange> range(const EtcdRangeRequest& request, int64_t deadline_ms = 0);
  Result<EtcdKeyValue> get(const std::string& key, int64_t deadline_ms = 0);
  // All keys that begin so, as they were at one revision.
  Result<EtcdRange> list(const std::string& prefix, int64_t deadline_ms = 0);
  Result<EtcdHeader> put(const EtcdPut& put, int64_t deadline_ms = 0);
  Result<EtcdHeader> remove(const std::string& key, int64_t deadline_ms = 0);
  Result<EtcdTxnAnswer> txn(const EtcdTxn& txn, int64_t deadline_ms = 0);
  Result<EtcdLease> grant(int64_t ttl_s, int64_t deadline_ms = 0);
  Result<EtcdLease> keep_alive(int64_t lease, int64_t deadline_ms = 0);  // ttl_s 0: it is over
  Status revoke(int64_t lease, int64_t deadline_ms = 0);                 // no error where it is over
  Status compact(int64_t revision, int64_t deadline_ms = 0);             // what was before it is forgotten

  // For watches. An answer that goes on, from one endpoint.
  std::shared_ptr<UpstreamCall> stream(size_t endpoint, const char* path, std::string body,
                                       std::shared_ptr<UpstreamListener> listener);
  // Whether that endpoint is in touch with the others: its revision, read through them.
  Result<EtcdHeader> probe(size_t endpoint, const std::string& key);
  size_t endpoints() const { return options_.endpoints.size(); }
  size_t preferred() const { return preferred_; }
  const EtcdOptions& options() const { return options_; }
  std::string where() const;  // the endpoints, for sentences

  // Sleeps; false: stop() was called.
  bool pause(int64_t ms);
  // Calls that run fail at once, and those to come. Any number of times.
  void stop();

 private:
  class Answer;
  struct Attempt;
  enum class Repeat : unsigned char { kNever, kSafe };
  EtcdClient(const EtcdOptions& options, std::unique_ptr<Upstream> upstream);
  Attempt attempt(size_t endpoint, const char* path, const std::shared_ptr<const std::string>& body, bool safe,
                  int64_t timeout_ms);
  // `seen`: an attempt before the one that was answered may have been done.
  Result<std::string> call(const char* path, std::string body, Repeat repeat, int64_t deadline_ms,
                           bool* seen = nullptr);
  Result<EtcdRange> list_once(const std::string& prefix, int64_t deadline_ns);

  const EtcdOptions options_;
  const std::unique_ptr<Upstream> upstream_;
  std::atomic<size_t> preferred_{0};  // that answered last
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
};

// Of an answer with another status than 200.
Error etcd_error(const EtcdRefusal& refusal);
// HOST:PORT[,HOST:PORT...], with or without http:// or etcd://; port 2379 where none is
// stated.
Result<std::vector<UpstreamAddress>> parse_etcd_endpoints(std::string_view text);

}  // namespace loralei
