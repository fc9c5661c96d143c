// SPDX-License-Identifier: Apache-2.0
// What of a KV cache goes when blocks run out, and what it is worth.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace loralei {

void KvCache::evict_by(KvEviction eviction, std::function<KvWorth()> worth, const KvUtility& utility) {
  CHECK(holdings_.size() == 0);
  eviction_ = eviction;
  worth_ = std::move(worth);
  utility_ = utility;
}

// One that was not found yet: as often as others were.
double KvCache::expected_per_s(int32_t holding, int64_t now_ns) const {
  const double of_found = holdings_.finds(holding).expected_per_s(now_ns, holdings_.used_ns(holding));
  if (holdings_.was_found(holding)) return of_found;
  return of_found * (stored_ > 0 ? std::min(1.0, found_ / stored_) : 0);
}

// Of a block: its part of what having the whole prefix again takes.
double KvCache::recreate_s(int32_t holding, const KvWorth& worth) const {
  const double rows_s = kKvBlockTokens * worth.row_s;
  if (!worth.load_s) return rows_s;
  return std::max(0.0, rows_s - worth.load_s(holdings_.identity(holding)) / texts_.depth(holdings_.text(holding)));
}

CacheItem KvCache::idle_item(int32_t blocks, const KvWorth& worth) const {
  CacheItem item = prefix_item(std::max(0, blocks - free()), worth);
  item.bytes = blocks * block_bytes();
  return item;
}

CacheItem KvCache::prefix_item(int32_t blocks, const KvWorth& worth) const {
  CHECK(blocks >= 0 && blocks <= cached());
  CacheItem item{.bytes = blocks * block_bytes()};
  const int64_t now_ns = clock_.now_ns();
  double saved_s = 0;  // a second
  int32_t left = blocks;
  // The next that goes counts; false: there is no more.
  const auto count_next = [&](std::span<int32_t> next) {
    const size_t goes = goes_first(next, worth, now_ns, false);
    if (goes == next.size()) return false;
    const int32_t holding = std::exchange(next[goes], holdings_.released_next(next[goes]));
    left -= blocks_of(holding);
    const double expected = expected_per_s(holding, now_ns);
    item.uses_per_s += holdings_.finds(holding).per_s(now_ns);
    item.expected_per_s += expected;
    saved_s += expected * recreate_s(holding, worth);
    item.last_use_ns = std::max(item.last_use_ns, holdings_.used_ns(holding));
    return true;
  };
  const std::span<int32_t> in_blocks = firsts({Form::kBoth, Form::kRaw, Form::kPlain});
  while (left > 0 && count_next(in_blocks)) {
  }
  if (left > 0 && resting_ != nullptr) {
    const std::span<int32_t> coded = firsts({Form::kCoded});
    for (int32_t blobs = left * (resting_->arena.blobs() / pages() + 1); blobs > 0 && count_next(coded);) --blobs;
  }
  if (item.expected_per_s > 0) item.recreate_s = saved_s / item.expected_per_s;
  return item;
}

std::span<int32_t> KvCache::firsts(std::initializer_list<Form> forms) const {
  firsts_.clear();
  for (int32_t list = 0; list < holdings_.groups(); list += kForms) {
    for (const Form form : forms) {
      const int32_t of_form = list + static_cast<int32_t>(form);
      if (of_form < holdings_.groups()) firsts_.push_back(holdings_.released_first(of_form));
    }
  }
  return firsts_;
}

int32_t KvCache::first_of(std::initializer_list<Form> forms, bool leaf) const {
  const std::span<int32_t> next = firsts(forms);
  const size_t goes = goes_first(next, eviction_ == KvEviction::kDensity ? worth_() : KvWorth{}, clock_.now_ns(), leaf);
  return goes == next.size() ? kNoHolding : next[goes];
}

KvCache::Form KvCache::form_of(int32_t holding) const {
  if (windows_ != nullptr) return Form::kPlain;
  const bool coded = forms_.coded(holding);
  if (holdings_.block(holding) == kNoBlock) return coded ? Form::kCoded : Form::kHollow;
  if (coded) return Form::kBoth;
  return resting_ == nullptr || forms_.at(holding).plain ? Form::kPlain : Form::kRaw;
}

int32_t KvCache::list_of(int32_t holding) const {
  int32_t group = holdings_.was_found(holding) ? 1 : 0;
  if (eviction_ == KvEviction::kUtility) group = holdings_.apps(holding);
  return group * kForms + static_cast<int32_t>(form_of(holding));
}

double KvCache::utility(int32_t holding, int64_t now_ns) const {
  constexpr double kLongTokens = 1024;
  const double score = apps_.score(holdings_.apps(holding));
  const double idle_s = static_cast<double>(now_ns - holdings_.used_ns(holding)) * 1e-9;
  const double tokens = kKvBlockTokens * texts_.depth(holdings_.text(holding));
  return utility_.state * score / (1 + score) + utility_.recency / (1 + idle_s / utility_.recent_s) +
         utility_.length * tokens / (kLongTokens + tokens);
}

// By kLru all alike: the order of release tells.
double KvCache::keeps(int32_t holding, const KvWorth& worth, int64_t now_ns) const {
  switch (eviction_) {
    case KvEviction::kLru:
      return 0;
    case KvEviction::kDensity:
      return expected_per_s(holding, now_ns) * recreate_s(holding, worth);
    case KvEviction::kUtility:
      return utility(holding, now_ns);
  }
  return 0;
}

size_t KvCache::goes_first(std::span<const int32_t> firsts, const KvWorth& worth, int64_t now_ns, bool leaf) const {
  size_t goes = firsts.size();
  double least = 0;
  for (size_t group = 0; group < firsts.size(); ++group) {
    const int32_t holding = firsts[group];
    if (holding == kNoHolding || (leaf && !may_go(holding))) continue;
    const double kept = keeps(holding, worth, now_ns);
    if (goes < firsts.size() && kept > least) continue;
    if (goes < firsts.size() && kept == least &&
        holdings_.release_order(holding) > holdings_.release_order(firsts[goes])) {
      continue;
    }
    goes = group;
    least = kept;
  }
  return goes;
}

// A block comes free: of what is encoded too, so that nothing is lost; of a prefix behind
// which nothing is held; where something encoded is, of that first. Only then of a page
// whose blobs lie in blocks as well. In each turn a block comes free or a blob goes; of
// blobs first the streams of those that lend, since a prefix is worth more.
void KvCache::evict() {
  if (windows_ != nullptr) return evict_window();
  int32_t holding = first_of({Form::kBoth}, false);
  if (holding != kNoHolding) return drop_block(holding);
  while (first_of({Form::kRaw, Form::kPlain}, true) == kNoHolding) {
    holding = first_of({Form::kRaw, Form::kPlain}, false);
    if (holding == kNoHolding) return give_up_page();
    if (give_up_streams()) {
      if (give_back_page()) return;
      continue;
    }
    const int32_t coded = first_of({Form::kCoded}, true);
    if (coded == kNoHolding) {
      if (spilling_ != nullptr) write_out(holding);
      return drop_block(holding);
    }
    if (spilling_ != nullptr) write_out(coded);
    remove(coded);
    if (give_back_page()) return;
  }
  holding = first_of({Form::kRaw, Form::kPlain}, true);
  if (spilling_ != nullptr) write_out(holding);
  remove(holding);
}

bool KvCache::give_back_page() {
  const std::optional<int32_t> page = resting_->arena.release_page();
  if (page) pool_->give_back(*page);
  return page.has_value();
}

void KvCache::give_up_page() {
  CHECK(pages() > 0);
  while (!give_back_page()) give_up_coded();
}

// The eldest.
bool KvCache::give_up_streams() {
  const int32_t holding = forms_.first_stream();
  if (holding != kNoHolding) drop_streams(holding);
  return holding != kNoHolding;
}

// One blob at least goes: what nobody has in a block first. Of an anchor that many need
// one of these, so that it goes after them.
void KvCache::give_up_coded() {
  if (give_up_streams()) return;
  int32_t holding = first_of({Form::kCoded}, true);
  if (holding != kNoHolding) {
    if (spilling_ != nullptr) write_out(holding);
    return remove(holding);
  }
  holding = first_of({Form::kCoded}, false);
  if (holding == kNoHolding) return drop_blob(resting_->arena.owner_in_emptiest());
  const int32_t dependant = first_that_needs(holding);
  drop_blob(dependant == kNoHolding ? holding : dependant);
}

void KvCache::make_available(int32_t blocks) {
  while (available() < blocks && pages() > 0) give_up_page();
}

// And what nothing is left of, and nothing is held behind any more.
void KvCache::remove(int32_t holding) {
  while (holding != kNoHolding) holding = remove_one(holding);
}

// Answers which goes as well.
int32_t KvCache::remove_one(int32_t holding) {
  const int64_t now_ns = clock_.now_ns();
  const int32_t parent = holdings_.parent(holding), block = holdings_.block(holding);
  if (windows_ != nullptr) remove_window(holding);
  if (states_ != nullptr) drop_snapshot(holding);
  if (forms_.coded(holding)) clear_blob(holding);
  if (resting_ != nullptr) {
    int32_t& anchor = resting_->anchors[static_cast<size_t>(holdings_.text(holding))];
    if (anchor == holding) anchor = kNoHolding;
  }
  lose_streams(holding);
  tell_gone(holding);
  holdings_.remove(holding);
  texts_.let_go(holdings_.text(holding));
  apps_.let_go(holdings_.apps(holding));
  times_.lifetime.add(now_ns - holdings_.stored_ns(holding));
  times_.idle_before_evict.add(now_ns - holdings_.used_ns(holding));
  if (block != kNoBlock) pool_->give_back(block);
  if (parent == kNoHolding || holdings_.pins(parent) > 0) return kNoHolding;
  const bool is_empty = form_of(parent) == Form::kHollow || is_only_way(parent);
  return is_empty && may_go(parent) ? parent : kNoHolding;
}

// Whoever uses a holding uses its parents. So what only killed ones use has nothing of
// others behind it, and what is behind it stands in an earlier place of some list.
Result<int32_t> KvCache::state_app(const std::string& name, AppState state) {
  TRY(apps_.state(name, state));
  int32_t gone = 0;
  for (int32_t before = -1; state == AppState::kKilled && before != gone;) {
    before = gone;
    for (int32_t group = 0; group < holdings_.groups(); ++group) {
      int32_t next = kNoHolding;
      for (int32_t holding = holdings_.released_first(group); holding != kNoHolding; holding = next) {
        next = holdings_.released_next(holding);
        if (!apps_.all_killed(holdings_.apps(holding)) || !may_go(holding)) continue;
        remove(holding);
        ++gone;
        // A delta to it may have gone along, where there was no room to tell it anew.
        if (next != kNoHolding && !holdings_.contains(next)) next = holdings_.released_first(group);
      }
    }
  }
  return gone;
}

}  // namespace loralei
