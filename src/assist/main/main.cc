// SPDX-License-Identifier: Apache-2.0
// assist_helper: a helper process as a program of its own, for tests and benches; the
// server starts itself with a first word of its own instead.
#include <cstdlib>

#include "assist/assist_helper.h"

// No destructors: they have nothing to say, and a sanitizer's last look at the memory
// wants rights that a helper has given up.
int main() { std::_Exit(loralei::run_assist_helper()); }
