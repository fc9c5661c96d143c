// SPDX-License-Identifier: Apache-2.0
// loralei man, loralei completion: what packages and shells take from the table of
// options.
#include <cstdio>
#include <memory>
#include <string>

#include "apps/command_table.h"
#include "apps/completion.h"
#include "apps/man_page.h"
#include "apps/options.h"
#include "apps/version.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

struct PagesFlags {
  std::string folder, shell;
};

Status write_pages(const CLI::App& app, const std::string& folder) {
  for (const ManPage& page : man_pages(describe_command(app, app.get_name()), version_string()))
    TRY(put_file(folder + "/" + page.file, page.text));
  return {};
}

Status print_completion(const CLI::App& app, const std::string& shell) {
  TRY_ASSIGN(const std::string script, completion_script(describe_command(app, app.get_name()), shell));
  std::fputs(script.c_str(), stdout);
  return {};
}

}  // namespace

void add_pages_commands(CLI::App& app, int& exit_code) {
  const auto flags = std::make_shared<PagesFlags>();
  const auto end = [&exit_code](const char* command, const Status& status) {
    if (status.ok()) return;
    print_error(command, status.error());
    exit_code = 1;
  };
  CLI::App* completion =
      app.add_subcommand("completion", "Prints what a shell needs to complete commands and options.");
  completion->add_option("shell", flags->shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&app, flags, end] { end("completion", print_completion(app, flags->shell)); });
  CLI::App* man = app.add_subcommand("man", "Writes the manual pages into a folder.");
  man->group("");  // packages call it
  man->add_option("folder", flags->folder, "an existing folder")->required();
  man->callback([&app, flags, end] { end("man", write_pages(app, flags->folder)); });
}

}  // namespace loralei
