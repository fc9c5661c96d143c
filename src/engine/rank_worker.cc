// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_worker.h"

#include <cstring>
#include <string>
#include <utility>

#include "adapters/adapter_of_rank.h"
#include "base/check.h"
#include "base/units.h"

namespace loralei {
namespace {

template <typename Value>
Value value_of(std::span<const std::byte> payload) {
  CHECK(payload.size() == sizeof(Value));
  Value value;
  std::memcpy(&value, payload.data(), sizeof value);
  return value;
}

}  // namespace

RankWorker::RankWorker(Collective& group, RankLink& link, Model& model, const ModelLimits& limits, Ledger& ledger,
                       const KvView& kv)
    : group_(group),
      model_(model),
      shard_{group.rank(), group.size()},
      link_(link),
      step_(limits, model.config(), ledger),
      kv_(kv),
      ledger_(ledger) {
  CHECK(group.rank() > 0);
}

void RankWorker::keep(Adapter part) {
  const AdapterVersionId version = part.version;
  const auto [at, fresh] = adapters_.try_emplace(version, std::move(part));
  if (fresh) step_.announce(at->second);
}

Status RankWorker::receive_adapter(std::span<const std::byte> payload) {
  const ModelConfig& config = model_.config();
  auto grant = ledger_.try_grant(MemoryUse::kAdapters, static_cast<int64_t>(payload.size()));
  if (!grant) {
    return too_large("Rank " + std::to_string(shard_.rank) + " has no room for an adapter of " +
                     format_bytes(static_cast<int64_t>(payload.size())) +
                     "; raise --memory-budget or lower --adapter-memory.");
  }
  TRY_ASSIGN(const Adapter whole, read_adapter_message(payload, copy_shape_of(config)));
  grants_.insert_or_assign(whole.version, std::move(*grant));
  keep(adapter_of_rank(whole, shard_));
  link_.shrink();
  return {};
}

Status RankWorker::compute(std::span<const std::byte> payload) {
  TRY_ASSIGN(const StepBatch batch, RankLink::step_of(payload));
  return model_.forward(step_.fill(batch), kv_);
}

Status RankWorker::obey(const RankLink::Received& received) {
  switch (received.command) {
    case RankCommand::kStop:
      break;
    case RankCommand::kUseKv:
      kv_ = kv_of_rank(value_of<KvView>(received.payload), shard_);
      break;
    case RankCommand::kAnnounce:
      keep(adapter_of_rank(*value_of<const Adapter*>(received.payload), shard_));
      break;
    case RankCommand::kReceive:
      return receive_adapter(received.payload);
    case RankCommand::kSetUp:
      return internal_error("A rank was set up twice.");
    case RankCommand::kWithdraw: {
      const auto version = value_of<AdapterVersionId>(received.payload);
      step_.withdraw(version);
      adapters_.erase(version);
      grants_.erase(version);
      break;
    }
    case RankCommand::kStep:
      return compute(received.payload);
  }
  return {};
}

Status RankWorker::run() {
  for (;;) {
    auto received = link_.receive();
    if (!received.ok()) return received.error();
    if (received->command == RankCommand::kStop) return {};
    if (const Status done = obey(*received); !done.ok()) {
      group_.fail(done.error());
      return group_.health();
    }
  }
}

}  // namespace loralei
