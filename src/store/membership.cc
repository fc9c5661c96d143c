// SPDX-License-Identifier: Apache-2.0
#include "store/membership.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "formats/json_util.h"
#include "store/etcd_client.h"
#include "store/etcd_watch.h"
#include "store/fleet_etcd.h"
#include "store/keeper_state.h"
#include "store/member_table.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kMemberBytesMost = 16 << 10;
constexpr size_t kTextBytesMost = 1024, kHostBytesMost = 253;
constexpr int64_t kPortMost = 65'535, kSequencesMost = 1 << 24;
constexpr int64_t kLeaveMs = 1'000;  // that the end waits for a key to be taken out

std::string members_prefix(const MembershipOptions& options) { return "/loralei/" + options.fleet + "/members/"; }

Result<std::string> text_of(const Json& json, const char* key) {
  TRY_ASSIGN(const auto text, json_string(json, key, "a member of the fleet"));
  if (text && (text->size() > kTextBytesMost || !is_printable(*text)))
    return corrupt("'" + std::string(key) + "' is too long, or cannot be shown");
  return text.value_or("");
}

// The thread that keeps a key under a lease.
class Keeper final : public MemberKeeper {
 public:
  Keeper(const MembershipOptions& options, const FleetMember& member, std::unique_ptr<EtcdClient> client, LogSink& log)
      : options_(options),
        client_(std::move(client)),
        log_(log),
        state_(members_prefix(options) + address_text(member.address), fleet_member_text(member), options.lease_s) {}
  ~Keeper() override {
    leave();
    if (!waited_) wait_left(kLeaveMs);
    client_->stop();
    if (thread_.joinable()) thread_.join();
  }
  Status start() {
    TRY_ASSIGN(thread_, start_thread([this] { run(); }));
    return {};
  }
  void leave() override {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
  }
  bool wait_left(int64_t timeout_ms) override {
    std::unique_lock lock(mutex_);
    waited_ = true;
    return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return left_; });
  }
  bool is_member() const override { return member_; }

 private:
  void run() {
    name_this_thread("fleet member");
    if (leaving()) state_.leave();
    while (state_.act() != KeeperState::Act::kLeft) act();
    member_ = false;
    const std::lock_guard lock(mutex_);
    left_ = state_.lease() == 0;
    changed_.notify_all();
  }

  void act() {
    switch (state_.act()) {
      case KeeperState::Act::kKeepAlive:
        return state_.kept_alive(client_->keep_alive(state_.lease()));
      case KeeperState::Act::kGrant:
        return state_.granted(client_->grant(state_.lease_s()));
      case KeeperState::Act::kRead:
        return state_.read(client_->get(state_.key()));
      case KeeperState::Act::kPut: {
        const auto put = client_->put(state_.to_put());
        return state_.put(put.ok() ? Status() : Status(put.error()));
      }
      case KeeperState::Act::kRest:
        return rest();
      case KeeperState::Act::kRevoke:
        return state_.revoked(client_->revoke(state_.lease(), kLeaveMs));
      case KeeperState::Act::kLeft:
        return;
    }
  }

  void rest() {
    tell(state_.kept());
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(state_.rest_ms()), [this] { return leaving_; });
    leaving_ ? state_.leave() : state_.rested();
  }

  void tell(const Status& kept) {
    if (kept.ok() == member_.exchange(kept.ok()) && told_) return;
    told_ = true;
    if (kept.ok()) return log_.log(LogLevel::kInfo, "This server is a member of the fleet '" + options_.fleet + "'.");
    log_.log(LogLevel::kWarning,
             "This server cannot tell etcd that it is a member of the fleet: " + kept.error().message + ".");
  }

  bool leaving() {
    const std::lock_guard lock(mutex_);
    return leaving_;
  }

  const MembershipOptions options_;
  const std::unique_ptr<EtcdClient> client_;
  LogSink& log_;
  KeeperState state_;  // the thread's, as told_
  bool told_ = false;
  std::atomic<bool> member_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool leaving_ = false, left_ = false;  // guarded by mutex_
  bool waited_ = false;                  // who waited in vain does not do so again; likewise
  std::thread thread_;
};

class Watch final : public MemberWatch {
 public:
  Watch(const MembershipOptions& options, MemberListeners listeners, std::unique_ptr<EtcdClient> client, LogSink& log)
      : prefix_(members_prefix(options)),
        fleet_(options.fleet),
        listeners_(std::move(listeners)),
        client_(std::move(client)),
        log_(log) {}
  ~Watch() override {
    client_->stop();
    watch_.reset();
  }
  Status start() {
    EtcdWatchOptions watch;
    watch.prefix = prefix_;
    watch.on_news = [this](const EtcdNews& news) { members_.take(news, Ears{*this}); };
    watch.on_state = [this](const Status& status) { tell(status); };
    TRY_ASSIGN(watch_, EtcdWatch::start(watch, *client_));
    return {};
  }
  Status wait_for_first(int64_t timeout_ms) override { return watch_->wait_for_first(timeout_ms); }
  bool up_to_date() const override { return up_; }

 private:
  // What members_ tells.
  struct Ears {
    Watch& watch;
    void joined(const FleetMember& member) { watch.listeners_.joined(member); }
    void left(const FleetMember& member) { watch.listeners_.left(member); }
    Result<FleetMember> read(const EtcdKeyValue& kv) {
      TRY_ASSIGN(FleetMember member, parse_fleet_member(kv.value));
      if (watch.prefix_ + address_text(member.address) != kv.key) return corrupt("it names another address");
      return member;
    }
    void stray(const std::string& key, const Error& error) {
      watch.log_.log(LogLevel::kWarning,
                     "'" + printable(key) + "' in etcd is no member of a fleet: " + error.message + ".");
    }
  };

  void tell(const Status& status) {
    up_ = status.ok();
    if (status.ok()) return log_.log(LogLevel::kInfo, "The members of the fleet '" + fleet_ + "' are known from etcd.");
    log_.log(LogLevel::kWarning,
             "etcd is away: " + status.error().message + ". The members that are known stay as they are.");
  }

  const std::string prefix_, fleet_;
  const MemberListeners listeners_;
  const std::unique_ptr<EtcdClient> client_;
  LogSink& log_;
  MemberTable<FleetMember> members_;  // the watch's thread's
  std::atomic<bool> up_{false};
  std::unique_ptr<EtcdWatch> watch_;
};

}  // namespace

std::string fleet_member_text(const FleetMember& member) {
  const Json json = {{"format", kFormat},
                     {"host", member.address.host},
                     {"port", member.address.port},
                     {"boot", member.boot},
                     {"model", member.model},
                     {"base", member.base},
                     {"capacity", {{"sequences", member.sequences_max}}},
                     {"report", member.report}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<FleetMember> parse_fleet_member(std::string_view text) {
  const std::string place = "a member of the fleet";
  TRY_ASSIGN(const Json json, parse_json_object(text, place, kMemberBytesMost));
  TRY_ASSIGN(const auto format, json_int(json, "format", 0, INT64_MAX, place));
  if (format.value_or(0) > kFormat) return unsupported("it was written by a newer version of Loralei");
  if (format.value_or(0) < kFormat) return corrupt("it has no format");
  FleetMember member;
  TRY_ASSIGN(member.address.host, text_of(json, "host"));
  TRY_ASSIGN(const auto port, json_int(json, "port", 1, kPortMost, place));
  member.address.port = static_cast<int>(port.value_or(0));
  const std::string& host = member.address.host;
  const bool plain =
      !host.empty() && host.size() <= kHostBytesMost && host.find_first_of("/?#@[] \t\r\n") == std::string::npos;
  if (!plain || !port) return corrupt("its address is none");
  TRY_ASSIGN(member.boot, text_of(json, "boot"));
  TRY_ASSIGN(member.model, text_of(json, "model"));
  TRY_ASSIGN(member.base, text_of(json, "base"));
  TRY_ASSIGN(member.report, text_of(json, "report"));
  if (const Json* capacity = json_find(json, "capacity"); capacity != nullptr && capacity->is_object()) {
    TRY_ASSIGN(const auto sequences, json_int(*capacity, "sequences", 0, kSequencesMost, place));
    member.sequences_max = sequences.value_or(0);
  }
  return member;
}

Result<std::unique_ptr<MemberKeeper>> MemberKeeper::start(const MembershipOptions& options, const FleetMember& member,
                                                          LogSink& log) {
  CHECK(!options.etcd.empty() && options.lease_s > 0);
  TRY_ASSIGN(auto client, EtcdClient::start(fleet_etcd_options(options), log));
  auto keeper = std::make_unique<Keeper>(options, member, std::move(client), log);
  TRY(keeper->start());
  return std::unique_ptr<MemberKeeper>(std::move(keeper));
}

Result<std::unique_ptr<MemberWatch>> MemberWatch::start(const MembershipOptions& options, MemberListeners listeners,
                                                        LogSink& log) {
  CHECK(!options.etcd.empty() && listeners.joined && listeners.left);
  TRY_ASSIGN(auto client, EtcdClient::start(fleet_etcd_options(options), log));
  auto watch = std::make_unique<Watch>(options, std::move(listeners), std::move(client), log);
  TRY(watch->start());
  return std::unique_ptr<MemberWatch>(std::move(watch));
}

}  // namespace loralei
