// SPDX-License-Identifier: Apache-2.0
// Exchange: one request's answer, between the threads that produce it and the connection
// that writes it. Private to http/.
//
// Thread-safe.
// Ownership: shared by the connection and the writer handle; holds the bytes not yet
// written, and their share of the memory beyond kAnswerBytes.
// Invariants: bytes leave in the order they came; queued_bytes counts what is queued
// and what is being written, of a stream at most max_buffer_bytes and two of its largest
// chunks; exactly one of "complete" and "closed" ends it. No function of others is
// called, nor destroyed, with the lock held.
// Failure: none of its own.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "http/message.h"
#include "http/server.h"

namespace loralei {

// The head of an answer as it goes over the wire. content_length < 0: no such
// header (streams, 204).
std::string format_response_head(int status, int version, const HttpHeaders& headers, int64_t content_length,
                                 bool chunked, bool keep_alive);

inline constexpr size_t kAnswerBytes = 16 * 1024;      // of an answer, that need no share of the memory
inline constexpr size_t kAnswerStepBytes = 64 * 1024;  // beyond it a stream's share grows in steps
inline constexpr size_t kEnoughBytes = 32 * 1024;      // waiting in a stream: its producer should rest
inline constexpr size_t kUncountedBytes = 64 * 1024;   // of a stream's burst for which there is no room

struct ExchangeOptions {
  int version = 11;
  bool head_only = false;          // HEAD: headers without a body
  bool keep_alive = true;          // what the client asked for
  size_t max_buffer_bytes = 0;     // of a stream, beside its largest chunk; see HttpServerOptions
  std::function<bool()> stopping;  // the server is closing: say so in the answer
  std::function<void()> wake;      // there is something to write
  std::shared_ptr<ByteBudget> memory;
  std::function<HttpResponse(int status, std::string_view message)> error_response;
};

class Exchange {
 public:
  explicit Exchange(ExchangeOptions options) : options_(std::move(options)), share_(options_.memory) {}

  // Producer side.
  bool respond(int status, HttpHeaders headers, std::string body);
  bool start_stream(int status, HttpHeaders headers);
  bool respond_pieces(int status, HttpHeaders headers, NextPiece next);
  bool write(std::string_view chunk);
  bool wants_more() const;
  void on_room(std::function<void()> callback);
  void finish();
  void abandon();  // the handle was dropped: 500 if nothing was begun, else a stream without an end is cut
  void on_closed(std::function<void()> callback);
  bool closed() const;

  // Connection side.
  struct Out {
    std::string bytes, body;        // to be written one behind the other
    bool complete = false;          // nothing follows
    bool overflow = false;          // the producer wrote more than the buffer holds
    std::function<void()> on_room;  // to be called: there is room for more
    size_t size() const { return bytes.size() + body.size(); }
  };
  Out take();
  void wrote(size_t bytes);  // of what was taken, all
  bool pull();               // asks for the next piece, when all was written; false: none is to come by itself
  void drop();               // what is not written never will be
  bool overflowed() const;   // Out::overflow, without taking anything
  bool keep_alive() const;   // after complete(): the connection may serve another request
  bool close();              // the client is gone; false when the answer was complete before

 private:
  bool begin(int status, const HttpHeaders& headers, int64_t content_length, bool chunked);
  size_t covered_bytes() const { return std::max<size_t>(kAnswerBytes, static_cast<size_t>(share_.bytes())) / 2; }
  bool cover(size_t bytes);
  bool wants_more_now() const;
  void frame(size_t bytes);

  mutable std::mutex mutex_;
  const ExchangeOptions options_;
  std::string queue_;
  std::string body_;  // behind the queue: of a whole answer, or a piece
  ByteShare share_;
  NextPiece next_;
  size_t queued_bytes_ = 0;
  size_t largest_chunk_bytes_ = 0;  // taken so far
  bool begun_ = false;
  bool pieces_ = false;
  bool chunked_ = false;
  bool keep_alive_ = true;
  bool complete_ = false;
  bool overflow_ = false;
  bool closed_ = false;
  std::function<void()> on_closed_, on_room_;
};

// The handle a handler gets. Dropping it unanswered answers for it.
class ExchangeWriter final : public ResponseWriter {
 public:
  explicit ExchangeWriter(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~ExchangeWriter() override { exchange_->abandon(); }
  bool respond(int status, HttpHeaders headers, std::string body) override {
    return exchange_->respond(status, std::move(headers), std::move(body));
  }
  bool respond_pieces(int status, HttpHeaders headers, NextPiece next) override {
    return exchange_->respond_pieces(status, std::move(headers), std::move(next));
  }
  bool start_stream(int status, HttpHeaders headers) override {
    return exchange_->start_stream(status, std::move(headers));
  }
  bool write(std::string_view chunk) override { return exchange_->write(chunk); }
  bool wants_more() const override { return exchange_->wants_more(); }
  void on_room(std::function<void()> callback) override { exchange_->on_room(std::move(callback)); }
  void finish() override { exchange_->finish(); }
  void on_closed(std::function<void()> callback) override { exchange_->on_closed(std::move(callback)); }
  bool closed() const override { return exchange_->closed(); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

}  // namespace loralei
