// SPDX-License-Identifier: Apache-2.0
// AdapterPlaces: which adapters have which range of a device's memory, who holds them and
// who gives way: the rules of a DeviceTier, without the memory and without the copies.
//
//   absent ─► on the way ─┬► there ─► absent
//                         └► failed ─► absent
//
// Thread: one. Ownership: plain values; the calls given to it are the caller's.
// Invariants (check()): ranges do not overlap, those on their way included; what is held
// or on its way keeps its range; of the others the one released longest ago goes first,
// or whom choose_leaving() puts first. One that failed goes with its last hold. Where all
// others may go and nobody else is held or on its way, hold() finds room, however free
// ranges lie.
// Failure: hold() answers a sentence for what can never be there together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/range_allocator.h"

namespace loralei {

class AdapterPlaces {
 public:
  struct Wanted {
    AdapterVersionId version;
    int64_t bytes = 0;
  };
  struct Placed {
    AdapterVersionId version;
    int64_t offset = 0;
  };
  explicit AdapterPlaces(int64_t bytes_max) : arena_(bytes_max) {}

  // As DeviceTier's. `placed`: those that have a range from now on and are to be
  // brought, in the order of `wanted`.
  Result<bool> hold(std::span<const Wanted> wanted, std::vector<Placed>& placed);
  Result<bool> arrived(AdapterVersionId version) const;
  void release(AdapterVersionId version);
  bool has(AdapterVersionId version) const;
  void drop_unused(AdapterVersionId version);
  void forget(AdapterVersionId version);
  void choose_leaving(std::function<void(std::vector<AdapterVersionId>& idle)> choose) { choose_ = std::move(choose); }

  // One on its way is there, or failed.
  void ended(AdapterVersionId version, const Status& status);
  // `call` is called for each that gives its range back, before another has it.
  void on_leave(std::function<void(AdapterVersionId)> call) { leave_ = std::move(call); }

  int64_t bytes() const { return arena_.taken_bytes(); }
  int64_t bytes_max() const { return arena_.size_bytes(); }
  // Of the range of so many bytes.
  static int64_t range_bytes(int64_t bytes) { return RangeAllocator::rounded(bytes > 0 ? bytes : 1); }
  void check() const;

 private:
  enum class State : uint8_t { kOnTheWay, kThere, kFailed };
  struct Place {
    State state = State::kOnTheWay;
    int64_t offset = 0, bytes = 0;
    int32_t holds = 0;
    bool forgotten = false;  // on its way, and nobody wants it any more
    uint64_t used = 0;       // when it was placed or released last
    Error error;
  };
  // Those that may give way now.
  struct Leaving {
    std::vector<AdapterVersionId> order;
    int64_t bytes = 0;
    bool all = false;  // of those that are idle
  };
  Place* find(AdapterVersionId version);
  Leaving list_leaving() const;
  bool take_room(std::span<const Wanted> missing, std::vector<Placed>& placed, bool& all_may_leave);
  bool others_stay(std::span<const Wanted> wanted) const;
  void give_up(AdapterVersionId version);

  RangeAllocator arena_;
  std::unordered_map<AdapterVersionId, Place> places_;
  uint64_t uses_ = 0;
  std::function<void(std::vector<AdapterVersionId>&)> choose_;
  std::function<void(AdapterVersionId)> leave_;
};

}  // namespace loralei
