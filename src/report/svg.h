// SPDX-License-Identifier: Apache-2.0
// What pictures are put together from: shapes and words as SVG. Classes name colours of
// the page (report/page.cc), which change with light and dark; the attributes beside them
// are for a picture that is taken out of it.
//
// Thread: any; pure functions.
#pragma once

#include <cstddef>
#include <string>

namespace loralei {

inline constexpr size_t kSvgColours = 8;
inline constexpr double kSvgWidth = 860;  // of every picture

std::string svg_number(double value);   // with one decimal
std::string svg_colour(size_t series);  // its attribute value
// `more`: further attributes, as markup.
std::string svg_text(double x, double y, const char* anchor, const std::string& words, const std::string& more = "");
std::string svg_line(double x1, double y1, double x2, double y2, const std::string& attributes);
std::string svg_open(double height, const std::string& title);
// Roughly, of the page's font.
double svg_text_width(const std::string& words);

// Names beside their colours, in as many lines as they need.
class SvgLegend {
 public:
  // `left`, `right`: the room that lines have.
  SvgLegend(double left, double right) : left_(left), right_(right), x_(left) {}
  void add(size_t colour, const std::string& name, bool dashed);
  double height() const { return svg_.empty() ? 0 : y_ + 10; }
  const std::string& svg() const { return svg_; }

 private:
  double left_, right_, x_, y_ = 14;
  std::string svg_;
};

}  // namespace loralei
