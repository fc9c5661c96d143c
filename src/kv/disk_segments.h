// SPDX-License-Identifier: Apache-2.0
// DiskSegments: the folder of the disk tier, and all that is done to its files.
//
//   DIR/FORMAT/lock          FORMAT: the first 16 digits of the format's digest
//   DIR/FORMAT/NNNNNNNN.kv   segments (disk_format.h), numbered in hex
//
// One segment at a time is written, at its end. It gets its name with its header, is
// synced when it is sealed, and is never changed again.
//
// Thread: one at a time.
// Ownership: owns the files of its own format alone, and the lock as long as it lives.
// Segments of other formats in DIR that no server uses (elders: of another model, or from
// before an update) count as the oldest, so that DIR as a whole is bounded.
// Invariant: bytes() is what all these files take, and never more than bytes_most; what
// would exceed it is not written.
// Failure: sentences. A segment of which something could not be written takes no more,
// and keeps what was written whole. Files that are not ours stay as they are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/disk_format.h"
#include "sys/write_file.h"

namespace loralei {

class DiskSegments {
 public:
  struct Elder {
    std::string folder, name;
    int64_t bytes = 0;
    int64_t written_ns = 0;  // when, for their order
  };

  // Makes the folders and looks what is there; what is ours and damaged is removed.
  // kUnavailable: another process has the folder. `segment_bytes_most`: no segment of
  // ours has more. bytes() may exceed bytes_most until the oldest were removed.
  static Result<std::unique_ptr<DiskSegments>> open(const std::string& dir, const Digest& format,
                                                    int64_t segment_bytes_most, int64_t bytes_most);

  const std::string& folder() const { return folder_; }
  const DiskFormat& format() const { return format_; }
  int64_t bytes() const { return bytes_; }
  const std::map<uint32_t, int64_t>& sizes() const { return sizes_; }  // of segments of ours, by number
  const std::vector<Elder>& elders() const { return elders_; }         // at the opening; the oldest first
  const std::vector<std::string>& foreign() const { return foreign_; }
  int32_t damaged() const { return damaged_; }
  uint64_t next_number() const { return next_number_; }  // above all there were at the opening

  // DiskFormat::scan; what a stop left unsealed is sealed, if that can be done.
  DiskScan scan(uint32_t number, std::span<std::byte> buffer, const std::function<void(const DiskHeader&)>& found);

  Status begin(uint32_t number);
  // A record with its header, at the end of the segment that was begun last.
  Status write(uint32_t number, int64_t offset, std::span<const std::byte> record);
  Status seal(uint32_t number);  // with the table of what was written; synced
  Status remove(uint32_t number);
  Status remove_elder(size_t index);
  // DiskFormat::read; kNotFound: the segment is not there.
  Status read(const DiskHeader& header, std::span<std::byte> out);

 private:
  DiskSegments(std::string folder, const Digest& format, int64_t bytes_most)
      : folder_(std::move(folder)), format_(format), bytes_most_(bytes_most) {}
  std::string path_of(uint32_t number) const;
  Status look(int64_t segment_bytes_most);
  bool look_at(const std::string& name, int64_t segment_bytes_most);
  void look_for_elders(const std::string& dir);
  void count(uint32_t number, int64_t bytes);
  Status append(std::span<const std::byte> bytes);
  Status put_table();

  const std::string folder_;
  const DiskFormat format_;
  const int64_t bytes_most_;
  std::optional<WriteFile> lock_;
  int64_t bytes_ = 0;
  std::map<uint32_t, int64_t> sizes_;
  std::vector<uint32_t> doomed_;  // could not be removed yet
  std::vector<Elder> elders_;
  std::vector<std::string> foreign_;
  int32_t damaged_ = 0;
  uint64_t next_number_ = 1;
  // The segment that is being written, and the end of its records.
  std::optional<WriteFile> file_;
  uint32_t number_ = 0;
  int64_t end_ = 0;
  bool failed_ = false;
  // The one that was read last.
  std::unique_ptr<File> read_;
  uint32_t read_number_ = 0;
};

}  // namespace loralei
