// SPDX-License-Identifier: Apache-2.0
// Upstream: an asynchronous HTTP/1.1 client with kept connections, for a proxy in front
// of servers. An answer is told as it comes.
//
// Thread: call(), stats() and the functions of a UpstreamCall from any thread; stop() and
// the end from the owner's, never from within a listener. All that a listener is told of
// one call comes on one thread of the Upstream, one after another; it must not block, for
// other calls wait meanwhile. It may call anything here but stop().
// Ownership: the Upstream owns threads and connections and borrows log sink and beats,
// which outlive it. A running call owns its listener and lets go of it when it ends, so
// the two may hold each other. A UpstreamCall may outlive the Upstream, and may be
// dropped while it runs: it goes on.
// Invariants: a call ends with exactly one of on_end() and on_failure(), unless it was
// cancelled. What a peer sends is held in one buffer of kUpstreamBufferBytes at most for
// each call that rests, and in none for one that waits: there is one for each thread. No
// memory is taken for a length that a peer only claims.
// Failure: on_failure() with the stage and a sentence that names the address.
// kUnavailable where there is no connection to be had, kDeadline for a time that is over,
// kIo for a connection that broke and for an answer that is not HTTP, kCancelled behind
// stop(), kInvalidArgument for a request that cannot be written, kOverloaded where the
// process has no descriptor or memory left.
//
// Kept connections. A connection is kept when its answer ended within itself, the peer
// did not ask to close it and the request was taken whole. While idle it has a read
// pending: when the peer closes it, or sends what nobody asked for, it is dropped, and
// that is looked for once more when it is handed out. What remains is the race of a peer
// that closes while the request is on its way. Such a request is sent once more, on a
// fresh connection, where the first was kept, the peer closed it, no byte of an answer
// had come, and the method is GET, HEAD or OPTIONS or the caller says that twice is as
// good as once (UpstreamRequest::idempotent). Anything else is not repeated: a server may
// have done what a POST asks and closed before it answered, and a proxy must not guess
// (RFC 9110, 9.2.2; RFC 9112, 9.3.1). The failure says enough for a caller who knows
// better (stage, peer_closed, reused).
//
// Bodies in pieces (UpstreamRequest::pieces) cannot be sent twice, so such a call never
// begins on a kept connection, and nothing of its body is asked for before it has one.
// The next piece is asked for when the one before has left: one at a time is here. For
// how long it takes to come is its maker's business; no time runs meanwhile. An answer
// that begins before the body has been sent ends the sending: it is told as any other,
// and no further piece is asked for.
//
// Names are looked up without blocking and kept for a while; numeric addresses are not
// looked up. A name's addresses are tried in turn, the one that was reached last first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/heartbeats.h"
#include "base/log.h"
#include "base/result.h"
#include "http/message.h"
#include "http/parser.h"

namespace loralei {

inline constexpr size_t kUpstreamBufferBytes = 64 * 1024;

struct UpstreamAddress {
  std::string host;  // a name or a numeric address, with or without the brackets of IPv6
  int port = 0;
  friend bool operator==(const UpstreamAddress&, const UpstreamAddress&) = default;
};
std::string address_text(const UpstreamAddress& address);  // "host:port", "[::1]:80"

struct UpstreamOptions {
  int threads = 1;
  // For looking up the name and connecting, all addresses together: each has its share of
  // what is left.
  int64_t connect_timeout_ms = 2'000;
  int64_t head_timeout_ms = 600'000;  // from the request's last byte to the whole head of the answer
  int64_t body_timeout_ms = 600'000;  // without a byte of the answer while it is wanted
  int64_t send_timeout_ms = 30'000;   // without progress in sending
  int64_t idle_timeout_ms = 60'000;   // then a kept connection is closed
  int64_t name_ms = 30'000;           // for which a name's addresses are kept
  int max_idle_per_address = 64;      // of kept connections; beyond it the one idle longest is closed
  HttpLimits limits;                  // of answers' heads; bodies go through and have no limit
  Heartbeats* beats = nullptr;        // as HttpServerOptions::beats
  // The numeric addresses of a name, at once. Absent: the system's resolver, which does
  // not block here, but which stop() has to wait for.
  std::function<Result<std::vector<std::string>>(const std::string& name)> look_up;
};

// A request's body that comes in pieces, as they are wanted.
//
// Called on the thread of the call, which must not be blocked; let go of when it ends.
class UpstreamBody {
 public:
  using Told = std::function<void(std::optional<std::string> piece)>;
  virtual ~UpstreamBody() = default;
  // Of the whole. Nothing: not known, and it is sent chunked.
  virtual std::optional<uint64_t> bytes() const = 0;
  // Wants the next piece: `told` is to be called once, from any thread, here or later,
  // with one that is not empty, or with nothing behind the last. It is not called again
  // before, and never behind a piece that bytes() says is the last. What is told to a
  // call that has ended is dropped.
  virtual void next(Told told) = 0;
};

struct UpstreamRequest {
  std::string method, target;
  // What is between two connections only (end_to_end_headers()), Content-Length and
  // Expect are left out; Host is the address where there is none.
  HttpHeaders headers;
  std::shared_ptr<const std::string> body;  // null: none
  int64_t head_timeout_ms = 0;              // 0: the option's
  bool idempotent = false;                  // may be sent twice, whatever its method
  std::shared_ptr<UpstreamBody> pieces;     // in the place of `body`
  // Of `pieces`, where there are any: the peer is asked whether it wants them (100
  // Continue) and has so long to say so, or to refuse. 0: it is not asked.
  int64_t continue_ms = 0;
};

// Where it failed, at the latest of all attempts.
enum class UpstreamStage : unsigned char {
  kConnect,  // nothing of the request can have been seen
  kSend,     // the request has not left as a whole
  kHead,     // it has, and no answer was told
  kBody,     // on_head() was called
};

struct UpstreamFailure {
  UpstreamStage stage = UpstreamStage::kConnect;
  Error error;
  bool peer_closed = false;  // the peer closed or reset the connection, and no byte of the answer had come
  bool reused = false;       // it was a kept connection
};

class UpstreamListener {
 public:
  virtual ~UpstreamListener() = default;
  // Of the final answer: interim ones (100, 103) are passed over. End-to-end headers
  // only.
  virtual void on_head(int status, const HttpHeaders& headers) = 0;
  // Pieces of the body in order, never empty, at most kUpstreamBufferBytes each. False:
  // it rests, and nothing is told until UpstreamCall::resume(), but for stop(); the piece
  // counts as taken.
  virtual bool on_body(std::string_view piece) = 0;
  virtual void on_end() = 0;
  virtual void on_failure(const UpstreamFailure& failure) = 0;
};

class UpstreamCall {
 public:
  virtual ~UpstreamCall() = default;
  // The connection is closed at once, and the listener let go of. Nothing is told from
  // then on, but for what is just being told while another thread cancels.
  virtual void cancel() = 0;
  // Goes on, when the listener rests or is about to return false.
  virtual void resume() = 0;
};

struct UpstreamStats {
  int64_t connections = 0;   // open now
  int64_t idle = 0;          // of those, kept for the next call
  int64_t opened_total = 0;  // since the start
  int64_t reused_total = 0;  // calls that began on a kept one
  int64_t calls = 0;         // running
};

class Upstream {
 public:
  static Result<std::unique_ptr<Upstream>> start(const UpstreamOptions& options, LogSink& log);
  ~Upstream();  // stop()

  // The listener may be told before this returns. After stop() it is told kCancelled
  // here.
  std::shared_ptr<UpstreamCall> call(const UpstreamAddress& address, UpstreamRequest request,
                                     std::shared_ptr<UpstreamListener> listener);
  UpstreamStats stats() const;
  // Every call fails with kCancelled, every connection is closed, the threads are joined.
  // A second call does nothing.
  void stop();

 private:
  struct Core;
  explicit Upstream(std::unique_ptr<Core> core);
  const std::unique_ptr<Core> core_;
};

}  // namespace loralei
