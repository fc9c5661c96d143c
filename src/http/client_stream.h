// SPDX-License-Identifier: Apache-2.0
// ClientStream: the bytes of a client's connection, straight or through a proxy, plain or
// in TLS. Private to client.cc: it includes Asio.
//
// Thread: one at a time. Ownership: owns its socket.
// Invariant: after a failure it is closed, and connect() opens a new one.
// Failure: as HttpClient's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/client.h"
#include "http/tls_client.h"

namespace loralei {

class ClientStream {
 public:
  explicit ClientStream(const HttpClientOptions& options) : options_(options), socket_(context_) {}

  bool is_open() const { return socket_.is_open(); }
  Status connect();  // nothing where it is open
  Status send(std::string_view bytes);
  // Appends what arrives; false at the end of the stream.
  Result<bool> receive(std::string& to);
  void close();

  std::string where() const { return options_.host + ":" + std::to_string(options_.port); }

 private:
  using ErrorCodeOf = boost::system::error_code;
  Status run(const std::optional<ErrorCodeOf>& done, int64_t timeout_ms, const char* step);
  Status open(const std::string& host, int port);
  Status ask_proxy();
  Status begin_tls();
  Status send_plain(std::string_view bytes);
  Result<bool> receive_plain(std::string& to);

  const HttpClientOptions options_;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<TlsClientSession> tls_;
};

}  // namespace loralei
