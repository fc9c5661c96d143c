// SPDX-License-Identifier: Apache-2.0
#include "serve/text_pool.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <string>

#include "sys/threads.h"

namespace loralei {

namespace {

constexpr int64_t kWorkPerByte = 256;     // of a usual text, from its JSON to tokens
constexpr int64_t kCheapWork = 16 << 20;  // some milliseconds: 64 KiB of text
constexpr uint64_t kOldestEvery = 4;      // turns

int class_of(int64_t work) { return (std::bit_width(static_cast<uint64_t>(work / kCheapWork)) + 1) / 2; }

}  // namespace

// Asked after each slice of a job's work.
class TextPool::Begun final : public WorkWatch {
 public:
  Begun(TextPool& pool, Entry& entry, Heartbeats::Mark& mark) : pool_(pool), entry_(entry), mark_(mark) {}
  bool go_on(const Work& work) override {
    mark_.rest();
    {
      std::unique_lock lock(pool_.mutex_);
      const int now = std::max(entry_.cost_class, class_of(work.spent()));
      if (entry_.cost_class == 0 && now > 0) ++pool_.dear_begun_;
      entry_.cost_class = now;
      if (!pool_.waiting_.empty()) pool_.queue_again(lock, entry_);
    }
    mark_.beat();
    return !pool_.cancelled_ && (!entry_.job.wanted || entry_.job.wanted());
  }

 private:
  TextPool& pool_;
  Entry& entry_;
  Heartbeats::Mark& mark_;
};

TextPool::TextPool(int turns, size_t capacity, const char* name, Heartbeats* beats)
    : turns_(static_cast<size_t>(std::max(1, turns))), places_(turns_ * kPlaces), capacity_(capacity) {
  for (size_t i = 0; i < places_; ++i) {
    threads_.emplace_back([this, label = std::string(name), beats] {
      name_this_thread(label);
      serve_jobs(beats);
    });
  }
}

TextPool::~TextPool() { stop(); }

bool TextPool::try_run(TextJob job) {
  std::lock_guard lock(mutex_);
  if (closed_ || not_begun_ >= capacity_) return false;
  Entry& entry = waiting_.emplace_back();
  entry.cost_class = class_of(std::min(job.bytes, int64_t{1} << 40) * kWorkPerByte);
  entry.order = arrived_++;
  entry.job = std::move(job);
  ++not_begun_;
  give_turns();
  return true;
}

bool TextPool::wait_idle(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::milliseconds(std::max<int64_t>(0, timeout_ms)),
                        [&] { return waiting_.empty() && running_.empty(); });
}

void TextPool::stop() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  job_comes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void TextPool::serve_jobs(Heartbeats* beats) {
  std::unique_lock lock(mutex_);
  while (true) {
    job_comes_.wait(lock, [&] { return !to_begin_.empty() || (closed_ && not_begun_ == 0); });
    if (to_begin_.empty()) return;
    const Entries::iterator entry = to_begin_.front();
    to_begin_.pop_front();
    lock.unlock();
    {
      Heartbeats::Mark mark(beats, "text");
      Begun begun(*this, *entry, mark);
      Work work(&begun);
      entry->job.run(work);
      entry->job = {};  // what it holds goes before others are told that it has ended
    }
    lock.lock();
    --begun_;
    if (entry->cost_class > 0) --dear_begun_;
    running_.erase(entry);
    give_turns();
    if (waiting_.empty() && running_.empty()) idle_.notify_all();
    if (closed_) job_comes_.notify_all();
  }
}

bool TextPool::may_have_turn(const Entry& entry) const {
  const bool cheap = entry.cost_class == 0;
  if (!entry.begun && (begun_ == places_ || (!cheap && dear_begun_ >= places_ / 2))) return false;
  if (running_.size() < turns_) return true;
  return cheap && running_.size() == turns_ &&
         std::all_of(running_.begin(), running_.end(), [](const Entry& other) { return other.cost_class > 0; });
}

TextPool::Entries::iterator TextPool::choose() {
  const bool oldest = turns_given_ % kOldestEvery == kOldestEvery - 1;
  auto best = waiting_.end();
  for (auto entry = waiting_.begin(); entry != waiting_.end(); ++entry) {
    if (!may_have_turn(*entry)) continue;
    const bool before = best == waiting_.end() || (!oldest && entry->cost_class < best->cost_class) ||
                        ((oldest || entry->cost_class == best->cost_class) && entry->order < best->order);
    if (before) best = entry;
  }
  return best;
}

void TextPool::give_turns() {
  for (auto entry = choose(); entry != waiting_.end(); entry = choose()) {
    ++turns_given_;
    entry->has_turn = true;
    running_.splice(running_.end(), waiting_, entry);
    if (entry->begun) {
      entry->turn_comes.notify_one();
      continue;
    }
    entry->begun = true;
    --not_begun_;
    ++begun_;
    if (entry->cost_class > 0) ++dear_begun_;
    to_begin_.push_back(entry);
    job_comes_.notify_one();
  }
}

void TextPool::queue_again(std::unique_lock<std::mutex>& lock, Entry& entry) {
  const auto self =
      std::find_if(running_.begin(), running_.end(), [&](const Entry& other) { return &other == &entry; });
  entry.has_turn = false;
  waiting_.splice(waiting_.end(), running_, self);
  give_turns();
  entry.turn_comes.wait(lock, [&] { return entry.has_turn; });
}

}  // namespace loralei
