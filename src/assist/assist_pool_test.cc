// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_pool.h"

#include <functional>

#include "assist/assist_test_util.h"
#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kLong = 60'000'000'000;

class Pool {
 public:
  explicit Pool(AssistOptions options) : pool_(AssistPool::create(std::move(options), clock_, log_)) {
    if (!pool_.ok()) ADD_FAILURE() << pool_.error().message;
  }
  AssistPool& operator*() { return **pool_; }
  AssistPool* operator->() { return pool_->get(); }
  CollectingLog& log() { return log_; }

 private:
  SteadyClock clock_;
  CollectingLog log_;
  Result<std::unique_ptr<AssistPool>> pool_;
};

void run_tasks(const OpTable& table, int32_t helpers, int tasks, uint64_t seed) {
  Prng prng(seed);
  const AssistShape shape = test_shape();
  OnePlace place(table, shape, 100);
  Pool pool(test_options(helpers, table));
  ASSERT_EQ(pool->ready_helpers(), helpers);
  std::vector<SharedAdapter> adapters;
  for (uint64_t version = 1; version <= 4; ++version) {
    adapters.emplace_back(prng, shape);
    ASSERT_TRUE(pool->learn({version}, adapters.back().factors(shape)).ok());
  }
  uint64_t rows = 0;
  for (int i = 0; i < tasks; ++i) {
    const uint64_t which = prng.below(adapters.size());
    const TestTask test(prng, shape, adapters[which].adapter(), {which + 1}, 24 * helpers);
    const auto rows_each = static_cast<int32_t>(1 + prng.below(24));
    auto ticket = pool->publish(test.task, rows_each);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message;
    EXPECT_EQ(ticket->slices(), std::min(helpers, (test.task.rows + rows_each - 1) / rows_each));
    SumCheck check(place, test);
    const Status collected = pool->collect(*ticket, kLong, check);
    ASSERT_TRUE(collected.ok()) << collected.error().message;
    ASSERT_TRUE(check.is_right()) << table.name << " seed " << seed << " task " << i;
    rows += static_cast<uint64_t>(test.task.rows);
  }
  const AssistStats stats = pool->stats();
  EXPECT_EQ(stats.rows, rows);
  EXPECT_EQ(stats.restarts + stats.late + stats.refused, 0u);
  EXPECT_GT(stats.busy_ns, 0);
}

TEST(AssistPool, SumsAreThoseOfOnePlaceBitForBit) {
  for (const OpTable* table : plain_op_tables()) {
    for (const int32_t helpers : {1, 2, 4}) ASSERT_NO_FATAL_FAILURE(run_tasks(*table, helpers, 150, 501));
  }
}

TEST(AssistPool, SeveralTicketsAreUnderWayAtOnceAndEndInAnyOrder) {
  const uint64_t seed = 502;
  Prng prng(seed);
  const AssistShape shape = test_shape();
  const OpTable& table = **select_op_table("");
  OnePlace place(table, shape, 24);
  Pool pool(test_options(3, table));
  const SharedAdapter adapter(prng, shape);
  ASSERT_TRUE(pool->learn({1}, adapter.factors(shape)).ok());
  struct UnderWay {
    std::unique_ptr<TestTask> test;
    AssistTicket ticket;
  };
  std::vector<UnderWay> under_way;
  for (int i = 0; i < 600; ++i) {
    auto test = std::make_unique<TestTask>(prng, shape, adapter.adapter(), AdapterVersionId{1}, 24);
    auto ticket = pool->publish(test->task, 24);
    if (ticket.ok()) {
      under_way.push_back({std::move(test), *std::move(ticket)});
    } else {
      ASSERT_EQ(ticket.error().code, ErrorCode::kOverloaded);
    }
    if (ticket.ok() && prng.below(4) != 0) continue;
    if (under_way.empty()) continue;  // all helpers work on what was abandoned
    std::swap(under_way[prng.below(under_way.size())], under_way.back());
    UnderWay one = std::move(under_way.back());
    under_way.pop_back();
    if (prng.below(5) == 0) {
      pool->abandon(std::move(one.ticket));
      continue;
    }
    SumCheck check(place, *one.test);
    const Status collected = pool->collect(one.ticket, kLong, check);
    ASSERT_TRUE(collected.ok()) << collected.error().message;
    ASSERT_TRUE(check.is_right()) << "seed " << seed << " task " << i;
  }
  under_way.clear();  // abandoned
  EXPECT_EQ(pool->stats().restarts, 0u);
}

TEST(AssistPool, SaysWhatItCannotDo) {
  const OpTable& table = **select_op_table("");
  SteadyClock clock;
  CollectingLog log;
  const auto refusal = [&](const std::function<void(AssistOptions&)>& change) {
    AssistOptions options = test_options(2, table);
    change(options);
    auto pool = AssistPool::create(options, clock, log);
    EXPECT_FALSE(pool.ok());
    return pool.ok() ? std::string() : pool.error().message;
  };
  const int64_t each = assist_layout(test_shape(), 24).bytes;
  EXPECT_EQ(refusal([&](AssistOptions& options) { options.bytes_max = 2 * each - 1; }),
            "2 helpers with 24 rows each take " + format_bytes(each) + " of shared memory each, " +
                format_bytes(2 * each) + " together, but there are " + format_bytes(2 * each - 1) +
                " for them; allow fewer helpers or fewer rows");
  const std::string huge = refusal([](AssistOptions& options) {
    options.rows_max = kAssistRowsMax;
    options.shape.ins[static_cast<size_t>(Module::kO)] = 1 << 22;
  });
  EXPECT_NE(huge.find("but this machine has"), std::string::npos) << huge;
  EXPECT_NE(refusal([](AssistOptions& options) { options.helpers = 65; }).find("1 to 64 helpers"), std::string::npos);
  EXPECT_NE(refusal([](AssistOptions& options) { options.rows_max = 0; }).find("rows a message"), std::string::npos);
  EXPECT_NE(refusal([](AssistOptions& options) { options.shape.ins[0] = 7; }).find("one layer input"),
            std::string::npos);
  EXPECT_NE(refusal([](AssistOptions& options) { options.ops_table = "abacus"; }).find("'abacus' is not known"),
            std::string::npos);
  EXPECT_NE(refusal([](AssistOptions& options) { options.program = "/bin/false"; }).find("exit status 1"),
            std::string::npos);
  EXPECT_NE(refusal([](AssistOptions& options) { options.program = "/nowhere"; }).find("cannot start '/nowhere'"),
            std::string::npos);
}

TEST(AssistPool, RefusesAdaptersThatDoNotFitAndTasksItCannotTake) {
  Prng prng(503);
  const AssistShape shape = test_shape();
  const OpTable& table = **select_op_table("");
  OnePlace place(table, shape, 48);
  Pool pool(test_options(2, table));
  AssistShape wide = shape;
  wide.rank_max = 200;
  const SharedAdapter large(prng, wide);
  const Status refused = pool->learn({1}, large.factors(wide));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("is not within 1 and 64"), std::string::npos) << refused.error().message;
  const SharedAdapter adapter(prng, shape);
  TestTask test(prng, shape, adapter.adapter(), {2}, 24);
  test.task.rows = 1;
  EXPECT_EQ(pool->publish(test.task, 8).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(pool->learn({2}, adapter.factors(shape)).ok());
  std::vector<float> rows(49 * 200, 0.5f);
  AssistTask many = test.task;
  many.x = rows.data();
  many.x_stride = 200;
  many.rows = 49;
  EXPECT_EQ(pool->publish(many, 8).error().message, "2 of 2 helpers are free, too few for 49 rows");
  {
    many.rows = 48;
    auto all = pool->publish(many, 24);
    ASSERT_TRUE(all.ok());
    EXPECT_EQ(pool->publish(test.task, 8).error().code, ErrorCode::kOverloaded);
    const Status collected = pool->collect(*all, kLong, [](auto&&...) {});
    EXPECT_TRUE(collected.ok());
  }
  pool->forget({2});
  EXPECT_EQ(pool->publish(test.task, 8).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(pool->learn({3}, adapter.factors(shape)).ok());
  test.task.version = {3};
  auto ticket = pool->publish(test.task, 8);
  ASSERT_TRUE(ticket.ok());
  SumCheck check(place, test);
  EXPECT_TRUE(pool->collect(*ticket, kLong, check).ok());
  EXPECT_TRUE(check.is_right());
}

}  // namespace
}  // namespace loralei
