// SPDX-License-Identifier: Apache-2.0
// Request and response bytes, whole and cut into pieces at places the input chooses:
// both ways must end alike.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "http/client.h"
#include "http/parser.h"

namespace {

template <typename Parser>
std::string drive(Parser& parser, std::string_view bytes, size_t step) {
  std::string pending;
  for (size_t at = 0; at < bytes.size() && !parser.failed() && !parser.complete(); at += step) {
    pending.append(bytes.substr(at, step));
    const size_t used = parser.feed(pending);
    CHECK(used <= pending.size());
    pending.erase(0, used);
  }
  return pending;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 64 * 1024) return 0;
  const size_t step = 1 + data[0] % 31;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const loralei::HttpLimits limits{.max_header_bytes = 2048, .max_headers = 16, .max_body_bytes = 4096};

  loralei::RequestParser whole(limits), pieces(limits);
  drive(whole, bytes, bytes.size() + 1);
  drive(pieces, bytes, step);
  if (whole.complete()) {
    CHECK(pieces.complete());
    const loralei::HttpRequest a = whole.take(), b = pieces.take();
    CHECK(a.body == b.body && a.path == b.path && a.headers == b.headers);
    CHECK(a.body.size() <= limits.max_body_bytes && a.headers.size() <= limits.max_headers);
    (void)loralei::percent_decode(a.path);
  }
  if (whole.failed()) CHECK(whole.error_status() >= 400 && !whole.error_message().empty());

  size_t received = 0;
  loralei::ResponseParser response(limits, size % 7 == 0, [&](std::string_view piece) {
    received += piece.size();
    return true;
  });
  drive(response, bytes, step);
  response.feed_eof();
  CHECK(received <= limits.max_body_bytes);

  loralei::SseParser sse(1024);
  (void)sse.feed(bytes, [](std::string_view event) { return event.size() <= 1024; });
  return 0;
}
