// SPDX-License-Identifier: Apache-2.0
// UploadRelay: an adapter that is uploaded through the router: its body, as it comes, to
// one replica that has a store, and what that answers to all the others.
//
//   client ──► BodySink ──► UpstreamBody ──► a replica with a store
//                                                │ 200, loaded as NAME from store:DIGEST
//   client ◄── the one answer ◄── fan_out.h ◄────┘ all others load that, from their peers
//
// Thread: make_upload_sink() and finish_upload() from an I/O thread of the server; the
// rest by itself, on the threads of Upstream and of the server. Never blocks.
// Ownership: an upload is kept by its sink, its call and its turn; it borrows what
// UploadWorld names, which outlives Upstream.
// Invariants: of a body no more is here than a piece that waits and one that is being
// sent, and nothing on a disk. Nothing of it is sent twice: another replica is tried only
// while none of it has been sent. The form is not read: what was loaded, and as what, is
// the replica's word. Uploads stream side by side; the end of each is held back until
// those before it have been answered, so that all replicas load the versions of a name in
// one order. A client that leaves takes its upload with it; once its last byte is with
// the replica that goes on, to all of them. One answer, which is good only where all
// replicas have done it.
// Failure: told to the client.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/log.h"
#include "http/server.h"
#include "http/upstream.h"
#include "router/fleet.h"
#include "router/relay.h"
#include "router/router_metrics.h"

namespace loralei {

// Of one router: whose upload may take effect now. Thread-safe; nothing of an entry is
// called with the lock held.
class UploadTurns {
 public:
  class Entry {
   public:
    virtual ~Entry() = default;
    virtual void your_turn() = 0;
  };
  // True: it is this one's from now on. Else your_turn() says when it is.
  bool take(const std::shared_ptr<Entry>& entry);
  void leave(const Entry* entry);  // or its place among those that wait

 private:
  std::mutex mutex_;
  const Entry* holder_ = nullptr;
  std::deque<std::pair<const Entry*, std::weak_ptr<Entry>>> waiting_;
};

struct UploadWorld {
  Fleet& fleet;
  Upstream& upstream;
  RouterMetrics& metrics;
  LogSink& log;
  RelayBoard& board;
  UploadTurns& turns;
  int retries = 2;  // on other replicas
};

struct UploadRequest {
  HttpHead head;
  std::string id;  // X-Request-Id
  const char* route = "";
  int64_t max_bytes = 0;
};

// Nothing is begun before the first piece.
std::shared_ptr<BodySink> make_upload_sink(const UploadWorld& world, UploadRequest request);
// Of a sink of make_upload_sink(), whose body is whole, or which wanted no more of it.
void finish_upload(const std::shared_ptr<BodySink>& sink, std::shared_ptr<ResponseWriter> writer);

}  // namespace loralei
