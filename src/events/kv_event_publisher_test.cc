// SPDX-License-Identifier: Apache-2.0
// What subscribers of vLLM's events see of ours, through real sockets.
#include "events/kv_event_publisher.h"

#include <gtest/gtest.h>
#include <zmq.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace loralei {
namespace {

using Json = nlohmann::json;
using Frames = std::vector<std::string>;

constexpr int kLongMs = 20'000;  // for what must come
constexpr int kShortMs = 50;     // for what must not

class Peer {
 public:
  // `waiting`: messages that wait on this side for being received; 0: all.
  Peer(int type, const std::string& endpoint, int waiting = 0)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &waiting, sizeof waiting);
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0) << endpoint;
  }
  ~Peer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Frames receive(int timeout_ms = kLongMs) {
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    Frames frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t frame;
      zmq_msg_init(&frame);
      if (zmq_msg_recv(&frame, socket_, 0) < 0) {
        zmq_msg_close(&frame);
        return {};
      }
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
      more = zmq_msg_more(&frame);
      zmq_msg_close(&frame);
    }
    return frames;
  }
  void send(const Frames& frames) {
    for (size_t i = 0; i < frames.size(); ++i)
      EXPECT_GE(zmq_send(socket_, frames[i].data(), frames[i].size(), i + 1 < frames.size() ? ZMQ_SNDMORE : 0), 0);
  }

 private:
  void* context_;
  void* socket_;
};

uint64_t number(const std::string& bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}
std::string number_bytes(uint64_t value) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(value >> (56 - 8 * i));
  return bytes;
}

KvEvent stored(uint64_t hash) { return {.kind = KvEvent::Kind::kStored, .hash = hash}; }

KvEventsOptions options_on_loopback() {
  return {.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = "tcp://127.0.0.1:*", .topic = "kv@here@base"};
}

// The sockets alone, so that what is sent when is the test's.
struct Sockets {
  std::unique_ptr<KvEventSockets> sockets;
  explicit Sockets(const KvEventsOptions& options = options_on_loopback())
      : sockets(std::move(KvEventSockets::open(options)).value()) {}
  // A subscriber that has what is published from now on.
  std::unique_ptr<Peer> subscribe(int waiting = 0) {
    auto peer = std::make_unique<Peer>(ZMQ_SUB, sockets->endpoint(), waiting);
    while (peer->receive(kShortMs).empty()) sockets->publish("hello");
    while (!peer->receive(kShortMs).empty()) {
    }
    return peer;
  }
  // Of the answer to one request, without the empty frame before each.
  std::vector<Frames> replay(Peer& peer, const Frames& request) {
    peer.send(request);
    while (sockets->answer(kLongMs) == 0) {
    }
    std::vector<Frames> all;
    for (Frames frames = peer.receive(); !frames.empty(); frames = peer.receive()) {
      EXPECT_EQ(frames.front(), "");
      all.emplace_back(frames.begin() + 1, frames.end());
      if (all.back().back().empty()) return all;
    }
    ADD_FAILURE() << "no end";
    return all;
  }
};

TEST(KvEventSockets, AMessageIsTopicNumberAndBytes) {
  Sockets sockets;
  const auto peer = sockets.subscribe();
  sockets.sockets->publish("a");
  sockets.sockets->publish("b");
  const Frames first = peer->receive(), second = peer->receive();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0], "kv@here@base");
  EXPECT_EQ(first[2], "a");
  EXPECT_EQ(second[2], "b");
  ASSERT_EQ(first[1].size(), 8u);
  EXPECT_EQ(number(second[1]), number(first[1]) + 1);
}

TEST(KvEventSockets, SaysAgainFromTheNumberThatIsAskedForAndThenTheEnd) {
  KvEventsOptions options = options_on_loopback();
  options.buffer_steps = 3;
  Sockets sockets(options);
  for (const char* text : {"0", "1", "2", "3", "4"}) sockets.sockets->publish(text);
  Peer peer(ZMQ_DEALER, sockets.sockets->replay_endpoint());
  const auto texts = [&](uint64_t from) {
    std::string text;
    const std::vector<Frames> all = sockets.replay(peer, {"", number_bytes(from)});
    for (const Frames& frames : all) {
      EXPECT_EQ(frames.size(), 3u);
      if (frames[2].empty()) {
        EXPECT_EQ(number(frames[1]), UINT64_MAX);
      } else {
        EXPECT_EQ(frames[0], "kv@here@base");
        EXPECT_EQ(std::to_string(number(frames[1])), frames[2]);
      }
      text += frames[2];
    }
    return text;
  };
  EXPECT_EQ(texts(0), "234") << "what is older is not kept";
  EXPECT_EQ(texts(3), "34");
  EXPECT_EQ(texts(5), "");
  EXPECT_EQ(texts(UINT64_MAX), "");
}

TEST(KvEventSockets, WhatIsNoRequestIsNotAnswered) {
  Sockets sockets;
  sockets.sockets->publish("0");
  Peer peer(ZMQ_DEALER, sockets.sockets->replay_endpoint());
  for (const Frames& request : std::vector<Frames>{{"x"},
                                                   {"", "short"},
                                                   {"", "123456789"},
                                                   {"y", number_bytes(0)},
                                                   {"", number_bytes(0), "more"},
                                                   {"", "", "", "", "", ""}}) {
    peer.send(request);
    while (sockets.sockets->answer(kLongMs) == 0) {
    }
    EXPECT_TRUE(peer.receive(kShortMs).empty());
  }
  EXPECT_EQ(sockets.replay(peer, {"", number_bytes(0)}).size(), 2u);
  peer.send({"", std::string(100'000, 'x')});  // more than any request: it is cut off
  Peer other(ZMQ_DEALER, sockets.sockets->replay_endpoint());
  EXPECT_EQ(sockets.replay(other, {"", number_bytes(0)}).size(), 2u);
}

TEST(KvEventSockets, AReaderThatNeverReadsHoldsNobodyUpAndCostsNoMore) {
  KvEventsOptions options = options_on_loopback();
  options.buffer_steps = 1000;
  options.hwm = 200;  // more than a publisher sends before it looks at what was taken
  Sockets sockets(options);
  const auto reads = sockets.subscribe();
  const auto sleeps = sockets.subscribe(1);
  while (!reads->receive(kShortMs).empty()) {
  }
  const std::string message(100'000, 'x');
  uint64_t last = 0;
  int received = 0;
  for (int i = 0; i < 2000; ++i) {
    sockets.sockets->publish(message);
    const Frames frames = reads->receive(kLongMs);
    ASSERT_EQ(frames.size(), 3u) << i;
    ASSERT_GT(number(frames[1]), last);
    last = number(frames[1]);
    received += frames[2].size() == message.size();
  }
  EXPECT_EQ(received, 2000);
  int late = 0;
  while (!sleeps->receive(kShortMs).empty()) ++late;
  EXPECT_LT(late, 1500) << "what found no room was dropped";
  // 64 MiB are 671 of these.
  Peer peer(ZMQ_DEALER, sockets.sockets->replay_endpoint());
  const std::vector<Frames> kept = sockets.replay(peer, {"", number_bytes(0)});
  EXPECT_LT(kept.size(), 680u);
  EXPECT_GT(kept.size(), 660u);
}

TEST(KvEventSockets, BadAddressesAreRefusedWithASentence) {
  for (const char* endpoint :
       {"5557", "tcp://", "tcp://*", "tcp://*:", "tcp://*:0", "tcp://*:65536", "tcp://*:55x7", "http://*:5557",
        "tcp://:5557x", "ipc://", "inproc://cache", "tcp://*:5557\n", "udp://*:1"}) {
    for (const bool replay : {false, true}) {
      const KvEventsOptions options =
          replay ? KvEventsOptions{.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = endpoint}
                 : KvEventsOptions{.endpoint = endpoint};
      const auto opened = KvEventSockets::open(options);
      ASSERT_FALSE(opened.ok()) << endpoint;
      EXPECT_NE(opened.error().message.find(replay ? "--kv-events-replay '" : "--kv-events '"), std::string::npos);
      EXPECT_NE(opened.error().message.find("tcp://*:5557"), std::string::npos);
    }
  }
  const auto no_host = KvEventSockets::open({.endpoint = "tcp://no.such.host.invalid:*"});
  ASSERT_FALSE(no_host.ok());
  EXPECT_NE(no_host.error().message.find("cannot be listened at"), std::string::npos) << no_host.error().message;
  const Sockets has;
  const std::string taken = has.sockets->endpoint();
  const auto second = KvEventSockets::open({.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = taken});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("cannot be listened at"), std::string::npos) << second.error().message;
  EXPECT_FALSE(check_kv_events({.replay_endpoint = "tcp://*:5558"}).ok());
  EXPECT_FALSE(check_kv_events({.topic = "kv@"}).ok());
  EXPECT_FALSE(check_kv_events({.endpoint = "tcp://*:5557", .topic = "a\nb"}).ok());
  EXPECT_FALSE(check_kv_events({.endpoint = "tcp://*:5557", .buffer_steps = 0}).ok());
  EXPECT_TRUE(check_kv_events({}).ok());
}

// vLLM's rule.
TEST(KvEventSockets, ListensWhereThereIsAWildcardAndConnectsOtherwise) {
  for (const char* listens : {"tcp://*:5557", "tcp://127.0.0.1:*", "tcp://[::]:5557", "tcp://[::1]:5557", "ipc://x"})
    EXPECT_TRUE(kv_events_binds(listens)) << listens;
  for (const char* connects : {"tcp://127.0.0.1:5557", "tcp://router:5557"}) EXPECT_FALSE(kv_events_binds(connects));
  // Who connects may come before who listens.
  void* const context = zmq_ctx_new();
  void* const socket = zmq_socket(context, ZMQ_SUB);
  ASSERT_EQ(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
  char endpoint[128];
  size_t size = sizeof endpoint;
  ASSERT_EQ(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
  ASSERT_EQ(zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0), 0);
  Sockets sockets({.endpoint = endpoint});
  char bytes[64];
  while (zmq_recv(socket, bytes, sizeof bytes, ZMQ_DONTWAIT) < 0) {
    sockets.sockets->publish("x");
    sockets.sockets->answer(1);
  }
  zmq_close(socket);
  zmq_ctx_term(context);
}

TEST(KvEventPublisher, WhatIsToldGoesOutInOrderAndIsCounted) {
  auto sockets = std::move(KvEventSockets::open(options_on_loopback())).value();
  Peer peer(ZMQ_DEALER, sockets->replay_endpoint());
  const auto events = std::make_shared<KvEvents>(4096);
  const SteadyClock clock;
  ASSERT_TRUE(events->put({}));
  constexpr uint64_t kBlocks = 1000;
  for (uint64_t hash = 1; hash <= kBlocks; ++hash) ASSERT_TRUE(events->put(stored(hash)));
  ASSERT_TRUE(events->put({.kind = KvEvent::Kind::kRemoved, .hash = 7}));
  const auto publisher = std::move(KvEventPublisher::start(std::move(sockets), events, {}, clock)).value();
  uint64_t next = 1, number_next = 0;
  bool cleared = false, removed_seven = false;
  while (!removed_seven) {
    peer.send({"", number_bytes(number_next)});
    for (Frames frames = peer.receive(); !frames.empty() && !frames.back().empty(); frames = peer.receive()) {
      ASSERT_EQ(number(frames[2]), number_next++);
      const Json batch = Json::from_msgpack(frames[3]);
      ASSERT_EQ(batch.size(), 3u);
      for (const Json& event : batch[1]) {
        if (event[0] == "AllBlocksCleared") {
          EXPECT_EQ(next, 1u);
          cleared = true;
        } else if (event[0] == "BlockStored") {
          for (const Json& hash : event[1]) ASSERT_EQ(hash, next++);
        } else {
          EXPECT_EQ(event, Json::array({"BlockRemoved", Json::array({7}), "GPU"}));
          removed_seven = true;
        }
      }
    }
  }
  EXPECT_TRUE(cleared);
  EXPECT_EQ(next, kBlocks + 1);
  const KvEventCounts counts = events->counts();
  EXPECT_EQ(counts.stored, kBlocks);
  EXPECT_EQ(counts.removed, 1u);
  EXPECT_EQ(counts.batches, number_next);
  EXPECT_GE(counts.batches, kBlocks / KvEventPublisher::kEventsMost);
}

TEST(KvEventPublisher, AsksForANameOnceAWhile) {
  auto sockets = std::move(KvEventSockets::open(options_on_loopback())).value();
  Peer peer(ZMQ_SUB, sockets->endpoint());
  const auto events = std::make_shared<KvEvents>(4096);
  const ManualClock clock;
  std::atomic<int> asked{0};
  const AdapterNameOf name_of = [&](const Digest&) {
    ++asked;
    return std::string("sql");
  };
  {
    const auto publisher = std::move(KvEventPublisher::start(std::move(sockets), events, name_of, clock)).value();
    for (uint64_t hash = 1; hash <= 500; ++hash)
      ASSERT_TRUE(events->put({.kind = KvEvent::Kind::kStored, .hash = hash, .owner = {.adapters = 1}}));
  }
  EXPECT_EQ(events->counts().stored, 500u) << "what had come at the end is sent";
  EXPECT_EQ(asked.load(), 1);
}

// A cache tells of a block as soon as it is computed; what its adapter is may be known a
// moment later.
TEST(KvEventPublisher, WaitsForTheNameOfAnAdapterThatIsNewAndForNoNameForEver) {
  auto sockets = std::move(KvEventSockets::open(options_on_loopback())).value();
  Peer peer(ZMQ_DEALER, sockets->replay_endpoint());
  const auto events = std::make_shared<KvEvents>(4096);
  ManualClock clock;
  std::atomic<int> asked{0};
  std::atomic<bool> is_known{false};
  const AdapterNameOf name_of = [&](const Digest& version) {
    ++asked;
    return version[0] == 1 && is_known.load() ? std::string("sql") : std::string();
  };
  const auto publisher = std::move(KvEventPublisher::start(std::move(sockets), events, name_of, clock)).value();
  const auto told = [&](uint64_t hash, uint8_t digest) {
    KvEvent event = stored(hash);
    event.owner.adapters = 1;
    event.owner.adapter[0] = digest;
    EXPECT_TRUE(events->put(event));
  };
  // Name of the block of this hash, from all that is kept.
  const auto name_said = [&](uint64_t hash) {
    for (std::optional<std::string> name; true;) {
      peer.send({"", number_bytes(0)});
      for (Frames frames = peer.receive(); !frames.empty() && !frames.back().empty(); frames = peer.receive()) {
        const Json batch = Json::from_msgpack(frames[3]);
        for (const Json& event : batch[1]) {
          if (event[1][0] == hash) name = event[7].get<std::string>();
        }
      }
      if (name) return *name;
    }
  };
  told(1, 1);
  while (asked.load() < 3) std::this_thread::yield();  // it is asked for until it is there
  EXPECT_EQ(events->counts().stored, 0u);
  is_known.store(true);
  EXPECT_EQ(name_said(1), "sql");
  told(2, 2);
  const int before = asked.load();
  while (asked.load() < before + 3) std::this_thread::yield();
  EXPECT_EQ(events->counts().stored, 1u);
  clock.advance_ns(KvEventPublisher::kNameWaitNs);
  EXPECT_EQ(name_said(2).size(), 64u);
  told(3, 2);  // and is not waited for again
  EXPECT_EQ(name_said(3).size(), 64u);
}

}  // namespace
}  // namespace loralei
