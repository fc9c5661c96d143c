// SPDX-License-Identifier: Apache-2.0
// Work: what one request's text costs: rendering and tokenising count what they touch,
// in bytes, before they touch it.
//
// A unit is a byte looked at or copied; what takes longer than that counts several,
// so that a unit takes about a nanosecond at most wherever it is spent.
// Thread: one thread spends. Whatever another thread wants of it (that it stops, that it
// lets other work go first) the watch tells it after every slice.
// Ownership: borrows the watch; a WorkLimit ends before its Work.
// Invariants: between two looks of the watch lie kSlice units and one operation at most;
// once stopped, nothing is granted any more.
// Failure: spend() answers false, and error() says why: cancelled, or the limit is met.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace loralei {

class Work;

class WorkWatch {
 public:
  virtual ~WorkWatch() = default;
  // After a slice, on the working thread, which holds no lock; may take its time, so that
  // other work goes first. False: nobody wants the rest.
  virtual bool go_on(const Work& work) = 0;
};

class Work {
 public:
  static constexpr int64_t kSlice = 1 << 20;  // about a millisecond

  explicit Work(WorkWatch* watch = nullptr) : watch_(watch) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Counts what is about to be done. False: it must not be done.
  bool spend(int64_t units) {
    left_ -= units;
    return left_ >= 0 || look();
  }
  int64_t spent() const { return granted_ - left_; }
  bool stopped() const { return stopped_; }
  // After spend() has answered false.
  Error error() const {
    if (stopped_) return {ErrorCode::kCancelled, "the request was given up before its text was ready"};
    return invalid_argument("the text needs more work than one request may; shorten it");
  }

 private:
  friend class WorkLimit;
  static constexpr int64_t kNoLimit = int64_t{1} << 60;

  bool look() {
    const int64_t spent = this->spent();
    if (!stopped_ && watch_ != nullptr && spent - looked_ >= kSlice) {
      stopped_ = !watch_->go_on(*this);
      looked_ = spent;
    }
    if (stopped_ || spent > limit_) return false;
    left_ = std::min(kSlice, limit_ - spent);
    granted_ = spent + left_;
    return true;
  }

  WorkWatch* const watch_;
  int64_t left_ = 0;          // of what is granted without a look
  int64_t granted_ = 0;       // from the beginning
  int64_t looked_ = 0;        // what was spent when the watch was asked
  int64_t limit_ = kNoLimit;  // of spent()
  bool stopped_ = false;
};

// Holds what is spent while it lives to so many units more.
class WorkLimit {
 public:
  WorkLimit(Work& work, int64_t units) : work_(work), outer_(work.limit_) {
    work.limit_ = std::min(outer_, work.spent() + units);
    take_back();
  }
  ~WorkLimit() {
    work_.limit_ = outer_;
    take_back();
  }
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

 private:
  // The next unit is granted by the limit that holds from now on.
  void take_back() {
    work_.granted_ = work_.spent();
    work_.left_ = 0;
  }

  Work& work_;
  const int64_t outer_;
};

}  // namespace loralei
