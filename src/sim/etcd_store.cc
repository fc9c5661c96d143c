// SPDX-License-Identifier: Apache-2.0
#include "sim/etcd_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace loralei::sim {
namespace {

constexpr int64_t kNsPerS = 1'000'000'000;

Error no_lease() { return not_found("etcdserver: requested lease not found"); }
Error was_compacted() { return not_found("etcdserver: mvcc: required revision has been compacted"); }
Error is_to_come() { return not_found("etcdserver: mvcc: required revision is a future revision"); }

}  // namespace

bool EtcdStore::within(const std::string& key, const std::string& from, const std::string& end) {
  if (end.empty()) return key == from;
  return key >= from && (end == std::string(1, '\0') || key < end);
}

EtcdKeyValue EtcdStore::at(const std::string& key, int64_t revision) const {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return {.key = key};
  const std::vector<EtcdEvent>& all = found->second;
  const auto later = std::upper_bound(all.begin(), all.end(), revision, [](int64_t wanted, const EtcdEvent& event) {
    return wanted < event.kv.mod_revision;
  });
  if (later == all.begin() || std::prev(later)->removed) return {.key = key};
  return std::prev(later)->kv;
}

Result<EtcdRange> EtcdStore::range(const EtcdRangeRequest& request) const {
  if (request.revision > revision_) return is_to_come();
  if (request.revision > 0 && request.revision < compacted_) return was_compacted();
  const int64_t revision = request.revision > 0 ? request.revision : revision_;
  EtcdRange found{.header = header()};
  for (auto key = keys_.lower_bound(request.key); key != keys_.end(); ++key) {
    if (!within(key->first, request.key, request.end)) break;
    EtcdKeyValue kv = at(key->first, revision);
    if (kv.create_revision > 0) found.keys.push_back(std::move(kv));
  }
  if (request.order == EtcdOrder::kByCreation)
    std::stable_sort(found.keys.begin(), found.keys.end(),
                     [](const auto& a, const auto& b) { return a.create_revision < b.create_revision; });
  if (request.count_only) found.keys.clear();
  if (request.limit > 0 && found.keys.size() > static_cast<size_t>(request.limit)) {
    found.keys.resize(static_cast<size_t>(request.limit));
    found.more = true;
  }
  return found;
}

void EtcdStore::set(const EtcdPut& put) {
  EtcdKeyValue kv = now(put.key);
  if (kv.create_revision == 0) kv.create_revision = revision_;
  kv.value = put.value;
  kv.mod_revision = revision_;
  kv.lease = put.lease;
  const EtcdEvent event{false, std::move(kv)};
  keys_[put.key].push_back(event);
  log_.push_back(event);
}

void EtcdStore::erase(const std::string& key) {
  EtcdEvent event{true, {}};
  event.kv.key = key;
  event.kv.mod_revision = revision_;
  keys_[key].push_back(event);
  log_.push_back(std::move(event));
}

Result<EtcdHeader> EtcdStore::put(const EtcdPut& put) {
  if (put.lease != 0 && leases_.count(put.lease) == 0) return no_lease();
  ++revision_;
  set(put);
  return header();
}

EtcdHeader EtcdStore::remove(const std::string& key) {
  if (now(key).create_revision > 0) {
    ++revision_;
    erase(key);
  }
  return header();
}

bool EtcdStore::holds(const EtcdCompare& compare) const {
  const EtcdKeyValue kv = now(compare.key);
  switch (compare.what) {
    case EtcdCompare::What::kCreateRevision:
      return kv.create_revision == compare.revision;
    case EtcdCompare::What::kModRevision:
      return kv.mod_revision == compare.revision;
    case EtcdCompare::What::kValue:
      return kv.create_revision > 0 && kv.value == compare.value;
  }
  return false;
}

Status EtcdStore::check(const EtcdTxn& txn) const {
  std::set<std::string> keys;
  for (const EtcdPut& put : txn.puts) {
    if (!keys.insert(put.key).second) return invalid_argument("etcdserver: duplicate key given in txn request");
  }
  const auto is_put = [&](const std::string& key) { return keys.count(key) > 0; };
  if (std::any_of(txn.removals.begin(), txn.removals.end(), is_put))
    return invalid_argument("etcdserver: duplicate key given in txn request");
  return {};
}

Result<EtcdTxnAnswer> EtcdStore::txn(const EtcdTxn& txn) {
  TRY(check(txn));
  EtcdTxnAnswer answer;
  answer.succeeded =
      std::all_of(txn.compares.begin(), txn.compares.end(), [this](const EtcdCompare& one) { return holds(one); });
  if (answer.succeeded) {
    for (const EtcdPut& put : txn.puts) {
      if (put.lease != 0 && leases_.count(put.lease) == 0) return no_lease();
    }
    std::set<std::string> gone;
    for (const std::string& key : txn.removals) {
      if (now(key).create_revision > 0) gone.insert(key);
    }
    if (!txn.puts.empty() || !gone.empty()) ++revision_;
    for (const EtcdPut& put : txn.puts) set(put);
    for (const std::string& key : txn.removals) {
      if (gone.erase(key) > 0) erase(key);
    }
  } else {
    for (const std::string& key : txn.reads) {
      EtcdKeyValue kv = now(key);
      if (kv.create_revision > 0) answer.found.push_back(std::move(kv));
    }
  }
  answer.header = header();
  return answer;
}

// Of each key the last one up to that revision stays, where it is there then.
Status EtcdStore::compact(int64_t revision) {
  if (revision > revision_) return is_to_come();
  if (revision <= compacted_) return was_compacted();
  compacted_ = revision;
  for (auto key = keys_.begin(); key != keys_.end();) {
    std::vector<EtcdEvent>& all = key->second;
    size_t old = 0;
    while (old + 1 < all.size() && all[old + 1].kv.mod_revision <= revision) ++old;
    if (all[old].removed && all[old].kv.mod_revision <= revision) ++old;
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(old));
    key = all.empty() ? keys_.erase(key) : std::next(key);
  }
  while (!log_.empty() && log_.front().kv.mod_revision < revision) log_.pop_front();
  return {};
}

std::vector<EtcdEvent> EtcdStore::events(const std::string& key, const std::string& end, int64_t from_revision) const {
  CHECK(from_revision >= compacted_);
  const auto first =
      std::lower_bound(log_.begin(), log_.end(), from_revision,
                       [](const EtcdEvent& event, int64_t from) { return event.kv.mod_revision < from; });
  std::vector<EtcdEvent> found;
  std::copy_if(first, log_.end(), std::back_inserter(found),
               [&](const EtcdEvent& event) { return within(event.kv.key, key, end); });
  return found;
}

Result<EtcdLease> EtcdStore::grant(int64_t id, int64_t ttl_s, int64_t now_ns) {
  if (leases_.count(id) != 0) return invalid_argument("etcdserver: lease already exists");
  leases_[id] = {ttl_s, now_ns + ttl_s * kNsPerS};
  return EtcdLease{id, ttl_s};
}

EtcdLease EtcdStore::keep_alive(int64_t id, int64_t now_ns) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return {id, 0};
  found->second.over_ns = now_ns + found->second.ttl_s * kNsPerS;
  return {id, found->second.ttl_s};
}

Status EtcdStore::revoke(int64_t id) {
  if (leases_.erase(id) == 0) return no_lease();
  std::vector<std::string> gone;
  for (const auto& [key, all] : keys_) {
    if (!all.back().removed && all.back().kv.lease == id) gone.push_back(key);
  }
  if (!gone.empty()) ++revision_;
  for (const std::string& key : gone) erase(key);
  return {};
}

bool EtcdStore::expire(int64_t now_ns) {
  if (paused_) return false;
  std::vector<std::pair<int64_t, int64_t>> over;  // when, and which
  for (const auto& [id, lease] : leases_) {
    if (lease.over_ns <= now_ns) over.emplace_back(lease.over_ns, id);
  }
  std::sort(over.begin(), over.end());
  for (const auto& [when, id] : over) CHECK(revoke(id).ok());
  return !over.empty();
}

std::optional<int64_t> EtcdStore::next_expiry_ns() const {
  if (paused_ || leases_.empty()) return std::nullopt;
  int64_t next_ns = INT64_MAX;
  for (const auto& [id, lease] : leases_) next_ns = std::min(next_ns, lease.over_ns);
  return next_ns;
}

void EtcdStore::resume_leases(int64_t now_ns) {
  paused_ = false;
  for (auto& [id, lease] : leases_) lease.over_ns = now_ns + lease.ttl_s * kNsPerS;
}

}  // namespace loralei::sim
