// SPDX-License-Identifier: Apache-2.0
#include "sim/etcd.h"

#include <type_traits>

#include "base/check.h"

namespace loralei::sim {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kPauseFirstNs = 50 * kNsPerMs, kPauseMostNs = 500 * kNsPerMs;  // between attempts, as EtcdClient
constexpr int64_t kExpiryNs = 500 * kNsPerMs;  // between looks for leases that are over

Error no_answer() { return {ErrorCode::kUnavailable, "etcd did not answer in time"}; }
Error no_leader() { return {ErrorCode::kUnavailable, "etcd says: etcdserver: no leader"}; }

// Nobody else would say anything else.
bool is_final(const Error& error) { return error.code != ErrorCode::kUnavailable; }

template <class T>
std::optional<Error> error_of(const Result<T>& answer) {
  if (answer.ok()) return std::nullopt;
  return answer.error();
}

}  // namespace

void SimEtcd::away(bool is) {
  if (std::exchange(away_, is) == is) return;
  if (is) return store_.pause_leases();
  elected();
  resume_streams();
}

void SimEtcd::lose_leader(int64_t for_ns) {
  ++leaderless_;
  store_.pause_leases();
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (const auto stream = streams_[i].lock()) stream->end();
  }
  kernel_.after(for_ns, EventOrder::kEnded, [this] {
    --leaderless_;
    elected();
  });
}

void SimEtcd::elected() {
  if (!has_leader()) return;
  ++leaders_;
  store_.resume_leases(now_ns());
  plan_expiry();
}

void SimEtcd::compact() {
  if (!has_leader() || !store_.compact(store_.revision()).ok()) return;
  ++compactions_;
}

void SimEtcd::add(const std::shared_ptr<Stream>& stream) {
  std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
  streams_.push_back(stream);
}

void SimEtcd::resume_streams() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (const auto stream = streams_[i].lock()) stream->flush();
  }
}

void SimEtcd::changed() {
  if (on_change_) on_change_();
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (const auto stream = streams_[i].lock()) stream->tell();
  }
  plan_expiry();
}

void SimEtcd::plan_expiry() {
  const auto next_ns = store_.next_expiry_ns();
  if (!next_ns) return;
  const int64_t at_ns = std::max(now_ns(), (*next_ns + kExpiryNs - 1) / kExpiryNs * kExpiryNs);
  if (expiry_ns_ <= at_ns) return;
  expiry_ns_ = at_ns;
  kernel_.at(at_ns, EventOrder::kEnded, [this, at_ns] {
    if (expiry_ns_ != at_ns) return;  // an earlier one was planned behind it
    expiry_ns_ = INT64_MAX;
    store_.expire(now_ns());
    changed();
  });
}

void SimEtcd::Stream::open() {
  EtcdWatchMessage created{.header = etcd_.store().header()};
  created.created = true;
  send(std::move(created));
  if (next_ > 0 && next_ < etcd_.store().compacted()) {
    EtcdWatchMessage canceled{.header = etcd_.store().header()};
    canceled.canceled = true;
    canceled.compact_revision = etcd_.store().compacted();
    return send(std::move(canceled));
  }
  open_ = true;
  etcd_.add(shared_from_this());
  tell();
}

void SimEtcd::Stream::tell() {
  if (!open_) return;
  EtcdWatchMessage message{.header = etcd_.store().header()};
  message.events = etcd_.store().events(prefix_, etcd_prefix_end(prefix_), next_);
  next_ = etcd_.store().revision() + 1;
  if (!message.events.empty()) send(std::move(message));
}

void SimEtcd::Stream::end() {
  if (!std::exchange(open_, false)) return;
  send({}, no_leader());
}

void SimEtcd::Stream::send(EtcdWatchMessage message, std::optional<Error> end) {
  under_way_.push_back({std::move(message), std::move(end)});
  last_ns_ = std::max(last_ns_, etcd_.now_ns() + etcd_.latency_ns());
  etcd_.kernel_.at(last_ns_, EventOrder::kEnded, [weak = weak_from_this()] {
    if (const auto stream = weak.lock()) stream->deliver();
  });
}

// What cannot be delivered waits for flush().
void SimEtcd::Stream::deliver() {
  if (under_way_.empty() || !reaches() || !line_->there) return;
  const Sent sent = std::move(under_way_.front());
  under_way_.pop_front();
  heard_ = true;
  if (sent.end) return on_end_(*sent.end);
  on_message_(sent.message);
}

void SimEtcd::Stream::give_up() {
  if (heard_ || !line_->there) return;
  open_ = false;
  under_way_.clear();
  heard_ = true;
  on_end_(no_answer());
}

void SimEtcd::Stream::flush() {
  if (!reaches()) return;
  last_ns_ = std::max(last_ns_, etcd_.now_ns() + etcd_.latency_ns());
  for (size_t i = 0; i < under_way_.size(); ++i) {
    etcd_.kernel_.at(last_ns_, EventOrder::kEnded, [weak = weak_from_this()] {
      if (const auto stream = weak.lock()) stream->deliver();
    });
  }
}

// One call and its attempts.
template <class T>
struct SimEtcdClient::Call {
  SimEtcd& etcd;
  const std::shared_ptr<const Line> line;
  const EtcdPatience patience;
  const std::function<T(EtcdStore&)> what;
  const bool safe;
  const Then<T> then;
  int64_t deadline_ns = 0, pause_ns = kPauseFirstNs;
  bool again = false;  // it may have been done before

  bool reaches() const { return !line->cut && !etcd.is_away(); }
  void answer(T value) const {
    if constexpr (std::is_same_v<T, Result<EtcdTxnAnswer>>) {
      if (value.ok()) value->repeated = again;
    }
    if (line->there) then(std::move(value));
  }
};

template <class T>
void SimEtcdClient::call(std::function<T(EtcdStore&)> what, bool safe, Then<T> then) {
  auto made = std::make_shared<Call<T>>(Call<T>{etcd_, line_, patience_, std::move(what), safe, std::move(then)});
  made->deadline_ns = etcd_.now_ns() + (patience_.deadline_ns > 0 ? patience_.deadline_ns : patience_.attempt_ns);
  attempt(made);
}

template <class T>
void SimEtcdClient::attempt(const std::shared_ptr<Call<T>>& call) {
  SimEtcd& etcd = call->etcd;
  const int64_t begin_ns = etcd.now_ns();
  const int64_t over_ns = std::min(begin_ns + call->patience.attempt_ns, call->deadline_ns);
  const auto failed = [call](Error error) {
    SimEtcd& etcd = call->etcd;
    const int64_t again_ns = etcd.now_ns() + call->pause_ns;
    call->pause_ns = std::min(2 * call->pause_ns, kPauseMostNs);
    if (!call->safe || again_ns >= call->deadline_ns) return call->answer(std::move(error));
    call->again = true;
    etcd.kernel().at(again_ns, EventOrder::kEnded, [call] {
      if (call->line->there) attempt(call);
    });
  };
  const auto lost = [&etcd, over_ns, failed] {
    etcd.kernel().at(std::max(over_ns, etcd.now_ns()), EventOrder::kEnded, [failed] { failed(no_answer()); });
  };
  etcd.kernel().after(etcd.latency_ns(), EventOrder::kEnded, [call, over_ns, failed, lost] {
    SimEtcd& etcd = call->etcd;
    // What was sent by somebody who is gone is done all the same.
    if (!call->reaches()) return lost();
    std::optional<T> answer;
    if (etcd.has_leader()) answer = etcd.done(call->what);
    const int64_t back_ns = etcd.now_ns() + etcd.latency_ns();
    if (back_ns > over_ns) return lost();
    etcd.kernel().at(back_ns, EventOrder::kEnded, [call, answer = std::move(answer), failed, lost]() mutable {
      if (!call->reaches()) return lost();
      if (!answer) return failed(no_leader());
      const auto error = error_of(*answer);
      if (error && !is_final(*error)) return failed(*error);
      call->answer(*std::move(answer));
    });
  });
}

void SimEtcdClient::cut(bool is) {
  if (std::exchange(line_->cut, is) != is && !is) etcd_.resume_streams();
}

void SimEtcdClient::range(EtcdRangeRequest request, Then<Result<EtcdRange>> then) {
  call<Result<EtcdRange>>([request = std::move(request)](EtcdStore& store) { return store.range(request); }, true,
                          std::move(then));
}

void SimEtcdClient::get(const std::string& key, Then<Result<EtcdKeyValue>> then) {
  range({.key = key}, [key, then = std::move(then)](Result<EtcdRange> found) {
    if (!found.ok()) return then(found.error());
    then(found->keys.empty() ? EtcdKeyValue{.key = key} : found->keys.front());
  });
}

void SimEtcdClient::put(const EtcdPut& put, Then<Status> then) {
  call<Result<EtcdHeader>>(
      [put](EtcdStore& store) { return store.put(put); }, false,
      [then = std::move(then)](Result<EtcdHeader> done) { then(done.ok() ? Status() : Status(done.error())); });
}

void SimEtcdClient::txn(const EtcdTxn& txn, Then<Result<EtcdTxnAnswer>> then) {
  CHECK(!txn.compares.empty());
  call<Result<EtcdTxnAnswer>>([txn](EtcdStore& store) { return store.txn(txn); }, true, std::move(then));
}

// One that was granted without our hearing of it is there when it is asked for again.
void SimEtcdClient::grant(int64_t id, int64_t ttl_s, Then<Result<EtcdLease>> then) {
  SimEtcd& etcd = etcd_;
  call<Result<EtcdLease>>(
      [id, ttl_s, &etcd](EtcdStore& store) -> Result<EtcdLease> {
        auto granted = store.grant(id, ttl_s, etcd.now_ns());
        if (granted.ok()) return granted;
        return EtcdLease{id, ttl_s};
      },
      true, std::move(then));
}

void SimEtcdClient::keep_alive(int64_t id, Then<Result<EtcdLease>> then) {
  SimEtcd& etcd = etcd_;
  call<Result<EtcdLease>>(
      [id, &etcd](EtcdStore& store) -> Result<EtcdLease> { return store.keep_alive(id, etcd.now_ns()); }, true,
      std::move(then));
}

void SimEtcdClient::revoke(int64_t id, Then<Status> then) {
  call<Status>([id](EtcdStore& store) { return store.revoke(id); }, true,
               [then = std::move(then)](Status done) {
                 const bool over = !done.ok() && done.error().code == ErrorCode::kNotFound;
                 then(over ? Status() : std::move(done));
               });
}

void SimEtcdClient::probe(Then<Result<EtcdHeader>> then) {
  call<Result<EtcdHeader>>([](EtcdStore& store) -> Result<EtcdHeader> { return store.header(); }, false,
                           std::move(then));
}

std::shared_ptr<SimEtcd::Stream> SimEtcdClient::watch(const std::string& prefix, int64_t from_revision,
                                                      OnMessage on_message, OnEnd on_end) {
  auto stream =
      std::make_shared<SimEtcd::Stream>(etcd_, line_, prefix, from_revision, std::move(on_message), std::move(on_end));
  std::weak_ptr<SimEtcd::Stream> weak = stream;
  etcd_.kernel().after(etcd_.latency_ns(), EventOrder::kEnded, [weak, &etcd = etcd_, line = line_] {
    const auto opened = weak.lock();
    if (!opened || line->cut || etcd.is_away()) return;  // nobody hears of it
    opened->open();
    if (!etcd.has_leader()) opened->end();
  });
  etcd_.kernel().after(patience_.attempt_ns, EventOrder::kEnded, [weak] {
    if (const auto waiting = weak.lock()) waiting->give_up();
  });
  return stream;
}

}  // namespace loralei::sim
