// SPDX-License-Identifier: Apache-2.0
// HttpServer: listener, connections, limits, timeouts and backpressure. Knows bytes and
// messages, not what they mean.
//
// Thread: bind(), serve(), start() and stop() from one owner; the handler is called on an
// I/O thread and must hand long work on; a ResponseWriter may be used from any thread.
// Ownership: the server owns its threads and sockets and borrows handler and log sink,
// which outlive it. A ResponseWriter may outlive the server: it then answers "gone".
// Invariants: requests of one connection are handled one after the other and answered
// in order; every request gets exactly one answer (a dropped writer answers 500);
// on_closed fires at most once, never after the answer was complete. While a request is
// being answered a read stays pending, so that a client that goes away is noticed at once
// (within half a second when it has pipelined more than 64 KiB behind the request, or
// twice the header's limit; only when something is written when that fills the system's
// buffer too); a client that closes its sending side counts as gone unless its answer
// is already complete. When all connections are taken, a new one takes the place of
// the one that has waited longest for a request, or for the rest of one, at the address
// that has most of such; only where each is in use it is refused. When a body finds no
// room while another address holds more than a quarter of all in bodies on their way,
// that address loses its oldest one (429): an address alone, a proxy's, loses nothing.
// What a body in memory costs is granted by `memory` when its head is complete, before
// a byte of it is read or asked for by "100 Continue" (a chunked one step by step), and
// belongs to the request from then on; so are the bytes of answers that wait for their
// readers, and what a connection takes itself.
// Failure: bind() when the address cannot be bound. Everything a peer does wrong ends
// that peer's connection only, with an answer where one can be given: 400, 408, 413,
// 417, 431, 501, 505, 429 where there is no room for a request now (413 where there
// never is), and 503 when there are too many connections, or the server stops. No client
// keeps a connection by being slow: a header has read_timeout_ms, a body a least rate
// beside it, an answer that waits another one, and who takes nothing of an answer for
// write_timeout_ms is cut off. With `tls` all of it stands above TLS: a handshake has
// read_timeout_ms, who speaks plain HTTP is told so (400), and who ends a connection
// without saying so has left.
//
//   connection:  read ──► RequestParser ──► handler.handle()
//                         ──► ResponseWriter (any thread) ──► bounded buffer ──► write
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/byte_budget.h"
#include "base/heartbeats.h"
#include "base/log.h"
#include "base/result.h"
#include "http/message.h"
#include "http/parser.h"
#include "http/server_tls.h"

namespace loralei {

// Fills the empty `piece`, with up to kPieceBytes (what is more is the memory of who
// makes it). False, or an empty piece: nothing follows it.
using NextPiece = std::function<bool(std::string& piece)>;
inline constexpr size_t kPieceBytes = 16 * 1024;

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // A whole answer. The first of respond() and start_stream() counts; false when it was
  // not the first or the client is gone.
  virtual bool respond(int status, HttpHeaders headers, std::string body) = 0;
  // Begins an answer whose body comes by write(). Chunked for HTTP/1.1,
  // until close for 1.0.
  virtual bool start_stream(int status, HttpHeaders headers) = 0;
  // An answer made as it is read. `next` is asked for a piece on an I/O thread when
  // the client has taken the one before, so one piece is under way at a time; it never
  // waits, is not called once the client has left, and is destroyed as soon as it is
  // of no use, with whatever memory it owns. Chunked for HTTP/1.1, until close for 1.0.
  // Result as of respond().
  virtual bool respond_pieces(int status, HttpHeaders headers, NextPiece next) = 0;
  // False when the client is gone, or so slow that the buffer is full: then the
  // connection is closed and the caller should stop. Who writes only while wants_more()
  // never fills it.
  virtual bool write(std::string_view chunk) = 0;
  // False while much waits for a slow reader, or more than there is memory for: the
  // producer should rest until on_room.
  virtual bool wants_more() const = 0;
  // Called once, on an I/O thread, when wants_more(), which may be at once; dropped when
  // the answer ends before. One callback waits at a time, the last.
  virtual void on_room(std::function<void()> callback) = 0;
  virtual void finish() = 0;
  // Called once, on an I/O thread (or here when it already happened), if the client goes
  // away before the end of the answer.
  virtual void on_closed(std::function<void()> callback) = 0;
  virtual bool closed() const = 0;
};

// Where a body goes that is larger than a server should hold. Asked of one body, by one
// connection; its pieces come in order, and the next one when the one before is taken.
// Dropped with its request, or before it when the client leaves.
class BodySink {
 public:
  virtual ~BodySink() = default;
  virtual int64_t max_bytes() const = 0;  // longer ones are refused, those whose length is announced at once
  // On an I/O thread, which must not wait: `done` is called once, from any thread, in the
  // call or later. False: nothing more is wanted; handle() is called to say why.
  virtual void take(std::string piece, std::function<void(bool)> done) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Asked on an I/O thread, once a header is complete. Null: the body is held in memory
  // (HttpRequest::body). Else it goes there, and the request brings it
  // (HttpRequest::sink).
  virtual std::shared_ptr<BodySink> body_sink(const HttpHead&) { return nullptr; }
  // Asked on an I/O thread, of a header whose body is still to come. False: handle() is
  // called without the body, for an answer that needs none; what comes of the body is
  // thrown away, and the connection ends behind the answer.
  virtual bool wants_body(const HttpHead&) { return true; }
  virtual void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) = 0;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0 = any; HttpServer::port() tells which
  int threads = 2;
  int max_connections = 1024;  // in use
  int max_refusals = 64;       // beyond these: told so, and not closed yet. Both are descriptors, and one is kept spare
  HttpLimits limits;
  std::shared_ptr<const ServerTls> tls;  // null: plain HTTP
  // What connections (connection_bytes() each), bodies and waiting answers take together.
  // Absent: max_bodies_bytes and what max_connections take.
  std::shared_ptr<ByteBudget> memory;
  int64_t max_bodies_bytes = 0;  // 0: kBodiesAtOnce of the largest
  // What a body of so many bytes costs, itself and what is made of it; never less than
  // its bytes. Absent: its bytes.
  std::function<int64_t(int64_t body_bytes)> body_cost;
  // Of one stream: more than this and the largest chunk so far unread, and the client is
  // too slow. So a chunk of any size can be sent, and a stream keeps at most this and two
  // of its largest chunks.
  size_t max_write_buffer_bytes = 1024 * 1024;
  int64_t idle_timeout_ms = 75'000;  // between requests
  // For a request from its first byte; bytes of a body buy more time, see
  // kMinBodyBytesPerS.
  int64_t read_timeout_ms = 20'000;
  int64_t write_timeout_ms = 30'000;  // without progress
  // An answer may wait without a break for kSlowAnswerTimeouts of these, and a second
  // more for so many bytes taken.
  int64_t min_answer_bytes_per_s = 1024;
  // Headers and body of an error that the server itself is about to answer, given the
  // request's head as far as it was read; called once for each, on any thread; status is
  // filled in by the server. Absent: plain text.
  std::function<HttpResponse(int status, std::string_view message, const HttpHead& request)> error_response;
  // Outlives the server: its threads have a mark ("http") while they are at work,
  // whatever it is, and none while they wait. Null: nobody watches.
  Heartbeats* beats = nullptr;
};
inline constexpr int64_t kMinBodyBytesPerS = 16 * 1024;
// An answer that waits without a break may do so for kSlowAnswerTimeouts of
// write_timeout_ms, and a second more for every so many bytes that the client takes.
inline constexpr int64_t kMinAnswerBytesPerS = 1024;
inline constexpr int64_t kSlowAnswerTimeouts = 4;
// A connection's coroutines, socket, parser and first bytes of input and output. Some
// connections have theirs from the start, so that who asks how the server is gets an
// answer when the memory is full.
inline constexpr int64_t kConnectionBytes = 32 * 1024;
inline constexpr int kConnectionsAlways = 32;
// Of TLS, beside those: OpenSSL's state, and its buffers for a record each way.
inline constexpr int64_t kTlsBytes = 96 * 1024;
inline int64_t connection_bytes(const HttpServerOptions& options) {
  return kConnectionBytes + (options.tls ? kTlsBytes : 0);
}
// 256 MiB where a body has at most 8 MiB: room for a full queue of usual requests, and
// a bound on what clients whom nobody knows can make the server hold.
inline constexpr int64_t kBodiesAtOnce = 32;

struct HttpServerStats {
  int64_t connections = 0;          // open now
  int64_t connections_total = 0;    // accepted since the start
  int64_t connections_refused = 0;  // answered 503 because of max_connections
  int64_t requests_total = 0;       // handed to the handler
  int64_t errors_total = 0;         // errors the server itself answered
};

class HttpServer {
 public:
  // Holds the address; clients wait until serve(), which the handler may hear of
  // before it returns.
  static Result<std::unique_ptr<HttpServer>> bind(const HttpServerOptions& options, LogSink& log);
  void serve(HttpHandler& handler);  // once
  // A connection that was made elsewhere, as of a listener that hands its own over: `fd`
  // is a connected stream socket, and the server's from here on. After serve().
  void adopt(int fd);
  // bind() and serve().
  static Result<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options, HttpHandler& handler,
                                                   LogSink& log);
  ~HttpServer();  // stop(0)

  int port() const;
  bool on_loopback() const;  // bound to an address that only this machine reaches
  HttpServerStats stats() const;
  // For connections from now on, in the place of the options'; of a server that has one.
  // From any thread.
  void use_tls(std::shared_ptr<const ServerTls> tls);
  // Stops accepting, closes idle connections, refuses requests that have arrived in part,
  // lets running ones finish and their answers be written for `grace_ms`, then closes
  // what is left and joins the threads. Returns the number of connections that were cut.
  // A second call returns 0 at once.
  int stop(int64_t grace_ms);

 private:
  friend class HttpConnection;
  struct Core;
  explicit HttpServer(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace loralei
