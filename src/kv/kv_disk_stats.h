// SPDX-License-Identifier: Apache-2.0
// What a KvDisk holds and has done. A plain value; no failure.
#pragma once

#include <cstdint>

namespace loralei {

struct KvDiskStats {
  int64_t records = 0, segments = 0, bytes = 0, bytes_most = 0;
  int64_t found_records = 0;                      // at the start
  int64_t written_blocks = 0, written_bytes = 0;  // payloads
  int64_t written_coded = 0;                      // of these blocks: as blobs
  int64_t read_blocks = 0, read_bytes = 0;
  int64_t read_coded = 0;     // of these blocks: from blobs
  double read_s = 0;          // the disk's thread
  int64_t refused_puts = 0;   // no room in the ring, a pause, no anchor
  int64_t failed_writes = 0;  // records
  int64_t lost_records = 0;   // could not be read, or were damaged
  int64_t evicted_records = 0;
  int64_t damaged_files = 0, foreign_files = 0;  // at the start
};

}  // namespace loralei
