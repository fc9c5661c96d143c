// SPDX-License-Identifier: Apache-2.0
// SubmitWindow: the engine's requests behind one HTTP request, one for each prompt or
// input ("part"). Only a few at a time are the engine's, so that a request of many parts
// leaves the queue to others.
//
// Thread: its owner's, who makes calls one at a time.
// Ownership: borrows the context; the owner is registered with the
// dispatcher from the first advance() to close().
// Invariants: parts go down in order, at most kParts are submitted and
// not ended.
// Failure: advance(), when the engine takes nothing; once it has taken a part, those that
// find its queue full wait for the next advance().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "serve/context.h"

namespace loralei {

class SubmitWindow {
 public:
  static constexpr size_t kParts = 64;

  SubmitWindow(const ServeContext& context, size_t parts) : context_(context), parts_(parts) {}

  // Submits what there is room for: at the start, after ended(), and at ticks. make(part)
  // fills all but the id.
  Status advance(const std::shared_ptr<EventSink>& owner, const std::function<Submit(size_t part)>& make);
  std::optional<size_t> part_of(RequestId id) const;
  // From the request's arrival until the engine began with a part, whose first
  // event this is.
  double queue_s(size_t part, const TokenEvent& event, int64_t arrived_ns) const {
    return static_cast<double>(known_[part].submitted_ns - arrived_ns + event.queue_ns) * 1e-9;
  }
  void ended() { --running_; }  // one part
  void hold(bool held);         // what was submitted, Engine::hold
  void close();                 // the engine gets back what it still computes

 private:
  struct Part {
    RequestId id;
    int64_t submitted_ns = 0;
  };
  const ServeContext& context_;
  const size_t parts_;
  std::vector<Part> known_;  // those that were tried so far
  size_t submitted_ = 0, running_ = 0;
};

}  // namespace loralei
