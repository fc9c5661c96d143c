// SPDX-License-Identifier: Apache-2.0
// --ssl-certfile and --ssl-keyfile: a server's certificate and key, from files to
// connections, at the start and again at every SIGHUP.
//
// Thread: one at a time. Ownership: values. Failure: sentences that name the flag and
// the file.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "http/server_tls.h"

namespace loralei {

struct TlsFlags {
  std::string certificate, key;  // paths; no key: it stands in the certificate's file
};
void add_tls_options(CLI::App& command, TlsFlags& flags, const std::string& group);

// Null: the server speaks plain HTTP. A certificate that clients will refuse, and a key
// that other users of the machine may read, are told in the log.
Result<std::shared_ptr<const ServerTls>> read_tls(const TlsFlags& flags, LogSink& log);
// The same while it serves, and what came of it is told in the log. Null: what is in use
// stays so.
std::shared_ptr<const ServerTls> read_tls_again(const TlsFlags& flags, LogSink& log);

// A sentence where other users of the machine may read or write this file; "" else.
std::string open_secret(const std::string& path);

}  // namespace loralei
