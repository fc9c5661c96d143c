// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/arriving_layers.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/clock.h"

namespace loralei {
namespace {

constexpr auto kLookAgain = std::chrono::microseconds(20);

const float* norm_of(const std::vector<const float*>& norms, int32_t layer) {
  return norms.empty() ? nullptr : norms[static_cast<size_t>(layer)];
}

bool has_norm(const SavedTensors& saved, int32_t layer) {
  return norm_of(saved.input_norm, layer) != nullptr || norm_of(saved.post_attention_norm, layer) != nullptr ||
         norm_of(saved.q_norm, layer) != nullptr || norm_of(saved.k_norm, layer) != nullptr;
}

bool has_head(const SavedTensors& saved) {
  return saved.final_norm != nullptr || !saved.lm_head.empty() || !saved.head_tokens.empty();
}

}  // namespace

void ArrivingLayers::begin(const ModelBatch& batch, int64_t wait_at_most_ns) {
  batch_ = &batch;
  arriving_.clear();
  standing_.clear();
  marks_ = next_ = counted_ = 0;
  left_ns_ = wait_at_most_ns;
  stood_since_ns_ = 0;
  waits_ = {};
}

void ArrivingLayers::add(int32_t slot, const CudaAdapters::OnItsWay& way) {
  CHECK(way.arrivals->total() == layers_ + 1);
  const AdapterVersionId version = batch_->versions[static_cast<size_t>(slot)];
  const auto run = std::find_if(batch_->overrides.begin(), batch_->overrides.end(),
                                [version](const RowOverride& each) { return each.version == version; });
  arriving_.push_back({slot, version, way, run == batch_->overrides.end() ? nullptr : run->saved, 0});
}

// --- what the stream waits for

int32_t ArrivingLayers::layer_of(size_t module) const {
  const auto layer = static_cast<int32_t>(module / kLayerModules);
  const bool is_embedding = module == static_cast<size_t>(layers_) * kLayerModules + 1;
  return is_embedding ? kEmbeddingLayer : layer;
}

bool ArrivingLayers::has_pair(const Arriving& one, size_t module) const {
  const auto slots = static_cast<size_t>(batch_->slots);
  return batch_->sources != nullptr && batch_->sources[module * slots + static_cast<size_t>(one.slot)].pair != nullptr;
}

Status ArrivingLayers::mark(CudaStream& stream) {
  if (marks_ == events_.size()) {
    TRY_ASSIGN(CudaEvent event, CudaEvent::create());
    events_.push_back(std::move(event));
  }
  return stream.record(events_[marks_++]);
}

template <typename Reads>
Status ArrivingLayers::reach(CudaStream& stream, int32_t layer, Reads&& reads) {
  const int32_t pieces = std::max(layer, 0) + 1;
  bool marked = false;
  for (size_t i = 0; i < arriving_.size(); ++i) {
    Arriving& one = arriving_[i];
    if (one.reached >= pieces || !reads(one)) continue;
    one.reached = pieces;
    const auto count = static_cast<uint32_t>(pieces);
    if (one.way.gate->has(count)) continue;
    if (!marked) TRY(mark(stream));
    marked = true;
    TRY(stream.wait_for(*one.way.gate, count));
    standing_.push_back({i, count, marks_ - 1});
  }
  return {};
}

Status ArrivingLayers::reach_pairs(CudaStream& stream, std::span<const size_t> modules) {
  return reach(stream, layer_of(modules.front()), [&](const Arriving& one) {
    return std::any_of(modules.begin(), modules.end(), [&](size_t module) { return has_pair(one, module); });
  });
}

Status ArrivingLayers::reach_norms(CudaStream& stream, int32_t layer) {
  return reach(stream, layer,
               [layer](const Arriving& one) { return one.saved != nullptr && has_norm(*one.saved, layer); });
}

Status ArrivingLayers::reach_embedding(CudaStream& stream) {
  return reach(stream, kEmbeddingLayer, [](const Arriving& one) {
    return one.saved != nullptr && (!one.saved->embed.empty() || !one.saved->embed_tokens.empty());
  });
}

Status ArrivingLayers::reach_head(CudaStream& stream) {
  TRY(reach(stream, layers_, [](const Arriving& one) { return one.saved != nullptr && has_head(*one.saved); }));
  for (const Arriving& one : arriving_) {
    if (one.saved == nullptr || one.saved->head_tokens.empty()) continue;
    while (!one.way.gate->has(static_cast<uint32_t>(layers_) + 1)) {
      TRY(poll());
      std::this_thread::sleep_for(kLookAgain);
    }
  }
  return {};
}

// --- looking on

const ArrivingLayers::Wait* ArrivingLayers::first_missing() {
  while (next_ < standing_.size() && arriving_[standing_[next_].arriving].way.gate->has(standing_[next_].pieces))
    ++next_;
  return next_ == standing_.size() ? nullptr : &standing_[next_];
}

// The stream stands at the first wait for what is missing, if it has got there.
Status ArrivingLayers::poll() {
  const Wait* const wait = first_missing();
  bool stands = false;
  if (wait != nullptr) {
    TRY_ASSIGN(stands, events_[wait->event].done());
  }
  const int64_t now_ns = SteadyClock().now_ns();
  if (stood_since_ns_ != 0) {
    waits_.ns += now_ns - stood_since_ns_;
    left_ns_ -= now_ns - stood_since_ns_;
  }
  stood_since_ns_ = stands ? now_ns : 0;
  if (wait == nullptr) return {};
  if (stands && counted_ <= next_) {
    ++waits_.layers;
    counted_ = next_ + 1;
  }
  const Arriving& one = arriving_[wait->arriving];
  return one.way.arrivals->failed() || (stands && left_ns_ <= 0) ? give_up(one) : Status();
}

Status ArrivingLayers::give_up(const Arriving& one) {
  end();
  waits_.ended_by = one.version;
  TRY(one.way.arrivals->status());
  return Error{ErrorCode::kUnavailable, "a layer of an adapter that is on its way was late"};
}

Status ArrivingLayers::pace(int32_t layer) {
  const auto far = [&] {
    const Wait* const wait = first_missing();
    return wait != nullptr && static_cast<int32_t>(wait->pieces) + kAheadLayers <= layer;
  };
  TRY(poll());
  while (far()) {
    std::this_thread::sleep_for(kLookAgain);
    TRY(poll());
  }
  return {};
}

Status ArrivingLayers::settle() {
  TRY(poll());
  while (first_missing() != nullptr) {
    std::this_thread::sleep_for(kLookAgain);
    TRY(poll());
  }
  return poll();
}

void ArrivingLayers::end() {
  for (const Arriving& one : arriving_) one.way.gate->end();
}

void ArrivingLayers::close() {
  for (const Arriving& one : arriving_) one.way.gate->ended.store(0, std::memory_order_release);
  arriving_.clear();
  batch_ = nullptr;
}

}  // namespace loralei
