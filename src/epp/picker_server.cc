// SPDX-License-Identifier: Apache-2.0
#include "epp/picker_server.h"

#include <epp/ext_proc.grpc.pb.h>
#include <epp/health.grpc.pb.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/fixed_byte_budget.h"
#include "epp/endpoint.h"
#include "serve/access.h"

namespace loralei {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int kMessageBytesMost = 4 * 1024 * 1024;  // of a gateway, whose pieces are smaller
constexpr int kKeepaliveMs = 30'000;                // a gateway that is silent is asked whether it is there

std::string listening_at(const std::string& host, int port) { return address_text({host, port}); }

}  // namespace

namespace health = ::grpc::health::v1;

struct PickerServer::Core final : HttpHandler {
  class Stream;
  class Streams;
  class Health;

  Core(const PickerServerOptions& options, const Clock& clock, LogSink& log);
  ~Core() override;
  Status start();
  Status start_grpc();
  Status watch_members();
  Status begin_placement();
  std::optional<ApiError> admit();
  void stream_ended();
  bool ready() const { return !draining && fleet.any_usable(); }
  bool shutdown(int64_t timeout_ms);
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override;

  const PickerServerOptions options;
  const Clock& clock;
  LogSink& log;
  const AccessPolicy access;
  RouterMetrics metrics;
  Fleet fleet;
  PickWorld world;
  std::atomic<int64_t> streams{0}, cut{0};
  std::atomic<int64_t> cut_at_ns{kNever};  // what ends from then on was cut off
  std::atomic<bool> draining{false}, down{false};
  std::unique_ptr<Upstream> upstream;
  std::unique_ptr<ReplicaWatch> watch;   // asks through upstream
  std::unique_ptr<MemberWatch> members;  // tells watch; null: all are named
  std::unique_ptr<FleetLeader> leader;   // null: without etcd
  std::unique_ptr<PlacementController> placement;
  std::unique_ptr<HttpServer> http;  // null: nobody asks for figures
  std::unique_ptr<Streams> stream_service;
  std::unique_ptr<Health> health_service;
  std::unique_ptr<grpc::Server> grpc;  // last: its threads call everything above
  int port = 0;
};

// One HTTP request. It reads only when all that it has to say is written, so that one of
// its functions is called at a time, and a gateway that does not read is not read from.
class PickerServer::Core::Stream final
    : public grpc::ServerBidiReactor<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse> {
 public:
  explicit Stream(Core& core) : core_(core), exchange_(std::in_place, core.world, core.admit()) { StartRead(&in_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);  // the gateway is done, or gone
    exchange_->take(in_);
    go_on();
  }
  void OnWriteDone(bool ok) override { ok ? go_on() : Finish(grpc::Status::OK); }
  void OnDone() override {
    exchange_.reset();
    core_.stream_ended();
    delete this;
  }

 private:
  // Once something was started another thread may be here already.
  void go_on() {
    if (exchange_->next(out_)) return StartWrite(&out_);
    if (!exchange_->over()) {
      in_.Clear();
      return StartRead(&in_);
    }
    const std::string breach = exchange_->breach();
    Finish(breach.empty() ? grpc::Status::OK : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, breach));
  }

  Core& core_;
  std::optional<PickExchange> exchange_;
  ext_proc::ProcessingRequest in_;
  ext_proc::ProcessingResponse out_;
};

class PickerServer::Core::Streams final : public ext_proc::ExternalProcessor::CallbackService {
 public:
  explicit Streams(Core& core) : core_(core) {}
  grpc::ServerBidiReactor<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse>* Process(
      grpc::CallbackServerContext*) override {
    return new Stream(core_);
  }

 private:
  Core& core_;
};

// "liveness" is answered as long as the process lives, everything else where there is
// somebody to send to.
class PickerServer::Core::Health final : public health::Health::CallbackService {
 public:
  explicit Health(Core& core) : core_(core) {}
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const health::HealthCheckRequest* request,
                                  health::HealthCheckResponse* answer) override {
    const std::string& name = request->service();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool known = name.empty() || name == "liveness" || name == "readiness" ||
                       name == ext_proc::ExternalProcessor::service_full_name();
    const bool serving = name == "liveness" || core_.ready();
    answer->set_status(serving ? health::HealthCheckResponse::SERVING : health::HealthCheckResponse::NOT_SERVING);
    reactor->Finish(known ? grpc::Status::OK
                          : grpc::Status(grpc::StatusCode::NOT_FOUND,
                                         "there is no such service; ask for liveness, readiness or nothing"));
    return reactor;
  }

 private:
  Core& core_;
};

PickerServer::Core::Core(const PickerServerOptions& options, const Clock& clock, LogSink& log)
    : options(options),
      clock(clock),
      log(log),
      access({}, "", options.host),
      fleet(options.fleet, clock, log),
      world{.fleet = fleet,
            .metrics = metrics,
            .clock = clock,
            .log = log,
            .max_body_bytes = options.max_body_bytes,
            .fallbacks = options.fallbacks} {
  const int64_t most = options.max_bodies_bytes > 0 ? options.max_bodies_bytes
                                                    : kHeldBodies * static_cast<int64_t>(options.max_body_bytes);
  world.memory = std::make_shared<FixedByteBudget>(most);
  world.suspect = [this](size_t replica) { watch->look_soon(replica); };
}

PickerServer::Core::~Core() { shutdown(0); }

Status PickerServer::Core::start() {
  for (const UpstreamAddress& replica : options.replicas) {
    const auto numeric = numeric_address(replica);
    if (!numeric)
      return invalid_argument("the replica " + address_text(replica) +
                              " is a name, and a gateway takes addresses alone; name it as http://IP:PORT");
    fleet.add(*numeric);
  }
  if (options.metrics_port >= 0) {
    HttpServerOptions http_options;
    http_options.host = options.host;
    http_options.port = options.metrics_port;
    http_options.max_connections = 64;
    http_options.threads = 1;
    TRY_ASSIGN(http, HttpServer::bind(http_options, log));
  }
  TRY_ASSIGN(upstream, Upstream::start({}, log));
  watch = std::make_unique<ReplicaWatch>(options.watch, fleet, *upstream, clock);
  if (!options.members.etcd.empty()) TRY(watch_members());
  TRY(start_grpc());
  if (options.placement) TRY(begin_placement());
  if (http) http->serve(*this);
  return {};
}

Status PickerServer::Core::watch_members() {
  MemberListeners listeners;
  listeners.joined = [this](const FleetMember& member) {
    const std::string name = address_text(member.address);
    if (const auto numeric = numeric_address(member.address)) {
      log.log(LogLevel::kInfo, "Replica " + name + " joins.");
      return watch->join(*numeric);
    }
    log.log(LogLevel::kWarning, "Replica " + name +
                                    " is left out: it gives a name, and a gateway takes addresses alone; start it "
                                    "with --advertise IP:PORT");
  };
  listeners.left = [this](const FleetMember& member) {
    const auto numeric = numeric_address(member.address);
    if (!numeric) return;
    log.log(LogLevel::kInfo, "Replica " + address_text(member.address) + " leaves.");
    watch->leave(*numeric);
  };
  TRY_ASSIGN(members, MemberWatch::start(options.members, std::move(listeners), log));
  return {};
}

Status PickerServer::Core::begin_placement() {
  if (!options.members.etcd.empty()) {
    TRY_ASSIGN(leader, FleetLeader::start(options.members, listening_at(options.host, port), clock, log));
  }
  placement = std::make_unique<PlacementController>(*options.placement,
                                                    PlacementWorld{fleet, *upstream, leader.get(), clock, log});
  return placement->start();
}

Status PickerServer::Core::start_grpc() {
  stream_service = std::make_unique<Streams>(*this);
  health_service = std::make_unique<Health>(*this);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listening_at(options.host, options.port), grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else two pickers would share an address
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.SetMaxReceiveMessageSize(kMessageBytesMost);
  builder.RegisterService(stream_service.get());
  builder.RegisterService(health_service.get());
  grpc = builder.BuildAndStart();
  if (grpc && port > 0) return {};
  return Error{ErrorCode::kUnavailable, "the address " + listening_at(options.host, options.port) +
                                            " cannot be listened on; choose another with --host and --port"};
}

std::optional<ApiError> PickerServer::Core::admit() {
  if (streams.fetch_add(1) < options.max_streams) return std::nullopt;
  return to_api_error({ErrorCode::kOverloaded, "The picker serves " + std::to_string(options.max_streams) +
                                                   " requests already; send it again later."});
}

void PickerServer::Core::stream_ended() {
  if (clock.now_ns() >= cut_at_ns) ++cut;
  --streams;
}

bool PickerServer::Core::shutdown(int64_t timeout_ms) {
  if (down.exchange(true)) return true;
  draining = true;
  cut_at_ns = clock.now_ns() + timeout_ms * kNsPerMs;
  if (grpc) grpc->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  if (http) http->stop(0);
  if (placement) placement->stop();
  leader.reset();
  members.reset();
  if (watch) watch->stop();
  if (upstream) upstream->stop();
  return cut == 0;
}

void PickerServer::Core::handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const HttpHeaders json = {{"Content-Type", "application/json"}};
  const auto error = access.check_host(request, http->on_loopback());
  if (error) return (void)writer->respond(error->status, json, error_body(*error));
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (reads && request.path == "/health") return (void)writer->respond(200, json, R"({"status":"ok"})");
  if (reads && request.path == "/ready") {
    const bool is = ready();
    return (void)writer->respond(is ? 200 : 503, json, is ? R"({"status":"ready"})" : R"({"status":"not ready"})");
  }
  if (reads && request.path == "/metrics") {
    HttpServerStats clients;
    clients.connections = streams;
    return (void)writer->respond(200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
                                 metrics.render(fleet, placement.get(), clients, upstream->stats()));
  }
  writer->respond(404, json,
                  error_body(api_error_of_status(404,
                                                 "There are GET /metrics, /ready and /health; requests come "
                                                 "from a gateway, over gRPC.")));
}

void silence_grpc() {
  gpr_set_log_function([](gpr_log_func_args*) {});
}

PickerServer::PickerServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
PickerServer::~PickerServer() = default;

Result<std::unique_ptr<PickerServer>> PickerServer::start(const PickerServerOptions& options, const Clock& clock,
                                                          LogSink& log) {
  if (options.replicas.empty() && options.members.etcd.empty())
    return invalid_argument(
        "a picker needs replicas: name them (--replica URL), or where etcd knows them (--etcd URL)");
  auto core = std::make_unique<Core>(options, clock, log);
  TRY(core->start());
  return std::unique_ptr<PickerServer>(new PickerServer(std::move(core)));
}

int PickerServer::port() const { return core_->port; }
int PickerServer::metrics_port() const { return core_->http ? core_->http->port() : 0; }
std::vector<ReplicaState> PickerServer::replicas() const { return core_->fleet.states(); }
int64_t PickerServer::streams() const { return core_->streams; }
bool PickerServer::shutdown(int64_t timeout_ms) { return core_->shutdown(timeout_ms); }

// As a router does, a picker goes on without etcd.
void PickerServer::wait_for_replicas(int64_t timeout_ms) {
  const int64_t until_ns = core_->clock.now_ns() + timeout_ms * kNsPerMs;
  if (core_->members) {
    const Status known = core_->members->wait_for_first(timeout_ms);
    if (!known.ok())
      core_->log.log(LogLevel::kWarning, "The members of the fleet are not known yet: " + known.error().message +
                                             ". They are asked for again and again.");
  }
  core_->watch->wait_for_first(std::max<int64_t>(0, (until_ns - core_->clock.now_ns()) / kNsPerMs));
}

}  // namespace loralei
