// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_watch.h"

#include <chrono>
#include <utility>

#include "base/check.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr size_t kWaitingBytesMost = 1 << 20;  // of a stream, before it rests

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

EtcdWatch::EtcdWatch(const EtcdWatchOptions& options, EtcdClient& client)
    : options_(options),
      client_(client),
      state_(options.prefix, options.patience, client.preferred(), client.endpoints()) {}

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

void EtcdWatch::tell(const WatchOutcome& outcome) {
  if (outcome.status) {
    bool turned = outcome.turned;
    {
      const std::lock_guard lock(mutex_);
      if (!outcome.status->ok()) last_error_ = outcome.status->error();
      turned &= !stopping_;
    }
    if (turned && options_.on_state) options_.on_state(*outcome.status);
  }
  if (outcome.news) options_.on_news(*outcome.news);
}

void EtcdWatch::run() {
  name_this_thread("etcd watch");
  while (!stopping()) act();
  if (call_) call_->cancel();
}

void EtcdWatch::act() {
  switch (state_.act()) {
    case WatchState::Act::kList:
      return list();
    case WatchState::Act::kOpen:
      return open();
    case WatchState::Act::kRead:
      return read_some();
    case WatchState::Act::kProbe:
      return tell(state_.probed(client_.probe(state_.endpoint(), options_.prefix)));
    case WatchState::Act::kRest:
      if (call_) std::exchange(call_, nullptr)->cancel();
      if (state_.rest_ms() > 0 && !client_.pause(state_.rest_ms())) return;  // stopping
      return state_.rested();
  }
}

void EtcdWatch::list() {
  auto found = client_.list(options_.prefix);
  const bool well = found.ok();
  tell(state_.listed(std::move(found)));
  if (!well) return;
  {
    const std::lock_guard lock(mutex_);
    listed_ = true;
  }
  changed_.notify_all();
}

void EtcdWatch::open() {
  waiting_.clear();
  stream_ = std::make_shared<Stream>();
  const std::string body = etcd_watch_body(options_.prefix, etcd_prefix_end(options_.prefix), state_.from_revision());
  call_ = client_.stream(state_.endpoint(), "/v3/watch", body, stream_);
  state_.opened();
}

void EtcdWatch::read_some() {
  // Behind a probe, the rest of what came before it.
  if (stream_->status() != 200 || waiting_.find('\n') == std::string::npos) {
    bool rests = false;
    const std::string bytes = stream_->take(options_.patience.silence_ms, rests);
    if (rests) call_->resume();
    if (stopping()) return;
    if (bytes.empty()) return on_silence();
    state_.heard();
    waiting_ += bytes;
  }
  if (stream_->status() == 200) take_lines();  // else read when it has ended
  const bool reads = state_.act() == WatchState::Act::kRead;
  if (reads && waiting_.size() > static_cast<size_t>(kEtcdAnswerBytes)) state_.too_long();
}

void EtcdWatch::on_silence() {
  const auto error = stream_->error();
  if (!error) return state_.silent();
  const bool refused = stream_->status() != 0 && stream_->status() != 200;
  tell(state_.ended(refused ? etcd_error(parse_etcd_refusal(waiting_)) : *error));
}

void EtcdWatch::take_lines() {
  size_t begin = 0;
  for (size_t end; state_.act() == WatchState::Act::kRead && (end = waiting_.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string_view line = std::string_view(waiting_).substr(begin, end - begin);
    if (line.empty()) continue;
    auto message = parse_etcd_watch(line);
    tell(message.ok() ? state_.read(*std::move(message)) : state_.ended(message.error()));
  }
  waiting_.erase(0, begin);
}

}  // namespace loralei
