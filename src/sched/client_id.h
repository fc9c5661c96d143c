// SPDX-License-Identifier: Apache-2.0
// ClientId: who sends requests, as an opaque number. Whoever makes it (serve/, of API
// keys) knows what it stands for; 0: everybody who is not told apart.
#pragma once

#include "base/ids.h"

namespace loralei {

struct ClientTag;
using ClientId = StrongId<ClientTag, uint64_t>;

}  // namespace loralei
