// SPDX-License-Identifier: Apache-2.0
#include "serve/submit_window.h"

#include <algorithm>

namespace loralei {

Status SubmitWindow::advance(const std::shared_ptr<EventSink>& owner, const std::function<Submit(size_t part)>& make) {
  for (; submitted_ < parts_ && running_ < kParts; ++submitted_, ++running_) {
    if (known_.size() == submitted_) {  // else it was refused before
      known_.push_back({context_.dispatcher.next_id()});
      context_.dispatcher.add(known_.back().id, owner);  // before the submit: events may come at once
    }
    Submit submit = make(submitted_);
    submit.id = known_[submitted_].id;
    submit.follows = submitted_ > 0;
    known_[submitted_].submitted_ns = context_.clock.now_ns();
    const Status status = context_.engine.submit(std::move(submit));
    if (status.ok()) continue;
    const bool full = status.error().code == ErrorCode::kOverloaded;
    if (full && submitted_ > 0) return {};
    if (full) context_.metrics.refused("queue_full");
    return status;
  }
  return {};
}

std::optional<size_t> SubmitWindow::part_of(RequestId id) const {
  const auto part = std::find_if(known_.begin(), known_.end(), [&](const Part& known) { return known.id == id; });
  if (part == known_.end()) return std::nullopt;
  return static_cast<size_t>(part - known_.begin());
}

void SubmitWindow::hold(bool held) {
  for (size_t part = 0; part < submitted_; ++part) context_.engine.hold(known_[part].id, held);  // or those that ended
}

void SubmitWindow::close() {
  for (const Part& part : known_) {
    context_.engine.cancel(part.id);  // ids that have ended are ignored
    context_.dispatcher.remove(part.id);
  }
}

}  // namespace loralei
