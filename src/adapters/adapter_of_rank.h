// SPDX-License-Identifier: Apache-2.0
// What one of several ranks has of an adapter (parallel/shard.h): views of the whole one.
//
//   q k v gate up   A whole, B of the rank's outputs
//   o down          A of the rank's inputs, B whole: the parts of x A B add up with those
//                   of the base's product, before their one sum. Biases are rank 0's
//   lm_head, embed  whole
//
// Pure functions, any thread. Ownership: a part borrows the bytes, which the whole
// adapter's storage keeps.
// Failure: an int8 factor whose groups the borders cut.
#pragma once

#include "adapters/adapter.h"
#include "base/result.h"
#include "formats/model_config.h"
#include "parallel/shard.h"

namespace loralei {

// `config`: the whole model's, which is known to divide.
Status check_adapter_parts(const Adapter& adapter, const ModelConfig& config, int size);
LoraPair pair_of_rank(const LoraPair& pair, Module module, const Shard& shard);
Adapter adapter_of_rank(const Adapter& adapter, const Shard& shard);

}  // namespace loralei
