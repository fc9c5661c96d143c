// SPDX-License-Identifier: Apache-2.0
// UpstreamExchange: one call, from its request to the end of its answer. Private to
// http/, and included by upstream.cc alone.
//
// Thread: its lane's, but for cancel(), resume() and the end of the object. Ownership:
// its lane owns it while it runs; pending operations share it. Invariants: end() comes
// once and gives back all but the object; every function that may be called behind it
// looks first. The answer is read while the request is being sent, so that one who is
// refused early is told so. Failure: upstream.h.
//
//   begin ─► kept connection ──────────────► send ─► head ─► body ─► end
//         └► open: names ─► connect ─► ... ─┘  └── once more ──┐
//                  ▲───────────────────────────────────────────┘
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <optional>

#include "http/upstream_lane.h"

namespace loralei {

class UpstreamExchange final : public UpstreamCall, public std::enable_shared_from_this<UpstreamExchange> {
 public:
  UpstreamExchange(std::shared_ptr<UpstreamLane> lane, const UpstreamAddress& address, UpstreamRequest request,
                   std::shared_ptr<UpstreamListener> listener)
      : lane_(std::move(lane)),
        address_(address),
        request_(std::move(request)),
        listener_(std::move(listener)),
        timer_(lane_->executor) {}

  void cancel() override {
    if (cancelled_.exchange(true) || ended_) return;
    post(&UpstreamExchange::let_go);
  }
  void resume() override {
    if (!ended_) post(&UpstreamExchange::go_on);
  }

  void begin() {
    lane_->calls.emplace(this, shared_from_this());
    guarded([this] {
      if (cancelled_) return let_go();
      if (lane_->stopped) return stop();
      const Status valid = format_request();
      if (!valid.ok()) return fail(valid.error());
      if (!request_.pieces) connection_ = lane_->pool.take(address_);
      if (!connection_) return open();
      reused_ = true;
      ++lane_->counts->reused_total;
      send();
    });
  }
  void refuse() {  // instead of begin(), from any thread
    ended_ = true;
    const auto listener = std::exchange(listener_, nullptr);
    listener->on_failure(
        {UpstreamStage::kConnect, {ErrorCode::kCancelled, "calls to " + where() + " have ended: the process ends"}});
  }
  void stop() { fail({ErrorCode::kCancelled, "the call to " + where() + " was given up: the process ends"}); }

 private:
  using Clock = std::chrono::steady_clock;
  using ErrorCodeOfSystem = boost::system::error_code;
  using Connection = std::shared_ptr<UpstreamConnection>;
  static constexpr int64_t kLongestMs = int64_t{1000} * 60 * 60 * 24 * 365;

  std::string where() const { return address_text(address_); }

  void post(void (UpstreamExchange::*step)()) {
    boost::asio::post(lane_->executor, [weak = weak_from_this(), step] {
      const auto self = weak.lock();
      if (self) self->guarded([&] { ((*self).*step)(); });
    });
  }
  // What is thrown here is a failed allocation: this call ends, the others go on.
  template <typename Step>
  void guarded(const Step& step) {
    try {
      step();
    } catch (const std::exception&) {
      fail({ErrorCode::kOverloaded, "there was no memory for the call to " + where() + "; try again"});
    }
  }

  Status format_request();

  // ---- the end ----

  std::shared_ptr<UpstreamListener> end() {
    if (ended_.exchange(true)) return nullptr;
    timer_.cancel();
    if (connection_) connection_->close();
    connection_.reset();
    parser_.reset();
    request_ = {};
    for (std::string* text : {&head_, &piece_, &rest_}) std::string().swap(*text);
    if (lane_->calls.erase(this) > 0) --lane_->counts->calls, --lane_->load;
    return std::exchange(listener_, nullptr);
  }
  void let_go() { end(); }
  void fail(Error error, bool peer_closed = false) {
    UpstreamFailure failure{std::max(stage_, reached_), std::move(error), peer_closed && !answered_, reused_};
    const auto self = shared_from_this();
    const auto listener = end();
    if (listener && !cancelled_) listener->on_failure(failure);
  }
  void finish(bool nothing_behind) {
    const auto self = shared_from_this();
    const bool kept = nothing_behind && sent_all_ && parser_->keep_alive();
    if (kept) lane_->pool.give(std::exchange(connection_, nullptr));
    const auto listener = end();
    if (listener && !cancelled_) listener->on_end();
  }

  // ---- time ----

  // The one time limit that counts from now on. The timer is moved only where it would
  // ring too late.
  void watch(Clock::duration wait) {
    deadline_ = Clock::now() + wait;
    if (!armed_ || deadline_ < timer_.expiry()) arm();
  }
  void watch_ms(int64_t ms) { watch(std::chrono::milliseconds(std::clamp<int64_t>(ms, 0, kLongestMs))); }
  void unwatch() { deadline_ = Clock::time_point::max(); }
  void arm() {
    armed_ = true;
    timer_.expires_at(deadline_);
    timer_.async_wait([weak = weak_from_this()](ErrorCodeOfSystem ec) {
      const auto self = weak.lock();
      if (!ec && self) self->guarded([&] { self->ring(); });
    });
  }
  void ring() {
    armed_ = false;
    if (ended_ || deadline_ == Clock::time_point::max()) return;
    Clock::now() < deadline_ ? arm() : late();
  }
  void late();

  // ---- a connection ----

  void open() {
    stage_ = UpstreamStage::kConnect;
    reused_ = false;
    next_address_ = 0;
    sent_bytes_ = 0;
    left_ = sent_all_ = false;
    send_problem_.clear();
    connect_until_ = Clock::now() + std::chrono::milliseconds(std::min(lane_->options.connect_timeout_ms, kLongestMs));
    watch(connect_until_ - Clock::now());
    std::string host = address_.host;
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    ErrorCodeOfSystem ec;
    const auto numeric = boost::asio::ip::make_address(host, ec);
    if (!ec) {
      addresses_ = {numeric};
      return connect_next();
    }
    name_ = host;
    lane_->names.look_up(host, [weak = weak_from_this()](const Result<UpstreamNames::Addresses>& found) {
      const auto self = weak.lock();
      if (!self || self->ended_) return;
      self->guarded([&] {
        if (!found.ok()) return self->fail(Error(found.error()).with_context("cannot connect to " + self->where()));
        self->addresses_ = *found;
        self->connect_next();
      });
    });
  }
  void connect_next();
  void connected(ErrorCodeOfSystem ec);

  // ---- the request ----

  void send() {
    connection_->on_readable = [this] {
      const auto self = shared_from_this();
      guarded([this] { readable(); });
    };
    connection_->want_read();
    stage_ = UpstreamStage::kSend;
    write_some();
  }
  void write_some() {
    const std::string_view body = body_now();
    const size_t of_head = std::min(sent_bytes_, head_.size());
    const size_t of_body = sent_bytes_ - of_head;
    const std::array<boost::asio::const_buffer, 2> both = {
        boost::asio::buffer(head_.data() + of_head, head_.size() - of_head),
        boost::asio::buffer(body.data() + of_body, body.size() - of_body)};
    if (stage_ == UpstreamStage::kSend) watch_ms(lane_->options.send_timeout_ms);
    connection_->socket.async_write_some(both, [self = shared_from_this(), connection = connection_,
                                                held = request_.body](ErrorCodeOfSystem ec, size_t n) {
      if (!self->ended_ && self->connection_ == connection) self->guarded([&] { self->wrote(ec, n); });
    });
  }
  void wrote(ErrorCodeOfSystem ec, size_t n) {
    if (ec) {
      send_problem_ = ec.message();  // there may be an answer all the same: the pending read ends it
      return;
    }
    sent_bytes_ += n;
    left_ = left_ || n > 0;
    const bool rest = sent_bytes_ < head_.size() + body_now().size();
    if (request_.pieces && told_head_ && (rest || more_pieces_)) return;  // what it has is enough for it
    if (rest) return write_some();
    if (more_pieces_) return want_piece();
    std::string().swap(piece_);
    sent_all_ = true;
    if (stage_ != UpstreamStage::kSend) return;  // the answer is here already
    stage_ = UpstreamStage::kHead;
    watch_ms(request_.head_timeout_ms > 0 ? request_.head_timeout_ms : lane_->options.head_timeout_ms);
  }

  // What goes behind head_: the whole body, or the piece that is being sent.
  std::string_view body_now() const {
    return request_.body ? std::string_view(*request_.body) : std::string_view(piece_);
  }

  // ---- its body, where it comes in pieces ----

  void want_piece() {
    if (told_head_) return;
    if (asks_first_) {
      rests_for_word_ = true;
      return watch_ms(request_.continue_ms);
    }
    unwatch();
    for (std::string* text : {&head_, &piece_}) std::string().swap(*text);
    sent_bytes_ = 0;
    const std::shared_ptr<UpstreamBody> pieces = request_.pieces;
    pieces->next([weak = weak_from_this()](std::optional<std::string> piece) {
      const auto self = weak.lock();
      if (!self) return;
      boost::asio::post(self->lane_->executor, [weak, piece = std::move(piece)]() mutable {
        const auto still = weak.lock();
        if (still) still->guarded([&] { still->take_piece(std::move(piece)); });
      });
    });
  }
  // The peer wants the body, or has not said in time that it does not.
  void got_word() {
    asks_first_ = false;
    if (std::exchange(rests_for_word_, false)) want_piece();
  }
  void take_piece(std::optional<std::string> piece);

  // ---- the answer ----

  void new_parser() {
    HttpLimits limits = lane_->options.limits;
    limits.max_body_bytes = SIZE_MAX;
    parser_.emplace(limits, request_.method == "HEAD", [this](std::string_view piece) { return piece_came(piece); });
  }
  bool piece_came(std::string_view piece) {
    if (!told_head_ && !tell_head()) return false;
    if (cancelled_) return false;
    if (!listener_->on_body(piece)) {
      resting_ = true;
      parser_->pause();
    }
    return true;
  }
  // False where it is an answer that cannot be passed on.
  bool tell_head() {
    for (const auto& [name, value] : parser_->head().headers) {
      if (equals_ignoring_case(name, "transfer-encoding") && !equals_ignoring_case(value, "chunked"))
        refusal_ = "its transfer coding '" + clean_header_value(value) + "' is not 'chunked'";
    }
    if (!refusal_.empty() || cancelled_) return false;
    told_head_ = true;
    reached_ = stage_ = UpstreamStage::kBody;
    listener_->on_head(parser_->head().status, end_to_end_headers(parser_->head().headers));
    return true;
  }

  void readable();
  void gone(ErrorCodeOfSystem ec);
  bool repeat(bool peer_closed);
  void take(std::string_view bytes);
  bool feed(std::string_view& bytes);
  // What the parser has not consumed stays, in no more memory than it takes.
  void keep(std::string_view bytes) {
    std::string left(bytes);
    rest_.swap(left);
  }
  void go_on() {
    if (ended_ || !resting_) return;
    resting_ = false;
    take(rest_);
  }

  const std::shared_ptr<UpstreamLane> lane_;
  const UpstreamAddress address_;
  UpstreamRequest request_;
  std::shared_ptr<UpstreamListener> listener_;
  boost::asio::steady_timer timer_;
  Clock::time_point deadline_{};
  bool armed_ = false;
  std::atomic<bool> cancelled_{false}, ended_{false};

  UpstreamStage stage_ = UpstreamStage::kConnect;
  UpstreamStage reached_ = UpstreamStage::kConnect;  // by an attempt before, or for good
  Connection connection_;
  std::string name_;  // empty: a numeric address
  UpstreamNames::Addresses addresses_;
  size_t next_address_ = 0;
  Clock::time_point connect_until_{};
  ErrorCodeOfSystem connect_problem_;  // none: the time was over
  bool reused_ = false;
  bool repeated_ = false;

  std::string head_;       // of the request, or of a piece, as it is written
  size_t sent_bytes_ = 0;  // of it and of what is behind it
  bool left_ = false;      // a byte of the request has
  bool sent_all_ = false;
  std::string send_problem_;
  std::string piece_;                   // that is being sent
  std::optional<uint64_t> bytes_left_;  // of a body in pieces whose length is known
  bool more_pieces_ = false;            // one is to come, or the end of a chunked body
  bool first_piece_ = true;
  bool asks_first_ = false, rests_for_word_ = false;

  std::optional<ResponseParser> parser_;
  std::string rest_;       // read, not consumed
  bool answered_ = false;  // a byte of the answer has come
  bool told_head_ = false;
  bool resting_ = false;
  std::string refusal_;
};

}  // namespace loralei
