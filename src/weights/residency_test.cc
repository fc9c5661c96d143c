// SPDX-License-Identifier: Apache-2.0
#include "weights/residency.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"
#include "base/units.h"
#include "tensor/weight_view.h"

namespace loralei {
namespace {

constexpr ResidencyPolicy kPolicies[] = {ResidencyPolicy::kBalanced,   ResidencyPolicy::kFlex,
                                         ResidencyPolicy::kLayerOrder, ResidencyPolicy::kAttnFirst,
                                         ResidencyPolicy::kFfnFirst,   ResidencyPolicy::kNone};

// Row bytes as of q4_0: 18 bytes for 32 numbers.
PlannedMatrix matrix(MatrixRole role, int32_t layer, int64_t rows, int64_t cols) {
  return {.role = role, .layer = layer, .rows = rows, .tile_bytes = kRowTile * cols / 32 * 18};
}
std::vector<PlannedMatrix> model(int layers, int64_t hidden, int64_t kv, int64_t ffn, int64_t vocab, bool tied) {
  std::vector<PlannedMatrix> list;
  for (int32_t layer = 0; layer < layers; ++layer) {
    list.push_back(matrix(MatrixRole::kQ, layer, hidden, hidden));
    list.push_back(matrix(MatrixRole::kK, layer, kv, hidden));
    list.push_back(matrix(MatrixRole::kV, layer, kv, hidden));
    list.push_back(matrix(MatrixRole::kO, layer, hidden, hidden));
    list.push_back(matrix(MatrixRole::kGate, layer, ffn, hidden));
    list.push_back(matrix(MatrixRole::kUp, layer, ffn, hidden));
    list.push_back(matrix(MatrixRole::kDown, layer, hidden, ffn));
  }
  list.push_back(matrix(MatrixRole::kHead, -1, vocab, hidden));
  list.back().tied_head = tied;
  if (!tied) list.push_back(matrix(MatrixRole::kEmbed, -1, vocab, hidden));
  return list;
}
std::vector<PlannedMatrix> llama_7b() { return model(32, 4096, 4096, 11008, 32000, false); }

int64_t total_bytes(const std::vector<PlannedMatrix>& list, bool with_embedding) {
  int64_t bytes = 0;
  for (const PlannedMatrix& m : list) bytes += m.role != MatrixRole::kEmbed || with_embedding ? planned_bytes(m) : 0;
  return bytes;
}
int64_t streamed_of(const std::vector<PlannedMatrix>& list, const ResidencyPlan& plan, size_t i) {
  return planned_bytes(list[i]) - (plan.locked_rows[i] + kRowTile - 1) / kRowTile * list[i].tile_bytes;
}
int64_t stored_of(const std::vector<PlannedMatrix>& list, const ResidencyPlan& plan, size_t i) {
  return streamed_of(list, plan, i) / list[i].tile_bytes * stored_tile_bytes(list[i]);
}
std::vector<int64_t> streamed_by_layer(const std::vector<PlannedMatrix>& list, const ResidencyPlan& plan) {
  std::vector<int64_t> layers;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].layer < 0) continue;
    layers.resize(std::max(layers.size(), static_cast<size_t>(list[i].layer) + 1));
    layers[static_cast<size_t>(list[i].layer)] += stored_of(list, plan, i);
  }
  return layers;
}
bool locked(const std::vector<PlannedMatrix>& list, const ResidencyPlan& plan, MatrixRole role) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].role == role && plan.locked_rows[i] < list[i].rows) return false;
  }
  return true;
}

// What must hold of every plan, whatever the policy.
void expect_sound(const std::vector<PlannedMatrix>& list, const ResidencyPlan& plan, int64_t bytes) {
  ASSERT_EQ(plan.locked_rows.size(), list.size());
  int64_t locked_bytes = 0, streamed = 0, decoded = 0, largest_panel = 0, largest_decoded = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSERT_GE(plan.locked_rows[i], 0);
    ASSERT_LE(plan.locked_rows[i], list[i].rows);
    if (plan.locked_rows[i] < list[i].rows) {
      ASSERT_EQ(plan.locked_rows[i] % kRowTile, 0);
    }
    locked_bytes += planned_bytes(list[i]) - streamed_of(list, plan, i);
    if (list[i].role == MatrixRole::kEmbed) continue;
    streamed += stored_of(list, plan, i);
    decoded += streamed_of(list, plan, i);
    const int64_t tiles = std::min(panel_rows(list[i]) / kRowTile, streamed_of(list, plan, i) / list[i].tile_bytes);
    largest_panel = std::max(largest_panel, tiles * stored_tile_bytes(list[i]));
    if (list[i].stored_tile_bytes > 0) largest_decoded = std::max(largest_decoded, tiles * list[i].tile_bytes);
  }
  EXPECT_EQ(plan.locked_bytes, locked_bytes);
  EXPECT_EQ(plan.streamed_bytes, streamed);
  EXPECT_LE(plan.locked_bytes + plan.window_bytes, bytes);
  EXPECT_EQ(plan.decoded_bytes, decoded);
  EXPECT_GE(plan.window_bytes - plan.decode_bytes, 2 * largest_panel);
  EXPECT_GE(plan.decode_bytes, largest_decoded);
  if (largest_decoded == 0) {
    EXPECT_EQ(plan.decode_bytes, 0);
  }
  EXPECT_LE(plan.window_bytes, 128 * kMiB);
}

TEST(Residency, EvenStreamsNeedASmallWindowAndLockTheRest) {
  const auto list = llama_7b();
  const int64_t bytes = total_bytes(list, false) / 2;
  const auto balanced = plan_residency(list, bytes, {ResidencyPolicy::kBalanced});
  const auto wide = plan_residency(list, bytes, {ResidencyPolicy::kBalanced, 128 * kMiB});
  const auto flex = plan_residency(list, bytes, {ResidencyPolicy::kFlex});
  ASSERT_TRUE(balanced.ok() && wide.ok() && flex.ok());
  EXPECT_EQ(balanced->window_bytes, kBalancedWindowBytes);
  EXPECT_GE(balanced->locked_bytes, wide->locked_bytes + 112 * kMiB - list[0].tile_bytes * 32);
  EXPECT_GT(flex->window_bytes, 100 * kMiB) << "what three layers stream: whole layers may follow each other";
}

TEST(Residency, EverythingIsLockedWhereItFits) {
  const auto list = llama_7b();
  for (ResidencyPolicy policy : kPolicies) {
    const auto plan = plan_residency(list, total_bytes(list, true), {policy});
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->streamed_bytes, 0);
    EXPECT_EQ(plan->looked_up_bytes, 0);
    EXPECT_EQ(plan->window_bytes, 0);
    // An embedding is read row by row, so it is the first to stay on disk.
    const auto without = plan_residency(list, total_bytes(list, false), {policy});
    ASSERT_TRUE(without.ok());
    EXPECT_EQ(without->streamed_bytes, 0);
    EXPECT_GT(without->looked_up_bytes, 0);
  }
}

TEST(Residency, BalancedStreamsTheSameOfEveryLayerAndUsesTheWholeBudget) {
  const auto list = llama_7b();
  for (int64_t bytes = 100'000'000; bytes < total_bytes(list, false); bytes += 173'000'000) {
    const auto plan = plan_residency(list, bytes, {});
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    expect_sound(list, *plan, bytes);
    const auto layers = streamed_by_layer(list, *plan);
    const auto [least, most] = std::minmax_element(layers.begin(), layers.end());
    int64_t largest_tile = 0;
    for (const PlannedMatrix& m : list) largest_tile = std::max(largest_tile, m.tile_bytes);
    EXPECT_LE(*most - *least, 2 * largest_tile) << bytes;
    EXPECT_LT(bytes - plan->locked_bytes - plan->window_bytes, largest_tile) << bytes;
    EXPECT_EQ(plan->looked_up_bytes, planned_bytes(list.back()));
  }
}

TEST(Residency, ShrunkMatricesAreBalancedByWhatIsRead) {
  auto list = llama_7b();
  for (PlannedMatrix& m : list) {  // some matrices and whole layers shrink more than others
    if (m.role != MatrixRole::kEmbed && m.role != MatrixRole::kV)
      m.stored_tile_bytes = m.tile_bytes * (m.layer % 2 == 0 ? 7 : 8) / 10;
  }
  for (int64_t bytes = 100'000'000; bytes < total_bytes(list, false); bytes += 273'000'000) {
    const auto plan = plan_residency(list, bytes, {});
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    expect_sound(list, *plan, bytes);
    const auto layers = streamed_by_layer(list, *plan);
    const auto [least, most] = std::minmax_element(layers.begin(), layers.end());
    int64_t largest_tile = 0;
    for (const PlannedMatrix& m : list) largest_tile = std::max(largest_tile, m.tile_bytes);
    // Near the smallest budgets a layer that shrinks well streams all it has.
    if (plan->locked_bytes > 800'000'000) {
      EXPECT_LE(*most - *least, 2 * largest_tile) << bytes;
    }
    EXPECT_LT(bytes - plan->locked_bytes - plan->window_bytes, largest_tile) << bytes;
    EXPECT_LT(plan->streamed_bytes, plan->decoded_bytes);
  }
}

TEST(Residency, FlexFollowsTheAlgorithm) {
  const auto list = llama_7b();
  const int64_t attn = planned_bytes(list[0]), ffn = planned_bytes(list[4]), layers = 32;
  const int64_t outer = planned_bytes(list[list.size() - 1]) + planned_bytes(list[list.size() - 2]);
  const auto plan_with = [&](int64_t size_mem) {  // the paper's size_mem: what is left for layers
    const auto plan = plan_residency(list, outer + 128 * kMiB + size_mem, {ResidencyPolicy::kFlex, 128 * kMiB});
    EXPECT_TRUE(plan.ok());
    return *plan;
  };
  const auto all = plan_with(layers * (3 * ffn + 2 * attn));
  EXPECT_TRUE(locked(list, all, MatrixRole::kGate) && locked(list, all, MatrixRole::kUp) &&
              locked(list, all, MatrixRole::kDown) && locked(list, all, MatrixRole::kK) &&
              locked(list, all, MatrixRole::kV));
  EXPECT_EQ(all.streamed_bytes, layers * 2 * attn);
  // Below that only two FFN kinds, although three would fit.
  const auto two = plan_with(layers * (3 * ffn + attn));
  EXPECT_TRUE(locked(list, two, MatrixRole::kGate) && locked(list, two, MatrixRole::kUp));
  EXPECT_FALSE(locked(list, two, MatrixRole::kDown));
  EXPECT_TRUE(locked(list, two, MatrixRole::kV) && locked(list, two, MatrixRole::kQ));  // 2.7 + 1 > 3
  const auto one = plan_with(layers * ffn + layers * attn);
  EXPECT_TRUE(locked(list, one, MatrixRole::kGate) && locked(list, one, MatrixRole::kK));
  EXPECT_FALSE(locked(list, one, MatrixRole::kUp) || locked(list, one, MatrixRole::kV));
  // Too little for one FFN kind: attention only, half of a kind spread over depth.
  const auto little = plan_with(layers * 2 * attn + 16 * attn);
  EXPECT_FALSE(locked(list, little, MatrixRole::kGate));
  EXPECT_TRUE(locked(list, little, MatrixRole::kK) && locked(list, little, MatrixRole::kV));
  const auto by_layer = streamed_by_layer(list, little);
  for (size_t layer = 0; layer + 1 < by_layer.size(); layer += 2)
    EXPECT_EQ(by_layer[layer] + by_layer[layer + 1], 6 * ffn + 3 * attn);
}

TEST(Residency, TheAblationsLockInTheirOrder) {
  const auto list = llama_7b();
  const int64_t bytes = 2'000'000'000;
  const auto plan_of = [&](ResidencyPolicy policy) { return plan_residency(list, bytes, {policy}).value(); };
  const auto order = streamed_by_layer(list, plan_of(ResidencyPolicy::kLayerOrder));
  EXPECT_EQ(order.front(), 0);
  EXPECT_GT(order.back(), 100'000'000);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  const auto attn = plan_of(ResidencyPolicy::kAttnFirst);
  EXPECT_TRUE(locked(list, attn, MatrixRole::kQ) && locked(list, attn, MatrixRole::kO));
  EXPECT_FALSE(locked(list, attn, MatrixRole::kDown));
  const auto ffn = plan_of(ResidencyPolicy::kFfnFirst);
  EXPECT_TRUE(locked(list, ffn, MatrixRole::kGate));
  EXPECT_FALSE(locked(list, ffn, MatrixRole::kQ));
}

TEST(Residency, ATooSmallBudgetIsRefusedWithTheLeastThatWouldDo) {
  const auto list = llama_7b();
  for (ResidencyPolicy policy : kPolicies) {
    const auto refused = plan_residency(list, 1'000'000, {policy});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
    EXPECT_NE(refused.error().message.find("raise --memory-budget by"), std::string::npos);
    // The least is really enough, and a megabyte less is not.
    int64_t low = 0, high = total_bytes(list, true);
    while (high - low > 4096) {
      const int64_t middle = (low + high) / 2;
      (plan_residency(list, middle, {policy}).ok() ? high : low) = middle;
    }
    const auto plan = plan_residency(list, high, {policy});
    ASSERT_TRUE(plan.ok());
    expect_sound(list, *plan, high);
    const bool balanced = policy == ResidencyPolicy::kBalanced;
    EXPECT_LT(high, balanced ? 12 * kMiB : 180 * kMiB) << residency_policy_name(policy);
    const int64_t named = least_residency_bytes(list, policy);
    EXPECT_TRUE(plan_residency(list, named, {policy}).ok());
    EXPECT_LT(named - high, 64 * kKiB) << residency_policy_name(policy);
  }
}

TEST(Residency, TheRefusalNamesWhatIsTooSmall) {
  const auto list = llama_7b();
  const auto deep = plan_residency(list, -50'000'000, {});  // other uses alone exceed the budget
  ASSERT_FALSE(deep.ok());
  const auto least = plan_residency(list, 1, {});
  ASSERT_FALSE(least.ok());
  EXPECT_NE(deep.error().message, least.error().message);  // 50 MB more are needed
  const auto window = plan_residency(list, 1'000'000'000, {ResidencyPolicy::kBalanced, 100'000});
  ASSERT_FALSE(window.ok());
  EXPECT_NE(window.error().message.find("--prefetch-window"), std::string::npos) << window.error().message;
}

TEST(Residency, RandomModelsAndBudgets) {
  const uint64_t seed = 20261120;
  Prng prng(seed);
  for (int round = 0; round < 400; ++round) {
    const auto size = [&](int64_t most) { return static_cast<int64_t>(1 + prng.below(static_cast<uint64_t>(most))); };
    const int64_t hidden = 32 * size(64), kv = std::min(hidden, 32 * size(16)), ffn = 32 * size(200);
    auto list = model(static_cast<int>(size(12)), hidden, kv, ffn, size(9000), prng.below(2) == 0);
    // Mixed formats: some matrices have larger rows.
    for (PlannedMatrix& m : list) m.tile_bytes = prng.below(4) == 0 ? m.tile_bytes / 18 * 26 : m.tile_bytes;
    if (prng.below(2) == 0) {
      for (PlannedMatrix& m : list)
        m.stored_tile_bytes = prng.below(4) == 0 ? 0 : m.tile_bytes * static_cast<int64_t>(69 + prng.below(26)) / 100;
    }
    const int64_t bytes = size(total_bytes(list, true) + 1000);
    for (ResidencyPolicy policy : kPolicies) {
      const auto plan = plan_residency(list, bytes, {policy});
      if (!plan.ok()) continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + " round " + std::to_string(round) + " policy " +
                   residency_policy_name(policy));
      expect_sound(list, *plan, bytes);
    }
  }
}

TEST(Residency, NamesAreParsedAndPrinted) {
  for (ResidencyPolicy policy : kPolicies)
    EXPECT_EQ(parse_residency_policy(residency_policy_name(policy)).value(), policy);
  EXPECT_FALSE(parse_residency_policy("fastest").ok());
  const auto list = llama_7b();
  const std::string text = describe_residency(list, plan_residency(list, 1'000'000'000, {}).value());
  EXPECT_NE(text.find("gate"), std::string::npos);
  EXPECT_NE(text.find("looked up"), std::string::npos);
}

// Layers of attention and of eight experts each, those of every other layer larger.
std::vector<PlannedMatrix> mixture() {
  std::vector<PlannedMatrix> list;
  for (int32_t layer = 0; layer < 6; ++layer) {
    list.push_back({.role = MatrixRole::kQ, .layer = layer, .rows = 2048, .tile_bytes = 4096});
    for (int32_t expert = 0; expert < 8; ++expert) {
      for (const MatrixRole role : {MatrixRole::kGate, MatrixRole::kUp, MatrixRole::kDown}) {
        list.push_back({.role = role,
                        .layer = layer,
                        .expert = expert,
                        .rows = 128,
                        .tile_bytes = layer % 2 == 0 || role != MatrixRole::kDown ? 4096 : 6000});
      }
    }
  }
  list.push_back({.role = MatrixRole::kHead, .rows = 512, .tile_bytes = 4096});
  list.push_back({.role = MatrixRole::kEmbed, .rows = 512, .tile_bytes = 4096});
  return list;
}

TEST(Residency, OfAMixtureAllElseIsLockedFirstAndExpertsHaveWhatIsLeft) {
  const std::vector<PlannedMatrix> list = mixture();
  int64_t experts = 0, others = 0;
  for (const PlannedMatrix& matrix : list) {
    if (matrix.role == MatrixRole::kEmbed) continue;
    (matrix.expert >= 0 ? experts : others) += planned_bytes(matrix);
  }
  const auto whole = plan_residency(list, experts + others, {});
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->expert_bytes, 0);
  EXPECT_FALSE(whole->streams());

  const auto part = plan_residency(list, others + experts / 2, {});
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->locked_bytes, others);
  EXPECT_EQ(part->expert_bytes, experts / 2);
  EXPECT_EQ(part->streamed_bytes, 0);
  EXPECT_EQ(part->window_bytes, 0);
  EXPECT_TRUE(part->streams());
  for (size_t i = 0; i < list.size(); ++i)
    EXPECT_EQ(part->locked_rows[i], list[i].expert >= 0 || list[i].role == MatrixRole::kEmbed ? 0 : list[i].rows);
  EXPECT_NE(describe_residency(list, *part).find("48 experts"), std::string::npos);
  // A row uses two of the eight experts of a layer, and finds every other one.
  const PassBytes bytes = pass_bytes(list, *part, 2);
  EXPECT_NEAR(static_cast<double>(bytes.touched), static_cast<double>(others + experts / 4), 100000.0);
  EXPECT_NEAR(static_cast<double>(bytes.read), static_cast<double>(experts / 8), 50000.0);
}

TEST(Residency, WhereAMixturesOthersDoNotFitTheyAreStreamedAndTwoExpertsOfASizeHaveRoom) {
  const std::vector<PlannedMatrix> list = mixture();
  int64_t others = 0;
  for (const PlannedMatrix& matrix : list) {
    if (matrix.role != MatrixRole::kEmbed && matrix.expert < 0) others += planned_bytes(matrix);
  }
  const auto part = plan_residency(list, others, {});
  ASSERT_TRUE(part.ok()) << part.error().message;
  EXPECT_GT(part->streamed_bytes, 0);
  EXPECT_LT(part->streamed_bytes, others);
  const int64_t smaller = 3 * 8 * 4096, larger = 2 * 8 * 4096 + 12 * 4096;  // whole pages of a part
  EXPECT_EQ(part->expert_bytes, 2 * (smaller + larger));
  EXPECT_LE(part->locked_bytes + part->window_bytes + part->expert_bytes, others);

  const int64_t least = least_residency_bytes(list, ResidencyPolicy::kBalanced);
  EXPECT_TRUE(plan_residency(list, least, {}).ok());
  EXPECT_FALSE(plan_residency(list, least - 1, {}).ok());
}

TEST(Residency, EveryBudgetOfAMixtureIsKept) {
  const std::vector<PlannedMatrix> list = mixture();
  int64_t all = 0;
  for (const PlannedMatrix& matrix : list) all += planned_bytes(matrix);
  for (const ResidencyPolicy policy : {ResidencyPolicy::kBalanced, ResidencyPolicy::kFlex, ResidencyPolicy::kNone}) {
    for (int64_t bytes = least_residency_bytes(list, policy); bytes < all; bytes += 77777) {
      const auto plan = plan_residency(list, bytes, {.policy = policy});
      ASSERT_TRUE(plan.ok()) << plan.error().message;
      EXPECT_LE(plan->locked_bytes + plan->window_bytes + plan->expert_bytes, bytes);
    }
  }
}

}  // namespace
}  // namespace loralei
