// SPDX-License-Identifier: Apache-2.0
#include "workload/spec.h"

#include <cmath>
#include <string_view>

#include "base/printable.h"
#include "workload/csv.h"

namespace loralei {

WorkloadSpec parse_workload_spec(const std::string& text, size_t numbers_max) {
  WorkloadSpec spec{.text = text, .kind = text.substr(0, text.find(':'))};
  std::string_view rest = text;
  rest.remove_prefix(std::min(spec.kind.size() + 1, rest.size()));
  while (!rest.empty() && spec.numbers.size() < numbers_max) {
    const std::string_view part = rest.substr(0, rest.find(':'));
    const auto number = parse_number(part);
    if (!number) break;
    spec.numbers.push_back(*number);
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  }
  spec.file = std::string(rest);
  return spec;
}

Error wrong_spec(const char* what, const WorkloadSpec& spec, const std::string& sentence) {
  return invalid_argument(std::string(what) + " '" + printable(spec.text, 200) + "': " + sentence);
}

Result<double> spec_number(const char* what, const WorkloadSpec& spec, size_t index, const char* name, double low,
                           double high) {
  if (index >= spec.numbers.size()) return wrong_spec(what, spec, std::string("the number ") + name + " is missing.");
  const double number = spec.numbers[index];
  if (number >= low && number <= high) return number;
  return wrong_spec(what, spec,
                    std::string(name) + " is " + number_text(number) + "; it must be from " + number_text(low) +
                        " to " + number_text(high) + ".");
}

Result<int64_t> spec_count(const char* what, const WorkloadSpec& spec, size_t index, const char* name, int64_t low,
                           int64_t high) {
  TRY_ASSIGN(const double number,
             spec_number(what, spec, index, name, static_cast<double>(low), static_cast<double>(high)));
  if (number == std::floor(number)) return static_cast<int64_t>(number);
  return wrong_spec(what, spec, std::string(name) + " is " + number_text(number) + "; it must be a whole number.");
}

}  // namespace loralei
