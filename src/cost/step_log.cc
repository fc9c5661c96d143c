// SPDX-License-Identifier: Apache-2.0
#include "cost/step_log.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace loralei {
namespace {

constexpr std::string_view kHead =
    "step,begin_ns,ns,waited_ns,prefill_rows,decode_rows,prefill_attended,decode_attended,logits_rows,adapters,rank_"
    "sum,rank_max,"
    "lora_rows,lora_row_ranks,waiting,admitted";
constexpr size_t kNumbers = 15;  // before `admitted`
constexpr size_t kAdmittedMax = 65536;

Error at_line(const std::string& place, int64_t line, const std::string& what) {
  return corrupt(place + ":" + std::to_string(line) + ": " + what);
}

// The number before the first of `ends`, which goes with it; false: there is none.
template <typename Int>
bool take_number(std::string_view& text, char end, Int& out) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || out < 0) return false;
  text.remove_prefix(static_cast<size_t>(stop - text.data()));
  if (text.empty()) return end == '\0';
  if (text.front() != end) return false;
  text.remove_prefix(1);
  return true;
}

bool take_admitted(std::string_view text, std::vector<RequestId>& admitted) {
  while (!text.empty()) {
    int64_t id = 0;
    const bool is_last = text.find(' ') == std::string_view::npos;
    if (admitted.size() == kAdmittedMax || !take_number(text, is_last ? '\0' : ' ', id)) return false;
    admitted.push_back(RequestId{static_cast<uint64_t>(id)});
  }
  return true;
}

bool parse_line(std::string_view line, StepRecord& record) {
  int64_t step = 0;
  StepFeatures& features = record.features;
  const bool numbers =
      take_number(line, ',', step) && take_number(line, ',', record.begin_ns) && take_number(line, ',', record.ns) &&
      take_number(line, ',', record.waited_ns) && take_number(line, ',', features.prefill_rows) &&
      take_number(line, ',', features.decode_rows) && take_number(line, ',', features.prefill_attended) &&
      take_number(line, ',', features.decode_attended) && take_number(line, ',', features.logits_rows) &&
      take_number(line, ',', features.adapters) && take_number(line, ',', features.rank_sum) &&
      take_number(line, ',', features.rank_max) && take_number(line, ',', features.lora_rows) &&
      take_number(line, ',', features.lora_row_ranks) && take_number(line, ',', record.waiting);
  record.step = static_cast<uint64_t>(step);
  return numbers && take_admitted(line, record.admitted);
}

}  // namespace

std::string step_log_head() { return std::string(kHead); }

std::string step_log_line(const StepRecord& record) {
  const StepFeatures& features = record.features;
  const std::array<int64_t, kNumbers> numbers = {static_cast<int64_t>(record.step),
                                                 record.begin_ns,
                                                 record.ns,
                                                 record.waited_ns,
                                                 features.prefill_rows,
                                                 features.decode_rows,
                                                 features.prefill_attended,
                                                 features.decode_attended,
                                                 features.logits_rows,
                                                 features.adapters,
                                                 features.rank_sum,
                                                 features.rank_max,
                                                 features.lora_rows,
                                                 features.lora_row_ranks,
                                                 record.waiting};
  std::string line;
  line.reserve(160);
  for (const int64_t number : numbers) (line += std::to_string(number)) += ',';
  for (const RequestId id : record.admitted) {
    if (line.back() != ',') line += ' ';
    line += std::to_string(id.value);
  }
  return line;
}

Result<std::vector<StepRecord>> parse_step_log(std::string_view text, const std::string& place) {
  std::vector<StepRecord> records;
  int64_t number = 0;
  bool headed = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    if (!headed) {
      if (line != kHead)
        return at_line(place, number, "a step log begins with the line \"" + std::string(kHead) + "\"");
      headed = true;
      continue;
    }
    StepRecord record;
    if (!parse_line(line, record)) {
      return at_line(place, number,
                     "a step is " + std::to_string(kNumbers) +
                         " whole numbers with commas behind them, then the ids of what was admitted");
    }
    if (!records.empty() && record.step <= records.back().step)
      return at_line(place, number, "steps must ascend; are two logs in one file?");
    records.push_back(std::move(record));
  }
  if (!headed) return at_line(place, 1, "it is empty; a step log begins with the line \"" + std::string(kHead) + "\"");
  return records;
}

StepLog::StepLog(int descriptor)
    : writer_(descriptor,
              [](uint64_t count) { return "# " + std::to_string(count) + " lines were lost: the disk was too slow"; },
              {}) {
  writer_.push(step_log_head());
}

Result<std::unique_ptr<StepLog>> StepLog::create(const std::string& path) {
  TRY_ASSIGN(const int descriptor, open_for_lines(path));
  return std::unique_ptr<StepLog>(new StepLog(descriptor));
}

}  // namespace loralei
