// SPDX-License-Identifier: Apache-2.0
#include "bench/generate.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "bench/generated_file.h"

namespace loralei {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;
// Of generated models: room for the long contexts that are measured; costs nothing
// where it is not used.
constexpr int kMaxPosition = 131072;

// A quantisation as llama-quantize names it: the format of most matrices, and of
// those it makes finer.
struct Recipe {
  const char* name;
  DType most;
  DType head;            // output.weight
  DType finer;           // attn_v and ffn_down of the layers that more_bits() picks
  uint32_t file_type;    // general.file_type of the format
  bool of_bf16 = false;  // f16 numbers are numbers of bf16 too, as in models trained in bf16
};
constexpr Recipe kRecipes[] = {
    {"f32", DType::kF32, DType::kF32, DType::kF32, 0},
    {"f16", DType::kF16, DType::kF16, DType::kF16, 1},
    {"f16_of_bf16", DType::kF16, DType::kF16, DType::kF16, 1, true},
    {"bf16", DType::kBF16, DType::kBF16, DType::kBF16, 32},
    {"q8_0", DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, 7},
    {"q4_0", DType::kQ4_0, DType::kQ6_K, DType::kQ4_0, 2},
    {"q4_1", DType::kQ4_1, DType::kQ6_K, DType::kQ4_1, 3},
    {"q5_0", DType::kQ5_0, DType::kQ6_K, DType::kQ5_0, 8},
    {"q5_1", DType::kQ5_1, DType::kQ6_K, DType::kQ5_1, 9},
    {"q4_k_m", DType::kQ4_K, DType::kQ6_K, DType::kQ6_K, 15},
    {"q5_k", DType::kQ5_K, DType::kQ6_K, DType::kQ5_K, 16},
    {"q6_k", DType::kQ6_K, DType::kQ6_K, DType::kQ6_K, 18},
    {"q2_k", DType::kQ2_K, DType::kQ6_K, DType::kQ3_K, 10},
    {"q3_k_m", DType::kQ3_K, DType::kQ6_K, DType::kQ4_K, 12},
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

// Of a layer of Qwen3-MoE: norms of queries and keys, the router, all experts of a kind
// in one tensor.
void add_experts(const ModelConfig& config, const std::string& prefix, DType most, DType finer,
                 std::vector<OutTensor>& tensors) {
  const int64_t count = config.experts.count, width = config.experts.width, hidden = config.hidden;
  tensors.push_back({prefix + "attn_q_norm.weight", DType::kF32, 1, config.head_dim});
  tensors.push_back({prefix + "attn_k_norm.weight", DType::kF32, 1, config.head_dim});
  tensors.push_back({prefix + "ffn_gate_inp.weight", DType::kF32, count, hidden});
  tensors.push_back({prefix + "ffn_gate_exps.weight", most, count * width, hidden, count});
  tensors.push_back({prefix + "ffn_up_exps.weight", most, count * width, hidden, count});
  tensors.push_back({prefix + "ffn_down_exps.weight", finer, count * hidden, width, count});
}

std::vector<OutTensor> gguf_tensors(const ModelConfig& config, const Recipe& recipe) {
  std::vector<OutTensor> tensors = {{"token_embd.weight", recipe.most, config.vocab, config.hidden},
                                    {"output_norm.weight", DType::kF32, 1, config.hidden},
                                    {"output.weight", recipe.head, config.vocab, config.hidden}};
  const int q = config.heads * config.head_dim;
  const int kv = config.kv_heads * config.head_dim;
  for (int layer = 0; layer < config.layers; ++layer) {
    const DType most = recipe.most;
    const DType finer = more_bits(layer, config.layers) ? recipe.finer : most;
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    tensors.push_back({prefix + "attn_norm.weight", DType::kF32, 1, config.hidden});
    tensors.push_back({prefix + "attn_q.weight", most, q, config.hidden});
    tensors.push_back({prefix + "attn_k.weight", most, kv, config.hidden});
    tensors.push_back({prefix + "attn_v.weight", finer, kv, config.hidden});
    tensors.push_back({prefix + "attn_output.weight", most, config.hidden, q});
    tensors.push_back({prefix + "ffn_norm.weight", DType::kF32, 1, config.hidden});
    if (config.experts.count > 0) {
      add_experts(config, prefix, most, finer, tensors);
      continue;
    }
    tensors.push_back({prefix + "ffn_gate.weight", most, config.ffn, config.hidden});
    tensors.push_back({prefix + "ffn_up.weight", most, config.ffn, config.hidden});
    tensors.push_back({prefix + "ffn_down.weight", finer, config.hidden, config.ffn});
  }
  return tensors;
}

GgufMetadata model_metadata(const ModelConfig& config, const Recipe& recipe) {
  GgufMetadata metadata;
  const std::string architecture = config.experts.count > 0 ? "qwen3moe" : "llama";
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
  if (config.experts.count > 0) {
    metadata.u32(key("attention.key_length").c_str(), static_cast<uint32_t>(config.head_dim));
    metadata.u32(key("attention.value_length").c_str(), static_cast<uint32_t>(config.head_dim));
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

Status write_gguf(const std::string& path, const ModelConfig& config, const Recipe& recipe, const Progress& progress) {
  Writer out(path);
  if (!out.ok()) return io_error("Cannot write '" + path + "'; choose another folder with --cache-dir.");
  const std::vector<OutTensor> tensors = gguf_tensors(config, recipe);
  const int64_t total = write_gguf_head(out, model_metadata(config, recipe), tensors);
  WeightSource source(1, recipe.of_bf16);
  std::vector<std::byte> chunk;
  int64_t done = 0;
  for (const OutTensor& tensor : tensors) {
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
      out.bytes(chunk.data(), chunk.size());
      done += static_cast<int64_t>(chunk.size());
      if (progress) progress(done, total);
    }
    out.pad_to(kGgufAlignment);
  }
  if (!out.close()) return io_error("Writing '" + path + "' failed; is the disk full?");
  return {};
}

}  // namespace

Result<ModelConfig> bench_shape(const std::string& name) {
  ModelConfig config;
  config.architecture = "llama";
  config.vocab = 32000;
  config.max_position = kMaxPosition;
  if (name == "llama-1b") {
    config.hidden = 2048, config.layers = 22, config.heads = 32, config.kv_heads = 4, config.ffn = 5632;
  } else if (name == "llama-7b") {
    config.hidden = 4096, config.layers = 32, config.heads = 32, config.kv_heads = 32, config.ffn = 11008;
  } else if (name == "llama3-1b") {  // of Llama 3.2: a vocabulary four times as large (its head is not tied here)
    config.hidden = 2048, config.layers = 16, config.heads = 32, config.kv_heads = 8, config.ffn = 8192;
    config.vocab = 128256;
  } else if (name == "llama-tiny") {
    config.hidden = 256, config.layers = 8, config.heads = 4, config.kv_heads = 2, config.ffn = 512;
  } else if (name == "llama-nano") {
    config.hidden = 64, config.layers = 2, config.heads = 2, config.kv_heads = 2, config.ffn = 128;
    config.vocab = 512;
  } else if (name == "qwen3-30b-a3b") {  // of Qwen3: 3.3 of 30.5 billion weights meet a token
    config.hidden = 2048, config.layers = 48, config.heads = 32, config.kv_heads = 4, config.ffn = 6144;
    config.head_dim = 128, config.vocab = 151936, config.rope_theta = 1e6;
    config.experts = {.count = 128, .used = 8, .width = 768, .normed = true};
  } else if (name == "moe-tiny") {
    config.hidden = 256, config.layers = 4, config.heads = 4, config.kv_heads = 2, config.ffn = 512;
    config.experts = {.count = 16, .used = 4, .width = 256, .normed = true};
  } else {
    return invalid_argument("Unknown --shape '" + name +
                            "'; choose llama-1b, llama3-1b, llama-7b, llama-tiny, llama-nano, qwen3-30b-a3b or "
                            "moe-tiny.");
  }
  if (config.experts.count > 0) config.architecture = "qwen3_moe";
  if (config.head_dim == 0) config.head_dim = config.hidden / config.heads;
  return config;
}

Result<std::string> generated_model(const std::string& cache_dir, const std::string& shape, const std::string& quant,
                                    const Progress& progress) {
  TRY_ASSIGN(const ModelConfig config, bench_shape(shape));
  const Recipe* const recipe = find_recipe(quant);
  if (recipe == nullptr) {
    std::string names;
    for (const Recipe& each : kRecipes) names += (names.empty() ? "" : ", ") + std::string(each.name);
    return invalid_argument("A generated model cannot be '" + quant + "'; choose one of " + names + ".");
  }
  return make_once(cache_dir + "/" + shape + "-" + quant + ".gguf",
                   [&](const std::string& unfinished) { return write_gguf(unfinished, config, *recipe, progress); });
}

}  // namespace loralei
