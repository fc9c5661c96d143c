// SPDX-License-Identifier: Apache-2.0
#include "http/client_stream.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <chrono>

namespace loralei {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

}  // namespace

// Runs what was started until it reports in `done` or the time is over; then the socket
// is closed, which ends it.
Status ClientStream::run(const std::optional<ErrorCodeOf>& done, int64_t timeout_ms, const char* step) {
  context_.restart();
  context_.run_for(std::chrono::milliseconds(timeout_ms));
  const bool late = !done.has_value();
  if (late) {
    close();
    context_.restart();
    context_.run();
    return Error{ErrorCode::kDeadline,
                 std::string(step) + " " + where() + " took longer than " + std::to_string(timeout_ms) + " ms"};
  }
  if (*done) return io_error(std::string(step) + " " + where() + ": " + done->message());
  return {};
}

Status ClientStream::open(const std::string& host, int port) {
  error_code ec;
  tcp::resolver resolver(context_);
  std::string name = host;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  const auto found = resolver.resolve(name, std::to_string(port), ec);
  if (ec) return io_error("looking up " + host + ":" + std::to_string(port) + ": " + ec.message());
  std::optional<error_code> done;
  asio::async_connect(socket_, found, [&](error_code result, const tcp::endpoint&) { done = result; });
  TRY(run(done, options_.connect_timeout_ms, "connecting to"));
  socket_.set_option(tcp::no_delay(true), ec);
  return {};
}

Status ClientStream::connect() {
  if (is_open()) return {};
  const auto opened = [&]() -> Status {
    if (options_.proxy) {
      const Status reached = open(options_.proxy->host, options_.proxy->port);
      if (!reached.ok()) return Error(reached.error()).with_context("through the proxy " + options_.proxy->host);
    } else {
      TRY(open(options_.host, options_.port));
    }
    if (!options_.tls) return {};
    if (options_.proxy) TRY(ask_proxy());
    return begin_tls();
  };
  Status status = opened();
  if (!status.ok()) close();
  return status;
}

Status ClientStream::ask_proxy() {
  std::string request = "CONNECT " + where() + " HTTP/1.1\r\nHost: " + where() + "\r\n";
  if (!options_.proxy->authorization.empty())
    request += "Proxy-Authorization: " + clean_header_value(options_.proxy->authorization) + "\r\n";
  TRY(send_plain(request + "\r\n"));
  ResponseParser parser(options_.limits, true, [](std::string_view) { return true; });
  std::string input;
  while (!parser.complete()) {
    TRY_ASSIGN(const bool more, receive_plain(input));
    if (more)
      input.erase(0, parser.feed(input));
    else
      parser.feed_eof();
    if (parser.failed()) return io_error("the proxy " + options_.proxy->host + " does not answer in HTTP");
  }
  const int status = parser.head().status;
  if (status < 200 || status > 299) {
    return Error{status == 407 ? ErrorCode::kUnauthenticated : ErrorCode::kIo,
                 "the proxy " + options_.proxy->host + " does not let us through to " + where() + ": it answers " +
                     std::to_string(status) +
                     (status == 407 ? ", so name a user: http://USER:PASSWORD@HOST:PORT" : "")};
  }
  if (!input.empty()) return io_error("the proxy " + options_.proxy->host + " says more than it was asked");
  return {};
}

Status ClientStream::begin_tls() {
  std::string host = options_.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  TRY_ASSIGN(auto session, TlsClientSession::make(options_.tls, host, where()));
  for (;;) {
    auto done = session->handshake();
    const Status sent = send_plain(session->take_output());  // of a failure the peer is told, too
    if (!done.ok()) return std::move(done).error();
    TRY(sent);
    if (*done) break;
    std::string coded;
    TRY_ASSIGN(const bool more, receive_plain(coded));
    if (!more)
      return io_error("agreeing on TLS with " + where() + ": the connection was closed (is this port plain HTTP?)");
    session->feed(coded);
  }
  tls_ = std::move(session);
  return {};
}

Status ClientStream::send_plain(std::string_view bytes) {
  while (!bytes.empty()) {
    std::optional<error_code> done;
    size_t sent = 0;
    socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()), [&](error_code result, size_t n) {
      done = result;
      sent = n;
    });
    TRY(run(done, options_.read_timeout_ms, "sending to"));
    bytes.remove_prefix(sent);
  }
  return {};
}

Result<bool> ClientStream::receive_plain(std::string& to) {
  std::optional<error_code> done;
  size_t received = 0;
  std::array<char, 16 * 1024> chunk;
  socket_.async_read_some(asio::buffer(chunk), [&](error_code result, size_t n) {
    done = result;
    received = n;
  });
  const Status status = run(done, options_.read_timeout_ms, "reading from");
  if (done == asio::error::eof) return false;
  if (!status.ok()) return status.error();
  to.append(chunk.data(), received);
  return true;
}

Status ClientStream::send(std::string_view bytes) {
  if (!tls_) return send_plain(bytes);
  constexpr size_t kPiece = 64 * 1024;  // that the coded form is held of
  while (!bytes.empty()) {
    TRY(tls_->write(bytes.substr(0, kPiece)));
    TRY(send_plain(tls_->take_output()));
    bytes.remove_prefix(std::min(kPiece, bytes.size()));
  }
  return {};
}

Result<bool> ClientStream::receive(std::string& to) {
  if (!tls_) return receive_plain(to);
  const size_t before = to.size();
  for (;;) {
    TRY_ASSIGN(const bool ended, tls_->read(to));
    if (const std::string output = tls_->take_output(); !output.empty()) TRY(send_plain(output));
    if (to.size() > before) return true;
    if (ended) return false;
    std::string coded;
    TRY_ASSIGN(const bool more, receive_plain(coded));
    if (!more) return io_error("reading from " + where() + ": the connection was cut");
    tls_->feed(coded);
  }
}

void ClientStream::close() {
  error_code ignored;
  socket_.close(ignored);
  tls_.reset();
}

}  // namespace loralei
