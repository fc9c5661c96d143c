// SPDX-License-Identifier: Apache-2.0
#include "sys/line_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <string_view>
#include <utility>

#include "sys/os_error.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int64_t kEndMs = 500;
constexpr size_t kWriteBytes = 64 * kKiB;  // at once: what a pipe takes

using Time = std::chrono::steady_clock::time_point;

// False: the descriptor takes nothing any more.
bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {  // whoever shares it has made it non-blocking
      pollfd one{.fd = descriptor, .events = POLLOUT, .revents = 0};
      ::poll(&one, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

struct LineWriter::State {
  State(int descriptor, DroppedLine dropped_line, Limits limits)
      : descriptor(descriptor), dropped_line(std::move(dropped_line)), limits(limits) {}

  void append(std::string line) {
    line += '\n';
    ++lines;
    bytes += line.size();
    queue.push_back(std::move(line));
  }
  void drop(uint64_t count) {
    dropped += count;
    untold += count;
  }
  // The next lines, written together; of one at least.
  std::pair<std::string, size_t> take() {
    std::string text;
    size_t count = 0;
    do {
      text += queue.front();
      queue.pop_front();
      ++count;
    } while (!queue.empty() && text.size() + queue.front().size() <= kWriteBytes);
    return {std::move(text), count};
  }

  const int descriptor;
  const DroppedLine dropped_line;
  const Limits limits;

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  std::deque<std::string> queue;     // each with its end
  size_t lines = 0, bytes = 0;       // queued or being written
  uint64_t dropped = 0, untold = 0;  // untold: since the last line about it
  Time write_began{};                // of the write under way, if there is one
  bool ending = false, ended = false;
};

Result<int> open_for_lines(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return os_error("cannot write", path, errno);
  return descriptor;
}

LineWriter::LineWriter(int descriptor, DroppedLine dropped_line, Limits limits)
    : state_(std::make_shared<State>(descriptor, std::move(dropped_line), limits)), thread_(start(state_)) {}

// It inherits that signals are blocked: they are for threads that can take them.
std::thread LineWriter::start(const std::shared_ptr<State>& state) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([state] { run(state); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

LineWriter::~LineWriter() {
  bool ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->ending = true;
    state_->changed.notify_all();
    ended = state_->changed.wait_for(lock, std::chrono::milliseconds(kEndMs), [this] { return state_->ended; });
  }
  if (ended)
    thread_.join();
  else
    thread_.detach();
}

void LineWriter::push(std::string line) {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    if (s.lines >= s.limits.lines || s.bytes + line.size() + 1 > s.limits.bytes) return s.drop(1);
    s.append(std::move(line));
  }
  s.changed.notify_all();
}

bool LineWriter::flush(int64_t timeout_ms) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return state_->lines == 0; });
}

uint64_t LineWriter::dropped_lines() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

int64_t LineWriter::stuck_ms() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->write_began == Time{}) return 0;
  const auto since = std::chrono::steady_clock::now() - state_->write_began;
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

void LineWriter::run(const std::shared_ptr<State>& state) {
  name_this_thread("log");
  State& s = *state;
  std::unique_lock lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&s] { return !s.queue.empty() || s.ending; });
    if (s.queue.empty()) break;
    const auto [text, count] = s.take();
    s.write_began = std::chrono::steady_clock::now();
    lock.unlock();
    const bool written = write_all(s.descriptor, text);
    lock.lock();
    s.write_began = {};
    s.lines -= count;
    s.bytes -= text.size();
    if (!written) s.drop(count);
    // Behind what was pushed before there was room, and beyond the limits if need be.
    // A descriptor that takes nothing is not told again and again.
    if (written && s.untold > 0) s.append(s.dropped_line(std::exchange(s.untold, 0)));
    s.changed.notify_all();
  }
  s.ended = true;
  s.changed.notify_all();
}

}  // namespace loralei
