// SPDX-License-Identifier: Apache-2.0
// Helpers that are killed and stopped at any moment, and a parent that is.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "assist/assist_pool.h"
#include "assist/assist_test_util.h"
#include "base/allocation_counter.h"

namespace loralei {
namespace {

constexpr int64_t kLong = 60'000'000'000;

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}
std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}
// Mappings of memory that is shared, of this process.
int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:") != std::string::npos ? 1 : 0;
  return count;
}

// A pool, adapters it knows, and what must come out.
class World {
 public:
  World(uint64_t seed, int32_t helpers, int64_t abandoned_at_most_ns = 200'000'000)
      : prng(seed), table(**select_op_table("")), place_(table, shape, 100) {
    AssistOptions options = test_options(helpers, table);
    options.abandoned_at_most_ns = abandoned_at_most_ns;
    auto made = AssistPool::create(options, clock, log);
    if (!made.ok()) ADD_FAILURE() << made.error().message;
    pool = *std::move(made);
  }

  void learn() {
    adapters.emplace_back(version_ + 1, std::make_unique<SharedAdapter>(prng, shape));
    ASSERT_TRUE(pool->learn({++version_}, adapters.back().second->factors(shape)).ok());
  }
  void forget() {
    const size_t which = prng.below(adapters.size());
    pool->forget({adapters[which].first});
    adapters.erase(adapters.begin() + static_cast<std::ptrdiff_t>(which));
  }
  TestTask task(int32_t rows_max) {
    const auto& [version, adapter] = adapters[prng.below(adapters.size())];
    return TestTask(prng, shape, adapter->adapter(), {version}, rows_max);
  }

  // Publishes and collects, or abandons a few; `meanwhile` runs in between. The error is
  // the ticket's.
  Status run(int64_t at_most_ns, const std::function<void()>& meanwhile, uint64_t abandoned_of_20 = 1) {
    const TestTask test = task(24);
    TRY_ASSIGN(AssistTicket ticket, pool->publish(test.task, static_cast<int32_t>(1 + prng.below(24))));
    meanwhile();
    if (prng.below(20) < abandoned_of_20) {
      pool->abandon(std::move(ticket));
      return {};
    }
    SumCheck check(place_, test);
    const int64_t start = clock.now_ns();
    const Status collected = pool->collect(ticket, at_most_ns, check);
    if (const int64_t took = clock.now_ns() - start; took > at_most_ns + kLong) ADD_FAILURE() << took << " ns";
    EXPECT_EQ(ticket.slices(), 0);
    TRY(collected);
    if (!check.is_right()) return internal_error("a wrong number");
    return {};
  }
  // Tasks one after the other until all helpers are there again and one has succeeded.
  void expect_recovery() {
    const int64_t end = clock.now_ns() + kLong;
    while (clock.now_ns() < end) {
      const bool all = pool->ready_helpers() == pool->helpers();
      // One that was stopped and has had no task since is found out by this deadline.
      const Status status = run(
          1'000'000'000, [] {}, 0);
      if (all && status.ok() && pool->ready_helpers() == pool->helpers()) return;
    }
    FAIL() << "helpers did not come back";
  }
  int any_helper() {
    const std::vector<int> pids = pool->helper_pids();
    return pids.empty() ? 0 : pids[prng.below(pids.size())];
  }

  Prng prng;
  const AssistShape shape = test_shape();
  const OpTable& table;
  SteadyClock clock;
  CollectingLog log;
  std::unique_ptr<AssistPool> pool;
  std::vector<std::pair<uint64_t, std::unique_ptr<SharedAdapter>>> adapters;  // by version

 private:
  OnePlace place_;
  uint64_t version_ = 0;
};

void hit(World& world, uint64_t& kills, uint64_t& stops) {
  const uint64_t fate = world.prng.below(120);
  const int pid = fate < 5 ? world.any_helper() : 0;
  if (pid == 0) return;
  ::kill(pid, fate == 0 ? SIGSTOP : SIGKILL);
  ++(fate == 0 ? stops : kills);
}

TEST(AssistPoolFaults, HelpersThatAreKilledOrStoppedCostErrorsAndNoWrongNumber) {
  const uint64_t seed = 530;
  const std::ptrdiff_t descriptors = open_descriptors();
  const int mappings = shared_mappings();
  uint64_t kills = 0, stops = 0, errors = 0, done = 0;
  {
    World world(seed, 3);
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(world.learn());
    for (int i = 0; i < 4000; ++i) {
      if (world.prng.below(100) == 0) {
        ASSERT_NO_FATAL_FAILURE(world.learn());
      }
      if (world.adapters.size() > 2 && world.prng.below(100) == 0) world.forget();
      if (world.prng.below(2) == 0) hit(world, kills, stops);
      const Status status = world.run(150'000'000, [&] { hit(world, kills, stops); });
      if (status.ok()) {
        ++done;
        continue;
      }
      ++errors;
      const ErrorCode code = status.error().code;
      ASSERT_TRUE(code == ErrorCode::kUnavailable || code == ErrorCode::kDeadline || code == ErrorCode::kOverloaded)
          << "seed " << seed << " task " << i << ": " << status.error().message;
      // All helpers are gone at once: their successors take a moment.
      if (code == ErrorCode::kOverloaded && world.pool->ready_helpers() == 0) world.expect_recovery();
    }
    world.expect_recovery();
    if (const int pid = world.any_helper(); pid != 0) ::kill(pid, SIGSTOP);
    world.expect_recovery();
    const AssistStats stats = world.pool->stats();
    EXPECT_GT(stats.restarts, kills / 2);
    std::printf("%llu killed, %llu stopped; %llu tasks done, %llu errors, %llu restarts, %llu late\n",
                static_cast<unsigned long long>(kills), static_cast<unsigned long long>(stops),
                static_cast<unsigned long long>(done), static_cast<unsigned long long>(errors),
                static_cast<unsigned long long>(stats.restarts), static_cast<unsigned long long>(stats.late));
    EXPECT_GT(kills, 50u);
    EXPECT_GT(stops, 5u);
    EXPECT_GT(errors, 10u);
    EXPECT_GT(done, 500u);
  }
  EXPECT_FALSE(has_children());
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(shared_mappings(), mappings);
}

// The keeper wakes who waits, long before the time is over.
TEST(AssistPoolFaults, ADeadHelperEndsTheWaitAtOnce) {
  World world(531, 1);
  ASSERT_NO_FATAL_FAILURE(world.learn());
  const TestTask test = world.task(24);
  const int pid = world.pool->helper_pids().at(0);
  ::kill(pid, SIGSTOP);
  auto ticket = world.pool->publish(test.task, 24);
  ASSERT_TRUE(ticket.ok());
  ::kill(pid, SIGKILL);
  const Status collected = world.pool->collect(*ticket, INT64_MAX / 4, [](auto&&...) {});
  ASSERT_FALSE(collected.ok());
  EXPECT_EQ(collected.error().code, ErrorCode::kUnavailable);
  world.expect_recovery();
  EXPECT_EQ(world.pool->stats().restarts, 1u);
}

TEST(AssistPoolFaults, ALateHelperIsReplaced) {
  World world(532, 1);
  ASSERT_NO_FATAL_FAILURE(world.learn());
  for (uint64_t i = 1; i <= 5; ++i) {
    const TestTask test = world.task(24);
    const int pid = world.pool->helper_pids().at(0);
    ::kill(pid, SIGSTOP);
    auto ticket = world.pool->publish(test.task, 24);
    ASSERT_TRUE(ticket.ok());
    const Status late = world.pool->collect(*ticket, 1'000'000, [](auto&&...) {});
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
    world.expect_recovery();
    EXPECT_EQ(world.pool->stats().late, i);
    EXPECT_EQ(world.pool->stats().restarts, i);
    EXPECT_NE(world.pool->helper_pids().at(0), pid);
  }
}

// It goes on with an abandoned message, and then takes another one: that one's numbers.
TEST(AssistPoolFaults, TheAnswerToAnAbandonedMessageIsNeverTakenForAnother) {
  World world(537, 1, kLong);
  ASSERT_NO_FATAL_FAILURE(world.learn());
  const int pid = world.pool->helper_pids().at(0);
  for (int i = 0; i < 100; ++i) {
    const TestTask test = world.task(24);
    ::kill(pid, SIGSTOP);
    auto ticket = world.pool->publish(test.task, 24);
    ASSERT_TRUE(ticket.ok());
    world.pool->abandon(*std::move(ticket));
    EXPECT_EQ(world.pool->publish(test.task, 24).error().code, ErrorCode::kOverloaded);
    ::kill(pid, SIGCONT);
    world.expect_recovery();
  }
  EXPECT_EQ(world.pool->stats().restarts, 0u);
}

TEST(AssistPoolFaults, AHelperThatHangsOnAnAbandonedTicketIsReplaced) {
  World world(533, 1, 1'000'000);
  ASSERT_NO_FATAL_FAILURE(world.learn());
  const TestTask test = world.task(24);
  ::kill(world.pool->helper_pids().at(0), SIGSTOP);
  auto ticket = world.pool->publish(test.task, 24);
  ASSERT_TRUE(ticket.ok());
  { const AssistTicket dropped = *std::move(ticket); }
  world.expect_recovery();
  EXPECT_EQ(world.pool->stats().restarts, 1u);
}

// One that does not read what it is told of adapters is replaced by one that knows them.
TEST(AssistPoolFaults, AHelperThatDoesNotListenIsReplaced) {
  World world(534, 1);
  ASSERT_NO_FATAL_FAILURE(world.learn());
  ::kill(world.pool->helper_pids().at(0), SIGSTOP);
  const AssistFactors factors = world.adapters[0].second->factors(world.shape);
  uint64_t version = 1000;
  for (const int64_t end = world.clock.now_ns() + kLong; world.pool->stats().restarts == 0;) {
    ASSERT_LT(world.clock.now_ns(), end);
    ASSERT_TRUE(world.pool->learn({++version}, factors).ok());
    if (version > 1400) world.pool->forget({version - 400});
  }
  world.expect_recovery();
}

TEST(AssistPoolFaults, AHelperThatAnswersNothingBeforeItEndsIsTriedAgainEverMoreSeldom) {
  SteadyClock clock;
  CollectingLog log;
  AssistOptions options = test_options(1, **select_op_table(""));
  options.program = "/bin/sh";
  // It says that it is ready (ControlKind::kReady), and ends.
  options.args = {"-c", "printf '\\3\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0' >&4"};
  auto pool = AssistPool::create(options, clock, log);
  ASSERT_TRUE(pool.ok()) << pool.error().message;
  const int64_t end = clock.now_ns() + kLong;
  while ((*pool)->stats().restarts < 5 && clock.now_ns() < end) {
  }
  pool = Error{};
  std::vector<int> pauses;
  for (const std::string& line : log.lines()) {
    const size_t at = line.find("again_in_ms=");
    if (at != std::string::npos) pauses.push_back(std::atoi(line.c_str() + at + 12));
  }
  ASSERT_GE(pauses.size(), 4u);
  EXPECT_EQ((std::vector<int>{pauses.begin(), pauses.begin() + 4}), (std::vector<int>{10, 20, 40, 80}));
}

TEST(AssistPoolFaults, HelpersEndWithAParentThatIsKilled) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    World world(535, 3);
    const std::vector<int> pids = world.pool->helper_pids();
    if (pids.size() != 3 || ::write(ends[1], pids.data(), 3 * sizeof(int)) != 3 * sizeof(int)) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ends[1]);
  int pids[3] = {};
  const ssize_t got = ::read(ends[0], pids, sizeof pids);
  ::close(ends[0]);
  ::kill(parent, SIGKILL);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  ASSERT_EQ(got, static_cast<ssize_t>(sizeof pids));
  SteadyClock clock;
  const int64_t start = clock.now_ns();
  for (const int pid : pids) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);  // ours since their parent's end
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }
  EXPECT_LT(clock.now_ns() - start, 10'000'000'000);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(AssistPoolFaults, TasksAllocateNothing) {
  World world(536, 2);
  ASSERT_NO_FATAL_FAILURE(world.learn());
  const TestTask test = world.task(48);
  const auto run = [&] {
    auto ticket = world.pool->publish(test.task, 24);
    ASSERT_TRUE(ticket.ok());
    int32_t rows = 0;
    ASSERT_TRUE(world.pool->collect(*ticket, kLong, [&](int32_t, int32_t count, auto&&...) { rows += count; }).ok());
    ASSERT_GT(rows, 0);
  };
  run();  // takes the helpers over
  testing_support::start_counting_allocations();
  for (int i = 0; i < 200; ++i) run();
  EXPECT_EQ(testing_support::stop_counting_allocations().count, 0);
}

}  // namespace
}  // namespace loralei
