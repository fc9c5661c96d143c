// SPDX-License-Identifier: Apache-2.0
#include "store/fleet_leader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "store/etcd_client.h"
#include "store/etcd_election.h"
#include "store/etcd_watch.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kLeaveMs = 1'000;  // that the end waits for its lease to be taken back

EtcdOptions etcd_options(const MembershipOptions& options) {
  EtcdOptions etcd;
  etcd.endpoints = options.etcd;
  etcd.attempt_ms = options.attempt_ms;
  etcd.deadline_ms = std::max<int64_t>(options.attempt_ms, options.lease_s * 1000 / 3);
  return etcd;
}

class Leader final : public FleetLeader {
 public:
  Leader(const MembershipOptions& options, std::string name, std::unique_ptr<EtcdClient> client, const Clock& clock,
         LogSink& log)
      : options_(options),
        name_(std::move(name)),
        decided_key_("/loralei/" + options.fleet + "/decided"),
        client_(std::move(client)),
        election_(*client_, "/loralei/" + options.fleet + "/lead/"),
        clock_(clock),
        log_(log) {}
  ~Leader() override {
    {
      std::unique_lock lock(mutex_);
      ending_ = true;
      changed_.notify_all();
      changed_.wait_for(lock, std::chrono::milliseconds(kLeaveMs), [this] { return ended_; });
    }
    client_->stop();
    if (thread_.joinable()) thread_.join();
    watch_.reset();
  }
  Status start() {
    EtcdWatchOptions watch;
    watch.prefix = decided_key_;
    watch.on_news = [this](const EtcdNews& news) { take(news); };
    watch.on_state = [this](const Status& status) { knows_ = knows_ || status.ok(); };
    TRY_ASSIGN(watch_, EtcdWatch::start(watch, *client_));
    auto started = start_thread([this] { run(); });
    if (!started.ok()) {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      return started.error();
    }
    thread_ = *std::move(started);
    return {};
  }

  bool leads() const override { return knows_ && clock_.now_ns() < leads_until_ns_; }

  void decide(std::string text) override {
    const std::lock_guard lock(mutex_);
    if (!leads() || text == decided_) return;
    to_write_ = std::move(text);
    changed_.notify_all();
  }

  std::optional<std::string> news() override {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(has_news_, false)) return std::nullopt;
    return decided_;
  }

 private:
  void run() {
    name_this_thread("fleet leader");
    while (!ending()) {
      const Status done = stand();
      if (!done.ok() && !std::exchange(failed_, true)) {
        log_.log(LogLevel::kWarning, "This router cannot ask etcd who leads the fleet '" + options_.fleet +
                                         "': " + done.error().message + ". Adapters keep the homes that they have.");
      }
      if (done.ok()) failed_ = false;
      std::unique_lock lock(mutex_);
      const auto rest = std::chrono::milliseconds(done.ok() ? options_.lease_s * 1000 / 3 : 1000);
      changed_.wait_for(lock, rest, [&] { return ending_ || (done.ok() && to_write_ && leads()); });
    }
    leads_until_ns_ = 0;
    if (lease_ != 0) (void)client_->revoke(lease_, kLeaveMs);
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  // Keeps its lease and its place among those that stand, and writes where it leads.
  Status stand() {
    const int64_t asked_ns = clock_.now_ns();
    if (lease_ != 0) {
      TRY_ASSIGN(const EtcdLease alive, client_->keep_alive(lease_));
      if (alive.ttl_s == 0) lease_ = 0;
    }
    if (lease_ == 0) {
      TRY_ASSIGN(const EtcdLease granted, client_->grant(options_.lease_s));
      lease_ = granted.id;
    }
    TRY_ASSIGN(const EtcdKeyValue own, election_.stand(lease_, name_));
    TRY_ASSIGN(const auto leader, election_.leader());
    const bool is_own = leader && leader->key == own.key;
    if (is_own && !leads()) {
      log_.log(LogLevel::kInfo,
               "This router leads the fleet '" + options_.fleet + "': it says where adapters have their homes.");
    }
    // A little less than the lease, which began before it was heard of.
    leads_until_ns_ = is_own ? asked_ns + options_.lease_s * 900 * kNsPerMs : 0;
    if (is_own) return write(own);
    const std::lock_guard lock(mutex_);
    to_write_.reset();
    return {};
  }

  Status write(const EtcdKeyValue& own) {
    std::optional<std::string> text;
    {
      const std::lock_guard lock(mutex_);
      text = to_write_;
    }
    if (!text) return {};
    EtcdTxn txn;
    txn.compares = {EtcdElection::is_leader(own)};
    txn.puts = {{decided_key_, *text, 0}};
    TRY_ASSIGN(const EtcdTxnAnswer answer, client_->txn(txn));
    const std::lock_guard lock(mutex_);
    if (!answer.succeeded && !answer.repeated) leads_until_ns_ = 0;  // it was over, and nobody had said so
    if (to_write_ == text) to_write_.reset();
    return {};
  }

  void take(const EtcdNews& news) {
    const std::lock_guard lock(mutex_);
    for (const EtcdEvent& event : news.events) {
      if (event.kv.key != decided_key_) continue;
      decided_ = event.removed ? "" : event.kv.value;
      has_news_ = true;
    }
  }

  bool ending() {
    const std::lock_guard lock(mutex_);
    return ending_;
  }

  const MembershipOptions options_;
  const std::string name_, decided_key_;
  const std::unique_ptr<EtcdClient> client_;
  EtcdElection election_;
  const Clock& clock_;
  LogSink& log_;
  int64_t lease_ = 0;  // the thread's, as failed_
  bool failed_ = false;
  std::atomic<bool> knows_{false};  // what was decided before it came
  std::atomic<int64_t> leads_until_ns_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> to_write_;  // guarded by mutex_, as those below
  std::string decided_;                  // as etcd has it
  bool has_news_ = false, ending_ = false, ended_ = false;
  std::unique_ptr<EtcdWatch> watch_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<FleetLeader>> FleetLeader::start(const MembershipOptions& options, const std::string& name,
                                                        const Clock& clock, LogSink& log) {
  CHECK(!options.etcd.empty() && options.lease_s > 0);
  TRY_ASSIGN(auto client, EtcdClient::start(etcd_options(options), log));
  auto leader = std::make_unique<Leader>(options, name, std::move(client), clock, log);
  TRY(leader->start());
  return std::unique_ptr<FleetLeader>(std::move(leader));
}

}  // namespace loralei
