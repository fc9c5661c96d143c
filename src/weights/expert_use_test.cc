// SPDX-License-Identifier: Apache-2.0
// Experts are handed out once each, with the bytes of the model's file, whatever of them
// lies in memory.
#include "weights/expert_use.h"

#include <set>

#include "weights/streaming_fixture.h"

namespace loralei {
namespace {

using testing_support::StreamingFixture;

class ExpertUses : public StreamingFixture {
 protected:
  static TensorSlot slot(const WeightStore& store, int layer, const char* name) {
    return store.find("model.layers." + std::to_string(layer) + "." + name + ".weight");
  }
  static std::vector<ExpertSlots> experts_of(const BaseModelFile& model, const WeightStore& store, int layer) {
    std::vector<ExpertSlots> experts(static_cast<size_t>(model.config.experts.count));
    for (size_t expert = 0; expert < experts.size(); ++expert) {
      for (int part = 0; part < kExpertMatrixCount; ++part) {
        experts[expert][static_cast<size_t>(part)] =
            store.find(expert_module(layer, static_cast<int>(expert), part) + ".weight");
        EXPECT_NE(experts[expert][static_cast<size_t>(part)], kNoTensor);
      }
    }
    return experts;
  }
  static Status drain(WeightStore& store, std::span<const TensorSlot> slots) {
    WeightUse use(store, slots);
    for (;;) {
      TRY_ASSIGN(const bool more, use.next());
      if (!more) return {};
    }
  }
  static void expect_expert(const WeightStore& resident, const ExpertView& view, const ExpertSlots& slots) {
    const WeightView* const views[] = {&view.gate, &view.up, &view.down};
    for (size_t part = 0; part < slots.size(); ++part) {
      const std::vector<std::byte> want = resident_bytes(resident.view(slots[part]));
      std::vector<std::byte> got(want.size());
      copy_panels(*views[part], got);
      EXPECT_TRUE(got == want) << "part " << part << " of expert " << view.expert;
    }
  }
  // A pass in which the rows of each layer have chosen these; answers how many rounds.
  static Result<int> pass(const BaseModelFile& model, WeightStore& store, const WeightStore& resident,
                          const std::vector<int32_t>& chosen) {
    WeightPass pass(store);
    int rounds = 0;
    for (int layer = 0; layer < model.config.layers; ++layer) {
      for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}) {
        const TensorSlot one = slot(store, layer, name);
        TRY(drain(store, {&one, 1}));
      }
      const std::vector<ExpertSlots> experts = experts_of(model, store, layer);
      std::vector<ExpertView> room(experts.size());
      std::multiset<int32_t> seen;
      ExpertUse use(store, experts, chosen, room);
      for (;; ++rounds) {
        TRY_ASSIGN(const bool more, use.next());
        if (!more) break;
        EXPECT_FALSE(use.views().empty());
        for (const ExpertView& view : use.views()) {
          seen.insert(view.expert);
          expect_expert(resident, view, experts[static_cast<size_t>(view.expert)]);
        }
      }
      EXPECT_EQ(seen, std::multiset<int32_t>(chosen.begin(), chosen.end()));
    }
    const TensorSlot head = store.find("lm_head.weight");
    TRY(drain(store, {&head, 1}));
    pass.done();
    return rounds;
  }
};

TEST_F(ExpertUses, InMemoryComeInOneRound) {
  const BaseModelFile model = open("mixtral");
  auto store = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(store.ok()) << store.error().message;
  for (const std::vector<int32_t>& chosen : {std::vector<int32_t>{0, 1, 2, 3}, {2}, {0, 3}}) {
    const auto rounds = pass(model, **store, **store, chosen);
    ASSERT_TRUE(rounds.ok()) << rounds.error().message;
    EXPECT_EQ(*rounds, model.config.layers);
  }
}

TEST_F(ExpertUses, ThoseThatAreReadComeToo) {
  for (const char* name : {"mixtral", "gpt-oss", "gpt-oss-mxfp4", "gguf-mixtral-q4_0.gguf"}) {
    SCOPED_TRACE(name);
    const BaseModelFile model = open(name);
    auto resident = WeightStore::load(model, ledger_, {});
    ASSERT_TRUE(resident.ok()) << resident.error().message;
    StreamingOptions streaming;
    streaming.packed_path = pack(model);
    const int64_t whole = (*resident)->whole_bytes();
    const int64_t least = (*resident)->least_bytes(ResidencyPolicy::kBalanced);
    int streamed = 0, rounds_most = 0;
    for (const int64_t budget : {least, (least + whole) / 2, whole - (int64_t{16} << 10)}) {
      streaming.weight_bytes = budget;
      auto store = stream(model, streaming);
      ASSERT_TRUE(store.ok()) << store.error().message;
      streamed += (*store)->streams();
      for (const std::vector<int32_t>& chosen : {std::vector<int32_t>{0, 1, 2, 3}, {1}, {0, 3}, {3}}) {
        const auto rounds = pass(model, **store, **resident, chosen);
        ASSERT_TRUE(rounds.ok()) << rounds.error().message;
        rounds_most = std::max(rounds_most, *rounds);
      }
    }
    EXPECT_EQ(streamed, 3);
    EXPECT_GT(rounds_most, model.config.layers);
  }
}

// From budget to budget, whole ones between: no more is held than that, and every pass
// has the bytes of the model.
TEST_F(ExpertUses, ABudgetChangesBetweenPasses) {
  const BaseModelFile model = open("gguf-mixtral-q4_0.gguf");
  auto resident = WeightStore::load(model, ledger_, {});
  ASSERT_TRUE(resident.ok()) << resident.error().message;
  StreamingOptions streaming;
  streaming.packed_path = pack(model);
  const int64_t whole = (*resident)->whole_bytes();
  const int64_t least = (*resident)->least_bytes(ResidencyPolicy::kBalanced);
  streaming.weight_bytes = least;
  auto store = stream(model, streaming);
  ASSERT_TRUE(store.ok()) << store.error().message;
  ExpertTotals totals;
  for (const int64_t budget : {whole * 2, (least + whole) / 2, least, whole - (int64_t{6} << 10), whole * 2, least}) {
    SCOPED_TRACE(testing::Message() << "budget " << budget);
    streaming.weight_bytes = budget;
    const Status status = (*store)->resize(model, {}, streaming, log_);
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_LE((*store)->resident_bytes(), budget);
    EXPECT_EQ((*store)->streams(), budget < whole);
    EXPECT_EQ((*store)->describe().find("room for") != std::string::npos, budget < whole);
    for (const std::vector<int32_t>& chosen : {std::vector<int32_t>{0, 1, 2, 3}, {1}, {0, 3}}) {
      const auto rounds = pass(model, **store, **resident, chosen);
      ASSERT_TRUE(rounds.ok()) << rounds.error().message;
    }
    const ExpertTotals now = (*store)->expert_totals();
    const int64_t uses = now.hits + now.misses - totals.hits - totals.misses;
    EXPECT_EQ(uses, budget < whole ? 7 * model.config.layers : 0) << "of the caches before it, too";
    totals = now;
  }
}

}  // namespace
}  // namespace loralei
