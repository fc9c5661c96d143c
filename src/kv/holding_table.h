// SPDX-License-Identifier: Apache-2.0
// HoldingTable: whose keys and values there are on which text. A holding is one block of
// one identity on one text; on a text there is one for each that was computed there.
//
//   text A ── text B ── text C      (TextTree)
//   │ base    │ base    │ X: block 9
//   │ X       │ X       │ Y: block 4
//
// A holding's parent is what its own sequence holds on the text before: of the same
// identity, or of another where the identity changes along the text (activated LoRA: the
// base's before the invocation). Identity and text tell which; so a holding is found by
// (text, identity), compared exactly.
//
// A holding may have no block for a while: its bytes are encoded (holding_forms.h), or
// nowhere.
//
// Thread: the engine's.
// Ownership: none of the bytes; a block that is held stays taken in the pool until
// remove() or set_block() lets go of it. Storage grows with set_capacity alone: finding,
// adding and removing allocate nothing.
// Invariants (check()): whoever pins a holding pins its parents: pins(parent) >= sum of
// pins(children). Exactly the unpinned ones stand in a list, that of the group which
// unpin() or move() named, each in the order of release. A path is released deepest
// first: hence a holding was released after its descendants, and of the firsts of all
// lists the one that was released earliest is a leaf.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/apps.h"
#include "kv/identity.h"
#include "memory/recent_uses.h"

namespace loralei {

inline constexpr int32_t kNoHolding = -1;
inline constexpr int32_t kNoBlock = -1;

class HoldingTable {
 public:
  explicit HoldingTable(int32_t holdings) { set_capacity(holdings); }
  // Room for so many; fewer than now changes nothing.
  void set_capacity(int32_t holdings);

  // What this identity holds on this text, or kNoHolding.
  int32_t find(int32_t text, const KvIdentity& identity) const;
  // A new one, pinned once. CHECKs that the parent (kNoHolding: it is the first of its
  // text) is pinned, that no equal one exists and that there is room. now_ns, here and
  // below: the time, kept as that of the last use.
  struct Place {
    int32_t parent = kNoHolding, text = 0;
    KvIdentity identity;
  };
  int32_t add(const Place& place, int32_t block, int64_t now_ns);
  void pin(int32_t holding, int64_t now_ns);
  // Call deepest first. `group`: whose list it stands in from now on, until it is pinned
  // again; from 0 on, and as many lists are kept as the largest one says.
  void unpin(int32_t holding, int32_t group, int64_t now_ns);
  // An unpinned one stands in another group's list from now on, in its place by release.
  void move(int32_t holding, int32_t group);
  // As if it and those before it, as far as they are unpinned, had been released just
  // now.
  void touch(int32_t holding);
  // kNoBlock: it has none now.
  void set_block(int32_t holding, int32_t block);
  // CHECKs that it is an unpinned leaf. Its block, text and times can be asked for until
  // another is added.
  void remove(int32_t holding);
  // Block b is names[b] from now on. [blocks before]
  void rename_blocks(std::span<const int32_t> names);

  // Unpinned ones of a group: the one released first, and the one released after it;
  // kNoHolding: no more.
  int32_t groups() const { return static_cast<int32_t>(lists_.size()); }
  int32_t released_first(int32_t group) const { return lists_[static_cast<size_t>(group)].oldest; }
  int32_t released_count(int32_t group) const { return lists_[static_cast<size_t>(group)].count; }
  int32_t released_next(int32_t holding) const { return at(holding).newer; }
  uint64_t release_order(int32_t holding) const { return at(holding).release_order; }
  bool is_leaf(int32_t holding) const { return at(holding).children == 0; }

  int32_t size() const { return size_; }
  int32_t capacity() const { return static_cast<int32_t>(holdings_.size()); }
  bool full() const { return free_ == kNoHolding; }
  int32_t unpinned_blocks() const { return unpinned_blocks_; }  // of those that nobody pins
  int32_t group(int32_t holding) const { return at(holding).group; }
  bool contains(int32_t holding) const { return at(holding).used; }
  int32_t block(int32_t holding) const { return at(holding).block; }
  int32_t text(int32_t holding) const { return at(holding).place.text; }
  int32_t parent(int32_t holding) const { return at(holding).place.parent; }
  const KvIdentity& identity(int32_t holding) const { return at(holding).place.identity; }
  AppSetId apps(int32_t holding) const { return at(holding).apps; }  // that use it
  void set_apps(int32_t holding, AppSetId apps) { at(holding).apps = apps; }
  int32_t pins(int32_t holding) const { return at(holding).pins; }
  int64_t stored_ns(int32_t holding) const { return at(holding).stored_ns; }
  int64_t used_ns(int32_t holding) const { return at(holding).used_ns; }
  // How often it was found: lately, and ever.
  const RecentUses& finds(int32_t holding) const { return at(holding).finds; }
  uint64_t times_found(int32_t holding) const { return at(holding).times_found; }
  bool was_found(int32_t holding) const { return times_found(holding) > 0; }
  void count_find(int32_t holding, int64_t now_ns);
  void check() const;

 private:
  struct Holding {
    bool used = false;
    Place place;
    int32_t block = 0;
    AppSetId apps = 0;
    int32_t pins = 0;
    int32_t children = 0;
    int32_t next = kNoHolding;                       // in its bucket, or of the free ones
    int32_t group = 0;                               // of its list, while it is unpinned
    int32_t older = kNoHolding, newer = kNoHolding;  // there
    uint64_t release_order = 0, times_found = 0;
    int64_t stored_ns = 0, used_ns = 0;
    RecentUses finds;
  };
  struct List {
    int32_t oldest = kNoHolding, newest = kNoHolding;
    int32_t count = 0;
  };

  const Holding& at(int32_t holding) const { return holdings_[static_cast<size_t>(holding)]; }
  Holding& at(int32_t holding) { return holdings_[static_cast<size_t>(holding)]; }
  size_t bucket_of(int32_t text, const KvIdentity& identity) const;
  void enter_bucket(int32_t holding);
  void append(int32_t holding);
  void link_behind(int32_t holding, int32_t older);
  void enter_list(int32_t holding, int32_t group);
  void unlink(int32_t holding);
  void check_lists(std::vector<bool>& listed) const;

  std::vector<Holding> holdings_;
  std::vector<int32_t> buckets_;  // power of two
  std::vector<List> lists_;       // [groups]
  int32_t free_ = kNoHolding;
  uint64_t releases_ = 0;
  int32_t size_ = 0, unpinned_ = 0, unpinned_blocks_ = 0;
};

}  // namespace loralei
