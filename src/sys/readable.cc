// SPDX-License-Identifier: Apache-2.0
#include "sys/readable.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "sys/os_error.h"

namespace loralei {

Result<WakeEvent> WakeEvent::create() {
  Descriptor descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!descriptor.is_open()) return os_error("cannot make", "an event to wake a thread with", errno);
  return WakeEvent(std::move(descriptor));
}

void WakeEvent::raise() const {
  const uint64_t one = 1;
  // Fails only where it is raised already.
  [[maybe_unused]] const ssize_t written = ::write(descriptor(), &one, sizeof one);
}

void WakeEvent::clear() const {
  uint64_t raised = 0;
  [[maybe_unused]] const ssize_t read = ::read(descriptor(), &raised, sizeof raised);
}

std::vector<bool> wait_readable(const std::vector<int>& descriptors, int64_t at_most_ns) {
  std::vector<pollfd> polled;
  for (const int descriptor : descriptors) polled.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
  // Rounded up: who waits for a time would else come back before it, again and again.
  const int64_t ms = std::min<int64_t>(at_most_ns / 1'000'000 + 1, 3'600'000);
  if (::poll(polled.data(), polled.size(), at_most_ns < 0 ? -1 : static_cast<int>(ms)) < 0)
    CHECK(errno == EINTR || errno == ENOMEM || errno == EAGAIN);
  std::vector<bool> readable;
  for (const pollfd& one : polled) readable.push_back(one.revents != 0);
  return readable;
}

}  // namespace loralei
