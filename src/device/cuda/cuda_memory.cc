// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_memory.h"

#include "device/cuda/runtime.h"

namespace loralei {

using cuda_runtime::CopyKind;

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cuda_runtime::release(data_);
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Result<DeviceBuffer> DeviceBuffer::allocate(int64_t bytes) {
  CHECK(bytes >= 0);
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  TRY_ASSIGN(void* memory, cuda_runtime::allocate(bytes));
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_bytes_ = bytes;
  return buffer;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cuda_runtime::release_pinned(data_);
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Result<PinnedBuffer> PinnedBuffer::allocate(int64_t bytes) {
  CHECK(bytes >= 0);
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  TRY_ASSIGN(void* memory, cuda_runtime::allocate_pinned(bytes));
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_bytes_ = bytes;
  return buffer;
}

Status copy_to_device(void* device, const void* host, int64_t bytes, CudaStream& stream) {
  if (bytes == 0) return {};
  return cuda_runtime::copy(device, host, bytes, CopyKind::kHostToDevice, stream.handle());
}

Status copy_to_host(void* host, const void* device, int64_t bytes, CudaStream& stream) {
  if (bytes == 0) return {};
  return cuda_runtime::copy(host, device, bytes, CopyKind::kDeviceToHost, stream.handle());
}

Status copy_on_device(void* to, const void* from, int64_t bytes, CudaStream& stream) {
  if (bytes == 0) return {};
  return cuda_runtime::copy(to, from, bytes, CopyKind::kDeviceToDevice, stream.handle());
}

Status fill_on_device(void* to, int byte, int64_t bytes, CudaStream& stream) {
  if (bytes == 0) return {};
  return cuda_runtime::fill(to, byte, bytes, stream.handle());
}

}  // namespace loralei
