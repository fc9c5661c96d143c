// SPDX-License-Identifier: Apache-2.0
// SharedMemory: memory that several processes map, each through a descriptor that it was
// given. It has no name in any file system, so that nobody else finds it.
//
// Thread: create and open from any thread; then a plain move-only value.
// Ownership: owns its descriptor and its mapping; the memory goes when the last of both
// is gone, in whatever process.
// Invariants: sealed: no holder can make it shorter or longer. All of it was there when
// it was made, so that no access fails later for want of memory.
// Failure: create() answers kOverloaded or kTooLarge with the size where there is not as
// much; open() kCorrupt where a descriptor is no such memory or smaller than expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "sys/posix_file.h"

namespace loralei {

class SharedMemory {
 public:
  enum class Access : uint8_t { kRead, kReadWrite };

  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  // Zeroed, for reading and writing. `name` is for sentences and /proc/PID/maps alone.
  static Result<SharedMemory> create(const std::string& name, int64_t bytes);
  // What another process sent; maps all of it. At least `bytes_min` are expected.
  static Result<SharedMemory> open(Descriptor descriptor, int64_t bytes_min, Access access);

  // A descriptor of the same memory through which it cannot be written: for processes
  // that only read it.
  Result<Descriptor> read_only_descriptor() const;

  void close_descriptor() { descriptor_ = Descriptor(-1); }  // the mapping stays

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  int descriptor() const { return descriptor_.get(); }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }

 private:
  Status map(Access access);

  Descriptor descriptor_{-1};
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace loralei
