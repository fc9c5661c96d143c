// SPDX-License-Identifier: Apache-2.0
// HostBuffer: a large aligned block of zeroed host memory, advised to lie on huge pages.
//
// Thread: allocate from any thread; the buffer itself is a plain move-only value. Ownership: owns its pages, the
// destructor returns them to the system. Invariants: data() is 64-byte aligned (page aligned in fact); pages are
// committed on first touch. Failure: allocate answers kOverloaded with the size when the system refuses.
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

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace loralei
