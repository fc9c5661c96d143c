// SPDX-License-Identifier: Apache-2.0
#include "device/host/arena.h"

#include <string>
#include <utility>

#include "base/units.h"
#include "sys/pages.h"

namespace loralei {

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) unmap_pages(data_, mapped_bytes_);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

namespace {

Error refused(int64_t bytes) {
  return {ErrorCode::kOverloaded, "the system refused " + format_bytes(bytes) + " (" + std::to_string(bytes) +
                                      " bytes) of memory; use a smaller model or lower the memory options"};
}

}  // namespace

Result<HostBuffer> HostBuffer::allocate(int64_t bytes, PageSize pages) {
  CHECK(bytes >= 0);
  HostBuffer buffer;
  if (bytes == 0) return buffer;
  buffer.data_ = map_pages(bytes, pages);
  if (buffer.data_ == nullptr) return refused(bytes);
  buffer.size_bytes_ = buffer.mapped_bytes_ = bytes;
  return buffer;
}

Result<HostBuffer> HostBuffer::reserve(int64_t capacity_bytes) {
  CHECK(capacity_bytes > 0);
  HostBuffer buffer;
  buffer.data_ = reserve_pages(capacity_bytes);
  if (buffer.data_ == nullptr) return refused(capacity_bytes);
  buffer.mapped_bytes_ = capacity_bytes;
  return buffer;
}

Status HostBuffer::resize(int64_t bytes) {
  CHECK(bytes >= 0 && bytes <= mapped_bytes_);
  const int64_t page = page_bytes();
  const auto up = [&](int64_t size) { return (size + page - 1) / page * page; };
  const int64_t held = up(size_bytes_), wanted = up(bytes);
  if (wanted > held && !commit_pages(data_ + held, wanted - held)) return refused(bytes);
  if (wanted < held) decommit_pages(data_ + wanted, held - wanted);
  size_bytes_ = bytes;
  return {};
}

}  // namespace loralei
