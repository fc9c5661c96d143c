// SPDX-License-Identifier: Apache-2.0
// The command line's entry: commands, --version, --config.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "apps/options.h"
#include "apps/version.h"

int main(int argc, char** argv) {
  using namespace loralei;
  CLI::App app("Loralei: one server, one base model, many LoRA adapters in every batch.", "loralei");
  app.set_version_flag("--version",
                       std::string(version_string()) + " (" + commit_string() + ", " + build_string() + ")");
  app.get_formatter()->column_width(46);  // most options on one line
  app.require_subcommand(1);
  app.fallthrough(false);
  int exit_code = 0;
  try {
    add_serve_command(app, exit_code);
    add_run_command(app, exit_code);
    add_inspect_command(app, exit_code);
    add_pack_command(app, exit_code);
    add_bench_command(app, exit_code);
    add_profile_command(app, exit_code);
    // Short options of two letters, as llama.cpp and vLLM have them; the parser knows one-letter ones.
    static const std::map<std::string, std::string> kLongNames = {
        {"-np", "--parallel"},      {"-ngl", "--n-gpu-layers"},        {"-ub", "--ubatch-size"},
        {"-cb", "--cont-batching"}, {"-tp", "--tensor-parallel-size"}, {"-pp", "--pipeline-parallel-size"}};
    std::vector<std::string> words(argv + 1, argv + argc);
    for (std::string& word : words) {
      if (const auto found = kLongNames.find(word); found != kLongNames.end()) word = found->second;
    }
    const auto is_first = [&words](const CLI::App* command) { return command->get_name() == words[0]; };
    if (words.empty() || (!words[0].starts_with('-') && app.get_subcommands(is_first).empty())) {
      std::fprintf(stderr, "%s%s", words.empty() ? "" : ("loralei: there is no command '" + words[0] + "'\n").c_str(),
                   app.help().c_str());
      return 1;
    }
    std::reverse(words.begin(), words.end());  // as the parser wants them
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loralei: %s\n", error.what());
    return 1;
  }
  return exit_code;
}
