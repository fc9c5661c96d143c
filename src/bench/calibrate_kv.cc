// SPDX-License-Identifier: Apache-2.0
#include "bench/calibrate_kv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "bench/kv_search.h"
#include "bench/kv_trial.h"
#include "codec/kv_spread.h"

namespace loralei {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

template <typename... Values>
std::string line(const char* form, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, form, values...);
  return text;
}

class Calibration {
 public:
  Calibration(ModelHost& host, const KvCalibrationOptions& options, LogSink& log)
      : host_(host), options_(options), log_(log) {}

  Result<KvCalibration> run() {
    TRY(open());
    TRY(search());
    TRY(measure());
    for (size_t adapter = 0; adapter < options_.adapters.size(); ++adapter) TRY(borrow(adapter));
    return std::move(found_);
  }

 private:
  Status open() {
    TRY_ASSIGN(std::vector<KvTextPiece> pieces,
               cut_kv_pieces(options_.text, options_.begin, options_.tokens, host_.max_model_len()));
    found_.pieces_wanted = pieces.size();
    KvTrial::Options trial;
    for (const CalibratedAdapter& adapter : options_.adapters) {
      trial.adapters.push_back(adapter.adapter.get());
      for (const std::vector<TokenId>& prompt : adapter.prompts) {
        const int64_t length = static_cast<int64_t>(prompt.size()) + options_.answer_tokens;
        if (length > host_.max_model_len()) {
          return invalid_argument("A prompt of " + std::to_string(prompt.size()) +
                                  " tokens and its answer are longer than the model takes (" +
                                  std::to_string(host_.max_model_len()) + "); shorten it or raise --max-model-len.");
        }
        trial.prompt_tokens_most = std::max(trial.prompt_tokens_most, length);
      }
    }
    log_.log(LogLevel::kInfo, "computing " + std::to_string(pieces.size()) + " pieces of the text, " +
                                  std::to_string(1 + trial.adapters.size()) + " times");
    TRY_ASSIGN(trial_, KvTrial::create(host_, std::move(pieces), trial));
    found_.pieces = trial_->pieces().size();
    for (const KvTextPiece& piece : trial_->pieces())
      found_.steps.text_tokens += static_cast<int64_t>(piece.tokens.size());
    spread_ = trial_->spread();
    order_.resize(trial_->identities());
    std::iota(order_.begin(), order_.end(), 0);
    qualities_.resize(order_.size());
    return {};
  }

  Result<KvGrid> grid(const KvRungs& rungs) const {
    std::vector<float> factors;
    for (const int32_t rung : rungs) factors.push_back(kv_rung_factor(rung));
    return kv_steps_from(trial_->shape(), spread_, factors);
  }

  // Who failed last is asked first. `to_the_end`: whether it holds or not.
  Result<bool> try_rungs(const KvRungs& rungs, bool to_the_end) {
    TRY_ASSIGN(const KvGrid grid, this->grid(rungs));
    std::vector<KvQuality> qualities(order_.size());
    bool holds = true;
    for (size_t i = 0; i < order_.size() && (holds || to_the_end); ++i) {
      const size_t identity = order_[i];
      KvQualityCount count(trial_->positions(identity), to_the_end ? 0 : options_.agreement);
      TRY(trial_->lossy(grid, identity, count));
      qualities[identity] = count.quality();
      if (count.failed()) {
        holds = false;
        std::rotate(order_.begin(), order_.begin() + static_cast<int64_t>(i),
                    order_.begin() + static_cast<int64_t>(i) + 1);
      }
    }
    if (holds) qualities_ = qualities;
    return holds;
  }

  void tell(const KvRungs& rungs, bool holds) {
    double mean = 0;
    for (const int32_t rung : rungs)
      mean += static_cast<double>(kv_rung_factor(rung)) / static_cast<double>(rungs.size());
    log_.log(LogLevel::kInfo, line("trial %d of at most %d: mean factor %.3f ", ++found_.trials, kKvTrialsMost, mean) +
                                  (holds ? "holds" : "does not hold"));
  }

  double bits(size_t row, int32_t rung) {
    std::vector<double>& known = bits_[static_cast<size_t>(rung)];
    if (known.empty()) {
      const auto grid = this->grid(KvRungs(2 * static_cast<size_t>(trial_->shape().layers), rung));
      if (grid.ok()) known = trial_->entropies(*grid);
    }
    return row < known.size() ? known[row] : 0;
  }

  Status search() {
    const auto holds = [this](const KvRungs& rungs) -> Result<bool> {
      TRY_ASSIGN(const bool held, try_rungs(rungs, false));
      tell(rungs, held);
      return held;
    };
    const size_t rows = 2 * static_cast<size_t>(trial_->shape().layers);
    TRY_ASSIGN(const KvSearch found,
               search_kv_rungs(rows, holds, [this](size_t row, int32_t rung) { return bits(row, rung); }));
    rungs_ = found.rungs;
    found_.holds = found.holds;
    if (!found.holds) {  // then what it is is measured to the end
      TRY_ASSIGN([[maybe_unused]] const bool whole, try_rungs(rungs_, true));
    }
    return {};
  }

  Status measure() {
    const KvGridShape shape = trial_->shape();
    TRY_ASSIGN(const KvGrid grid, this->grid(rungs_));
    KvSteps& steps = found_.steps;
    steps.fingerprint = host_.fingerprint();
    steps.name = options_.model_name;
    steps.layers = shape.layers, steps.kv_heads = shape.kv_heads, steps.head_dim = shape.head_dim;
    steps.agreement_asked = options_.agreement;
    steps.quality = qualities_[0];
    steps.bits = trial_->bits(grid, 0).alone;
    for (size_t row = 0; row < rungs_.size(); ++row) {
      steps.factors.push_back(kv_rung_factor(rungs_[row]));
      found_.row_bits.push_back(bits(row, rungs_[row]));
      const auto of_row = grid.steps(static_cast<int32_t>(row / 2), static_cast<int32_t>(row % 2));
      steps.steps.insert(steps.steps.end(), of_row.begin(), of_row.end());
    }
    for (size_t i = 0; i < options_.adapters.size(); ++i) {
      KvAdapterSteps& adapter = steps.adapters.emplace_back();
      adapter.name = options_.adapters[i].name;
      adapter.digest = digest_hex(options_.adapters[i].adapter->digest);
      adapter.quality = qualities_[i + 1];
      const KvTrial::Bits bits = trial_->bits(grid, i + 1);
      adapter.bits = bits.alone;
      adapter.bits_delta = bits.delta;
    }
    return {};
  }

  // Agreement of the answers; nothing where it is less than asked.
  Result<std::optional<double>> compare_answers(size_t adapter, int32_t layers,
                                                const std::vector<std::vector<TokenId>>& own) {
    const CalibratedAdapter& asked = options_.adapters[adapter];
    KvQualityCount count(static_cast<int64_t>(own.size()), options_.agreement);
    for (size_t i = 0, at = 0; i < asked.prompts.size(); ++i) {
      const std::span<const TokenId> prompt = asked.prompts[i];
      const auto borrowed = prompt.first(kv_shared_tokens(prompt.size()));
      if (borrowed.empty()) continue;
      // The base has no K and V of tokens that the adapter has added.
      bool same = *std::max_element(borrowed.begin(), borrowed.end()) < host_.file().config.vocab;
      if (same) {
        TRY_ASSIGN(const std::vector<TokenId> answer,
                   trial_->answer(prompt, layers, adapter + 1, options_.answer_tokens, asked.ends));
        same = answer == own[at];
      }
      ++at;
      count.add(same);
      if (count.failed()) return std::optional<double>();
    }
    return std::optional(count.quality().agreement);
  }

  Status borrow(size_t adapter) {
    const CalibratedAdapter& asked = options_.adapters[adapter];
    KvCalibration::Borrow& borrow = found_.borrow.emplace_back();
    std::vector<std::vector<TokenId>> own;
    for (const std::vector<TokenId>& prompt : asked.prompts) {
      if (kv_shared_tokens(prompt.size()) == 0) continue;
      TRY_ASSIGN(std::vector<TokenId> answer,
                 trial_->answer(prompt, 0, adapter + 1, options_.answer_tokens, asked.ends));
      own.push_back(std::move(answer));
    }
    borrow.prompts = own.size();
    if (own.empty() && trial_->positions(adapter + 1) == 0) return {};  // nothing speaks for it
    KvAdapterSteps& steps = found_.steps.adapters[adapter];
    for (int32_t layers = trial_->shape().layers; layers > 0; --layers) {
      KvQualityCount count(trial_->positions(adapter + 1), options_.agreement);
      TRY(trial_->borrowed(layers, adapter + 1, count));
      std::optional<double> answers;
      if (!count.failed()) {
        TRY_ASSIGN(answers, compare_answers(adapter, layers, own));
      }
      log_.log(LogLevel::kInfo,
               "adapter " + asked.name + ", " + std::to_string(layers) + " layers of the base: " +
                   (answers          ? "the same answers"
                    : count.failed() ? "another text, after " + percent(count.quality().agreement) + " of " +
                                           std::to_string(count.quality().positions) + " positions"
                                     : "other answers to prompts"));
      if (!answers) continue;
      borrow.text = count.quality().agreement;
      borrow.answers = *answers;
      steps.borrow_layers = layers;
      steps.borrow_agreement = std::min(borrow.text, borrow.answers);
      break;
    }
    return {};
  }

  ModelHost& host_;
  const KvCalibrationOptions& options_;
  LogSink& log_;
  std::unique_ptr<KvTrial> trial_;
  std::vector<float> spread_;
  std::vector<size_t> order_;  // of identities
  std::vector<KvQuality> qualities_;
  std::array<std::vector<double>, kKvRungs> bits_;
  KvRungs rungs_;
  KvCalibration found_;
};

}  // namespace

Result<KvCalibration> calibrate_kv(ModelHost& host, const KvCalibrationOptions& options, LogSink& log) {
  if (has_vector_scale(host.kv_dtype())) {
    return invalid_argument(std::string("A KV cache in ") + dtype_info(host.kv_dtype()).name +
                            " has no steps to choose: its integers are what it holds. Calibrate with --kv-cache-dtype "
                            "f32, f16 or bf16; the steps serve all three.");
  }
  for (const CalibratedAdapter& adapter : options.adapters) {
    if (adapter.adapter->alora_invocation.empty()) continue;
    return unsupported("The adapter '" + adapter.name +
                       "' is an activated one: K and V before its invocation are the base's already, and there is "
                       "nothing to calibrate; leave it out.");
  }
  return Calibration(host, options, log).run();
}

std::string kv_calibration_table(const KvCalibration& found) {
  const KvSteps& steps = found.steps;
  std::string text = line("%zu pieces of text, %lld tokens; %d trials\n", found.pieces,
                          static_cast<long long>(steps.text_tokens), found.trials);
  text += "layer  factor K  factor V  bits K  bits V\n";
  for (size_t row = 0; row + 1 < steps.factors.size(); row += 2) {
    text += line("%5zu  %8.4f  %8.4f  %6.2f  %6.2f\n", row / 2, static_cast<double>(steps.factors[row]),
                 static_cast<double>(steps.factors[row + 1]), found.row_bits[row], found.row_bits[row + 1]);
  }
  text +=
      "model                 positions  agreement    mean KL  bits alone  bits as delta  borrows  agreement  prefill "
      "saved\n";
  const auto row = [&](const std::string& name, const KvQuality& quality, double bits) {
    return line("%-20s  %9lld  %9s  %9.2e  %10.2f", printable(name, 20).c_str(),
                static_cast<long long>(quality.positions), percent(quality.agreement).c_str(), quality.mean_kl, bits);
  };
  text += row("base", steps.quality, steps.bits) + "\n";
  for (size_t i = 0; i < steps.adapters.size(); ++i) {
    const KvAdapterSteps& adapter = steps.adapters[i];
    text += row(adapter.name, adapter.quality, adapter.bits);
    text += line("  %13.2f  %2d of %2d  %9s  %13s\n", adapter.bits_delta, adapter.borrow_layers, steps.layers,
                 percent(adapter.borrow_agreement).c_str(), percent(steps.prefill_saved(adapter)).c_str());
  }
  return text;
}

}  // namespace loralei
