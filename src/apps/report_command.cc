// SPDX-License-Identifier: Apache-2.0
// loralei report: runs beside each other, on one page.
#include <memory>

#include "apps/options.h"
#include "apps/report_output.h"
#include "bench/report_page.h"
#include "sys/file.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

constexpr int64_t kFileBytesMost = int64_t{1} << 27;
constexpr int kFilesMost = 200;

struct CompareFlags {
  std::vector<std::string> files;
  std::string output, title = "Runs beside each other";
};

Status compare(const CompareFlags& flags) {
  std::vector<NamedReport> runs;
  const PosixFileSystem files;
  for (const std::string& path : flags.files) {
    TRY_ASSIGN(const std::string text, files.read_all(path, kFileBytesMost));
    TRY_ASSIGN(BenchReport report, parse_report(text, path));
    runs.push_back({path, std::move(report)});
  }
  return put_file(flags.output, comparison_html(flags.title, own_command(), runs));
}

}  // namespace

void add_report_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "report", "Put runs of bench or simulate beside each other: their JSON files as one HTML page with charts.");
  auto flags = std::make_shared<CompareFlags>();
  command->add_option("files", flags->files, "what --json of bench, profile or simulate wrote")
      ->required()
      ->expected(1, kFilesMost);
  command->add_option("-o,--output", flags->output, "the page")->required();
  command->add_option("--title", flags->title, "of the page")->capture_default_str();
  command->callback([flags, &exit_code] {
    const Status status = compare(*flags);
    if (status.ok()) return;
    print_error("report", status.error());
    exit_code = 1;
  });
}

}  // namespace loralei
