// SPDX-License-Identifier: Apache-2.0
#include "router/router_server.h"

#include <ctime>
#include <limits>
#include <random>
#include <utility>

#include "dashboard/pages.h"
#include "router/fan_out.h"
#include "serve/request_slo.h"
#include "wire/errors.h"
#include "wire/json_out.h"
#include "wire/responses.h"

namespace loralei {
namespace {

constexpr double kNs = 1e-9;

enum class RouteKind : unsigned char {
  kSent,
  kSpread,
  kUpload,
  kIndex,
  kHealth,
  kReady,
  kVersion,
  kMetrics,
  kModels,
  kReplicas,
  kEvents,
  kPageFile
};

std::string without_last_slash(std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return std::string(path);
}

uint64_t entropy() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

struct RouterServer::Route {
  const char* method;
  const char* pattern;  // a path, or the beginning of one where it ends with '*'
  RouteKind kind;
  RouteClass access;  // of what the router answers itself
  RelayForm form = RelayForm::kOpenAi;

  bool fits(std::string_view path) const {
    const std::string_view wanted = pattern;
    if (!wanted.ends_with('*')) return path == wanted;
    return path.size() >= wanted.size() && path.starts_with(wanted.substr(0, wanted.size() - 1));
  }
};

const RouterServer::Route* RouterServer::find_route(const HttpHead& head) {
  constexpr RouteClass kOpen = RouteClass::kOpen, kAdmin = RouteClass::kAdmin, kUpload = RouteClass::kUpload;
  static constexpr Route kRoutes[] = {
      {"POST", "/v1/chat/completions", RouteKind::kSent, kOpen},
      {"POST", "/v1/completions", RouteKind::kSent, kOpen},
      {"POST", "/v1/responses", RouteKind::kSent, kOpen},
      {"POST", "/v1/messages", RouteKind::kSent, kOpen, RelayForm::kAnthropic},
      {"POST", "/v1/messages/count_tokens", RouteKind::kSent, kOpen, RelayForm::kAnthropic},
      {"POST", "/v1/embeddings", RouteKind::kSent, kOpen},
      {"POST", "/tokenize", RouteKind::kSent, kOpen},
      {"POST", "/detokenize", RouteKind::kSent, kOpen},
      {"GET", "/v1/models/*", RouteKind::kSent, kOpen},
      {"GET", "/v1/models", RouteKind::kModels, kOpen},  // a replica's, with the fleet's list
      {"POST", "/v1/load_lora_adapter", RouteKind::kSpread, kAdmin},
      {"POST", "/v1/unload_lora_adapter", RouteKind::kSpread, kAdmin},
      {"POST", "/v1/adapters", RouteKind::kUpload, kUpload},
      {"POST", "/v1/adapters/*", RouteKind::kSpread, kAdmin},
      {"DELETE", "/v1/adapters/*", RouteKind::kSpread, kAdmin},
      {"GET", "/v1/replicas", RouteKind::kReplicas, kAdmin},
      {"GET", "/v1/admin/events", RouteKind::kEvents, kAdmin},
      {"GET", "/dashboard/*", RouteKind::kPageFile, kOpen},
      {"GET", "/", RouteKind::kIndex, kOpen},
      {"GET", "/health", RouteKind::kHealth, kOpen},
      {"GET", "/ping", RouteKind::kHealth, kOpen},
      {"GET", "/ready", RouteKind::kReady, kOpen},
      {"GET", "/version", RouteKind::kVersion, kOpen},
      {"GET", "/metrics", RouteKind::kMetrics, kOpen},
  };
  static constexpr Route kPreflight{"OPTIONS", "(preflight)", RouteKind::kSent, kOpen};
  const std::string path = without_last_slash(head.path);
  const std::string_view method = head.method == "HEAD" ? "GET" : std::string_view(head.method);
  if (method == "OPTIONS") return &kPreflight;
  for (const Route& route : kRoutes) {
    if (method == route.method && route.fits(path)) return &route;
  }
  return nullptr;
}

RouterServer::RouterServer(const RouterServerOptions& options, const Clock& clock, LogSink& log)
    : options_(options),
      clock_(clock),
      log_(log),
      access_({}, options.admin_key, options.http.host, options.allowed_hosts, options.http.tls != nullptr),
      started_s_(std::time(nullptr)),
      fleet_(options.fleet, clock, log),
      events_(fleet_, clock, options.version),
      feed_(clock, [this] { return events_.snapshot(draining_); }),
      ids_(entropy()) {
  for (const UpstreamAddress& replica : options_.replicas) fleet_.add(replica);
}

Result<std::unique_ptr<RouterServer>> RouterServer::start(const RouterServerOptions& options, const Clock& clock,
                                                          LogSink& log) {
  if (options.replicas.empty() && options.members.etcd.empty())
    return invalid_argument(
        "a router needs replicas: name them (--replica URL), or where etcd knows them (--etcd URL)");
  std::unique_ptr<RouterServer> server(new RouterServer(options, clock, log));
  RouterServer* const raw = server.get();
  HttpServerOptions http = options.http;
  http.error_response = [raw](int status, std::string_view message, const HttpHead& head) {
    HttpResponse response;
    const std::string id = raw->id_for(head);
    response.headers = {{"X-Request-Id", id}, {"Content-Type", "application/json"}};
    const Route* route = find_route(head);
    raw->metrics_.request_done(route != nullptr ? route->pattern : "unknown", status);
    response.body = relay_error_body(route != nullptr ? route->form : RelayForm::kOpenAi,
                                     api_error_of_status(status, std::string(message)), id);
    return response;
  };
  TRY_ASSIGN(server->http_, HttpServer::bind(http, log));
  TRY_ASSIGN(server->upstream_, Upstream::start(options.upstream, log));
  WatchOptions watch = options.watch;
  watch.on_lost = [raw](size_t replica) { raw->relays_.lost(replica); };
  server->watch_ = std::make_unique<ReplicaWatch>(watch, server->fleet_, *server->upstream_, clock);
  if (options.hedge_after_ms > 0) {
    server->hedges_ = std::make_unique<Hedges>(options.hedge_after_ms * 1'000'000, clock);
    TRY(server->hedges_->start());
  }
  if (!options.members.etcd.empty()) TRY(server->find_members());
  if (options.placement) TRY(server->begin_placement());
  return server;
}

Status RouterServer::find_members() {
  MemberListeners listeners;
  listeners.joined = [this](const FleetMember& member) {
    log_.log(LogLevel::kInfo, "Replica " + address_text(member.address) + " joins.");
    watch_->join(member.address);
  };
  listeners.left = [this](const FleetMember& member) {
    log_.log(LogLevel::kInfo, "Replica " + address_text(member.address) + " leaves.");
    watch_->leave(member.address);
  };
  TRY_ASSIGN(members_, MemberWatch::start(options_.members, std::move(listeners), log_));
  return {};
}

Status RouterServer::begin_placement() {
  if (!options_.members.etcd.empty()) {
    const std::string name = options_.http.host + ":" + std::to_string(port());
    TRY_ASSIGN(leader_, FleetLeader::start(options_.members, name, clock_, log_));
  }
  const PlacementWorld world{fleet_, *upstream_, leader_.get(), clock_, log_};
  placement_ = std::make_unique<PlacementController>(*options_.placement, world);
  return placement_->start();
}

RouterServer::~RouterServer() { shutdown(0); }

// A router goes on without etcd: who is named is known, and the others come when it does.
void RouterServer::wait_for_replicas(int64_t timeout_ms) {
  const int64_t until_ns = clock_.now_ns() + timeout_ms * 1'000'000;
  if (members_) {
    const Status known = members_->wait_for_first(timeout_ms);
    if (!known.ok()) {
      log_.log(LogLevel::kWarning, "The members of the fleet are not known yet: " + known.error().message +
                                       ". They are asked for again and again.");
    }
  }
  watch_->wait_for_first(std::max<int64_t>(0, (until_ns - clock_.now_ns()) / 1'000'000));
}

bool RouterServer::shutdown(int64_t timeout_ms) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(down_, true)) return true;
  }
  begin_drain();
  feed_.stop();
  const int cut = http_ ? http_->stop(timeout_ms) : 0;
  if (hedges_) hedges_->stop();
  if (placement_) placement_->stop();
  leader_.reset();
  members_.reset();
  if (watch_) watch_->stop();
  if (upstream_) upstream_->stop();
  return cut == 0;
}

std::string RouterServer::id_for(const HttpHead& request) {
  const std::string id = usable_request_id(request.header("x-request-id"));
  if (!id.empty()) return id;
  const std::lock_guard lock(mutex_);
  const uint64_t first = ids_();
  return random_request_id(first, ids_());
}

// To a replica on this machine everybody whose request comes from here is local.
std::optional<ApiError> RouterServer::refused(const Route& route, const HttpHead& head) const {
  if (auto error = access_.check_host(head, http_->on_loopback())) return error;
  return route.access != RouteClass::kOpen ? access_.check(head, route.access) : std::nullopt;
}

// Also of what handle() refuses: nothing is begun before its first piece, and a body that
// is longer than others may be is refused for the right reason.
std::shared_ptr<BodySink> RouterServer::body_sink(const HttpHead& head) {
  const Route* route = find_route(head);
  if (route == nullptr || route->kind != RouteKind::kUpload) return nullptr;
  return make_upload_sink({fleet_, *upstream_, metrics_, log_, relays_, uploads_, options_.retries},
                          {head, id_for(head), route->pattern, options_.max_upload_bytes});
}

bool RouterServer::wants_body(const HttpHead& head) {
  const Route* route = find_route(head);
  const bool wanted = route != nullptr && (route->kind == RouteKind::kSent || route->kind == RouteKind::kSpread ||
                                           route->kind == RouteKind::kUpload);
  return wanted && !draining_ && !refused(*route, head);
}

void RouterServer::handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  std::string id = id_for(request);
  const Route* route = find_route(request);
  if (route == nullptr) {
    return refuse(*writer, route,
                  api_error_of_status(404, "A router has no route " + request.method + " " +
                                               std::string(request.path.substr(0, 200)) + "; GET / lists its routes."),
                  id);
  }
  if (const auto error = refused(*route, request)) return refuse(*writer, route, *error, id);
  if (request.sink) return finish_upload(request.sink, std::move(writer));  // a replica has it: draining or not
  const bool goes_on = route->kind == RouteKind::kSent || route->kind == RouteKind::kSpread ||
                       route->kind == RouteKind::kUpload || route->kind == RouteKind::kModels;
  if (route->kind == RouteKind::kEvents) return follow_events(*route, request, id, std::move(writer));
  if (route->kind == RouteKind::kPageFile || (route->kind == RouteKind::kIndex && wants_page(request)))
    return show_page(*route, request, id, *writer);
  if (!goes_on) return answer_itself(*route, id, *writer);
  if (draining_)
    return refuse(*writer, route, api_error_of_status(503, "The router is shutting down; send it to another."), id);
  send_on(*route, std::move(request), std::move(id), std::move(writer));
}

void RouterServer::send_on(const Route& route, HttpRequest request, std::string id,
                           std::shared_ptr<ResponseWriter> writer) {
  if (route.kind == RouteKind::kUpload) {
    constexpr const char* kNoBody =
        "The request has no body: send the adapter's files as a form, as curl -F 'file=@adapter_config.json' does.";
    return refuse(*writer, &route, api_error_of_status(400, kNoBody), id);
  }
  if (route.kind == RouteKind::kSpread) {
    return start_fan_out({fleet_, *upstream_, metrics_, relays_}, {std::move(request), std::move(id), route.pattern},
                         std::move(writer));
  }
  Parsed<RequestSlo> slo = parse_request_slo(request);
  if (!slo.ok()) return refuse(*writer, &route, slo.error(), id);
  RelayRequest relay{.http = std::move(request), .id = std::move(id), .route = route.pattern, .form = route.form};
  if (route.kind == RouteKind::kModels) relay.body_instead = [this] { return models_body(); };
  if (slo->ttft_ns > 0) relay.objectives.first_token_s = static_cast<double>(slo->ttft_ns) * kNs;
  if (slo->tpot_ns > 0) relay.objectives.token_s = static_cast<double>(slo->tpot_ns) * kNs;
  start_relay({fleet_, *upstream_, metrics_, clock_, log_, relays_, options_.retries, hedges_.get()}, std::move(relay),
              std::move(writer));
}

void RouterServer::respond(ResponseWriter& writer, const Route* route, int status, const char* type, std::string body,
                           const std::string& id) {
  metrics_.request_done(route != nullptr ? route->pattern : "unknown", status);
  writer.respond(status, {{"Content-Type", type}, {"X-Request-Id", id}}, std::move(body));
}

void RouterServer::refuse(ResponseWriter& writer, const Route* route, const ApiError& error, const std::string& id) {
  respond(writer, route, error.status, "application/json",
          relay_error_body(route != nullptr ? route->form : RelayForm::kOpenAi, error, id), id);
}

void RouterServer::show_page(const Route& route, const HttpRequest& request, const std::string& id,
                             ResponseWriter& writer) {
  constexpr std::string_view kFolder = "/dashboard/";
  const bool is_file = route.kind == RouteKind::kPageFile;
  std::optional<HttpResponse> answer = page_answer(request);
  if (is_file) answer = page_file_answer(request.path.substr(kFolder.size()), request);
  if (!answer)
    return refuse(writer, &route, api_error_of_status(404, "The page has no such file; open / in a browser."), id);
  metrics_.request_done(route.pattern, answer->status);
  answer->headers.emplace_back("X-Request-Id", id);
  writer.respond(answer->status, std::move(answer->headers), std::move(answer->body));
}

void RouterServer::follow_events(const Route& route, const HttpRequest& request, const std::string& id,
                                 std::shared_ptr<ResponseWriter> writer) {
  const Result<EventQuery> query = parse_event_query(request.query);
  if (!query.ok()) return refuse(*writer, &route, to_api_error(query.error()), id);
  constexpr const char* kEvents = "text/event-stream; charset=utf-8";
  if (request.method == "HEAD") return respond(*writer, &route, 200, kEvents, "", id);
  const Status status = feed_.follow(*query, [&]() -> std::shared_ptr<ResponseWriter> {
    metrics_.request_done(route.pattern, 200);
    const bool begun = writer->start_stream(
        200,
        {{"Content-Type", kEvents}, {"X-Request-Id", id}, {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
    return begun ? writer : nullptr;
  });
  if (!status.ok()) refuse(*writer, &route, to_api_error(status.error()), id);
}

void RouterServer::answer_itself(const Route& route, const std::string& id, ResponseWriter& writer) {
  constexpr const char* kJson = "application/json";
  switch (route.kind) {
    case RouteKind::kHealth:
      return respond(writer, &route, 200, kJson, R"({"status":"ok"})", id);
    case RouteKind::kReady: {
      if (draining_) return respond(writer, &route, 503, kJson, R"({"status":"not ready","why":"draining"})", id);
      const bool ready = fleet_.any_usable();
      return respond(writer, &route, ready ? 200 : 503, kJson,
                     ready ? R"({"status":"ready"})" : R"({"status":"not ready","why":"no replica is up"})", id);
    }
    case RouteKind::kVersion:
      return respond(writer, &route, 200, kJson,
                     JsonOut().begin_object().key("version").string(options_.version).end_object().take(), id);
    case RouteKind::kMetrics:
      return respond(writer, &route, 200, "text/plain; version=0.0.4; charset=utf-8",
                     metrics_.render(fleet_, placement_.get(), http_->stats(), upstream_->stats()), id);
    case RouteKind::kReplicas:
      return respond(writer, &route, 200, kJson, replicas_body(), id);
    default: {
      metrics_.request_done(route.pattern, 200);
      HttpHeaders headers = {{"Content-Type", "text/plain; charset=utf-8"}, {"X-Request-Id", id}, {"Vary", "Accept"}};
      writer.respond(200, std::move(headers), index_text());
    }
  }
}

std::string RouterServer::index_text() const {
  return "Loralei " + options_.version + ", a router in front of " + std::to_string(fleet_.size()) +
         " replicas\n\nPOST   /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, "
         "/v1/embeddings, /tokenize, /detokenize   (one replica)\nPOST   /v1/load_lora_adapter, "
         "/v1/unload_lora_adapter, /v1/adapters, /v1/adapters/...   (every replica)\nGET    "
         "/v1/models, /v1/replicas (admin), /v1/admin/events (admin), /health, /ready, /version, /metrics, "
         "/ (for browsers: a page)\n";
}

std::string RouterServer::models_body() const {
  std::vector<ModelCard> cards;
  const std::vector<std::string> bases = fleet_.base_names();
  const std::string base = bases.empty() ? "" : bases.front();
  for (const std::string& name : bases) cards.push_back({name, started_s_, name, "", 0});
  for (const std::string& name : fleet_.adapter_names()) cards.push_back({name, started_s_, name, base, 0});
  return model_list(cards);
}

std::string RouterServer::replicas_body() const {
  JsonOut out;
  out.begin_object().key("object").string("list").key("data");
  put_replicas(fleet_.states(), out);
  return out.end_object().take();
}

}  // namespace loralei
