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
    describe();
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
    for (size_t piece = 0; piece < found_.pieces; ++piece) {
      const auto tokens = static_cast<int64_t>(trial_->pieces()[piece].tokens.size());
      found_.steps.text_tokens += tokens;
      if (trial_->half(piece) == KvHalf::kHeldOut) found_.steps.held_out_tokens += tokens;
    }
    spread_ = trial_->spread();
    order_.resize(trial_->identities());
    std::iota(order_.begin(), order_.end(), 0);
    return {};
  }

  Result<KvGrid> grid(const KvRungs& rungs) const {
    std::vector<float> factors;
    for (const int32_t rung : rungs) factors.push_back(kv_rung_factor(rung));
    return kv_steps_from(trial_->shape(), spread_, factors);
  }

  Result<KvQuality> quality(const KvGrid& grid, size_t identity, KvHalf half) {
    KvQualityCount count(trial_->positions(identity, half), 0);
    TRY(trial_->lossy(grid, identity, half, count));
    return count.quality();
  }

  // The mean of all identities of which the text has something.
  Result<double> divergence(const KvRungs& rungs) {
    TRY_ASSIGN(const KvGrid grid, this->grid(rungs));
    double sum = 0;
    int of = 0;  // the text has something of one, at least
    for (size_t identity = 0; identity < order_.size(); ++identity) {
      if (trial_->positions(identity, KvHalf::kSearched) == 0) continue;
      KvQualityCount count = trial_->searched(identity, 0);
      TRY(trial_->lossy(grid, identity, KvHalf::kSearched, count));
      sum += count.divergence();
      ++of;
    }
    tell(rungs, line("a divergence of %.2e", sum / of));
    return sum / of;
  }

  // Who failed last is asked first.
  Result<bool> holds(const KvRungs& rungs) {
    TRY_ASSIGN(const KvGrid grid, this->grid(rungs));
    std::vector<KvQualityCount> counts;
    for (size_t i = 0; i < order_.size(); ++i) {
      counts.push_back(trial_->searched(order_[i], options_.agreement));
      TRY(trial_->lossy(grid, order_[i], KvHalf::kSearched, counts.back()));
      if (!counts.back().failed()) continue;
      const auto at = order_.begin() + static_cast<int64_t>(i);
      std::rotate(order_.begin(), at, at + 1);
      tell(rungs, "other tokens");
      return false;
    }
    const bool holds = answers_hold(counts, options_.agreement);
    tell(rungs, holds ? "holds" : "other answers");
    return holds;
  }

  void tell(const KvRungs& rungs, const std::string& what) {
    double bits = 0;
    for (size_t row = 0; row < rungs.size(); ++row)
      bits += this->bits(row, rungs[row]) / static_cast<double>(rungs.size());
    log_.log(LogLevel::kInfo, line("trial %d of at most %d: %.2f bits, ", ++found_.trials, kKvTrialsMost, bits) + what);
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
    const KvTrials trials{.divergence = [this](const KvRungs& rungs) { return divergence(rungs); },
                          .holds = [this](const KvRungs& rungs) { return holds(rungs); },
                          .bits = [this](size_t row, int32_t rung) { return bits(row, rung); }};
    TRY_ASSIGN(const KvSearch found, search_kv_rungs(2 * static_cast<size_t>(trial_->shape().layers), trials));
    rungs_ = found.rungs;
    found_.holds = found.holds;
    return {};
  }

  // Once, on what the search has not seen.
  Status measure() {
    TRY_ASSIGN(const KvGrid grid, this->grid(rungs_));
    KvSteps& steps = found_.steps;
    steps.bits = trial_->bits(grid, 0).alone;
    TRY_ASSIGN(steps.quality, quality(grid, 0, KvHalf::kHeldOut));
    for (size_t i = 0; i < options_.adapters.size(); ++i) {
      KvAdapterSteps& adapter = steps.adapters.emplace_back();
      adapter.name = options_.adapters[i].name;
      adapter.digest = digest_hex(options_.adapters[i].adapter->digest);
      TRY_ASSIGN(adapter.quality, quality(grid, i + 1, KvHalf::kHeldOut));
      const KvTrial::Bits bits = trial_->bits(grid, i + 1);
      adapter.bits = bits.alone;
      adapter.bits_delta = bits.delta;
    }
    for (size_t row = 0; row < rungs_.size(); ++row) {
      const auto of_row = grid.steps(static_cast<int32_t>(row / 2), static_cast<int32_t>(row % 2));
      steps.steps.insert(steps.steps.end(), of_row.begin(), of_row.end());
    }
    return {};
  }

  void describe() {
    KvSteps& steps = found_.steps;
    const KvGridShape shape = trial_->shape();
    steps.fingerprint = host_.fingerprint();
    steps.name = options_.model_name;
    steps.layers = shape.layers, steps.kv_heads = shape.kv_heads, steps.head_dim = shape.head_dim;
    steps.agreement_asked = options_.agreement;
    for (size_t row = 0; row < rungs_.size(); ++row) {
      steps.factors.push_back(kv_rung_factor(rungs_[row]));
      found_.row_bits.push_back(bits(row, rungs_[row]));
    }
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
    const int64_t positions = trial_->positions(adapter + 1, KvHalf::kSearched);
    if (own.empty() && positions == 0) return {};  // nothing speaks for it
    KvAdapterSteps& steps = found_.steps.adapters[adapter];
    for (int32_t layers = trial_->shape().layers; layers > 0; --layers) {
      KvQualityCount count(positions, options_.agreement);
      TRY(trial_->borrowed(layers, adapter + 1, KvHalf::kSearched, count));
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
      KvQualityCount held_out(trial_->positions(adapter + 1, KvHalf::kHeldOut), 0);
      TRY(trial_->borrowed(layers, adapter + 1, KvHalf::kHeldOut, held_out));
      borrow.text = held_out.quality().agreement;
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

namespace {

std::string of_positions(const KvSteps& steps) {
  std::string text =
      "model                 positions  agreement    mean KL  bits alone  bits as delta  borrows  agreement  prefill "
      "saved\n";
  const auto row = [&](const std::string& name, const KvQuality& quality, double bits) {
    return line("%-20s  %9lld  %9s  %9.2e  %10.2f", printable(name, 20).c_str(),
                static_cast<long long>(quality.positions), percent(quality.agreement).c_str(), quality.mean_kl, bits);
  };
  text += row("base", steps.quality, steps.bits) + "\n";
  for (const KvAdapterSteps& adapter : steps.adapters) {
    text += row(adapter.name, adapter.quality, adapter.bits);
    text += line("  %13.2f  %2d of %2d  %9s  %13s\n", adapter.bits_delta, adapter.borrow_layers, steps.layers,
                 percent(adapter.borrow_agreement).c_str(), percent(steps.prefill_saved(adapter)).c_str());
  }
  return text;
}

// Nothing where the text has no answers.
std::string of_answers(const KvSteps& steps) {
  std::string rows;
  const auto add = [&](const std::string& name, const KvQuality& quality) {
    if (quality.answers == 0) return;
    const auto share = [&](int64_t count) {
      return percent(static_cast<double>(count) / static_cast<double>(quality.answers));
    };
    rows += line("%-20s  %9lld  %9s  %10s  %10s  %13s\n", printable(name, 20).c_str(),
                 static_cast<long long>(quality.answers), share(quality.answers_same).c_str(),
                 share(quality.answers_exact_right).c_str(), share(quality.answers_right).c_str(),
                 percent(quality.answers_lost).c_str());
  };
  add("base", steps.quality);
  for (const KvAdapterSteps& adapter : steps.adapters) add(adapter.name, adapter.quality);
  return rows.empty() ? rows
                      : "model                   answers   the same       right  right then           lost\n" + rows;
}

}  // namespace

std::string kv_calibration_table(const KvCalibration& found) {
  const KvSteps& steps = found.steps;
  std::string text = line(
      "%zu pieces of text, %lld tokens; measured on %lld of them that the search has not seen; "
      "%d trials\n",
      found.pieces, static_cast<long long>(steps.text_tokens), static_cast<long long>(steps.held_out_tokens),
      found.trials);
  text += "layer  factor K  factor V  bits K  bits V\n";
  for (size_t row = 0; row + 1 < steps.factors.size(); row += 2) {
    text += line("%5zu  %8.4f  %8.4f  %6.2f  %6.2f\n", row / 2, static_cast<double>(steps.factors[row]),
                 static_cast<double>(steps.factors[row + 1]), found.row_bits[row], found.row_bits[row + 1]);
  }
  return text + of_positions(steps) + of_answers(steps);
}

}  // namespace loralei
