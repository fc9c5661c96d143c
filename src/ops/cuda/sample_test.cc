// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "base/prng.h"
#include "ops/cuda/cuda_test_util.h"

namespace loralei::cuda {
namespace {

class CudaSample : public CudaTest {
 protected:
  // Rows of `vocab` logits, all of them possible unless the row says otherwise (-1:
  // its vocabulary is 0).
  std::vector<TokenId> run(const std::vector<float>& logits, int32_t vocab, std::vector<RowChoice> params) {
    for (RowChoice& row : params) row.vocab = row.vocab == 0 ? vocab : std::max(0, row.vocab);
    auto d_logits = device(logits);
    auto d_params = device(params);
    auto tokens = device(std::vector<TokenId>(params.size(), -7));
    const Status launched =
        sample(stream_, {d_logits.data(), vocab, static_cast<int32_t>(params.size()), d_params.data(), tokens.data()});
    EXPECT_TRUE(launched.ok());
    return tokens.get();
  }
};

// sampling/sampler.h in double, over finite logits and -inf.
TokenId expected_token(const float* logits, int32_t vocab, const RowChoice& params) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < vocab; ++id)
    if (logits[id] > -INFINITY) ids.push_back(id);
  if (ids.empty()) return -1;
  const auto better = [&](TokenId a, TokenId b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const TokenId best = *std::min_element(ids.begin(), ids.end(), better);
  if (params.temperature <= 0 || params.top_k == 1) return best;
  const double top = static_cast<double>(logits[best]), temperature = static_cast<double>(params.temperature);
  const auto weight = [&](TokenId id) { return std::exp((static_cast<double>(logits[id]) - top) / temperature); };
  const auto total = [&] {
    return std::accumulate(ids.begin(), ids.end(), 0.0, [&](double sum, TokenId id) { return sum + weight(id); });
  };
  const bool by_id = (params.top_k <= 0 || params.top_k >= vocab) && params.top_p >= 1;
  if (!by_id) std::sort(ids.begin(), ids.end(), better);
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < ids.size()) ids.resize(static_cast<size_t>(params.top_k));
  if (params.top_p < 1) {
    const double goal = static_cast<double>(params.top_p) * total();
    double sum = 0;
    size_t kept = 0;
    while (kept < ids.size() && (kept == 0 || sum < goal)) sum += weight(ids[kept++]);
    ids.resize(kept);
  }
  const double least = top + temperature * std::log(static_cast<double>(params.min_p));
  if (params.min_p > 0)
    std::erase_if(ids, [&](TokenId id) { return static_cast<double>(logits[id]) < least && id != best; });
  const double target = uniform_at(params.seed, params.choice, params.position) * total();
  double sum = 0;
  for (TokenId id : ids) {
    sum += weight(id);
    if (sum > target) return id;
  }
  return ids.back();
}

TEST_F(CudaSample, GreedyIsExactAndTiesGoToTheLowestId) {
  const float inf = INFINITY;
  const std::vector<std::vector<float>> rows = {{1, 3, 3, 2, -inf},
                                                {-inf, -inf, -inf, -inf, -inf},
                                                {NAN, -5, NAN, -5, -6},
                                                {0, -0.0f, inf, inf, 1},
                                                {-0.0f, 0, -1, -1, -1}};
  std::vector<float> logits;
  for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
  EXPECT_EQ(run(logits, 5, std::vector<RowChoice>(5)), (std::vector<TokenId>{1, -1, 1, 2, 0}));
  std::vector<RowChoice> warm(5, {.temperature = 2, .top_k = 1});
  warm[3].vocab = -1;
  warm[0].vocab = 1;
  EXPECT_EQ(run(logits, 5, warm), (std::vector<TokenId>{0, -1, 1, -7, 0}));
  Prng prng(951);
  std::vector<float> wide = random_floats(prng, 3 * 2000, 30);
  const std::vector<TokenId> got = run(wide, 2000, std::vector<RowChoice>(3));
  for (int row = 0; row < 3; ++row)
    EXPECT_EQ(got[static_cast<size_t>(row)], expected_token(&wide[static_cast<size_t>(row) * 2000], 2000, {}));
}

TEST_F(CudaSample, DrawsAreTheHostsSamplersUpToRounding) {
  Prng prng(952);
  int different = 0, drawn = 0;
  for (int32_t vocab : {1, 7, 300, 1000, 3000}) {
    std::vector<RowChoice> params;
    for (int i = 0; i < 32; ++i) {
      RowChoice& p = params.emplace_back();
      p.temperature = 0.2f + static_cast<float>(prng.uniform() * 2);
      p.seed = prng(), p.position = prng.below(100000), p.choice = static_cast<uint32_t>(prng.below(4));
      if (i % 4 != 0 && prng.below(2) != 0) p.top_k = 1 + static_cast<int32_t>(prng.below(40));
      if (i % 4 != 0 && prng.below(2) != 0) p.top_p = static_cast<float>(prng.uniform());
      if (i % 4 != 0 && prng.below(3) == 0) p.min_p = static_cast<float>(prng.uniform() * 0.3);
    }
    // Of three thousand most are near the best: too many to sort.
    std::vector<float> logits = random_floats(prng, 32 * int64_t{vocab}, vocab > 1000 ? 2 : 6);
    // Half of the rows are full of ties, some tokens are impossible.
    for (size_t i = 0; i < logits.size(); ++i) {
      if (i / static_cast<size_t>(vocab) % 2 == 0) logits[i] = std::round(logits[i]);
      if (prng.below(9) == 0) logits[i] = -INFINITY;
    }
    const std::vector<TokenId> got = run(logits, vocab, params);
    for (size_t i = 0; i < params.size(); ++i, ++drawn) {
      const TokenId want = expected_token(&logits[i * static_cast<size_t>(vocab)], vocab, params[i]);
      different += got[i] != want;
    }
  }
  EXPECT_LE(different, 1) << "of " << drawn;
}

// Draws from four tokens: each frequency within five standard deviations.
TEST_F(CudaSample, FrequenciesFollowTheDistribution) {
  const std::vector<float> four = {0, 1, 2, -1};
  const int draws = 600;
  std::vector<float> logits;
  std::vector<RowChoice> params;
  for (int i = 0; i < draws; ++i) {
    logits.insert(logits.end(), four.begin(), four.end());
    params.push_back(
        {.temperature = 1, .min_p = i % 2 == 0 ? 0.0f : 0.01f, .seed = 5, .position = static_cast<uint64_t>(i)});
  }
  int counts[4] = {};
  for (TokenId token : run(logits, 4, params)) ++counts[token];
  double total = 0;
  for (float logit : four) total += std::exp(static_cast<double>(logit));
  for (size_t id = 0; id < 4; ++id) {
    const double p = std::exp(static_cast<double>(four[id])) / total;
    EXPECT_NEAR(counts[id], draws * p, 5 * std::sqrt(draws * p * (1 - p)));
  }
}

}  // namespace
}  // namespace loralei::cuda
