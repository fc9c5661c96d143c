// SPDX-License-Identifier: Apache-2.0
// Axis: values to places between 0 and 1, and the marks along it.
//
// Thread: any; plain values. Invariants: marks are round numbers (1, 2 or 5 times a power
// of ten; on a logarithmic axis powers of ten, and 2 and 5 times them where there is
// room), ascend, lie on the axis, and are at most ten. Failure: none; an axis of nothing
// is that from 0 to 1.
#pragma once

#include <string>
#include <vector>

namespace loralei {

struct AxisMark {
  double value = 0;
  std::string text;
};

class Axis {
 public:
  // A linear axis holds 0 and ends at `most`; where `rounded`, at the mark behind it. A
  // logarithmic one holds what lies above 0.
  static Axis linear(double least, double most, bool rounded);
  static Axis logarithmic(double least, double most);

  bool holds(double value) const;
  double place(double value) const;  // of one that it holds: 0 .. 1
  double low() const { return low_; }
  const std::vector<AxisMark>& marks() const { return marks_; }

 private:
  Axis(double low, double high, bool is_log) : low_(low), high_(high), is_log_(is_log) {}
  double low_, high_;
  bool is_log_;
  std::vector<AxisMark> marks_;
};

// Four digits, without an exponent where that is readable; from 10,000 on k, M, G and T.
std::string axis_number(double value);
// In the unit that `most` is written in, for marks of one axis.
std::string axis_number(double value, double most);

}  // namespace loralei
