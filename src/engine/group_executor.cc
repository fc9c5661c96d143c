// SPDX-License-Identifier: Apache-2.0
#include "engine/group_executor.h"

#include <unordered_map>
#include <utility>

#include "adapters/adapter_of_rank.h"
#include "base/check.h"
#include "engine/model_step.h"
#include "engine/rank_link.h"

namespace loralei {
namespace {

template <typename Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

class GroupExecutor final : public Executor {
 public:
  GroupExecutor(Collective& group, RankMemory memory, Model& model, const ModelConfig& whole, const ModelLimits& limits,
                Ledger& ledger)
      : group_(group),
        memory_(memory),
        model_(model),
        whole_(whole),
        limits_(limits),
        shard_{group.rank(), group.size()},
        link_(group),
        step_(limits, model.config(), ledger) {
    CHECK(group.rank() == 0);
  }
  ~GroupExecutor() override { tell(link_.send(RankCommand::kStop)); }

  void use_kv(const KvView& kv, const KvStreams& streams) override {
    CHECK(streams.shape.dim == 0);
    kv_ = memory_ == RankMemory::kShared ? kv_of_rank(kv, shard_) : kv;
    if (memory_ == RankMemory::kShared) tell(link_.send(RankCommand::kUseKv, bytes_of(kv)));
  }
  void announce(const Adapter& adapter) override {
    const auto [at, fresh] = adapters_.try_emplace(adapter.version);
    if (!fresh) return;
    at->second = adapter_of_rank(adapter, shard_);
    step_.announce(at->second);
    if (memory_ == RankMemory::kOwn) return tell(link_.send_adapter(adapter, copy_shape_of(whole_)));
    const Adapter* const whole = &adapter;  // is there until it is withdrawn
    tell(link_.send(RankCommand::kAnnounce, bytes_of(whole)));
  }
  void withdraw(AdapterVersionId version) override {
    step_.withdraw(version);
    if (adapters_.erase(version) == 0) return;
    tell(link_.send(RankCommand::kWithdraw, bytes_of(version)));
  }
  Status reserve_vocab(int32_t vocab) override { return step_.reserve_vocab(vocab); }
  void start(const StepBatch& batch) override {
    CHECK(batch.choices.empty());
    Status status = link_.send_step(batch);
    if (status.ok()) status = model_.forward(step_.fill(batch), kv_);
    if (!status.ok()) {
      group_.fail(status.error());
      status = ready();
    }
    end_step({batch.step, std::move(status), step_.waits()});
  }
  StepResult result() const override { return step_.result(); }
  Status ready() override {
    const Status health = group_.health();
    if (health.ok()) return {};
    return Error{ErrorCode::kUnavailable, health.error().message};
  }
  Status accepts(const Adapter& adapter) const override { return check_adapter_parts(adapter, whole_, shard_.size); }
  const ModelLimits& limits() const override { return limits_; }
  ModelTimes times() const override { return model_.times(); }

 private:
  // What could not be told ends the group, and every step to come with it.
  void tell(const Status& told) {
    if (!told.ok()) group_.fail(told.error());
  }

  Collective& group_;
  const RankMemory memory_;
  Model& model_;
  const ModelConfig whole_;
  const ModelLimits limits_;
  const Shard shard_;
  RankLink link_;
  ModelStep step_;
  KvView kv_;
  std::unordered_map<AdapterVersionId, Adapter> adapters_;  // this rank's parts
};

}  // namespace

std::unique_ptr<Executor> make_group_executor(Collective& group, RankMemory memory, Model& model,
                                              const ModelConfig& whole, const ModelLimits& limits, Ledger& ledger) {
  return std::make_unique<GroupExecutor>(group, memory, model, whole, limits, ledger);
}

}  // namespace loralei
