// SPDX-License-Identifier: Apache-2.0
// Manual pages, in the language of man(7), from the table of options. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "apps/command_table.h"

namespace loralei {

struct ManPage {
  std::string file;  // "loralei-serve.1"
  std::string text;
};

// One for the program and one for each command.
std::vector<ManPage> man_pages(const CommandRow& program, const std::string& version);

}  // namespace loralei
