// SPDX-License-Identifier: Apache-2.0
#include "router/replica_watch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "wire/replica_report.h"

namespace loralei {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr size_t kAnswerBytesMost = 8 * 1024 * 1024;

}  // namespace

// One look and its answer.
class ReplicaWatch::Look final : public UpstreamListener {
 public:
  Look(ReplicaWatch& watch, size_t replica, bool models) : watch_(watch), replica_(replica), models_(models) {}

  void on_head(int status, const HttpHeaders&) override { status_ = status; }
  bool on_body(std::string_view piece) override {
    if (body_.size() + piece.size() <= kAnswerBytesMost) {
      body_ += piece;
    } else {
      too_long_ = true;
      body_.clear();
    }
    return true;
  }
  void on_end() override { watch_.take_answer(replica_, models_, too_long_ ? 0 : status_, body_); }
  void on_failure(const UpstreamFailure& failure) override {
    if (failure.error.code == ErrorCode::kCancelled) return;  // the end
    watch_.fleet_.failed(replica_, failure.error.message);
    watch_.looked(replica_, false, false);
  }

 private:
  ReplicaWatch& watch_;
  const size_t replica_;
  const bool models_;
  int status_ = 0;
  bool too_long_ = false;
  std::string body_;
};

ReplicaWatch::ReplicaWatch(const WatchOptions& options, Fleet& fleet, Upstream& upstream, const Clock& clock)
    : options_(options), fleet_(fleet), upstream_(upstream), clock_(clock), watched_(fleet.size()) {
  for (size_t i = 0; i < watched_.size(); ++i) {
    watched_[i].address = fleet_.address(i);
    watched_[i].stays = true;
  }
  thread_ = std::thread([this] { run(); });
}

ReplicaWatch::~ReplicaWatch() { stop(); }

void ReplicaWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReplicaWatch::join(const UpstreamAddress& address) {
  {
    const std::lock_guard lock(mutex_);
    const auto is_there = [&](const Watched& one) { return !one.left && one.address == address; };
    if (std::any_of(watched_.begin(), watched_.end(), is_there)) return;
    size_t place = 0;
    const auto is_free = [&](size_t i) { return watched_[i].left && !watched_[i].looking && fleet_.vacant(i); };
    while (place < watched_.size() && !is_free(place)) ++place;
    if (place < watched_.size()) {
      fleet_.add(address, place);
    } else {
      CHECK(fleet_.add(address) == place);
      watched_.emplace_back();
    }
    watched_[place] = {.address = address};
  }
  changed_.notify_all();
}

void ReplicaWatch::leave(const UpstreamAddress& address) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < watched_.size(); ++i) {
    Watched& watched = watched_[i];
    if (watched.left || watched.stays || watched.address != address) continue;
    watched.left = true;
    fleet_.leave(i);
  }
}

void ReplicaWatch::look_soon(size_t replica) {
  {
    const std::lock_guard lock(mutex_);
    if (replica >= watched_.size()) return;
    Watched& watched = watched_[replica];
    watched.due_ns = std::min(watched.due_ns, watched.looked_ns + kSoonMs * kNsPerMs);
  }
  changed_.notify_all();
}

void ReplicaWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const int64_t now_ns = clock_.now_ns();
    int64_t next_ns = now_ns + options_.interval_ms * kNsPerMs;
    std::vector<size_t> due;
    for (size_t i = 0; i < watched_.size(); ++i) {
      if (watched_[i].looking || (watched_[i].left && fleet_.vacant(i))) continue;
      if (watched_[i].due_ns <= now_ns) {
        watched_[i].looking = true;
        due.push_back(i);
      } else {
        next_ns = std::min(next_ns, watched_[i].due_ns);
      }
    }
    lock.unlock();
    for (const size_t replica : due) look(replica);
    lock.lock();
    if (stopping_ || !due.empty()) continue;
    changed_.wait_for(lock, std::chrono::nanoseconds(next_ns - now_ns));
  }
}

void ReplicaWatch::look(size_t replica) {
  bool models = false;
  {
    const std::lock_guard lock(mutex_);
    models = watched_[replica].models;
  }
  UpstreamRequest request{.method = "GET"};
  request.target = models ? "/v1/models" : "/v1/replica" + fleet_.report_query(replica);
  request.head_timeout_ms = options_.timeout_ms;
  if (!options_.api_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + options_.api_key);
  upstream_.call(fleet_.address(replica), std::move(request), std::make_shared<Look>(*this, replica, models));
}

void ReplicaWatch::take_answer(size_t replica, bool models, int status, const std::string& body) {
  if (status == 401 || status == 403) {
    fleet_.not_ready(replica, "it asks for a key; give it with --replica-api-key");
    return looked(replica, true, false);
  }
  if (status == 404 && !models) {  // a server of another make
    {
      const std::lock_guard lock(mutex_);
      watched_[replica].models = true;
    }
    return looked(replica, true, true);
  }
  if (status != 200) {
    const std::string what = status == 0 ? "with more than can be read" : "with status " + std::to_string(status);
    fleet_.not_ready(replica, "it answers " + what + " to GET " + (models ? "/v1/models" : "/v1/replica"));
    return looked(replica, true, false);
  }
  if (models) {
    const auto names = parse_model_list(body);
    names.ok() ? fleet_.take(replica, *names) : fleet_.not_ready(replica, names.error().message);
    return looked(replica, true, false);
  }
  const auto report = parse_replica_report(body);
  if (!report.ok()) {
    fleet_.not_ready(replica, report.error().message);
    return looked(replica, true, false);
  }
  fleet_.take(replica, *report);
  looked(replica, true, report->more);
}

void ReplicaWatch::looked(size_t replica, bool answered, bool again) {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    Watched& watched = watched_[replica];
    watched.looking = false;
    watched.first_done |= !again;
    watched.silent = answered ? 0 : watched.silent + 1;
    if (!answered) watched.models = false;  // whoever answers next may be another server
    lost = watched.silent == options_.lost_after;
    watched.looked_ns = clock_.now_ns();
    watched.due_ns = watched.looked_ns + (again ? 0 : options_.interval_ms * kNsPerMs);
  }
  changed_.notify_all();
  if (lost && options_.on_lost) options_.on_lost(replica);
}

void ReplicaWatch::wait_for_first(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    return stopping_ || std::all_of(watched_.begin(), watched_.end(),
                                    [](const Watched& watched) { return watched.first_done || watched.left; });
  });
}

}  // namespace loralei
