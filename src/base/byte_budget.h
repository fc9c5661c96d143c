// SPDX-License-Identifier: Apache-2.0
// ByteBudget: memory that the work of others costs (bodies, prompts, answers), asked for
// before it is allocated. ByteShare: a move-only part of it.
//
// Thread-safe budget; a share belongs to one thread at a time.
// Ownership: a share keeps its budget alive and gives back what it has when
// it is dropped.
// Invariants: shares together never exceed what the budget has.
// Failure: scarcity is an answer: grow_to() says false and changes nothing; most_bytes()
// tells whether waiting could help.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace loralei {

class ByteBudget {
 public:
  virtual ~ByteBudget() = default;
  virtual bool try_take(int64_t bytes) = 0;  // bytes >= 0
  virtual void give_back(int64_t bytes) = 0;
  // What one share could have if there were no others: more than that is too large for
  // good, not for now.
  virtual int64_t most_bytes() const = 0;
};

// So many bytes more are about to be allocated; an error says why they must not be. For
// rooms that need not know whose memory it is. Empty: whatever is needed is there.
using TakeMemory = std::function<Status(int64_t more_bytes)>;

class [[nodiscard]] ByteShare {
 public:
  ByteShare() = default;  // of nothing: it cannot grow
  explicit ByteShare(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}
  ByteShare(ByteShare&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  ByteShare& operator=(ByteShare&& other) noexcept {
    if (this == &other) return *this;
    release();
    budget_ = std::move(other.budget_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~ByteShare() { release(); }

  int64_t bytes() const { return bytes_; }
  // To `bytes` in all; less than it has is no change. False: there is no room, and
  // it stays as it was.
  bool grow_to(int64_t bytes) {
    if (bytes <= bytes_) return true;
    if (!budget_ || !budget_->try_take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }
  // To `bytes` in all; more than it has is no change.
  void shrink_to(int64_t bytes) {
    CHECK(bytes >= 0);
    if (bytes >= bytes_) return;
    budget_->give_back(bytes_ - bytes);
    bytes_ = bytes;
  }
  void release() { shrink_to(0); }

 private:
  std::shared_ptr<ByteBudget> budget_;
  int64_t bytes_ = 0;
};

}  // namespace loralei
