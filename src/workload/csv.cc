// SPDX-License-Identifier: Apache-2.0
#include "workload/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/printable.h"
#include "sys/file.h"
#include "workload/packed_file.h"

namespace loralei {

Result<CsvTable> CsvTable::read(const std::string& path) {
  TRY(check_not_packed(path));
  TRY_ASSIGN(std::string text, PosixFileSystem().read_all(path, kCsvBytesMax));
  CsvTable table;
  table.path_ = path;
  table.text_ = std::make_unique<const std::string>(std::move(text));
  std::string_view rest = *table.text_;
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) TRY(table.add_line(line, number));
  }
  if (table.rows() == 0)
    return corrupt(path + ": the file holds no rows. Its first line names the columns, the others are rows.");
  return table;
}

Status CsvTable::add_line(std::string_view line, int64_t number) {
  const std::string place = path_ + ":" + std::to_string(number);
  if (line.find('"') != std::string_view::npos)
    return unsupported(place + ": the line holds a quote. Cells with quotes are not read; write them without.");
  const bool first = names_.empty();
  std::vector<std::string_view>& cells = first ? names_ : cells_;
  const size_t before = cells.size();
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = line.find(',', begin);
    cells.push_back(line.substr(begin, end == std::string_view::npos ? end : end - begin));
  }
  if (first) return {};
  if (const size_t count = cells.size() - before; count != names_.size())
    return corrupt(place + ": the line has " + std::to_string(count) + " cells, and the first line names " +
                   std::to_string(names_.size()) + " columns.");
  lines_.push_back(number);
  return {};
}

std::optional<size_t> CsvTable::column(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) return std::nullopt;
  return static_cast<size_t>(found - names_.begin());
}

Result<size_t> CsvTable::need_column(std::string_view name) const {
  if (const auto found = column(name)) return *found;
  return corrupt(path_ + ":1: there is no column " + std::string(name) + ". The columns are " + column_names() + ".");
}

std::string CsvTable::column_names() const {
  std::string text;
  for (const std::string_view name : names_) text += (text.empty() ? "" : ", ") + std::string(name);
  return printable(text, 500);
}

Result<double> CsvTable::number(size_t row, size_t column, double low, double high) const {
  const auto number = parse_number(cell(row, column));
  if (number && *number >= low && *number <= high) return *number;
  return wrong(row, column, "a number from " + number_text(low) + " to " + number_text(high));
}

Error CsvTable::wrong(size_t row, size_t column, const std::string& wanted) const {
  return corrupt(path_ + ":" + std::to_string(lines_[row]) + ": the column " + printable(names_[column], 80) +
                 " holds '" + printable(cell(row, column), 80) + "', which is not " + wanted + ".");
}

std::optional<double> parse_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::string number_text(double number) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

}  // namespace loralei
