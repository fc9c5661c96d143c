// SPDX-License-Identifier: Apache-2.0
// The table of options as plain data: what --help, manual pages and completions of shells
// are written from. Pure functions on the command line's description; one thread, at
// start.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace loralei {

struct OptionRow {
  std::vector<std::string> names;    // with their dashes; of a positional one its name alone
  std::string value;                 // what stands behind it: TEXT, INT, FLOAT; empty: nothing
  std::vector<std::string> choices;  // where only these are taken
  std::string range;                 // "0 - 86400"
  std::string description, default_value, variable, group;
  bool required = false, repeated = false;
};

struct CommandRow {
  std::string path;  // "loralei serve"
  std::string description;
  std::vector<OptionRow> positionals, options;
  std::vector<CommandRow> below;
};

// What is hidden from --help stands in no row.
CommandRow describe_command(const CLI::App& command, const std::string& path);

}  // namespace loralei
