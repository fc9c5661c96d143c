// SPDX-License-Identifier: Apache-2.0
#include "http/parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/none.hpp>
#include <utility>

namespace loralei {
namespace {

namespace http = boost::beast::http;
using boost::optional;
using boost::beast::error_code;
using boost::beast::string_view;

std::string_view view(string_view text) { return {text.data(), text.size()}; }

// What to answer for each way in which Beast refuses a request.
std::pair<int, std::string> explain(const error_code& ec, const HttpLimits& limits) {
  if (ec == http::error::header_limit) {
    return {431,
            "The request header is larger than the limit of " + std::to_string(limits.max_header_bytes) + " bytes."};
  }
  if (ec == http::error::bad_version) return {505, "Only HTTP/1.0 and HTTP/1.1 are spoken here."};
  return {400, "The request is not valid HTTP: " + ec.message() + "."};
}

// Collects a request. Errors of our own are stored beside Beast's, because they
// carry a status.
class RequestCollector final : public http::basic_parser<true> {
 public:
  RequestCollector(const HttpLimits& limits, RequestParser::BodyLimit body_limit)
      : limits_(limits), body_limit_(std::move(body_limit)), max_body_bytes_(limits.max_body_bytes) {
    header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
    this->body_limit(boost::none);  // judged here, when the head is known
    eager(true);
  }

  HttpRequest request;
  bool header_done = false;
  bool expects_continue = false;
  size_t room = SIZE_MAX;  // for the body
  bool full = false;
  uint64_t drained_bytes = 0;  // of the body
  int status = 0;
  std::string message;

  void refuse(int new_status, std::string new_message, error_code& ec) {
    status = new_status;
    message = std::move(new_message);
    ec = http::error::bad_field;
  }

 private:
  void on_request_impl(http::verb, string_view method, string_view target, int version, error_code& ec) override {
    request.method.assign(method.data(), method.size());
    request.version = version;
    std::string_view text = view(target);
    // Absolute form, as proxies send it: the authority is the Host header's business.
    if (text.starts_with("http://") || text.starts_with("https://")) {
      const size_t slash = text.find('/', text.find("//") + 2);
      text = slash == std::string_view::npos ? "/" : text.substr(slash);
    }
    if (text != "*" && !text.starts_with('/')) {
      return refuse(400, "The request target must be a path that begins with '/'.", ec);
    }
    request.target = text;
    const size_t query = text.find('?');
    request.path = text.substr(0, query);
    if (query != std::string_view::npos) request.query = text.substr(query + 1);
  }

  void on_response_impl(int, string_view, int, error_code&) override {}

  void on_field_impl(http::field, string_view name, string_view value, error_code& ec) override {
    if (header_done) return;  // trailers of a chunked body have no meaning here
    if (request.headers.size() >= limits_.max_headers) {
      return refuse(431, "The request has more than " + std::to_string(limits_.max_headers) + " header fields.", ec);
    }
    request.headers.emplace_back(view(name), view(value));
  }

  void on_header_impl(error_code& ec) override {
    header_done = true;
    int hosts = 0;
    for (const auto& [name, value] : request.headers) hosts += equals_ignoring_case(name, "host");
    if (hosts > 1 || (hosts == 0 && request.version >= 11)) {
      return refuse(400, "An HTTP/1.1 request needs exactly one Host header.", ec);
    }
    // Beast takes any transfer coding without "chunked" for a request without body, which
    // would let the body pass for the next request.
    if (has_header(request.headers, "transfer-encoding") &&
        !equals_ignoring_case(find_header(request.headers, "transfer-encoding"), "chunked")) {
      return refuse(501, "The only transfer coding understood is 'chunked'.", ec);
    }
    if (has_header(request.headers, "content-encoding") &&
        !equals_ignoring_case(find_header(request.headers, "content-encoding"), "identity")) {
      return refuse(415, "Compressed request bodies are not accepted: send the body without Content-Encoding.", ec);
    }
    const std::string_view expect = find_header(request.headers, "expect");
    if (!expect.empty()) {
      if (!equals_ignoring_case(expect, "100-continue")) {
        return refuse(417, "The only expectation understood is '100-continue'.", ec);
      }
      expects_continue = request.version >= 11;
    }
    request.has_body = chunked() || content_length().value_or(0) > 0;
    request.keep_alive = keep_alive();
    if (body_limit_) max_body_bytes_ = static_cast<uint64_t>(std::max<int64_t>(0, body_limit_(request)));
    if (content_length().value_or(0) > max_body_bytes_) refuse_large(ec);
  }

  void on_body_init_impl(optional<std::uint64_t> const&, error_code&) override {}

  std::size_t on_body_impl(string_view body, error_code& ec) override { return append(body, ec); }

  void on_chunk_header_impl(std::uint64_t size, string_view, error_code& ec) override {
    if (size > max_body_bytes_ - (drained_bytes + request.body.size())) refuse_large(ec);
  }

  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code& ec) override { return append(body, ec); }

  void on_finish_impl(error_code&) override {}

  void refuse_large(error_code& ec) {
    refuse(413, "The request body is larger than the limit of " + std::to_string(max_body_bytes_) + " bytes.", ec);
  }

  std::size_t append(string_view body, error_code& ec) {
    const size_t n = std::min(body.size(), room - request.body.size());
    request.body.append(body.data(), n);
    full |= n < body.size();
    if (full) ec = http::error::need_buffer;
    return n;
  }

  const HttpLimits limits_;
  const RequestParser::BodyLimit body_limit_;
  uint64_t max_body_bytes_;
};

class ResponseCollector final : public http::basic_parser<false> {
 public:
  ResponseCollector(const HttpLimits& limits, bool head_request, ResponseParser::BodyCallback on_body)
      : max_headers_(limits.max_headers), on_body_(std::move(on_body)) {
    header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
    body_limit(limits.max_body_bytes);
    eager(false);  // a piece of the body at a time, for pause()
    skip(head_request);
  }

  HttpResponse head;
  bool header_done = false;
  bool stopped = false;
  bool paused = false;

 private:
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}
  void on_response_impl(int status, string_view, int, error_code&) override { head.status = status; }
  void on_field_impl(http::field, string_view name, string_view value, error_code& ec) override {
    if (header_done) return;
    if (head.headers.size() >= max_headers_)
      ec = http::error::header_limit;
    else
      head.headers.emplace_back(view(name), view(value));
  }
  void on_header_impl(error_code&) override { header_done = true; }
  void on_body_init_impl(optional<std::uint64_t> const&, error_code&) override {}
  std::size_t on_body_impl(string_view body, error_code& ec) override { return deliver(body, ec); }
  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code& ec) override { return deliver(body, ec); }
  void on_finish_impl(error_code&) override {}

  std::size_t deliver(string_view body, error_code& ec) {
    if (on_body_ && !body.empty() && !on_body_(view(body))) {
      stopped = true;
      ec = http::error::end_of_stream;
      return 0;
    }
    return body.size();
  }

  const size_t max_headers_;
  ResponseParser::BodyCallback on_body_;
};

// Feeds as much as the parser takes, until `enough`; that it needs more, or room, is not
// an error.
template <typename Collector, typename Enough>
size_t feed_all(Collector& collector, std::string_view bytes, error_code& ec, const Enough& enough) {
  size_t used = 0;
  while (used < bytes.size() && !collector.is_done() && !enough()) {
    const size_t step = collector.put(boost::asio::const_buffer(bytes.data() + used, bytes.size() - used), ec);
    used += step;
    if (ec == http::error::need_more || ec == http::error::need_buffer) {
      ec = {};
      break;
    }
    if (ec || step == 0) break;
  }
  return used;
}

}  // namespace

struct RequestParser::Impl {
  Impl(const HttpLimits& limits, BodyLimit body_limit) : limits(limits), collector(limits, std::move(body_limit)) {}
  size_t feed(std::string_view bytes, bool head_only);
  HttpLimits limits;
  RequestCollector collector;
  bool failed = false;
};

RequestParser::RequestParser(const HttpLimits& limits, BodyLimit body_limit)
    : impl_(std::make_unique<Impl>(limits, std::move(body_limit))) {}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;

size_t RequestParser::Impl::feed(std::string_view bytes, bool head_only) {
  if (failed || collector.is_done()) return 0;
  error_code ec;
  collector.full = false;
  collector.eager(!head_only);
  const size_t used = feed_all(collector, bytes, ec, [&] { return head_only && collector.header_done; });
  // What the parser does not consume is an unfinished line or header: it may not
  // grow without end.
  const bool stopped = collector.is_done() || collector.full || (head_only && collector.header_done);
  if (!ec && !stopped && bytes.size() - used > limits.max_header_bytes) ec = http::error::header_limit;
  if (ec) {
    failed = true;
    if (collector.status == 0) std::tie(collector.status, collector.message) = explain(ec, limits);
  }
  return used;
}

size_t RequestParser::feed(std::string_view bytes) { return impl_->feed(bytes, false); }
size_t RequestParser::feed_head(std::string_view bytes) {
  return impl_->collector.header_done ? 0 : impl_->feed(bytes, true);
}

void RequestParser::reserve_body(size_t bytes) {
  std::string& body = impl_->collector.request.body;
  CHECK(bytes >= body.size());
  std::string larger;  // a string that grows in place takes twice what it had, whatever it is asked for
  larger.reserve(bytes);
  larger += body;
  body = std::move(larger);
  impl_->collector.room = bytes;
  impl_->collector.full = false;
}

bool RequestParser::failed() const { return impl_->failed; }
int RequestParser::error_status() const { return impl_->collector.status; }
const std::string& RequestParser::error_message() const { return impl_->collector.message; }
bool RequestParser::header_complete() const { return impl_->collector.header_done; }
bool RequestParser::complete() const { return !impl_->failed && impl_->collector.is_done(); }
const HttpHead& RequestParser::head() const { return impl_->collector.request; }
size_t RequestParser::body_bytes() const {
  return impl_->collector.drained_bytes + impl_->collector.request.body.size();
}
std::string RequestParser::drain_body() {
  std::string& body = impl_->collector.request.body;
  impl_->collector.drained_bytes += body.size();
  impl_->collector.full = false;
  return std::exchange(body, {});
}
bool RequestParser::body_is_full() const { return impl_->collector.full; }
std::optional<size_t> RequestParser::announced_bytes() const {
  if (impl_->collector.chunked()) return std::nullopt;
  return impl_->collector.content_length().value_or(0);
}
bool RequestParser::expects_continue() const { return impl_->collector.expects_continue && !complete(); }
HttpRequest RequestParser::take() { return std::move(impl_->collector.request); }

struct ResponseParser::Impl {
  Impl(const HttpLimits& limits, bool head_request, BodyCallback on_body)
      : limits(limits), collector(limits, head_request, std::move(on_body)) {}
  HttpLimits limits;
  ResponseCollector collector;
  bool failed = false;
  std::string message;
};

ResponseParser::ResponseParser(const HttpLimits& limits, bool head_request, BodyCallback on_body)
    : impl_(std::make_unique<Impl>(limits, head_request, std::move(on_body))) {}
ResponseParser::~ResponseParser() = default;

size_t ResponseParser::feed(std::string_view bytes) {
  if (impl_->failed || complete()) return 0;
  error_code ec;
  impl_->collector.paused = false;
  const size_t used = feed_all(impl_->collector, bytes, ec, [this] { return impl_->collector.paused; });
  if (!ec && !complete() && !impl_->collector.paused && bytes.size() - used > impl_->limits.max_header_bytes)
    ec = http::error::header_limit;
  if (ec) {
    impl_->failed = true;
    impl_->message = "The answer is not valid HTTP: " + ec.message();
  }
  return used;
}

void ResponseParser::pause() { impl_->collector.paused = true; }

void ResponseParser::feed_eof() {
  if (impl_->failed || complete()) return;
  error_code ec;
  if (impl_->collector.got_some())
    impl_->collector.put_eof(ec);
  else
    ec = http::error::end_of_stream;
  if (ec) {
    impl_->failed = true;
    impl_->message = "The connection was closed before the answer was complete";
  }
}

bool ResponseParser::failed() const { return impl_->failed; }
bool ResponseParser::stopped() const { return impl_->collector.stopped; }
const std::string& ResponseParser::error_message() const { return impl_->message; }
bool ResponseParser::header_complete() const { return impl_->collector.header_done; }
bool ResponseParser::complete() const { return !impl_->failed && impl_->collector.is_done(); }
bool ResponseParser::keep_alive() const { return complete() && impl_->collector.keep_alive(); }
const HttpResponse& ResponseParser::head() const { return impl_->collector.head; }

}  // namespace loralei
