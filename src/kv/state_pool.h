// SPDX-License-Identifier: Apache-2.0
// StatePool: slots for what layers of linear attention keep of a whole text in the place
// of K and V: a state of so many floats, cut from one allocation under a ledger grant.
//
//   base -> | slot 0: floats, padded to a cache line | slot 1: ... |
//
// Thread: the engine's; the floats of a leased slot are written by the executor through
// view().
// Ownership: owns floats and grant. A StateLease is a move-only share of one slot:
// dropping it is the only way to release it, and it must not outlive its pool.
// Invariants (check()): a slot is free or leased once. view() stays as it is.
// Failure: create() says with the numbers when the ledger or the system refuses; take()
// gives an empty lease where no slot is free.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/host/arena.h"
#include "memory/ledger.h"

namespace loralei {

inline constexpr int32_t kNoState = -1;

// Where the states lie.
struct StateView {
  float* base = nullptr;
  int64_t stride = 0;  // floats from a slot to the next
  int32_t slots = 0;   // 0: there are none

  float* at(int32_t slot) const { return base + slot * stride; }
};

class StatePool;

class [[nodiscard]] StateLease {
 public:
  StateLease() = default;
  StateLease(StateLease&& other) noexcept;
  StateLease& operator=(StateLease&& other) noexcept;
  ~StateLease() { release(); }

  int32_t slot() const { return slot_; }  // kNoState: of none
  explicit operator bool() const { return slot_ != kNoState; }
  void release();

 private:
  friend class StatePool;
  StateLease(StatePool* pool, int32_t slot) : pool_(pool), slot_(slot) {}
  StatePool* pool_ = nullptr;
  int32_t slot_ = kNoState;
};

// Bytes of a slot.
int64_t state_bytes(int64_t floats);

class StatePool {
 public:
  static Result<std::unique_ptr<StatePool>> create(int64_t floats, int32_t slots, Ledger& ledger);

  // With whatever was in it; empty: none is free.
  StateLease take();
  // What a text begins with: zeros.
  void clear(const StateLease& state);
  void copy(const StateLease& from, const StateLease& to);

  const StateView& view() const { return view_; }
  int32_t slots() const { return view_.slots; }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int64_t bytes() const { return grant_.bytes(); }
  void check() const;

 private:
  friend class StateLease;
  StatePool() = default;
  void give_back(int32_t slot);

  Grant grant_;
  HostBuffer bytes_;
  StateView view_;
  int64_t floats_ = 0;
  std::vector<int32_t> free_;  // a stack: the slot given back last is the warmest
  std::vector<bool> leased_;   // [slots]
};

}  // namespace loralei
