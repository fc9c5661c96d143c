// SPDX-License-Identifier: Apache-2.0
// bench server: a closed batch of streamed completions against a running server, and the
// same against a peer, in turn.
//
// One thread calls; each request has a thread that sleeps in its socket, and the share
// of a core that they take is a row of the report. Both servers must run before,
// with the same model and the same adapters (tools/bench_peer.sh starts them). A peer is
// llama.cpp's llama-server.
// Failure: a sentence with the server's own words.
#pragma once

#include <string>

#include "base/log.h"
#include "bench/report.h"
#include "http/client.h"

namespace loralei {

struct ServerBenchOptions {
  std::string url;       // http://HOST:PORT
  std::string peer_url;  // empty: no peer
  std::string label = "model";
  int requests = 8;
  int adapters = 8;  // of the server, 0 .. adapters-1; 0: only base requests
  int prompt_tokens = 32;
  int new_tokens = 32;
  int vocab = 32000;  // prompts are random plain tokens 259 .. vocab-1
  int rounds = 5;
};

// Of http://HOST:PORT.
Result<HttpClientOptions> parse_server_url(const std::string& url);

Status bench_server(const ServerBenchOptions& options, LogSink& log, BenchReport& report);

}  // namespace loralei
