// SPDX-License-Identifier: Apache-2.0
// KvSummary: who holds how much of a KV cache, at one moment.
//
// Plain values; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/identity.h"
#include "kv/sharing.h"

namespace loralei {

// Blocks of one identity.
struct KvHeld {
  KvIdentity identity;
  int32_t blocks = 0;        // of text, in whatever form
  int32_t leased = 0;        // of these: by sequences that run
  int32_t alone = 0;         // of these: on texts on which nobody else holds anything
  uint64_t times_found = 0;  // since they were stored: each time a block was not computed again
  // Of these: in blocks; encoded alone, and as differences (some of both are in blocks,
  // too); and nowhere.
  int32_t raw = 0, alone_coded = 0, deltas = 0, nowhere = 0;
  int64_t coded_bytes = 0;
  int32_t pool_blocks = 0;  // of the pool: without windows as many as `raw`
};

// What was encoded and decoded since the start.
struct KvCodedTimes {
  int64_t encoded_blocks = 0, decoded_blocks = 0, damaged_blocks = 0;
  int64_t recoded_blocks = 0;  // told from another anchor than before
  int64_t encode_ns = 0, decode_ns = 0;
};

// What is encoded now, and what it takes.
struct KvCoded {
  KvSharing sharing = KvSharing::kExact;
  KvDelta delta = KvDelta::kSteps;
  double agreement = 0;  // of the next token with that of an exact cache, as calibrate-kv measured it; 0: nobody did
  int32_t blobs = 0, pages = 0;
  int64_t bytes = 0;       // of blobs
  int64_t page_bytes = 0;  // of the blocks they lie in: fragmentation is what these have more
  KvCodedTimes times;
};

// Where layers keep a state of a whole text in the place of K and V (kv/state_pool.h).
struct KvStates {
  int32_t slots = 0, running = 0;  // of these: of sequences that run
  int32_t snapshots = 0;           // and of copies at borders of blocks, by which prefixes are found
  int64_t bytes = 0;               // of all slots
  // Since the start: copies that were made, those that gave way to others or went with
  // their text, and sequences that began with one.
  uint64_t kept = 0, dropped = 0, found = 0;
};

struct KvSummary {
  int32_t texts = 0;         // blocks of text, however many hold something there
  std::vector<KvHeld> held;  // most blocks first
};

}  // namespace loralei
