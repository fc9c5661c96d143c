// SPDX-License-Identifier: Apache-2.0
#include "serve/server_events.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <tuple>
#include <utility>

#include "base/limits.h"
#include "serve/kv_shown.h"
#include "serve/memory_shown.h"
#include "serve/queues.h"
#include "serve/recent_times.h"
#include "store/version_name.h"

namespace loralei {
namespace {

constexpr double kNs = 1e-9;
constexpr int64_t kLookShare = 100;  // of the time, one part for looking at adapters

size_t place_of(const AdapterStatus& adapter) {
  switch (adapter.tier) {
    case AdapterTier::kSource:
      return 0;
    case AdapterTier::kLoading:
      return 1;
    case AdapterTier::kFailed:
      return 2;
    case AdapterTier::kResident:
      return adapter.on_device ? 4 : 3;
  }
  return 0;
}
constexpr std::array<const char*, 5> kPlaces = {"disk", "loading", "failed", "host", "device"};

auto rank_of(const AdapterBoard::Shown& one) {
  const AdapterStatus& status = *one.status;
  const int busy = status.users + status.waiting;
  return std::tuple(busy, status.tier == AdapterTier::kLoading, one.used_ns, place_of(status), status.pinned);
}

void put_percentiles(JsonOut& out, const RecentTimes::Shown& shown) {
  out.begin_object().key("count").number(shown.count).key("window_s").real(shown.window_s);
  const auto put = [&](const char* name, double seconds) {
    out.key(name);
    shown.count > 0 ? out.real(seconds) : out.null();
  };
  put("p50_s", shown.p50);
  put("p90_s", shown.p90);
  put("p99_s", shown.p99);
  out.end_object();
}

double seconds_ago(int64_t now_ns, int64_t then_ns) {
  return static_cast<double>(std::max<int64_t>(0, now_ns - then_ns)) * kNs;
}

}  // namespace

AdaptersTold busiest_adapters(std::vector<AdapterBoard::Shown> all, size_t most) {
  AdaptersTold told;
  for (const AdapterBoard::Shown& one : all) ++told.places[place_of(*one.status)];
  const auto before = [](const AdapterBoard::Shown& a, const AdapterBoard::Shown& b) {
    const auto left = rank_of(a), right = rank_of(b);
    return left != right ? left > right : a.status->source.id < b.status->source.id;
  };
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(most, all.size()));
  std::partial_sort(all.begin(), end, all.end(), before);
  told.first.assign(all.begin(), end);
  return told;
}

void ServerEvents::ask_engine(int64_t now_ns) {
  const auto ask = [this](auto command, auto keep) {
    {
      const std::lock_guard lock(told_->mutex);
      ++told_->open;
    }
    const auto answered = [told = told_, keep, &clock = context_.clock](const CommandReply& reply) {
      const std::lock_guard lock(told->mutex);
      if (reply.status.ok()) keep(*told, reply, clock.now_ns());
      --told->open;
      told->changed.notify_all();
    };
    if (context_.dispatcher.command(command, answered).ok()) return;
    const std::lock_guard lock(told_->mutex);
    --told_->open;
  };
  bool under_way = false;
  {
    const std::lock_guard lock(told_->mutex);
    under_way = told_->open > 0;
  }
  if (!under_way) {
    ask(QueuesCommand{.listed_max = kSequencesTold}, [](Told& told, const CommandReply& reply, int64_t at_ns) {
      told.queues = reply.queues;
      told.queues_ns = at_ns;
    });
    if (kv_asked_ns_ == 0 || now_ns - kv_asked_ns_ >= kKvEveryNs) {
      kv_asked_ns_ = now_ns;
      ask(KvCommand{.listed_max = kHoldersTold}, [](Told& told, const CommandReply& reply, int64_t at_ns) {
        told.kv = reply.kv;
        told.kv_ns = at_ns;
      });
    }
  }
  std::unique_lock lock(told_->mutex);
  told_->changed.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [this] { return told_->open == 0; });
}

void ServerEvents::look_at_adapters(int64_t now_ns) {
  if (now_ns < look_again_ns_) return;
  // Some of them are what a name meant before.
  adapters_ = busiest_adapters(context_.dispatcher.adapters().shown(), 2 * kAdaptersTold);
  std::erase_if(adapters_.first, [this](const AdapterBoard::Shown& one) {
    const auto entry = catalogue_.find(one.status->source.label);
    return !entry || entry->source != one.status->source.id;
  });
  if (adapters_.first.size() > kAdaptersTold) adapters_.first.resize(kAdaptersTold);
  looked_ns_ = now_ns;
  look_again_ns_ = now_ns + kLookShare * (context_.clock.now_ns() - now_ns);
}

void ServerEvents::put_server(JsonOut& out, const EngineStats& stats) {
  ServerState state = state_();
  for (const AdapterBoard::Shown& one : adapters_.first) state.adapters.push_back(one.status);
  const std::vector<Impediment> cannot = impediments(state);
  out.key("server").begin_object().key("version").string(options_.version);
  out.key("model").string(options_.model_names.front()).key("isa").string(options_.isa);
  out.key("device").string_or_null(stats.device).key("paced_as").string_or_null(stats.paced_as);
  out.key("max_model_len").number(context_.engine.max_model_len());
  out.key("keeps_uploads").boolean(options_.adapter_store.store != nullptr);
  out.key("ready").boolean(is_ready(cannot)).key("draining").boolean(state.draining);
  out.key("cannot").begin_array();
  for (const Impediment& one : cannot)
    out.begin_object().key("what").string(one.what).key("why").string(one.why).end_object();
  out.end_array().end_object();
}

void ServerEvents::put_requests(JsonOut& out, const EngineStats& stats, int64_t now_ns) {
  out.key("requests")
      .begin_object()
      .key("running")
      .number(stats.running)
      .key("running_max")
      .number(options_.max_running);
  out.key("waiting").number(stats.waiting).key("waiting_for_adapter").number(stats.waiting_for_adapter);
  out.key("held").number(stats.held).key("preemptions").number(static_cast<int64_t>(stats.preemptions)).end_object();
  const Before now{now_ns, stats.generated_tokens, stats.prompt_tokens, stats.steps, stats.disk_read_bytes};
  const Before before = before_.value_or(now);
  const double passed_s = seconds_ago(now_ns, before.at_ns);
  const auto rate = [passed_s](auto to, auto from) {
    return passed_s > 0 && to > from ? static_cast<double>(to - from) / passed_s : 0.0;
  };
  out.key("rates").begin_object().key("over_s").real(passed_s);
  out.key("generated_tokens_per_s").real(rate(now.generated, before.generated));
  out.key("prompt_tokens_per_s").real(rate(now.prompt, before.prompt));
  out.key("steps_per_s").real(rate(now.steps, before.steps)).end_object();
  read_bytes_per_s_ = rate(now.read_bytes, before.read_bytes);
  before_ = now;
}

void ServerEvents::put_times(JsonOut& out, int64_t now_ns) const {
  const RecentAnswerTimes& recent = context_.metrics.recent();
  out.key("ttft");
  put_percentiles(out, recent.first_token.shown(now_ns));
  out.key("token_times");
  put_percentiles(out, recent.between_tokens.shown(now_ns));
}

void ServerEvents::put_adapters(JsonOut& out, int64_t now_ns) const {
  out.key("adapters").begin_object().key("total").number(static_cast<int64_t>(catalogue_.size()));
  out.key("ago_s").real(seconds_ago(now_ns, looked_ns_)).key("versions").begin_object();
  for (size_t i = 0; i < kPlaces.size(); ++i) out.key(kPlaces[i]).number(adapters_.places[i]);
  out.end_object().key("first").begin_array();
  for (const AdapterBoard::Shown& one : adapters_.first) {
    const AdapterStatus& status = *one.status;
    out.begin_object().key("name").string(status.source.label).key("place").string(kPlaces[place_of(status)]);
    out.key("rank").number(status.rank).key("bytes").number(status.bytes);
    out.key("running").number(status.users).key("waiting").number(status.waiting);
    out.key("uses").number(status.uses).key("recent_uses").real(status.recent_uses).key("score");
    status.keep_score ? out.real(*status.keep_score) : out.null();
    out.key("used_ago_s");
    one.used_ns > 0 ? out.real(status.users > 0 ? 0.0 : seconds_ago(now_ns, one.used_ns)) : out.null();
    out.key("load_s").real(status.load_s).key("pinned").boolean(status.pinned);
    out.key("error").string_or_null(status.error).end_object();
  }
  out.end_array().end_object();
}

void ServerEvents::put_queues(JsonOut& out, int64_t now_ns) const {
  std::shared_ptr<const QueuesState> queues;
  int64_t at_ns = 0;
  {
    const std::lock_guard lock(told_->mutex);
    queues = told_->queues;
    at_ns = told_->queues_ns;
  }
  out.key("queues_ago_s").real(seconds_ago(now_ns, at_ns)).key("queues");
  if (queues == nullptr) {
    out.null();
    return;
  }
  out.raw(queues_body(*queues, [this](RequestId id) { return context_.dispatcher.request_id(id); }));
}

void ServerEvents::put_kv(JsonOut& out, const EngineStats& stats, int64_t now_ns) {
  std::shared_ptr<const KvState> kv;
  int64_t at_ns = 0;
  {
    const std::lock_guard lock(told_->mutex);
    kv = told_->kv;
    at_ns = told_->kv_ns;
  }
  out.key("kv").begin_object();
  out.key("total_tokens").number(stats.kv_blocks_total * kKvBlockTokens);
  out.key("running_tokens").number(stats.kv_blocks_used * kKvBlockTokens);
  out.key("cached_tokens").number(stats.kv_blocks_cached * kKvBlockTokens);
  out.key("prefix_queries").number(static_cast<int64_t>(stats.prefix_queries));
  out.key("prefix_hits").number(static_cast<int64_t>(stats.prefix_hits));
  out.key("holders_ago_s").real(seconds_ago(now_ns, at_ns)).key("held");
  if (kv == nullptr) {
    out.null().end_object();
    return;
  }
  if (kv != shown_kv_) {
    shown_kv_ = kv;
    kv_body_ = kv_body(*kv, kv_names(*kv, context_.dispatcher.adapters().list(), catalogue_));
  }
  std::vector<const KvAppState*> apps;
  for (const KvAppState& app : kv->apps) apps.push_back(&app);
  const auto end = apps.begin() + static_cast<std::ptrdiff_t>(std::min(kAppsTold, apps.size()));
  std::partial_sort(apps.begin(), end, apps.end(), [](const auto* a, const auto* b) { return a->tokens > b->tokens; });
  out.raw(kv_body_).key("apps").begin_object().key("total").number(static_cast<int64_t>(apps.size()));
  out.key("first").begin_array();
  for (auto app = apps.begin(); app != end; ++app) {
    out.begin_object()
        .key("id")
        .string((*app)->id)
        .key("state")
        .string(kAppStateNames[static_cast<size_t>((*app)->state)]);
    out.key("tokens").number((*app)->tokens).key("alone_tokens").number((*app)->alone_tokens).end_object();
  }
  out.end_array().end_object().end_object();
}

// Of the base's weights: what lies in memory, and what every pass reads.
void ServerEvents::put_residency(JsonOut& out, const EngineStats& stats) const {
  const MemoryShares& where = stats.device.empty() ? static_cast<const MemoryShares&>(stats) : stats.device_memory;
  out.key("residency").begin_object().key("resident_bytes").number(where.weights_bytes);
  out.key("streamed_bytes_per_pass").number(stats.streamed_bytes);
  out.key("read_bytes").number(stats.disk_read_bytes).key("read_bytes_per_s").real(read_bytes_per_s_);
  out.key("read_s").real(stats.disk_s).key("step_s").real(stats.step_s);
  out.key("expert_hits").number(stats.expert_hits).key("expert_misses").number(stats.expert_misses).end_object();
}

std::string ServerEvents::snapshot() {
  ask_engine(context_.clock.now_ns());
  const int64_t now_ns = context_.clock.now_ns();
  look_at_adapters(now_ns);
  const EngineStats stats = context_.engine.stats();
  const auto unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  JsonOut out;
  out.begin_object().key("kind").string("server").key("unix_ms").number(static_cast<int64_t>(unix_ms.count()));
  put_server(out, stats);
  out.key("memory").raw(memory_body(stats));
  put_requests(out, stats, now_ns);
  put_times(out, now_ns);
  put_adapters(out, now_ns);
  put_queues(out, now_ns);
  put_kv(out, stats, now_ns);
  put_residency(out, stats);
  return out.end_object().take();
}

}  // namespace loralei
