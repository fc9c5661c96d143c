// SPDX-License-Identifier: Apache-2.0
// ApiServer: the process as its users see it: routes, keys, requests, adapters,
// metrics, drain.
//
//   http I/O thread: route, access
//     ──► text pool: parse, resolve, render, tokenise, submit ──► engine
//   engine: TokenEvents ──► Dispatcher
//     ──► Generation (dispatcher's thread: decode, frame) ──► http ──► client
//
// Thread: start, serve, add_adapter, restore_adapters, check_adapters, rescan,
// begin_drain and shutdown
// from the owner's thread(s); wants_body() and handle() are called by http/.
// Ownership: owns listener, threads, catalogue and metrics; borrows
// engine, file system, clock and log, which outlive it.
// Invariants: nothing is answered before serve(), so that no request misses an adapter
// that the command line names; after begin_drain() /ready answers 503 and no new work is
// taken in; every request is answered or its connection closed; what its head refuses is
// answered before its body is read.
// Failure: start() when the address cannot be bound; add_adapter() with a sentence
// for the command line.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/prng.h"
#include "dashboard/event_feed.h"
#include "serve/adapter_checks.h"
#include "serve/adapter_service.h"
#include "serve/adapter_uploads.h"
#include "serve/apps.h"
#include "serve/key_ledger.h"
#include "serve/options.h"
#include "serve/plan.h"
#include "serve/readiness.h"
#include "serve/replica_page.h"
#include "serve/routes.h"
#include "serve/server_events.h"
#include "serve/server_facts.h"
#include "serve/text_pool.h"

namespace loralei {

class ApiServer final : public HttpHandler {
 public:
  // Holds the address; who connects waits until serve().
  static Result<std::unique_ptr<ApiServer>> start(ServeOptions options, Engine& engine,
                                                  std::shared_ptr<const TextModel> text, const FileSystem& files,
                                                  const Clock& clock, LogSink& log);
  ~ApiServer() override;  // shutdown(0)

  int port() const { return http_->port(); }
  bool on_loopback() const { return http_->on_loopback(); }
  Status add_adapter(const std::string& name, const std::string& path);  // of the command line: trusted
  AdapterService::Rescan rescan();
  // AdapterService::restore(), after add_adapter() and before serve().
  AdapterService::Rescan restore_adapters(RegistryUse use) { return adapters_.restore(std::move(use)); }
  // Has config and headers of every adapter looked at, beside what is done meanwhile,
  // and waits up to so long for what comes of it. From then on rescan() has what it adds
  // looked at, and again what is broken.
  AdapterChecks::State check_adapters(int64_t wait_ms);
  // What an adapter of this version is served as; empty: none is.
  std::string adapter_of(const Digest& version) const { return adapters_.name_of(digest_hex(version)); }
  void serve() { http_->serve(*this); }  // once
  // HttpServer::use_tls().
  void use_tls(std::shared_ptr<const ServerTls> tls) { http_->use_tls(std::move(tls)); }
  // Those of --keys, in the place of the ones before; what runs goes on.
  void use_keys(const std::vector<NamedKey>& keys);
  void begin_drain();
  // Drains, waits up to timeout_ms for running requests and for clients to take their
  // answers, ends the rest, stops engine and threads. True when nothing was cut off.
  bool shutdown(int64_t timeout_ms);

  bool wants_body(const HttpHead& head) override;
  std::shared_ptr<BodySink> body_sink(const HttpHead& head) override;
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override;

 private:
  struct Sent {  // what is told of a request beside its body
    int64_t arrived_ns = 0;
    std::optional<std::string> cache_holder = {};  // PlanInputs
    ClientId client = {};
    RequestSlo slo = {};
    std::string app_id = {};                   // of its header
    std::shared_ptr<const NamedKey> key = {};  // null: none with a name
  };
  ApiServer(ServeOptions options, Engine& engine, std::shared_ptr<const TextModel> text, const FileSystem& files,
            const Clock& clock, LogSink& log);
  HttpResponse http_error(int status, std::string_view message, const HttpHead& head);
  void dispatch(const RouteMatch& route, HttpRequest request, std::shared_ptr<Reply> reply);
  // api_server_pages.cc
  void show_page(const RouteMatch& route, const HttpRequest& request, Reply& reply);
  void index(const HttpRequest& request, Reply& reply) const;
  void dashboard_file(const std::string& name, const HttpRequest& request, Reply& reply) const;
  void follow_events(const HttpRequest& request, Reply& reply);
  void preflight(const RouteMatch& route, const HttpRequest& request, Reply& reply);
  void show_metrics(const HttpRequest& request, Reply& reply);
  void prepare(RouteId route, HttpRequest request, std::shared_ptr<Reply> reply);  // to the text pool
  void run_prepared(RouteId route, std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work);
  // Whether the work of a request was stopped: its client has left, or is told that the
  // server has not the time.
  static bool given_up(const Work& work, Reply& reply);
  void chat(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work);
  void response(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work);
  void message(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work);
  void count_tokens(const std::string& body, const Sent& sent, Reply& reply, Work& work);
  // A request of any API that a chat is made of.
  void answer_chat(const ChatRequest& request, const MakeAnswer& make_answer, const Sent& sent,
                   std::shared_ptr<Reply> reply, Work& work);
  void completion(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work);
  void embedding(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work);
  bool hold_memory(Reply& reply, int64_t bytes);
  void tokenize(const std::string& body, const Sent& sent, Reply& reply, Work& work);
  void detokenize(const std::string& body, const Sent& sent, Reply& reply, Work& work);
  Parsed<ResolvedModel> resolve(const ModelRef& model, const Sent& sent);
  // What its key may do, at its arrival and when its prompt is known. False: it
  // is refused.
  bool enter(RouteId route, const NamedKey& key, Reply& reply);
  static bool take_tokens(Reply& reply, const GenerationPlan& plan, bool stated);
  static bool take_tokens(Reply& reply, int64_t prompt, int64_t answer, bool stated);
  void load_lora(const std::string& body, std::shared_ptr<Reply> reply);
  void unload_lora(const std::string& body, std::shared_ptr<Reply> reply);
  void upload_adapter(const HttpRequest& request, std::shared_ptr<Reply> reply);
  bool has_store(Reply& reply) const;  // false: it is refused
  void rescan_reply(Reply& reply);
  void set_lora_adapters(const std::string& body, Reply& reply);
  ServerFacts facts() const;
  std::string facts_body(RouteId route) const;
  // anthropic: as that API lists them.
  void models(Reply& reply, const NamedKey* key, bool anthropic) const;
  void model(Reply& reply, const NamedKey* key, const std::string& name, bool anthropic) const;
  void set_memory(const std::string& body, std::shared_ptr<Reply> reply);
  ServerState state() const;
  ServerState state_without_adapters() const;
  std::string version_body() const;
  std::string index_text() const;
  PlanInputs inputs(const Sent& sent, Work& work);
  ModelCard base_card(const std::string& name) const;
  void note_unknown_fields(const std::vector<std::string>& fields);
  std::string new_id();                          // 24 hex digits
  std::string id_for(std::string_view clients);  // the client's, if it may be used, else a new one

  const ServeOptions options_;
  Engine& engine_;
  const Clock& clock_;
  LogSink& log_;
  const FileSystem& files_;
  AccessPolicy access_;
  KeyLedger keys_;
  const PrefixCacheScope cache_scope_;
  const int64_t started_s_;
  std::unique_ptr<Catalogue> catalogue_;
  TextModels texts_;
  GrammarCache grammars_;
  Metrics metrics_;
  Heartbeats beats_;                          // of the threads here
  const std::shared_ptr<ByteBudget> memory_;  // of requests
  Dispatcher dispatcher_;
  const ServeContext context_;
  AdapterService adapters_;
  AdapterUploads uploads_;
  AppService apps_;
  AdapterChecks checks_;
  ServerEvents events_;
  EventFeed feed_;                     // calls events_
  std::atomic<bool> checking_{false};  // check_adapters() was called
  std::atomic<bool> draining_{false};
  std::mutex mutex_;
  Prng ids_;                              // guarded by mutex_
  ReplicaPage replica_page_;              // behind what ids are made of
  std::set<std::string> unknown_fields_;  // logged already; guarded by mutex_
  bool down_ = false;                     // guarded by mutex_
  TextPool pool_;
  std::unique_ptr<HttpServer> http_;  // last: its threads call everything above
};

}  // namespace loralei
