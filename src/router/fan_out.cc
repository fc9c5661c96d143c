// SPDX-License-Identifier: Apache-2.0
#include "router/fan_out.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "wire/errors.h"

namespace loralei {
namespace {

constexpr size_t kAnswerBytesMost = 64 * 1024;
constexpr size_t kToldBytes = 300;  // of what a replica said, in an error

class FanOut final : public RelayBoard::Entry, public std::enable_shared_from_this<FanOut> {
 public:
  FanOut(const FanOutWorld& world, FanOutRequest request, FanOutDone done)
      : world_(world), request_(std::move(request)), done_(std::move(done)) {}
  ~FanOut() override { world_.board.remove(this); }

  void start() {
    const std::vector<ReplicaState> states = world_.fleet.states();
    const size_t did = request_.first ? 1 : 0;
    all_ = did;
    std::vector<Said> asked;
    for (const ReplicaState& state : states) {
      if (state.health == HealthState::kLeft || (did > 0 && state.address == request_.first->address)) continue;
      ++all_;
      const bool there = state.health == HealthState::kUp || state.health == HealthState::kReturning;
      if (there) {
        asked.push_back({.address = state.address, .replica = state.replica});
      } else {
        left_out_ += " " + state.name + " is " + health_state_name(state.health) + " and was not asked.";
      }
    }
    if (asked.empty() && did == 0) {
      const ApiError error = api_error_of_status(503, "No replica is up; send it again later.");
      return answer(error.status, {{"Content-Type", "application/json"}}, error_body(error));
    }
    missing_ = asked.size();
    said_ = std::move(asked);
    if (did > 0) {
      FanOutRequest::First& first = *request_.first;
      said_.insert(said_.begin(), {.address = first.address,
                                   .told = true,
                                   .status = first.status,
                                   .headers = {{"Content-Type", first.type}},
                                   .body = std::move(first.body)});
    }
    if (missing_ == 0) return conclude();
    world_.board.add(shared_from_this());
    const auto body = std::make_shared<const std::string>(std::move(request_.http.body));
    for (size_t place = did; place < said_.size(); ++place) {
      UpstreamRequest request{.method = request_.http.method, .target = request_.http.target};
      for (const auto& header : request_.http.headers) {
        if (!equals_ignoring_case(header.first, "host") && !equals_ignoring_case(header.first, "accept-encoding"))
          request.headers.push_back(header);
      }
      if (!body->empty()) request.body = body;
      auto call = world_.upstream.call(said_[place].address, std::move(request),
                                       std::make_shared<Listener>(shared_from_this(), place));
      const std::lock_guard lock(mutex_);
      if (!said_[place].told) said_[place].call = std::move(call);
    }
  }

  void replica_lost(size_t replica) override {
    std::vector<std::pair<size_t, std::shared_ptr<UpstreamCall>>> lost;
    {
      const std::lock_guard lock(mutex_);
      for (size_t place = 0; place < said_.size(); ++place) {
        const Said& one = said_[place];
        if (one.replica == replica && one.call) lost.emplace_back(place, one.call);
      }
    }
    for (const auto& [place, call] : lost) {
      call->cancel();
      answered(place, {.body = "it does not answer any more"});
    }
  }

 private:
  struct Said {
    UpstreamAddress address;
    size_t replica = SIZE_MAX;  // its place; none: it has done it before
    bool told = false;
    std::shared_ptr<UpstreamCall> call;  // until then
    int status = 0;                      // 0: it broke off
    HttpHeaders headers;
    std::string body;
  };
  class Listener final : public UpstreamListener {
   public:
    Listener(std::shared_ptr<FanOut> all, size_t place) : all_(std::move(all)), place_(place) {}
    void on_head(int status, const HttpHeaders& headers) override {
      said_.status = status;
      said_.headers = headers;
    }
    bool on_body(std::string_view piece) override {
      said_.body += piece.substr(0, kAnswerBytesMost - std::min(kAnswerBytesMost, said_.body.size()));
      return true;
    }
    void on_end() override { all_->answered(place_, std::move(said_)); }
    void on_failure(const UpstreamFailure& failure) override {
      said_.status = 0;
      said_.body = failure.error.message;
      all_->answered(place_, std::move(said_));
    }

   private:
    const std::shared_ptr<FanOut> all_;
    const size_t place_;
    Said said_;
  };

  void answered(size_t place, Said said) {
    {
      const std::lock_guard lock(mutex_);
      Said& one = said_[place];
      if (std::exchange(one.told, true)) return;
      one.call.reset();
      one.status = said.status;
      one.headers = std::move(said.headers);
      one.body = std::move(said.body);
      if (--missing_ > 0) return;
    }
    conclude();
  }

  void conclude() {
    const auto done = std::find_if(said_.begin(), said_.end(), [](const Said& one) { return one.status / 100 == 2; });
    const Said& first = done != said_.end() ? *done : said_.front();
    // Who does not have what is to be removed has done it.
    const bool removes = request_.http.method == "DELETE" || request_.http.path.find("/unload_") != std::string::npos;
    const bool agree =
        first.status != 0 && std::all_of(said_.begin(), said_.end(), [&](const Said& other) {
          return other.status == first.status || (removes && first.status / 100 == 2 && other.status == 404);
        });
    if (agree && (left_out_.empty() || first.status / 100 != 2)) {
      return answer(first.status, {{"Content-Type", std::string(find_header(first.headers, "content-type"))}},
                    first.body);
    }
    std::string what =
        "The replicas did not all do the same; send it again when they can (a load with \"load_inplace\": true)." +
        left_out_;
    for (const Said& one : said_) {
      what += " " + address_text(one.address) +
              (one.status == 0 ? " broke off: " : " answered with status " + std::to_string(one.status) + ": ") +
              one.body.substr(0, kToldBytes);
    }
    const ApiError error = api_error_of_status(502, what);
    answer(error.status, {{"Content-Type", "application/json"}}, error_body(error));
  }

  void answer(int status, HttpHeaders headers, std::string body) {
    headers.emplace_back("X-Request-Id", request_.id);
    headers.emplace_back("X-Loralei-Replicas", std::to_string(said_.size()) + " of " + std::to_string(all_));
    done_(status, std::move(headers), std::move(body));
  }

  const FanOutWorld world_;
  FanOutRequest request_;
  const FanOutDone done_;
  std::mutex mutex_;
  std::vector<Said> said_;
  size_t missing_ = 0, all_ = 0;
  std::string left_out_;  // a sentence each
};

}  // namespace

void start_fan_out(const FanOutWorld& world, FanOutRequest request, FanOutDone done) {
  std::make_shared<FanOut>(world, std::move(request), std::move(done))->start();
}

void start_fan_out(const FanOutWorld& world, FanOutRequest request, std::shared_ptr<ResponseWriter> writer) {
  const auto done = [&metrics = world.metrics, route = request.route, writer = std::move(writer)](
                        int status, HttpHeaders headers, std::string body) {
    metrics.request_done(route, status);
    writer->respond(status, std::move(headers), std::move(body));
  };
  start_fan_out(world, std::move(request), FanOutDone(done));
}

}  // namespace loralei
