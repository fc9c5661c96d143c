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
#include "store/etcd_watch.h"
#include "store/fleet_etcd.h"
#include "store/leader_state.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kLeaveMs = 1'000;  // that the end waits for its lease to be taken back

class Leader final : public FleetLeader {
 public:
  Leader(const MembershipOptions& options, std::string name, std::unique_ptr<EtcdClient> client, const Clock& clock,
         LogSink& log)
      : options_(options),
        decided_key_("/loralei/" + options.fleet + "/decided"),
        client_(std::move(client)),
        clock_(clock),
        log_(log),
        state_("/loralei/" + options.fleet + "/lead/", std::move(name), decided_key_, options.lease_s, clock.now_ns()) {
  }
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
    while (!ending()) act();
    leads_until_ns_ = 0;
    if (state_.lease() != 0) (void)client_->revoke(state_.lease(), kLeaveMs);
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  void act() {
    switch (state_.act()) {
      case LeaderState::Act::kKeepAlive:
        return state_.kept_alive(client_->keep_alive(state_.lease()));
      case LeaderState::Act::kGrant:
        return state_.granted(client_->grant(state_.lease_s()));
      case LeaderState::Act::kStand:
        return state_.stands(client_->txn(state_.to_stand()));
      case LeaderState::Act::kLook:
        return look();
      case LeaderState::Act::kWrite:
        return write();
      case LeaderState::Act::kRest:
        return rest();
    }
  }

  void look() {
    const bool led = leads();
    const auto found = client_->range(state_.to_look());
    const bool is_own = state_.looked(found);
    if (is_own && !led) {
      log_.log(LogLevel::kInfo,
               "This router leads the fleet '" + options_.fleet + "': it says where adapters have their homes.");
    }
    leads_until_ns_ = state_.leads_until_ns();
    if (is_own || !found.ok()) return;
    const std::lock_guard lock(mutex_);
    to_write_.reset();
  }

  void write() {
    std::optional<std::string> text;
    {
      const std::lock_guard lock(mutex_);
      text = to_write_;
    }
    if (!text) return state_.wrote_nothing();
    const auto answer = client_->txn(state_.to_write(*text));
    state_.wrote(answer);
    leads_until_ns_ = state_.leads_until_ns();
    const std::lock_guard lock(mutex_);
    if (answer.ok() && to_write_ == text) to_write_.reset();
  }

  void rest() {
    const Status& stood = state_.stood();
    if (!stood.ok() && !std::exchange(failed_, true)) {
      log_.log(LogLevel::kWarning, "This router cannot ask etcd who leads the fleet '" + options_.fleet +
                                       "': " + stood.error().message + ". Adapters keep the homes that they have.");
    }
    if (stood.ok()) failed_ = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(state_.rest_ms()),
                        [&] { return ending_ || (stood.ok() && to_write_ && leads()); });
    }
    state_.rested(clock_.now_ns());
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
  const std::string decided_key_;
  const std::unique_ptr<EtcdClient> client_;
  const Clock& clock_;
  LogSink& log_;
  LeaderState state_;  // the thread's, as failed_
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
  TRY_ASSIGN(auto client, EtcdClient::start(fleet_etcd_options(options), log));
  auto leader = std::make_unique<Leader>(options, name, std::move(client), clock, log);
  TRY(leader->start());
  return std::unique_ptr<FleetLeader>(std::move(leader));
}

}  // namespace loralei
