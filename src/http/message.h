// SPDX-License-Identifier: Apache-2.0
// HTTP messages as plain values, and the small text helpers that everybody who
// handles them needs.
//
// Thread: plain values; copies of a request share its memory.
// Ownership: every string is owned.
// Invariants: header names keep the spelling of the wire, look-ups ignore case. `path`
// has no query and is not decoded (an adapter's name may hold %2F); percent_decode does
// that where a route takes a name from the path.
// Failure: percent_decode answers nothing for a broken escape.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_budget.h"

namespace loralei {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The first value under `name` (case ignored), or an empty view.
std::string_view find_header(const HttpHeaders& headers, std::string_view name);
bool has_header(const HttpHeaders& headers, std::string_view name);

// What stands before a request's body.
struct HttpHead {
  std::string method;  // "GET", as sent
  std::string target;  // as sent: path and query
  std::string path;    // the target before '?', not decoded; always begins with '/' or is "*"
  std::string query;   // what stands after '?', not decoded
  int version = 11;    // 10 or 11
  HttpHeaders headers;
  bool has_body = false;  // one is announced: its length is not 0, or not known
  bool keep_alive = true;

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

class BodySink;

struct HttpRequest : HttpHead {
  std::string body;
  // What took the body in its place (HttpHandler::body_sink): all of it, or as much as it
  // wanted. Null: the body is above.
  std::shared_ptr<BodySink> sink;
  // What HttpServerOptions::memory has granted for the body (never null from the server;
  // of 0 bytes without one). The handler may shrink it when the body is dropped, grow it
  // for what it makes of it, or move it on; dropping it gives it back.
  std::shared_ptr<ByteShare> memory;
  std::string peer;  // numeric address of the client
  bool peer_is_loopback = false;
};

struct HttpResponse {
  int status = 0;
  HttpHeaders headers;
  std::string body;

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

// What a proxy passes on: without the fields that concern one connection only (RFC 9110,
// 7.6.1), which are Connection and those it names, Keep-Alive, Proxy-*, TE, Trailer,
// Transfer-Encoding and Upgrade.
HttpHeaders end_to_end_headers(const HttpHeaders& headers);
// May be a method or a field's name (RFC 9110, 5.6.2).
bool is_token(std::string_view text);

bool equals_ignoring_case(std::string_view a, std::string_view b);
std::optional<std::string> percent_decode(std::string_view text);
// As one segment of a path: everything but letters, digits, '-', '.', '_' and '~'.
std::string percent_encode(std::string_view text);
// The standard phrase ("Not Found"); "Status" for a code without one.
const char* reason_phrase(int status);
// A value that may stand in a header line: control characters are replaced by spaces,
// so that no value can add a line.
std::string clean_header_value(std::string_view value);

}  // namespace loralei
