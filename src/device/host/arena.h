// SPDX-License-Identifier: Apache-2.0
// HostBuffer: a large aligned block of zeroed host memory, advised to lie on huge pages.
//
// Thread: allocate from any thread; the buffer itself is a plain move-only value.
// Ownership: owns its pages, the destructor returns them to the system.
// Invariants: data() is 64-byte aligned (page aligned in fact); pages are
// committed on first touch; resize() moves nothing.
// Failure: allocate, reserve and resize answer kOverloaded with the
// size when the system refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "sys/pages.h"

namespace loralei {

class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  // bytes >= 0; 0 gives an empty buffer.
  static Result<HostBuffer> allocate(int64_t bytes, PageSize pages = PageSize::kHuge);

  // An empty buffer that resize() can make as large as `capacity_bytes` > 0.
  static Result<HostBuffer> reserve(int64_t capacity_bytes);

  // What lies below both sizes stays as it is; memory beyond the new size goes back to
  // the system. For reserved buffers.
  Status resize(int64_t bytes);
  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t mapped_bytes_ = 0;  // addresses held
};

}  // namespace loralei
