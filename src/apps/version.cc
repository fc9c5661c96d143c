// SPDX-License-Identifier: Apache-2.0
#include "apps/version.h"

namespace loralei {

const char* version_string() { return LORALEI_VERSION; }
const char* commit_string() { return LORALEI_COMMIT; }
const char* build_string() { return LORALEI_BUILD; }

}  // namespace loralei
