// SPDX-License-Identifier: Apache-2.0
// DiskIndex: which records the disk tier has, by key, and in which segments they lie.
//
// Thread: the engine's.
// Ownership: owns its entries; all memory is taken at the making, but for a few bytes a
// segment.
// Invariants (check()): a key has one entry; every entry is in the list of its segment;
// segments are in the order of their numbers, which is that of their age.
// Failure: none; add() CHECKs that it is not full and that the newest segment is meant.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "kv/disk_format.h"
#include "kv/kv_teller.h"

namespace loralei {

struct DiskSegment {
  uint32_t number = 0;
  int64_t bytes = 0;     // of its file, when it will be sealed
  int64_t began_at = 0;  // bytes of all segments before it, gone ones too
  int32_t first = -1;    // entry
  int32_t records = 0;   // that are in the index
};

class DiskIndex {
 public:
  struct Entry {
    DiskHeader header;
    bool written = false;            // false: on its way
    int32_t next = -1, before = -1;  // of its segment; next: of the free ones, too
    uint32_t told = 0;               // in which picture of the teller
  };

  explicit DiskIndex(int32_t capacity);
  static int64_t bytes_for(int32_t capacity);

  int32_t size() const { return size_; }
  bool full() const { return free_ < 0; }
  const Entry* find(const KvDiskKey& key) const;

  void begin(uint32_t segment);
  // In the newest segment; in the place of an entry of that key.
  void add(const DiskHeader& header, bool written);
  // Those of this very record; another of the same key stays as it is.
  void set_written(const DiskHeader& header);
  void drop(const DiskHeader& header);
  // What is written and what goes is told there from now on; null: to nobody.
  void tell(KvTeller* teller) { teller_ = teller; }
  // Of one that is there, written, and was not told.
  void tell_of(const KvDiskKey& key);
  // The segment goes with all its entries.
  void drop_segment(uint32_t segment);

  const std::deque<DiskSegment>& segments() const { return segments_; }
  DiskSegment* segment(uint32_t number);  // null: it is gone
  void check() const;

 private:
  size_t home(const KvDiskKey& key) const;
  size_t segment_at(uint32_t number) const;
  size_t slot_of(const KvDiskKey& key) const;  // where it is, or would be
  void erase(int32_t index);
  void unlink(Entry& entry);
  void tell_stored(Entry& entry);

  std::vector<Entry> entries_;
  std::vector<int32_t> slots_;  // of entries, -1: none; a power of two
  int32_t free_ = -1, size_ = 0;
  std::deque<DiskSegment> segments_;
  KvTeller* teller_ = nullptr;
};

}  // namespace loralei
