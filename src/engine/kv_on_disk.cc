// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_on_disk.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "base/sha256.h"
#include "base/units.h"
#include "model/model.h"

namespace loralei {

KvDiskOptions kv_disk_sizes(const EngineOptions& options, const KvShape& shape) {
  constexpr int64_t kWritten = 16, kRead = 64, kCodedOfBlock = 8;  // blocks at once; how many encoded ones take one
  const int64_t block = kv_block_bytes(shape);
  const bool encodes = options.kv_sharing >= KvSharing::kBounded && !has_vector_scale(shape.dtype);
  KvDiskOptions disk;
  disk.folder = options.kv_dir;
  disk.bytes_most = options.kv_dir_bytes;
  disk.record_bytes_most = block;
  disk.record_bytes_usual = encodes ? block / kCodedOfBlock : block;
  disk.write_buffer_bytes = std::clamp<int64_t>(kWritten * block, kMiB, 16 * kMiB);
  disk.read_buffer_bytes = std::clamp<int64_t>(kRead * block, 2 * kMiB, 32 * kMiB);
  return disk;
}

Digest kv_disk_format(const std::string& fingerprint, const EngineOptions& options, const ModelConfig& config,
                      const KvShape& shape, int64_t max_model_len) {
  Sha256 sum;
  const auto add = [&sum](const auto& value) { sum.update(std::as_bytes(std::span(&value, 1))); };
  const auto add_all = [&](const auto& values) {
    add(static_cast<uint64_t>(values.size()));
    sum.update(std::as_bytes(std::span(values)));
  };
  add_all(fingerprint);
  add(options.adapter_int8);
  add_all(config.architecture);
  for (const int number : {config.hidden, config.heads, config.ffn}) add(number);
  add(config.rms_eps);
  for (const bool has :
       {config.qkv_bias, config.o_bias, config.mlp_bias, config.whole_qk_norm, config.centred_norms, config.gated})
    add(has);
  add(config.activation);
  for (const std::string_view name : config.norm_names) add_all(name);
  add_all(config.sliding);
  add_all(config.unturned);
  for (const double scale : {config.embed_scale, config.residual_scale, config.attention_scale}) add(scale);
  for (const int32_t number : {shape.layers, shape.kv_heads, shape.head_dim, static_cast<int32_t>(shape.dtype),
                               shape.streams.dim, shape.streams.levels})
    add(number);
  for (const int32_t layer : shape.streams.layers) add(layer);
  const RopeTable rope = make_rope_table(config, max_model_len);
  add(rope.attention_scale);
  add_all(rope.inv_freq);
  // What models had not before, each behind its name: the others keep their files.
  const auto add_named = [&](std::string_view name, const auto& value) {
    add_all(name);
    add(value);
  };
  if (config.attention_cap != 0) add_named("attention_cap", config.attention_cap);
  if (config.norm_plus_one) add_named("norm_plus_one", config.norm_plus_one);
  if (config.activation != Activation::kSilu) add_named("activation", config.activation);
  if (config.sliding_rope) {
    add_all(std::string_view("sliding_rope"));
    const RopeTable sliding = make_rope_table(with_sliding_rope(config), max_model_len);
    add(sliding.attention_scale);
    add_all(sliding.inv_freq);
  }
  if (const ExpertConfig& experts = config.experts; experts.count > 0) {
    add_all(std::string_view("experts"));
    for (const int number : {experts.count, experts.used, experts.width, experts.shared_width}) add(number);
    add(experts.normed);
    add_all(experts.dense);
    if (experts.biased) add_named("experts_biased", experts.biased);
  }
  if (config.sinks) add_named("sinks", config.sinks);
  if (config.activation == Activation::kClamped) {
    add_named("clamp_alpha", config.clamp.alpha);
    add_named("clamp_limit", config.clamp.limit);
  }
  if (config.attention_gate) add_named("attention_gate", config.attention_gate);
  if (const LinearConfig& linear = config.linear; has_linear(config)) {
    add_all(std::string_view("linear"));
    add_all(linear.layers);
    for (const int number : {linear.k_heads, linear.v_heads, linear.key_dim, linear.value_dim, linear.kernel})
      add(number);
    add(linear.tiled);
  }
  return sum.finish();
}

}  // namespace loralei
