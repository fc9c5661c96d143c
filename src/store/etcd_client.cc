// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace loralei {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kPauseFirstMs = 50, kPauseMostMs = 500;
constexpr int64_t kStreamMs = int64_t{7} * 86'400'000;  // that a watch may rest
constexpr int64_t kListsMost = 8;                       // begun again because of compaction

// Codes of gRPC.
constexpr int kInvalid = 3, kMissing = 5, kPermission = 7, kExhausted = 8, kPrecondition = 9, kOutOfRange = 11,
              kUnimplemented = 12, kUnavailableCode = 14, kUnauthenticatedCode = 16;

int64_t now_ns() { return SteadyClock().now_ns(); }

// The request was not done, and will not be elsewhere.
bool is_final(int code) {
  switch (code) {
    case kInvalid:
    case kMissing:
    case kPermission:
    case kExhausted:
    case kPrecondition:
    case kOutOfRange:
    case kUnimplemented:
    case kUnauthenticatedCode:
      return true;
    default:
      return false;
  }
}

}  // namespace

// One answer, which somebody waits for.
class EtcdClient::Answer final : public UpstreamListener {
 public:
  void on_head(int status, const HttpHeaders&) override { status_ = status; }
  bool on_body(std::string_view piece) override {
    if (body_.size() + piece.size() > static_cast<size_t>(kEtcdAnswerBytes)) {
      too_long_ = true;
      body_.clear();
    }
    if (!too_long_) body_ += piece;
    return true;
  }
  void on_end() override { end(std::nullopt); }
  void on_failure(const UpstreamFailure& failure) override { end(failure); }

  bool wait(int64_t timeout_ms) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return done_; });
  }
  // Behind wait().
  int status() const { return status_; }
  bool too_long() const { return too_long_; }
  std::string take_body() { return std::move(body_); }
  const std::optional<UpstreamFailure>& failure() const { return failure_; }

 private:
  void end(std::optional<UpstreamFailure> failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    done_ = true;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;  // guarded by mutex_
  int status_ = 0;
  bool too_long_ = false;
  std::string body_;
  std::optional<UpstreamFailure> failure_;
};

struct EtcdClient::Attempt {
  std::optional<std::string> body;  // the answer
  Error error;                      // else why
  bool seen = false;                // it may have been done all the same
  bool final = false;               // nobody else will say anything else
};

Error etcd_error(const EtcdRefusal& refusal) {
  const std::string said = "etcd says: " + refusal.message;
  switch (refusal.code) {
    case kInvalid:
    case kPrecondition:
      return invalid_argument(said);
    case kMissing:
    case kOutOfRange:
      return not_found(said);
    case kPermission:
      return {ErrorCode::kForbidden, said};
    case kUnauthenticatedCode:
      return {ErrorCode::kUnauthenticated, said + "; etcd with authentication is not supported"};
    case kExhausted:
      return {ErrorCode::kOverloaded, said};
    case kUnimplemented:
      return unsupported(said + "; etcd 3.4 or later is needed");
    default:
      return {ErrorCode::kUnavailable, said};
  }
}

Result<std::unique_ptr<EtcdClient>> EtcdClient::start(const EtcdOptions& options, LogSink& log) {
  CHECK(!options.endpoints.empty() && options.page_keys > 0);
  UpstreamOptions upstream;
  upstream.connect_timeout_ms = options.attempt_ms;
  upstream.send_timeout_ms = options.attempt_ms;
  upstream.head_timeout_ms = options.attempt_ms;
  upstream.body_timeout_ms = kStreamMs;
  upstream.max_idle_per_address = 4;
  TRY_ASSIGN(auto started, Upstream::start(upstream, log));
  return std::unique_ptr<EtcdClient>(new EtcdClient(options, std::move(started)));
}

EtcdClient::EtcdClient(const EtcdOptions& options, std::unique_ptr<Upstream> upstream)
    : options_(options), upstream_(std::move(upstream)) {}

EtcdClient::~EtcdClient() { stop(); }

void EtcdClient::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  upstream_->stop();
}

bool EtcdClient::pause(int64_t ms) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return stopping_; });
}

std::string EtcdClient::where() const {
  std::string text;
  for (const UpstreamAddress& address : options_.endpoints) text += (text.empty() ? "" : ",") + address_text(address);
  return text;
}

std::shared_ptr<UpstreamCall> EtcdClient::stream(size_t endpoint, const char* path, std::string body,
                                                 std::shared_ptr<UpstreamListener> listener) {
  UpstreamRequest request{.method = "POST", .target = path};
  // A member that has lost the others ends it, instead of saying nothing.
  request.headers = {{"Content-Type", "application/json"}, {"Grpc-Metadata-hasleader", "true"}};
  request.body = std::make_shared<const std::string>(std::move(body));
  request.idempotent = true;
  return upstream_->call(options_.endpoints.at(endpoint), std::move(request), std::move(listener));
}

EtcdClient::Attempt EtcdClient::attempt(size_t endpoint, const char* path,
                                        const std::shared_ptr<const std::string>& body, bool safe, int64_t timeout_ms) {
  UpstreamRequest request{.method = "POST", .target = path};
  request.headers = {{"Content-Type", "application/json"}};
  request.body = body;
  request.head_timeout_ms = timeout_ms;
  request.idempotent = safe;
  const auto answer = std::make_shared<Answer>();
  const UpstreamAddress& address = options_.endpoints.at(endpoint);
  const auto running = upstream_->call(address, std::move(request), answer);
  Attempt attempt;
  if (!answer->wait(timeout_ms)) {
    running->cancel();
    attempt.seen = true;
    attempt.error = {ErrorCode::kUnavailable,
                     address_text(address) + " did not answer within " + std::to_string(timeout_ms) + " ms"};
    return attempt;
  }
  if (const auto& failure = answer->failure()) {
    attempt.seen = failure->stage != UpstreamStage::kConnect;
    attempt.final = failure->error.code == ErrorCode::kCancelled;
    attempt.error = {attempt.final ? ErrorCode::kCancelled : ErrorCode::kUnavailable, failure->error.message};
    return attempt;
  }
  if (answer->too_long()) {
    attempt.seen = attempt.final = true;
    attempt.error = too_large("etcd answers with more than is read at once");
    return attempt;
  }
  std::string text = answer->take_body();
  if (answer->status() == 200) {
    attempt.body = std::move(text);
    return attempt;
  }
  const EtcdRefusal refusal = parse_etcd_refusal(text);
  attempt.error = etcd_error(refusal);
  attempt.final = is_final(refusal.code);
  attempt.seen = !attempt.final;
  if (answer->status() == 404 && refusal.code == 0) {
    attempt.error = unsupported(address_text(address) + " has no " + path +
                                "; it is no etcd, or older than 3.4 (give the port for clients, usually 2379)");
    attempt.seen = false;
  }
  return attempt;
}

Result<std::string> EtcdClient::call(const char* path, std::string body, Repeat repeat, int64_t deadline_ms,
                                     bool* seen) {
  const int64_t deadline = now_ns() + (deadline_ms > 0 ? deadline_ms : options_.deadline_ms) * kNsPerMs;
  const auto sent = std::make_shared<const std::string>(std::move(body));
  Error last{ErrorCode::kUnavailable, "there was no time to ask it"};
  int64_t pause_ms = kPauseFirstMs;
  bool any_seen = false;
  for (size_t asked = 1;; ++asked) {
    const int64_t left_ms = (deadline - now_ns()) / kNsPerMs;
    if (left_ms <= 0) break;
    const size_t endpoint = preferred_ % endpoints();
    Attempt answer = attempt(endpoint, path, sent, repeat == Repeat::kSafe, std::min(left_ms, options_.attempt_ms));
    if (answer.body) return *std::move(answer.body);
    if (answer.final) return std::move(answer.error);
    last = std::move(answer.error);
    size_t expected = endpoint;
    preferred_.compare_exchange_strong(expected, (endpoint + 1) % endpoints());
    any_seen |= answer.seen;
    if (answer.seen && seen != nullptr) *seen = true;
    if (answer.seen && repeat == Repeat::kNever)
      return std::move(last).with_context("etcd did not say whether it did what it was asked");
    if (asked % endpoints() != 0) continue;
    if (!pause(std::min(pause_ms, std::max<int64_t>(1, (deadline - now_ns()) / kNsPerMs))))
      return Error{ErrorCode::kCancelled, "the server is shutting down"};
    pause_ms = std::min(2 * pause_ms, kPauseMostMs);
  }
  if (any_seen && repeat == Repeat::kSafe && seen != nullptr)
    last.message += "; it may have done what it was asked all the same";
  return std::move(last).with_context("etcd (" + where() + ") does not answer");
}

Result<EtcdRange> EtcdClient::range(const EtcdRangeRequest& request, int64_t deadline_ms) {
  TRY_ASSIGN(const std::string body, call("/v3/kv/range", etcd_range_body(request), Repeat::kSafe, deadline_ms));
  return parse_etcd_range(body);
}

Result<EtcdKeyValue> EtcdClient::get(const std::string& key, int64_t deadline_ms) {
  TRY_ASSIGN(EtcdRange found, range({.key = key}, deadline_ms));
  if (found.keys.empty()) return EtcdKeyValue{.key = key};
  return std::move(found.keys.front());
}

// The first page says at which revision the others are read.
Result<EtcdRange> EtcdClient::list_once(const std::string& prefix, int64_t deadline_ns) {
  EtcdRange all;
  EtcdRangeRequest request{.key = prefix, .end = etcd_prefix_end(prefix), .limit = options_.page_keys};
  size_t bytes = 0;
  while (true) {
    auto page = range(request, std::max<int64_t>(1, (deadline_ns - now_ns()) / kNsPerMs));
    if (!page.ok() && page.error().code == ErrorCode::kTooLarge && request.limit > 1) {
      request.limit = std::max<int64_t>(1, request.limit / 4);
      continue;
    }
    TRY(page);
    if (request.revision == 0) all.header = page->header;
    request.revision = all.header.revision;
    for (EtcdKeyValue& kv : page->keys) {
      const bool ours = kv.key >= request.key && kv.key.starts_with(prefix);
      if (!ours) return corrupt("etcd answers with a key that was not asked for");
      bytes += sizeof(EtcdKeyValue) + kv.key.size() + kv.value.size();
      request.key = kv.key + '\0';
      all.keys.push_back(std::move(kv));
    }
    if (bytes > options_.list_bytes_most)
      return too_large("more lies in etcd under '" + prefix + "' than is read; remove what is not of use");
    if (!page->more || page->keys.empty()) return all;
  }
}

Result<EtcdRange> EtcdClient::list(const std::string& prefix, int64_t deadline_ms) {
  const int64_t deadline = now_ns() + (deadline_ms > 0 ? deadline_ms : options_.deadline_ms) * kNsPerMs;
  for (int64_t i = 0;; ++i) {
    auto all = list_once(prefix, deadline);
    // Compacted between two pages.
    const bool again = !all.ok() && all.error().code == ErrorCode::kNotFound && i < kListsMost && now_ns() < deadline;
    if (!again) return all;
  }
}

Result<EtcdHeader> EtcdClient::put(const EtcdPut& put, int64_t deadline_ms) {
  TRY_ASSIGN(const std::string body, call("/v3/kv/put", etcd_put_body(put), Repeat::kNever, deadline_ms));
  return parse_etcd_header(body);
}

Result<EtcdHeader> EtcdClient::remove(const std::string& key, int64_t deadline_ms) {
  TRY_ASSIGN(const std::string body, call("/v3/kv/deleterange", etcd_delete_body(key), Repeat::kNever, deadline_ms));
  return parse_etcd_header(body);
}

Result<EtcdTxnAnswer> EtcdClient::txn(const EtcdTxn& txn, int64_t deadline_ms) {
  bool seen = false;
  const bool changes = !txn.puts.empty() || !txn.removals.empty();
  const Repeat repeat = txn.compares.empty() && changes ? Repeat::kNever : Repeat::kSafe;
  TRY_ASSIGN(const std::string body, call("/v3/kv/txn", etcd_txn_body(txn), repeat, deadline_ms, &seen));
  TRY_ASSIGN(EtcdTxnAnswer answer, parse_etcd_txn(body));
  answer.repeated = seen;
  return answer;
}

// With a number of our own, so that one that was granted without our hearing of it is not
// a second one; where it was, etcd says that it is there.
Result<EtcdLease> EtcdClient::grant(int64_t ttl_s, int64_t deadline_ms) {
  std::random_device device;
  const uint64_t random = (uint64_t{device()} << 32) | device();
  const int64_t id = static_cast<int64_t>(random >> 2) + 1;
  bool seen = false;
  const auto body = call("/v3/lease/grant", etcd_grant_body(id, ttl_s), Repeat::kSafe, deadline_ms, &seen);
  if (!body.ok() && seen && body.error().code == ErrorCode::kInvalidArgument) return EtcdLease{id, ttl_s};
  TRY(body);
  return parse_etcd_grant(*body);
}

Result<EtcdLease> EtcdClient::keep_alive(int64_t lease, int64_t deadline_ms) {
  TRY_ASSIGN(const std::string body, call("/v3/lease/keepalive", etcd_lease_body(lease), Repeat::kSafe, deadline_ms));
  return parse_etcd_keep_alive(body);
}

Status EtcdClient::revoke(int64_t lease, int64_t deadline_ms) {
  const auto body = call("/v3/lease/revoke", etcd_lease_body(lease), Repeat::kSafe, deadline_ms);
  if (!body.ok() && body.error().code == ErrorCode::kNotFound) return {};
  TRY(body);
  TRY(parse_etcd_header(*body));
  return {};
}

Status EtcdClient::compact(int64_t revision, int64_t deadline_ms) {
  TRY_ASSIGN(const std::string body,
             call("/v3/kv/compaction", etcd_compact_body(revision), Repeat::kSafe, deadline_ms));
  TRY(parse_etcd_header(body));
  return {};
}

Result<EtcdHeader> EtcdClient::probe(size_t endpoint, const std::string& key) {
  const auto body = std::make_shared<const std::string>(etcd_range_body({.key = key, .count_only = true}));
  Attempt answer = attempt(endpoint, "/v3/kv/range", body, true, options_.attempt_ms);
  if (!answer.body) return std::move(answer.error);
  return parse_etcd_header(*answer.body);
}

}  // namespace loralei
