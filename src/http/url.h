// SPDX-License-Identifier: Apache-2.0
// HttpUrl: an absolute http or https address, taken apart, and where a redirect leads.
//
// Thread: plain values and pure functions. Ownership: every string is owned.
// Invariants: scheme and host are in small letters; the host has no brackets; the target
// begins with '/' and holds nothing that ends a line. Two addresses of one origin are
// asked over one connection and trusted alike.
// Failure: a sentence for what is no address of these schemes, or names a user.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace loralei {

struct HttpUrl {
  bool tls = false;
  std::string host;
  int port = 80;
  std::string target = "/";  // path and query

  std::string origin() const;     // "https://host:8443"; the port only where it is not the scheme's own
  std::string authority() const;  // "host:8443", likewise
  std::string text() const { return origin() + target; }
  bool same_origin(const HttpUrl& other) const;
};

Result<HttpUrl> parse_http_url(std::string_view text);
// A Location of an answer from `from`: absolute, "//host/path", "/path" or relative.
Result<HttpUrl> resolve_location(const HttpUrl& from, std::string_view location);

}  // namespace loralei
