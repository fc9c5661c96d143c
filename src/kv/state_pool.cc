// SPDX-License-Identifier: Apache-2.0
#include "kv/state_pool.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kAlignment = 64;

}  // namespace

int64_t state_bytes(int64_t floats) {
  return (floats * int64_t{sizeof(float)} + kAlignment - 1) / kAlignment * kAlignment;
}

StateLease::StateLease(StateLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), slot_(std::exchange(other.slot_, kNoState)) {}

StateLease& StateLease::operator=(StateLease&& other) noexcept {
  if (this == &other) return *this;
  release();
  pool_ = std::exchange(other.pool_, nullptr);
  slot_ = std::exchange(other.slot_, kNoState);
  return *this;
}

void StateLease::release() {
  const int32_t slot = std::exchange(slot_, kNoState);
  if (slot != kNoState) std::exchange(pool_, nullptr)->give_back(slot);
}

Result<std::unique_ptr<StatePool>> StatePool::create(int64_t floats, int32_t slots, Ledger& ledger) {
  CHECK(floats > 0 && slots > 0);
  const int64_t slot_bytes = state_bytes(floats), bytes = slot_bytes * slots;
  auto grant = ledger.try_grant(MemoryUse::kKv, bytes);
  if (!grant) {
    return too_large("the states of " + std::to_string(slots) + " texts need " + format_bytes(bytes) + ", " +
                     format_bytes(slot_bytes) + " each, but only " +
                     format_bytes(ledger.available_bytes(MemoryUse::kKv)) +
                     " of the memory budget are left for them; give it more, or let fewer sequences run at once");
  }
  std::unique_ptr<StatePool> pool(new StatePool());
  TRY_ASSIGN(pool->bytes_, HostBuffer::allocate(bytes));
  pool->grant_ = *std::move(grant);
  pool->floats_ = floats;
  pool->view_ = {.base = reinterpret_cast<float*>(pool->bytes_.data()),
                 .stride = slot_bytes / int64_t{sizeof(float)},
                 .slots = slots};
  pool->leased_.resize(static_cast<size_t>(slots), false);
  for (int32_t slot = slots - 1; slot >= 0; --slot) pool->free_.push_back(slot);
  return pool;
}

StateLease StatePool::take() {
  if (free_.empty()) return {};
  const int32_t slot = free_.back();
  free_.pop_back();
  leased_[static_cast<size_t>(slot)] = true;
  return {this, slot};
}

void StatePool::give_back(int32_t slot) {
  CHECK(slot >= 0 && slot < slots() && leased_[static_cast<size_t>(slot)]);
  leased_[static_cast<size_t>(slot)] = false;
  free_.push_back(slot);
}

void StatePool::clear(const StateLease& state) {
  CHECK(state.pool_ == this);
  std::memset(view_.at(state.slot()), 0, static_cast<size_t>(floats_) * sizeof(float));
}

void StatePool::copy(const StateLease& from, const StateLease& to) {
  CHECK(from.pool_ == this && to.pool_ == this && from.slot() != to.slot());
  std::memcpy(view_.at(to.slot()), view_.at(from.slot()), static_cast<size_t>(floats_) * sizeof(float));
}

void StatePool::check() const {
  int32_t leased = 0;
  for (const bool flag : leased_) leased += flag ? 1 : 0;
  CHECK(leased + free() == slots() && bytes() == bytes_.size_bytes());
  for (const int32_t slot : free_) CHECK(!leased_[static_cast<size_t>(slot)]);
}

}  // namespace loralei
