// SPDX-License-Identifier: Apache-2.0
// Options of other servers that this one needs not or has otherwise: what their users type beside the options known
// here. Hidden from --help. Each is accepted where it asks for what is so anyway, and `notes` gets a sentence for the
// log; else it is refused with a sentence that says what to type instead. One thread, at start; `notes` outlives the
// command.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace loralei {

void add_foreign_options(CLI::App& command, std::vector<std::string>& notes);

}  // namespace loralei
