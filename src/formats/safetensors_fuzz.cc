// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file and as a shard index: refused or read, and what is read
// keeps its promises.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = loralei::parse_safetensors(bytes, static_cast<int64_t>(size), "fuzz");
  if (header.ok()) {
    for (const loralei::TensorInfo& tensor : header->tensors) {
      CHECK(tensor.offset >= 0 && tensor.bytes >= 0 && tensor.offset + tensor.bytes <= static_cast<int64_t>(size));
      int64_t count = 1;
      for (const int64_t dim : tensor.shape) count *= dim;
      CHECK(count * loralei::dtype_info(tensor.dtype).block_bytes == tensor.bytes);
    }
  }
  const auto shards = loralei::parse_shard_index(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (shards.ok()) {
    for (const auto& [name, file] : *shards) CHECK(file.find('/') == std::string::npos && file != "..");
  }
  return 0;
}
