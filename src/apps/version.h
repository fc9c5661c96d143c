// SPDX-License-Identifier: Apache-2.0
// What was built: constants, any thread.
#pragma once

namespace loralei {

const char* version_string();  // "0.2.0"
const char* commit_string();   // short commit, or "unknown" outside a checkout
const char* build_string();    // compiler and build type

}  // namespace loralei
