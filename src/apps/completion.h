// SPDX-License-Identifier: Apache-2.0
// What shells complete behind `loralei`, as a script of each shell, from the table of
// options: commands, options, the words that an option takes, and files where it takes
// anything else. Pure functions.
#pragma once

#include <string>

#include "apps/command_table.h"
#include "base/result.h"

namespace loralei {

// `shell`: bash, zsh or fish; another one is an error.
Result<std::string> completion_script(const CommandRow& program, const std::string& shell);

}  // namespace loralei
