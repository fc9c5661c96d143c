// SPDX-License-Identifier: Apache-2.0
#include "engine/emulated/adapter_copy.h"

#include "base/check.h"
#include "ops/lora_factors.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kFloatBytes = sizeof(float);

int64_t view_bytes(const WeightView& view) {
  if (view.empty()) return 0;
  CHECK(view.panels.size() == 1 && view.layout == LayoutId::kPlain && !is_quantised(view.dtype));
  return view.rows * row_bytes(view.dtype, view.cols);
}

// Calls visit(pointer, bytes) for each array of a pair.
template <typename Pair, typename Visit>
void visit_pair(Pair& pair, Visit& visit) {
  if (pair.rank > 0) {
    visit(pair.a, pair.rank * lora_a_stride_bytes(pair));
    visit(pair.b_t, pair.rank * lora_b_stride_bytes(pair));
    visit(pair.a_scale, pair.rank * lora_quant_groups(pair.in) * kFloatBytes);
    visit(pair.b_scale, pair.rank * lora_quant_groups(pair.out) * kFloatBytes);
  }
  visit(pair.b_bias, pair.out * kFloatBytes);
  visit(pair.bias_delta, pair.out * kFloatBytes);
}

// The same for each array of an adapter, in the order of a pass; end_layer() behind those
// of each layer. `embed` and `lm_head` are the bytes of its full matrices. An array that
// two matrices share is visited as often.
template <typename AnyAdapter, typename Bytes, typename Visit, typename EndLayer>
void visit_arrays(AnyAdapter& adapter, Bytes& embed, Bytes& lm_head, const CopyShape& shape, Visit visit,
                  EndLayer end_layer) {
  auto& pairs = adapter.pairs;
  auto& saved = adapter.saved;
  const auto layers = static_cast<size_t>(shape.layers);
  CHECK(pairs.size() == layers * kLayerModules + 2);
  const int64_t hidden_bytes = shape.hidden * kFloatBytes;
  const auto visit_norm = [&](LayerNorm norm, size_t layer) {
    auto& norms = saved.norms[static_cast<size_t>(norm)];
    if (!norms.empty()) visit(norms[layer], shape.norms[static_cast<size_t>(norm)] * kFloatBytes);
  };
  visit_pair(pairs[layers * kLayerModules + 1], visit);
  visit(embed, view_bytes(saved.embed));
  visit(saved.embed_rows, std::ssize(saved.embed_tokens) * hidden_bytes);
  for (size_t layer = 0; layer < layers; ++layer) {
    visit_norm(LayerNorm::kInput, layer);
    for (size_t module = 0; module < kLayerModules; ++module) visit_pair(pairs[layer * kLayerModules + module], visit);
    for (const LayerNorm norm :
         {LayerNorm::kQ, LayerNorm::kK, LayerNorm::kAttentionOut, LayerNorm::kFfnInput, LayerNorm::kFfnOut})
      visit_norm(norm, layer);
    end_layer();
  }
  visit(saved.final_norm, hidden_bytes);
  visit_pair(pairs[layers * kLayerModules], visit);
  visit(lm_head, view_bytes(saved.lm_head));
  visit(saved.head_rows, std::ssize(saved.head_tokens) * hidden_bytes);
  end_layer();
}

const std::byte* data_of(const WeightView& view) { return view.empty() ? nullptr : view.panels[0].data; }
WeightPanel panel_of(const WeightView& view) { return view.empty() ? WeightPanel() : view.panels[0]; }

// A tied head is the embedding.
const std::byte* own_head(const SavedTensors& saved) {
  const std::byte* const head = data_of(saved.lm_head);
  return head == data_of(saved.embed) ? nullptr : head;
}

int64_t place_bytes(const void* array, int64_t bytes) {
  return array == nullptr ? 0 : (bytes + kAlign - 1) / kAlign * kAlign;
}

// The source, with all that steps read of it but its storage.
std::unique_ptr<AdapterCopy> value_of(const Adapter& source) {
  auto copy = std::make_unique<AdapterCopy>();
  Adapter& adapter = copy->adapter;
  adapter.version = source.version;
  adapter.digest = source.digest;
  adapter.bytes = source.bytes;
  adapter.rank_max = source.rank_max;
  adapter.vocab = source.vocab;
  adapter.pairs = source.pairs;
  adapter.saved = source.saved;
  adapter.alora_invocation = source.alora_invocation;
  copy->embed = panel_of(source.saved.embed);
  copy->lm_head = panel_of(source.saved.lm_head);
  if (!source.saved.embed.empty()) adapter.saved.embed.panels = {&copy->embed, 1};
  if (!source.saved.lm_head.empty()) adapter.saved.lm_head.panels = {&copy->lm_head, 1};
  return copy;
}

}  // namespace

CopyShape copy_shape_of(const ModelConfig& config) {
  CopyShape shape{.layers = config.layers, .hidden = config.hidden};
  for (size_t norm = 0; norm < kLayerNorms; ++norm)
    shape.norms[norm] = norm_width(config, static_cast<LayerNorm>(norm));
  return shape;
}

int64_t copy_bytes(const Adapter& source, const CopyShape& shape) {
  int64_t sum = 0;
  const std::byte* const embed = data_of(source.saved.embed);
  const std::byte* const lm_head = own_head(source.saved);
  visit_arrays(
      source, embed, lm_head, shape, [&](const auto* array, int64_t bytes) { sum += place_bytes(array, bytes); },
      [] {});
  return sum;
}

CopyPlan plan_copy(const Adapter& source, const CopyShape& shape, std::byte* to) {
  CopyPlan plan;
  plan.copy = value_of(source);
  const bool tied = !source.saved.embed.empty() && data_of(source.saved.lm_head) == data_of(source.saved.embed);
  const std::byte* lm_head = own_head(source.saved);
  int64_t at = 0;
  size_t before = 0;
  visit_arrays(
      plan.copy->adapter, plan.copy->embed.data, lm_head, shape,
      [&]<typename T>(const T*& array, int64_t bytes) {
        if (array == nullptr) return;
        plan.parts.push_back({reinterpret_cast<const std::byte*>(array), to + at, bytes});
        array = reinterpret_cast<const T*>(to + at);
        at += place_bytes(array, bytes);
      },
      [&] {
        plan.layer_parts.push_back(static_cast<int32_t>(plan.parts.size() - before));
        before = plan.parts.size();
      });
  plan.copy->lm_head.data = tied ? plan.copy->embed.data : lm_head;
  return plan;
}

}  // namespace loralei
