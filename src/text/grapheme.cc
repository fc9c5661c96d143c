// SPDX-License-Identifier: Apache-2.0
#include "text/grapheme.h"

#include <unicode/uchar.h>

namespace loralei {

namespace {

bool is_pictograph(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_EXTENDED_PICTOGRAPHIC); }

bool is_control(int c) { return c == U_GCB_CONTROL || c == U_GCB_CR || c == U_GCB_LF; }

// The rules that look at two neighbours only. GB999 is the false at the end.
bool joined(int before, int after) {
  if (before == U_GCB_CR && after == U_GCB_LF) return true;                                     // GB3
  if (is_control(before) || is_control(after)) return false;                                    // GB4, GB5
  if (after == U_GCB_EXTEND || after == U_GCB_ZWJ || after == U_GCB_SPACING_MARK) return true;  // GB9, GB9a
  switch (before) {
    case U_GCB_L:  // GB6
      return after == U_GCB_L || after == U_GCB_V || after == U_GCB_LV || after == U_GCB_LVT;
    case U_GCB_LV:  // GB7
    case U_GCB_V:
      return after == U_GCB_V || after == U_GCB_T;
    case U_GCB_LVT:  // GB8
    case U_GCB_T:
      return after == U_GCB_T;
    case U_GCB_PREPEND:  // GB9b
      return true;
    default:
      return false;
  }
}

}  // namespace

void GraphemeReader::look() {
  if (done()) return;
  step_ = utf8_step(text_, pos_);
  const char32_t c = step_.code_point;
  const bool plain = c >= 0x20 && c < 0x7F;
  class_ = plain ? U_GCB_OTHER : u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_GRAPHEME_CLUSTER_BREAK);
}

std::string_view GraphemeReader::next() {
  const size_t begin = pos_;
  char32_t base = step_.code_point;  // the last character that is no Extend
  char32_t joiner_base = 0;          // the one before the last ZWJ
  bool pair = false;                 // `before` is the second of two regional indicators
  while (true) {
    const int before = class_;
    pos_ += static_cast<size_t>(step_.length);
    look();
    if (done()) break;
    pair = !pair && before == U_GCB_REGIONAL_INDICATOR && class_ == U_GCB_REGIONAL_INDICATOR;  // GB12
    if (!pair && !joined(before, class_)) {
      const bool emoji = before == U_GCB_ZWJ && is_pictograph(joiner_base) && is_pictograph(step_.code_point);  // GB11
      if (!emoji) break;
    }
    if (class_ == U_GCB_ZWJ) joiner_base = base;
    if (class_ != U_GCB_EXTEND) base = step_.code_point;
  }
  return text_.substr(begin, pos_ - begin);
}

}  // namespace loralei
