// SPDX-License-Identifier: Apache-2.0
// The command line's entry: commands, --version, --config.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/command_words.h"
#include "apps/options.h"
#include "apps/version.h"
#include "assist/assist_helper.h"
#include "base/printable.h"

namespace loralei {
namespace {

constexpr int kUsage = 2;  // the exit status of what was typed wrong

// A word that looks like an option and is none, with the one that may be meant.
Status check_names(const CLI::App& command, const std::vector<std::string>& words) {
  const std::vector<std::string> known = option_names(command);
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || name.size() < 3) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = nearest_name(name, known);
    return invalid_argument("there is no option " + name + (nearest.empty() ? "" : "; did you mean " + nearest + "?") +
                            (nearest.empty() ? "; " : " ") + "All are listed by: loralei " + command.get_name() +
                            (command.get_option_no_throw("--help-all") ? " --help-all" : " --help"));
  }
  return {};
}

Status read_words(const CLI::App& command, std::vector<std::string>& words, std::vector<std::string>& notes) {
  if (command.get_name() == "serve" || command.get_name() == "run") {
    TRY_ASSIGN(CommandWords read, read_command_words(words, option_names(command)));
    words = std::move(read.words);
    notes = std::move(read.notes);
    note_unknown_variables(command, notes);  // for the log
  } else {
    std::vector<std::string> unknown;
    note_unknown_variables(command, unknown);
    for (const std::string& note : unknown)
      std::fprintf(stderr, "loralei %s: %s\n", command.get_name().c_str(), printable(note).c_str());
  }
  return check_names(command, words);
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) {
  using namespace loralei;
  // A part of a server, started by it: no command, so that it stands in no help.
  if (argc > 1 && std::string_view(argv[1]) == kAssistHelperWord) std::_Exit(run_assist_helper());
  CLI::App app("Loralei: one server, one base model, many LoRA adapters in every batch.", "loralei");
  app.set_version_flag("--version",
                       std::string(version_string()) + " (" + commit_string() + ", " + build_string() + ")");
  app.get_formatter()->column_width(46);  // most options on one line
  app.require_subcommand(1);
  app.fallthrough(false);
  int exit_code = 0;
  std::vector<std::string> notes;
  try {
    add_serve_command(app, exit_code, notes);
    add_run_command(app, exit_code, notes);
    add_chat_command(app, exit_code);
    add_inspect_command(app, exit_code);
    add_pack_command(app, exit_code);
    add_pull_command(app, exit_code);
    add_list_command(app, exit_code);
    add_calibrate_kv_command(app, exit_code);
    add_bench_command(app, exit_code);
    add_profile_command(app, exit_code);
    add_workload_command(app, exit_code);
    add_simulate_command(app, exit_code);
    add_report_command(app, exit_code);
    add_route_command(app, exit_code);
    add_pages_commands(app, exit_code);
    add_environment(app);
    std::vector<std::string> words(argv + 1, argv + argc);
    const auto is_first = [&words](const CLI::App* command) { return command->get_name() == words[0]; };
    const auto chosen = words.empty() ? std::vector<CLI::App*>() : app.get_subcommands(is_first);
    if (words.empty() || (!words[0].starts_with('-') && chosen.empty())) {
      std::fprintf(stderr, "%s%s", words.empty() ? "" : ("loralei: there is no command '" + words[0] + "'\n").c_str(),
                   app.help().c_str());
      return kUsage;
    }
    if (!chosen.empty()) {
      if (const Status status = read_words(*chosen.front(), words, notes); !status.ok()) {
        print_error(words[0].c_str(), status.error());
        return kUsage;
      }
    }
    std::reverse(words.begin(), words.end());  // as the parser wants them
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loralei: %s\n", error.what());
    return 1;
  }
  return exit_code;
}
