// SPDX-License-Identifier: Apache-2.0
#include "http/client.h"

#include <algorithm>
#include <optional>

#include "http/client_stream.h"

namespace loralei {

struct HttpClient::Impl {
  explicit Impl(const HttpClientOptions& options) : options(options), stream(options) {}

  // What the Host field says: the port only where it is not the scheme's own, since
  // signed addresses may hold the field as it was.
  std::string host_field() const { return options.port == (options.tls ? 443 : 80) ? options.host : stream.where(); }
  // Plain HTTP goes through a proxy by naming the whole address.
  std::string target_of(std::string_view target) const {
    const bool whole = options.proxy && !options.tls;
    return (whole ? "http://" + host_field() : "") + clean_header_value(target);
  }

  void disconnect() {
    stream.close();
    input.clear();
  }

  Result<HttpResponse> exchange(std::string_view request_head, std::string_view body, bool head_request,
                                const BodyCallback& on_body) {
    TRY(stream.connect());
    HttpResponse response;
    const ResponseParser* told = nullptr;
    const auto deliver = [&](std::string_view piece) {
      got_body = true;
      head = &told->head();
      if (on_body) return on_body(piece);
      response.body += piece;
      return true;
    };
    ResponseParser parser(options.limits, head_request, deliver);
    told = &parser;
    // A server may answer and close before it has read everything (413): a failed send is
    // an error only without an answer.
    Status sent = stream.send(request_head);
    if (sent.ok()) sent = stream.send(body);
    if (!sent.ok() && sent.error().code == ErrorCode::kDeadline) return sent.error();
    while (!parser.complete()) {
      auto more = stream.receive(input);
      if (!more.ok()) return sent.ok() ? more.error() : sent.error();
      if (*more)
        input.erase(0, parser.feed(input));
      else
        parser.feed_eof();
      if (parser.stopped()) return Error{ErrorCode::kCancelled, "the request was stopped"};
      if (parser.failed()) return io_error("reading from " + stream.where() + ": " + parser.error_message());
      // Interim answers (100) end a message for the parser; none are asked for here.
    }
    response.status = parser.head().status;
    response.headers = parser.head().headers;
    if (!parser.keep_alive() || !sent.ok()) disconnect();
    return response;
  }

  const HttpClientOptions options;
  ClientStream stream;
  std::string input;
  bool got_body = false;
  const HttpResponse* head = nullptr;  // while its body is being told
};

HttpClient::HttpClient(const HttpClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}
HttpClient::~HttpClient() = default;

Result<HttpResponse> HttpClient::request(std::string_view method, std::string_view target, const HttpHeaders& headers,
                                         std::string_view body, const BodyCallback& on_body) {
  std::string head = std::string(method) + " " + impl_->target_of(target) + " HTTP/1.1\r\n";
  if (!has_header(headers, "host")) head += "Host: " + impl_->host_field() + "\r\n";
  if (const auto& options = impl_->options; options.proxy && !options.tls && !options.proxy->authorization.empty())
    head += "Proxy-Authorization: " + clean_header_value(options.proxy->authorization) + "\r\n";
  for (const auto& [name, value] : headers)
    head += clean_header_value(name) + ": " + clean_header_value(value) + "\r\n";
  if (!body.empty() || method == "POST" || method == "PUT")
    head += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  head += "\r\n";
  // A kept connection may have been closed by the server meanwhile: then, and only
  // before any of the answer came, once more. A request that may have had an effect
  // is not repeated.
  const bool reused = impl_->stream.is_open();
  const bool repeatable = method == "GET" || method == "HEAD";
  for (int attempt = 0;; ++attempt) {
    impl_->got_body = false;
    auto response = impl_->exchange(head, body, method == "HEAD", on_body);
    if (response.ok()) return response;
    impl_->disconnect();
    if (attempt > 0 || !reused || !repeatable || impl_->got_body || response.error().code != ErrorCode::kIo)
      return response;
  }
}

int HttpClient::head_status() const { return impl_->head->status; }
const HttpHeaders& HttpClient::head_headers() const { return impl_->head->headers; }

Status HttpClient::send_raw(std::string_view bytes) {
  TRY(impl_->stream.connect());
  return impl_->stream.send(bytes);
}

Result<std::string> HttpClient::read_raw(size_t until) {
  while (impl_->input.size() < until) {
    TRY_ASSIGN(const bool more, impl_->stream.receive(impl_->input));
    if (!more) break;
  }
  const size_t n = std::min(until, impl_->input.size());
  std::string out = impl_->input.substr(0, n);
  impl_->input.erase(0, n);
  return out;
}

void HttpClient::close() { impl_->disconnect(); }

bool SseParser::line(std::string_view text, const EventCallback& on_event) {
  if (text.empty()) {
    const bool fire = has_data_;
    has_data_ = false;
    std::string data = std::move(data_);
    data_.clear();
    return !fire || on_event(data);
  }
  if (!text.starts_with("data:")) return true;
  text.remove_prefix(5);
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += text;
  has_data_ = true;
  return true;
}

bool SseParser::feed(std::string_view bytes, const EventCallback& on_event) {
  for (const char c : bytes) {
    const bool skip = after_cr_ && c == '\n';  // the second half of a CR LF
    after_cr_ = c == '\r';
    if (skip) continue;
    if (c != '\n' && c != '\r') {
      if (line_.size() + data_.size() >= max_event_bytes_) return false;
      line_ += c;
      continue;
    }
    const std::string text = std::move(line_);
    line_.clear();
    if (!line(text, on_event)) return false;
  }
  return true;
}

}  // namespace loralei
