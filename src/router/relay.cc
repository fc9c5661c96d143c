// SPDX-License-Identifier: Apache-2.0
#include "router/relay.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "router/answer_reader.h"
#include "wire/messages_api.h"
#include "wire/responses.h"
#include "wire/route_facts.h"

namespace loralei {
namespace {

constexpr size_t kWholeBytes = 1024 * 1024;  // of an answer that is passed on as a whole; a longer one as it comes
constexpr size_t kFreeBytes = 16 * 1024;     // of it, that need no share of the memory
constexpr int kRetryAfterS = 1;
constexpr double kSeconds = 1e-9;

bool is_event_stream(const HttpHeaders& headers) {
  return find_header(headers, "content-type").starts_with("text/event-stream");
}

// A replica that cannot take the request now, or not yet.
bool passes_it_on(int status, bool names_adapters) {
  return status == 429 || status == 502 || status == 503 || status == 504 || (status == 404 && names_adapters);
}

HttpHeaders headers_to_replica(const RelayRequest& request) {
  HttpHeaders headers;
  for (const auto& [name, value] : request.http.headers) {
    // An answer that is encoded could not be cut behind its events.
    const bool ours = equals_ignoring_case(name, "host") || equals_ignoring_case(name, "accept-encoding") ||
                      equals_ignoring_case(name, "x-request-id");
    if (!ours) headers.emplace_back(name, value);
  }
  headers.emplace_back("X-Request-Id", request.id);
  headers.emplace_back("X-Forwarded-For", request.http.peer);
  return headers;
}

// The head's own length and end are the server's business here.
HttpHeaders headers_to_client(const HttpHeaders& headers) {
  HttpHeaders passed;
  for (const auto& header : headers) {
    const bool ours = equals_ignoring_case(header.first, "content-length") ||
                      equals_ignoring_case(header.first, "date") || equals_ignoring_case(header.first, "server");
    if (!ours) passed.push_back(header);
  }
  return passed;
}

// Not that it is slow: its looks (ReplicaWatch) tell whether it is there. Nor that we
// have no descriptors.
bool is_its_fault(const UpstreamFailure& failure) {
  const ErrorCode code = failure.error.code;
  return code == ErrorCode::kUnavailable || code == ErrorCode::kIo ||
         (code == ErrorCode::kDeadline && failure.stage == UpstreamStage::kConnect);
}

// An answer as a whole.
struct Answer {
  int status = 0;
  HttpHeaders headers;
  std::string body;
};

class Relay final : public RelayBoard::Entry, public Hedged, public std::enable_shared_from_this<Relay> {
 public:
  Relay(const RelayWorld& world, RelayRequest request, std::shared_ptr<ResponseWriter> writer)
      : world_(world), request_(std::move(request)), writer_(std::move(writer)), arrived_ns_(world.clock.now_ns()) {}

  ~Relay() override { world_.board.remove(this); }

  void start() {
    world_.board.add(shared_from_this());
    body_ = std::make_shared<const std::string>(std::move(request_.http.body));
    facts_ = read_route_facts(*body_);
    name_model_of_path();
    if (names_places()) {
      ApiError error = api_error_of_status(
          400, "A place in the list of adapters may be another one on each replica; name the adapter instead.");
      error.param = facts_.model.adapters_param;
      return refuse(error);
    }
    body_memory_ = request_.http.memory->bytes();
    writer_->on_closed([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->client_left();
    });
    next_attempt();
    // Of others all comes at once, and nobody can tell whether it has begun.
    if (world_.hedges != nullptr && facts_.stream) world_.hedges->add(weak_from_this());
  }

  // It may be that it computes; but a client that has nothing yet need not wait for that.
  void replica_lost(size_t replica) override {
    std::unique_lock lock(mutex_);
    const auto there =
        std::find_if(tries_.begin(), tries_.end(), [&](const Try& one) { return one.place.replica == replica; });
    if (done_ || there == tries_.end() || there->has_content()) return;
    if (tries_.size() == 1 && !may_try()) return;
    const Placed place = there->place;
    const std::shared_ptr<UpstreamCall> call = there->call;
    lock.unlock();
    const Left left = leave(place, AttemptEnd::kFailed);
    if (left != Left::kNotThere && call) call->cancel();
    if (left == Left::kAlone) next_attempt();
  }

  void hedge() override {
    {
      const std::lock_guard lock(mutex_);
      if (done_ || tries_.size() != 1 || tries_.front().has_content() || !may_try()) return;
      if (!world_.hedges->take()) return;
    }
    next_attempt(true);
  }

 private:
  // The request on one replica.
  struct Try {
    Placed place;
    bool hedge = false;
    std::shared_ptr<UpstreamCall> call = nullptr;
    std::optional<AnswerReader> reader = std::nullopt;
    Answer answer = {};
    bool streams = false;  // the answer passes as it comes
    bool refused = false;
    bool has_content() const { return streams && reader && reader->has_content(); }
  };
  // Of one that was taken out: whether others are under way.
  enum class Left : uint8_t { kNotThere, kOthers, kAlone };

  // What Upstream tells of one attempt.
  class Attempt final : public UpstreamListener {
   public:
    Attempt(std::shared_ptr<Relay> relay, const Placed& placement) : relay_(std::move(relay)), place_(placement) {}
    void on_head(int status, const HttpHeaders& headers) override { relay_->on_head(place_, status, headers); }
    bool on_body(std::string_view piece) override { return relay_->on_body(place_, piece); }
    void on_end() override { relay_->on_end(place_); }
    void on_failure(const UpstreamFailure& failure) override { relay_->on_failure(place_, failure); }

   private:
    const std::shared_ptr<Relay> relay_;
    const Placed place_;
  };

  bool names_adapters(const Placed& place) const {
    return !place.known || !facts_.model.adapters.empty() || !facts_.model.model.empty();
  }

  bool names_places() const {
    const auto& adapters = facts_.model.adapters;
    return std::any_of(adapters.begin(), adapters.end(), [](const AdapterRef& adapter) { return adapter.index >= 0; });
  }

  // Before anything else is done.
  void refuse(const ApiError& error) {
    std::unique_lock lock(mutex_);
    if (done_) return;
    const auto writer = finish_locked(error.status);
    lock.unlock();
    writer->respond(error.status, {{"Content-Type", "application/json"}, {"X-Request-Id", request_.id}},
                    relay_error_body(request_.form, error, request_.id));
  }

  // Who asks what a model is, asks somebody who has it.
  void name_model_of_path() {
    constexpr std::string_view kModels = "/v1/models/";
    if (!request_.http.path.starts_with(kModels)) return;
    if (auto name = percent_decode(std::string_view(request_.http.path).substr(kModels.size())))
      facts_.model.model = std::move(*name);
  }

  // With the lock held.
  bool may_try() const { return tried_.size() <= static_cast<size_t>(world_.retries); }
  Try* find(const Placed& place) {
    const auto found =
        std::find_if(tries_.begin(), tries_.end(), [&](const Try& one) { return one.place.id == place.id; });
    return done_ || found == tries_.end() ? nullptr : &*found;
  }

  // Not with the lock held: Upstream may tell of the attempt before call() returns.
  void next_attempt(bool hedge = false) {
    std::vector<size_t> tried;
    {
      const std::lock_guard lock(mutex_);
      tried = tried_;
    }
    const RouteQuery query{.facts = &facts_, .objectives = request_.objectives, .tried = tried};
    const int64_t begin_ns = world_.clock.now_ns();
    const Result<Placed> place = world_.fleet.place(query);
    world_.metrics.pick(static_cast<double>(world_.clock.now_ns() - begin_ns) * kSeconds);
    if (!place.ok()) return hedge ? void() : give_up(place.error());
    {
      const std::lock_guard lock(mutex_);
      if (done_ || (hedge && begun_content_)) return world_.fleet.ended(*place, std::nullopt);
      if (!tried.empty()) hedge ? world_.metrics.hedged(false) : world_.metrics.retried();
      tried_.push_back(place->replica);
      tries_.push_back({.place = *place, .hedge = hedge});
    }
    UpstreamRequest request{.method = request_.http.method, .target = request_.http.target};
    request.headers = headers_to_replica(request_);
    if (!body_->empty()) request.body = body_;
    request.idempotent = true;  // nothing is done there but computing, and no byte of it has been seen
    auto call =
        world_.upstream.call(place->address, std::move(request), std::make_shared<Attempt>(shared_from_this(), *place));
    bool late = false;
    {
      const std::lock_guard lock(mutex_);
      Try* const one = find(*place);
      if (one != nullptr) one->call = call;
      late = one == nullptr;
    }
    if (late) call->cancel();
  }

  void on_head(const Placed& place, int status, const HttpHeaders& headers) {
    const std::lock_guard lock(mutex_);
    Try* const one = find(place);
    if (one == nullptr) return;
    one->answer.status = status;
    one->answer.headers = headers_to_client(headers);
    one->reader.emplace(is_event_stream(headers));
    one->streams = is_event_stream(headers);
    one->refused = passes_it_on(status, names_adapters(place)) && !one->streams;
  }

  bool on_body(const Placed& place, std::string_view piece) {
    std::unique_lock lock(mutex_);
    Try* const one = find(place);
    if (one == nullptr) return true;
    if (!one->streams) {
      if (begun_) return true;  // it does not fit behind what has gone: on_end()
      const bool kept = may_keep(one->answer.body.size() + piece.size());
      one->answer.body += one->reader->take(piece);
      if (kept) return true;
      one->streams = true;  // more than is kept: it passes as it comes
      const std::string body = std::exchange(one->answer.body, {});
      return pass_alone(lock, place, body);
    }
    const bool began = one->reader->has_content();
    const std::string_view whole = one->reader->take(piece);
    if (!began && one->reader->has_content()) {
      note_first(*one);
      return pass_alone(lock, place, whole);
    }
    return whole.empty() || pass(lock, *one, whole);
  }

  // The first that is more than comments: whoever else computes it need not.
  bool pass_alone(std::unique_lock<std::mutex>& lock, const Placed& place, std::string_view bytes) {
    begun_content_ = true;
    std::list<Try> others = take_others(place);
    const bool more = bytes.empty() || pass(lock, *find(place), bytes);
    if (lock.owns_lock()) lock.unlock();
    drop(others);
    return more;
  }

  // With the lock held; to be dropped without.
  std::list<Try> take_others(const Placed& place) {
    std::list<Try> others;
    for (auto one = tries_.begin(); one != tries_.end();) {
      const auto next = std::next(one);
      if (one->place.id != place.id) {
        others.splice(others.end(), tries_, one);
      } else if (std::exchange(one->hedge, false)) {
        world_.metrics.hedged(true);
      }
      one = next;
    }
    return others;
  }

  void drop(const std::list<Try>& tries) {
    for (const Try& one : tries) {
      if (one.call) one.call->cancel();
      world_.fleet.ended(one.place, std::nullopt);
      world_.metrics.attempt_done(address_text(one.place.address), AttemptEnd::kLeft);
    }
  }

  // So much of a whole answer, for which its request asks for memory beyond a little.
  bool may_keep(size_t bytes) {
    if (bytes <= kFreeBytes) return true;
    return bytes <= kWholeBytes && request_.http.memory->grow_to(body_memory_ + 2 * static_cast<int64_t>(bytes));
  }

  // To the client; false: it has enough for now.
  bool pass(std::unique_lock<std::mutex>& lock, const Try& one, std::string_view bytes) {
    begin(one);
    if (!writer_->write(bytes)) return true;  // it has left, or is too slow: client_left() is told
    if (writer_->wants_more()) return true;
    const std::shared_ptr<ResponseWriter> writer = writer_;
    lock.unlock();
    writer->on_room([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->client_has_room();
    });
    return false;
  }

  // After comments alone the head has gone already.
  void begin(const Try& one) {
    if (begun_) return;
    begun_ = true;
    begun_events_ = is_event_stream(one.answer.headers);
    writer_->start_stream(one.answer.status, one.answer.headers);
  }

  void note_first(const Try& one) {
    if (first_noted_) return;
    first_noted_ = true;
    world_.metrics.first_bytes(static_cast<double>(world_.clock.now_ns() - arrived_ns_) * kSeconds);
    world_.fleet.answers(one.place);
  }

  void on_end(const Placed& place) {
    std::unique_lock lock(mutex_);
    Try* const one = find(place);
    if (one == nullptr) return;
    // A head that went with comments was one of events; nothing else fits behind it.
    const bool misfits = begun_ && !one->streams;
    if ((one->refused || misfits) && (tries_.size() > 1 || may_try())) {
      refusal_ = std::move(one->answer);
      lock.unlock();
      if (leave(place, AttemptEnd::kRefused) == Left::kAlone) next_attempt();
      return;
    }
    if (misfits) {
      const int status = one->answer.status;
      lock.unlock();
      if (leave(place, AttemptEnd::kRefused) != Left::kAlone) return;
      return give_up(io_error("Its replica answers with status " + std::to_string(status) + "."));
    }
    const bool good = one->answer.status < 400, streamed = one->streams, refused = one->refused;
    const AnswerCounts counts = one->reader->counts();
    if (streamed) {
      const std::string_view rest = one->reader->rest();
      begin(*one);
      if (!rest.empty()) writer_->write(rest);
    }
    Answer answer = std::move(one->answer);
    const std::list<Try> others = take_others(place);
    const std::shared_ptr<ResponseWriter> writer = finish_locked(answer.status);
    lock.unlock();
    drop(others);
    if (good && request_.body_instead) answer.body = request_.body_instead();
    world_.fleet.ended(place, good ? std::optional(counts) : std::nullopt);
    world_.metrics.attempt_done(address_text(place.address), refused ? AttemptEnd::kRefused : AttemptEnd::kAnswered);
    if (streamed) return writer->finish();
    if (good) world_.metrics.first_bytes(static_cast<double>(world_.clock.now_ns() - arrived_ns_) * kSeconds);
    writer->respond(answer.status, std::move(answer.headers), std::move(answer.body));
  }

  void on_failure(const Placed& place, const UpstreamFailure& failure) {
    std::unique_lock lock(mutex_);
    Try* const one = find(place);
    if (one == nullptr) return;
    const bool stopping = failure.error.code == ErrorCode::kCancelled;
    const bool slow = failure.error.code == ErrorCode::kDeadline && failure.stage != UpstreamStage::kConnect;
    const bool again = !stopping && !slow && !one->has_content() && may_try();
    lock.unlock();
    if (is_its_fault(failure)) world_.fleet.failed(place.replica, failure.error.message);
    if (leave(place, AttemptEnd::kFailed) != Left::kAlone) return;
    if (again) return next_attempt();
    give_up(slow ? Error{ErrorCode::kDeadline, failure.error.message} : failure.error);
  }

  Left leave(const Placed& place, AttemptEnd end) {
    bool alone = false;
    {
      const std::lock_guard lock(mutex_);
      if (find(place) == nullptr) return Left::kNotThere;
      std::erase_if(tries_, [&](const Try& one) { return one.place.id == place.id; });
      alone = tries_.empty();
    }
    world_.fleet.ended(place, std::nullopt);
    world_.metrics.attempt_done(address_text(place.address), end);
    return alone ? Left::kAlone : Left::kOthers;
  }

  // Nobody is left to ask. What the last one said is the answer, where one said
  // something.
  void give_up(const Error& error) {
    std::unique_lock lock(mutex_);
    if (done_) return;
    if (begun_) return cut_off(lock, error);
    if (refusal_) {
      Answer answer = *std::move(refusal_);
      const auto writer = finish_locked(answer.status);
      lock.unlock();
      writer->respond(answer.status, std::move(answer.headers), std::move(answer.body));
      return;
    }
    ApiError told = to_api_error(error);
    if (error.code == ErrorCode::kIo) told.status = 502;
    if (error.code == ErrorCode::kDeadline) told.status = 504;
    HttpHeaders headers = {{"Content-Type", "application/json"}, {"X-Request-Id", request_.id}};
    if (told.status == 429 || told.status == 503) headers.emplace_back("Retry-After", std::to_string(kRetryAfterS));
    const auto writer = finish_locked(told.status);
    lock.unlock();
    log_end(error.message);
    writer->respond(told.status, std::move(headers), relay_error_body(request_.form, told, request_.id));
  }

  // Behind what the client has of the answer.
  void cut_off(std::unique_lock<std::mutex>& lock, const Error& error) {
    const auto writer = finish_locked(0);
    lock.unlock();
    log_end(error.message);
    if (!begun_events_) return;  // dropped without an end: the connection is cut
    ApiError told = to_api_error(error);
    told.message =
        "The replica that computed this answer broke off; what came so far is not all of it. " + told.message;
    const std::string body = relay_error_body(request_.form, told, request_.id);
    writer->write(request_.form == RelayForm::kAnthropic ? "event: error\n" + sse_event(body) : sse_event(body));
    writer->finish();
  }

  void client_left() {
    std::unique_lock lock(mutex_);
    if (done_) return;
    const std::list<Try> all = std::exchange(tries_, {});
    finish_locked(0);
    lock.unlock();
    drop(all);
  }

  void client_has_room() {
    std::vector<std::shared_ptr<UpstreamCall>> calls;
    {
      const std::lock_guard lock(mutex_);
      for (const Try& one : tries_) calls.push_back(one.call);
    }
    for (const auto& call : calls) {
      if (call) call->resume();
    }
  }

  // Nothing that is told from now on counts. The status that the client has; 0: none.
  std::shared_ptr<ResponseWriter> finish_locked(int status) {
    done_ = true;
    world_.metrics.request_done(request_.route, status);
    return std::move(writer_);
  }

  void log_end(const std::string& why) {
    world_.log.event(LogLevel::kWarning, "request failed",
                     {{"id", request_.id}, {"route", request_.route}, {"attempts", tried_.size()}}, why);
  }

  const RelayWorld world_;
  RelayRequest request_;
  std::shared_ptr<const std::string> body_;
  RouteFacts facts_;  // borrows body_
  int64_t body_memory_ = 0;
  std::mutex mutex_;
  std::shared_ptr<ResponseWriter> writer_;  // until done_
  const int64_t arrived_ns_;
  std::vector<size_t> tried_;
  std::list<Try> tries_;           // under way: one, two where it is hedged, none between two or when it is done
  std::optional<Answer> refusal_;  // what the last replica that could not take it said
  bool begun_ = false, begun_events_ = false, begun_content_ = false, first_noted_ = false, done_ = false;
};

}  // namespace

std::string relay_error_body(RelayForm form, const ApiError& error, const std::string& id) {
  return form == RelayForm::kAnthropic ? anthropic_error_body(error, id) : error_body(error);
}

void start_relay(const RelayWorld& world, RelayRequest request, std::shared_ptr<ResponseWriter> writer) {
  std::make_shared<Relay>(world, std::move(request), std::move(writer))->start();
}

}  // namespace loralei
