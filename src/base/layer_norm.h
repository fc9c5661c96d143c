// SPDX-License-Identifier: Apache-2.0
// The norms that a layer of a model may have: before and behind each of its two blocks,
// and of queries and keys. Which of them a model has its ModelConfig says.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loralei {

enum class LayerNorm : uint8_t {
  kInput,         // of what attention reads
  kAttentionOut,  // of what attention adds to the stream
  kFfnInput,
  kFfnOut,
  kQ,
  kK
};
inline constexpr size_t kLayerNorms = 6;

}  // namespace loralei
