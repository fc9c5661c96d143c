// SPDX-License-Identifier: Apache-2.0
// gzip, for answers that are large and much the same (/metrics). RFC 1952.
//
// Thread: pure functions. Failure: none; text that does not shrink comes out
// a little longer.
#pragma once

#include <string>
#include <string_view>

namespace loralei {

std::string gzip(std::string_view text);
// What an Accept-Encoding header says: the client takes gzip. RFC 9110, 12.5.3.
bool accepts_gzip(std::string_view accept_encoding);

}  // namespace loralei
