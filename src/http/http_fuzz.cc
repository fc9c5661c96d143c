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

// The answer whole, in pieces, and in pieces by a reader who pauses behind each piece of
// the body: one and the same.
void check_response(std::string_view bytes, size_t step, const loralei::HttpLimits& limits, bool head_request) {
  struct Reader {
    Reader(const loralei::HttpLimits& limits, bool head_request, bool pauses)
        : parser(limits, head_request, [this, pauses](std::string_view piece) {
            CHECK(!paused && !piece.empty());
            body += piece;
            paused = pauses;
            if (pauses) parser.pause();
            return true;
          }) {}
    size_t feed(std::string_view pending) {
      size_t used = 0;
      do {
        paused = false;
        used += parser.feed(pending.substr(used));
      } while (paused && used < pending.size());
      return used;
    }
    bool failed() const { return parser.failed(); }
    bool complete() const { return parser.complete(); }
    std::string body;
    bool paused = false;
    loralei::ResponseParser parser;
  };
  Reader whole(limits, head_request, false), pieces(limits, head_request, false), pauses(limits, head_request, true);
  drive(whole, bytes, bytes.size() + 1);
  drive(pieces, bytes, step);
  drive(pauses, bytes, step);
  for (Reader* reader : {&whole, &pieces, &pauses}) {
    reader->parser.feed_eof();
    CHECK(reader->body.size() <= limits.max_body_bytes);
    CHECK(reader->parser.head().headers.size() <= limits.max_headers);
    CHECK(reader->complete() != reader->failed());
    if (reader->failed()) CHECK(!reader->parser.error_message().empty());
    (void)loralei::end_to_end_headers(reader->parser.head().headers);
  }
  if (!whole.complete()) return;
  for (const Reader* reader : {&pieces, &pauses}) {
    CHECK(reader->complete() && reader->body == whole.body);
    CHECK(reader->parser.head().status == whole.parser.head().status);
    CHECK(reader->parser.head().headers == whole.parser.head().headers);
    CHECK(reader->parser.keep_alive() == whole.parser.keep_alive());
  }
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

  check_response(bytes, step, limits, size % 7 == 0);

  loralei::SseParser sse(1024);
  (void)sse.feed(bytes, [](std::string_view event) { return event.size() <= 1024; });
  return 0;
}
