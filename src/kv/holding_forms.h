// SPDX-License-Identifier: Apache-2.0
// HoldingForms: in what form the bytes of a holding are there.
//
//   raw      in a block
//   alone    in a blob of their own
//   delta    in a blob of differences from those of another holding on the same text, its
//            anchor, which is not a delta
//   neither  nowhere: what is held behind it is not found until somebody computes it anew
//
// A block and a blob may be there at once. Then they have the same integers (KvGrid); so
// a delta holds whichever of them its anchor has (but by KvDelta::kPaper the blob).
//
// Thread: the engine's. Ownership: none of blocks and blobs. Storage grows with
// set_capacity alone.
// Invariants (check()): an anchor has a blob, alone, as long as there are deltas to it.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/blob_arena.h"
#include "kv/holding_table.h"

namespace loralei {

struct HoldingForm {
  int32_t blob = kNoBlob;
  int32_t anchor = kNoHolding;
  // Those that are deltas to this one.
  int32_t dependants = 0, first_dependant = kNoHolding;
  int32_t next = kNoHolding, prev = kNoHolding;  // among those of one anchor
  // Nothing that was encoded with loss is in the block's bytes, nor was in what they were
  // computed from; and of those that the blob was made of.
  bool exact = true, blob_exact = false;
  bool plain = false;    // it cannot be encoded, or that does not pay
  bool decoded = false;  // by KvDelta::kPaper alone: the block is what a blob said, and is not encoded anew
  // The streams of the layers that are the base's (KvStreams) are in the block; and with
  // the blob: in `stream_blob`, where there are any.
  bool streams = false, blob_streams = false;
  int32_t stream_blob = kNoBlob;
  int32_t stream_next = kNoHolding, stream_prev = kNoHolding;  // among those with one, the eldest first
};

class HoldingForms {
 public:
  void set_capacity(int32_t holdings);
  int32_t capacity() const { return static_cast<int32_t>(forms_.size()); }

  const HoldingForm& at(int32_t holding) const { return forms_[static_cast<size_t>(holding)]; }
  HoldingForm& at(int32_t holding) { return forms_[static_cast<size_t>(holding)]; }
  bool coded(int32_t holding) const { return at(holding).blob != kNoBlob; }
  bool can_be_anchor(int32_t holding) const { return coded(holding) && at(holding).anchor == kNoHolding; }
  // `holding` is a delta to `anchor` from now on, or to none any more.
  void link(int32_t holding, int32_t anchor);
  void unlink(int32_t holding);
  // Its streams lie in this blob from now on, or in none any more: answers which it was.
  void keep_streams(int32_t holding, int32_t blob);
  int32_t lose_streams(int32_t holding);
  int32_t first_stream() const { return first_stream_; }  // whose is the eldest; kNoHolding: there are none
  int32_t stream_blobs() const { return stream_blobs_; }
  void check(const HoldingTable& table, const BlobArena& arena) const;

 private:
  std::vector<HoldingForm> forms_;
  int32_t first_stream_ = kNoHolding, last_stream_ = kNoHolding;
  int32_t stream_blobs_ = 0;
};

}  // namespace loralei
