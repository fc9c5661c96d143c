// SPDX-License-Identifier: Apache-2.0
// The command line's entry: commands, --version, --config.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
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
    // llama.cpp's only two-letter short option; the parser knows one-letter ones.
    std::vector<std::string> words(argv + 1, argv + argc);
    std::replace(words.begin(), words.end(), std::string("-np"), std::string("--parallel"));
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
