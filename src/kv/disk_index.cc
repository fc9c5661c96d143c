// SPDX-License-Identifier: Apache-2.0
#include "kv/disk_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/fast_hash.h"

namespace loralei {
namespace {

size_t slots_for(int32_t capacity) { return std::bit_ceil(2 * static_cast<size_t>(capacity)); }

}  // namespace

DiskIndex::DiskIndex(int32_t capacity)
    : entries_(static_cast<size_t>(capacity)), slots_(slots_for(capacity), -1), free_(0) {
  CHECK(capacity > 0);
  for (int32_t index = 0; index + 1 < capacity; ++index) entries_[static_cast<size_t>(index)].next = index + 1;
}

int64_t DiskIndex::bytes_for(int32_t capacity) {
  return int64_t{capacity} * static_cast<int64_t>(sizeof(Entry)) +
         static_cast<int64_t>(slots_for(capacity) * sizeof(int32_t));
}

size_t DiskIndex::home(const KvDiskKey& key) const {
  uint64_t word;
  std::memcpy(&word, key.data(), sizeof word);
  return mix64(word) & (slots_.size() - 1);
}

size_t DiskIndex::slot_of(const KvDiskKey& key) const {
  size_t slot = home(key);
  while (slots_[slot] >= 0 && entries_[static_cast<size_t>(slots_[slot])].header.record.key != key)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

const DiskIndex::Entry* DiskIndex::find(const KvDiskKey& key) const {
  const int32_t index = slots_[slot_of(key)];
  return index < 0 ? nullptr : &entries_[static_cast<size_t>(index)];
}

size_t DiskIndex::segment_at(uint32_t number) const {
  const auto at = std::lower_bound(segments_.begin(), segments_.end(), number,
                                   [](const DiskSegment& segment, uint32_t value) { return segment.number < value; });
  return at == segments_.end() || at->number != number ? segments_.size() : static_cast<size_t>(at - segments_.begin());
}

DiskSegment* DiskIndex::segment(uint32_t number) {
  const size_t at = segment_at(number);
  return at == segments_.size() ? nullptr : &segments_[at];
}

void DiskIndex::begin(uint32_t segment) {
  int64_t began_at = 0;
  if (!segments_.empty()) {
    CHECK(segment > segments_.back().number);
    began_at = segments_.back().began_at + segments_.back().bytes;
  }
  segments_.push_back({.number = segment, .began_at = began_at});
}

void DiskIndex::add(const DiskHeader& header, bool written) {
  CHECK(!segments_.empty() && header.segment == segments_.back().number);
  if (const int32_t there = slots_[slot_of(header.record.key)]; there >= 0) erase(there);
  CHECK(free_ >= 0);
  const int32_t index = free_;
  Entry& entry = entries_[static_cast<size_t>(index)];
  free_ = entry.next;
  DiskSegment& segment = segments_.back();
  entry = {.header = header, .written = written, .next = segment.first, .before = -1};
  if (segment.first >= 0) entries_[static_cast<size_t>(segment.first)].before = index;
  segment.first = index;
  ++segment.records;
  ++size_;
  slots_[slot_of(header.record.key)] = index;
}

void DiskIndex::unlink(Entry& entry) {
  DiskSegment* const segment = this->segment(entry.header.segment);
  CHECK(segment != nullptr);
  if (entry.before >= 0) {
    entries_[static_cast<size_t>(entry.before)].next = entry.next;
  } else {
    segment->first = entry.next;
  }
  if (entry.next >= 0) entries_[static_cast<size_t>(entry.next)].before = entry.before;
  --segment->records;
}

// What was pushed on by the entry moves back (linear probing without marks).
void DiskIndex::erase(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  const size_t mask = slots_.size() - 1;
  size_t hole = slot_of(entry.header.record.key);
  for (size_t slot = (hole + 1) & mask; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    const size_t wanted = home(entries_[static_cast<size_t>(slots_[slot])].header.record.key);
    if (((slot - wanted) & mask) < ((slot - hole) & mask)) continue;
    slots_[hole] = slots_[slot];
    hole = slot;
  }
  slots_[hole] = -1;
  unlink(entry);
  if (teller_ != nullptr && entry.told == teller_->picture())
    teller_->put(
        {.kind = KvEvent::Kind::kRemoved, .tier = KvTier::kDisk, .hash = kv_event_hash(entry.header.record.key)});
  entry = {.next = free_};
  free_ = index;
  --size_;
}

void DiskIndex::set_written(const DiskHeader& header) {
  const int32_t index = slots_[slot_of(header.record.key)];
  if (index < 0) return;
  Entry& entry = entries_[static_cast<size_t>(index)];
  if (entry.header != header) return;
  entry.written = true;
  tell_stored(entry);
}

void DiskIndex::tell_of(const KvDiskKey& key) {
  const int32_t index = slots_[slot_of(key)];
  if (index >= 0 && entries_[static_cast<size_t>(index)].written) tell_stored(entries_[static_cast<size_t>(index)]);
}

void DiskIndex::tell_stored(Entry& entry) {
  if (teller_ == nullptr || entry.told == teller_->picture()) return;
  const KvEvent event{
      .kind = KvEvent::Kind::kStored, .tier = KvTier::kDisk, .hash = kv_event_hash(entry.header.record.key)};
  if (teller_->put(event)) entry.told = teller_->picture();
}

void DiskIndex::drop(const DiskHeader& header) {
  const int32_t index = slots_[slot_of(header.record.key)];
  if (index >= 0 && entries_[static_cast<size_t>(index)].header == header) erase(index);
}

void DiskIndex::drop_segment(uint32_t number) {
  const size_t at = segment_at(number);
  if (at == segments_.size()) return;
  while (segments_[at].first >= 0) erase(segments_[at].first);
  segments_.erase(segments_.begin() + static_cast<int64_t>(at));
}

void DiskIndex::check() const {
  int32_t listed = 0, slotted = 0, unused = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const DiskSegment& segment = segments_[i];
    CHECK(i == 0 || (segments_[i - 1].number < segment.number && segments_[i - 1].began_at <= segment.began_at));
    int32_t records = 0, before = -1;
    for (int32_t index = segment.first; index >= 0; ++records) {
      const Entry& entry = entries_[static_cast<size_t>(index)];
      CHECK(entry.header.segment == segment.number && entry.before == before);
      CHECK(find(entry.header.record.key) == &entry);
      before = index;
      index = entry.next;
    }
    CHECK(records == segment.records);
    listed += records;
  }
  for (const int32_t index : slots_) slotted += index >= 0;
  for (int32_t index = free_; index >= 0; index = entries_[static_cast<size_t>(index)].next) ++unused;
  CHECK(listed == size_ && slotted == size_ && unused + size_ == static_cast<int32_t>(entries_.size()));
}

}  // namespace loralei
