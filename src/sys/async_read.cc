// SPDX-License-Identifier: Apache-2.0
#include "sys/async_read.h"

#include <condition_variable>
#include <iterator>
#include <string>

#include "base/check.h"
#include "sys/threads.h"

namespace loralei {
namespace {

Error too_many_reads(size_t queue_max) {
  return {ErrorCode::kOverloaded,
          std::to_string(queue_max) + " reads are already outstanding; take completions before adding more"};
}

class PoolReader final : public AsyncReader {
 public:
  explicit PoolReader(const AsyncReaderOptions& options) : queue_max_(options.queue_max) {
    CHECK(options.threads >= 1 && options.queue_max >= 1);
    for (int i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this, i] {
        name_this_thread("loralei-io" + std::to_string(i));
        work();
      });
    }
  }

  ~PoolReader() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      queue_.clear();
    }
    queued_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Result<ReadTicket> submit(const ReadRequest& request) override {
    ReadTicket ticket;
    {
      const std::lock_guard lock(mutex_);
      if (outstanding_ >= queue_max_) return too_many_reads(queue_max_);
      ++outstanding_;
      ticket = ++last_ticket_;
      queue_.push_back({ticket, request});
    }
    queued_.notify_one();
    return ticket;
  }

  size_t poll(std::vector<ReadCompletion>& completions, std::chrono::nanoseconds timeout) override {
    std::unique_lock lock(mutex_);
    finished_.wait_for(lock, timeout, [&] { return !done_.empty() || outstanding_ == 0; });
    const size_t count = done_.size();
    std::move(done_.begin(), done_.end(), std::back_inserter(completions));
    done_.clear();
    outstanding_ -= count;
    return count;
  }

  size_t outstanding() const override {
    const std::lock_guard lock(mutex_);
    return outstanding_;
  }

 private:
  struct Queued {
    ReadTicket ticket;
    ReadRequest request;
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      queued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const Queued item = queue_.front();
      queue_.pop_front();
      lock.unlock();
      Status status = item.request.file->read_exact(item.request.offset_bytes, item.request.dest);
      lock.lock();
      done_.push_back({item.ticket, std::move(status)});
      finished_.notify_all();
    }
  }

  const size_t queue_max_;
  mutable std::mutex mutex_;
  std::condition_variable queued_, finished_;
  std::deque<Queued> queue_;
  std::vector<ReadCompletion> done_;
  size_t outstanding_ = 0;
  ReadTicket last_ticket_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<AsyncReader> make_pool_reader(const AsyncReaderOptions& options) {
  return std::make_unique<PoolReader>(options);
}

Result<ReadTicket> SimulatedReader::submit(const ReadRequest& request) {
  const std::lock_guard lock(mutex_);
  if (pending_.size() + done_.size() >= queue_max_) return too_many_reads(queue_max_);
  pending_.push_back({++last_ticket_, request});
  return last_ticket_;
}

size_t SimulatedReader::poll(std::vector<ReadCompletion>& completions, std::chrono::nanoseconds) {
  const std::lock_guard lock(mutex_);
  const size_t count = done_.size();
  std::move(done_.begin(), done_.end(), std::back_inserter(completions));
  done_.clear();
  return count;
}

size_t SimulatedReader::outstanding() const {
  const std::lock_guard lock(mutex_);
  return pending_.size() + done_.size();
}

bool SimulatedReader::step() {
  const std::lock_guard lock(mutex_);
  if (pending_.empty()) return false;
  const auto chosen = pending_.begin() + static_cast<std::ptrdiff_t>(prng_.below(pending_.size()));
  done_.push_back(
      {chosen->ticket, chosen->request.file->read_exact(chosen->request.offset_bytes, chosen->request.dest)});
  pending_.erase(chosen);
  return true;
}

}  // namespace loralei
