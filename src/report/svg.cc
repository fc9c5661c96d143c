// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <cstdio>

#include "report/markup.h"

namespace loralei {
namespace {

constexpr const char* kColours[kSvgColours] = {"#2f6fde", "#d9722e", "#23936b", "#9a4bd0",
                                               "#cc3f4c", "#0e8fa3", "#8a6d1a", "#6b7280"};
constexpr double kCharacter = 6.6;  // of 12.5 pixels
constexpr double kSwatch = 18, kGap = 16, kLine = 18;
constexpr size_t kNameCharacters = 60;

}  // namespace

std::string svg_number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string svg_colour(size_t series) { return kColours[series % kSvgColours]; }

std::string svg_text(double x, double y, const char* anchor, const std::string& words, const std::string& more) {
  return "<text x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
         markup_text(words) + "</text>";
}

std::string svg_line(double x1, double y1, double x2, double y2, const std::string& attributes) {
  return "<line x1=\"" + svg_number(x1) + "\" y1=\"" + svg_number(y1) + "\" x2=\"" + svg_number(x2) + "\" y2=\"" +
         svg_number(y2) + "\" " + attributes + "/>";
}

std::string svg_open(double height, const std::string& title) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + svg_number(kSvgWidth) + " " + svg_number(height) +
         "\" width=\"" + svg_number(kSvgWidth) + "\" height=\"" + svg_number(height) +
         "\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"12.5\" fill=\"#1f2430\"><title>" +
         markup_text(title) + "</title>";
}

double svg_text_width(const std::string& words) { return kCharacter * static_cast<double>(characters_of(words)); }

void SvgLegend::add(size_t colour, const std::string& name, bool dashed) {
  const std::string shown = shortened(name, kNameCharacters);
  const double width = kSwatch + 6 + svg_text_width(shown);
  if (x_ > left_ && x_ + width > right_) {
    x_ = left_;
    y_ += kLine;
  }
  svg_ += svg_line(x_, y_ - 4, x_ + kSwatch, y_ - 4,
                   "class=\"s" + std::to_string(colour % kSvgColours) + "\" stroke=\"" + svg_colour(colour) +
                       "\" stroke-width=\"3\"" + (dashed ? " stroke-dasharray=\"5 3\"" : ""));
  svg_ += svg_text(x_ + kSwatch + 6, y_, "start", shown);
  x_ += width + kGap;
}

}  // namespace loralei
