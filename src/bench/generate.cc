// SPDX-License-Identifier: Apache-2.0
#include "bench/generate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bench/generated_file.h"
#include "formats/family.h"

namespace loralei {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr double kRouterSkew = 0.35;

// A quantisation as llama-quantize names it: the format of most matrices, and of
// those it makes finer.
struct Recipe {
  const char* name;
  DType most;
  DType head;            // output.weight
  DType finer;           // attn_v and ffn_down of the layers that more_bits() picks
  uint32_t file_type;    // general.file_type of the format
  DType fused = most;    // attn_qkv
  bool of_bf16 = false;  // f16 numbers are numbers of bf16 too, as in models trained in bf16
};
constexpr Recipe kRecipes[] = {
    {"f32", DType::kF32, DType::kF32, DType::kF32, 0},
    {"f16", DType::kF16, DType::kF16, DType::kF16, 1},
    {"f16_of_bf16", DType::kF16, DType::kF16, DType::kF16, 1, DType::kF16, true},
    {"bf16", DType::kBF16, DType::kBF16, DType::kBF16, 32},
    {"q8_0", DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, 7},
    {"q4_0", DType::kQ4_0, DType::kQ6_K, DType::kQ4_0, 2},
    {"q4_1", DType::kQ4_1, DType::kQ6_K, DType::kQ4_1, 3},
    {"q5_0", DType::kQ5_0, DType::kQ6_K, DType::kQ5_0, 8},
    {"q5_1", DType::kQ5_1, DType::kQ6_K, DType::kQ5_1, 9},
    {"q4_k_m", DType::kQ4_K, DType::kQ6_K, DType::kQ6_K, 15, DType::kQ5_K},
    {"q5_k", DType::kQ5_K, DType::kQ6_K, DType::kQ5_K, 16},
    {"q6_k", DType::kQ6_K, DType::kQ6_K, DType::kQ6_K, 18},
    {"q2_k", DType::kQ2_K, DType::kQ6_K, DType::kQ3_K, 10},
    {"q3_k_m", DType::kQ3_K, DType::kQ6_K, DType::kQ4_K, 12, DType::kQ4_K},
    {"iq4_nl", DType::kIQ4_NL, DType::kQ6_K, DType::kIQ4_NL, 25},
    {"iq4_xs", DType::kIQ4_XS, DType::kQ6_K, DType::kIQ4_XS, 30},
    {"mxfp4", DType::kMXFP4, DType::kQ8_0, DType::kMXFP4, 38},
};

const Recipe* find_recipe(const std::string& name) {
  for (const Recipe& recipe : kRecipes) {
    if (name == recipe.name) return &recipe;
  }
  return nullptr;
}

// The layers that llama.cpp's mixtures keep finer (use_more_bits of llama-quant.cpp):
// the first and the last eighth and every third between.
bool more_bits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// What llama-quantize takes where rows are not whole blocks of a format.
DType that_fits(DType dtype, int64_t cols) {
  if (cols % dtype_info(dtype).block_elems == 0) return dtype;
  switch (dtype) {
    case DType::kQ2_K:
    case DType::kQ3_K:
      return DType::kQ4_0;
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    case DType::kIQ4_XS:
      return DType::kIQ4_NL;
    default:
      return DType::kQ8_0;
  }
}

class TensorList {
 public:
  explicit TensorList(const ModelConfig& config) : config_(config) {}
  std::vector<OutTensor> take() { return std::move(tensors_); }
  void of_layer(int layer) { prefix_ = "blk." + std::to_string(layer) + "."; }
  void matrix(const char* name, DType dtype, int64_t rows, int64_t cols, int64_t stacked = 1) {
    tensors_.push_back({prefix_ + name + ".weight", that_fits(dtype, cols), rows * stacked, cols, stacked});
  }
  void vector(const char* name, int64_t width) {
    tensors_.push_back({prefix_ + name + ".weight", DType::kF32, 1, width});
  }
  void norm(const char* name, LayerNorm which) {
    if (has_norm(config_, which)) vector(name, norm_width(config_, which));
  }

 private:
  const ModelConfig& config_;
  std::string prefix_;
  std::vector<OutTensor> tensors_;
};

const Family& family_of(const ModelConfig& config) {
  const Family* const family = family_of_type(config.architecture);
  CHECK(family != nullptr);
  return *family;
}

// The names of an architecture are those of llama.cpp's table; only those of shapes that
// bench_shape() has are known here.
void add_layer(const ModelConfig& config, const Recipe& recipe, int layer, TensorList& tensors) {
  const Family& family = family_of(config);
  const int64_t q = int64_t{config.heads} * config.head_dim, kv = int64_t{config.kv_heads} * config.head_dim;
  const int64_t hidden = config.hidden, ffn = config.ffn;
  const DType most = recipe.most, finer = more_bits(layer, config.layers) ? recipe.finer : most;
  tensors.of_layer(layer);
  tensors.norm("attn_norm", LayerNorm::kInput);
  if (family.fused) {
    tensors.matrix("attn_qkv", recipe.fused, q + 2 * kv, hidden);
  } else {
    tensors.matrix("attn_q", most, q, hidden);
    tensors.matrix("attn_k", most, kv, hidden);
    tensors.matrix("attn_v", finer, kv, hidden);
  }
  tensors.matrix("attn_output", most, hidden, q);
  tensors.norm("attn_q_norm", LayerNorm::kQ);
  tensors.norm("attn_k_norm", LayerNorm::kK);
  tensors.norm("post_attention_norm", LayerNorm::kAttentionOut);
  tensors.norm("ffn_norm", LayerNorm::kFfnInput);
  tensors.norm("post_ffw_norm", LayerNorm::kFfnOut);
  if (config.experts.count > 0) {
    const int64_t count = config.experts.count, width = config.experts.width;
    tensors.matrix("ffn_gate_inp", DType::kF32, count, hidden);
    tensors.matrix("ffn_gate_exps", most, width, hidden, count);
    tensors.matrix("ffn_up_exps", most, width, hidden, count);
    tensors.matrix("ffn_down_exps", finer, hidden, width, count);
    return;
  }
  if (!family.gguf_fused_up) tensors.matrix("ffn_gate", most, ffn, hidden);
  tensors.matrix("ffn_up", most, family.gguf_fused_up ? 2 * ffn : ffn, hidden);
  tensors.matrix("ffn_down", finer, hidden, ffn);
}

std::vector<OutTensor> gguf_tensors(const ModelConfig& config, const Recipe& recipe) {
  TensorList tensors(config);
  tensors.matrix("token_embd", config.tied_head ? recipe.head : recipe.most, config.vocab, config.hidden);
  tensors.vector("output_norm", config.hidden);
  if (!config.tied_head) tensors.matrix("output", recipe.head, config.vocab, config.hidden);
  for (int layer = 0; layer < config.layers; ++layer) add_layer(config, recipe, layer, tensors);
  return tensors.take();
}

// Factors of a router's rows in a model whose experts are not used alike: a random order
// of the experts, the n-th of which has n^-kRouterSkew.
std::vector<float> router_factors(const ModelConfig& config, int layer) {
  std::vector<float> factors;
  for (int expert = 0; expert < config.experts.count; ++expert)
    factors.push_back(static_cast<float>(std::pow(1.0 + expert, -kRouterSkew)));
  Prng prng(static_cast<uint64_t>(layer) + 1);
  for (size_t left = factors.size(); left > 1; --left) std::swap(factors[left - 1], factors[prng.below(left)]);
  return factors;
}

void scale_rows(std::span<std::byte> chunk, const OutTensor& tensor, int64_t first, std::span<const float> factors) {
  CHECK(tensor.dtype == DType::kF32);
  const auto row = static_cast<size_t>(tensor.cols);
  for (size_t begin = 0; begin < chunk.size(); begin += row * sizeof(float), ++first) {
    for (size_t i = 0; i < row; ++i) {
      float value;
      std::byte* const at = chunk.data() + begin + i * sizeof(float);
      std::memcpy(&value, at, sizeof value);
      value *= factors[static_cast<size_t>(first)];
      std::memcpy(at, &value, sizeof value);
    }
  }
}

GgufMetadata model_metadata(const ModelConfig& config, const Recipe& recipe) {
  GgufMetadata metadata;
  const std::string architecture(family_of(config).gguf_name);
  const auto key = [&architecture](const char* name) { return architecture + "." + name; };
  metadata.text("general.architecture", architecture);
  metadata.u32("general.file_type", recipe.file_type);
  metadata.u32(key("context_length").c_str(), static_cast<uint32_t>(config.max_position));
  metadata.u32(key("embedding_length").c_str(), static_cast<uint32_t>(config.hidden));
  metadata.u32(key("block_count").c_str(), static_cast<uint32_t>(config.layers));
  metadata.u32(key("feed_forward_length").c_str(), static_cast<uint32_t>(config.ffn));
  metadata.u32(key("attention.head_count").c_str(), static_cast<uint32_t>(config.heads));
  metadata.u32(key("attention.head_count_kv").c_str(), static_cast<uint32_t>(config.kv_heads));
  metadata.u32(key("rope.dimension_count").c_str(), static_cast<uint32_t>(config.head_dim));
  metadata.u32(key("vocab_size").c_str(), static_cast<uint32_t>(config.vocab));
  metadata.f32(key("attention.layer_norm_rms_epsilon").c_str(), static_cast<float>(config.rms_eps));
  metadata.f32(key("rope.freq_base").c_str(), static_cast<float>(config.rope_theta));
  if (!config.sliding.empty()) {
    const int32_t window = *std::max_element(config.sliding.begin(), config.sliding.end());
    metadata.u32(key("attention.sliding_window").c_str(), static_cast<uint32_t>(window));
  }
  if (config.head_dim * config.heads != config.hidden) {
    metadata.u32(key("attention.key_length").c_str(), static_cast<uint32_t>(config.head_dim));
    metadata.u32(key("attention.value_length").c_str(), static_cast<uint32_t>(config.head_dim));
  }
  if (config.experts.count > 0) {
    metadata.u32(key("expert_count").c_str(), static_cast<uint32_t>(config.experts.count));
    metadata.u32(key("expert_used_count").c_str(), static_cast<uint32_t>(config.experts.used));
    metadata.u32(key("expert_feed_forward_length").c_str(), static_cast<uint32_t>(config.experts.width));
  }
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (int id = 0; id < config.vocab; ++id) {
    static constexpr const char* kSpecial[] = {"<unk>", "<s>", "</s>"};
    char text[32];
    if (id >= 3) std::snprintf(text, sizeof text, id < 259 ? "<0x%02X>" : "\xE2\x96\x81w%d", id < 259 ? id - 3 : id);
    tokens.push_back(id < 3 ? kSpecial[id] : text);
    scores.push_back(static_cast<float>(-id));
    types.push_back(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1);
  }
  metadata.text("tokenizer.ggml.model", "llama");
  metadata.texts("tokenizer.ggml.tokens", tokens);
  metadata.f32s("tokenizer.ggml.scores", scores);
  metadata.i32s("tokenizer.ggml.token_type", types);
  metadata.u32("tokenizer.ggml.bos_token_id", 1);
  metadata.u32("tokenizer.ggml.eos_token_id", 2);
  metadata.u32("general.alignment", kGgufAlignment);
  return metadata;
}

Status write_gguf(const std::string& path, const ModelConfig& config, bool skewed, const Recipe& recipe,
                  const Progress& progress) {
  Writer out(path);
  if (!out.ok()) return io_error("Cannot write '" + path + "'; choose another folder with --cache-dir.");
  const std::vector<OutTensor> tensors = gguf_tensors(config, recipe);
  const int64_t total = write_gguf_head(out, model_metadata(config, recipe), tensors);
  WeightSource source(1, recipe.of_bf16);
  std::vector<std::byte> chunk;
  int64_t done = 0;
  int routers = 0;
  for (const OutTensor& tensor : tensors) {
    const bool skews = skewed && tensor.name.find(".ffn_gate_inp.") != std::string::npos;
    const int64_t row = row_bytes(tensor.dtype, tensor.cols);
    const int64_t rows_at_once = std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes) / row);
    for (int64_t begin = 0; begin < tensor.rows; begin += rows_at_once) {
      chunk.resize(static_cast<size_t>(std::min(rows_at_once, tensor.rows - begin) * row));
      if (tensor.rows == 1) {
        const std::vector<float> ones(static_cast<size_t>(tensor.cols), 1.0f);
        std::memcpy(chunk.data(), ones.data(), chunk.size());
      } else {
        source.fill(tensor.dtype, chunk.data(), chunk.size());
      }
      if (skews) scale_rows(chunk, tensor, begin, router_factors(config, routers));
      out.bytes(chunk.data(), chunk.size());
      done += static_cast<int64_t>(chunk.size());
      if (progress) progress(done, total);
    }
    out.pad_to(kGgufAlignment);
    routers += skews ? 1 : 0;
  }
  if (!out.close()) return io_error("Writing '" + path + "' failed; is the disk full?");
  return {};
}

}  // namespace

Result<std::string> generated_model(const std::string& cache_dir, const std::string& shape, const std::string& quant,
                                    const Progress& progress) {
  TRY_ASSIGN(const ModelConfig config, bench_shape(shape));
  const Recipe* const recipe = find_recipe(quant);
  if (recipe == nullptr) {
    std::string names;
    for (const Recipe& each : kRecipes) names += (names.empty() ? "" : ", ") + std::string(each.name);
    return invalid_argument("A generated model cannot be '" + quant + "'; choose one of " + names + ".");
  }
  return make_once(cache_dir + "/" + shape + "-" + quant + ".gguf", [&](const std::string& unfinished) {
    return write_gguf(unfinished, config, is_skewed_shape(shape), *recipe, progress);
  });
}

}  // namespace loralei
