// SPDX-License-Identifier: Apache-2.0
// What an engine's KV on disk is (--kv-dir): how much of it, and of which bytes.
//
// Thread: pure functions. No failure.
#pragma once

#include <string>

#include "base/digest.h"
#include "engine/api.h"
#include "formats/model_config.h"
#include "kv/block_pool.h"
#include "kv/kv_disk.h"

namespace loralei {

// All but format and grid. Buffers are small beside a small cache.
KvDiskOptions kv_disk_sizes(const EngineOptions& options, const KvShape& shape);
// Of all that the bytes of a block depend on beside its text and identity, in this
// process and in any other: build, weights and kernels (EngineParts::fingerprint),
// config, how adapters are held (a version is of their files), shape and number format,
// positions.
Digest kv_disk_format(const std::string& fingerprint, const EngineOptions& options, const ModelConfig& config,
                      const KvShape& shape, int64_t max_model_len);

}  // namespace loralei
