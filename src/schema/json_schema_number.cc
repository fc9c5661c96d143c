// SPDX-License-Identifier: Apache-2.0
#include "schema/json_schema_number.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

namespace loralei::schema {

namespace {

constexpr int kMaxWholeDigits = 100;
constexpr int64_t kWholeLimit = 1'000'000'000'000'000'000;

// Up to `count` more digits, then `to`.
void add_more_digits(GrammarBuilder& b, GrammarStateId from, int count, GrammarStateId to) {
  b.add_empty(from, to);
  for (int i = 0; i < count; ++i) {
    from = b.range(from, '0', '9');
    b.add_empty(from, to);
  }
}

// 0 or a digit 1 .. 9 and further ones, then `to`.
void add_any_whole(GrammarBuilder& b, GrammarStateId from, GrammarStateId to) {
  b.add_range(from, '0', '0', to);
  add_more_digits(b, b.range(from, '1', '9'), kMaxWholeDigits - 1, to);
}

// e or E, a sign and up to three digits, then `to`: -999 .. 199, so that with
// kMaxWholeDigits before the point the number is below 10^299.
void add_exponent(GrammarBuilder& b, GrammarStateId from, GrammarStateId to) {
  const GrammarStateId mark = b.range(from, 'e', 'e');
  b.add_range(from, 'E', 'E', mark);
  const GrammarStateId positive = b.add_state();
  b.add_empty(mark, positive);
  b.add_range(mark, '+', '+', positive);
  const GrammarStateId first = b.range(positive, '0', '1');
  add_more_digits(b, first, 2, to);
  add_more_digits(b, b.range(positive, '2', '9'), 1, to);
  const GrammarStateId negative = b.range(b.range(mark, '-', '-'), '0', '9');
  add_more_digits(b, negative, 2, to);
}

// Numbers of `low`'s length between the digit strings low and high (same
// length), then `to`.
void add_same_length(GrammarBuilder& b, GrammarStateId from, const std::string& low, const std::string& high,
                     GrammarStateId to) {
  const size_t size = low.size();
  // States by how the digits so far compare: on both bounds, on the lower, on
  // the upper, between.
  GrammarStateId both = from;
  std::optional<GrammarStateId> on_low;
  std::optional<GrammarStateId> on_high;
  std::optional<GrammarStateId> between;
  bool on_both = true;
  for (size_t i = 0; i < size; ++i) {
    const char lo = low[i];
    const char hi = high[i];
    const bool last = i + 1 == size;
    const auto fresh = [&] { return last ? to : b.add_state(); };
    std::optional<GrammarStateId> next_low;
    std::optional<GrammarStateId> next_high;
    std::optional<GrammarStateId> next_between;
    const auto between_state = [&] {
      if (!next_between) next_between = fresh();
      return *next_between;
    };
    const auto add = [&](GrammarStateId state, char first, char final_digit, GrammarStateId target) {
      if (first <= final_digit)
        b.add_range(state, static_cast<uint8_t>(first), static_cast<uint8_t>(final_digit), target);
    };
    if (on_both && lo == hi) {
      const GrammarStateId next = fresh();
      add(both, lo, lo, next);
      both = next;
      continue;
    }
    if (on_both) {
      next_low = fresh();
      next_high = fresh();
      add(both, lo, lo, *next_low);
      add(both, hi, hi, *next_high);
      if (lo + 1 <= hi - 1) add(both, static_cast<char>(lo + 1), static_cast<char>(hi - 1), between_state());
      on_both = false;
    } else {
      if (on_low) {
        next_low = fresh();
        add(*on_low, lo, lo, *next_low);
        if (lo < '9') add(*on_low, static_cast<char>(lo + 1), '9', between_state());
      }
      if (on_high) {
        next_high = fresh();
        add(*on_high, hi, hi, *next_high);
        if (hi > '0') add(*on_high, '0', static_cast<char>(hi - 1), between_state());
      }
      if (between) add(*between, '0', '9', between_state());
    }
    on_low = next_low;
    on_high = next_high;
    between = next_between;
  }
}

// Whole numbers without sign in [low, high]; high < 0: no limit. Nothing when empty.
bool add_whole(GrammarBuilder& b, GrammarStateId from, int64_t low, int64_t high, GrammarStateId to) {
  if (high >= 0 && low > high) return false;
  if (low == 0 && high < 0) {
    add_any_whole(b, from, to);
    return true;
  }
  if (low == 0) {
    b.add_range(from, '0', '0', to);
    low = 1;
    if (high == 0) return true;
  }
  const std::string low_digits = std::to_string(low);
  const size_t longest = high < 0 ? low_digits.size() : std::to_string(high).size();
  for (size_t size = low_digits.size(); size <= longest; ++size) {
    const std::string first = size == low_digits.size() ? low_digits : "1" + std::string(size - 1, '0');
    const std::string last = high >= 0 && size == longest ? std::to_string(high) : std::string(size, '9');
    add_same_length(b, from, first, last, to);
  }
  if (high < 0) {  // any longer number
    GrammarStateId state = b.range(from, '1', '9');
    for (size_t i = 1; i < longest; ++i) state = b.range(state, '0', '9');
    add_more_digits(b, b.range(state, '0', '9'), kMaxWholeDigits - static_cast<int>(longest) - 1, to);
  }
  return true;
}

// One side of a fraction: the digits a value's fraction is compared with.
struct FractionBound {
  std::string digits;
  bool exclusive = false;
};

// What stands behind the digits before the point: nothing, or a point and digits, so that
// the fraction lies within the bounds. Walks the digits of both bounds; behind them a
// bound goes on with zeros.
bool add_fraction(GrammarBuilder& b, GrammarStateId from, const std::optional<FractionBound>& low,
                  const std::optional<FractionBound>& high, GrammarStateId to) {
  const auto digit = [](const std::optional<FractionBound>& bound, size_t i) {
    return i < bound->digits.size() ? bound->digits[i] : '0';
  };
  bool some = false;
  // The value of the digits so far against a bound it still equals digit by digit.
  const auto low_holds = [&](size_t i) { return i >= low->digits.size() && !low->exclusive; };
  const auto high_holds = [&](size_t i) { return i < high->digits.size() || !high->exclusive; };
  const auto may_end = [&](bool tight_low, bool tight_high, size_t i) {
    return (!tight_low || low_holds(i)) && (!tight_high || high_holds(i));
  };
  if (may_end(low.has_value(), high.has_value(), 0)) {
    b.add_empty(from, to);
    some = true;
  }
  const GrammarStateId point = b.range(from, '.', '.');
  // Positions behind both bounds' digits repeat themselves: one more than the longer is
  // enough, its tight states loop on 0.
  const size_t size = std::max(low ? low->digits.size() : 0, high ? high->digits.size() : 0) + 1;
  std::vector<std::array<std::optional<GrammarStateId>, 4>> states(size + 1);
  const auto state_at = [&](size_t i, bool tight_low, bool tight_high) {
    auto& slot = states[i][(tight_low ? 1 : 0) + (tight_high ? 2 : 0)];
    if (!slot) slot = b.add_state();
    return *slot;
  };
  states[0][(low ? 1 : 0) + (high ? 2 : 0)] = point;
  for (size_t i = 0; i <= size; ++i) {
    for (int kind = 0; kind < 4; ++kind) {
      if (!states[i][kind]) continue;
      const bool tight_low = (kind & 1) != 0;
      const bool tight_high = (kind & 2) != 0;
      const GrammarStateId state = *states[i][kind];
      if (i > 0 && may_end(tight_low, tight_high, i)) {
        b.add_empty(state, to);
        some = true;
      }
      const size_t next = std::min(i + 1, size);
      for (char d = '0'; d <= '9'; ++d) {
        if (tight_low && d < digit(low, i)) continue;
        if (tight_high && d > digit(high, i)) continue;
        const bool still_low = tight_low && d == digit(low, i);
        const bool still_high = tight_high && d == digit(high, i);
        b.add_range(state, static_cast<uint8_t>(d), static_cast<uint8_t>(d), state_at(next, still_low, still_high));
      }
    }
  }
  return some;
}

// Numbers without sign between low and high (either may be absent).
bool add_unsigned(GrammarBuilder& b, GrammarStateId from, const std::optional<Bound>& low,
                  const std::optional<Bound>& high, GrammarStateId to) {
  const int64_t first = low ? low->value.whole : 0;
  const int64_t last = high ? high->value.whole : -1;
  const std::optional<FractionBound> low_fraction =
      low ? std::optional(FractionBound{low->value.fraction, low->exclusive}) : std::nullopt;
  const std::optional<FractionBound> high_fraction =
      high ? std::optional(FractionBound{high->value.fraction, high->exclusive}) : std::nullopt;
  bool some = false;
  const auto add = [&](int64_t whole_low, int64_t whole_high, const std::optional<FractionBound>& lo,
                       const std::optional<FractionBound>& hi) {
    const GrammarStateId whole = b.add_state();
    if (add_whole(b, from, whole_low, whole_high, whole)) some |= add_fraction(b, whole, lo, hi, to);
  };
  if (low && high && first == last) {
    add(first, first, low_fraction, high_fraction);
    return some;
  }
  if (low) add(first, first, low_fraction, std::nullopt);
  if (high) add(last, last, std::nullopt, high_fraction);
  const int64_t inner_first = low ? first + 1 : 0;
  if (!high)
    add(inner_first, -1, std::nullopt, std::nullopt);
  else if (inner_first <= last - 1)
    add(inner_first, last - 1, std::nullopt, std::nullopt);
  return some;
}

Bound negated(Bound bound) {
  bound.value.negative = false;
  return bound;
}

// The multiples of a number from first to last, both above zero, digit by digit: a state
// knows how many digits are to come, whether those so far are the beginning of a bound,
// and what the division by the number leaves of them.
class MultipleWriter {
 public:
  MultipleWriter(GrammarBuilder& b, int64_t multiple, int64_t first, int64_t last, GrammarStateId to)
      : b_(b), multiple_(multiple), first_(std::to_string(first)), last_(std::to_string(last)), to_(to) {}

  void write(GrammarStateId from) {
    for (size_t size = first_.size(); size <= last_.size(); ++size)
      add_digits(from, size, size == first_.size(), size == last_.size(), 0, '1');
  }

 private:
  void add_digits(GrammarStateId at, size_t to_come, bool on_first, bool on_last, int64_t rest, char least) {
    const char low = on_first ? std::max(least, first_[first_.size() - to_come]) : least;
    const char high = on_last ? last_[last_.size() - to_come] : '9';
    for (char d = low; d <= high; ++d) {
      const bool still_first = on_first && d == first_[first_.size() - to_come];
      const bool still_last = on_last && d == high;
      const GrammarStateId next = state(to_come - 1, still_first, still_last, (rest * 10 + (d - '0')) % multiple_);
      b_.add_range(at, static_cast<uint8_t>(d), static_cast<uint8_t>(d), next);
    }
  }

  GrammarStateId state(size_t to_come, bool on_first, bool on_last, int64_t rest) {
    const auto [known, fresh] = states_.emplace(std::tuple(to_come, on_first, on_last, rest), 0);
    if (!fresh) return known->second;
    const GrammarStateId at = known->second = b_.add_state();
    if (to_come > 0)
      add_digits(at, to_come, on_first, on_last, rest, '0');
    else if (rest == 0)
      b_.add_empty(at, to_);
    return at;
  }

  GrammarBuilder& b_;
  const int64_t multiple_;
  const std::string first_;
  const std::string last_;
  const GrammarStateId to_;
  std::map<std::tuple<size_t, bool, bool, int64_t>, GrammarStateId> states_;
};

// Zeros at the end of `multiple` are written behind the multiples of what
// stands before them.
bool add_multiples(GrammarBuilder& b, GrammarStateId from, int64_t low, int64_t high, int64_t multiple,
                   GrammarStateId to) {
  int64_t scale = 1;
  std::string zeros;
  for (; multiple % 10 == 0; multiple /= 10, scale *= 10) zeros += '0';
  bool some = false;
  const auto add_side = [&](GrammarStateId at, int64_t first, int64_t last) {  // of the absolute values
    first = std::max<int64_t>(first, 1);
    first = first / scale + (first % scale > 0 ? 1 : 0);
    last /= scale;
    if (first > last || last / multiple * multiple < first) return;
    some = true;
    const GrammarStateId end = b.add_state();
    MultipleWriter(b, multiple, first, last, end).write(at);
    b.add_empty(b.literal(end, zeros), to);
  };
  if (low <= 0 && high >= 0) {
    b.add_range(from, '0', '0', to);
    some = true;
  }
  if (high > 0) add_side(from, low, high);
  if (low < 0) add_side(b.range(from, '-', '-'), -high, -low);
  return some;
}

}  // namespace

bool is_writable_multiple(int64_t multiple) {
  while (multiple > 0 && multiple % 10 == 0) multiple /= 10;
  return multiple > 0 && multiple <= kMaxMultiple;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int sign = a.negative ? -1 : 1;
  if (a.whole != b.whole) return a.whole < b.whole ? -sign : sign;
  const int fraction = a.fraction.compare(b.fraction);  // no trailing zeros: as text, a prefix is smaller
  return fraction == 0 ? 0 : fraction < 0 ? -sign : sign;
}

Result<Decimal> read_decimal(int64_t value) {
  Decimal out;
  if (value <= -kWholeLimit || value >= kWholeLimit)
    return invalid_argument("a bound of 19 or more digits is not supported");
  out.negative = value < 0;
  out.whole = value < 0 ? -value : value;
  return out;
}

Result<Decimal> read_decimal(double value) {
  if (!(std::fabs(value) < static_cast<double>(kWholeLimit)))
    return invalid_argument("a bound of 19 or more digits is not supported");
  char buffer[512];
  const auto done = std::to_chars(buffer, buffer + sizeof buffer, std::fabs(value), std::chars_format::fixed);
  const std::string text(buffer, done.ptr);
  Decimal out;
  const size_t point = std::min(text.find('.'), text.size());
  std::from_chars(text.data(), text.data() + point, out.whole);
  if (point < text.size()) out.fraction = text.substr(point + 1);
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  out.negative = value < 0 && !out.is_zero();
  return out;
}

bool add_integer(GrammarBuilder& b, GrammarStateId from, const NumberRange& range, GrammarStateId to) {
  if (range.any()) {
    const GrammarStateId positive = b.add_state();
    b.add_empty(from, positive);
    b.add_range(from, '-', '-', positive);
    add_any_whole(b, positive, to);
    return true;
  }
  // The least and the greatest integer inside; a fraction rounds inwards, an excluded
  // integer steps.
  const auto inward = [](const Bound& bound, bool is_low) {
    int64_t value = bound.value.negative ? -bound.value.whole : bound.value.whole;
    if (!bound.value.fraction.empty()) {
      if (is_low && !bound.value.negative) ++value;
      if (!is_low && bound.value.negative) --value;
    } else if (bound.exclusive) {
      value += is_low ? 1 : -1;
    }
    return value;
  };
  constexpr int64_t kNone = INT64_MAX;  // no bound on that side
  const int64_t low = range.low ? inward(*range.low, true) : -kNone;
  const int64_t high = range.high ? inward(*range.high, false) : kNone;
  if (low > high) return false;
  if (range.multiple_of > 0) {
    constexpr int64_t kMost = kWholeLimit - 1;
    return add_multiples(b, from, std::max(low, -kMost), std::min(high, kMost), range.multiple_of, to);
  }
  const auto limit = [](int64_t bound) { return bound == kNone ? -1 : bound; };
  bool some = false;
  if (high >= 0) some |= add_whole(b, from, std::max<int64_t>(low, 0), limit(high), to);
  if (low < 0) some |= add_whole(b, b.range(from, '-', '-'), std::max<int64_t>(-high, 1), limit(-low), to);
  return some;
}

bool add_number(GrammarBuilder& b, GrammarStateId from, const NumberRange& range, GrammarStateId to) {
  if (range.any()) {
    const GrammarStateId whole = b.add_state();
    const GrammarStateId positive = b.add_state();
    b.add_empty(from, positive);
    b.add_range(from, '-', '-', positive);
    add_any_whole(b, positive, whole);
    const GrammarStateId fraction = b.range(b.range(whole, '.', '.'), '0', '9');
    b.add_range(fraction, '0', '9', fraction);
    const GrammarStateId mark = b.add_state();
    for (const GrammarStateId state : {whole, fraction}) {
      b.add_empty(state, to);
      b.add_empty(state, mark);
    }
    add_exponent(b, mark, to);
    return true;
  }
  if (range.low && range.high) {
    const int order = compare(range.low->value, range.high->value);
    if (order > 0 || (order == 0 && (range.low->exclusive || range.high->exclusive))) return false;
  }
  bool some = false;
  const Bound above_zero{Decimal{}, true};
  const bool has_positive = !range.high || !range.high->value.negative;
  if (has_positive) {
    const bool low_is_negative = !range.low || range.low->value.negative;
    some |= add_unsigned(b, from, low_is_negative ? std::nullopt : range.low, range.high, to);
  }
  if (!range.low || range.low->value.negative) {
    // Absolute values, bounds swapped; "-0" is left out.
    const bool high_is_negative = range.high && range.high->value.negative;
    const std::optional<Bound> smallest = high_is_negative ? negated(*range.high) : above_zero;
    const std::optional<Bound> largest = range.low ? std::optional(negated(*range.low)) : std::nullopt;
    some |= add_unsigned(b, b.range(from, '-', '-'), smallest, largest, to);
  }
  return some;
}

}  // namespace loralei::schema
