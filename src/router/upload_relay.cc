// SPDX-License-Identifier: Apache-2.0
#include "router/upload_relay.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <vector>

#include "base/check.h"
#include "router/fan_out.h"
#include "wire/adapter_upload.h"
#include "wire/errors.h"

namespace loralei {
namespace {

constexpr size_t kAnswerBytesMost = 256 * 1024;  // of a list of files, which are 64 at most
constexpr int64_t kContinueMs = 2000;            // in which a replica says that it wants the body
constexpr const char* kRetryAfterS = "1";
constexpr const char* kJsonType = "application/json";

struct Answer {
  int status = 0;
  HttpHeaders headers;
  std::string body;
};

Answer answer_of(const ApiError& error) {
  Answer answer{error.status, {{"Content-Type", kJsonType}}, error_body(error)};
  if (error.status == 429 || error.status == 503) answer.headers.emplace_back("Retry-After", kRetryAfterS);
  return answer;
}
Answer answer_of(int status, std::string sentence) { return answer_of(api_error_of_status(status, sentence)); }

// A replica that does not want the upload, and has seen nothing of it.
bool passes_it_on(int status) {
  return status == 403 || status == 404 || status == 405 || status == 429 || (status >= 500 && status <= 504);
}

bool is_up(const ReplicaState& state) {
  return state.health == HealthState::kUp || state.health == HealthState::kReturning;
}

struct Picked {
  size_t replica = 0;  // its place
  UpstreamAddress address;
};

// The one that has least to do, of those that were not tried; else why there is none.
Parsed<Picked> pick_replica(const std::vector<ReplicaState>& states, const std::vector<Picked>& tried) {
  const ReplicaState* best = nullptr;
  bool any_up = false, any_store = false;
  const auto burden = [](const ReplicaState& state) {
    const int32_t reported = state.reported_running + state.reported_waiting;
    return std::pair(state.health != HealthState::kUp, std::max(state.sent, reported));
  };
  const auto was_tried = [&](const ReplicaState& state) {
    return std::any_of(tried.begin(), tried.end(), [&](const Picked& one) { return one.address == state.address; });
  };
  for (const ReplicaState& state : states) {
    if (state.health == HealthState::kLeft) continue;
    any_up = any_up || is_up(state);
    any_store = any_store || state.store;
    if (!is_up(state) || !state.store || was_tried(state)) continue;
    if (best == nullptr || burden(state) < burden(*best)) best = &state;
  }
  if (best != nullptr) return Picked{best->replica, best->address};
  if (!any_up) return api_error_of_status(503, "No replica is up; send it again later.");
  if (any_store) return api_error_of_status(503, "No replica that keeps adapters is up; send it again later.");
  return api_error_of_status(
      403, "No replica keeps adapters: start them with --adapter-store DIR to give each a folder for them.");
}

std::optional<uint64_t> announced_bytes(const HttpHead& head) {
  const std::string_view text = head.header("content-length");
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  const bool known = !text.empty() && error == std::errc() && end == text.data() + text.size();
  return known && head.header("transfer-encoding").empty() ? std::optional(bytes) : std::nullopt;
}

class Upload final : public UpstreamBody,
                     public UploadTurns::Entry,
                     public RelayBoard::Entry,
                     public std::enable_shared_from_this<Upload> {
 public:
  Upload(const UploadWorld& world, UploadRequest request)
      : world_(world), request_(std::move(request)), bytes_(announced_bytes(request_.head)) {}
  ~Upload() override {
    world_.board.remove(this);
    world_.turns.leave(this);
  }

  int64_t max_bytes() const { return request_.max_bytes; }

  // ---- from the client ----

  void take(std::string piece, std::function<void(bool)> taken) {
    bool begins = false, over = false;
    {
      const std::lock_guard lock(mutex_);
      over = done_;
      if (!over) {
        piece_ = std::move(piece);
        taken_ = std::move(taken);
        begins = !std::exchange(begun_, true);
      }
    }
    if (over) return taken(false);
    begins ? next_attempt() : hand_on();
  }

  // All has come, or no more is wanted.
  void finish(std::shared_ptr<ResponseWriter> writer) {
    bool begins = false;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      writer_ = writer;
      begins = !done_ && !std::exchange(begun_, true);
    }
    writer->on_closed([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->client_left();
    });
    tell();
    begins ? next_attempt() : hand_on();
  }

  // Before finish(), unless all was handed on.
  void client_left() {
    std::shared_ptr<UpstreamCall> call;
    std::shared_ptr<ResponseWriter> writer;
    std::string replica;  // that has a part of it
    {
      const std::lock_guard lock(mutex_);
      if (whole_ || done_) return;
      done_ = true;
      writer = std::move(writer_);
      call = std::move(call_);
      if (std::exchange(running_, false)) replica = replica_name();
      piece_.reset();
      told_ = nullptr;
      taken_ = nullptr;
    }
    if (call) call->cancel();
    world_.turns.leave(this);
    if (!replica.empty()) world_.metrics.attempt_done(replica, AttemptEnd::kLeft);
    if (writer) world_.metrics.request_done(request_.route, 0);
  }

  // ---- to the replica ----

  std::optional<uint64_t> bytes() const override { return bytes_; }
  void next(Told told) override {
    {
      const std::lock_guard lock(mutex_);
      if (done_) return;
      told_ = std::move(told);
    }
    hand_on();
  }
  void your_turn() override {
    bool over = false;
    {
      const std::lock_guard lock(mutex_);
      turn_ = Turn::kHas;
      over = done_;
    }
    over ? world_.turns.leave(this) : hand_on();
  }
  void replica_lost(size_t replica) override {
    std::shared_ptr<UpstreamCall> call;
    {
      const std::lock_guard lock(mutex_);
      if (!running_ || tried_.back().replica != replica || !call_) return;
      call = call_;
    }
    call->cancel();
    failed({ErrorCode::kIo, "it does not answer any more"});
  }

 private:
  enum class Turn : uint8_t { kNone, kWaits, kHas };

  class Attempt final : public UpstreamListener {
   public:
    explicit Attempt(std::shared_ptr<Upload> upload) : upload_(std::move(upload)) {}
    void on_head(int status, const HttpHeaders& headers) override {
      answer_.status = status;
      for (const char* name : {"Content-Type", "Retry-After"}) {
        if (has_header(headers, name)) answer_.headers.emplace_back(name, find_header(headers, name));
      }
    }
    bool on_body(std::string_view piece) override {
      if (answer_.body.size() + piece.size() <= kAnswerBytesMost) {
        answer_.body += piece;
      } else {
        too_long_ = true;
      }
      return true;
    }
    void on_end() override { upload_->answered(std::move(answer_), too_long_); }
    void on_failure(const UpstreamFailure& failure) override { upload_->failed(failure.error); }

   private:
    const std::shared_ptr<Upload> upload_;
    Answer answer_;
    bool too_long_ = false;
  };

  // What is here, where it is wanted. The last of it waits for its turn.
  void hand_on() {
    Told told;
    std::function<void(bool)> taken;
    std::optional<std::string> piece;
    {
      const std::lock_guard lock(mutex_);
      if (done_ || !told_ || (!piece_ && !ended_)) return;
      const bool last = !piece_ || (bytes_ && given_bytes_ + piece_->size() >= *bytes_);
      if (!last || turn_ == Turn::kHas) {
        told = std::exchange(told_, nullptr);
        piece = std::exchange(piece_, std::nullopt);
        taken = std::exchange(taken_, nullptr);
        given_bytes_ += piece ? piece->size() : 0;
        sent_ = true;
        whole_ = last;
      } else {
        if (turn_ == Turn::kWaits) return;
        turn_ = Turn::kWaits;
      }
    }
    if (!told) return world_.turns.take(shared_from_this()) ? your_turn() : void();
    told(std::move(piece));
    if (taken) taken(true);
  }

  void next_attempt() {
    auto replica = pick_replica(world_.fleet.states(), tried_);
    if (!replica.ok()) return give_up(answer_of(replica.error()));
    size_t attempt = 0;
    {
      const std::lock_guard lock(mutex_);
      if (done_) return;
      tried_.push_back(*replica);
      attempt = tried_.size();
      running_ = true;
      told_ = nullptr;
    }
    if (attempt == 1) world_.board.add(shared_from_this());
    if (attempt > 1) world_.metrics.retried();
    UpstreamRequest request{.method = request_.head.method, .target = request_.head.target};
    request.headers = headers_to_replica(true);
    request.pieces = shared_from_this();
    request.continue_ms = kContinueMs;
    auto call =
        world_.upstream.call(replica->address, std::move(request), std::make_shared<Attempt>(shared_from_this()));
    bool late = false;
    {
      const std::lock_guard lock(mutex_);
      late = done_;
      if (!late && running_ && tried_.size() == attempt) call_ = call;
    }
    if (late) call->cancel();  // where it has not ended by itself
  }

  // `form`: of the form's own request; else of a JSON one in its name.
  HttpHeaders headers_to_replica(bool form) const {
    HttpHeaders headers;
    for (const auto& [name, value] : request_.head.headers) {
      const bool ours = equals_ignoring_case(name, "host") || equals_ignoring_case(name, "accept-encoding") ||
                        equals_ignoring_case(name, "x-request-id");
      const bool of_body = name.size() > 8 && equals_ignoring_case(name.substr(0, 8), "content-");
      if (!ours && (form || !of_body)) headers.emplace_back(name, value);
    }
    headers.emplace_back("X-Request-Id", request_.id);
    if (!form) headers.emplace_back("Content-Type", kJsonType);
    return headers;
  }

  // How far the attempt that is under way has come, for who ends it. Nothing: it ended
  // before.
  struct Reached {
    bool sent, whole, waits;
  };
  std::optional<Reached> end_attempt() {
    const std::lock_guard lock(mutex_);
    if (done_ || !std::exchange(running_, false)) return std::nullopt;
    call_.reset();
    return Reached{sent_, whole_, turn_ == Turn::kWaits};
  }

  void answered(Answer answer, bool too_long) {
    const auto reached = end_attempt();
    if (!reached) return;
    const auto [sent, whole, waits] = *reached;
    const bool good = answer.status / 100 == 2;
    const bool again = !sent && passes_it_on(answer.status);
    world_.metrics.attempt_done(replica_name(), again ? AttemptEnd::kRefused : AttemptEnd::kAnswered);
    if (again) return again_or(std::move(answer));
    if (!whole && waits && answer.status == 408) {
      return settle(answer_of(
          503, "Other uploads take effect first, and the replica did not wait that long; send it again later."));
    }
    if (!whole && good)
      return settle(
          answer_of(502, "The replica " + replica_name() + " answered before it had the whole upload; send it again."));
    if (!good) return settle(std::move(answer));
    if (too_long) return settle(unclear("its answer is longer than " + std::to_string(kAnswerBytesMost) + " bytes"));
    publish(std::move(answer));
  }

  // Whoever is loaded there is loaded everywhere.
  void publish(Answer answer) {
    const auto load = parse_upload_answer(answer.body);
    if (!load.ok()) return settle(unclear(load.error().message));
    if (!load->has_value()) return settle(std::move(answer));
    FanOutRequest all{.http = {}, .id = request_.id, .route = request_.route};
    all.http.method = "POST";
    all.http.target = all.http.path = "/v1/load_lora_adapter";
    all.http.headers = headers_to_replica(false);
    all.http.body = load_lora_body(**load);
    const std::string_view type = find_header(answer.headers, "content-type");
    all.first = FanOutRequest::First{tried_.back().address, answer.status, std::string(type), std::move(answer.body)};
    const FanOutDone done = [self = shared_from_this()](int status, HttpHeaders headers, std::string body) {
      std::erase_if(headers, [](const auto& header) { return header.first == "X-Request-Id"; });
      self->settle({status, std::move(headers), std::move(body)});
    };
    start_fan_out({world_.fleet, world_.upstream, world_.metrics, world_.board}, std::move(all), done);
  }

  void failed(const Error& failure) {
    const auto reached = end_attempt();
    if (!reached) return;
    const auto [sent, whole, waits] = *reached;
    world_.metrics.attempt_done(replica_name(), AttemptEnd::kFailed);
    const std::string& why = failure.message;
    world_.log.event(LogLevel::kWarning, "upload failed", {{"id", request_.id}, {"replica", replica_name()}}, why);
    if (whole) return settle(unclear(why, failure.code == ErrorCode::kDeadline ? 504 : 502));
    if (failure.code == ErrorCode::kCancelled)
      return settle(answer_of(503, "The router is shutting down; send it to another."));
    if (sent) {
      return settle(answer_of(502, "The replica " + replica_name() + " broke off while the upload was sent to it: " +
                                       why + ". Nothing of it is kept; send it again."));
    }
    ApiError error = to_api_error(failure);
    if (failure.code == ErrorCode::kIo) error.status = 502;
    if (failure.code == ErrorCode::kDeadline) error.status = 504;
    again_or(answer_of(error));
  }
  // It has the whole form, and whether it did what that says is not known.
  Answer unclear(const std::string& why, int status = 502) const {
    return answer_of(status, "Whether the replica " + replica_name() + " has the adapter is not known: " + why +
                                 ". The others were not asked; send it again (with load_inplace=true).");
  }

  // Another replica, where there is one; `last` is the answer where there is none.
  void again_or(Answer last) {
    refusal_ = std::move(last);
    if (tried_.size() > static_cast<size_t>(world_.retries)) return give_up(*refusal_);
    next_attempt();
  }
  // What the last one said is the answer, where one said something.
  void give_up(Answer answer) { settle(refusal_ ? *refusal_ : std::move(answer)); }

  std::string replica_name() const { return address_text(tried_.back().address); }

  void settle(Answer answer) {
    std::function<void(bool)> taken;
    {
      const std::lock_guard lock(mutex_);
      if (done_) return;
      done_ = true;
      result_ = std::move(answer);
      taken = std::exchange(taken_, nullptr);
      piece_.reset();
      told_ = nullptr;
      call_.reset();
    }
    world_.turns.leave(this);
    if (taken) taken(false);
    tell();
  }

  // The answer, when it is there and wanted.
  void tell() {
    std::shared_ptr<ResponseWriter> writer;
    Answer answer;
    {
      const std::lock_guard lock(mutex_);
      if (!result_ || !writer_) return;
      writer = std::move(writer_);
      answer = *std::exchange(result_, std::nullopt);
    }
    world_.metrics.request_done(request_.route, answer.status);
    answer.headers.emplace_back("X-Request-Id", request_.id);
    writer->respond(answer.status, std::move(answer.headers), std::move(answer.body));
  }

  const UploadWorld world_;
  const UploadRequest request_;
  const std::optional<uint64_t> bytes_;  // of the body, where it is known
  // Only by the attempt that is under way.
  std::vector<Picked> tried_;  // the last one is asked now
  std::optional<Answer> refusal_;

  std::mutex mutex_;
  std::shared_ptr<ResponseWriter> writer_;  // from finish() until the answer
  std::shared_ptr<UpstreamCall> call_;
  Told told_;                         // the replica wants a piece
  std::optional<std::string> piece_;  // the client's next one
  std::function<void(bool)> taken_;   // when it is gone
  uint64_t given_bytes_ = 0;
  Turn turn_ = Turn::kNone;
  std::optional<Answer> result_;  // that was not told yet
  bool begun_ = false;            // a replica is asked
  bool running_ = false;          // and has neither answered nor failed
  bool sent_ = false;             // a replica has something of the body, or its end
  bool ended_ = false;            // nothing more comes of the body
  bool whole_ = false;            // the replica was given the last of it
  bool done_ = false;
};

// The server's hold of an upload: who drops it before its body was whole has left.
class UploadSink final : public BodySink {
 public:
  explicit UploadSink(std::shared_ptr<Upload> upload) : upload_(std::move(upload)) {}
  ~UploadSink() override {
    if (!finished_) upload_->client_left();
  }
  int64_t max_bytes() const override { return upload_->max_bytes(); }
  void take(std::string piece, std::function<void(bool)> done) override {
    upload_->take(std::move(piece), std::move(done));
  }
  void finish(std::shared_ptr<ResponseWriter> writer) {
    finished_ = true;
    upload_->finish(std::move(writer));
  }

 private:
  const std::shared_ptr<Upload> upload_;
  bool finished_ = false;
};

}  // namespace

bool UploadTurns::take(const std::shared_ptr<Entry>& entry) {
  const std::lock_guard lock(mutex_);
  if (holder_ == nullptr) holder_ = entry.get();
  if (holder_ == entry.get()) return true;
  waiting_.emplace_back(entry.get(), entry);
  return false;
}

void UploadTurns::leave(const Entry* entry) {
  std::shared_ptr<Entry> next;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const auto& one) { return one.first == entry; });
    if (holder_ != entry) return;
    holder_ = nullptr;
    while (!waiting_.empty() && !next) {
      next = waiting_.front().second.lock();
      waiting_.pop_front();
    }
    holder_ = next.get();
  }
  if (next) next->your_turn();
}

std::shared_ptr<BodySink> make_upload_sink(const UploadWorld& world, UploadRequest request) {
  return std::make_shared<UploadSink>(std::make_shared<Upload>(world, std::move(request)));
}

void finish_upload(const std::shared_ptr<BodySink>& sink, std::shared_ptr<ResponseWriter> writer) {
  const auto upload = std::dynamic_pointer_cast<UploadSink>(sink);
  CHECK(upload != nullptr);
  upload->finish(std::move(writer));
}

}  // namespace loralei
