// SPDX-License-Identifier: Apache-2.0
// BlockReader: large reads of one file with several under way, past the page cache where
// the system allows it. What streams weights.
//
// Thread: one.
// Ownership: owns the open file; `dest` is the caller's and stays untouched until its
// read is done (the destructor waits for reads under way).
// Invariants: offset, size and destination are multiples of kDirectAlign; every
// submitted read is done exactly once, in any order; at most depth() are under way.
// Failure: open() answers a sentence; a read that fails, or meets the end of the file,
// is done with one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sys/direct_read.h"
#include "sys/file.h"

namespace loralei {

struct BlockDone {
  uint64_t tag = 0;
  Status status;
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;
  virtual void submit(uint64_t tag, int64_t offset_bytes, std::span<std::byte> dest) = 0;
  // Appends what is done; waits for one while any is under way.
  virtual void wait(std::vector<BlockDone>& done) = 0;
  virtual int depth() const = 0;
  virtual FileStamp stamp() const = 0;  // at open
  // How it reads, for people: "io_uring past the page cache", and why not better
  // where it is not.
  virtual const std::string& how() const = 0;
};

struct BlockReaderOptions {
  int depth = 4;
  // Where every dest lies, or nothing: registered with the kernel where it allows that.
  // Open may write into it.
  std::span<std::byte> memory;
  bool allow_ring = true;  // io_uring; else threads
  bool allow_direct = true;
  // The system is asked for so many bytes at once at most; what is left follows, as after
  // a short read. A multiple of kDirectAlign; for file systems with a limit of their
  // own, and for tests.
  int64_t largest_read_bytes = int64_t{1} << 30;
};
// io_uring, or as many threads as the depth where the system refuses it or a first read
// through it; past the page cache, or through it where the file system refuses that.
Result<std::unique_ptr<BlockReader>> open_block_reader(const std::string& path, const BlockReaderOptions& options);

}  // namespace loralei
