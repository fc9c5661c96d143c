// SPDX-License-Identifier: Apache-2.0
// Exchange: one request's answer, between the threads that produce it and the connection that writes it. Private to
// http/.
//
// Thread-safe. Ownership: shared by the connection and the writer handle; holds the bytes not yet written.
// Invariants: bytes leave in the order they came; queued_bytes counts what is queued and what is being written, of a
// stream at most max_buffer_bytes and two of its largest chunks; exactly one of "complete" and "closed" ends it. The
// wake function is called without the lock held, as is the on_closed callback. Failure: none of its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "http/message.h"
#include "http/server.h"

namespace loralei {

// The head of an answer as it goes over the wire. content_length < 0: no such header (streams, 204).
std::string format_response_head(int status, int version, const HttpHeaders& headers, int64_t content_length,
                                 bool chunked, bool keep_alive);

struct ExchangeOptions {
  int version = 11;
  bool head_only = false;          // HEAD: headers without a body
  bool keep_alive = true;          // what the client asked for
  size_t max_buffer_bytes = 0;     // of a stream, beside its largest chunk; see HttpServerOptions
  std::function<bool()> stopping;  // the server is closing: say so in the answer
  std::function<void()> wake;      // there is something to write
};

class Exchange {
 public:
  explicit Exchange(ExchangeOptions options) : options_(std::move(options)) {}

  // Producer side.
  bool respond(int status, HttpHeaders headers, std::string body);
  bool start_stream(int status, HttpHeaders headers);
  bool write(std::string_view chunk);
  void finish();
  void abandon(HttpResponse fallback);  // the handle was dropped: fallback if nothing was begun, else cut the stream
  void on_closed(std::function<void()> callback);
  bool closed() const;
  bool begun() const;

  // Connection side.
  struct Out {
    std::string bytes;
    bool complete = false;  // nothing follows
    bool overflow = false;  // the producer wrote more than the buffer holds
  };
  Out take();
  void wrote(size_t bytes);
  bool complete() const;
  bool keep_alive() const;  // after complete(): the connection may serve another request
  bool close();             // the client is gone; false when the answer was complete before

 private:
  mutable std::mutex mutex_;
  const ExchangeOptions options_;
  std::string queue_;
  size_t queued_bytes_ = 0;
  size_t largest_chunk_bytes_ = 0;  // taken so far
  bool begun_ = false;
  bool chunked_ = false;
  bool keep_alive_ = true;
  bool complete_ = false;
  bool overflow_ = false;
  bool closed_ = false;
  std::function<void()> on_closed_;
};

// The handle a handler gets. Dropping it unanswered answers for it.
class ExchangeWriter final : public ResponseWriter {
 public:
  ExchangeWriter(std::shared_ptr<Exchange> exchange, std::function<HttpResponse(int, std::string_view)> error_response)
      : exchange_(std::move(exchange)), error_response_(std::move(error_response)) {}
  ~ExchangeWriter() override;
  bool respond(int status, HttpHeaders headers, std::string body) override {
    return exchange_->respond(status, std::move(headers), std::move(body));
  }
  bool start_stream(int status, HttpHeaders headers) override {
    return exchange_->start_stream(status, std::move(headers));
  }
  bool write(std::string_view chunk) override { return exchange_->write(chunk); }
  void finish() override { exchange_->finish(); }
  void on_closed(std::function<void()> callback) override { exchange_->on_closed(std::move(callback)); }
  bool closed() const override { return exchange_->closed(); }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::function<HttpResponse(int, std::string_view)> error_response_;
};

}  // namespace loralei
