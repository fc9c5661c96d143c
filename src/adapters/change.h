// SPDX-License-Identifier: Apache-2.0
// How much an adapter changes its base.
//
// Pure, any thread; a few hundred KiB of working memory, whatever the adapter.
#pragma once

#include "adapters/adapter.h"

namespace loralei {

// False: in every module one of its factors, or the scaling, is zero, and nothing of the
// base is replaced. Looks no further than at the first number that says otherwise.
bool changes_something(const Adapter& adapter);

// Frobenius norm of scaling * B * A over all pairs, as one vector; infinite where f32
// does not hold it. Cost: of each pair rank^2 * (in + out) / 2 multiplications, done by
// vectors.
double change_norm(const Adapter& adapter);

}  // namespace loralei
