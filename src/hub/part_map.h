// SPDX-License-Identifier: Apache-2.0
// PartMap: how far each piece of a file has come that is fetched in pieces: what a
// process that was killed leaves for the next one.
//
// Thread: set() from several threads, each for its own piece; the rest from one.
// Ownership: owns its file. Invariant: a piece counts as far as its bytes were synced
// before set(). Failure: io; a map that does not fit is begun anew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "sys/write_file.h"

namespace loralei {

class PartMap {
 public:
  // Of a file of so many bytes, in pieces of so many, the last one shorter.
  static Result<PartMap> open(const std::string& path, int64_t bytes, int64_t piece_bytes);

  // Bytes that such a map says are there; the file is read only, and may be another's.
  static int64_t look(const std::string& path, int64_t bytes, int64_t piece_bytes);

  size_t pieces() const { return done_.size(); }
  int64_t offset_of(size_t piece) const { return static_cast<int64_t>(piece) * piece_bytes_; }
  int64_t bytes_of(size_t piece) const;
  int64_t done_of(size_t piece) const { return done_[piece]; }  // from the piece's beginning on
  bool is_whole(size_t piece) const { return done_[piece] == bytes_of(piece); }
  int64_t done_bytes() const;  // of all
  Status set(size_t piece, int64_t done);
  // Nothing is there any more; in pieces of another size from now on.
  Status begin_anew(int64_t piece_bytes);

 private:
  PartMap(WriteFile file, int64_t bytes) : file_(std::move(file)), bytes_(bytes) {}

  WriteFile file_;
  int64_t bytes_ = 0, piece_bytes_ = 0;
  std::vector<int64_t> done_;
};

}  // namespace loralei
