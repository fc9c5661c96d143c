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

// What a stream's bytes take, in strings that may have twice their size.
int64_t steps_for(size_t bytes) {
  return static_cast<int64_t>((2 * bytes + kAnswerStepBytes - 1) / kAnswerStepBytes * kAnswerStepBytes);
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

// Under the lock. True for the first to answer.
bool Exchange::begin(int status, const HttpHeaders& headers, int64_t content_length, bool chunked) {
  if (begun_ || closed_) return false;
  begun_ = true;
  chunked_ = chunked && options_.version >= 11;
  const bool ends_by_close = content_length < 0 && !chunked_ && !has_no_body(status);
  keep_alive_ = options_.keep_alive && !ends_by_close && !options_.stopping();
  queue_ = format_response_head(status, options_.version, headers, content_length, chunked_, keep_alive_);
  queued_bytes_ = queue_.size();
  return true;
}

bool Exchange::respond(int status, HttpHeaders headers, std::string body) {
  bool no_room = false;
  {
    std::lock_guard lock(mutex_);
    if (begun_ || closed_) return false;
    no_room =
        !options_.head_only && body.capacity() > kAnswerBytes && !share_.grow_to(static_cast<int64_t>(body.capacity()));
  }
  if (no_room) {
    const std::string message = "The answer of " + std::to_string(body.size()) +
                                " bytes finds no room in the server's memory now; try again in a moment.";
    HttpResponse instead = options_.error_response ? options_.error_response(503, message) : HttpResponse{};
    status = 503;
    headers = std::move(instead.headers);
    headers.emplace_back("Retry-After", "1");
    body = std::move(instead.body);
  }
  std::function<void()> dropped, dropped_too;  // destroyed without the lock: they may own the caller's objects
  {
    std::lock_guard lock(mutex_);
    const int64_t length = has_no_body(status) ? -1 : static_cast<int64_t>(body.size());
    if (!begin(status, headers, length, false)) return false;
    if (!options_.head_only && length > 0) body_ = std::move(body);
    queued_bytes_ += body_.size();
    complete_ = true;
    dropped = std::exchange(on_closed_, nullptr);
    dropped_too = std::exchange(on_room_, nullptr);
  }
  options_.wake();
  return true;
}

bool Exchange::respond_pieces(int status, HttpHeaders headers, NextPiece next) {
  std::function<void()> dropped;
  {
    std::lock_guard lock(mutex_);
    if (!begin(status, headers, -1, !has_no_body(status))) return false;
    pieces_ = true;
    complete_ = options_.head_only || has_no_body(status);
    if (complete_)
      dropped = std::exchange(on_closed_, nullptr);
    else
      next_ = std::move(next);
  }
  options_.wake();
  return true;
}

bool Exchange::start_stream(int status, HttpHeaders headers) {
  {
    std::lock_guard lock(mutex_);
    if (!begin(status, headers, -1, true)) return false;
  }
  options_.wake();
  return true;
}

// Under the lock. Room for so many bytes of a stream.
bool Exchange::cover(size_t bytes) { return 2 * bytes <= kAnswerBytes || share_.grow_to(steps_for(bytes)); }

// Under the lock. What stands before a chunk of so many bytes.
void Exchange::frame(size_t bytes) {
  if (!chunked_) return;
  char length[16];
  const auto end = std::to_chars(length, length + sizeof length, bytes, 16);
  queue_.append(length, end.ptr);
  queue_ += "\r\n";
}

bool Exchange::write(std::string_view chunk) {
  constexpr size_t kFrameBytes = 20;
  {
    std::lock_guard lock(mutex_);
    if (!begun_ || complete_ || closed_ || overflow_ || pieces_) return false;
    if (chunk.empty() || options_.head_only) return true;
    // The reader is judged by what waits, not by the size of a chunk: one of any size is
    // taken, and may be draining.
    if (queued_bytes_ > options_.max_buffer_bytes + largest_chunk_bytes_ ||
        (!cover(queued_bytes_ + chunk.size() + kFrameBytes) && queued_bytes_ > covered_bytes() + kUncountedBytes)) {
      // The connection closes itself on its own thread, so that the caller may
      // hold locks here.
      overflow_ = true;
    } else {
      largest_chunk_bytes_ = std::max(largest_chunk_bytes_, chunk.size());
      const size_t before = queue_.size();
      frame(chunk.size());
      queue_ += chunk;
      if (chunked_) queue_ += "\r\n";
      queued_bytes_ += queue_.size() - before;
    }
  }
  options_.wake();
  std::lock_guard lock(mutex_);
  return !overflow_;
}

// Under the lock. What little always has a place is no reason to rest, so an empty queue
// is enough even where the memory has no room.
bool Exchange::wants_more_now() const {
  return !complete_ && !closed_ && !overflow_ && queued_bytes_ <= std::min(kEnoughBytes, covered_bytes());
}

bool Exchange::wants_more() const {
  std::lock_guard lock(mutex_);
  return wants_more_now();
}

void Exchange::on_room(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (complete_ || closed_ || overflow_) return;
    on_room_.swap(callback);
  }
  options_.wake();
}

void Exchange::finish() {
  std::function<void()> dropped, dropped_too;  // as in respond()
  {
    std::lock_guard lock(mutex_);
    if (!begun_ || complete_ || closed_ || overflow_ || pieces_) return;
    if (chunked_ && !options_.head_only) {
      queue_ += "0\r\n\r\n";
      queued_bytes_ += 5;
    }
    complete_ = true;
    dropped = std::exchange(on_closed_, nullptr);
    dropped_too = std::exchange(on_room_, nullptr);
  }
  options_.wake();
}

void Exchange::abandon() {
  bool unanswered = false;
  {
    std::lock_guard lock(mutex_);
    if (complete_ || closed_ || pieces_) return;
    unanswered = !begun_;
    overflow_ = begun_;  // a stream without an end: the client must see that it was cut
  }
  if (!unanswered) return options_.wake();
  HttpResponse response = options_.error_response
                              ? options_.error_response(500, "The request was dropped without an answer.")
                              : HttpResponse{};
  (void)respond(500, std::move(response.headers), std::move(response.body));
}

void Exchange::on_closed(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (complete_) return;
    if (!closed_) {
      on_closed_.swap(callback);
      return;
    }
  }
  callback();
}

bool Exchange::closed() const {
  std::lock_guard lock(mutex_);
  return closed_ || overflow_;
}

Exchange::Out Exchange::take() {
  std::lock_guard lock(mutex_);
  Out out;
  out.bytes = std::exchange(queue_, {});
  out.body = std::exchange(body_, {});
  out.complete = complete_;
  out.overflow = overflow_;
  if (on_room_ && wants_more_now()) out.on_room = std::exchange(on_room_, nullptr);
  return out;
}

void Exchange::wrote(size_t bytes) {
  std::lock_guard lock(mutex_);
  queued_bytes_ -= std::min(bytes, queued_bytes_);
  share_.shrink_to(queued_bytes_ == 0 ? 0 : steps_for(queued_bytes_));
}

bool Exchange::pull() {
  NextPiece next;
  {
    std::lock_guard lock(mutex_);
    if (!next_ || closed_) return false;
    next.swap(next_);
  }
  std::string piece;
  const bool more = next(piece) && !piece.empty();
  std::function<void()> dropped;
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (!piece.empty()) {
    frame(piece.size());
    if (chunked_) piece += "\r\n";
  }
  if (more) {
    next.swap(next_);
  } else {
    if (chunked_) piece += "0\r\n\r\n";
    complete_ = true;
    dropped.swap(on_closed_);
  }
  body_ = std::move(piece);
  queued_bytes_ += queue_.size() + body_.size();
  return true;
}

void Exchange::drop() {
  std::string queue, body;
  std::lock_guard lock(mutex_);
  queue.swap(queue_);
  body.swap(body_);
  share_.release();
}

bool Exchange::overflowed() const {
  std::lock_guard lock(mutex_);
  return overflow_;
}

bool Exchange::keep_alive() const {
  std::lock_guard lock(mutex_);
  return complete_ && keep_alive_ && !closed_;
}

bool Exchange::close() {
  std::function<void()> callback, dropped;
  NextPiece next;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return true;
    if (complete_) return false;
    closed_ = true;
    next.swap(next_);
    callback.swap(on_closed_);
    dropped.swap(on_room_);
  }
  if (callback) callback();
  return true;
}

}  // namespace loralei
