// SPDX-License-Identifier: Apache-2.0
// The memory between the engine's thread and the disk's: a ring for what is to be
// written, slots for what was read. All of it is taken at the making.
//
// Thread: a WriteRing is the engine's; the disk's thread reads the pieces it is told of.
// A slot belongs to whoever has its share; shares may be dropped by any thread.
// Ownership: shares keep the slots alive.
// Failure: none; what has no room now is not had.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/disk_format.h"
#include "memory/ledger.h"

namespace loralei {

// Pieces come back in the order in which they were taken.
class WriteRing {
 public:
  explicit WriteRing(int64_t bytes)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes))),
        bytes_(static_cast<size_t>(bytes)) {}

  bool has_room(size_t bytes) const { return place_for(bytes).has_value(); }
  std::span<std::byte> take(size_t bytes) {
    const auto place = place_for(bytes);
    CHECK(place);
    if (pieces_ == 0) tail_ = *place;
    head_ = *place + bytes;
    ++pieces_;
    return {memory_.get() + *place, bytes};
  }
  void give_back(std::span<const std::byte> piece) {
    CHECK(pieces_ > 0);
    --pieces_;
    tail_ = static_cast<size_t>(piece.data() - memory_.get()) + piece.size();
  }
  bool empty() const { return pieces_ == 0; }

 private:
  // What is taken lies from tail_ to head_, or from tail_ to the end and up to head_.
  std::optional<size_t> place_for(size_t bytes) const {
    if (pieces_ == 0) return bytes <= bytes_ ? std::optional<size_t>(0) : std::nullopt;
    if (head_ <= tail_) return bytes <= tail_ - head_ ? std::optional(head_) : std::nullopt;
    if (bytes <= bytes_ - head_) return head_;
    return bytes <= tail_ ? std::optional<size_t>(0) : std::nullopt;
  }

  const std::unique_ptr<std::byte[]> memory_;
  const size_t bytes_;
  size_t head_ = 0, tail_ = 0, pieces_ = 0;
};

struct KvFetchedBlock {
  KvDiskRecord record;
  std::span<const std::byte> payload;
  std::span<const std::byte> anchor_payload;  // of a delta's anchor, which lies alone
};

// One fetch: what is asked for, and what was read.
struct ReadSlot {
  struct Ask {
    DiskHeader header, anchor;  // anchor: of a delta
  };
  static constexpr size_t kAsksMost = 1024;

  std::span<std::byte> memory;
  uint64_t ticket = 0;
  std::vector<Ask> asks;
  std::vector<KvFetchedBlock> blocks;
  bool more = false;
  std::atomic<bool> taken{false};
};

class ReadSlots {
 public:
  // The grant is of bytes_for().
  ReadSlots(int32_t slots, int64_t slot_bytes, Grant&& grant)
      : grant_(std::move(grant)),
        memory_(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(slots * slot_bytes))),
        slots_(static_cast<size_t>(slots)) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].memory = {memory_.get() + i * static_cast<size_t>(slot_bytes), static_cast<size_t>(slot_bytes)};
      slots_[i].asks.reserve(ReadSlot::kAsksMost);
      slots_[i].blocks.reserve(ReadSlot::kAsksMost);
    }
  }
  static int64_t bytes_for(int32_t slots, int64_t slot_bytes) {
    constexpr size_t kAskBytes = sizeof(ReadSlot::Ask) + sizeof(KvFetchedBlock);
    return slots * (slot_bytes + static_cast<int64_t>(ReadSlot::kAsksMost * kAskBytes));
  }

  ReadSlot* take() {
    for (ReadSlot& slot : slots_)
      if (!slot.taken.exchange(true, std::memory_order_acquire)) return &slot;
    return nullptr;
  }

 private:
  const Grant grant_;
  const std::unique_ptr<std::byte[]> memory_;
  std::vector<ReadSlot> slots_;
};

class ReadShare {
 public:
  ReadShare() = default;
  ReadShare(std::shared_ptr<ReadSlots> slots, ReadSlot* slot) : slots_(std::move(slots)), slot_(slot) {}
  ReadShare(ReadShare&& other) noexcept : slots_(std::move(other.slots_)), slot_(std::exchange(other.slot_, nullptr)) {}
  ReadShare& operator=(ReadShare&& other) noexcept {
    std::swap(slots_, other.slots_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~ReadShare() {
    if (slot_ != nullptr) slot_->taken.store(false, std::memory_order_release);
  }

 private:
  std::shared_ptr<ReadSlots> slots_;
  ReadSlot* slot_ = nullptr;
};

}  // namespace loralei
