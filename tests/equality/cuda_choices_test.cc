// SPDX-License-Identifier: Apache-2.0
// Tokens that a GPU chooses are those of the host's sampler from the same logits.
#include "equality/cuda_graphs_fixture.h"
#include "sampling/sampler.h"

namespace loralei::test {
namespace {

class CudaChoices : public CudaGraphs {};

// Rows choose as the host's sampler does from the same logits, the others bring theirs,
// and one graph serves every mix.
TEST_P(CudaChoices, AreTheHostSamplers) {
  constexpr float kUntouched = -7;
  const auto vocab = static_cast<size_t>(harness_->config().vocab);
  const std::vector<AdapterRef> use = {{adapters_[0], 1.0f, 0}};
  both({span(0, 0, 3), span(1, 0, 4, use), span(2, 0, 5)});
  Sampler sampler;
  int drawn = 0, different = 0;
  for (int round = 0; round < 24; ++round) {
    const std::vector<Span> decode = {token(0, 3 + round), token(1, 4 + round, use), token(2, 5 + round)};
    std::vector<RowChoice> choices(3);
    for (size_t row = 0; row < 3; ++row) {
      if (random_.below(4) == 0) continue;  // wants its logits
      RowChoice& choice = choices[row];
      choice.vocab = static_cast<int32_t>(random_.below(3) == 0 ? vocab / 2 : vocab + random_.below(2));
      choice.temperature = random_.below(3) == 0 ? 0.0f : 0.7f;
      choice.top_k = random_.below(3) == 0 ? 5 : 0;
      choice.top_p = random_.below(3) == 0 ? 0.8f : 1.0f;
      choice.min_p = random_.below(3) == 0 ? 0.1f : 0.0f;
      choice.seed = random_();
      choice.position = static_cast<uint64_t>(round);
    }
    TokenId chosen[3] = {-9, -9, -9};
    const StepOutput want = step(plain_, decode);
    const StepOutput got = step(graphs_, decode, [&](ModelBatch batch) {
      std::fill_n(batch.logits, 3 * batch.logits_stride, kUntouched);
      batch.choices = choices;
      batch.chosen = chosen;
      return batch;
    });
    for (size_t row = 0; row < 3; ++row) {
      SCOPED_TRACE("round " + std::to_string(round) + " row " + std::to_string(row));
      const RowChoice& choice = choices[row];
      if (choice.vocab == 0) {
        EXPECT_TRUE(std::equal(want.logits[row].begin(), want.logits[row].end(), got.logits[row].begin()));
        EXPECT_EQ(chosen[row], -9);
        continue;
      }
      EXPECT_TRUE(std::all_of(got.logits[row].begin(), got.logits[row].end(), [](float x) { return x == kUntouched; }));
      SamplingParams params;
      params.temperature = choice.temperature;
      params.top_k = choice.top_k;
      params.top_p = choice.top_p;
      params.min_p = choice.min_p;
      params.seed = choice.seed;
      const size_t columns = std::min(vocab, static_cast<size_t>(choice.vocab));
      const TokenId expected = sampler.sample(
          {.logits = std::span(want.logits[row]).first(columns), .params = &params, .position = choice.position});
      ++drawn;
      different += chosen[row] != expected;
      if (choice.temperature == 0) {
        EXPECT_EQ(chosen[row], expected);
      }
    }
  }
  EXPECT_GT(drawn, 30);
  EXPECT_LE(different, 1) << "of " << drawn;  // roundings of a draw may differ (cuda_ops.h)
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_EQ(graphs_.model->graphs().launched(), 23);
}

INSTANTIATE_TEST_SUITE_P(Some, CudaChoices, testing::Values(subjects()[0], subjects()[1]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace loralei::test
