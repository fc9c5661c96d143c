// SPDX-License-Identifier: Apache-2.0
#include "bench/rig.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

// Every round takes one second, of which others use what the script says.
struct Script {
  std::vector<double> foreign_s;
  size_t round = 0;
  bool inside = false;
  CpuUse now;
  CpuUse operator()() {
    if (inside) {
      const double foreign = round < foreign_s.size() ? foreign_s[round] : 0;
      now.wall_s += 1;
      now.own_s += 1.9;
      now.machine_s += 1.9 + foreign;
      ++round;
    } else {
      now.wall_s += 5;  // between rounds anything may happen
      now.machine_s += 10;
    }
    inside = !inside;
    return now;
  }
};

// Layers of 4e9 weights at 100 Gop/s and of 1e9 at 50, which the head's 2e9 share.
TEST(Bounds, CountEachMatrixAtTheRateOfItsWeights) {
  Rig rig;
  rig.products[4] = {.layer_weights = 4e9, .head_weights = 0, .gop_s = 100};
  rig.products[6] = {.layer_weights = 1e9, .head_weights = 2e9, .gop_s = 50};
  rig.touched_bytes = 1e9;
  rig.read_gb_s = 10;
  BenchOptions options;
  options.new_tokens = 0;
  EXPECT_DOUBLE_EQ(decode_bound_s(rig, options, 0, 8), 8 * (0.08 + 0.04 + 0.08));
  EXPECT_DOUBLE_EQ(prefill_bound_tok_s(rig, 10), 10 / (10 * (0.08 + 0.04) + 0.08));  // the last token meets the head
  rig.touched_bytes = 1e11;
  EXPECT_DOUBLE_EQ(decode_bound_s(rig, options, 0, 8), 10);
}

// Eight of 128 experts: one row reads a sixteenth, more of them ever more.
TEST(Bounds, CountOfAMixtureWhatRowsAreExpectedToUse) {
  Rig rig;
  rig.touched_bytes = 1e9;
  rig.expert_bytes = 16e9;
  rig.expert_share = 8.0 / 128;
  rig.read_gb_s = 1;
  BenchOptions options;
  options.new_tokens = 0;
  EXPECT_DOUBLE_EQ(decode_bound_s(rig, options, 0, 1), 2);
  EXPECT_NEAR(decode_bound_s(rig, options, 0, 2), 1 + 1 + 15.0 / 16, 1e-9);
  EXPECT_NEAR(decode_bound_s(rig, options, 0, 1000), 17, 1e-6);
}

TEST(Bounds, CountOfAWindowNoMoreThanItReaches) {
  Rig rig;
  rig.kv_bytes_token = 4e9;
  rig.read_gb_s = 1;
  BenchOptions options;
  options.new_tokens = 0;
  EXPECT_DOUBLE_EQ(decode_bound_s(rig, options, 100, 2), 800);
  rig.windows = {10, 0, 200, 10};
  EXPECT_DOUBLE_EQ(decode_bound_s(rig, options, 100, 2), 2 * (10 + 100 + 100 + 10));
}

TEST(QuietRounds, TheFirstWarmsUpAndDisturbedOnesAreRepeated) {
  Script script{{0, 0, 0.2, 0.04, 0, 0.051, 0}};
  script.inside = false;
  QuietRounds rounds(3, 0.05, [&] { return script(); });
  std::vector<int> kept;
  // The warm-up is not watched: its end asks for no figures.
  ASSERT_TRUE(rounds.next());
  EXPECT_FALSE(rounds.keep());
  script.inside = false;
  while (rounds.next()) {
    if (rounds.keep()) kept.push_back(rounds.number());
  }
  EXPECT_EQ(kept.size(), 3u);
  EXPECT_EQ(rounds.dropped(), 1);
}

TEST(QuietRounds, OnAMachineThatNeverIsQuietItEndsAndSaysSo) {
  Script script{std::vector<double>(100, 0.5)};
  QuietRounds rounds(4, 0.05, [&] { return script(); });
  ASSERT_TRUE(rounds.next());
  EXPECT_FALSE(rounds.keep());
  script.inside = false;
  int kept = 0;
  while (rounds.next()) kept += rounds.keep();
  EXPECT_EQ(kept, 4);
  EXPECT_EQ(rounds.dropped(), 8);
  EXPECT_EQ(rounds.number(), 12);
  BenchReport report;
  report.rows = {summarise("machine", "", {1}), summarise("decode", "", {1})};
  rounds.describe(report, 1);
  EXPECT_EQ(report.rows[0].dropped, 0);
  EXPECT_EQ(report.rows[1].dropped, 8);
  EXPECT_NE(report.rows[1].note.find("4 of 4 counted all the same"), std::string::npos);
}

}  // namespace
}  // namespace loralei
