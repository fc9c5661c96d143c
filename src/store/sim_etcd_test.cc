// SPDX-License-Identifier: Apache-2.0
// The simulator's etcd beside others: the same operations have the same answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/prng.h"
#include "sim/etcd_store.h"
#include "store/fake_etcd_test_util.h"
#include "store/real_etcd_test_util.h"

namespace loralei {
namespace {

using namespace test;  // NOLINT

// Revisions are counted from what each had at the start.
class Beside {
 public:
  Beside(EtcdClient& other, uint64_t seed) : other_(other), random_(seed) {
    base_ = other_.range({.key = "none"})->header.revision - store_.revision();
  }

  void operate() {
    const uint64_t what = random_.below(22);
    if (what < 5) return put();
    if (what < 7) return remove();
    if (what < 12) return txn();
    if (what < 17) return range();
    if (what < 18) return grant();
    if (what < 20) return keep_alive();
    if (what < 21) return revoke();
    compact();
  }
  void compare_all() {
    compare_ranges(store_.range({.key = "k", .end = "l"}), other_.range({.key = "k", .end = "l"}), false);
  }

 private:
  std::string key() { return "k" + std::to_string(random_.below(8)); }
  std::string value() { return "v" + std::to_string(random_.below(4)); }
  int64_t lease() {
    if (leases_.empty() || random_.below(2) == 0) return 0;
    return leases_[random_.below(leases_.size())].first;
  }
  int64_t theirs(int64_t lease) const {
    for (const auto& [ours, other] : leases_)
      if (ours == lease) return other;
    return 0;
  }
  int64_t some_revision() {
    return 1 + static_cast<int64_t>(random_.below(static_cast<uint64_t>(store_.revision() + 2)));
  }
  int64_t shifted(int64_t revision) const { return revision == 0 ? 0 : revision + base_; }

  void put() {
    EtcdPut ours{key(), value(), lease()};
    EtcdPut other = ours;
    other.lease = theirs(ours.lease);
    compare_headers(store_.put(ours), other_.put(other));
  }
  void remove() {
    const std::string gone = key();
    compare_headers(store_.remove(gone), other_.remove(gone));
  }
  void txn() {
    EtcdTxn ours;
    for (uint64_t i = random_.below(3); i > 0; --i) {
      const auto what = static_cast<EtcdCompare::What>(random_.below(3));
      const EtcdRange now = *store_.range({.key = key()});
      EtcdCompare compare{.key = key(), .what = what, .revision = 0, .value = value()};
      if (!now.keys.empty() && random_.below(3) > 0) {
        const EtcdKeyValue& kv = now.keys[0];
        compare = {kv.key, what, what == EtcdCompare::What::kModRevision ? kv.mod_revision : kv.create_revision,
                   kv.value};
      }
      ours.compares.push_back(compare);
    }
    for (uint64_t i = random_.below(3); i > 0; --i) ours.puts.push_back({key(), value(), lease()});
    for (uint64_t i = random_.below(3); i > 0; --i) ours.removals.push_back(key());
    for (uint64_t i = random_.below(3); i > 0; --i) ours.reads.push_back(key());
    if (ours.compares.empty()) ours.compares.push_back({.key = "none", .revision = 0});
    EtcdTxn other = ours;
    for (EtcdCompare& compare : other.compares) compare.revision = shifted(compare.revision);
    for (EtcdPut& put : other.puts) put.lease = theirs(put.lease);
    const auto a = store_.txn(ours);
    const auto b = other_.txn(other);
    if (!same_end(a, b)) return;
    EXPECT_EQ(a->succeeded, b->succeeded);
    EXPECT_EQ(shifted(a->header.revision), b->header.revision);
    compare_keys(a->found, b->found);
  }
  void range() {
    EtcdRangeRequest ours{.key = key()};
    if (random_.below(3) > 0) ours.end = random_.below(2) == 0 ? "l" : "k5";
    if (random_.below(3) == 0) ours.revision = some_revision();
    if (random_.below(3) == 0) ours.limit = 1 + static_cast<int64_t>(random_.below(3));
    // Who was created together has no order among them.
    const bool by_creation = ours.limit == 0 && random_.below(3) == 0;
    if (by_creation) ours.order = EtcdOrder::kByCreation;
    EtcdRangeRequest other = ours;
    other.revision = shifted(ours.revision);
    compare_ranges(store_.range(ours), other_.range(other), by_creation);
  }
  void grant() {
    const auto made = other_.grant(60);
    ASSERT_TRUE(made.ok());
    const int64_t id = static_cast<int64_t>(leases_.size()) + 1;
    ASSERT_TRUE(store_.grant(id, 60, 0).ok());
    EXPECT_FALSE(store_.grant(id, 60, 0).ok());
    leases_.emplace_back(id, made->id);
  }
  void keep_alive() {
    if (leases_.empty()) return;
    const auto& [ours, other] = leases_[random_.below(leases_.size())];
    EXPECT_EQ(store_.keep_alive(ours, 0).ttl_s, other_.keep_alive(other)->ttl_s);
  }
  // Of one that is over the client says that all is well.
  void revoke() {
    if (leases_.empty()) return;
    const auto& [ours, other] = leases_[random_.below(leases_.size())];
    const Status done = store_.revoke(ours);
    EXPECT_TRUE(done.ok() || done.error().code == ErrorCode::kNotFound);
    EXPECT_TRUE(other_.revoke(other).ok());
    compare_all();
  }
  void compact() {
    if (!compacts_) return;
    const int64_t revision = some_revision();
    const Status ours = store_.compact(revision), other = other_.compact(shifted(revision));
    same_end(ours, other);
  }

  // Whether both have an answer; if not, both have the same error.
  template <class T>
  static bool same_end(const Result<T>& a, const Result<T>& b) {
    EXPECT_EQ(a.ok(), b.ok()) << (a.ok() ? b.error().message : b.ok() ? a.error().message : "");
    if (!a.ok() && !b.ok()) {
      EXPECT_EQ(a.error().code, b.error().code) << b.error().message;
    }
    return a.ok() && b.ok();
  }
  void compare_headers(const Result<EtcdHeader>& a, const Result<EtcdHeader>& b) {
    if (!same_end(a, b)) return;
    EXPECT_EQ(shifted(a->revision), b->revision);
  }
  void compare_ranges(const Result<EtcdRange>& a, Result<EtcdRange> b, bool by_creation) {
    if (!same_end(a, b)) return;
    EXPECT_EQ(shifted(a->header.revision), b->header.revision);
    EXPECT_EQ(a->more, b->more);
    const auto created = [](const auto& x, const auto& y) { return x.create_revision < y.create_revision; };
    if (by_creation) {
      EXPECT_TRUE(std::is_sorted(b->keys.begin(), b->keys.end(), created));
      std::sort(b->keys.begin(), b->keys.end(), [](const auto& x, const auto& y) {
        return std::pair(x.create_revision, x.key) < std::pair(y.create_revision, y.key);
      });
    }
    compare_keys(a->keys, b->keys);
  }
  void compare_keys(std::vector<EtcdKeyValue> ours, const std::vector<EtcdKeyValue>& other) {
    for (EtcdKeyValue& kv : ours) {
      kv.create_revision = shifted(kv.create_revision);
      kv.mod_revision = shifted(kv.mod_revision);
      kv.lease = theirs(kv.lease);
    }
    ASSERT_EQ(ours.size(), other.size());
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(ours[i], other[i]) << ours[i].key << " and " << other[i].key;
  }

 public:
  bool compacts_ = true;

 private:
  EtcdClient& other_;
  sim::EtcdStore store_;
  Prng random_;
  int64_t base_ = 0;
  std::vector<std::pair<int64_t, int64_t>> leases_;  // ours, and the other's
};

void compare_with(const EtcdOptions& options, bool compacts, int operations) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  CollectingLog log;
  const auto client = EtcdClient::start(options, log).value();
  Beside beside(*client, seed);
  beside.compacts_ = compacts;
  for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) beside.operate();
  beside.compare_all();
}

TEST(SimEtcd, AnswersAsARealOne) {
  if (etcd_binary().empty()) GTEST_SKIP() << kNoEtcd;
  RealEtcd etcd;
  compare_with(etcd.options(), true, 2'000);
}

// The double of our tests keeps all of its history, and cannot be told to compact.
TEST(SimEtcd, AnswersAsTheOneOfOurTests) {
  FakeEtcd etcd;
  compare_with(etcd.options(), false, 1'000);
}

}  // namespace
}  // namespace loralei
