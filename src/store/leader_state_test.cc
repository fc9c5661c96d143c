// SPDX-License-Identifier: Apache-2.0
#include "store/leader_state.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

using Act = LeaderState::Act;

constexpr int64_t kS = 1'000'000'000;
const Error kAway{ErrorCode::kUnavailable, "away"};

EtcdTxnAnswer done_at(int64_t revision) {
  EtcdTxnAnswer answer{.header = {"1", revision}};
  answer.succeeded = true;
  return answer;
}
EtcdRange led_by(const std::string& key) { return {.keys = {{.key = key, .create_revision = 3, .mod_revision = 3}}}; }

void stand(LeaderState& state, int64_t lease) {
  ASSERT_EQ(state.act(), Act::kGrant);
  state.granted(EtcdLease{lease, 10});
  ASSERT_EQ(state.act(), Act::kStand);
  EXPECT_EQ(state.to_stand().puts.at(0).key, "lead/" + std::to_string(lease));
  state.stands(done_at(5));
  ASSERT_EQ(state.act(), Act::kLook);
}

TEST(LeaderState, LeadsForALittleLessThanItsLeaseCountedFromBeforeItAsked) {
  LeaderState state("lead/", "me", "decided", 10, 100 * kS);
  stand(state, 5);
  EXPECT_TRUE(state.looked(led_by("lead/5")));
  EXPECT_EQ(state.leads_until_ns(), 109 * kS);
  ASSERT_EQ(state.act(), Act::kWrite);
  const EtcdTxn write = state.to_write("text");
  EXPECT_EQ(write.compares.at(0).key, "lead/5");
  EXPECT_EQ(write.compares.at(0).revision, 5);
  state.wrote(done_at(6));
  ASSERT_EQ(state.act(), Act::kRest);
  state.rested(103 * kS);
  state.kept_alive(kAway);
  EXPECT_EQ(state.leads_until_ns(), 109 * kS) << "until it is over";
  EXPECT_EQ(state.rest_ms(), 1'000);
}

TEST(LeaderState, WhoStoodLaterFollows) {
  LeaderState state("lead/", "me", "decided", 9, 0);
  stand(state, 5);
  EXPECT_FALSE(state.looked(led_by("lead/4")));
  EXPECT_EQ(state.leads_until_ns(), 0);
  EXPECT_EQ(state.act(), Act::kRest);
  EXPECT_EQ(state.rest_ms(), 3'000);
  state.rested(3 * kS);
  ASSERT_EQ(state.act(), Act::kKeepAlive);
  state.kept_alive(EtcdLease{5, 9});
  ASSERT_EQ(state.act(), Act::kStand);
  EtcdTxnAnswer there;
  there.found = {{.key = "lead/5", .create_revision = 5, .mod_revision = 5, .lease = 5}};
  state.stands(there);
  EXPECT_TRUE(state.looked(led_by("lead/5")));
  EXPECT_EQ(state.to_write("x").compares.at(0).revision, 5) << "since it stood first";
}

TEST(LeaderState, AWriteThatIsNoLeadersEndsTheLead) {
  for (const bool repeated : {false, true}) {
    LeaderState state("lead/", "me", "decided", 10, 0);
    stand(state, 5);
    state.looked(led_by("lead/5"));
    EtcdTxnAnswer answer;
    answer.repeated = repeated;
    state.wrote(answer);
    EXPECT_EQ(state.leads_until_ns() > 0, repeated) << "of one that was repeated the first may have been done";
  }
}

TEST(LeaderState, ALeaseThatIsOverIsTakenAnew) {
  LeaderState state("lead/", "me", "decided", 10, 0);
  stand(state, 5);
  state.looked(led_by("lead/5"));
  state.wrote_nothing();
  state.rested(kS);
  state.kept_alive(EtcdLease{5, 0});
  stand(state, 6);
  EXPECT_FALSE(state.looked(kAway));
  EXPECT_EQ(state.act(), Act::kRest);
  state.rested(2 * kS);
  EXPECT_EQ(state.act(), Act::kKeepAlive);
  state.kept_alive(EtcdLease{6, 10});
  state.stands(EtcdTxnAnswer{});
  EXPECT_EQ(state.stood().error().code, ErrorCode::kCorrupt) << "there, and not there";
}

}  // namespace
}  // namespace loralei
