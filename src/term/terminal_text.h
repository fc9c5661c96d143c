// SPDX-License-Identifier: Apache-2.0
// Text on a terminal: how many columns it takes, and what of it a terminal would obey
// instead of show. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace loralei {

// Columns of a code point: 0 for those that join what is before them, 2 for wide ones
// (Unicode's East Asian Width).
int terminal_columns(char32_t code_point);
int terminal_columns(std::string_view utf8);  // of a text without line ends

// What may be written as it is: without control characters (line ends and tabs stay) and
// without what turns the direction of the text around it; each becomes U+FFFD, and so do
// bytes that are no UTF-8. An answer or a name can therefore never move the cursor,
// rename the window or clear the screen.
std::string terminal_text(std::string_view text);

}  // namespace loralei
