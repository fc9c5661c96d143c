// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/arriving_layers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/clock.h"

namespace loralei {
namespace {

constexpr auto kLookAgain = std::chrono::microseconds(20);

bool has_norm(const SavedTensors& saved, int32_t layer) {
  return std::any_of(saved.norms.begin(), saved.norms.end(), [layer](const std::vector<const float*>& norms) {
    return !norms.empty() && norms[static_cast<size_t>(layer)] != nullptr;
  });
}

bool has_head(const SavedTensors& saved) {
  return saved.final_norm != nullptr || !saved.lm_head.empty() || !saved.head_tokens.empty();
}

}  // namespace

void ArrivingLayers::begin(const ModelBatch& batch, int64_t wait_at_most_ns, LayerSums* sums) {
  batch_ = &batch;
  sums_ = sums;
  exchange_.begin(sums);
  host_rows_ = 0;
  sent_ = false;
  assisted_layer_ = -1;
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
  Arriving& one = arriving_.emplace_back();
  one.slot = slot;
  one.version = version;
  one.way = way;
  one.saved = run == batch_->overrides.end() ? nullptr : run->saved;
  one.apart = sums_ != nullptr && sums_->computes(version) && one.saved == nullptr && fits_the_host(slot);
}

bool ArrivingLayers::fits_the_host(int32_t slot) {
  int64_t rows = 0;
  for (const LoraSegment& segment : batch_->segments) rows += segment.slot == slot ? segment.row_count : 0;
  if (rows == 0 || host_rows_ + rows > exchange_.rows_max()) return false;
  host_rows_ += static_cast<int32_t>(rows);
  return true;
}

bool ArrivingLayers::is_apart_slot(int32_t slot) const {
  return std::any_of(arriving_.begin(), arriving_.end(),
                     [slot](const Arriving& one) { return one.apart && one.slot == slot; });
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

Status ArrivingLayers::reach_pairs(CudaStream& stream, std::span<const size_t> modules, size_t of) {
  return reach(stream, layer_of(modules.front()), [&](const Arriving& one) {
    const auto index = static_cast<size_t>(&one - arriving_.data());
    if (of == kNotApart ? one.apart : of != kAll && of != index) return false;
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
  TRY(serve(exchange_.published()));
  for (const Arriving& one : arriving_) {
    if (one.saved == nullptr || one.saved->head_tokens.empty()) continue;
    while (!one.way.gate->has(static_cast<uint32_t>(layers_) + 1)) {
      TRY(poll());
      std::this_thread::sleep_for(kLookAgain);
    }
  }
  return {};
}

// --- what the host computes

Status ArrivingLayers::publish(CudaStream& stream, std::span<const CudaProduct> products,
                               std::span<const size_t> modules, const CudaInput& input) {
  const int32_t layer = layer_of(modules.front());
  sent_ = false;
  for (Arriving& one : arriving_) {
    one.on_host = one.apart && !one.way.gate->has(static_cast<uint32_t>(layer) + 1) &&
                  std::any_of(modules.begin(), modules.end(), [&](size_t module) { return has_pair(one, module); });
    if (!one.on_host) continue;
    if (!sent_) exchange_.open(layer, input);
    sent_ = true;
    send(one, products, modules);
  }
  count(layer, sent_);
  const uint32_t before = exchange_.published() - (sent_ ? 1 : 0);
  if (!sent_) return serve(before);
  TRY(exchange_.publish(stream));
  TRY(mark(stream));
  const size_t sent = marks_ - 1;
  TRY(serve(before));
  sent_mark_ = sent;
  return {};
}

void ArrivingLayers::send(const Arriving& one, std::span<const CudaProduct> products, std::span<const size_t> modules) {
  std::array<int, LayerExchange::kModules> wanted{};
  for (size_t i = 0; i < modules.size(); ++i)
    wanted[i] = has_pair(one, modules[i]) ? static_cast<int>(modules[i] % kLayerModules) : LayerExchange::kNone;
  for (const LoraSegment& segment : batch_->segments)
    if (segment.slot == one.slot) exchange_.take(one.version, segment, products, {wanted.data(), modules.size()});
}

Status ArrivingLayers::add_sums(CudaStream& stream, std::span<const CudaProduct> products) {
  return sent_ ? exchange_.add(stream, products) : Status();
}

Status ArrivingLayers::serve(uint32_t number) {
  return exchange_.serve(number, [this]() -> Status {
    TRY(events_[sent_mark_].done());
    return poll();
  });
}

// Where the host and the device have taken turns.
void ArrivingLayers::count(int32_t layer, bool assisted) {
  if (assisted) {
    waits_.assisted_layers += assisted_layer_ == layer ? 0 : 1;
    assisted_layer_ = layer;
    waits_.handover_layer = -1;
  } else if (assisted_layer_ >= 0 && assisted_layer_ < layer && waits_.handover_layer < 0) {
    waits_.handover_layer = layer;
  }
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
  if (far()) TRY(serve(exchange_.published()));
  while (far()) {
    std::this_thread::sleep_for(kLookAgain);
    TRY(poll());
  }
  return {};
}

Status ArrivingLayers::settle() {
  TRY(serve(exchange_.published()));
  TRY(poll());
  while (first_missing() != nullptr) {
    std::this_thread::sleep_for(kLookAgain);
    TRY(poll());
  }
  return poll();
}

void ArrivingLayers::end() {
  exchange_.end();
  for (const Arriving& one : arriving_) one.way.gate->end();
}

void ArrivingLayers::close() {
  for (const Arriving& one : arriving_) one.way.gate->ended.store(0, std::memory_order_release);
  exchange_.close();
  arriving_.clear();
  batch_ = nullptr;
}

}  // namespace loralei
