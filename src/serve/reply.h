// SPDX-License-Identifier: Apache-2.0
// Reply: the answer to one HTTP request, with the headers every answer has, the count in
// the metrics, and the log's line where it is refused.
//
// Thread: as ResponseWriter: any; the first answer counts.
// Ownership: shared by whoever may answer.
// Invariants: the request's memory is given back with the reply, or with what an answer
// is made of; every answer carries X-Request-Id and, where allowed, the CORS headers;
// it is counted once.
// Failure: as ResponseWriter.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"
#include "http/server.h"
#include "serve/key_ledger.h"
#include "serve/metrics.h"
#include "wire/errors.h"
#include "wire/messages_api.h"
#include "wire/responses.h"

namespace loralei {

class Reply {
 public:
  Reply(std::shared_ptr<ResponseWriter> writer, Metrics& metrics, LogSink& log, const char* route, std::string method,
        std::string request_id, HttpHeaders headers, std::shared_ptr<ByteShare> memory)
      : writer_(std::move(writer)),
        memory_(std::move(memory)),
        metrics_(metrics),
        log_(log),
        route_(route),
        method_(std::move(method)),
        request_id_(std::move(request_id)),
        headers_(std::move(headers)) {
    headers_.emplace_back("X-Request-Id", request_id_);
  }

  // Errors as Anthropic's clients read them, and the request's id under the name
  // that they look for.
  void speak_anthropic() {
    anthropic_ = true;
    headers_.emplace_back("request-id", request_id_);
  }
  // Of a key with a name; before anybody else has it. The ticket may be null.
  void belong_to(std::string key, std::shared_ptr<KeyTicket> ticket) {
    key_ = std::move(key);
    ticket_ = std::move(ticket);
  }
  const std::string& key() const { return key_; }
  KeyTicket* ticket() { return ticket_.get(); }
  // x-ratelimit-..., in the place of those before; before it is answered.
  void set_limits(HttpHeaders limits) { limits_ = std::move(limits); }
  // At the end of what is computed, before its client hears of it, for that one may ask
  // again at once.
  void settle(RequestRecord& record) {
    record.key = key_;
    if (ticket_) ticket_->used(record.admitted ? record.prompt_tokens : 0, record.output_tokens);
  }
  const std::string& request_id() const { return request_id_; }
  ResponseWriter& writer() { return *writer_; }
  // For who goes on writing when the reply is gone.
  std::shared_ptr<ResponseWriter> shared_writer() const { return writer_; }
  // What the request and its answer have of the server's memory; belongs to whoever
  // works on the request.
  ByteShare& memory() { return *memory_; }

  void json(int status, std::string body, HttpHeaders more = {}) {
    send(status, "application/json", std::move(body), std::move(more));
  }
  // A whole answer, made as its client reads it, out of what has the request's memory and
  // borrows of `owner`.
  void json_pieces(int status, std::unique_ptr<ResponsePieces> pieces, std::shared_ptr<const void> owner) {
    HttpHeaders headers = head();
    headers.emplace_back("Content-Type", "application/json");
    end_ticket();
    count(status);
    writer_->respond_pieces(
        status, std::move(headers),
        [owner = std::move(owner), memory = memory_, pieces = std::shared_ptr<ResponsePieces>(std::move(pieces))](
            std::string& piece) { return pieces->next(piece); });
  }
  void text(int status, std::string body) { send(status, "text/plain; charset=utf-8", std::move(body), {}); }
  void send(int status, const char* content_type, std::string body, HttpHeaders more) {
    HttpHeaders headers = head();
    headers.emplace_back("Content-Type", content_type);
    headers.insert(headers.end(), more.begin(), more.end());
    end_ticket();
    count(status);
    writer_->respond(status, std::move(headers), std::move(body));
  }
  // Its body comes by writer().write(); false: the client is gone.
  bool start(int status, const char* content_type, HttpHeaders more) {
    HttpHeaders headers = head();
    headers.emplace_back("Content-Type", content_type);
    headers.insert(headers.end(), more.begin(), more.end());
    count(status);
    return writer_->start_stream(status, std::move(headers));
  }
  void empty(int status, HttpHeaders more) {
    HttpHeaders headers = head();
    headers.insert(headers.end(), more.begin(), more.end());
    end_ticket();
    count(status);
    writer_->respond(status, std::move(headers), "");
  }
  // Of a request that ends with it: nobody else will log it.
  void refuse(const ApiError& error, HttpHeaders more = {}) {
    log_refusal(log_, request_id_, method_, route_, error.status, error.message, key_);
    if (ticket_ && error.code == "model_not_found") ticket_->refused_adapter();
    this->error(error, std::move(more));
  }
  void error(const ApiError& error, HttpHeaders more = {}) {
    if (error.status == 401) more.emplace_back("WWW-Authenticate", "Bearer");
    if ((error.status == 429 || error.status == 503) && !has_header(more, "retry-after"))
      more.emplace_back("Retry-After", "1");
    json(error.status, anthropic_ ? anthropic_error_body(error, request_id_) : error_body(error), std::move(more));
  }
  bool start_events() {
    HttpHeaders headers = head();
    headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
    headers.emplace_back("Cache-Control", "no-cache");
    headers.emplace_back("X-Accel-Buffering", "no");  // proxies must not hold events back
    count(200);
    return writer_->start_stream(200, std::move(headers));
  }

 private:
  HttpHeaders head() const {
    HttpHeaders all = headers_;
    all.insert(all.end(), limits_.begin(), limits_.end());
    return all;
  }
  void end_ticket() {
    if (ticket_) ticket_->used(0, 0);
  }
  void count(int status) {
    if (!counted_.exchange(true)) metrics_.http_request(route_, method_, status);
  }
  const std::shared_ptr<ResponseWriter> writer_;
  const std::shared_ptr<ByteShare> memory_;
  Metrics& metrics_;
  LogSink& log_;
  const char* const route_;
  const std::string method_;
  const std::string request_id_;
  HttpHeaders headers_, limits_;
  std::string key_;
  std::shared_ptr<KeyTicket> ticket_;
  bool anthropic_ = false;  // before anybody else has it
  std::atomic<bool> counted_{false};
};

}  // namespace loralei
