// SPDX-License-Identifier: Apache-2.0
// What a ServerTls is made of. Private to http/: OpenSSL stays out of public headers.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "http/server_tls.h"

namespace loralei {

struct ServerTls::Impl {
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, Free> context;
  std::string subject, until;
  int64_t from_s = 0, until_s = 0;
};

}  // namespace loralei
