// SPDX-License-Identifier: Apache-2.0
// How much an adapter changes its base.
//
// Pure, any thread; a few hundred KiB of working memory, whatever the adapter. Cost: of
// each pair rank^2 * (in + out) / 2 multiplications, done by vectors.
#pragma once

#include "adapters/adapter.h"

namespace loralei {

struct AdapterChange {
  // Frobenius norm of scaling * B * A over all pairs, as one vector; infinite where
  // f32 does not hold it.
  double norm = 0;
  // False: every product is zero and nothing of the base is replaced.
  bool some = false;
};
AdapterChange change_of(const Adapter& adapter, const ModelConfig& config);

}  // namespace loralei
