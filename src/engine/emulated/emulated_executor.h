// SPDX-License-Identifier: Apache-2.0
// The executor that computes steps on the cores as a device would: with adapters that lie
// in the device's memory and a KV cache of its own there.
//
// Thread: as Executor.
// Ownership: owns the tier; borrows model, blocks and the ledger that grants its results
// in host memory, all of which outlive it.
// Invariants: a step reads the tier's copies alone; of those that are on their way it
// waits for layers, or has helpers compute them. One that names a version which has no
// place there is a defect (CHECK). Answers are those of the host executor, bit for bit.
// Failure: as the host executor's; accepts() refuses what would not fit the tier.
#pragma once

#include <memory>

#include "engine/emulated/emulated_tier.h"
#include "engine/executor.h"
#include "engine/layer_assist.h"
#include "kv/block_pool.h"

namespace loralei {

// `assist`: helpers for what is on its way; null: none.
std::unique_ptr<Executor> make_emulated_executor(Model& model, const ModelLimits& limits, const BlockPool& kv,
                                                 std::unique_ptr<EmulatedTier> tier, Ledger& ledger,
                                                 std::unique_ptr<LayerAssist> assist = nullptr);

}  // namespace loralei
