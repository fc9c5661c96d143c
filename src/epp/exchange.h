// SPDX-License-Identifier: Apache-2.0
// PickExchange: what a gateway and the picker say to each other about one HTTP request,
// as a machine of messages: one of the gateway's in, any number of the picker's out.
//
//   head ──► pieces of the body, held ──► the last one: Fleet::place()
//        ◄── head, with the endpoint ◄── the same body, in pieces
//   head of the answer ──► and back;  pieces of its body ──► AnswerReader, and back
//   its end ──► Fleet::ended()
//
// The gateway is to send bodies as FULL_DUPLEX_STREAMED: a head waits for its body, which
// says who can serve it.
//
// Thread: one at a time.
// Ownership: borrows what its world names; holds the request's body until it has gone
// back, within its share of the memory.
// Invariants: nothing goes back of a request before it is placed; what place() counted is
// taken back once, at the latest by the end of the exchange; bodies go back byte for
// byte. An endpoint that the client named is taken out. Messages are untrusted: of what
// comes out of order the exchange ends with breach(), and takes nothing more.
// Failure: told to the client by the gateway: an immediate answer, in its API's form.
#pragma once

#include <epp/ext_proc.pb.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_budget.h"
#include "base/clock.h"
#include "base/log.h"
#include "http/message.h"
#include "router/answer_reader.h"
#include "router/fleet.h"
#include "router/router_metrics.h"
#include "wire/errors.h"

namespace loralei {

namespace ext_proc = ::envoy::service::ext_proc::v3;

inline constexpr const char* kEndpointHeader = "x-gateway-destination-endpoint";
inline constexpr const char* kEndpointSpace = "envoy.lb";  // of the metadata that says the same
inline constexpr const char* kServedKey = "x-gateway-destination-endpoint-served";
inline constexpr const char* kSubsetSpace = "envoy.lb.subset_hint";
inline constexpr const char* kSubsetKey = "x-gateway-destination-endpoint-subset";
inline constexpr const char* kDroppedHeader = "x-llm-d-request-dropped-reason";
inline constexpr size_t kBackBytes = 32 * 1024;  // of a request's body in one message

struct PickWorld {
  Fleet& fleet;
  RouterMetrics& metrics;
  const Clock& clock;
  LogSink& log;
  std::shared_ptr<ByteBudget> memory;  // of bodies that are held
  size_t max_body_bytes = 8 * 1024 * 1024;
  int fallbacks = 0;  // endpoints that are named behind the first
  // Of a replica that may be gone, from what is seen of its answers. May be empty.
  std::function<void(size_t replica)> suspect;
};

class PickExchange {
 public:
  // refused: what the request is told, whatever it is; absent: it is served.
  explicit PickExchange(const PickWorld& world, std::optional<ApiError> refused = {});
  ~PickExchange();  // whatever had not ended has
  PickExchange(const PickExchange&) = delete;
  PickExchange& operator=(const PickExchange&) = delete;

  void take(ext_proc::ProcessingRequest& message);  // its bytes may be moved away
  // The next message to the gateway; false: there is none until more was taken.
  bool next(ext_proc::ProcessingResponse& answer);
  // Behind what next() still has, the stream is to be closed.
  bool over() const { return over_; }
  // Why, where the gateway did what it must not; empty: it did not.
  const std::string& breach() const { return breach_; }

 private:
  enum class Phase : uint8_t { kHead, kBody, kSent };  // of the request
  struct Out {
    ext_proc::ProcessingResponse message;
    bool body = false;  // what is held, in pieces, in its place
  };
  void begin(const ext_proc::ProcessingRequest& message);
  void take_head(const ext_proc::HttpHeaders& headers);
  void take_body(ext_proc::HttpBody& body);
  void take_trailers();
  void take_answer_head(const ext_proc::HttpHeaders& headers);
  void take_answer_body(ext_proc::HttpBody& body);
  void take_answer_trailers();
  void take_subset(const ext_proc::Metadata& metadata);
  void take_served(const ext_proc::Metadata& metadata);
  bool keep(std::string& piece);  // false: refused
  // The request is whole.
  void place(bool body, bool trailers);  // what of it is yet to go back
  void say_place();
  void refuse(const ApiError& error, const char* reason = nullptr);
  void refuse_size();
  void break_off(std::string why);
  void answer_ended();
  void leave();
  void drop_body();
  bool may_be_sent_to(const UpstreamAddress& address) const;
  ext_proc::ProcessingResponse& out() { return out_.emplace_back().message; }

  const PickWorld& world_;
  const std::optional<ApiError> refused_;
  const int64_t arrived_ns_;
  Phase phase_ = Phase::kHead;
  bool begun_ = false, over_ = false;
  std::string breach_;
  HttpHead head_;  // of its fields those alone that count here
  const char* route_ = "other";
  RouteObjectives objectives_;
  std::optional<std::vector<UpstreamAddress>> subset_;  // sorted; absent: any replica
  std::string held_;
  ByteShare share_;
  size_t sent_ = 0;         // of held_
  bool body_ends_ = false;  // the last piece that goes back ends the request
  std::deque<Out> out_;
  std::optional<Placed> placed_;  // until it has ended
  bool duplex_answer_ = true;     // pieces of the answer go back as such
  bool answering_ = false, answered_ = false, first_noted_ = false;
  int status_ = 0;
  std::optional<AnswerReader> reader_;
};

}  // namespace loralei
