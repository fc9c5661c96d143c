// SPDX-License-Identifier: Apache-2.0
// SimEtcd: a cluster of etcd on the kernel, and what goes wrong with it and on the way
// there. SimEtcdClient: what EtcdClient is to a real one, with answers that come later.
//
//   client ── latency ──► EtcdStore ── latency ──► client
//     └ watch(): messages in order, of whole revisions
//
// What goes wrong: it is away (calls wait for their time in vain, watches are silent),
// slow, without a leader for a while (calls fail, watches end), or a client is cut off
// from it. Without a leader, away or not, no lease ends; behind it each has all its time
// again.
//
// Thread: one. Ownership: SimEtcd borrows the kernel and outlives its clients; nobody is
// told anything for a client that is gone.
// Invariants: a call has one answer. One that failed may have been done; one that is not
// as good twice as once is asked once. What a watch tells comes once, or the watch ends.
// Failure: as EtcdClient's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/etcd_store.h"
#include "sim/kernel.h"

namespace loralei::sim {

struct EtcdPatience {
  int64_t attempt_ns = 1'000'000'000;   // of one request
  int64_t deadline_ns = 3'333'000'000;  // of a call
};

class SimEtcd {
 public:
  class Stream;

  explicit SimEtcd(Kernel& kernel) : kernel_(kernel) {}

  Kernel& kernel() { return kernel_; }
  const EtcdStore& store() const { return store_; }
  int64_t now_ns() const { return kernel_.now_ns(); }

  // Each way.
  void latency(int64_t ns) { latency_ns_ = ns; }
  int64_t latency_ns() const { return latency_ns_; }
  // Nobody is answered, from now on until it is back.
  void away(bool is);
  bool is_away() const { return away_; }
  // It has no leader for so long.
  void lose_leader(int64_t for_ns);
  bool has_leader() const { return leaderless_ == 0 && !away_; }
  uint64_t leaders() const { return leaders_; }  // that came behind another
  // All that was before now is forgotten.
  void compact();
  uint64_t compactions() const { return compactions_; }
  // Told behind every request that was done.
  void on_change(std::function<void()> listener) { on_change_ = std::move(listener); }

  // For clients: what a request does, when it has arrived.
  template <class T>
  T done(const std::function<T(EtcdStore&)>& what) {
    T answer = what(store_);
    changed();
    return answer;
  }
  void add(const std::shared_ptr<Stream>& stream);
  void resume_streams();

 private:
  void changed();  // watches are told, and the next end of a lease is planned
  void plan_expiry();
  void elected();

  Kernel& kernel_;
  EtcdStore store_;
  int64_t latency_ns_ = 500'000;
  bool away_ = false;
  int leaderless_ = 0;  // intervals that have not ended
  uint64_t leaders_ = 0, compactions_ = 0;
  std::vector<std::weak_ptr<Stream>> streams_;
  std::function<void()> on_change_;
  int64_t expiry_ns_ = INT64_MAX;  // that is planned
};

class SimEtcdClient {
 public:
  template <class T>
  using Then = std::function<void(T)>;

  SimEtcdClient(SimEtcd& etcd, const EtcdPatience& patience)
      : etcd_(etcd), patience_(patience), line_(std::make_shared<Line>()) {}
  SimEtcdClient(const SimEtcdClient&) = delete;
  SimEtcdClient& operator=(const SimEtcdClient&) = delete;
  ~SimEtcdClient() { line_->there = false; }

  // Cut off from etcd, or no longer.
  void cut(bool is);
  bool is_cut() const { return line_->cut; }

  void range(EtcdRangeRequest request, Then<Result<EtcdRange>> then);
  void get(const std::string& key, Then<Result<EtcdKeyValue>> then);
  void put(const EtcdPut& put, Then<Status> then);
  void txn(const EtcdTxn& txn, Then<Result<EtcdTxnAnswer>> then);
  void grant(int64_t id, int64_t ttl_s, Then<Result<EtcdLease>> then);
  void keep_alive(int64_t id, Then<Result<EtcdLease>> then);
  void revoke(int64_t id, Then<Status> then);  // no error where it is over
  // One attempt.
  void probe(Then<Result<EtcdHeader>> then);

  using OnMessage = std::function<void(EtcdWatchMessage)>;
  using OnEnd = std::function<void(Error)>;
  // Until it is dropped.
  std::shared_ptr<SimEtcd::Stream> watch(const std::string& prefix, int64_t from_revision, OnMessage on_message,
                                         OnEnd on_end);

 private:
  friend class SimEtcd::Stream;
  struct Line {
    bool there = true, cut = false;
  };
  template <class T>
  struct Call;
  template <class T>
  void call(std::function<T(EtcdStore&)> what, bool safe, Then<T> then);
  template <class T>
  static void attempt(const std::shared_ptr<Call<T>>& call);

  SimEtcd& etcd_;
  const EtcdPatience patience_;
  const std::shared_ptr<Line> line_;
};

// A watch, between etcd and its client.
class SimEtcd::Stream : public std::enable_shared_from_this<SimEtcd::Stream> {
 public:
  Stream(SimEtcd& etcd, std::shared_ptr<const SimEtcdClient::Line> line, std::string prefix, int64_t next,
         SimEtcdClient::OnMessage on_message, SimEtcdClient::OnEnd on_end)
      : etcd_(etcd),
        line_(std::move(line)),
        prefix_(std::move(prefix)),
        next_(next),
        on_message_(std::move(on_message)),
        on_end_(std::move(on_end)) {}

  void open();     // it has arrived
  void tell();     // what is news
  void end();      // by etcd
  void give_up();  // where nothing came of it yet
  void flush();    // what waited for the way to be free again

 private:
  bool reaches() const { return !line_->cut && !etcd_.is_away(); }
  void send(EtcdWatchMessage message, std::optional<Error> end = std::nullopt);
  void deliver();

  struct Sent {
    EtcdWatchMessage message;
    std::optional<Error> end;
  };
  SimEtcd& etcd_;
  const std::shared_ptr<const SimEtcdClient::Line> line_;
  const std::string prefix_;
  int64_t next_;  // revision
  const SimEtcdClient::OnMessage on_message_;
  const SimEtcdClient::OnEnd on_end_;
  std::deque<Sent> under_way_;
  int64_t last_ns_ = 0;  // when the last of it comes
  bool open_ = false, heard_ = false;
};

}  // namespace loralei::sim
