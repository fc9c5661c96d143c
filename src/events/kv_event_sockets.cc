// SPDX-License-Identifier: Apache-2.0
#include "events/kv_event_sockets.h"

#include <zmq.h>

#include <charconv>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/printable.h"

namespace loralei {
namespace {

constexpr int kAnswersAtOnce = 4;
constexpr int64_t kRequestBytesMost = 4096;  // of what is sent to us: a subscription, a number
constexpr size_t kNumberBytes = 8;
constexpr size_t kTextBytesMost = 512;  // of an address, a topic
constexpr uint64_t kEnd = UINT64_MAX;

struct ContextEnd {
  void operator()(void* context) const { zmq_ctx_term(context); }
};
struct SocketEnd {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Context = std::unique_ptr<void, ContextEnd>;
using Socket = std::unique_ptr<void, SocketEnd>;

// A frame; copies share its bytes.
class Frame {
 public:
  Frame() { zmq_msg_init(&frame_); }
  explicit Frame(std::string_view bytes) {
    if (zmq_msg_init_size(&frame_, bytes.size()) != 0) zmq_msg_init(&frame_);
    if (zmq_msg_size(&frame_) == bytes.size() && !bytes.empty())
      std::memcpy(zmq_msg_data(&frame_), bytes.data(), bytes.size());
  }
  Frame(Frame&& other) noexcept : Frame() { zmq_msg_move(&frame_, &other.frame_); }
  Frame& operator=(Frame&& other) noexcept {
    zmq_msg_move(&frame_, &other.frame_);
    return *this;
  }
  ~Frame() { zmq_msg_close(&frame_); }
  Frame copy() const {
    Frame made;
    zmq_msg_copy(&made.frame_, const_cast<zmq_msg_t*>(&frame_));
    return made;
  }
  std::string_view bytes() const {
    zmq_msg_t* const frame = const_cast<zmq_msg_t*>(&frame_);
    return {static_cast<const char*>(zmq_msg_data(frame)), zmq_msg_size(frame)};
  }
  bool more() const { return zmq_msg_more(&frame_) != 0; }
  // A socket that takes no more answers no; it does not wait.
  bool send(void* socket, bool more) && {
    return zmq_msg_send(&frame_, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
  }
  bool receive(void* socket) { return zmq_msg_recv(&frame_, socket, ZMQ_DONTWAIT) >= 0; }

 private:
  zmq_msg_t frame_;
};

std::string number_bytes(uint64_t number) {
  std::string bytes(kNumberBytes, '\0');
  for (size_t i = 0; i < kNumberBytes; ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  return bytes;
}

uint64_t number_of(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

void set(void* socket, int option, int value) { CHECK(zmq_setsockopt(socket, option, &value, sizeof value) == 0); }

Socket make_socket(void* context, int type, int hwm) {
  Socket socket(zmq_socket(context, type));
  if (socket == nullptr) return socket;
  set(socket.get(), ZMQ_SNDHWM, hwm);
  set(socket.get(), ZMQ_LINGER, 0);
  set(socket.get(), ZMQ_IPV6, 1);
  set(socket.get(), ZMQ_TCP_KEEPALIVE, 1);
  CHECK(zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kRequestBytesMost, sizeof kRequestBytesMost) == 0);
  return socket;
}

Status attach(void* socket, const std::string& endpoint, bool binds, const std::string& flag) {
  const int result = binds ? zmq_bind(socket, endpoint.c_str()) : zmq_connect(socket, endpoint.c_str());
  if (result == 0) return {};
  return invalid_argument(flag + " " + printable(endpoint) + " cannot be " + (binds ? "listened at" : "connected to") +
                          " (" + zmq_strerror(zmq_errno()) +
                          "); choose an address of this machine and a port that nobody has");
}

std::string last_endpoint(void* socket) {
  char text[512] = {};
  size_t size = sizeof text;
  if (socket == nullptr || zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, text, &size) != 0) return {};
  return text;
}

bool is_port(std::string_view text) {
  if (text == "*") return true;
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

Status check_endpoint(const std::string& flag, const std::string& endpoint) {
  const Status no_address =
      invalid_argument(flag + " '" + printable(endpoint) +
                       "' is no address: give tcp://*:5557 so that others connect to it, tcp://HOST:5557 to connect to "
                       "who listens there, or ipc://PATH");
  if (!is_printable(endpoint, kTextBytesMost)) return no_address;
  constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
  if (endpoint.starts_with(kIpc)) return endpoint.size() > kIpc.size() ? Status() : no_address;
  const size_t colon = endpoint.rfind(':');
  const bool whole = endpoint.starts_with(kTcp) && colon > kTcp.size() && is_port(endpoint.substr(colon + 1));
  return whole ? Status() : no_address;
}

}  // namespace

bool kv_events_binds(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://");
}

Status check_kv_events(const KvEventsOptions& options) {
  if (options.endpoint.empty()) {
    if (options.replay_endpoint.empty() && options.topic.empty()) return {};
    return invalid_argument(
        "--kv-events-replay and --kv-events-topic are of KV cache events, which --kv-events tcp://*:5557 publishes; "
        "add that, or leave them out");
  }
  TRY(check_endpoint("--kv-events", options.endpoint));
  if (!options.replay_endpoint.empty()) TRY(check_endpoint("--kv-events-replay", options.replay_endpoint));
  if (!options.topic.empty() && !is_printable(options.topic, kTextBytesMost))
    return invalid_argument(
        "--kv-events-topic is longer than 512 bytes, or holds what cannot be seen; give a plain one");
  if (options.buffer_steps < 1 || options.hwm < 1 || options.max_queue_size < 2)
    return invalid_argument(
        "--kv-events-buffer-steps and --kv-events-hwm must be at least 1, --kv-events-max-queue-size at least 2");
  return {};
}

struct KvEventSockets::Parts {
  struct Kept {
    uint64_t number = 0;
    Frame message;
  };
  Context context;
  Socket publishing, replaying;  // closed before the context ends
  Frame topic;
  uint64_t next = 0;
  size_t kept_most = 0;
  int64_t kept_bytes = 0;
  std::deque<Kept> kept;

  void replay(const Frame& client, uint64_t from);
};

KvEventSockets::KvEventSockets(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
KvEventSockets::~KvEventSockets() = default;

Result<std::unique_ptr<KvEventSockets>> KvEventSockets::open(const KvEventsOptions& options) {
  TRY(check_kv_events(options));
  CHECK(!options.endpoint.empty());
  auto parts = std::make_unique<Parts>();
  parts->context.reset(zmq_ctx_new());
  if (parts->context != nullptr) parts->publishing = make_socket(parts->context.get(), ZMQ_PUB, options.hwm);
  if (parts->publishing == nullptr)
    return Error{ErrorCode::kOverloaded, std::string("--kv-events: the system gives no socket (") +
                                             zmq_strerror(zmq_errno()) + "); allow this process more open files"};
  TRY(attach(parts->publishing.get(), options.endpoint, kv_events_binds(options.endpoint), "--kv-events"));
  if (!options.replay_endpoint.empty()) {
    // Room for an answer as a whole: what finds none is dropped.
    parts->replaying = make_socket(parts->context.get(), ZMQ_ROUTER, 2 * options.buffer_steps + 2);
    if (parts->replaying == nullptr)
      return Error{ErrorCode::kOverloaded, "--kv-events-replay: the system gives no socket; allow more open files"};
    TRY(attach(parts->replaying.get(), options.replay_endpoint, true, "--kv-events-replay"));
  }
  parts->topic = Frame(options.topic);
  parts->kept_most = options.replay_endpoint.empty() ? 0 : static_cast<size_t>(options.buffer_steps);
  return std::unique_ptr<KvEventSockets>(new KvEventSockets(std::move(parts)));
}

std::string KvEventSockets::endpoint() const { return last_endpoint(parts_->publishing.get()); }
std::string KvEventSockets::replay_endpoint() const { return last_endpoint(parts_->replaying.get()); }

void KvEventSockets::publish(const std::string& message) {
  Parts& parts = *parts_;
  Frame frame(message);
  void* const socket = parts.publishing.get();
  const uint64_t number = parts.next++;
  if (parts.topic.copy().send(socket, true)) {
    Frame(number_bytes(number)).send(socket, true);
    frame.copy().send(socket, false);
  }
  if (parts.kept_most == 0) return;
  parts.kept_bytes += static_cast<int64_t>(message.size());
  parts.kept.push_back({number, std::move(frame)});
  while (parts.kept.size() > parts.kept_most || (parts.kept_bytes > kBufferBytesMost && parts.kept.size() > 1)) {
    parts.kept_bytes -= static_cast<int64_t>(parts.kept.front().message.bytes().size());
    parts.kept.pop_front();
  }
}

void KvEventSockets::Parts::replay(const Frame& client, uint64_t from) {
  void* const socket = replaying.get();
  const auto send = [&](Frame&& topic_frame, uint64_t number, Frame&& message) {
    if (!client.copy().send(socket, true)) return;
    Frame().send(socket, true);
    std::move(topic_frame).send(socket, true);
    Frame(number_bytes(number)).send(socket, true);
    std::move(message).send(socket, false);
  };
  for (const Kept& one : kept) {
    if (one.number >= from) send(topic.copy(), one.number, one.message.copy());
  }
  send(Frame(), kEnd, Frame());
}

int KvEventSockets::answer(int timeout_ms) {
  Parts& parts = *parts_;
  zmq_pollitem_t item{parts.replaying.get(), 0, ZMQ_POLLIN, 0};
  if (zmq_poll(&item, item.socket == nullptr ? 0 : 1, timeout_ms) <= 0) return 0;
  int answered = 0;
  while (answered < kAnswersAtOnce) {
    Frame frames[3];
    if (!frames[0].receive(item.socket)) break;
    size_t count = 1;
    for (bool more = frames[0].more(); more; ++count) {
      Frame beyond;
      Frame& next = count < 3 ? frames[count] : beyond;
      if (!next.receive(item.socket)) break;
      more = next.more();
    }
    ++answered;
    if (count == 3 && frames[1].bytes().empty() && frames[2].bytes().size() == kNumberBytes)
      parts.replay(frames[0], number_of(frames[2].bytes()));
  }
  return answered;
}

}  // namespace loralei
