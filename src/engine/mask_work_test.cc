// SPDX-License-Identifier: Apache-2.0
// Masks of grammars between steps: what they may take, who waits for them, and that
// texts stay the same.
#include "engine/mask_work.h"

#include <gtest/gtest.h>

#include <random>

#include "base/allocation_counter.h"
#include "base/fixed_byte_budget.h"
#include "base/prng.h"
#include "engine/loop_test_world.h"
#include "sampling/grammar.h"

namespace loralei::testing_support {
namespace {

// Tokens of `length` letters; id 0 ends.
std::shared_ptr<const VocabTrie> words(int length, int letters, uint64_t seed) {
  Prng random(seed);
  std::vector<GrammarToken> tokens{{kEos, "", GrammarToken::Kind::kEnd}};
  for (int32_t id = 1; id < kVocab; ++id) {
    GrammarToken& token = tokens.emplace_back(GrammarToken{id, ""});
    for (int i = 0; i < length; ++i)
      token.bytes += static_cast<char>('a' + random.below(static_cast<uint64_t>(letters)));
  }
  return std::move(VocabTrie::build(std::move(tokens), kVocab)).value();
}

// Any letter may begin one of ten counts of forty: nearly every prefix of a token leads
// to a set of its own.
std::shared_ptr<const GrammarProgram> hostile_program() {
  GrammarBuilder builder;
  const GrammarRuleId root = builder.add_rule();
  const GrammarStateId start = builder.start(root);
  builder.add_range(start, 'a', 'z', start);
  builder.end_rule(start);
  for (uint8_t last = 'e'; last <= 'w'; last += 2) {
    GrammarStateId state = builder.range(start, 'a', last);
    for (int i = 1; i < 40; ++i) state = builder.range(state, 'a', 'z');
    builder.add_empty(state, start);
  }
  return std::move(std::move(builder).finish(root)).value();
}

Submit hostile(int output, int choices) {
  static const auto program = hostile_program();
  static const auto vocab = words(40, 26, 7);
  Submit submit = simple(10, output, 3);
  submit.choices = choices;
  submit.sampling.grammar = program;
  submit.sampling.vocab_trie = vocab;
  return submit;
}

int64_t work_of_first_mask(const Submit& submit) {
  GrammarState state(submit.sampling.grammar, submit.sampling.vocab_trie);
  int64_t work = state.work();
  while (!state.ready()) work += state.prepare(512);
  EXPECT_TRUE(state.any_may_come());
  return work;
}

// What the request must give, every mask made at once.
std::vector<TokenId> expected_text(const Submit& submit, int32_t choice) {
  GrammarState grammar(submit.sampling.grammar, submit.sampling.vocab_trie);
  Sampler sampler;
  std::vector<uint32_t> mask(submit.sampling.vocab_trie->mask_words());
  std::vector<TokenId> text = submit.prompt, output;
  while (static_cast<int32_t>(output.size()) < submit.max_tokens) {
    if (!grammar.fill_mask(mask)) break;
    const TokenId token = sampler.sample({.logits = fake_logits(hash_chain(text, {}).back()),
                                          .params = &submit.sampling,
                                          .choice = static_cast<uint32_t>(choice),
                                          .position = text.size(),
                                          .prompt = submit.prompt,
                                          .output = output,
                                          .allowed = mask});
    if (token == kNoToken) break;
    EXPECT_TRUE(grammar.advance(token));
    text.push_back(token);
    output.push_back(token);
    if (grammar.ended() || grammar.complete()) break;
  }
  return output;
}

constexpr int64_t kStepNs = 1'000'000;

// A neighbour gets a token in every turn, and between two steps no more work is done than
// a tenth of the step allows, however many rows wait; what one slice takes more is taken
// from the next steps.
TEST(MaskWork, AHostileGrammarCostsANeighbourATenth) {
  World world({.blocks = 256, .max_sequences = 65, .step_tokens = 128});
  world.executor.clock = &world.clock;
  world.executor.step_ns = kStepNs;
  const int64_t whole = work_of_first_mask(hostile(1, 1));
  ASSERT_GT(whole, 200'000) << "the grammar is not dear";
  const RequestId neighbour = world.submit(simple(10, 200, 1));
  world.turn();
  const RequestId other = world.submit(hostile(1, 64));
  constexpr int64_t kAllowed = kStepNs / 10 / 10;  // a unit of work counts as 10 ns at least
  constexpr int64_t kSliceMost = 4096;
  const int64_t begin = world.loop->mask_work();
  int64_t before = begin;
  for (int turn = 1; turn < 200; ++turn) {
    const int tokens = world.record(neighbour).events;
    world.turn();
    ASSERT_EQ(world.record(neighbour).events, tokens + 1) << "turn " << turn;
    const int64_t now = world.loop->mask_work();
    ASSERT_LE(now - before, kAllowed + kSliceMost) << "turn " << turn;
    ASSERT_LE(now - begin, kAllowed * turn + kSliceMost) << "turn " << turn;
    before = now;
  }
  EXPECT_GT(before - begin, kAllowed * 150) << "what is allowed is used";
  EXPECT_EQ(world.record(neighbour).end, EndReason::kLength);
  world.expect_oracle(neighbour);
  world.run(100'000);
  for (int32_t choice = 0; choice < 64; ++choice) EXPECT_NE(world.record(other, choice).end, EndReason::kNone);
  world.expect_nothing_held();
}

// Whose grammar is usual does not queue behind who came before with a dear one.
TEST(MaskWork, CheapMasksComeFirst) {
  World world({.blocks = 256, .max_sequences = 40, .step_tokens = 128});
  world.executor.clock = &world.clock;
  world.executor.step_ns = kStepNs;
  const RequestId neighbour = world.submit(simple(10, 250, 1));
  for (int i = 0; i < 30; ++i) world.submit(hostile(4, 1));
  for (int turn = 0; turn < 30; ++turn) world.turn();
  GrammarBuilder builder;
  const GrammarRuleId root = builder.add_rule();
  builder.add_range(builder.start(root), 'a', 'z', builder.start(root));
  builder.end_rule(builder.start(root));
  Submit cheap = simple(10, 20, 2);
  cheap.sampling.grammar = std::move(std::move(builder).finish(root)).value();
  cheap.sampling.vocab_trie = words(3, 26, 9);
  const RequestId id = world.submit(cheap);
  int turns = 0;
  while (world.record(id).end == EndReason::kNone && turns < 300) {
    world.turn();
    ++turns;
  }
  EXPECT_LT(turns, 60) << "for 20 tokens";
  EXPECT_EQ(world.record(id).tokens, expected_text(cheap, 0));
  world.cancel(neighbour);
  world.run(100'000);
  world.expect_nothing_held();
}

// Random forms beside each other, in little memory, with and without drafts: every text
// is the one of its own request.
TEST(MaskWork, TextsAreThoseOfMasksMadeAtOnce) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 12; ++round) {
    World world({.blocks = 24 + static_cast<int32_t>(random() % 60),
                 .max_sequences = 6,
                 .step_tokens = 24,
                 .speculate = random() % 2 == 0 ? Speculation::kLookup : Speculation::kOff,
                 .draft_rows = 16});
    world.executor.clock = random() % 2 == 0 ? &world.clock : nullptr;
    world.executor.step_ns = 20'000;
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) {
      Submit submit = random() % 4 == 0 ? hostile(3, 2) : simple(5 + static_cast<int>(random() % 30), 12, i);
      submit.sampling.seed = random();
      if (submit.sampling.grammar == nullptr && random() % 4 != 0) {
        GrammarBuilder builder;
        const GrammarRuleId root = builder.add_rule();
        std::vector<GrammarStateId> states{builder.start(root)};
        for (int s = 0; s < 5; ++s) states.push_back(builder.add_state());
        for (int e = 0; e < 14; ++e) {
          const auto low = static_cast<uint8_t>('a' + random() % 3);
          builder.add_range(states[random() % 6], low, static_cast<uint8_t>(low + random() % 2), states[random() % 6]);
        }
        builder.end_rule(states[random() % 6]);
        auto program = std::move(builder).finish(root);
        if (program.ok()) submit.sampling.grammar = std::move(program).value();
        if (program.ok()) submit.sampling.vocab_trie = words(1 + static_cast<int>(random() % 3), 4, random());
        submit.choices = 1 + static_cast<int>(random() % 3);
      }
      ids.push_back(world.submit(submit));
      for (int turns = static_cast<int>(random() % 4); turns > 0; --turns) world.turn();
    }
    world.run(100'000);
    for (const RequestId id : ids) {
      const Submit& submit = world.submits.at(id);
      for (int32_t choice = 0; choice < submit.choices; ++choice) {
        if (submit.sampling.grammar == nullptr) {
          world.expect_oracle(id, choice);
        } else {
          EXPECT_EQ(world.record(id, choice).tokens, expected_text(submit, choice)) << "round " << round;
        }
      }
    }
    world.expect_nothing_held();
    if (testing::Test::HasFailure()) return;
  }
}

// Whatever phase its sequences are in: cancelled, stopped, or with nobody beside it.
TEST(MaskWork, WhoWaitsEndsOnce) {
  for (const int turns : {1, 2, 5, 40, 200}) {
    World world({.blocks = 128, .max_sequences = 4, .step_tokens = 32});
    world.executor.clock = &world.clock;
    world.executor.step_ns = kStepNs / 10;
    const RequestId neighbour = world.submit(simple(10, 250, 1));
    const RequestId cancelled = world.submit(hostile(3, 6));
    const RequestId stopped = world.submit(hostile(3, 2));
    for (int turn = 0; turn < turns; ++turn) world.turn();
    world.cancel(cancelled, 3);
    world.turn();
    world.cancel(cancelled);
    world.turn();
    for (int32_t choice = 0; choice < 6; ++choice)
      EXPECT_EQ(world.record(cancelled, choice).end, EndReason::kCancelled) << turns << " turns";
    EngineOutput output;
    world.loop->end_all(world.messages, output);
    world.take(output);
    for (int32_t choice = 0; choice < 2; ++choice) EXPECT_NE(world.record(stopped, choice).end, EndReason::kNone);
    EXPECT_NE(world.record(neighbour).end, EndReason::kNone);
    world.expect_nothing_held();
  }
}

// More forms than may be admitted: whoever gives its walk up in the queue makes it again.
TEST(MaskWork, ALongQueueEnds) {
  World world({.blocks = 128, .max_sequences = 4, .step_tokens = 32});
  for (int i = 0; i < 2; ++i) world.submit(hostile(1, 40));
  world.run(200'000);
  EXPECT_EQ(world.records.size(), 80u);
  for (const auto& [key, record] : world.records)
    EXPECT_TRUE(record.end == EndReason::kStop || record.end == EndReason::kLength);
  world.expect_nothing_held();
}

// What a state says that it takes is no less than what is allocated, in the middle of a
// walk and after many tokens.
TEST(MaskWork, StatesKnowWhatTheyTake) {
  const Submit submit = hostile(1, 1);
  Prng random(11);
  start_counting_allocations();
  {
    auto state = std::make_unique<GrammarState>(submit.sampling.grammar, submit.sampling.vocab_trie);
    for (int slice = 0; slice < 2000; ++slice) {
      if (state->ready()) {
        TokenId token = 1 + static_cast<TokenId>(random.below(kVocab - 1));
        while (!state->advance(token)) token = 1 + static_cast<TokenId>(random.below(kVocab - 1));
      }
      state->prepare(512);
      Allocated seen = stop_counting_allocations();
      ASSERT_LE(seen.live_bytes, state->bytes()) << "slice " << slice;
      resume_counting_allocations();
    }
  }
  EXPECT_EQ(stop_counting_allocations().live_bytes, 0);
}

// Memory for masks is granted. Who gets none ends with the sentence; a neighbour
// does not notice.
TEST(MaskWork, MasksTakeWhatIsGranted) {
  constexpr int kChoices = 12;
  for (const int64_t most : {int64_t{256} << 10, int64_t{1} << 20, int64_t{1} << 30}) {
    const auto memory = std::make_shared<FixedByteBudget>(most);
    World world({.blocks = 256, .max_sequences = 16, .step_tokens = 128, .requests = memory});
    world.executor.clock = &world.clock;
    world.executor.step_ns = kStepNs;
    const RequestId neighbour = world.submit(simple(10, 100, 1));
    const RequestId other = world.submit(hostile(3, kChoices));
    world.run(100'000);
    EXPECT_EQ(world.record(neighbour).end, EndReason::kLength);
    world.expect_oracle(neighbour);
    int refused = 0;
    for (int32_t choice = 0; choice < kChoices; ++choice) {
      const World::Record& record = world.record(other, choice);
      EXPECT_NE(record.end, EndReason::kNone);
      if (record.end != EndReason::kError) continue;
      ++refused;
      EXPECT_NE(record.last.error.message.find("more memory than there is for requests"), std::string::npos)
          << record.last.error.message;
    }
    EXPECT_EQ(refused > 0, most < int64_t{1} << 30) << most;
    EXPECT_EQ(memory->taken_bytes(), 0);
    world.expect_nothing_held();
  }
}

}  // namespace
}  // namespace loralei::testing_support
