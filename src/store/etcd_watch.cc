// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr size_t kWaitingBytesMost = 1 << 20;             // of a stream, before it rests
constexpr size_t kFragmentBytesMost = size_t{256} << 20;  // of one revision

}  // namespace

// What a stream says, until the watch's thread takes it.
class EtcdWatch::Stream final : public UpstreamListener {
 public:
  void on_head(int status, const HttpHeaders&) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
  }
  bool on_body(std::string_view piece) override {
    const std::lock_guard lock(mutex_);
    bytes_ += piece;
    changed_.notify_all();
    rests_ = bytes_.size() >= kWaitingBytesMost;
    return !rests_;
  }
  void on_end() override { end({ErrorCode::kUnavailable, "etcd ended the watch"}); }
  void on_failure(const UpstreamFailure& failure) override { end(failure.error); }

  // What has come; waits for some, at most so long. `rests`: the call is to be resumed.
  std::string take(int64_t timeout_ms, bool& rests) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return !bytes_.empty() || error_; });
    rests = std::exchange(rests_, false);
    return std::exchange(bytes_, {});
  }
  int status() {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  std::optional<Error> error() {
    const std::lock_guard lock(mutex_);
    return bytes_.empty() ? error_ : std::nullopt;
  }

 private:
  void end(Error error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string bytes_;
  bool rests_ = false;
  int status_ = 0;
  std::optional<Error> error_;
};

Result<std::unique_ptr<EtcdWatch>> EtcdWatch::start(const EtcdWatchOptions& options, EtcdClient& client) {
  CHECK(!options.prefix.empty() && options.on_news);
  std::unique_ptr<EtcdWatch> watch(new EtcdWatch(options, client));
  watch->last_error_ = {ErrorCode::kUnavailable, "etcd (" + client.where() + ") does not answer"};
  TRY_ASSIGN(watch->thread_, start_thread([raw = watch.get()] { raw->run(); }));
  return watch;
}

EtcdWatch::~EtcdWatch() { stop(); }

void EtcdWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool EtcdWatch::stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

Status EtcdWatch::wait_for_first(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return listed_ || stopping_; });
  if (listed_) return {};
  return last_error_;
}

void EtcdWatch::state(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!status.ok()) last_error_ = status.error();
    if (stopping_ || std::exchange(up_, status.ok()) == status.ok()) return;
  }
  if (options_.on_state) options_.on_state(status);
}

void EtcdWatch::tell(EtcdNews news) {
  news.revision = next_ - 1;
  if (!news.events.empty() || news.listed) options_.on_news(news);
}

void EtcdWatch::run() {
  name_this_thread("etcd watch");
  endpoint_ = client_.preferred();
  int64_t pause_ms = options_.back_first_ms;
  bool listed = false;
  while (!stopping()) {
    Next next = Next::kElsewhere;
    heard_ = false;
    if (!listed) {
      const Status status = list();
      listed = status.ok();
      if (!listed) why_ = status.error();
    }
    if (listed) next = follow();
    if (next == Next::kStopped || stopping()) return;
    if (next == Next::kList) listed = false;
    if (heard_) pause_ms = options_.back_first_ms;
    if (next == Next::kRenew) continue;
    if (next == Next::kElsewhere) {
      state(why_);
      endpoint_ = (endpoint_ + 1) % client_.endpoints();
    }
    if (!client_.pause(pause_ms)) return;
    pause_ms = std::min(2 * pause_ms, options_.back_most_ms);
  }
}

// What of the list is news.
EtcdNews EtcdWatch::difference(EtcdRange found) {
  EtcdNews news;
  news.listed = true;
  news.anew = next_ > 0 && (found.header.revision + 1 < next_ || found.header.cluster != cluster_);
  std::map<std::string, int64_t> before = std::exchange(known_, {});
  if (news.anew) before.clear();
  for (EtcdKeyValue& kv : found.keys) {
    known_[kv.key] = kv.mod_revision;
    const auto known = before.find(kv.key);
    const bool same = known != before.end() && known->second == kv.mod_revision;
    if (known != before.end()) before.erase(known);
    if (!same) news.events.push_back({false, std::move(kv)});
  }
  for (const auto& [key, revision] : before) {
    EtcdEvent gone{true, {}};
    gone.kv.key = key;
    gone.kv.mod_revision = found.header.revision;
    news.events.push_back(std::move(gone));
  }
  const auto earlier = [](const EtcdEvent& a, const EtcdEvent& b) { return a.kv.mod_revision < b.kv.mod_revision; };
  std::stable_sort(news.events.begin(), news.events.end(), earlier);
  cluster_ = found.header.cluster;
  next_ = found.header.revision + 1;
  return news;
}

Status EtcdWatch::list() {
  TRY_ASSIGN(EtcdRange found, client_.list(options_.prefix));
  tell(difference(std::move(found)));
  {
    const std::lock_guard lock(mutex_);
    listed_ = true;
  }
  changed_.notify_all();
  return {};
}

EtcdWatch::Next EtcdWatch::follow() {
  waiting_.clear();
  fragments_.clear();
  fragment_bytes_ = 0;
  silent_ms_ = 0;
  const auto stream = std::make_shared<Stream>();
  const std::string body = etcd_watch_body(options_.prefix, etcd_prefix_end(options_.prefix), next_);
  const auto call = client_.stream(endpoint_, "/v3/watch", body, stream);
  Next next = Next::kGoesOn;
  while (next == Next::kGoesOn) next = read_some(*stream, *call);
  call->cancel();
  return next;
}

EtcdWatch::Next EtcdWatch::read_some(Stream& stream, UpstreamCall& call) {
  bool rests = false;
  const std::string bytes = stream.take(options_.silence_ms, rests);
  if (rests) call.resume();
  if (stopping()) return Next::kStopped;
  if (bytes.empty()) return on_silence(stream);
  silent_ms_ = 0;
  waiting_ += bytes;
  const Next next = take_lines(stream.status());
  if (next != Next::kGoesOn || waiting_.size() <= static_cast<size_t>(kEtcdAnswerBytes)) return next;
  return Next::kList;  // a message that is longer than is read: what it is about is read in pages
}

EtcdWatch::Next EtcdWatch::on_silence(Stream& stream) {
  if (const auto error = stream.error()) {
    const bool refused = stream.status() != 0 && stream.status() != 200;
    why_ = refused ? etcd_error(parse_etcd_refusal(waiting_)) : *error;
    return Next::kElsewhere;
  }
  silent_ms_ += options_.silence_ms;
  if (const auto header = client_.probe(endpoint_, options_.prefix); !header.ok()) {
    why_ = header.error();
    return Next::kElsewhere;
  }
  return silent_ms_ < options_.renew_ms ? Next::kGoesOn : Next::kRenew;
}

EtcdWatch::Next EtcdWatch::take_lines(int status) {
  if (status != 200) return Next::kGoesOn;  // read when it has ended
  size_t begin = 0;
  Next next = Next::kGoesOn;
  for (size_t end; next == Next::kGoesOn && (end = waiting_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(waiting_).substr(begin, end - begin);
    if (line.empty()) continue;
    auto message = parse_etcd_watch(line);
    if (message.ok()) {
      next = take(*std::move(message));
    } else {
      why_ = message.error();
      next = Next::kElsewhere;
    }
  }
  waiting_.erase(0, begin);
  return next;
}

// Revisions that went back are those of a store that began anew; or of a member that
// lags, which is asked again in a way that it must catch up for.
EtcdWatch::Next EtcdWatch::check_begin(const EtcdWatchMessage& message) {
  if (message.header.cluster != cluster_) return Next::kList;
  if (message.header.revision + 1 >= next_) return Next::kGoesOn;
  const auto now = client_.probe(endpoint_, options_.prefix);
  if (now.ok()) return now->revision + 1 >= next_ ? Next::kGoesOn : Next::kList;
  why_ = now.error();
  return Next::kElsewhere;
}

EtcdWatch::Next EtcdWatch::take(EtcdWatchMessage message) {
  if (message.canceled) {
    why_ = {ErrorCode::kUnavailable, "etcd ended the watch" + (message.why.empty() ? "" : ": " + message.why)};
    return message.compact_revision > 0 ? Next::kList : Next::kElsewhere;
  }
  if (message.created) {
    const Next next = check_begin(message);
    if (next != Next::kGoesOn) return next;
    heard_ = true;
    state({});
  }
  for (EtcdEvent& event : message.events) {
    if (event.kv.mod_revision < next_ || !event.kv.key.starts_with(options_.prefix)) continue;
    fragment_bytes_ += sizeof(EtcdEvent) + event.kv.key.size() + event.kv.value.size();
    fragments_.push_back(std::move(event));
  }
  if (fragment_bytes_ > kFragmentBytesMost) return Next::kList;
  if (message.fragment) return Next::kGoesOn;
  EtcdNews news;
  news.events = std::exchange(fragments_, {});
  fragment_bytes_ = 0;
  for (const EtcdEvent& event : news.events) {
    next_ = std::max(next_, event.kv.mod_revision + 1);
    if (event.removed) {
      known_.erase(event.kv.key);
    } else {
      known_[event.kv.key] = event.kv.mod_revision;
    }
  }
  // One that says nothing tells how far it is.
  if (news.events.empty() && !message.created) next_ = std::max(next_, message.header.revision + 1);
  tell(std::move(news));
  return Next::kGoesOn;
}

}  // namespace loralei
