// SPDX-License-Identifier: Apache-2.0
// Base64 (RFC 4648, section 4): with padding, without line breaks.
//
// Pure functions, any thread. Invariant: what decode takes encode gives back, bit for
// bit.
// Failure: decode answers nothing for a text that encode does not write.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loralei {

std::string base64_encode(std::string_view bytes);
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace loralei
