// SPDX-License-Identifier: Apache-2.0
#include "http/client.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <optional>

namespace loralei {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

}  // namespace

struct HttpClient::Impl {
  explicit Impl(const HttpClientOptions& options) : options(options), socket(context) {}

  std::string where() const { return options.host + ":" + std::to_string(options.port); }

  // Runs what was started until it reports in `done` or the time is over; then the socket
  // is closed, which ends it.
  Status run(const std::optional<error_code>& done, int64_t timeout_ms, const char* step) {
    context.restart();
    context.run_for(std::chrono::milliseconds(timeout_ms));
    const bool late = !done.has_value();
    if (late) {
      disconnect();
      context.restart();
      context.run();
      return Error{ErrorCode::kDeadline,
                   std::string(step) + " " + where() + " took longer than " + std::to_string(timeout_ms) + " ms"};
    }
    if (*done) return io_error(std::string(step) + " " + where() + ": " + done->message());
    return {};
  }

  Status connect() {
    if (socket.is_open()) return {};
    error_code ec;
    tcp::resolver resolver(context);
    std::string host = options.host;
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    const auto found = resolver.resolve(host, std::to_string(options.port), ec);
    if (ec) return io_error("looking up " + where() + ": " + ec.message());
    std::optional<error_code> done;
    asio::async_connect(socket, found, [&](error_code result, const tcp::endpoint&) { done = result; });
    Status status = run(done, options.connect_timeout_ms, "connecting to");
    if (!status.ok())
      disconnect();
    else
      socket.set_option(tcp::no_delay(true), ec);
    return status;
  }

  Status send(std::string_view bytes) {
    while (!bytes.empty()) {
      std::optional<error_code> done;
      size_t sent = 0;
      socket.async_write_some(asio::buffer(bytes.data(), bytes.size()), [&](error_code result, size_t n) {
        done = result;
        sent = n;
      });
      TRY(run(done, options.read_timeout_ms, "sending to"));
      bytes.remove_prefix(sent);
    }
    return {};
  }

  // Appends what arrives; false at the end of the stream.
  Result<bool> receive() {
    std::optional<error_code> done;
    size_t received = 0;
    std::array<char, 16 * 1024> chunk;
    socket.async_read_some(asio::buffer(chunk), [&](error_code result, size_t n) {
      done = result;
      received = n;
    });
    const Status status = run(done, options.read_timeout_ms, "reading from");
    if (done == asio::error::eof) return false;
    if (!status.ok()) return status.error();
    input.append(chunk.data(), received);
    return true;
  }

  void disconnect() {
    error_code ignored;
    socket.close(ignored);
    input.clear();
  }

  Result<HttpResponse> exchange(std::string_view head, std::string_view body, bool head_request,
                                const BodyCallback& on_body) {
    TRY(connect());
    HttpResponse response;
    const ResponseParser* told = nullptr;
    const auto deliver = [&](std::string_view piece) {
      got_body = true;
      head_status = told->head().status;
      if (on_body) return on_body(piece);
      response.body += piece;
      return true;
    };
    ResponseParser parser(options.limits, head_request, deliver);
    told = &parser;
    // A server may answer and close before it has read everything (413): a failed send is
    // an error only without an answer.
    Status sent = send(head);
    if (sent.ok()) sent = send(body);
    if (!sent.ok() && sent.error().code == ErrorCode::kDeadline) return sent.error();
    while (!parser.complete()) {
      auto more = receive();
      if (!more.ok()) return sent.ok() ? more.error() : sent.error();
      if (*more)
        input.erase(0, parser.feed(input));
      else
        parser.feed_eof();
      if (parser.stopped()) return Error{ErrorCode::kCancelled, "the request was stopped"};
      if (parser.failed()) return io_error("reading from " + where() + ": " + parser.error_message());
      // Interim answers (100) end a message for the parser; none are asked for here.
    }
    response.status = parser.head().status;
    response.headers = parser.head().headers;
    if (!parser.keep_alive() || !sent.ok()) disconnect();
    return response;
  }

  const HttpClientOptions options;
  asio::io_context context;
  tcp::socket socket;
  std::string input;
  bool got_body = false;
  int head_status = 0;
};

HttpClient::HttpClient(const HttpClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}
HttpClient::~HttpClient() = default;

Result<HttpResponse> HttpClient::request(std::string_view method, std::string_view target, const HttpHeaders& headers,
                                         std::string_view body, const BodyCallback& on_body) {
  std::string head = std::string(method) + " " + clean_header_value(target) + " HTTP/1.1\r\n";
  if (!has_header(headers, "host")) head += "Host: " + impl_->where() + "\r\n";
  for (const auto& [name, value] : headers)
    head += clean_header_value(name) + ": " + clean_header_value(value) + "\r\n";
  if (!body.empty() || method == "POST" || method == "PUT")
    head += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  head += "\r\n";
  // A kept connection may have been closed by the server meanwhile: then, and only
  // before any of the answer came, once more. A request that may have had an effect
  // is not repeated.
  const bool reused = impl_->socket.is_open();
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

int HttpClient::head_status() const { return impl_->head_status; }

Status HttpClient::send_raw(std::string_view bytes) {
  TRY(impl_->connect());
  return impl_->send(bytes);
}

Result<std::string> HttpClient::read_raw(size_t until) {
  while (impl_->input.size() < until) {
    TRY_ASSIGN(const bool more, impl_->receive());
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
