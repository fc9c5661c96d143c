// SPDX-License-Identifier: Apache-2.0
// A rank that dies, fails or is late ends the group with a sentence: requests under way
// end with it, new ones are refused with it, and nothing hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/group_executor.h"
#include "engine/rank_worker.h"
#include "support/engine_texts.h"
#include "support/ranked_model.h"

namespace loralei::test {
namespace {

const std::string kModel = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/llama-gqa";
constexpr int64_t kHangNs = 2'000'000'000, kNeverNs = 600'000'000'000;  // a loaded machine is no hang

// Goes on as it should until its sum number `after`.
class Faulty final : public Collective {
 public:
  enum class Fault { kFails, kHangs };
  Faulty(Collective& group, Fault fault, int after) : group_(group), fault_(fault), left_(after) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Status all_reduce_sum(std::span<float> values) override {
    if (left_-- > 0) return group_.all_reduce_sum(values);
    if (fault_ == Fault::kFails) return Error{ErrorCode::kIo, "rank 1 met a broken core"};
    while (!let_go) std::this_thread::yield();
    return group_.all_reduce_sum(values);
  }
  Status broadcast(std::span<std::byte> bytes) override { return group_.broadcast(bytes); }
  Status gather(std::span<const float> part, std::span<float> all) override { return group_.gather(part, all); }
  Status barrier() override { return group_.barrier(); }
  void fail(Error why) override { group_.fail(std::move(why)); }
  Status health() const override { return group_.health(); }
  CollectiveTotals totals() const override { return group_.totals(); }

  std::atomic<bool> let_go{false};

 private:
  Collective& group_;
  const Fault fault_;
  int left_;
};

// An engine over two ranks of which rank 1 is faulty.
class Group {
 public:
  Group(Faulty::Fault fault, int after) {
    HarnessOptions options;
    options.threads = 1;
    harness_ = std::move(*ModelHarness::open(kModel, options));
    auto ranked =
        RankedModel::open(*harness_, options, 2, {.late_ns = fault == Faulty::Fault::kHangs ? kHangNs : kNeverNs},
                          [&](int rank, Collective& group) {
                            if (rank == 0) return &group;
                            faulty_ = std::make_unique<Faulty>(group, fault, after);
                            return static_cast<Collective*>(faulty_.get());
                          });
    ranked_ = std::move(*ranked);
    const ModelLimits limits = limits_of(options);
    Collective& group = ranked_->group().rank(1);
    link_ = std::make_unique<RankLink>(group);
    worker_ = std::make_unique<RankWorker>(group, *link_, ranked_->model(1), limits, ledger_);
    thread_ = std::thread([this] { worker_end = worker_->run(); });
    texts = std::make_unique<EngineTexts>(*harness_, [&](Ledger& ledger) {
      return make_group_executor(ranked_->group().rank(0), RankMemory::kShared, ranked_->model(0), harness_->config(),
                                 limits, ledger);
    });
  }
  ~Group() { end(); }
  void end() {
    texts.reset();
    faulty_->let_go = true;
    if (thread_.joinable()) thread_.join();
  }
  Collective& rank(int number) { return ranked_->group().rank(number); }

  std::unique_ptr<EngineTexts> texts;
  Status worker_end;

 private:
  Ledger ledger_{kGiB};
  std::unique_ptr<ModelHarness> harness_;
  std::unique_ptr<Faulty> faulty_;
  std::unique_ptr<RankedModel> ranked_;
  std::unique_ptr<RankLink> link_;
  std::unique_ptr<RankWorker> worker_;
  std::thread thread_;
};

// Four sums a step: some steps go well, and the fault comes within one.
void expect_end(Group& group, const std::string& sentence) {
  EngineTexts& texts = *group.texts;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(texts.submit(20 + i, i, {}).value);  // more than run at once
  texts.finish();
  size_t tokens = 0;
  for (const uint64_t id : ids) {
    EXPECT_EQ(texts.ends[id], EndReason::kError);
    EXPECT_NE(texts.errors[id].find(sentence), std::string::npos) << texts.errors[id];
    tokens += texts.tokens[id].size();
  }
  EXPECT_GT(tokens, 0u) << "no step went well";
  const Status health = texts.engine().health();
  ASSERT_FALSE(health.ok());
  EXPECT_NE(health.error().message.find(sentence), std::string::npos) << health.error().message;
  Submit late;
  late.id = RequestId{999};
  late.prompt = {3, 4, 5};
  const Status refused = texts.engine().submit(std::move(late));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  group.end();
  EXPECT_FALSE(group.worker_end.ok());
}

TEST(RankFailure, ARankThatFailsEndsTheGroupWithItsSentence) {
  Group group(Faulty::Fault::kFails, 22);
  expect_end(group, "rank 1 met a broken core");
}

TEST(RankFailure, ARankThatHangsEndsTheGroupWithItsNumber) {
  Group group(Faulty::Fault::kHangs, 22);
  expect_end(group, "Rank 1 of 2 did not come to where the others waited for it");
}

// Between steps, so that the next one finds it.
TEST(RankFailure, ARankThatDiedBetweenStepsIsFoundByTheNext) {
  Group group(Faulty::Fault::kFails, 1 << 20);
  const uint64_t first = group.texts->submit(20, 1, {}).value;
  group.texts->finish();
  EXPECT_EQ(group.texts->ends[first], EndReason::kLength);
  group.rank(1).fail({ErrorCode::kUnavailable, "rank 1 was killed"});
  const uint64_t second = group.texts->submit(20, 2, {}).value;
  group.texts->finish();
  EXPECT_EQ(group.texts->ends[second], EndReason::kError);
  EXPECT_NE(group.texts->errors[second].find("rank 1 was killed"), std::string::npos) << group.texts->errors[second];
}

TEST(RankFailure, AnEngineThatStopsTellsTheRanks) {
  Group group(Faulty::Fault::kFails, 1 << 20);
  const uint64_t first = group.texts->submit(20, 1, {}).value;
  group.texts->finish();
  EXPECT_EQ(group.texts->ends[first], EndReason::kLength);
  group.end();
  EXPECT_TRUE(group.worker_end.ok()) << group.worker_end.error().message;
}

}  // namespace
}  // namespace loralei::test
