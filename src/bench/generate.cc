// SPDX-License-Identifier: Apache-2.0
#include "bench/generate.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/prng.h"
#include "bench/report.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr uint32_t kGgufAlignment = 32;

// Writes little-endian values and remembers the first failure.
class Writer {
 public:
  explicit Writer(const std::string& path) : file_(std::fopen(path.c_str(), "wb"), &std::fclose) {}
  bool ok() const { return ok_ && file_ != nullptr; }
  void bytes(const void* data, size_t size) {
    if (ok() && std::fwrite(data, 1, size, file_.get()) != size) ok_ = false;
    position_ += size;
  }
  template <typename T>
  void value(T number) {
    bytes(&number, sizeof number);
  }
  void text(const std::string& string) {
    value<uint64_t>(string.size());
    bytes(string.data(), string.size());
  }
  void pad_to(size_t alignment) {
    static constexpr char kZeros[64] = {};
    bytes(kZeros, (alignment - position_ % alignment) % alignment);
  }
  bool close() { return ok() && std::fclose(file_.release()) == 0; }
  size_t position() const { return position_; }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  bool ok_ = true;
  size_t position_ = 0;
};

// GGUF value types (specification of the format).
enum : uint32_t { kGgufU32 = 4, kGgufF32 = 6, kGgufString = 8, kGgufArray = 9, kGgufI32 = 5 };

uint32_t ggml_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ5_0:
      return 6;
    case DType::kQ5_1:
      return 7;
    case DType::kQ8_0:
      return 8;
    case DType::kQ4_K:
      return 12;
    case DType::kQ5_K:
      return 13;
    case DType::kQ6_K:
      return 14;
    case DType::kBF16:
      return 30;
  }
  return 0;
}

struct OutTensor {
  std::string name;
  DType dtype;
  int64_t rows, cols;  // cols is the fast dimension
  int64_t bytes() const { return rows * row_bytes(dtype, cols); }
};

// Fills bytes with numbers of about the spread of trained weights (uniform, sd 0.02), valid in every format.
class WeightSource {
 public:
  explicit WeightSource(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {
    for (uint32_t i = 0; i < 65536; ++i) {
      const float value = (static_cast<float>(i) - 32767.5f) / 32768.0f * 0.035f;
      bf16_[i] = f32_to_bf16(value);
      f16_[i] = f32_to_f16(value);
      f32_[i] = value;
    }
  }

  void fill(DType dtype, std::byte* out, size_t bytes) {
    switch (dtype) {
      case DType::kF32:
        return table(f32_, out, bytes);
      case DType::kF16:
        return table(f16_, out, bytes);
      case DType::kBF16:
        return table(bf16_, out, bytes);
      case DType::kQ8_0:
        return blocks(out, bytes, 34, 0, 0.035f / 127);
      case DType::kQ4_0:
        return blocks(out, bytes, 18, 0, 0.035f / 8);
      case DType::kQ6_K:
        return blocks(out, bytes, 210, 208, 0.035f / (32 * 64));
      default:
        CHECK(false);
    }
  }

 private:
  uint64_t next() {  // xorshift64*: fast, and only speed figures depend on it
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1DULL;
  }
  template <typename T>
  void table(const std::vector<T>& values, std::byte* out, size_t bytes) {
    T* const numbers = reinterpret_cast<T*>(out);
    const size_t count = bytes / sizeof(T);
    for (size_t i = 0; i < count; i += 4) {
      const uint64_t word = next();
      for (size_t j = 0; j < 4 && i + j < count; ++j) numbers[i + j] = values[(word >> (16 * j)) & 0xffff];
    }
  }
  // Random quants and a fixed f16 scale at `scale_offset` of each block. Sub-block scales of q6_k (bytes 192..207) are
  // made positive.
  void blocks(std::byte* out, size_t bytes, size_t block_bytes, size_t scale_offset, float scale) {
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
      const uint64_t word = next();
      std::memcpy(out + i, &word, 8);
    }
    const uint16_t bits = f32_to_f16(scale);
    for (size_t block = 0; block + block_bytes <= bytes; block += block_bytes) {
      std::memcpy(out + block + scale_offset, &bits, 2);
      if (block_bytes != 210) continue;
      for (size_t i = 192; i < 208; ++i) out[block + i] &= std::byte{0x3f};
    }
  }

  uint64_t state_;
  std::vector<uint16_t> bf16_ = std::vector<uint16_t>(65536), f16_ = std::vector<uint16_t>(65536);
  std::vector<float> f32_ = std::vector<float>(65536);
};

std::vector<OutTensor> gguf_tensors(const ModelConfig& config, DType dtype) {
  const DType head = dtype == DType::kQ4_0 ? DType::kQ6_K : dtype;
  std::vector<OutTensor> tensors = {{"token_embd.weight", dtype, config.vocab, config.hidden},
                                    {"output_norm.weight", DType::kF32, 1, config.hidden},
                                    {"output.weight", head, config.vocab, config.hidden}};
  const int q = config.heads * config.head_dim;
  const int kv = config.kv_heads * config.head_dim;
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    tensors.push_back({prefix + "attn_norm.weight", DType::kF32, 1, config.hidden});
    tensors.push_back({prefix + "attn_q.weight", dtype, q, config.hidden});
    tensors.push_back({prefix + "attn_k.weight", dtype, kv, config.hidden});
    tensors.push_back({prefix + "attn_v.weight", dtype, kv, config.hidden});
    tensors.push_back({prefix + "attn_output.weight", dtype, config.hidden, q});
    tensors.push_back({prefix + "ffn_norm.weight", DType::kF32, 1, config.hidden});
    tensors.push_back({prefix + "ffn_gate.weight", dtype, config.ffn, config.hidden});
    tensors.push_back({prefix + "ffn_up.weight", dtype, config.ffn, config.hidden});
    tensors.push_back({prefix + "ffn_down.weight", dtype, config.hidden, config.ffn});
  }
  return tensors;
}

uint32_t write_metadata(Writer& out, const ModelConfig& config, bool counting) {
  uint32_t count = 0;
  const auto u32 = [&](const char* key, uint32_t value) {
    if (!counting) out.text(key), out.value<uint32_t>(kGgufU32), out.value<uint32_t>(value);
    ++count;
  };
  const auto f32 = [&](const char* key, float value) {
    if (!counting) out.text(key), out.value<uint32_t>(kGgufF32), out.value<float>(value);
    ++count;
  };
  const auto string = [&](const char* key, const char* value) {
    if (!counting) out.text(key), out.value<uint32_t>(kGgufString), out.text(value);
    ++count;
  };
  const auto array = [&](const char* key, uint32_t type, auto&& write_item) {
    if (!counting) {
      out.text(key), out.value<uint32_t>(kGgufArray), out.value<uint32_t>(type);
      out.value<uint64_t>(static_cast<uint64_t>(config.vocab));
      for (int i = 0; i < config.vocab; ++i) write_item(i);
    }
    ++count;
  };
  string("general.architecture", "llama");
  u32("llama.context_length", static_cast<uint32_t>(config.max_position));
  u32("llama.embedding_length", static_cast<uint32_t>(config.hidden));
  u32("llama.block_count", static_cast<uint32_t>(config.layers));
  u32("llama.feed_forward_length", static_cast<uint32_t>(config.ffn));
  u32("llama.attention.head_count", static_cast<uint32_t>(config.heads));
  u32("llama.attention.head_count_kv", static_cast<uint32_t>(config.kv_heads));
  u32("llama.rope.dimension_count", static_cast<uint32_t>(config.head_dim));
  u32("llama.vocab_size", static_cast<uint32_t>(config.vocab));
  f32("llama.attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_eps));
  f32("llama.rope.freq_base", static_cast<float>(config.rope_theta));
  string("tokenizer.ggml.model", "llama");
  array("tokenizer.ggml.tokens", kGgufString, [&](int id) {
    char text[32];
    if (id < 3) {
      static constexpr const char* kSpecial[] = {"<unk>", "<s>", "</s>"};
      out.text(kSpecial[id]);
      return;
    }
    std::snprintf(text, sizeof text, id < 259 ? "<0x%02X>" : "\xE2\x96\x81w%d", id < 259 ? id - 3 : id);
    out.text(text);
  });
  array("tokenizer.ggml.scores", kGgufF32, [&](int id) { out.value<float>(static_cast<float>(-id)); });
  array("tokenizer.ggml.token_type", kGgufI32, [&](int id) {
    out.value<int32_t>(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1);
  });
  u32("tokenizer.ggml.bos_token_id", 1);
  u32("tokenizer.ggml.eos_token_id", 2);
  u32("general.alignment", kGgufAlignment);
  return count;
}

Status write_gguf(const std::string& path, const ModelConfig& config, DType dtype, const Progress& progress) {
  Writer out(path);
  if (!out.ok()) return io_error("Cannot write '" + path + "'; choose another folder with --cache-dir.");
  const std::vector<OutTensor> tensors = gguf_tensors(config, dtype);
  out.bytes("GGUF", 4);
  out.value<uint32_t>(3);
  out.value<uint64_t>(tensors.size());
  out.value<uint64_t>(write_metadata(out, config, true));
  write_metadata(out, config, false);
  int64_t offset = 0;
  for (const OutTensor& tensor : tensors) {
    out.text(tensor.name);
    const bool is_vector = tensor.rows == 1;
    out.value<uint32_t>(is_vector ? 1 : 2);
    out.value<uint64_t>(static_cast<uint64_t>(tensor.cols));
    if (!is_vector) out.value<uint64_t>(static_cast<uint64_t>(tensor.rows));
    out.value<uint32_t>(ggml_type(tensor.dtype));
    out.value<uint64_t>(static_cast<uint64_t>(offset));
    offset += (tensor.bytes() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
  }
  out.pad_to(kGgufAlignment);
  WeightSource source(1);
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
      if (progress) progress(done, offset);
    }
    out.pad_to(kGgufAlignment);
  }
  if (!out.close()) return io_error("Writing '" + path + "' failed; is the disk full?");
  return {};
}

struct AdapterModule {
  std::string name;
  int out, in;
};

std::vector<AdapterModule> adapter_modules(const ModelConfig& config, const std::string& targets) {
  const int q = config.heads * config.head_dim;
  const int kv = config.kv_heads * config.head_dim;
  std::vector<AdapterModule> modules = {{"self_attn.q_proj", q, config.hidden},
                                        {"self_attn.k_proj", kv, config.hidden},
                                        {"self_attn.v_proj", kv, config.hidden},
                                        {"self_attn.o_proj", config.hidden, q}};
  if (targets == "all") {
    modules.push_back({"mlp.gate_proj", config.ffn, config.hidden});
    modules.push_back({"mlp.up_proj", config.ffn, config.hidden});
    modules.push_back({"mlp.down_proj", config.hidden, config.ffn});
  }
  return modules;
}

Status write_adapter(const std::string& folder, const ModelConfig& config, const std::string& targets, int rank,
                     int number) {
  const std::vector<AdapterModule> modules = adapter_modules(config, targets);
  nlohmann::ordered_json settings{{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"}, {"r", rank}, {"lora_alpha", rank}};
  settings["target_modules"] = nlohmann::ordered_json::array();
  for (const AdapterModule& module : modules)
    settings["target_modules"].push_back(module.name.substr(module.name.find('.') + 1));
  TRY(write_text_file(folder + "/adapter_config.json", settings.dump(2) + "\n"));

  nlohmann::ordered_json header;
  int64_t offset = 0;
  const auto add = [&](const std::string& name, int rows, int cols) {
    const int64_t end = offset + int64_t{2} * rows * cols;
    header[name] = {{"dtype", "BF16"}, {"shape", {rows, cols}}, {"data_offsets", {offset, end}}};
    offset = end;
  };
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const AdapterModule& module : modules) {
      const std::string prefix = "base_model.model.model.layers." + std::to_string(layer) + "." + module.name;
      add(prefix + ".lora_A.weight", rank, module.in);
      add(prefix + ".lora_B.weight", module.out, rank);
    }
  }
  std::string head = header.dump();
  head.resize((head.size() + 7) / 8 * 8, ' ');
  Writer out(folder + "/adapter_model.safetensors");
  out.value<uint64_t>(head.size());
  out.bytes(head.data(), head.size());
  std::vector<std::byte> data(static_cast<size_t>(offset));
  WeightSource(1000 + static_cast<uint64_t>(number)).fill(DType::kBF16, data.data(), data.size());
  out.bytes(data.data(), data.size());
  if (!out.close()) return io_error("Writing an adapter to '" + folder + "' failed; is the disk full?");
  return {};
}

}  // namespace

Result<ModelConfig> bench_shape(const std::string& name) {
  ModelConfig config;
  config.architecture = "llama";
  config.vocab = 32000;
  config.max_position = 4096;
  if (name == "llama-1b") {
    config.hidden = 2048, config.layers = 22, config.heads = 32, config.kv_heads = 4, config.ffn = 5632;
  } else if (name == "llama-7b") {
    config.hidden = 4096, config.layers = 32, config.heads = 32, config.kv_heads = 32, config.ffn = 11008;
  } else {
    return invalid_argument("Unknown --shape '" + name + "'; choose llama-1b or llama-7b.");
  }
  config.head_dim = config.hidden / config.heads;
  return config;
}

Result<std::string> generated_model(const std::string& cache_dir, const std::string& shape, const std::string& quant,
                                    const Progress& progress) {
  TRY_ASSIGN(const ModelConfig config, bench_shape(shape));
  const auto dtype = parse_dtype(quant);
  const bool known = dtype && (*dtype <= DType::kQ4_0);
  if (!known)
    return invalid_argument("A generated model cannot be '" + quant + "'; choose f32, f16, bf16, q8_0 or q4_0.");
  std::error_code error;
  fs::create_directories(cache_dir, error);
  const std::string path = cache_dir + "/" + shape + "-" + quant + ".gguf";
  if (fs::exists(path, error)) return path;
  const std::string unfinished = path + ".partial";
  TRY(write_gguf(unfinished, config, *dtype, progress));
  fs::rename(unfinished, path, error);
  if (error) return io_error("Cannot rename '" + unfinished + "': " + error.message() + ".");
  return path;
}

Result<std::string> generated_adapter(const std::string& cache_dir, const std::string& shape,
                                      const std::string& targets, int rank, int number) {
  if (targets != "qkvo" && targets != "all")
    return invalid_argument("--targets is qkvo or all, not '" + targets + "'.");
  if (rank < 1 || rank > 512) return invalid_argument("--rank must lie between 1 and 512.");
  TRY_ASSIGN(const ModelConfig config, bench_shape(shape));
  const std::string folder =
      cache_dir + "/" + shape + "-" + targets + "-r" + std::to_string(rank) + "-" + std::to_string(number);
  std::error_code error;
  if (fs::exists(folder, error)) return folder;
  const std::string unfinished = folder + ".partial";
  fs::remove_all(unfinished, error);
  fs::create_directories(unfinished, error);
  TRY(write_adapter(unfinished, config, targets, rank, number));
  fs::rename(unfinished, folder, error);
  if (error) return io_error("Cannot rename '" + unfinished + "': " + error.message() + ".");
  return folder;
}

}  // namespace loralei
