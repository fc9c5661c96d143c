// SPDX-License-Identifier: Apache-2.0
// HttpClient: a small blocking HTTP/1.1 client, for tests, for commands that ask a
// running server, for proxying and for downloads. Plain or over TLS, straight or through
// a proxy.
//
// Thread: one at a time; each client is one connection, kept alive between requests when
// the server agrees.
// Ownership: owns its socket.
// Invariant: after a failed request the connection is closed and the next request opens a
// new one.
// Failure: io errors name the address and the step; kDeadline when a timeout is over;
// kCancelled when the body callback stops; kUnauthenticated where the peer's certificate
// is not good, or a proxy wants to know who asks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/message.h"
#include "http/parser.h"
#include "http/proxy.h"

namespace loralei {

class TlsTrust;

struct HttpClientOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  int64_t connect_timeout_ms = 5'000;
  int64_t read_timeout_ms = 60'000;  // without a byte from the server, or without progress in sending
  HttpLimits limits{.max_body_bytes = 256 * 1024 * 1024};
  std::shared_ptr<const TlsTrust> tls;  // https, its certificate checked by these authorities; null: http
  std::optional<HttpProxy> proxy;       // asked in the place of the host
};

class HttpClient {
 public:
  // Receives pieces of the body as they arrive; false stops the request and closes
  // the connection.
  using BodyCallback = std::function<bool(std::string_view)>;

  explicit HttpClient(const HttpClientOptions& options);
  ~HttpClient();

  // With `on_body`, the answer's body goes there and HttpResponse::body stays empty.
  Result<HttpResponse> request(std::string_view method, std::string_view target, const HttpHeaders& headers = {},
                               std::string_view body = {}, const BodyCallback& on_body = nullptr);
  // Of the answer whose body is being told: within `on_body`.
  int head_status() const;
  const HttpHeaders& head_headers() const;
  Result<HttpResponse> get(std::string_view target) { return request("GET", target); }
  Result<HttpResponse> post_json(std::string_view target, std::string_view body,
                                 const BodyCallback& on_body = nullptr) {
    return request("POST", target, {{"Content-Type", "application/json"}}, body, on_body);
  }

  // For tests and proxies: bytes as they are, and what comes back until the peer closes
  // or `until` bytes are there.
  Status send_raw(std::string_view bytes);
  Result<std::string> read_raw(size_t until = SIZE_MAX);
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Server-sent events from a body that arrives in pieces: calls back with the data of each
// event (lines joined by '\n'); comments and other fields are skipped. An event longer
// than max_event_bytes makes feed() answer false.
class SseParser {
 public:
  using EventCallback = std::function<bool(std::string_view data)>;
  explicit SseParser(size_t max_event_bytes = 8 * 1024 * 1024) : max_event_bytes_(max_event_bytes) {}
  bool feed(std::string_view bytes, const EventCallback& on_event);

 private:
  bool line(std::string_view text, const EventCallback& on_event);
  const size_t max_event_bytes_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;
};

}  // namespace loralei
