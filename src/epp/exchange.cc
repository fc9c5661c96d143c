// SPDX-License-Identifier: Apache-2.0
#include "epp/exchange.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>
#include <utility>

#include "epp/endpoint.h"
#include "router/relay.h"
#include "serve/request_slo.h"
#include "wire/route_facts.h"

namespace loralei {
namespace {

constexpr double kSeconds = 1e-9;
constexpr const char* kRetryAfterS = "1";
constexpr const char* kSaturated = "rejected-saturated";
constexpr const char* kNoEndpoints = "rejected-no-endpoints";
constexpr std::string_view kModels = "/v1/models/";

// What metrics call a request's path.
const char* route_of(std::string_view path) {
  constexpr const char* kRoutes[] = {
      "/v1/chat/completions",      "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
      "/v1/messages/count_tokens", "/tokenize",       "/detokenize",   "/v1/models"};
  if (path.starts_with(kModels)) return "/v1/models/*";
  const auto* found = std::find(std::begin(kRoutes), std::end(kRoutes), path);
  return found == std::end(kRoutes) ? "other" : *found;
}

RelayForm form_of(std::string_view path) {
  return path.starts_with("/v1/messages") ? RelayForm::kAnthropic : RelayForm::kOpenAi;
}

// What every replica is to do, or none.
bool changes_adapters(const HttpHead& head) {
  if (head.method != "POST" && head.method != "DELETE") return false;
  return head.path == "/v1/load_lora_adapter" || head.path == "/v1/unload_lora_adapter" ||
         head.path == "/v1/adapters" || head.path.starts_with("/v1/adapters/");
}

// Of a status that a replica has which cannot take the request, or a proxy before it
// which does not reach it.
bool may_be_gone(int status) { return status == 502 || status == 503 || status == 504; }

std::string_view value_of(const ext_proc::HeaderValue& header) {
  return header.raw_value().empty() ? header.value() : header.raw_value();
}

std::string_view value_of(const ext_proc::HttpHeaders& headers, std::string_view name) {
  for (const ext_proc::HeaderValue& header : headers.headers().headers()) {
    if (header.key() == name) return value_of(header);
  }
  return {};
}

// Null: it is not there.
const google::protobuf::Value* value_of(const ext_proc::Metadata& metadata, const char* space, const char* key) {
  const auto found = metadata.filter_metadata().find(space);
  if (found == metadata.filter_metadata().end()) return nullptr;
  const auto value = found->second.fields().find(key);
  return value == found->second.fields().end() ? nullptr : &value->second;
}

int64_t number_of(std::string_view text) {
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() ? number : 0;
}

void set_header(ext_proc::HeaderMutation& mutation, const char* name, std::string_view value) {
  ext_proc::HeaderValueOption& option = *mutation.add_set_headers();
  option.mutable_header()->set_key(name);
  option.mutable_header()->set_raw_value(value.data(), value.size());
  option.set_append_action(ext_proc::OVERWRITE_IF_EXISTS_OR_ADD);
}

bool comes_before(const UpstreamAddress& a, const UpstreamAddress& b) {
  return std::tie(a.host, a.port) < std::tie(b.host, b.port);
}

}  // namespace

PickExchange::PickExchange(const PickWorld& world, std::optional<ApiError> refused)
    : world_(world), refused_(std::move(refused)), arrived_ns_(world.clock.now_ns()), share_(world.memory) {}

PickExchange::~PickExchange() { leave(); }

void PickExchange::take(ext_proc::ProcessingRequest& message) {
  using Kind = ext_proc::ProcessingRequest::RequestCase;
  if (over_) return;
  if (!std::exchange(begun_, true)) begin(message);
  if (over_) return;
  if (phase_ != Phase::kSent) take_subset(message.metadata_context());
  if (message.has_response_headers() && placed_) take_served(message.metadata_context());
  switch (message.request_case()) {
    case Kind::kRequestHeaders:
      return take_head(message.request_headers());
    case Kind::kRequestBody:
      return take_body(*message.mutable_request_body());
    case Kind::kRequestTrailers:
      return take_trailers();
    case Kind::kResponseHeaders:
      return take_answer_head(message.response_headers());
    case Kind::kResponseBody:
      return take_answer_body(*message.mutable_response_body());
    case Kind::kResponseTrailers:
      return take_answer_trailers();
    default:
      return break_off("a message says nothing");
  }
}

// Of the first message: what it says of the stream.
void PickExchange::begin(const ext_proc::ProcessingRequest& message) {
  const bool says = message.has_protocol_config();
  const ext_proc::ProtocolConfiguration& modes = message.protocol_config();
  if (says) duplex_answer_ = modes.response_body_mode() == ext_proc::FULL_DUPLEX_STREAMED;
  if (message.observability_mode() || (says && modes.request_body_mode() != ext_proc::FULL_DUPLEX_STREAMED))
    return refuse(api_error_of_status(500,
                                      "The picker reads requests as a whole before it says where they go: set "
                                      "request_body_mode: FULL_DUPLEX_STREAMED, without observability_mode, in the "
                                      "gateway's ext_proc filter."));
  const bool local = message.has_response_headers();  // the gateway answers before it asks
  if (message.has_request_headers() || local) return;
  break_off("it begins without a request's head; set request_header_mode: SEND in the gateway's ext_proc filter");
}

void PickExchange::take_head(const ext_proc::HttpHeaders& headers) {
  if (phase_ != Phase::kHead || answering_) return break_off("a request has two heads");
  phase_ = Phase::kBody;
  head_.method = value_of(headers, ":method");
  head_.target = value_of(headers, ":path");
  head_.path = head_.target.substr(0, head_.target.find('?'));
  if (head_.path.size() > 1 && head_.path.ends_with('/')) head_.path.pop_back();
  for (const ext_proc::HeaderValue& header : headers.headers().headers()) {
    if (header.key() == "x-request-id" || header.key().starts_with("x-llm-d-slo-"))
      head_.headers.emplace_back(header.key(), value_of(header));
  }
  route_ = route_of(head_.path);
  if (refused_) return refuse(*refused_, kSaturated);
  if (changes_adapters(head_))
    return refuse(api_error_of_status(
        403,
        "A gateway sends a request to one server, and adapters are to come and go on all of them: ask each "
        "server itself, or loralei route."));
  Parsed<RequestSlo> slo = parse_request_slo(head_);
  if (!slo.ok()) return refuse(slo.error());
  if (slo->ttft_ns > 0) objectives_.first_token_s = static_cast<double>(slo->ttft_ns) * kSeconds;
  if (slo->tpot_ns > 0) objectives_.token_s = static_cast<double>(slo->tpot_ns) * kSeconds;
  const int64_t announced = number_of(value_of(headers, "content-length"));
  if (announced > static_cast<int64_t>(world_.max_body_bytes)) return refuse_size();
  if (headers.end_of_stream()) place(false, false);
}

void PickExchange::take_body(ext_proc::HttpBody& body) {
  if (answering_) return;  // the gateway has answered it
  if (phase_ != Phase::kBody) return break_off("a piece of a request comes behind its end");
  if (!keep(*body.mutable_body())) return;
  if (body.end_of_stream()) place(true, false);
}

void PickExchange::take_trailers() {
  if (answering_) return;
  if (phase_ != Phase::kBody) return break_off("trailers of a request come behind its end");
  place(!held_.empty(), true);
}

bool PickExchange::keep(std::string& piece) {
  if (piece.size() > world_.max_body_bytes - held_.size()) {
    refuse_size();
    return false;
  }
  const size_t bytes = held_.size() + piece.size();
  const size_t wanted = std::min(std::max(bytes, 2 * held_.capacity()), world_.max_body_bytes);
  if (bytes > held_.capacity() || share_.bytes() == 0) {
    if (!share_.grow_to(static_cast<int64_t>(wanted))) {
      refuse(to_api_error({ErrorCode::kOverloaded,
                           "The picker holds as many requests as it has memory for; send it again later."}),
             kSaturated);
      return false;
    }
    held_.reserve(wanted);
  }
  held_ += piece;
  return true;
}

void PickExchange::take_subset(const ext_proc::Metadata& metadata) {
  const google::protobuf::Value* value = value_of(metadata, kSubsetSpace, kSubsetKey);
  if (value == nullptr) return;
  subset_.emplace();
  const auto add = [&](std::string_view text) {
    if (auto endpoint = parse_endpoint(text)) subset_->push_back(*std::move(endpoint));
  };
  for (const auto& one : value->list_value().values()) add(one.string_value());
  std::string_view list = value->string_value();
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    add(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  std::sort(subset_->begin(), subset_->end(), comes_before);
}

// The gateway went on to another of the endpoints that it was told.
void PickExchange::take_served(const ext_proc::Metadata& metadata) {
  const google::protobuf::Value* value = value_of(metadata, kEndpointSpace, kServedKey);
  if (value == nullptr) return;
  const auto endpoint = parse_endpoint(value->string_value());
  if (!endpoint) return;
  auto moved = world_.fleet.moved(*placed_, *endpoint);
  if (!moved) return;
  world_.metrics.attempt_done(address_text(placed_->address), AttemptEnd::kFailed);
  world_.metrics.retried();
  if (world_.suspect) world_.suspect(placed_->replica);
  placed_ = std::move(moved);
}

bool PickExchange::may_be_sent_to(const UpstreamAddress& address) const {
  return std::binary_search(subset_->begin(), subset_->end(), address, comes_before);
}

void PickExchange::place(bool body, bool trailers) {
  phase_ = Phase::kSent;
  RouteFacts facts = read_route_facts(held_);
  if (head_.path.starts_with(kModels)) {  // who asks what a model is, asks somebody who has it
    if (auto name = percent_decode(std::string_view(head_.path).substr(kModels.size())))
      facts.model.model = *std::move(name);
  }
  const auto& adapters = facts.model.adapters;
  if (std::any_of(adapters.begin(), adapters.end(), [](const AdapterRef& one) { return one.index >= 0; })) {
    ApiError error = api_error_of_status(
        400, "A place in the list of adapters may be another one on each server; name the adapter instead.");
    error.param = facts.model.adapters_param;
    return refuse(error);
  }
  RouteQuery query{.facts = &facts, .objectives = objectives_};
  query.others = world_.fallbacks;
  if (subset_) query.may = [this](const UpstreamAddress& address) { return may_be_sent_to(address); };
  const int64_t begin_ns = world_.clock.now_ns();
  Result<Placed> placed = world_.fleet.place(query);
  world_.metrics.pick(static_cast<double>(world_.clock.now_ns() - begin_ns) * kSeconds);
  if (!placed.ok()) {
    const bool shed = placed.error().code == ErrorCode::kOverloaded;
    ApiError error = to_api_error(placed.error());
    if (!shed && subset_)
      error.message = "None of the " + std::to_string(subset_->size()) +
                      " endpoints that the gateway allows can take the request now; send it again later.";
    return refuse(error, shed ? kSaturated : kNoEndpoints);
  }
  placed_ = *std::move(placed);
  say_place();
  if (body) {
    out_.emplace_back().body = true;
    body_ends_ = !trailers;
  }
  if (trailers) out().mutable_request_trailers();
}

void PickExchange::say_place() {
  std::string endpoint = address_text(placed_->address);
  for (const UpstreamAddress& other : placed_->others) endpoint += "," + address_text(other);
  ext_proc::ProcessingResponse& answer = out();
  ext_proc::CommonResponse& common = *answer.mutable_request_headers()->mutable_response();
  common.set_clear_route_cache(true);
  ext_proc::HeaderMutation& mutation = *common.mutable_header_mutation();
  mutation.add_remove_headers(kEndpointHeader);  // of the client's there may be several
  set_header(mutation, kEndpointHeader, endpoint);
  auto& space = (*answer.mutable_dynamic_metadata()->mutable_fields())[kEndpointSpace];
  (*space.mutable_struct_value()->mutable_fields())[kEndpointHeader].set_string_value(endpoint);
}

bool PickExchange::next(ext_proc::ProcessingResponse& answer) {
  if (out_.empty()) return false;
  if (!out_.front().body) {
    answer = std::move(out_.front().message);
    out_.pop_front();
    return true;
  }
  const size_t bytes = std::min(kBackBytes, held_.size() - sent_);
  answer.Clear();
  ext_proc::StreamedBodyResponse& piece =
      *answer.mutable_request_body()->mutable_response()->mutable_body_mutation()->mutable_streamed_response();
  piece.set_body(held_.data() + sent_, bytes);
  sent_ += bytes;
  if (sent_ < held_.size()) return true;
  piece.set_end_of_stream(body_ends_);
  drop_body();
  out_.pop_front();
  return true;
}

void PickExchange::take_answer_head(const ext_proc::HttpHeaders& headers) {
  if (std::exchange(answering_, true)) return break_off("an answer has two heads");
  if (!placed_) {  // the gateway's own
    phase_ = Phase::kSent;
    drop_body();
  }
  status_ = static_cast<int>(std::clamp<int64_t>(number_of(value_of(headers, ":status")), 0, 999));
  const bool encoded = !value_of(headers, "content-encoding").empty();
  reader_.emplace(!encoded && value_of(headers, "content-type").starts_with("text/event-stream"));
  if (placed_ && may_be_gone(status_) && world_.suspect) world_.suspect(placed_->replica);
  out().mutable_response_headers()->mutable_response();
  if (headers.end_of_stream()) answer_ended();
}

void PickExchange::take_answer_body(ext_proc::HttpBody& body) {
  if (!answering_ || answered_) return break_off("a piece of an answer comes before its head, or behind its end");
  reader_->take(body.body());
  if (placed_ && reader_->has_content() && !std::exchange(first_noted_, true)) {
    world_.metrics.first_bytes(static_cast<double>(world_.clock.now_ns() - arrived_ns_) * kSeconds);
    world_.fleet.answers(*placed_);
  }
  const bool ends = body.end_of_stream();
  ext_proc::CommonResponse& common = *out().mutable_response_body()->mutable_response();
  if (duplex_answer_) {
    ext_proc::StreamedBodyResponse& piece = *common.mutable_body_mutation()->mutable_streamed_response();
    piece.set_body(std::move(*body.mutable_body()));
    piece.set_end_of_stream(ends);
  }
  if (ends) answer_ended();
}

void PickExchange::take_answer_trailers() {
  if (!answering_ || answered_) return break_off("trailers of an answer come before its head, or behind its end");
  out().mutable_response_trailers();
  answer_ended();
}

void PickExchange::answer_ended() {
  answered_ = true;
  reader_->rest();
  world_.metrics.request_done(route_, status_);
  if (!placed_) return;
  const bool good = status_ < 400;
  world_.fleet.ended(*placed_, good ? std::optional(reader_->counts()) : std::nullopt);
  const bool refused = status_ == 429 || may_be_gone(status_);
  world_.metrics.attempt_done(address_text(placed_->address), refused ? AttemptEnd::kRefused : AttemptEnd::kAnswered);
  placed_.reset();
}

void PickExchange::refuse_size() {
  refuse(api_error_of_status(413, "The body has more than " + std::to_string(world_.max_body_bytes) +
                                      " bytes; send less, or start the picker with a larger --max-body."));
}

void PickExchange::refuse(const ApiError& error, const char* reason) {
  drop_body();
  ext_proc::ImmediateResponse& answer = *out().mutable_immediate_response();
  answer.mutable_status()->set_code(error.status);
  ext_proc::HeaderMutation& headers = *answer.mutable_headers();
  set_header(headers, "content-type", "application/json");
  if (error.status == 429 || error.status == 503) set_header(headers, "retry-after", kRetryAfterS);
  if (reason != nullptr) set_header(headers, kDroppedHeader, reason);
  const std::string id(head_.header("x-request-id"));
  answer.set_body(relay_error_body(form_of(head_.path), error, id));
  answer.set_details(reason != nullptr ? reason : "refused_by_picker");
  over_ = answered_ = true;
  world_.metrics.request_done(route_, error.status);
  if (error.status == 429 || error.status >= 500)
    world_.log.event(LogLevel::kWarning, "request refused", {{"id", id}, {"route", route_}, {"status", error.status}},
                     error.message);
}

void PickExchange::break_off(std::string why) {
  breach_ = "The gateway does not keep to the protocol of ext_proc: " + std::move(why) + ".";
  over_ = true;
  out_.clear();
  leave();
  world_.log.log(LogLevel::kWarning, breach_);
}

void PickExchange::leave() {
  drop_body();
  if (std::exchange(answered_, true) || !begun_) return;
  world_.metrics.request_done(route_, 0);
  if (!placed_) return;
  world_.fleet.ended(*placed_, std::nullopt);
  world_.metrics.attempt_done(address_text(placed_->address), AttemptEnd::kLeft);
  if (world_.suspect) world_.suspect(placed_->replica);  // it may be its connection that broke
  placed_.reset();
}

void PickExchange::drop_body() {
  std::string().swap(held_);
  share_.release();
  sent_ = 0;
}

}  // namespace loralei
