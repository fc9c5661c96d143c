// SPDX-License-Identifier: Apache-2.0
// CsvTable: a file of comma-separated values as published traces are: one line of column
// names, then rows with as many cells, no quotes.
//
// Thread: immutable once read; any thread.
// Ownership: owns the file's bytes; cells are views into them and live as long.
// Failure: "FILE:LINE: what is wrong there".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

inline constexpr int64_t kCsvBytesMax = 1 << 28;

class CsvTable {
 public:
  // Refuses a file without rows. Empty lines are skipped.
  static Result<CsvTable> read(const std::string& path);

  const std::string& path() const { return path_; }
  size_t rows() const { return lines_.size(); }
  std::optional<size_t> column(std::string_view name) const;
  // The column of that name, or an error that lists those there are.
  Result<size_t> need_column(std::string_view name) const;
  std::string_view cell(size_t row, size_t column) const { return cells_[row * names_.size() + column]; }
  // The cell as a number within [low, high].
  Result<double> number(size_t row, size_t column, double low, double high) const;
  // About one cell: "FILE:LINE: the column NAME holds 'X', which is not WANTED."
  Error wrong(size_t row, size_t column, const std::string& wanted) const;
  std::string column_names() const;

 private:
  Status add_line(std::string_view line, int64_t number);

  std::string path_;
  std::unique_ptr<const std::string> text_;
  std::vector<std::string_view> names_, cells_;
  std::vector<int64_t> lines_;  // [rows]: where each stands in the file
};

// The whole text as a finite number.
std::optional<double> parse_number(std::string_view text);
// "2.5", "100": as few digits as tell the number.
std::string number_text(double number);

}  // namespace loralei
