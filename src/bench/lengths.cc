// SPDX-License-Identifier: Apache-2.0
#include "bench/lengths.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "base/check.h"
#include "base/limits.h"

namespace loralei {
namespace {

// Of requests that its proxy model puts into the right class (mechanisms §4).
constexpr double kPaperShare = 0.8;
constexpr int kMostClasses = 4;

struct Predictions {
  std::vector<double> lengths;  // beside the answers
  double seconds = 0;
};

Predictions predict_in_turn(std::span<const AnsweredPrompt> answers, LengthPrediction prediction) {
  LengthPredictor predictor(prediction);
  std::map<std::string, AdapterSourceId> sources;
  Predictions predictions;
  const std::clock_t begin = std::clock();
  for (const AnsweredPrompt& one : answers) {
    AdapterSourceId source;
    if (!one.adapter.empty()) {
      const auto [known, fresh] = sources.try_emplace(one.adapter, AdapterSourceId{sources.size() + 1});
      source = known->second;
      if (fresh) predictor.introduce(source, LengthPredictor::key_of(one.adapter));
    }
    LengthAsked asked;
    asked.source = source;
    asked.prompt = static_cast<int32_t>(one.prompt.size());
    asked.output_most = static_cast<int32_t>(kMaxModelLen);
    const LearnedLengths::Features features =
        predictor.features_of(source, {.prompt = one.prompt, .output_most = asked.output_most});
    asked.features = features;
    predictions.lengths.push_back(predictor.predict(asked));
    predictor.ended(asked, {}, one.answer_tokens, false);
  }
  predictions.seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return predictions;
}

void add_row(const std::string& name, const char* unit, double value, size_t samples, BenchReport& report) {
  report.rows.push_back(
      {.name = name, .unit = unit, .value = value, .min = value, .max = value, .samples = static_cast<int>(samples)});
}

// Of the answers from `first` on.
void add_rows(const std::string& prefix, std::span<const AnsweredPrompt> answers, std::span<const double> predicted,
              size_t first, BenchReport& report) {
  std::vector<int32_t> lengths;
  for (const AnsweredPrompt& one : answers) lengths.push_back(one.answer_tokens);
  const size_t count = answers.size() - first;
  const auto share = [&](const auto& is_right) {
    size_t right = 0;
    for (size_t i = first; i < answers.size(); ++i) right += is_right(predicted[i], lengths[i]) ? 1 : 0;
    return static_cast<double>(right) / static_cast<double>(count);
  };
  for (int classes = 2; classes <= kMostClasses; ++classes) {
    const std::vector<int32_t> edges = class_edges(lengths, classes);
    add_row(prefix + "right_of_" + std::to_string(classes), "share", share([&](double said, int32_t length) {
              return length_class(said, edges) == length_class(length, edges);
            }),
            count, report);
  }
  const auto error = [](double said, int32_t length) { return std::abs(std::log2(said / length)); };
  add_row(prefix + "within_factor_two", "share",
          share([&](double said, int32_t length) { return error(said, length) <= 1; }), count, report);
  std::vector<double> errors;
  double sum = 0;
  for (size_t i = first; i < answers.size(); ++i) {
    errors.push_back(error(predicted[i], lengths[i]));
    sum += errors.back();
  }
  add_row(prefix + "error_mean", "octaves", sum / static_cast<double>(count), count, report);
  add_row(prefix + "error_median", "octaves", median(std::move(errors)), count, report);
}

}  // namespace

int length_class(double length, std::span<const int32_t> edges) {
  return static_cast<int>(std::count_if(edges.begin(), edges.end(), [&](int32_t edge) { return edge <= length; }));
}

std::vector<int32_t> class_edges(std::vector<int32_t> lengths, int classes) {
  CHECK(!lengths.empty() && classes > 0);
  std::sort(lengths.begin(), lengths.end());
  std::vector<int32_t> edges;
  for (int k = 1; k < classes; ++k)
    edges.push_back(lengths[lengths.size() * static_cast<size_t>(k) / static_cast<size_t>(classes)]);
  return edges;
}

Status bench_lengths(std::span<const AnsweredPrompt> answers, BenchReport& report) {
  if (answers.size() < kAnswersLeast)
    return invalid_argument("bench lengths takes at least " + std::to_string(kAnswersLeast) + " answers; there are " +
                            std::to_string(answers.size()));
  for (const LengthPrediction prediction : {LengthPrediction::kHistory, LengthPrediction::kLearned}) {
    const std::string prefix = std::string("lengths.") + kLengthPredictionNames[static_cast<size_t>(prediction)] + ".";
    const Predictions predictions = predict_in_turn(answers, prediction);
    add_rows(prefix, answers, predictions.lengths, 0, report);
    add_rows(prefix + "late.", answers, predictions.lengths, answers.size() / 2, report);
    add_row(prefix + "request", "us", predictions.seconds * 1e6 / static_cast<double>(answers.size()), answers.size(),
            report);
  }
  const auto right = [](const BenchRow& row) { return row.name == "lengths.learned.right_of_4"; };
  const auto row = std::find_if(report.rows.begin(), report.rows.end(), right);
  report.targets.push_back({.name = "learned: into the right of 4 (the paper's proxy)",
                            .op = ">=",
                            .target = kPaperShare,
                            .measured = row->value});
  return {};
}

}  // namespace loralei
