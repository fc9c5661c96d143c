// SPDX-License-Identifier: Apache-2.0
// Automata for JSON numbers, exact for bounds: digit by digit, with no rounding anywhere.
// What they write is a finite double, since readers refuse others or make them infinite:
// at most 100 digits before the point, exponents of -999 to 199, and none beside bounds.
// Multiples are integers of at most 18 digits.
//
// Thread: pure functions on a builder.
// Failure: bounds with more than 18 digits before the point are refused by the
// reader.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "sampling/grammar.h"

namespace loralei::schema {

// A bound in decimal: sign, value before the point, digits behind it (no trailing zeros).
struct Decimal {
  bool negative = false;  // never with zero
  int64_t whole = 0;      // < 10^18
  std::string fraction;
  bool is_zero() const { return whole == 0 && fraction.empty(); }
  auto operator<=>(const Decimal&) const = default;  // an order for maps; by value: compare
};
int compare(const Decimal& a, const Decimal& b);
Result<Decimal> read_decimal(double value);
Result<Decimal> read_decimal(int64_t value);

struct Bound {
  Decimal value;
  bool exclusive = false;
  auto operator<=>(const Bound&) const = default;
};
struct NumberRange {
  std::optional<Bound> low;
  std::optional<Bound> high;
  int64_t multiple_of = 0;  // 0: of nothing; integers only
  bool any() const { return !low && !high && multiple_of == 0; }
  auto operator<=>(const NumberRange&) const = default;
};

// Reads an integer (a number) of the range; `to` is reached behind it. False when
// the range holds none.
bool add_integer(GrammarBuilder& builder, GrammarStateId from, const NumberRange& range, GrammarStateId to);
bool add_number(GrammarBuilder& builder, GrammarStateId from, const NumberRange& range, GrammarStateId to);

inline constexpr int64_t kMaxMultiple = 100;
bool is_writable_multiple(int64_t multiple);  // up to kMaxMultiple but for its zeros

}  // namespace loralei::schema
