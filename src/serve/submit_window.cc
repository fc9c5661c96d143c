// SPDX-License-Identifier: Apache-2.0
#include "serve/submit_window.h"

#include <algorithm>

namespace loralei {

Status SubmitWindow::advance(const std::shared_ptr<EventSink>& owner, const std::function<Submit(size_t part)>& make) {
  for (; submitted_ < parts_ && running_ < kParts; ++submitted_, ++running_) {
    if (ids_.size() == submitted_) {  // else it was refused before
      ids_.push_back(context_.dispatcher.next_id());
      context_.dispatcher.add(ids_.back(), owner);  // before the submit: events may come at once
    }
    Submit submit = make(submitted_);
    submit.id = ids_[submitted_];
    submit.follows = submitted_ > 0;
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
  const auto known = std::find(ids_.begin(), ids_.end(), id);
  if (known == ids_.end()) return std::nullopt;
  return static_cast<size_t>(known - ids_.begin());
}

void SubmitWindow::close() {
  for (const RequestId id : ids_) {
    context_.engine.cancel(id);  // ids that have ended are ignored
    context_.dispatcher.remove(id);
  }
}

}  // namespace loralei
