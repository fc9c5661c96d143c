// SPDX-License-Identifier: Apache-2.0
#include "engine/arriving_inputs.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace loralei {
namespace {

bool has_pair(const LoraPair& pair) { return pair.rank > 0 || pair.bias_delta != nullptr; }

bool has_module_of(const Adapter& adapter, const LayerInput& input) {
  return std::any_of(input.modules.begin(), input.modules.end(),
                     [&](Module module) { return has_pair(adapter.pair(input.layer, module)); });
}

bool has_norm_of(const SavedTensors& saved, int32_t layer) {
  return std::any_of(saved.norms.begin(), saved.norms.end(), [layer](const std::vector<const float*>& norms) {
    return !norms.empty() && norms[static_cast<size_t>(layer)] != nullptr;
  });
}

bool has_head(const Adapter& adapter) {
  const SavedTensors& saved = adapter.saved;
  return has_pair(adapter.head_pair()) || saved.final_norm != nullptr || !saved.lm_head.empty() ||
         !saved.head_tokens.empty();
}

bool has_embedding(const Adapter& adapter) {
  return has_pair(adapter.embed_pair()) || !adapter.saved.embed.empty() || !adapter.saved.embed_tokens.empty();
}

}  // namespace

void ArrivingInputs::begin(int64_t wait_at_most_ns, LayerAssist* assist) {
  arriving_.clear();
  elsewhere_.clear();
  assist_ = assist;
  left_ns_ = wait_at_most_ns;
  assisted_layer_ = -1;
  waits_ = {};
}

void ArrivingInputs::add(int32_t slot, const Adapter& adapter, std::shared_ptr<const Arrivals> arrivals,
                         bool whole_for_results) {
  arriving_.push_back({slot, &adapter, std::move(arrivals), whole_for_results});
}

const ArrivingInputs::Arriving* ArrivingInputs::find(int32_t slot) const {
  const auto found = std::find_if(arriving_.begin(), arriving_.end(),
                                  [slot](const Arriving& arriving) { return arriving.slot == slot; });
  return found == arriving_.end() ? nullptr : &*found;
}

Status ArrivingInputs::wait(const Arriving& arriving, int32_t pieces) {
  if (arriving.arrivals->there() >= pieces) return {};
  const SteadyClock clock;
  const int64_t begin_ns = clock.now_ns();
  const bool there = arriving.arrivals->wait(pieces, left_ns_);
  const int64_t waited_ns = clock.now_ns() - begin_ns;
  left_ns_ = std::max<int64_t>(0, left_ns_ - waited_ns);
  waits_.ns += waited_ns;
  ++waits_.layers;
  if (there) return {};
  waits_.ended_by = arriving.adapter->version;
  TRY(arriving.arrivals->status());
  return Error{ErrorCode::kUnavailable, "a layer of an adapter that is on its way was late"};
}

Status ArrivingInputs::reach(int32_t layer) {
  for (const Arriving& arriving : arriving_) {
    const Adapter& adapter = *arriving.adapter;
    const int32_t total = arriving.arrivals->total();
    if (layer == kEmbeddingLayer) {
      if (has_embedding(adapter)) TRY(wait(arriving, 1));
    } else if (layer == layers_) {
      if (arriving.whole_for_results || has_head(adapter)) TRY(wait(arriving, total));
    } else if (has_norm_of(adapter.saved, layer)) {
      TRY(wait(arriving, layer + 1));
    }
  }
  return {};
}

Status ArrivingInputs::publish(const LayerInput& input) {
  elsewhere_.clear();
  for (size_t index = 0; assist_ != nullptr && index < input.segments.size(); ++index) {
    const Arriving* const arriving = find(input.segments[index].slot);
    if (arriving == nullptr || !has_module_of(*arriving->adapter, input)) continue;
    if (arriving->arrivals->there() > input.layer || !assist_->knows(arriving->adapter->version)) continue;
    Result<AssistTicket> ticket = assist_->publish(arriving->adapter->version, input, input.segments[index]);
    if (ticket.ok()) elsewhere_.push_back({index, arriving, *std::move(ticket)});
  }
  count(input.layer);
  return {};
}

// Where helpers and the device have taken turns.
void ArrivingInputs::count(int32_t layer) {
  if (!elsewhere_.empty()) {
    waits_.assisted_layers += assisted_layer_ == layer ? 0 : 1;
    assisted_layer_ = layer;
    waits_.handover_layer = -1;
  } else if (assisted_layer_ >= 0 && assisted_layer_ < layer && waits_.handover_layer < 0) {
    waits_.handover_layer = layer;
  }
}

Status ArrivingInputs::add_here(const OpTable& ops, OpContext& context, const LayerInput& input,
                                std::span<const LoraTarget> targets, std::span<const LoraSegment> segments) {
  if (segments.empty()) return {};
  for (const Arriving& arriving : arriving_) {
    const bool used = std::any_of(segments.begin(), segments.end(),
                                  [&](const LoraSegment& segment) { return segment.slot == arriving.slot; });
    if (used && has_module_of(*arriving.adapter, input)) TRY(wait(arriving, input.layer + 1));
  }
  LoraArgs args;
  args.x = input.x;
  args.x_stride = input.x_stride;
  args.in = input.in;
  args.segments = segments;
  args.targets = targets;
  ops.lora(context, args);
  return {};
}

Status ArrivingInputs::add(const OpTable& ops, OpContext& context, const LayerInput& input,
                           std::span<const LoraTarget> targets) {
  size_t next = 0;
  for (Elsewhere& one : elsewhere_) {
    TRY(add_here(ops, context, input, targets, input.segments.subspan(next, one.segment - next)));
    next = one.segment + 1;
    const LoraSegment& segment = input.segments[one.segment];
    const Status helped = assist_->collect(one.ticket, one.arriving->adapter->version, input, segment, targets, context,
                                           LayerAssist::kLateNs);
    if (!helped.ok()) TRY(add_here(ops, context, input, targets, {&segment, 1}));
  }
  elsewhere_.clear();
  return add_here(ops, context, input, targets, input.segments.subspan(next));
}

}  // namespace loralei
