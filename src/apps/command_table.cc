// SPDX-License-Identifier: Apache-2.0
#include "apps/command_table.h"

#include <string_view>
#include <utility>

namespace loralei {
namespace {

// "TEXT:{on,off}", "INT:INT in [0 - 9]": the library's words for a type and what it is
// checked for.
void read_type(std::string_view type, OptionRow& row) {
  row.value = type.substr(0, type.find_first_of(":{["));
  if (const size_t open = type.find('{'); open != type.npos) {
    const std::string_view inside = type.substr(open + 1, type.find('}', open) - open - 1);
    for (size_t begin = 0; begin <= inside.size();) {
      const size_t end = std::min(inside.find(',', begin), inside.size());
      // Of "word->number" the word is typed.
      const std::string_view one = inside.substr(begin, end - begin);
      row.choices.emplace_back(one.substr(0, one.find("->")));
      begin = end + 1;
    }
  } else if (const size_t in = type.find(" in ["); in != type.npos) {
    row.range = type.substr(in + 5, type.find(']', in) - in - 5);
  }
}

std::vector<std::string> dashed_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

OptionRow describe_option(const CLI::Option& option, std::vector<std::string> names) {
  OptionRow row{.names = std::move(names)};
  if (option.get_type_size_max() > 0) read_type(option.get_type_name(), row);
  row.description = option.get_description();
  row.default_value = option.get_default_str();
  row.variable = option.get_envname();
  row.group = option.get_group();
  row.required = option.get_required();
  row.repeated = option.get_items_expected_max() > 1;
  return row;
}

}  // namespace

CommandRow describe_command(const CLI::App& command, const std::string& path) {
  CommandRow row{.path = path, .description = command.get_description()};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    // One may be both: MODEL, or --model MODEL.
    if (option->get_positional()) row.positionals.push_back(describe_option(*option, {option->get_name(true)}));
    if (option->nonpositional()) row.options.push_back(describe_option(*option, dashed_names(*option)));
  }
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!below->get_group().empty()) row.below.push_back(describe_command(*below, path + " " + below->get_name()));
  }
  return row;
}

}  // namespace loralei
