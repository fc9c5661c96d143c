// SPDX-License-Identifier: Apache-2.0
#include "apps/report_output.h"

#include <algorithm>

#include "base/units.h"
#include "bench/report_page.h"
#include "sys/cpu.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

bool is_secret(std::string_view option) {
  for (const char* part : {"key=", "token=", "secret=", "password="})
    if (option.starts_with("--") && (std::string(option) + "=").find(part) != std::string::npos) return true;
  return false;
}

std::string quoted(std::string_view word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

void add_report_options(CLI::App& command, ReportFlags& flags) {
  command.add_option("--json", flags.json, "write the report as JSON");
  command.add_option("--report,--html", flags.page, "write the report as one HTML page with charts");
}

std::map<std::string, std::string> stated_options(const CLI::App& command, std::string_view words) {
  std::map<std::string, std::string> typed;  // by the name that was typed
  std::string open;
  while (!words.empty()) {
    const size_t end = std::min(words.find('\0'), words.size());
    const std::string word(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
    const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    if (!open.empty()) typed[open] = word;
    open = word.starts_with("--") && equals == std::string::npos ? word : "";
    if (equals != std::string::npos) typed[word.substr(0, equals)] = word.substr(equals + 1);
  }
  std::map<std::string, std::string> stated;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    std::string& value = stated[option->get_name()] = CLI::detail::join(option->results(), ",");
    if (is_secret(option->get_name())) value = "...";
    if (is_secret(option->get_name()) || option->count() > 1 || option->get_items_expected_max() == 0) continue;
    for (const std::string& name : option->get_lnames())
      if (const auto found = typed.find("--" + name); found != typed.end()) value = found->second;
  }
  return stated;
}

std::map<std::string, std::string> stated_options(const CLI::App& command) {
  return stated_options(command, read_system_text("/proc/self/cmdline").value_or(""));
}

void say_where(BenchReport& report) {
  report.time = report_time();
  report.machine = {{"cpu", cpu_model_name()},
                    {"cores", std::to_string(usable_cpus())},
                    {"isa", isa_text(detect_isa())},
                    {"memory", format_bytes(total_memory_bytes())}};
  report.command = own_command();
}

Status write_report_json(const ReportFlags& flags, const BenchReport& report) {
  return flags.json.empty() ? Status() : put_file(flags.json, report_json(report));
}

Status write_report_page(const ReportFlags& flags, const BenchReport& report) {
  return flags.page.empty() ? Status() : put_file(flags.page, report_html(report));
}

std::string typed_command(std::string_view words) {
  std::string out;
  bool hide = false;
  while (!words.empty()) {
    const size_t end = std::min(words.find('\0'), words.size());
    std::string_view word = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    const size_t equals = word.starts_with("--") ? word.find('=') : std::string_view::npos;
    const bool named = is_secret(word.substr(0, equals));
    std::string shown = hide                                        ? "..."
                        : named && equals != std::string_view::npos ? quoted(word.substr(0, equals)) + "=..."
                                                                    : quoted(word);
    hide = named && equals == std::string_view::npos;
    out += (out.empty() ? "" : " ") + shown;
  }
  return out;
}

std::string own_command() { return typed_command(read_system_text("/proc/self/cmdline").value_or("")); }

}  // namespace loralei
