// SPDX-License-Identifier: Apache-2.0
#include "engine/pace.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "engine/step_record.h"

namespace loralei {
namespace {

constexpr double kNsMost = 1e18;  // thirty years: whatever a profile says, a few of these are a time

int64_t pace_ns(double seconds) {
  const double ns = seconds * 1e9;
  return ns > 0 ? std::llround(std::min(ns, kNsMost)) : 0;
}

class PacedExecutor final : public Executor {
 public:
  PacedExecutor(std::unique_ptr<Executor> executor, const Profile& profile, const Clock& clock, PaceWait wait)
      : executor_(std::move(executor)),
        name_(profile.name),
        step_(profile.step),
        clock_(clock),
        wait_(std::move(wait)),
        tier_(executor_->device_tier()) {
    executor_->on_done([this](StepDone&& done) { hold(std::move(done)); });
  }

  void use_kv(const KvView& kv, const KvStreams& streams) override { executor_->use_kv(kv, streams); }
  void use_states(const StateView& states) override { executor_->use_states(states); }
  void announce(const Adapter& adapter) override {
    ranks_.announce(adapter);
    executor_->announce(adapter);
  }
  AssistOffer assist_with(const Adapter& adapter) override { return executor_->assist_with(adapter); }
  AssistState assist_state() const override { return executor_->assist_state(); }
  void withdraw(AdapterVersionId version) override {
    ranks_.withdraw(version);
    executor_->withdraw(version);
  }
  Status reserve_vocab(int32_t vocab) override { return executor_->reserve_vocab(vocab); }
  void start(const StepBatch& batch) override {
    const int64_t now_ns = clock_.now_ns();
    const int64_t begin_ns = std::exchange(follows_, true) ? end_ns_ : now_ns;
    due_ns_ = begin_ns + pace_ns(step_.predict_s(features_of(batch, ranks_)));
    executor_->start(batch);
  }
  StepResult result() const override { return executor_->result(); }
  void idle() override {
    follows_ = false;
    executor_->idle();
  }
  PaceState pace() const override {
    return {.profile = name_,
            .late_steps = late_steps_.load(std::memory_order_relaxed),
            .late_s = static_cast<double>(late_ns_.load(std::memory_order_relaxed)) * 1e-9};
  }
  Status ready() override { return executor_->ready(); }
  Status accepts(const Adapter& adapter) const override { return executor_->accepts(adapter); }
  DeviceTier* device_tier() override { return tier_; }
  int32_t kv_blocks() const override { return executor_->kv_blocks(); }
  int64_t adapter_bytes() const override { return executor_->adapter_bytes(); }
  const ModelLimits& limits() const override { return executor_->limits(); }
  bool chooses_tokens() const override { return executor_->chooses_tokens(); }
  ModelTimes times() const override { return executor_->times(); }
  int64_t streamed_bytes() const override { return executor_->streamed_bytes(); }

 private:
  void hold(StepDone&& done) {
    if (!done.status.ok()) {
      end_ns_ = clock_.now_ns();
      return end_step(std::move(done));
    }
    const int64_t due_ns = due_ns_ + done.waits.ns;
    if (clock_.now_ns() < due_ns) wait_(due_ns);
    const int64_t now_ns = clock_.now_ns(), late_ns = now_ns - due_ns;
    end_ns_ = std::min(now_ns, due_ns);  // before it is due only where nobody waits any more
    if (late_ns > kPaceSlackNs) {
      end_ns_ = now_ns;
      late_steps_.fetch_add(1, std::memory_order_relaxed);
      late_ns_.fetch_add(late_ns, std::memory_order_relaxed);
    }
    end_step(std::move(done));
  }

  const std::unique_ptr<Executor> executor_;
  const std::string name_;
  const StepModel step_;
  const Clock& clock_;
  const PaceWait wait_;
  DeviceTier* const tier_;
  AdapterRanks ranks_;
  // Of the step under way, and of the one before it. Written by whoever ends a step, and
  // by start() when that has been heard of.
  int64_t due_ns_ = 0, end_ns_ = 0;
  bool follows_ = false;  // the next step follows the last one at once
  std::atomic<uint64_t> late_steps_{0};
  std::atomic<int64_t> late_ns_{0};
};

// One adapter at a time goes over it.
class PacedLink {
 public:
  // When it has come that is there to go from so late on.
  int64_t pass(int64_t from_ns, int64_t ns) {
    const std::lock_guard lock(mutex_);
    free_at_ns_ = std::min(std::max(free_at_ns_, from_ns) + ns, static_cast<int64_t>(4 * kNsMost));
    return free_at_ns_;
  }

 private:
  std::mutex mutex_;
  int64_t free_at_ns_ = 0;
};

}  // namespace

void PaceSleep::until(int64_t steady_ns) {
  const std::chrono::steady_clock::time_point end{std::chrono::nanoseconds(steady_ns)};
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, end, [this] { return stopped_; });
}

void PaceSleep::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

Profile told_pace(Profile profile, bool has_device) {
  profile.source += (profile.source.empty() ? "" : "; ") + std::string("the pace of a server that computes elsewhere");
  if (has_device || !profile.link) return profile;
  if (profile.disk) {
    profile.disk->seconds += profile.link->seconds;
    profile.disk->bytes_per_second = 1 / (1 / profile.disk->bytes_per_second + 1 / profile.link->bytes_per_second);
  } else {
    profile.disk = profile.link;
  }
  profile.link.reset();
  profile.model.layers = 0;  // they come as a whole
  profile.assist.reset();
  return profile;
}

std::unique_ptr<Executor> make_paced_executor(std::unique_ptr<Executor> executor, const Profile& profile,
                                              const Clock& clock, PaceWait wait) {
  return std::make_unique<PacedExecutor>(std::move(executor), profile, clock, std::move(wait));
}

AdapterSource paced_adapters(AdapterSource source, const Profile& profile, bool has_device, const Clock& clock,
                             PaceWait wait) {
  source.load = [load = std::move(source.load), disk = profile.disk,
                 link = has_device ? std::optional<TransferCost>() : profile.link,
                 rank_bytes = profile.model.adapter_bytes_per_rank, lane = std::make_shared<PacedLink>(), &clock,
                 wait = std::move(wait)](const std::string& path, const AdapterLoadOptions& options,
                                         AdapterVersionId version) -> Result<AdapterLoad> {
    const int64_t begin_ns = clock.now_ns();
    Result<AdapterLoad> loaded = load(path, options, version);
    if (!loaded.ok() || loaded->adapter == nullptr) return loaded;
    const int64_t bytes = loaded->adapter->rank_max * rank_bytes;
    int64_t due_ns = begin_ns + (disk ? pace_ns(disk->predict_s(bytes)) : 0);
    if (link) due_ns = lane->pass(due_ns, pace_ns(link->predict_s(bytes)));
    if (clock.now_ns() < due_ns) wait(due_ns);
    return loaded;
  };
  return source;
}

}  // namespace loralei
