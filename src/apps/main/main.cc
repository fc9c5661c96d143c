// SPDX-License-Identifier: Apache-2.0
// The command line's entry: commands, --version, --config.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "apps/options.h"
#include "apps/version.h"

int main(int argc, char** argv) {
  using namespace loralei;
  CLI::App app("Loralei: one server, one base model, many LoRA adapters in every batch.", "loralei");
  app.set_version_flag("--version", std::string(version_string()) + " (" + commit_string() + ", " + build_string() + ")");
  app.require_subcommand(1);
  app.fallthrough(false);
  int exit_code = 0;
  try {
    add_serve_command(app, exit_code);
    add_run_command(app, exit_code);
    add_inspect_command(app, exit_code);
    add_bench_command(app, exit_code);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loralei: %s\n", error.what());
    return 1;
  }
  return exit_code;
}
