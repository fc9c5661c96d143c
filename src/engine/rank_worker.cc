// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_worker.h"

#include <cstring>
#include <utility>

#include "adapters/adapter_of_rank.h"
#include "base/check.h"

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

RankWorker::RankWorker(Collective& group, Model& model, const ModelLimits& limits, Ledger& ledger)
    : group_(group),
      model_(model),
      shard_{group.rank(), group.size()},
      link_(group),
      step_(limits, model.config(), ledger) {
  CHECK(group.rank() > 0);
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
    case RankCommand::kAnnounce: {
      const auto& whole = *value_of<const Adapter*>(received.payload);
      const auto [at, fresh] = adapters_.try_emplace(whole.version);
      if (!fresh) break;
      at->second = adapter_of_rank(whole, shard_);
      step_.announce(at->second);
      break;
    }
    case RankCommand::kWithdraw: {
      const auto version = value_of<AdapterVersionId>(received.payload);
      step_.withdraw(version);
      adapters_.erase(version);
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
