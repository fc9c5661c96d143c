// SPDX-License-Identifier: Apache-2.0
#include "model/linear_state.h"

namespace loralei {

int64_t state_floats(const ModelConfig&) { return 0; }

}  // namespace loralei
