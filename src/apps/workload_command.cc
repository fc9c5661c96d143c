// SPDX-License-Identifier: Apache-2.0
// loralei workload: makes a file of requests from distributions, traces and a seed, or
// shows what one asks for.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "apps/options.h"
#include "base/printable.h"
#include "workload/generate.h"
#include "workload/summary.h"

namespace loralei {
namespace {

struct WorkloadFlags {
  WorkloadOptions options;
  std::string show, output;
};

Error output_error() { return io_error("Writing to standard output failed; is the disk full?"); }

Status print_text(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return output_error();
  return {};
}

Status print_lines(const Workload& requests) {
  for (const WorkloadRequest& request : requests) TRY(print_text(workload_line(request) + "\n"));
  if (std::fflush(stdout) == 0) return {};
  return output_error();
}

Status make_or_show(const WorkloadFlags& flags) {
  if (!flags.show.empty()) {
    if (!flags.options.arrivals.empty() || !flags.output.empty())
      return invalid_argument("--show tells of a file that is there. Leave --arrivals and --output out.");
    TRY_ASSIGN(const Workload requests, read_workload(flags.show));
    return print_text(summary_text(summarise_workload(requests)));
  }
  if (flags.options.arrivals.empty())
    return invalid_argument("Say when requests come, such as --arrivals poisson:8.7, or --show FILE.");
  TRY_ASSIGN(const Workload requests, make_workload(flags.options));
  if (flags.output.empty()) return print_lines(requests);
  TRY(write_workload(flags.output, requests));
  std::printf("%s, %zu requests in %s seconds\n", printable(flags.output).c_str(), requests.size(),
              seconds_text(requests.back().at_ns).c_str());
  return {};
}

void add_generator_options(CLI::App& command, WorkloadOptions& options) {
  command.add_option("--arrivals", options.arrivals,
                     "poisson:RPS, gamma:RPS:CV, trace:FILE or servegen[:RPS[:CLIENTS[:START]]]:FILE");
  command.add_option("--lengths", options.lengths, "fixed:IN:OUT, draw:FILE (rows by chance) or order:FILE");
  command
      .add_option("--adapters", options.adapters,
                  "none, uniform:N:RANK, powerlaw:N[:ALPHA], functions:N[:sample]:FILE or servegen")
      ->capture_default_str();
  command.add_option("--adapters-shift", options.adapters_shift_s,
                     "every so many seconds the adapters are popular in another order");
  command.add_option("--prefixes", options.prefixes, "documents:N:TOKENS:ALPHA or agents:THINK:FILE");
  command.add_option("--seconds", options.seconds, "requests of so many seconds");
  command.add_option("--count", options.count, "so many requests; with --seconds: at most");
  command.add_option("--rate-scale", options.rate_scale, "so many times as often as --arrivals says")
      ->capture_default_str();
  command.add_option("--length-scale", options.length_scale, "so many times as long as --lengths or agents say")
      ->capture_default_str();
  command.add_option("--max-prompt-tokens", options.prompt_max, "longer prompts are cut to so many");
  command.add_option("--max-output-tokens", options.output_max, "longer answers are cut to so many");
  command.add_option("--seed", options.seed, "of all random draws")->capture_default_str();
}

}  // namespace

void add_workload_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "workload", "Make a file of requests (when, which adapter, how long) from a seed; see docs/workloads.md.");
  auto flags = std::make_shared<WorkloadFlags>();
  add_generator_options(*command, flags->options);
  command->add_option("-o,--output", flags->output, "the file (default: standard output)");
  command->add_option("--show", flags->show, "nothing is made: figures of this file");
  command->callback([flags, &exit_code] {
    const Status status = make_or_show(*flags);
    if (status.ok()) return;
    print_error("workload", status.error());
    exit_code = 1;
  });
}

}  // namespace loralei
