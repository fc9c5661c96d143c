// SPDX-License-Identifier: Apache-2.0
// RequestParser and ResponseParser: HTTP/1.x bytes to messages, one message each, fed in
// pieces of any size.
// Beast's grammar behind a plain interface; no sockets, so that the fuzzer and the unit
// tests run them on bytes alone.
//
// Thread: one at a time.
// Ownership: own what they parsed until taken. The body grows as bytes arrive, or
// within the room that reserve_body() made for it: nothing is allocated from a length
// the peer only claims.
// Invariants: feed() is called with all bytes that were not consumed so far plus at least
// one new one; after failed() or complete() it consumes nothing more.
// Failure: failed() with the HTTP status to answer (400, 413, 431, 501, 505 ...) and a
// sentence. The size of the body is judged when the header is complete, before a byte of
// it is read; a chunked body while it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/message.h"

namespace loralei {

struct HttpLimits {
  size_t max_header_bytes = 32 * 1024;  // request line and header fields together
  size_t max_headers = 128;             // number of header fields
  size_t max_body_bytes = 8 * 1024 * 1024;
};

class RequestParser {
 public:
  // How many bytes the body may have of a request with this head, which is complete.
  using BodyLimit = std::function<int64_t(const HttpHead&)>;
  // body_limit: in the place of limits.max_body_bytes.
  explicit RequestParser(const HttpLimits& limits, BodyLimit body_limit = {});
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;

  // Consumes a prefix of `bytes` and returns its length.
  size_t feed(std::string_view bytes);
  // As feed(), but nothing behind the head.
  size_t feed_head(std::string_view bytes);
  // From here on the body takes `bytes` of memory, in all and at once, and feed() stops
  // where they are full.
  void reserve_body(size_t bytes);
  bool body_is_full() const;  // feed() stopped there: reserve more, then feed() goes on
  // What has been read of the body since the last call, for who does not want to have it
  // all at once; room is for what is not drained.
  std::string drain_body();

  bool failed() const;
  int error_status() const;                  // of a failed parse
  const std::string& error_message() const;  // of a failed parse
  bool header_complete() const;
  bool complete() const;
  const HttpHead& head() const;                   // as far as it was read; until take()
  size_t body_bytes() const;                      // of the body, read so far, drained or not
  std::optional<size_t> announced_bytes() const;  // of the body, in all; nothing where it is chunked
  bool expects_continue() const;                  // the header is complete and asks for "100 Continue" before its body
  HttpRequest take();  // once, after header_complete(), with what was read of the body; the rest is for the caller

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class ResponseParser {
 public:
  // `on_body` receives the body in order, without the chunk framing; false from it fails
  // the parse with "stopped". With pause() it gets no further piece for now.
  using BodyCallback = std::function<bool(std::string_view)>;
  // head_request: the answer to HEAD has no body whatever its header says.
  ResponseParser(const HttpLimits& limits, bool head_request, BodyCallback on_body);
  ~ResponseParser();

  size_t feed(std::string_view bytes);
  // From within `on_body`: feed() stops behind this piece. The next one goes on, with
  // what was left, whether or not there is more by then.
  void pause();
  void feed_eof();  // the peer closed: ends a body without a length, fails anything else that is incomplete

  bool failed() const;
  bool stopped() const;  // failed because on_body said so
  const std::string& error_message() const;
  bool header_complete() const;
  bool complete() const;
  bool keep_alive() const;
  const HttpResponse& head() const;  // status and headers, after header_complete()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace loralei
