// SPDX-License-Identifier: Apache-2.0
// DeviceBuffer and PinnedBuffer: memory of a GPU, and host memory it copies from and to
// without a detour; and the copies.
//
// Thread: allocate on the thread whose device is meant; the buffers are plain
// move-only values.
// Ownership: each owns its memory; no work that uses it may still be queued
// when it is dropped.
// Invariants: memory is aligned to 256 bytes and holds anything.
// Failure: allocate answers kOverloaded with the size when there is no room. Copies
// are put on the stream and return at once: both sides stay as they are until the
// stream got there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"
#include "device/cuda/cuda_stream.h"

namespace loralei {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  static Result<DeviceBuffer> allocate(int64_t bytes);  // 0 gives an empty buffer
  std::byte* data() const { return data_; }             // not for the host to read
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  static Result<PinnedBuffer> allocate(int64_t bytes);
  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

Status copy_to_device(void* device, const void* host, int64_t bytes, CudaStream& stream);
Status copy_to_host(void* host, const void* device, int64_t bytes, CudaStream& stream);
Status copy_on_device(void* to, const void* from, int64_t bytes, CudaStream& stream);
Status fill_on_device(void* to, int byte, int64_t bytes, CudaStream& stream);

}  // namespace loralei
