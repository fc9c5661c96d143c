// SPDX-License-Identifier: Apache-2.0
// An adapter as a run of bytes, for ranks in other processes: what steps read of it. They
// need no files, and have what rank 0 has checked.
//
//   head | pairs | norms | token ids | arrays, each at a multiple of 64
//
// Pointers travel as offsets from the first byte.
// Thread: any. Ownership: a received adapter owns a copy of the bytes.
// Failure: bytes that are no adapter of this model (kInternal: another program's rank).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "adapters/adapter.h"
#include "base/result.h"
#include "engine/emulated/adapter_copy.h"

namespace loralei {

size_t adapter_message_bytes(const Adapter& adapter, const CopyShape& shape);
// `to`: of so many bytes, at a multiple of 8.
void write_adapter_message(const Adapter& adapter, const CopyShape& shape, std::span<std::byte> to);
// Its storage is in `storage` of the adapter.
Result<Adapter> read_adapter_message(std::span<const std::byte> bytes, const CopyShape& shape);

}  // namespace loralei
