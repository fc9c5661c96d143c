// SPDX-License-Identifier: Apache-2.0
// ServerEvents: what GET /v1/admin/events says at a tick: everything that the page for
// browsers shows of a server.
//
// Thread: snapshot() on the feed's thread alone; it may wait kPatience for the engine.
// Ownership: borrows everything; outlived by it.
// Invariants: an event is bounded whatever the server holds: at most kAdaptersTold
// adapters, kSequencesTold sequences of each queue, kHoldersTold holders and kAppsTold
// applications, each with their number in all. Neither texts nor keys nor salts are told.
// An engine in a long step delays no event: queues and KV are then those of an earlier
// moment, and the event says how old. Looking at the adapters takes at most a hundredth
// of the time, however many there are.
// Failure: what the engine does not tell is null.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/adapter_board.h"
#include "engine/api.h"
#include "serve/context.h"
#include "serve/options.h"
#include "serve/readiness.h"
#include "store/catalogue.h"
#include "wire/json_out.h"

namespace loralei {

// Of the adapters, those that are shown: the busiest, then those on their way, then those
// that were asked for most lately.
struct AdaptersTold {
  std::vector<AdapterBoard::Shown> first;
  std::array<int64_t, 5> places{};  // of all: source, loading, failed, host, device
};
AdaptersTold busiest_adapters(std::vector<AdapterBoard::Shown> all, size_t most);

class ServerEvents {
 public:
  static constexpr size_t kAdaptersTold = 200;
  static constexpr int32_t kSequencesTold = 25;
  static constexpr int32_t kHoldersTold = 50;
  static constexpr size_t kAppsTold = 50;
  static constexpr int64_t kPatienceMs = 200;
  static constexpr int64_t kKvEveryNs = 4'000'000'000;  // it costs the engine's thread what is held in all

  // state: without its adapters.
  ServerEvents(const ServeContext& context, const ServeOptions& options, const Catalogue& catalogue,
               std::function<ServerState()> state)
      : context_(context), options_(options), catalogue_(catalogue), state_(std::move(state)) {}

  std::string snapshot();

 private:
  // What the engine said last; shared with callbacks, which may outlive a snapshot.
  struct Told {
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<const QueuesState> queues;
    std::shared_ptr<const KvState> kv;
    int64_t queues_ns = 0, kv_ns = 0;
    int open = 0;  // commands without a reply
  };
  struct Before {  // of the last event, for rates
    int64_t at_ns = 0;
    uint64_t generated = 0, prompt = 0, steps = 0;
    int64_t read_bytes = 0;
  };
  void ask_engine(int64_t now_ns);
  void look_at_adapters(int64_t now_ns);
  void put_server(JsonOut& out, const EngineStats& stats);
  void put_requests(JsonOut& out, const EngineStats& stats, int64_t now_ns);
  void put_times(JsonOut& out, int64_t now_ns) const;
  void put_adapters(JsonOut& out, int64_t now_ns) const;
  void put_queues(JsonOut& out, int64_t now_ns) const;
  void put_kv(JsonOut& out, const EngineStats& stats, int64_t now_ns);
  void put_residency(JsonOut& out, const EngineStats& stats) const;

  const ServeContext context_;
  const ServeOptions& options_;
  const Catalogue& catalogue_;
  const std::function<ServerState()> state_;
  const std::shared_ptr<Told> told_ = std::make_shared<Told>();
  AdaptersTold adapters_;
  int64_t looked_ns_ = 0, look_again_ns_ = 0;
  int64_t kv_asked_ns_ = 0;
  std::shared_ptr<const KvState> shown_kv_;  // of which kv_body_ is
  std::string kv_body_;
  std::optional<Before> before_;
  double read_bytes_per_s_ = 0;
};

}  // namespace loralei
