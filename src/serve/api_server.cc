// SPDX-License-Identifier: Apache-2.0
#include "serve/api_server.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "http/gzip.h"
#include "serve/kv_shown.h"
#include "serve/memory_shown.h"
#include "serve/queues.h"
#include "serve/request_app.h"
#include "serve/request_memory.h"
#include "serve/request_slo.h"
#include "store/version_name.h"
#include "wire/json_out.h"
#include "wire/messages_api.h"
#include "wire/responses_api.h"

namespace loralei {
namespace {

constexpr size_t kUnknownFieldsLogged = 256;
constexpr int64_t kFilesCost = 1 << 20;  // of reading an adapter's texts, as bytes of a body: no cheap work
constexpr int64_t kParseWork = 16;       // a byte of a body, from JSON to fields
constexpr int64_t kCloseGraceMs = 300;   // at least, for the last bytes of answers that are complete

uint64_t entropy() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

ApiError unavailable() { return api_error_of_status(503, "The server is shutting down and takes no new requests."); }

bool speaks_another_api(RouteId route) {
  return route == RouteId::kResponses || route == RouteId::kMessages || route == RouteId::kCountTokens;
}
// Anthropic's clients say so where a route is OpenAI's, too.
bool speaks_anthropic(RouteId route, const HttpHead& head) {
  const bool lists = route == RouteId::kModels || route == RouteId::kModel;
  return route == RouteId::kMessages || route == RouteId::kCountTokens ||
         (lists && !head.header("anthropic-version").empty());
}

bool may_want_time(RouteId route) {
  return route == RouteId::kChat || route == RouteId::kCompletions || route == RouteId::kEmbeddings ||
         route == RouteId::kMessages || route == RouteId::kResponses;
}

ApiError queue_full() {
  ApiError error = api_error_of_status(429, "Too many requests are waiting; try again in a moment.");
  error.code = "rate_limit_exceeded";
  return error;
}

}  // namespace

ApiServer::ApiServer(ServeOptions options, Engine& engine, std::shared_ptr<const TextModel> text,
                     const FileSystem& files, const Clock& clock, LogSink& log)
    : options_(std::move(options)),
      engine_(engine),
      clock_(clock),
      log_(log),
      files_(files),
      access_(options_.api_keys, options_.admin_key, options_.http.host, options_.allowed_hosts,
              options_.http.tls != nullptr),
      keys_(clock),
      cache_scope_(options_.prefix_cache_scope.value_or(
          access_.holders() > 1 || !options_.named_keys.empty() ? PrefixCacheScope::kKey : PrefixCacheScope::kServer)),
      started_s_(std::time(nullptr)),
      catalogue_(make_memory_catalogue(options_.keep_versions)),
      texts_(std::move(text), files, engine.request_memory()),
      grammars_(engine.request_memory(), log),
      metrics_({options_.model_names.front(), engine.max_model_len(), options_.metrics_adapters, options_.vllm_metrics,
                [this](const std::string& name) { return catalogue_->find(name).has_value(); }}),
      beats_(clock),
      memory_(engine.request_memory()),
      dispatcher_(engine, clock, &beats_),
      context_{engine, dispatcher_, metrics_, clock, log, options_.ping_interval_ms * 1'000'000},
      adapters_(context_, options_, *catalogue_, texts_, files),
      uploads_(options_.adapter_store),
      apps_(context_),
      checks_(engine, clock, log),
      events_(context_, options_, *catalogue_, [this] { return state_without_adapters(); }),
      feed_(clock, [this] { return events_.snapshot(); }),
      ids_(entropy()),
      replica_page_(new_id()),
      pool_(options_.text_threads, static_cast<size_t>(options_.max_preparing), "text", &beats_) {}

Result<std::unique_ptr<ApiServer>> ApiServer::start(ServeOptions options, Engine& engine,
                                                    std::shared_ptr<const TextModel> text, const FileSystem& files,
                                                    const Clock& clock, LogSink& log) {
  if (options.model_names.empty()) return invalid_argument("the base model needs a name");
  std::unique_ptr<ApiServer> server(new ApiServer(std::move(options), engine, std::move(text), files, clock, log));
  server->use_keys(server->options_.named_keys);
  HttpServerOptions http = server->options_.http;
  http.error_response = [raw = server.get()](int status, std::string_view message, const HttpHead& head) {
    return raw->http_error(status, message, head);
  };
  http.memory = engine.request_memory();
  http.body_cost = body_cost_bytes;
  http.beats = &server->beats_;
  TRY_ASSIGN(server->http_, HttpServer::bind(http, log));
  if (server->uploads_.has_store())
    server->adapters_.use_store([raw = server.get()](const std::string& digest) { raw->uploads_.remove(digest); });
  return server;
}

// What http/ answers itself is counted and logged as the answers of Reply are.
HttpResponse ApiServer::http_error(int status, std::string_view message, const HttpHead& head) {
  const RouteMatch matched = match_route(head.method, head.path);
  const char* const route = matched.label;
  const std::string id = id_for(head.header("x-request-id"));
  metrics_.http_request(route, head.method, status);
  log_refusal(log_, id, head.method, route, status, message);
  HttpResponse response;
  response.headers = cors_headers(options_.cors_origins, head.header("origin"));
  response.headers.emplace_back("X-Request-Id", id);
  response.headers.emplace_back("Content-Type", "application/json");
  const ApiError error = api_error_of_status(status, std::string(message));
  response.body = speaks_anthropic(matched.id, head) ? anthropic_error_body(error, id) : error_body(error);
  return response;
}

ApiServer::~ApiServer() { shutdown(0); }

Status ApiServer::add_adapter(const std::string& name, const std::string& path) {
  return adapters_.add(name, path, AdapterOrigin::kCommandLine, "");
}

AdapterChecks::State ApiServer::check_adapters(int64_t wait_ms) {
  checking_ = true;
  std::vector<CatalogueEntry> here = catalogue_->list();
  std::erase_if(here, [this](const CatalogueEntry& entry) { return uploads_.is_elsewhere(entry.path); });
  checks_.begin(std::move(here));
  return checks_.wait(wait_ms);
}

AdapterService::Rescan ApiServer::rescan() {
  AdapterService::Rescan found = adapters_.rescan();
  if (!checking_) return found;
  std::vector<CatalogueEntry> adapters = adapters_.failed();
  for (const std::string& name : found.added) {
    if (auto entry = catalogue_->find(name)) adapters.push_back(std::move(*entry));
  }
  checks_.begin(std::move(adapters));
  return found;
}

void ApiServer::begin_drain() {
  if (!draining_ && options_.on_drain) options_.on_drain();
  if (draining_.exchange(true)) return;
  log_.log(LogLevel::kInfo,
           "draining: no new requests are taken, " + std::to_string(dispatcher_.running()) + " are running");
  engine_.drain();
  feed_.drain();
}

bool ApiServer::shutdown(int64_t timeout_ms) {
  {
    std::lock_guard lock(mutex_);
    if (down_) return true;
    down_ = true;
  }
  begin_drain();
  feed_.stop();
  const int64_t until_ns = clock_.now_ns() + timeout_ms * 1'000'000;
  bool all_done = dispatcher_.wait_idle(timeout_ms);
  all_done = pool_.wait_idle((until_ns - clock_.now_ns()) / 1'000'000) && all_done;
  pool_.cancel();
  checks_.stop();
  apps_.stop();
  uploads_.stop();
  adapters_.stop_records();
  engine_.stop();      // what is left ends with "cancelled"
  dispatcher_.stop();  // which its clients are told; nothing comes up any more
  // A long answer to a slow reader takes its time, too.
  const int64_t left_ms = (until_ns - clock_.now_ns()) / 1'000'000;
  const int cut = http_ ? http_->stop(std::max(kCloseGraceMs, left_ms)) : 0;
  pool_.stop();
  return all_done && cut == 0;
}

std::string ApiServer::new_id() {
  const std::lock_guard lock(mutex_);
  const uint64_t first = ids_();
  return random_request_id(first, ids_());
}

std::string ApiServer::id_for(std::string_view clients) {
  std::string id = usable_request_id(clients);
  return id.empty() ? new_id() : id;
}

// False for what handle() refuses.
bool ApiServer::wants_body(const HttpHead& head) {
  const RouteMatch route = match_route(head.method, head.path);
  const bool served =
      route.id != RouteId::kPreflight && route.id != RouteId::kNotFound && route.id != RouteId::kWrongMethod;
  const bool kept = route.id != RouteId::kAdapterUpload || (uploads_.has_store() && !draining_);
  return served && kept && !access_.check_host(head, http_->on_loopback()) && !access_.check(head, route.access);
}

// A form of files is larger than what is held of a request.
std::shared_ptr<BodySink> ApiServer::body_sink(const HttpHead& head) {
  if (match_route(head.method, head.path).id != RouteId::kAdapterUpload || !wants_body(head)) return nullptr;
  return uploads_.begin(head);
}

void ApiServer::handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const RouteMatch route = match_route(request.method, request.path);
  auto reply = std::make_shared<Reply>(std::move(writer), metrics_, log_, route.label, request.method,
                                       id_for(request.header("x-request-id")),
                                       cors_headers(options_.cors_origins, request.header("origin")), request.memory);
  if (speaks_anthropic(route.id, request)) reply->speak_anthropic();
  if (const auto denied = access_.check_host(request, http_->on_loopback())) return reply->refuse(*denied);
  if (route.id == RouteId::kPreflight) return preflight(route, request, *reply);
  if (route.id == RouteId::kNotFound) {
    return reply->refuse(api_error_of_status(404, "There is no route " + request.method + " " +
                                                      request.path.substr(0, 200) +
                                                      other_route(request.method, request.path)));
  }
  if (route.id == RouteId::kWrongMethod) {
    return reply->refuse(api_error_of_status(405, "This route answers " + route.allow + " only."),
                         {{"Allow", route.allow}});
  }
  if (const auto denied = access_.check(request, route.access)) return reply->refuse(*denied);
  dispatch(route, std::move(request), std::move(reply));
}

void ApiServer::preflight(const RouteMatch& route, const HttpRequest& request, Reply& reply) {
  if (request.header("origin").empty()) return reply.empty(204, {{"Allow", route.allow + ", OPTIONS"}});
  if (cors_headers(options_.cors_origins, request.header("origin")).empty()) {
    return reply.refuse(
        api_error_of_status(403, "Requests from web pages of this origin are not allowed; --cors-origin allows them."));
  }
  reply.empty(204,
              {{"Access-Control-Allow-Methods", route.allow + ", OPTIONS"},
               {"Access-Control-Allow-Headers", cors_request_headers(request.header("access-control-request-headers"))},
               {"Access-Control-Max-Age", "600"}});
}

void ApiServer::show_metrics(const HttpRequest& request, Reply& reply) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double now_s = static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) * 1e-3;
  const ServerState now_is = state();
  if (uploads_.has_store()) metrics_.adapter_store(uploads_.figures());
  const std::vector<KeyFigures> keys = keys_.figures();
  std::string page =
      metrics_.render(now_is.stats, now_is.adapters, http_->stats(), now_s, now_is.log, is_ready(impediments(now_is)));
  if (!keys.empty()) page += key_metrics(keys);
  const char* type = "text/plain; version=0.0.4; charset=utf-8";
  if (request.header("accept").find("application/openmetrics-text") != std::string_view::npos) {
    page = as_openmetrics(page);
    type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
  }
  HttpHeaders more = {{"Vary", "Accept, Accept-Encoding"}};
  if (accepts_gzip(request.header("accept-encoding"))) {
    page = gzip(page);
    more.emplace_back("Content-Encoding", "gzip");
  }
  reply.send(200, type, std::move(page), std::move(more));
}

void ApiServer::dispatch(const RouteMatch& route, HttpRequest request, std::shared_ptr<Reply> reply) {
  switch (route.id) {
    case RouteId::kIndex:
    case RouteId::kDashboardFile:
    case RouteId::kEvents:
      return show_page(route, request, *reply);
    case RouteId::kHealth:
      if (const Status health = engine_.health(); !health.ok()) return reply->error(to_api_error(health.error()));
      if (engine_is_stuck(state()))
        return reply->error(api_error_of_status(503, "The engine has made no progress for a long time; start again."));
      return reply->json(200, R"({"status":"ok"})");
    case RouteId::kReady: {
      const std::vector<Impediment> cannot = impediments(state());
      return reply->json(is_ready(cannot) ? 200 : 503, readiness_body(cannot));  // to a probe: nothing is refused
    }
    case RouteId::kVersion:
      return reply->json(200, version_body());
    case RouteId::kMetrics:
      return show_metrics(request, *reply);
    case RouteId::kModels:
      return models(*reply, access_.holder(request).named.get(), speaks_anthropic(route.id, request));
    case RouteId::kModel:
      return model(*reply, access_.holder(request).named.get(), route.name, speaks_anthropic(route.id, request));
    case RouteId::kReplica: {
      const bool ready = is_ready(impediments(state()));
      return reply->json(200, replica_body(replica_page_, request.query, options_, engine_, ready,
                                           replica_adapters(catalogue_->list(), adapters_.shown())));
    }
    case RouteId::kAdapters:
      return reply->json(200, adapters_.list());
    case RouteId::kAdapterUpload:
      return upload_adapter(request, std::move(reply));
    case RouteId::kAdapterBlobs:
      return has_store(*reply) ? reply->json(200, uploads_.list()) : void();
    case RouteId::kAdapterBlob:
      return has_store(*reply) ? uploads_.send_blob(std::move(reply), route.name, request.header("range")) : void();
    case RouteId::kAdapterDelete:
      return adapters_.remove(std::move(reply), route.name);
    case RouteId::kAdapterPin:
    case RouteId::kAdapterUnpin:
      return adapters_.pin(std::move(reply), route.name, route.id == RouteId::kAdapterPin);
    case RouteId::kAdapterPrefetch:
      return adapters_.prefetch(std::move(reply), route.name);
    case RouteId::kQueues:
      return show_queues(context_, std::move(reply));
    case RouteId::kKv:
      return show_kv(context_, *catalogue_, std::move(reply));
    case RouteId::kApps:
      return apps_.list(std::move(reply));
    case RouteId::kAppState:
      return apps_.state(std::move(reply), route.name, request.body);
    case RouteId::kMemory:
      return reply->json(200, memory_body(engine_.stats()));
    case RouteId::kSetMemory:
      return set_memory(request.body, std::move(reply));
    case RouteId::kLoraAdapters:
      return reply->json(200, lora_adapters_body(facts()));
    case RouteId::kProps:
    case RouteId::kTokenizerInfo:
    case RouteId::kServerInfo:
    case RouteId::kModelInfo:
      return reply->json(200, facts_body(route.id));
    case RouteId::kDrain:
      begin_drain();
      return reply->json(200, R"({"status":"draining"})");
    default:
      return prepare(route.id, std::move(request), std::move(reply));
  }
}

void ApiServer::prepare(RouteId route, HttpRequest request, std::shared_ptr<Reply> reply) {
  if (draining_) {
    metrics_.refused("draining");
    return reply->refuse(unavailable());
  }
  Sent sent{.arrived_ns = clock_.now_ns()};
  KeyHolder holder = access_.holder(request);
  if (access_.asks_for_keys()) sent.client = ClientId{holder.number};
  if (cache_scope_ == PrefixCacheScope::kKey) sent.cache_holder = std::move(holder.name);
  sent.key = std::move(holder.named);
  if (sent.key && !enter(route, *sent.key, *reply)) return;
  if (may_want_time(route)) {
    Parsed<RequestSlo> slo = parse_request_slo(request);
    if (!slo.ok()) return reply->refuse(slo.error());
    sent.slo = *slo;
    Parsed<std::string> app = parse_app_header(request);
    if (!app.ok()) return reply->refuse(app.error());
    sent.app_id = std::move(*app);
  }
  TextJob job;
  const bool reads_files = route == RouteId::kLoadLora || route == RouteId::kAdapterRescan;
  job.bytes = reads_files ? kFilesCost : static_cast<int64_t>(request.body.size());
  job.wanted = [reply] { return !reply->writer().closed(); };
  job.run = [this, route, body = std::make_shared<std::string>(std::move(request.body)), sent, reply](Work& work) {
    run_prepared(route, std::move(*body), sent, reply, work);
  };
  if (pool_.try_run(std::move(job))) return;
  metrics_.refused("queue_full");
  reply->refuse(queue_full());
}

bool ApiServer::given_up(const Work& work, Reply& reply) {
  if (!work.stopped()) return false;
  if (!reply.writer().closed()) reply.refuse(unavailable());
  return true;
}

void ApiServer::run_prepared(RouteId route, std::string body, const Sent& sent, std::shared_ptr<Reply> reply,
                             Work& work) {
  if (reply->writer().closed()) return;  // the client left while this waited
  work.spend(kParseWork * static_cast<int64_t>(body.size()));
  if (given_up(work, *reply)) return;
  // Other APIs' requests are said in the chat API's words first, beside their own.
  const int64_t trees = speaks_another_api(route) ? 2 : 1;
  const int64_t bytes = static_cast<int64_t>(body.size()) + trees * json_parse_bytes(body);
  if (auto error = take_memory(reply->memory(), *memory_, bytes, "Reading this request")) return reply->refuse(*error);
  switch (route) {
    case RouteId::kChat:
      return chat(std::move(body), sent, std::move(reply), work);
    case RouteId::kResponses:
      return response(std::move(body), sent, std::move(reply), work);
    case RouteId::kMessages:
      return message(std::move(body), sent, std::move(reply), work);
    case RouteId::kCountTokens:
      return count_tokens(body, sent, *reply, work);
    case RouteId::kCompletions:
      return completion(std::move(body), sent, std::move(reply), work);
    case RouteId::kEmbeddings:
      return embedding(std::move(body), sent, std::move(reply), work);
    case RouteId::kTokenize:
      return tokenize(body, sent, *reply, work);
    case RouteId::kDetokenize:
      return detokenize(body, sent, *reply, work);
    case RouteId::kLoadLora:
      return load_lora(body, std::move(reply));
    case RouteId::kUnloadLora:
      return unload_lora(body, std::move(reply));
    case RouteId::kAdapterRescan:
      return rescan_reply(*reply);
    case RouteId::kSetLoraAdapters:
      return set_lora_adapters(body, *reply);
    default:
      return reply->refuse(api_error_of_status(404, "There is no such route."));
  }
}

// From reading a request to computing it. False: it is refused.
bool ApiServer::hold_memory(Reply& reply, int64_t bytes) {
  if (auto error = take_memory(reply.memory(), *memory_, bytes, "Computing this request")) {
    reply.refuse(*error);
    return false;
  }
  reply.memory().shrink_to(bytes);
  return true;
}

PlanInputs ApiServer::inputs(const Sent& sent, Work& work) {
  const std::string id = new_id();
  std::lock_guard lock(mutex_);
  return {options_,
          engine_,
          *catalogue_,
          texts_,
          grammars_,
          id,
          ids_(),
          std::time(nullptr),
          sent.arrived_ns,
          sent.cache_holder,
          sent.client,
          sent.slo,
          sent.app_id,
          &work,
          adapters_.defaults().now(),
          sent.key.get()};
}

void ApiServer::note_unknown_fields(const std::vector<std::string>& fields) {
  if (fields.empty()) return;
  metrics_.unknown_fields(fields.size());
  std::lock_guard lock(mutex_);
  for (const std::string& field : fields) {
    if (unknown_fields_.size() >= kUnknownFieldsLogged || !unknown_fields_.insert(field).second) continue;
    log_.log(LogLevel::kWarning, "requests send the unknown field '" + field + "', which has no effect (told once)");
  }
}

void ApiServer::chat(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work) {
  auto request = parse_chat_request(body);
  std::string().swap(body);
  if (!request.ok()) return reply->refuse(request.error());
  const StreamUsage usage = stream_usage(request->common);
  answer_chat(
      *request, [&](ResponseHead head) { return make_chat_answer(std::move(head), usage); }, sent, std::move(reply),
      work);
}

void ApiServer::response(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work) {
  auto request = parse_responses_request(body);
  std::string().swap(body);
  if (!request.ok()) return reply->refuse(request.error());
  answer_chat(
      request->chat,
      [&](ResponseHead head) { return make_responses_answer(std::move(head), std::move(request->echo)); }, sent,
      std::move(reply), work);
}

void ApiServer::message(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work) {
  auto request = parse_messages_request(body);
  std::string().swap(body);
  if (!request.ok()) return reply->refuse(request.error());
  answer_chat(*request, make_messages_answer, sent, std::move(reply), work);
}

void ApiServer::count_tokens(const std::string& body, const Sent& sent, Reply& reply, Work& work) {
  auto request = parse_count_tokens_request(body);
  if (!request.ok()) return reply.refuse(request.error());
  note_unknown_fields(request->common.unknown_fields);
  auto model = resolve(request->common.model, sent);
  if (!model.ok()) return reply.refuse(model.error());
  auto text = text_of(texts_, *model);
  if (!text.ok()) return reply.refuse(text.error());
  const bool with_tools = request->tool_choice != WireToolChoice::kNone;
  auto ids =
      (*text)->encode_chat(request->prompt, with_tools, std::time(nullptr), request->add_special_tokens, {&work});
  if (given_up(work, reply)) return;
  if (!ids.ok()) return reply.refuse(to_api_error(ids.error(), "messages"));
  note_unknown_fields((*text)->unread_fields(request->prompt, with_tools));
  reply.json(200, count_tokens_response(static_cast<int64_t>(ids->size())));
}

void ApiServer::answer_chat(const ChatRequest& request, const MakeAnswer& make_answer, const Sent& sent,
                            std::shared_ptr<Reply> reply, Work& work) {
  note_unknown_fields(request.common.unknown_fields);
  auto plan = plan_chat(inputs(sent, work), request, make_answer);
  if (given_up(work, *reply)) return;
  if (!plan.ok()) return reply->refuse(plan.error());
  note_unknown_fields(plan->text->unread_fields(request.prompt, request.tool_choice != WireToolChoice::kNone));
  if (!take_tokens(*reply, *plan, request.common.max_tokens.has_value())) return;
  if (!hold_memory(*reply, generation_bytes(*plan))) return;
  std::make_shared<Generation>(context_, std::move(reply), std::move(*plan))->start();
}

void ApiServer::completion(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work) {
  auto request = parse_completion_request(body);
  std::string().swap(body);
  if (!request.ok()) return reply->refuse(request.error());
  note_unknown_fields(request->common.unknown_fields);
  auto plan = plan_completion(inputs(sent, work), *request);
  if (given_up(work, *reply)) return;
  if (!plan.ok()) return reply->refuse(plan.error());
  if (!take_tokens(*reply, *plan, request->common.max_tokens.has_value())) return;
  if (!hold_memory(*reply, generation_bytes(*plan))) return;
  std::make_shared<Generation>(context_, std::move(reply), std::move(*plan))->start();
}

void ApiServer::embedding(std::string body, const Sent& sent, std::shared_ptr<Reply> reply, Work& work) {
  auto request = parse_embedding_request(body);
  std::string().swap(body);
  if (!request.ok()) return reply->refuse(request.error());
  note_unknown_fields(request->unknown_fields);
  auto plan = plan_embedding(inputs(sent, work), *request);
  if (given_up(work, *reply)) return;
  if (!plan.ok()) return reply->refuse(plan.error());
  int64_t tokens = 0;
  for (const auto& input : plan->inputs) tokens += static_cast<int64_t>(input.size());
  if (!take_tokens(*reply, tokens, 0, true)) return;
  request->inputs.clear();
  if (!hold_memory(*reply, embedding_bytes(plan->inputs))) return;
  std::make_shared<EmbeddingJob>(context_, std::move(reply), std::move(*plan))->start();
}

void ApiServer::tokenize(const std::string& body, const Sent& sent, Reply& reply, Work& work) {
  auto request = parse_tokenize_request(body);
  if (!request.ok()) return reply.refuse(request.error());
  note_unknown_fields(request->unknown_fields);
  auto model = resolve(request->model, sent);
  if (!model.ok()) return reply.refuse(model.error());
  auto text = text_of(texts_, *model);
  if (!text.ok()) return reply.refuse(text.error());
  auto ids = request->is_chat
                 ? (*text)->encode_chat(request->chat, true, std::time(nullptr), request->add_special_tokens, {&work})
                 : (*text)->encode_text(request->text, request->add_special_tokens, {&work});
  if (given_up(work, reply)) return;
  if (!ids.ok()) return reply.refuse(to_api_error(ids.error(), request->is_chat ? "messages" : "prompt"));
  note_unknown_fields((*text)->unread_fields(request->chat, true));
  std::vector<std::string> pieces;
  if (request->return_token_strs) {
    for (const TokenId id : *ids) pieces.emplace_back((*text)->tokenizer()->token_piece(id));
  }
  reply.json(200, tokenize_response(*ids, engine_.max_model_len(), request->return_token_strs ? &pieces : nullptr));
}

void ApiServer::detokenize(const std::string& body, const Sent& sent, Reply& reply, Work& work) {
  auto request = parse_detokenize_request(body);
  if (!request.ok()) return reply.refuse(request.error());
  note_unknown_fields(request->unknown_fields);
  auto model = resolve(request->model, sent);
  if (!model.ok()) return reply.refuse(model.error());
  auto text = text_of(texts_, *model);
  if (!text.ok()) return reply.refuse(text.error());
  constexpr int64_t kIdWork = 64;
  for (const TokenId id : request->tokens)
    work.spend(kIdWork + 16 * static_cast<int64_t>((*text)->tokenizer()->token_bytes(id).size()));
  if (given_up(work, reply)) return;
  reply.json(200, detokenize_response((*text)->tokenizer()->decode(request->tokens, {.skip_special = false})));
}

void ApiServer::load_lora(const std::string& body, std::shared_ptr<Reply> reply) {
  auto request = parse_load_lora_request(body);
  if (!request.ok()) return reply->refuse(request.error());
  // What is named by its content is brought first, for its tokenizer is read before the
  // engine is told.
  const std::string missing = uploads_.missing(request->path);
  if (missing.empty()) return adapters_.load(std::move(reply), *request);
  uploads_.fetch(missing, [this, reply, request = *request](const Status& fetched) {
    if (fetched.ok()) return adapters_.load(reply, request);
    reply->refuse(vllm_error(503, fetched.error().message));
  });
}

bool ApiServer::has_store(Reply& reply) const {
  if (uploads_.has_store()) return true;
  reply.refuse(api_error_of_status(
      403, "This server keeps no adapters: start it with --adapter-store DIR to give it a folder for them."));
  return false;
}

void ApiServer::upload_adapter(const HttpRequest& request, std::shared_ptr<Reply> reply) {
  if (!has_store(*reply)) return;
  if (draining_) {
    metrics_.refused("draining");
    return reply->refuse(unavailable());
  }
  if (request.sink == nullptr) {
    return reply->refuse(api_error_of_status(
        400,
        "The request has no body: send the adapter's files as a form, as curl -F 'file=@adapter_config.json' does."));
  }
  uploads_.finish(request.sink, [this, reply](const Result<UploadedAdapter>& uploaded) {
    if (!uploaded.ok()) return reply->refuse(to_api_error(uploaded.error()));
    log_.event(LogLevel::kInfo, "adapter uploaded",
               {{"digest", uploaded->manifest.digest()}, {"bytes", uploaded->manifest.bytes()}});
    if (!uploaded->name.empty()) return adapters_.load_uploaded(reply, *uploaded);
    JsonOut out;
    out.begin_object();
    put_manifest(uploaded->manifest, out);
    reply->json(200, out.end_object().take());
  });
}

void ApiServer::unload_lora(const std::string& body, std::shared_ptr<Reply> reply) {
  auto request = parse_unload_lora_request(body);
  if (!request.ok()) return reply->refuse(request.error());
  adapters_.unload(std::move(reply), request->name);
}

void ApiServer::rescan_reply(Reply& reply) {
  const AdapterService::Rescan result = rescan();
  JsonOut out;
  out.begin_object().key("added").begin_array();
  for (const std::string& name : result.added) out.string(name);
  out.end_array().key("notes").begin_array();
  for (const std::string& note : result.notes) out.string(note);
  out.end_array().end_object();
  reply.json(200, out.take());
}

void ApiServer::set_lora_adapters(const std::string& body, Reply& reply) {
  auto request = parse_lora_scales_request(body);
  if (!request.ok()) return reply.refuse(request.error());
  adapters_.set_defaults(reply, *request);
}

std::string ApiServer::facts_body(RouteId route) const {
  if (route == RouteId::kProps) return props_body(facts());
  if (route == RouteId::kTokenizerInfo) return tokenizer_info_body(facts());
  return route == RouteId::kServerInfo ? server_info_body(facts()) : model_info_body(facts());
}

ServerFacts ApiServer::facts() const {
  return {options_, engine_, *texts_.base(), *catalogue_, adapters_.defaults().now()};
}

ModelCard ApiServer::base_card(const std::string& name) const {
  return {name, started_s_, options_.model_path, "", engine_.max_model_len()};
}

void ApiServer::models(Reply& reply, const NamedKey* key, bool anthropic) const {
  std::vector<ModelCard> cards;
  for (const std::string& name : options_.model_names) cards.push_back(base_card(name));
  for (const CatalogueEntry& entry : catalogue_->list()) {
    if (key != nullptr && !key->may_use(entry.name)) continue;
    cards.push_back({entry.name, entry.created_s, entry.path, options_.model_names.front(), engine_.max_model_len()});
  }
  if (!anthropic) return reply.json(200, model_list(cards));
  std::vector<AnthropicModel> models;
  models.reserve(cards.size());
  for (const ModelCard& card : cards) models.push_back({card.id, card.created});
  reply.json(200, anthropic_model_list(models));
}

void ApiServer::model(Reply& reply, const NamedKey* key, const std::string& name, bool anthropic) const {
  const auto answer = [&](const ModelCard& card) {
    reply.json(200, anthropic ? anthropic_model({card.id, card.created}) : model_card(card));
  };
  const auto& names = options_.model_names;
  if (std::find(names.begin(), names.end(), name) != names.end()) return answer(base_card(name));
  ModelRef ref;
  ref.model = name;
  auto found = resolve_model_for(key, ref, names, *catalogue_);
  if (!found.ok()) return reply.refuse(found.error());
  const CatalogueEntry& entry = found->entries.front();
  const std::string id = parse_version_name(name) ? version_name(entry.name, entry.number) : entry.name;
  answer({id, entry.created_s, entry.path, names.front(), engine_.max_model_len()});
}

void ApiServer::set_memory(const std::string& body, std::shared_ptr<Reply> reply) {
  auto request = parse_set_memory_request(body);
  if (!request.ok()) return reply->refuse(request.error());
  const auto done = [this, reply](const CommandReply& answer) {
    if (answer.status.ok()) return reply->json(200, memory_body(engine_.stats()));
    if (reply->writer().closed()) {
      return log_.log(LogLevel::kInfo,
                      "The client that asked for another memory budget has left, and it stays as it was. " +
                          answer.status.error().message);
    }
    reply->refuse(to_api_error(answer.status.error(), "budget_bytes"));
  };
  const auto ticket = dispatcher_.command(MemoryCommand{0, request->budget_bytes}, done);
  if (!ticket.ok()) return reply->refuse(to_api_error(ticket.error(), "budget_bytes"));
  reply->writer().on_closed([&engine = engine_, ticket = *ticket] { engine.cancel_memory(ticket); });
}

ServerState ApiServer::state() const {
  ServerState state = state_without_adapters();
  state.adapters = adapters_.shown();
  return state;
}

ServerState ApiServer::state_without_adapters() const {
  ServerState state;
  state.health = engine_.health();
  state.draining = draining_;
  state.max_queued = options_.max_preparing;
  state.stats = engine_.stats();
  state.log = log_.state();
  state.silences = engine_.heartbeats().silences();
  for (const Heartbeats::Silence& silence : beats_.silences()) state.silences.push_back(silence);
  return state;
}

std::string ApiServer::version_body() const {
  JsonOut out;
  out.begin_object()
      .key("version")
      .string(options_.version)
      .key("commit")
      .string(options_.commit)
      .key("build")
      .string(options_.build);
  out.key("isa").string(options_.isa).key("model").string(options_.model_names.front());
  out.key("system_fingerprint").string(engine_.fingerprint()).end_object();
  return out.take();
}

}  // namespace loralei
