// SPDX-License-Identifier: Apache-2.0
// Where a server is, as it is typed and shown: http://HOST:PORT, HOST:PORT, HOST or
// [::1]:8080.
// Thread: pure. Failure: a sentence that says what to type.
#pragma once

#include <string>

#include "base/result.h"
#include "http/upstream.h"

namespace loralei {

inline constexpr int kReplicaPort = 8080;  // where none is stated: serve's own

Result<UpstreamAddress> parse_replica_url(const std::string& text);
std::string server_url(const std::string& host, int port, bool secure = false);  // the other way round; secure: https

}  // namespace loralei
