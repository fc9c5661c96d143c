// SPDX-License-Identifier: Apache-2.0
#include "device/host/arena.h"

#include <string>
#include <utility>

#include "base/units.h"
#include "sys/pages.h"

namespace loralei {

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) unmap_pages(data_, size_bytes_);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Result<HostBuffer> HostBuffer::allocate(int64_t bytes, PageSize pages) {
  CHECK(bytes >= 0);
  HostBuffer buffer;
  if (bytes == 0) return buffer;
  buffer.data_ = map_pages(bytes, pages);
  if (buffer.data_ == nullptr) {
    return Error{ErrorCode::kOverloaded, "the system refused " + format_bytes(bytes) + " (" + std::to_string(bytes) +
                                             " bytes) of memory; use a smaller model or lower the memory options"};
  }
  buffer.size_bytes_ = bytes;
  return buffer;
}

}  // namespace loralei
