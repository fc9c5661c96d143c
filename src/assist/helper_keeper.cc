// SPDX-License-Identifier: Apache-2.0
#include "assist/helper_keeper.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int64_t kGraceNs = 5'000'000'000;  // that the keeper has to say that a start took too long
constexpr int kMessagesAtOnce = 64;
constexpr int64_t kGoodbyeNs = 500'000'000;  // that helpers have to end by themselves

constexpr int kPatienceMs = 1000;  // with one that is told of many adapters

Status tell(HelperProcess& life, ControlKind kind, uint64_t version, const AssistFactors* factors, int wait_ms) {
  std::vector<int> descriptors;
  if (factors != nullptr) descriptors = {factors->memory_descriptor(), factors->table_descriptor()};
  const int64_t bytes = factors != nullptr ? factors->memory_bytes() : 0;
  TRY(send_control(life.control.get(), {kind, version, bytes, {}}, descriptors, wait_ms));
  ++life.controls;
  return {};
}

}  // namespace

HelperKeeper::HelperKeeper(Options options, const Clock& clock, LogSink& log, WakeEvent wakes)
    : options_(std::move(options)),
      clock_(clock),
      log_(log),
      wakes_(std::move(wakes)),
      seats_(static_cast<size_t>(options_.helpers)),
      news_(seats_.size()),
      up_(seats_.size()),
      fresh_(seats_.size()),
      tried_(seats_.size()) {}

Result<std::unique_ptr<HelperKeeper>> HelperKeeper::create(Options options, const Clock& clock, LogSink& log) {
  TRY_ASSIGN(WakeEvent wakes, WakeEvent::create());
  std::unique_ptr<HelperKeeper> keeper(new HelperKeeper(std::move(options), clock, log, std::move(wakes)));
  TRY_ASSIGN(keeper->thread_, start_thread([raw = keeper.get()] { raw->run(); }));
  std::unique_lock lock(keeper->mutex_);
  const auto settled = [&] {
    return keeper->first_error_ ||
           std::find(keeper->tried_.begin(), keeper->tried_.end(), false) == keeper->tried_.end();
  };
  keeper->settled_.wait_for(lock, std::chrono::nanoseconds(keeper->options_.start_at_most_ns + kGraceNs), settled);
  if (keeper->first_error_) {
    Error error = *keeper->first_error_;
    lock.unlock();
    return error;
  }
  lock.unlock();
  return keeper;
}

HelperKeeper::~HelperKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wakes_.raise();
  if (thread_.joinable()) thread_.join();
}

// --- the caller's side

void HelperKeeper::tell_all(ControlKind kind, uint64_t version, const AssistFactors* factors) {
  for (const Life& life : up_) {
    if (life == nullptr) continue;
    if (tell(*life, kind, version, factors, 0).ok()) {
      life->nudge();
    } else {
      life->child.kill();  // the next one is told
    }
  }
}

void HelperKeeper::learn(AdapterVersionId version, const AssistFactors& factors) {
  const std::lock_guard lock(mutex_);
  if (known_.emplace(version.value, factors).second) tell_all(ControlKind::kLearn, version.value, &factors);
}

void HelperKeeper::forget(AdapterVersionId version) {
  const std::lock_guard lock(mutex_);
  if (known_.erase(version.value) != 0) tell_all(ControlKind::kForget, version.value, nullptr);
}

void HelperKeeper::take(size_t helper, Life& life) {
  {
    const std::lock_guard lock(mutex_);
    news_[helper].store(false, std::memory_order_relaxed);
    if (fresh_[helper] == nullptr) return;  // it has ended already
    if (life != nullptr) old_.push_back(std::move(life));
    life = std::move(fresh_[helper]);
    fresh_[helper] = nullptr;
  }
  wakes_.raise();
}

std::vector<int> HelperKeeper::helper_pids() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> pids;
  for (const Life& life : up_) {
    if (life != nullptr) pids.push_back(life->child.pid());
  }
  return pids;
}

// --- the keeper's thread

void HelperKeeper::run() {
  name_this_thread("assist-keeper");
  for (;;) {
    std::vector<Life> old;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
      old.swap(old_);
    }
    old.clear();
    start_due();
    watch();
  }
  stop_all();
}

int64_t HelperKeeper::next_due_ns() const {
  int64_t due = INT64_MAX;
  for (const Seat& seat : seats_) {
    if (!seat.ready) due = std::min(due, seat.start_ns);
  }
  return due;
}

void HelperKeeper::start_due() {
  const int64_t now = clock_.now_ns();
  for (size_t i = 0; i < seats_.size(); ++i) {
    Seat& seat = seats_[i];
    if (seat.ready || seat.start_ns > now) continue;
    if (seat.life == nullptr) {
      start(i);
    } else {
      seat.last_words = "it was not ready in time";
      seat.life->child.kill();
      seat.start_ns = INT64_MAX;  // until it is buried
    }
  }
}

void HelperKeeper::start(size_t index) {
  Seat& seat = seats_[index];
  AssistChannel::Settings settings = options_.settings;
  settings.cpu = options_.cpus.empty() ? -1 : options_.cpus[index % options_.cpus.size()];
  seat.last_words.clear();
  seat.deaf = false;
  Result<Life> life =
      HelperProcess::start(options_.program, options_.args, "assist-" + std::to_string(index), settings);
  if (!life.ok()) return fail(index, life.error());
  seat.life = std::move(life).value();
  seat.start_ns = clock_.now_ns() + options_.start_at_most_ns;
}

// The seat is empty; it is tried again after a pause.
void HelperKeeper::fail(size_t index, const Error& error) {
  Seat& seat = seats_[index];
  seat.pause_ns = std::clamp(seat.pause_ns * 2, kPauseMinNs, kPauseMaxNs);
  seat.start_ns = clock_.now_ns() + seat.pause_ns;
  log_.event(LogLevel::kWarning, "assist_helper_failed",
             {{"helper", index}, {"again_in_ms", seat.pause_ns / 1'000'000}}, error.message);
  const std::lock_guard lock(mutex_);
  if (!tried_[index] && !first_error_) first_error_ = error;
  settled_.notify_all();
}

void HelperKeeper::watch() {
  std::vector<int> descriptors{wakes_.descriptor()};
  for (const Seat& seat : seats_) {
    descriptors.push_back(seat.life && !seat.deaf ? seat.life->control.get() : -1);
    descriptors.push_back(seat.life ? seat.life->child.pidfd() : -1);
  }
  const int64_t due = next_due_ns();
  const std::vector<bool> readable =
      wait_readable(descriptors, due == INT64_MAX ? -1 : std::max<int64_t>(due - clock_.now_ns(), 0));
  wakes_.clear();
  for (size_t i = 0; i < seats_.size(); ++i) {
    const bool ended = readable[2 + 2 * i];
    if (readable[1 + 2 * i] || ended) hear(i);  // its last words too
    if (!ended) continue;
    if (const auto how = seats_[i].life->child.reap()) bury(i, *how);
  }
}

void HelperKeeper::hear(size_t index) {
  Seat& seat = seats_[index];
  for (int messages = 0; messages < kMessagesAtOnce && !seat.deaf; ++messages) {
    ControlMessage message;
    std::vector<Descriptor> none;
    const Received received = receive_control(seat.life->control.get(), message, none, MessageWait::kNo);
    if (received == Received::kNothing) return;
    if (received == Received::kEnd) {
      // Without its socket it would never hear of an adapter again.
      seat.life->child.kill();
      seat.deaf = true;
      return;
    }
    if (message.kind == ControlKind::kReady && !seat.ready) bring_up(index);
    if (message.kind != ControlKind::kRefused) continue;
    seat.last_words = message.text;
    if (message.version != 0)
      log_.event(LogLevel::kWarning, "assist_adapter_refused", {{"helper", index}, {"version", message.version}},
                 message.text);
  }
}

// Tells it what is known, without the lock, and then hands it out under the lock, once
// there is nothing else to tell.
void HelperKeeper::bring_up(size_t index) {
  Seat& seat = seats_[index];
  std::set<uint64_t> told;
  for (;;) {
    std::map<uint64_t, AssistFactors> news;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [version, factors] : known_) {
        if (told.count(version) == 0) news.emplace(version, factors);
      }
      std::erase_if(told, [&](uint64_t version) {
        return known_.count(version) == 0 && tell(*seat.life, ControlKind::kForget, version, nullptr, 0).ok();
      });
      if (news.empty()) {
        seat.ready = true;
        up_[index] = fresh_[index] = seat.life;
        tried_[index] = true;
        ready_.fetch_add(1, std::memory_order_relaxed);
        news_[index].store(true, std::memory_order_release);
        break;
      }
    }
    for (const auto& [version, factors] : news) {
      if (!tell(*seat.life, ControlKind::kLearn, version, &factors, kPatienceMs).ok()) return seat.life->child.kill();
      seat.life->nudge();
      told.insert(version);
    }
  }
  settled_.notify_all();
}

void HelperKeeper::bury(size_t index, const std::string& how) {
  Seat& seat = seats_[index];
  const bool was_ready = seat.ready;
  const Life life = std::move(seat.life);
  seat.life = nullptr;
  seat.ready = false;
  {
    const std::lock_guard lock(mutex_);
    if (was_ready) {
      up_[index] = nullptr;
      fresh_[index] = nullptr;
      ready_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  SharedSignal& done = life->channel.header().done;
  const bool answered = done.value() != 0;
  life->gone.store(true, std::memory_order_release);
  done.post(done.value() + 1);  // whoever waits for it looks
  restarts_.fetch_add(1, std::memory_order_relaxed);
  const std::string sentence =
      "a helper process ended (" + how + ")" + (seat.last_words.empty() ? "" : ": " + seat.last_words);
  if (!answered) return fail(index, {ErrorCode::kUnavailable, sentence});
  seat.pause_ns = 0;
  seat.start_ns = clock_.now_ns();
  log_.event(LogLevel::kWarning, "assist_helper_ended", {{"helper", index}, {"pid", life->child.pid()}}, sentence);
}

// Helpers end when their sockets do; those that do not are killed.
void HelperKeeper::stop_all() {
  for (const Seat& seat : seats_) {
    if (seat.life == nullptr) continue;
    end_messages(seat.life->control.get());
    seat.life->nudge();
  }
  const int64_t end = clock_.now_ns() + kGoodbyeNs;
  for (const Seat& seat : seats_) {
    if (seat.life == nullptr) continue;
    wait_readable({seat.life->child.pidfd()}, std::max<int64_t>(end - clock_.now_ns(), 0));
    if (!seat.life->child.reap()) seat.life->child.kill();
  }
}

}  // namespace loralei
