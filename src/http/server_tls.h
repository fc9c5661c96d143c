// SPDX-License-Identifier: Apache-2.0
// ServerTls: a server's certificate and its key, read, checked and ready for connections:
// TLS 1.2 and 1.3, HTTP/1.1 by ALPN, neither renegotiation nor early data.
//
// Thread: immutable, any.
// Ownership: shared by a server and by connections that were made with it, so that one
// takes another's place while there are some.
// Invariants: the key is the certificate's. Keys of sessions that are gone on with
// (tickets) are its own: with another one a client begins anew.
// Failure: a sentence that says what to give instead; none holds anything of the key.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace loralei {

class ServerTls {
 public:
  // PEM texts: the certificate with those between it and its authority behind it, and
  // its private key, not encrypted.
  static Result<std::shared_ptr<const ServerTls>> make(const std::string& certificate_pem, const std::string& key_pem);
  ~ServerTls();

  const std::string& subject() const;  // whose certificate it is, printable
  const std::string& until() const;    // "2027-03-01 12:00:00 UTC"
  // Why clients will not take the certificate at this time (Unix seconds), as a sentence;
  // "" where it is neither too early nor too late.
  std::string complaint(int64_t now_s) const;

  struct Impl;  // OpenSSL's, for server_tls_stream.cc
  const Impl& impl() const { return *impl_; }

 private:
  explicit ServerTls(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace loralei
