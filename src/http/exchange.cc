// SPDX-License-Identifier: Apache-2.0
#include "http/exchange.h"

#include <algorithm>
#include <charconv>
#include <ctime>

namespace loralei {
namespace {

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);  // the C locale: nobody calls setlocale here
  return text;
}

bool has_no_body(int status) { return status == 204 || status == 304 || status < 200; }

}  // namespace

std::string format_response_head(int status, int version, const HttpHeaders& headers, int64_t content_length,
                                 bool chunked, bool keep_alive) {
  std::string out = version >= 11 ? "HTTP/1.1 " : "HTTP/1.0 ";
  out += std::to_string(status);
  out += ' ';
  out += reason_phrase(status);
  out += "\r\nDate: " + http_date() + "\r\n";
  for (const auto& [name, value] : headers) {
    out += clean_header_value(name);
    out += ": ";
    out += clean_header_value(value);
    out += "\r\n";
  }
  if (chunked) out += "Transfer-Encoding: chunked\r\n";
  if (content_length >= 0) out += "Content-Length: " + std::to_string(content_length) + "\r\n";
  if (!keep_alive)
    out += "Connection: close\r\n";
  else if (version < 11)
    out += "Connection: keep-alive\r\n";
  out += "\r\n";
  return out;
}

bool Exchange::respond(int status, HttpHeaders headers, std::string body) {
  std::function<void()> dropped;  // destroyed without the lock: it may own the caller's objects
  {
    std::lock_guard lock(mutex_);
    if (begun_ || closed_) return false;
    begun_ = true;
    keep_alive_ = options_.keep_alive && !options_.stopping();
    const int64_t length = has_no_body(status) ? -1 : static_cast<int64_t>(body.size());
    queue_ = format_response_head(status, options_.version, headers, length, false, keep_alive_);
    if (!options_.head_only && length > 0) queue_ += body;
    queued_bytes_ = queue_.size();
    complete_ = true;
    dropped = std::move(on_closed_);
    on_closed_ = nullptr;
  }
  options_.wake();
  return true;
}

bool Exchange::start_stream(int status, HttpHeaders headers) {
  {
    std::lock_guard lock(mutex_);
    if (begun_ || closed_) return false;
    begun_ = true;
    chunked_ = options_.version >= 11;
    keep_alive_ = options_.keep_alive && chunked_ && !options_.stopping();
    queue_ = format_response_head(status, options_.version, headers, -1, chunked_, keep_alive_);
    queued_bytes_ = queue_.size();
  }
  options_.wake();
  return true;
}

bool Exchange::write(std::string_view chunk) {
  {
    std::lock_guard lock(mutex_);
    if (!begun_ || complete_ || closed_ || overflow_) return false;
    if (chunk.empty() || options_.head_only) return true;
    // The reader is judged by what waits, not by the size of a chunk: one of any size is taken, and may be draining.
    if (queued_bytes_ > options_.max_buffer_bytes + largest_chunk_bytes_) {
      // The connection closes itself on its own thread, so that the caller may hold locks here.
      overflow_ = true;
    } else {
      largest_chunk_bytes_ = std::max(largest_chunk_bytes_, chunk.size());
      const size_t before = queue_.size();
      if (chunked_) {
        char length[16];
        const auto end = std::to_chars(length, length + sizeof length, chunk.size(), 16);
        queue_.append(length, end.ptr);
        queue_ += "\r\n";
      }
      queue_ += chunk;
      if (chunked_) queue_ += "\r\n";
      queued_bytes_ += queue_.size() - before;
    }
  }
  options_.wake();
  std::lock_guard lock(mutex_);
  return !overflow_;
}

void Exchange::finish() {
  std::function<void()> dropped;  // as in respond()
  {
    std::lock_guard lock(mutex_);
    if (!begun_ || complete_ || closed_ || overflow_) return;
    if (chunked_ && !options_.head_only) {
      queue_ += "0\r\n\r\n";
      queued_bytes_ += 5;
    }
    complete_ = true;
    dropped = std::move(on_closed_);
    on_closed_ = nullptr;
  }
  options_.wake();
}

void Exchange::abandon(HttpResponse fallback) {
  if (respond(fallback.status, std::move(fallback.headers), std::move(fallback.body))) return;
  {
    std::lock_guard lock(mutex_);
    if (complete_ || closed_) return;
    overflow_ = true;  // a stream without an end: the client must see that it was cut
  }
  options_.wake();
}

void Exchange::on_closed(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (complete_) return;
    if (!closed_) {
      on_closed_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool Exchange::closed() const {
  std::lock_guard lock(mutex_);
  return closed_ || overflow_;
}

bool Exchange::begun() const {
  std::lock_guard lock(mutex_);
  return begun_;
}

Exchange::Out Exchange::take() {
  std::lock_guard lock(mutex_);
  Out out;
  out.bytes = std::move(queue_);
  queue_.clear();
  out.complete = complete_;
  out.overflow = overflow_;
  return out;
}

void Exchange::wrote(size_t bytes) {
  std::lock_guard lock(mutex_);
  queued_bytes_ -= std::min(bytes, queued_bytes_);
}

bool Exchange::complete() const {
  std::lock_guard lock(mutex_);
  return complete_;
}

bool Exchange::keep_alive() const {
  std::lock_guard lock(mutex_);
  return complete_ && keep_alive_ && !closed_;
}

bool Exchange::close() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return true;
    if (complete_) return false;
    closed_ = true;
    queue_.clear();
    callback = std::move(on_closed_);
    on_closed_ = nullptr;
  }
  if (callback) callback();
  return true;
}

ExchangeWriter::~ExchangeWriter() {
  HttpResponse fallback;
  if (!exchange_->begun() && !exchange_->closed() && error_response_)
    fallback = error_response_(500, "The request was dropped without an answer.");
  fallback.status = 500;
  exchange_->abandon(std::move(fallback));
}

}  // namespace loralei
