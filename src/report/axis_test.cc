// SPDX-License-Identifier: Apache-2.0
#include "report/axis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace loralei {
namespace {

const double kOdd[] = {
    std::nan(""), std::numeric_limits<double>::infinity(),   -std::numeric_limits<double>::infinity(),
    0.0,          std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max()};

// 1, 2 or 5 times a power of ten.
bool is_round(double value) {
  const double power = std::pow(10, std::floor(std::log10(value) + 1e-9)), factor = value / power;
  for (const double round : {1.0, 2.0, 5.0, 10.0})
    if (std::fabs(factor - round) < 1e-6) return true;
  return false;
}

std::vector<std::string> texts(const Axis& axis) {
  std::vector<std::string> out;
  for (const AxisMark& mark : axis.marks()) out.push_back(mark.text);
  return out;
}

TEST(Axis, MarksAreAFewRoundNumbersThatReachTheEnd) {
  EXPECT_EQ(texts(Axis::linear(0, 1, true)), (std::vector<std::string>{"0", "0.2", "0.4", "0.6", "0.8", "1"}));
  EXPECT_EQ(texts(Axis::linear(3, 47, false)), (std::vector<std::string>{"0", "10", "20", "30", "40"}));
  EXPECT_EQ(texts(Axis::linear(-3, 47, true)), (std::vector<std::string>{"-10", "0", "10", "20", "30", "40", "50"}));
  for (double most = 1e-9; most < 1e15; most *= 1.37) {
    const Axis axis = Axis::linear(0, most, true);
    const auto& marks = axis.marks();
    ASSERT_GE(marks.size(), 3u) << most;
    ASSERT_LE(marks.size(), 10u) << most;
    EXPECT_TRUE(is_round(marks[1].value - marks[0].value)) << most;
    EXPECT_GE(marks.back().value, most * (1 - 1e-9)) << most;
    EXPECT_NEAR(axis.place(marks.back().value), 1, 1e-9) << most;
    EXPECT_EQ(axis.place(0), 0);
  }
}

TEST(Axis, MarksOfALogarithmAreRoundToo) {
  EXPECT_EQ(texts(Axis::logarithmic(1, 128)), (std::vector<std::string>{"1", "2", "5", "10", "20", "50", "100"}));
  for (double low = 1e-12; low < 1e9; low *= 17.3) {
    for (double wide = 1.1; wide < 1e14; wide *= 7.7) {
      const Axis axis = Axis::logarithmic(low, low * wide);
      ASSERT_LE(axis.marks().size(), 10u) << low << " " << wide;
      for (const AxisMark& mark : axis.marks()) EXPECT_TRUE(is_round(mark.value)) << mark.value;
    }
  }
  const Axis axis = Axis::logarithmic(1, 100);
  EXPECT_NEAR(axis.place(10), 0.5, 1e-12);
  EXPECT_FALSE(axis.holds(0));
  EXPECT_FALSE(axis.holds(-1));
}

TEST(Axis, OfNothingAndOfOddNumbersThereIsOneAllTheSame) {
  for (const double least : kOdd) {
    for (const double most : kOdd) {
      for (const Axis& axis :
           {Axis::linear(least, most, true), Axis::linear(least, most, false), Axis::logarithmic(least, most)}) {
        ASSERT_LE(axis.marks().size(), 10u) << least << " " << most;
        for (const AxisMark& mark : axis.marks())
          ASSERT_TRUE(std::isfinite(axis.place(mark.value))) << least << " " << most;
        EXPECT_FALSE(axis.holds(std::nan("")));
      }
    }
  }
  EXPECT_EQ(texts(Axis::linear(0, 0, true)).back(), "1");
}

TEST(Axis, NumbersAreShort) {
  EXPECT_EQ(axis_number(0.1 + 0.2), "0.3");
  EXPECT_EQ(axis_number(1234), "1234");
  EXPECT_EQ(axis_number(25'000), "25k");
  EXPECT_EQ(axis_number(-3.5e9), "-3.5G");
  EXPECT_EQ(axis_number(-0.0), "0");
  EXPECT_EQ(axis_number(5'000, 20'000), "5k") << "marks of one axis have one unit";
}

}  // namespace
}  // namespace loralei
