// SPDX-License-Identifier: Apache-2.0
// An adapter merged into the base's weights gives what the adapter applied beside them
// gives (ARCHITECTURE.md, decision 11), for single adapters, weighted sums, biases,
// embeddings, heads and replaced tensors. The merged model is written as safetensors and
// opened like any other.
//
// The one equality that is not bit for bit: W' = W + s B A is rounded once, and sums run
// in another order. The tolerance comes from the norms: one product y = W x + s B (A x)
// with sums of n = in + rank terms is wrong by about u sqrt(n) (|W| + |s| |B| |A|) / |W'|
// of |y| (Frobenius norms, u = 2^-24, errors of random sign); those of all changed
// modules add up. Behind the first changed module nothing sees the same numbers in both
// models any more, so every other sum rounds anew as well: u sqrt(n) for each unchanged
// product and for attention's two (n = head size, n = positions). Two models are
// compared, each wrong in its own way, so the merged one's errors, u sqrt(in) a product
// and attention's, come on top. All that, relative to max(1, max|logit|), is allowed,
// and an error of a hundredth in the scale must exceed it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "support/made_files.h"
#include "support/model_harness.h"
#include "sys/file.h"
#include "tensor/codec.h"

namespace loralei::test {
namespace {

using nlohmann::json;
const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr double kUnit = 0x1p-24;  // rounding unit of f32
constexpr int kPositions = 60;     // tokens of the compared prompt

struct Use {
  const char* adapter;
  float scale;
};

struct Merge {
  const char* name;
  const char* model;
  std::vector<Use> uses;
};

const std::vector<Merge>& merges() {
  static const std::vector<Merge> all = {
      {"one", "llama-gqa", {{"gqa-all-r16", 1.0f}}},
      {"half", "llama-gqa", {{"gqa-all-r16", 0.5f}}},
      {"rank_stabilised", "llama-gqa", {{"gqa-rslora", 1.0f}}},
      {"rank_pattern", "llama-gqa", {{"gqa-rank-pattern", 1.3f}}},
      {"sum", "llama-gqa", {{"gqa-qv-r8", 0.7f}, {"gqa-all-r16", 0.4f}, {"gqa-regex", -0.5f}}},
      {"bias_of_the_delta", "llama-gqa", {{"gqa-lora-bias", 0.5f}}},
      {"embedding_of_a_tied_model", "llama-gqa", {{"gqa-embed-tied", 1.0f}}},
      {"head_of_a_tied_model", "llama-gqa", {{"gqa-head-tied", 0.5f}}},
      {"saved_head", "llama-gqa", {{"gqa-save-head-tied", 0.5f}}},
      {"trained_rows", "llama-gqa", {{"gqa-tokens-tied", 0.5f}}},
      {"large_rank", "llama2", {{"llama2-r64", 1.0f}}},
      {"embedding_and_head", "llama2", {{"llama2-embed-head", 0.5f}, {"llama2-lm-head", 0.5f}}},
      {"everything_saved", "llama2", {{"llama2-save-all", 2.0f}}},
      {"trained_biases", "qwen2", {{"qwen2-bias-all", 0.5f}}},
      {"fused", "qwen2", {{"qwen2-fused", 1.0f}}},
      {"all_biases", "llama-bias", {{"llama-bias-all", 0.5f}}},
      {"head_norms", "qwen3", {{"qwen3-save-qk-norm", 1.0f}, {"qwen3-all-r4", 0.5f}}},
      {"window", "mistral-window", {{"mistral-window-r8", 1.0f}}},
  };
  return all;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> decoded(DType dtype, const std::byte* bytes, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  decode_row(dtype, bytes, values.data(), count);
  return {values.begin(), values.end()};
}

// The weights of a model in double, by canonical name, and what merging adapters
// makes of them.
class MergedModel {
 public:
  explicit MergedModel(const ModelHarness& harness) : config_(harness.config()) {
    const PosixFileSystem files;
    for (const TensorInfo& info : harness.file().index.tensors) {
      auto file = files.open(harness.file().index.files[info.file]);
      EXPECT_TRUE(file.ok());
      std::vector<std::byte> bytes(static_cast<size_t>(info.bytes));
      EXPECT_TRUE((*file)->read_exact(info.offset, bytes).ok());
      int64_t count = 1;
      for (const int64_t extent : info.shape) count *= extent;
      tensors_[info.name] = {info.shape, decoded(info.dtype, bytes.data(), count)};
    }
    if (config_.tied_head) tensors_["lm_head.weight"] = tensors_["model.embed_tokens.weight"];
  }

  void add(const Adapter& adapter, double scale) {
    replace(adapter.saved);
    for (int layer = 0; layer < config_.layers; ++layer) {
      for (int module = 0; module < kLayerModules; ++module) {
        const char* const name = layer_matrix(config_, layer, static_cast<size_t>(module));
        if (name == nullptr) continue;
        add_pair("model.layers." + std::to_string(layer) + "." + name, adapter.pair(layer, static_cast<Module>(module)),
                 scale);
      }
    }
    add_pair("lm_head", adapter.head_pair(), scale);
    add_embedding(adapter.embed_pair(), scale);
  }

  // The relative error that the head of this file explains.
  double error() const {
    double applied = 0, merged = 0;
    for (const auto& [name, change] : changes_) {
      applied +=
          kUnit * std::sqrt(change.terms) * (change.norm_before + change.norm_added) / norm(tensors_.at(name).values);
    }
    if (changes_.empty()) return 0;
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.shape.size() != 2 || name == "model.embed_tokens.weight") continue;
      const double product = kUnit * std::sqrt(static_cast<double>(tensor.shape[1]));
      merged += product;
      if (!changes_.contains(name)) applied += product;
    }
    const double attention = config_.layers * kUnit * (std::sqrt(double{kPositions}) + std::sqrt(config_.head_dim));
    return applied + merged + 2 * attention;
  }

  void write(const std::string& folder, const std::string& base_config) const {
    std::ifstream file(base_config);
    json config = json::parse(file, nullptr, false);
    config["tie_word_embeddings"] = false;
    config["torch_dtype"] = "float32";
    if (config_.architecture == "llama") config["attention_bias"] = config["mlp_bias"] = has_biases();
    write_file(folder + "/config.json", config.dump(2));
    std::vector<MadeTensor> made;
    for (const auto& [name, tensor] : tensors_)
      made.push_back({name, tensor.shape, {tensor.values.begin(), tensor.values.end()}});
    if (config_.architecture == "llama" && has_biases()) add_missing_biases(made);
    write_safetensors(folder + "/model.safetensors", made);
  }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<double> values;
  };
  struct Change {
    double terms = 0, norm_before = 0, norm_added = 0;
  };

  bool has_biases() const {
    for (const auto& [name, tensor] : tensors_) {
      if (name.ends_with(".bias")) return true;
    }
    return false;
  }

  void add_missing_biases(std::vector<MadeTensor>& made) const {
    for (const auto& [name, tensor] : tensors_) {
      if (!name.ends_with("_proj.weight")) continue;
      const std::string bias = name.substr(0, name.size() - 6) + "bias";
      if (!tensors_.contains(bias))
        made.push_back({bias, {tensor.shape[0]}, std::vector<float>(static_cast<size_t>(tensor.shape[0]))});
    }
  }

  void add_pair(const std::string& name, const LoraPair& pair, double scale) {
    const double factor = scale * static_cast<double>(pair.scaling);
    if (pair.rank > 0) {
      const auto a = decoded(pair.dtype, pair.a, int64_t{pair.rank} * pair.in);
      const auto b = decoded(pair.dtype, pair.b_t, int64_t{pair.rank} * pair.out);
      Tensor& weight = tensors_.at(name + ".weight");
      ASSERT_EQ(weight.shape, (std::vector<int64_t>{pair.out, pair.in}));
      Change& change = changes_[name + ".weight"];
      if (change.terms == 0) change.norm_before = norm(weight.values);
      change.terms += change.terms == 0 ? pair.in + pair.rank : pair.rank;
      change.norm_added += std::fabs(factor) * norm(a) * norm(b);
      for (int r = 0; r < pair.rank; ++r) {
        for (int out = 0; out < pair.out; ++out) {
          const double up = factor * b[static_cast<size_t>(r * pair.out + out)];
          for (int in = 0; in < pair.in; ++in) {
            weight.values[static_cast<size_t>(out * pair.in + in)] += up * a[static_cast<size_t>(r * pair.in + in)];
          }
        }
      }
    }
    if (pair.b_bias == nullptr && pair.bias_delta == nullptr) return;
    Tensor& bias = tensors_[name + ".bias"];
    bias.shape = {pair.out};
    bias.values.resize(static_cast<size_t>(pair.out));
    for (size_t out = 0; out < bias.values.size(); ++out) {
      if (pair.b_bias != nullptr) bias.values[out] += factor * static_cast<double>(pair.b_bias[out]);
      if (pair.bias_delta != nullptr) bias.values[out] += static_cast<double>(pair.bias_delta[out]);
    }
  }

  void add_embedding(const LoraPair& pair, double scale) {
    if (pair.rank == 0) return;
    const double factor = scale * static_cast<double>(pair.scaling);
    Tensor& embed = tensors_.at("model.embed_tokens.weight");
    const int64_t vocab = embed.shape[0];
    const auto a = decoded(pair.dtype, pair.a, vocab * pair.rank);
    const auto b = decoded(pair.dtype, pair.b_t, int64_t{pair.rank} * pair.out);
    changes_["model.embed_tokens.weight"] = {static_cast<double>(pair.rank + 1), norm(embed.values),
                                             std::fabs(factor) * norm(a) * norm(b)};
    for (int64_t token = 0; token < vocab; ++token) {
      for (int r = 0; r < pair.rank; ++r) {
        for (int out = 0; out < pair.out; ++out) {
          embed.values[static_cast<size_t>(token * pair.out + out)] +=
              factor * a[static_cast<size_t>(token * pair.rank + r)] * b[static_cast<size_t>(r * pair.out + out)];
        }
      }
    }
  }

  void replace_vector(const std::string& name, const float* values) {
    if (values == nullptr) return;
    std::vector<double>& into = tensors_.at(name).values;
    for (size_t i = 0; i < into.size(); ++i) into[i] = static_cast<double>(values[i]);
  }

  void replace_layers(const std::string& name, const std::vector<const float*>& values) {
    for (size_t layer = 0; layer < values.size(); ++layer) {
      replace_vector("model.layers." + std::to_string(layer) + "." + name + ".weight", values[layer]);
    }
  }

  void replace_matrix(const std::string& name, const WeightView& view) {
    if (view.empty()) return;
    Tensor& tensor = tensors_.at(name);
    ASSERT_EQ(tensor.shape, (std::vector<int64_t>{view.rows, view.cols})) << "resized vocabularies are not merged here";
    tensor.values.clear();
    for (const WeightPanel& panel : view.panels) {
      const auto rows = decoded(view.dtype, panel.data, int64_t{panel.row_count} * view.cols);
      tensor.values.insert(tensor.values.end(), rows.begin(), rows.end());
    }
  }

  void replace_rows(const std::string& name, const std::vector<TokenId>& tokens, const float* rows) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int64_t j = 0; j < config_.hidden; ++j) {
        tensors_.at(name).values[static_cast<size_t>(tokens[i] * config_.hidden + j)] =
            static_cast<double>(rows[static_cast<int64_t>(i) * config_.hidden + j]);
      }
    }
  }

  void replace(const SavedTensors& saved) {
    replace_matrix("model.embed_tokens.weight", saved.embed);
    replace_matrix("lm_head.weight", saved.lm_head);
    replace_rows("model.embed_tokens.weight", saved.embed_tokens, saved.embed_rows);
    replace_rows("lm_head.weight", saved.head_tokens, saved.head_rows);
    replace_vector("model.norm.weight", saved.final_norm);
    for (size_t norm = 0; norm < kLayerNorms; ++norm)
      replace_layers(std::string(config_.norm_names[norm]), saved.norms[norm]);
  }

  ModelConfig config_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Change> changes_;
};

class MergeEquality : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<ModelHarness> open(const std::string& path) {
    HarnessOptions options;
    options.ops = GetParam();
    auto opened = ModelHarness::open(path, options);
    if (opened.ok()) return std::move(*opened);
    ADD_FAILURE() << opened.error().message;
    return nullptr;
  }

  static std::vector<std::vector<float>> logits(ModelHarness& harness, const std::vector<AdapterRef>& adapters) {
    Prng random(71);
    Span span;
    for (int i = 0; i < kPositions; ++i) {
      span.tokens.push_back(static_cast<TokenId>(random.below(static_cast<uint64_t>(harness.config().vocab))));
      span.logits_at.push_back(i);
    }
    span.adapters = adapters;
    auto output = harness.run({span});
    if (output.ok()) return output->logits;
    ADD_FAILURE() << output.error().message;
    return {};
  }

  static double worst(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& want) {
    double worst = got.size() == want.size() ? 0 : INFINITY;
    for (size_t row = 0; row < std::min(got.size(), want.size()); ++row) {
      double error = 0, scale = 1;
      for (size_t id = 0; id < want[row].size(); ++id) {
        error = std::max(error, std::fabs(static_cast<double>(got[row][id]) - static_cast<double>(want[row][id])));
        scale = std::max(scale, std::fabs(static_cast<double>(want[row][id])));
      }
      worst = std::isnan(error) ? INFINITY : std::max(worst, error / scale);
    }
    return worst;
  }
};

TEST_P(MergeEquality, MergedIsApplied) {
  for (const Merge& merge : merges()) {
    SCOPED_TRACE(merge.name);
    const std::string base_path = kRoot + "models/" + merge.model;
    const auto harness = open(base_path);
    ASSERT_NE(harness, nullptr);
    MergedModel weights(*harness);
    std::vector<AdapterRef> uses;
    bool scaled = false;
    for (const Use& use : merge.uses) {
      auto adapter = harness->load(kRoot + "adapters/" + use.adapter);
      ASSERT_TRUE(adapter.ok()) << adapter.error().message;
      uses.push_back({*adapter, use.scale, 0});
      weights.add(**adapter, static_cast<double>(use.scale));
      for (const LoraPair& pair : (*adapter)->pairs) scaled = scaled || pair.rank > 0;
    }
    if (HasFatalFailure()) return;
    const TempFolder folder;
    weights.write(folder.path(), base_path + "/config.json");
    const auto merged = open(folder.path());
    ASSERT_NE(merged, nullptr);
    const auto want = logits(*merged, {});
    // Replaced tensors alone: nearly the same sums on the same numbers.
    const double tolerance = weights.error() + 16 * kUnit;
    const double error = worst(logits(*harness, uses), want);
    EXPECT_LE(error, tolerance);
    EXPECT_LT(tolerance, 2e-4);
    RecordProperty(merge.name, std::to_string(error / tolerance));
    EXPECT_GT(worst(logits(*harness, {}), want), 100 * tolerance) << "the adapter changes nothing";
    if (!scaled) continue;
    for (AdapterRef& use : uses) use.scale *= 1.01f;
    EXPECT_GT(worst(logits(*harness, uses), want), tolerance) << "an error of a hundredth goes unseen";
  }
}

std::vector<std::string> op_tables() {
  std::vector<std::string> names;
  for (const OpTable* table : plain_op_tables()) {
    if (!table->rounds_bf16) names.push_back(table->name);  // what rounding costs is rounding_test.cc's question
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(, MergeEquality, testing::ValuesIn(op_tables()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace loralei::test
