// SPDX-License-Identifier: Apache-2.0
// KvCache: the blocks of all sequences and the prefixes worth keeping, found again per
// identity (mechanisms §5).
//
// Where rest_by() allows it, what nobody leases is encoded when there is time (rest()),
// as differences from the base's on the same text where these are there, and its block
// may go then without being lost: the blobs lie in an arena whose pages are blocks of the
// pool. Who finds such a prefix leases it as any other, and materialise() decodes it.
//
// Thread: the engine's.
// Ownership: owns the pool, texts and what is held on them; a KvLease is a move-only
// share, dropping it is the only way to release, and it must not outlive its cache. Only
// full blocks are shared, so nothing is ever copied on write: the last, partly filled
// block is private.
//
//   lease.blocks() = | of holdings (pinned) ................. | private ... |
//
// shared() counts the first kind.
//
// Where layers attend to windows (KvTables) a place of a lease has a block of each table;
// of the sliding ones no longer than the window reaches (pass()). What of them nobody
// leases may go before the rest of a holding, and a prefix is found no further than where
// the window before its end is there (kv_window.cc). All else above is the same.
//
// Where layers keep a state of a whole text (kv/state_pool.h) a lease has one of its own
// and a prefix is found no further than where a copy of its state was kept
// (kv_snapshots.cc).
//
// Invariants (check()): every block is free, private to one lease, of one holding, or a
// page; a lease pins its holdings on a path of texts from the root. Whoever asks for what
// is exact (KvKey) gets nothing that was encoded with loss, nor what was computed from
// that. Scarcity is an answer: reserve() says false and changes nothing; unpinned
// prefixes are evicted before, by kv/eviction.h. A stored block is counted in times()
// when it is found or evicted.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "kv/apps.h"
#include "kv/block_pool.h"
#include "kv/block_times.h"
#include "kv/eviction.h"
#include "kv/holding_forms.h"
#include "kv/holding_table.h"
#include "kv/identity.h"
#include "kv/kv_coder.h"
#include "kv/kv_disk.h"
#include "kv/kv_events.h"
#include "kv/kv_summary.h"
#include "kv/kv_teller.h"
#include "kv/sharing.h"
#include "kv/state_pool.h"
#include "kv/state_snapshots.h"
#include "kv/text_tree.h"
#include "kv/window_parts.h"
#include "memory/keep_order.h"
#include "ops/kv_tables.h"

namespace loralei {

class KvCache;

// Positions, ascending, at which a state is to be kept; kNowhere behind the last.
using KvKeepAt = std::array<int32_t, 2>;
inline constexpr int32_t kNowhere = INT32_MAX;
inline constexpr KvKeepAt kKeepNowhere = {kNowhere, kNowhere};

class [[nodiscard]] KvLease {
 public:
  KvLease() = default;
  KvLease(KvLease&& other) noexcept;
  KvLease& operator=(KvLease&& other) noexcept;
  ~KvLease() { release(); }

  // [places][tables]: of a place its block in each table, kNoBlock where that went.
  std::span<const int32_t> blocks() const { return blocks_; }
  int32_t tables() const { return tables_.count(); }
  int32_t places() const { return static_cast<int32_t>(blocks_.size()) / tables(); }
  // That it has; without windows as many as places.
  int32_t held() const { return static_cast<int32_t>(blocks_.size()) - window_first_ * tables_.sliding; }
  int32_t shared() const { return static_cast<int32_t>(holdings_.size()); }
  // Where layers keep a state: its slot, and of how many tokens it is now; kNoState: of
  // none, or of something in between, and rows are computed anew from another lease.
  int32_t state() const { return state_.slot(); }
  int32_t state_at() const { return state_at_; }
  // Rows are being computed with it: it is of nothing until KvCache::keep_state().
  void change_state() { state_at_ = kNoState; }
  // The next position behind `computed` at which a step is to end, so that the state
  // there can be kept; kNowhere: none.
  int32_t keeps_next(int32_t computed) const;
  void release();

 private:
  friend class KvCache;
  std::span<int32_t> place(int32_t index) {
    const auto count = static_cast<size_t>(tables());
    return std::span(blocks_).subspan(static_cast<size_t>(index) * count, count);
  }
  KvCache* cache_ = nullptr;
  std::vector<int32_t> blocks_;
  std::vector<int32_t> holdings_;  // of the first places
  KvTables tables_;
  int32_t window_first_ = 0;  // the first place with blocks in the sliding tables
  bool exact_ = true;         // nothing that was encoded with loss is among them
  StateLease state_;
  int32_t state_at_ = kNoState;
  KvKeepAt keep_at_ = kKeepNowhere;
};

// What a lease on a prefix would be: read-only.
struct KvMatch {
  int32_t blocks = 0;     // full blocks of text found
  int32_t evictable = 0;  // leasing them takes so many from available(), since nobody pins them now
  int32_t held = 0;       // blocks of the pool that a lease on them has
  KvKeepAt keep_at = kKeepNowhere;
  int32_t tokens() const { return blocks * kKvBlockTokens; }
};

// What having a prefix again takes: its rows are computed, less what whoever uses it
// waits for anyway (the load of an adapter that is not in memory: a prefix saves no time
// before its adapter is there; FASTLIBRA, arXiv 2505.03756).
struct KvWorth {
  double row_s = 0;                                 // of a row of a prompt
  std::function<double(const KvIdentity&)> load_s;  // empty: nobody waits for one
};

// How what nobody leases may rest, and what is needed for it.
struct KvRestOptions {
  KvSharing sharing = KvSharing::kExact;
  KvDelta delta = KvDelta::kSteps;
  std::optional<KvGrid>
      grid;              // of a float cache; none: a quarter of the spread of the first blocks (codec/kv_spread.h)
  double agreement = 0;  // that was measured with it (KvCoded)
  ThreadPool* pool = nullptr;  // whose threads encode and decode; null: the caller's alone
  Ledger* ledger = nullptr;    // of what they work in
};

class KvCache {
 public:
  // prefix_cache false: nothing is ever shared or kept. `clock` outlives the cache.
  // `capacity`: the most blocks that resize() can give it, if more than `blocks`.
  static Result<std::unique_ptr<KvCache>> create(const KvShape& shape, int32_t blocks, bool prefix_cache,
                                                 Ledger& ledger, const Clock& clock, int32_t capacity = 0);
  // Of blocks whose bytes are elsewhere (BlockPool::create_ids).
  static std::unique_ptr<KvCache> create_ids(int32_t blocks, bool prefix_cache, const Clock& clock,
                                             const BlockPool::Counted& counted = {});

  // kLru where this is not called; before anything is kept. `utility`: of kUtility.
  void evict_by(KvEviction eviction, std::function<KvWorth()> worth, const KvUtility& utility = {});

  // Before anything is kept. Refused where the blocks' bytes are elsewhere, where nothing
  // could be encoded as `sharing` and `delta` say, or where the ledger has no room.
  Status rest_by(KvRestOptions options);
  // Something is to be encoded; and it is time, since fewer than so many blocks are free
  // or could go without loss.
  bool wants_rest() const;
  bool should_rest(int32_t blocks) const;
  // Encodes a few of those that nobody leases; how many it looked at. 0: there is nothing
  // to do, or nothing to do it with.
  int32_t rest();
  // What of this text is there goes last, as if it had been used just now.
  void use_soon(const KvKey& key, std::span<const TokenId> tokens, int32_t limit);
  // Drops what is encoded, what goes first first, until so many blocks are available() or
  // there are no more pages.
  void make_available(int32_t blocks);
  // Decodes what match() found encoded. To be called before any reserve(), and behind all
  // matches that were counted upon: it takes blocks as they do. False: something encoded
  // was damaged, and is gone, or there were fewer blocks than were counted upon; the
  // lease is to be dropped.
  bool materialise(KvLease& lease);

  // How many blocks of tokens[0, limit) from block `first` on somebody lends to whoever
  // changes nothing below layer `layers`: blocks of the same salt whose K, V and streams
  // are the base's there.
  int32_t lent(const KvKey& key, std::span<const TokenId> tokens, int32_t limit, int32_t first, int32_t layers) const;
  // Grows the lease to `blocks`, the new ones with a copy of what is lent of them: K and
  // V below that layer, and the streams up to there. Answers how many blocks it has then:
  // fewer, where what was counted upon has gone. When and what it takes: as
  // materialise().
  int32_t borrow(KvLease& lease, const KvKey& key, std::span<const TokenId> tokens, int32_t blocks, int32_t layers);

  // What is held is written to `disk` when there is time (spill), and before it goes; by
  // others' word it comes back (restore). Before anything is kept; it outlives the cache.
  void spill_to(KvDisk& disk);
  // Writes a few of those that were released since. kFull: the disk takes no more now.
  enum class Spill : uint8_t { kNothing, kSome, kFull };
  Spill spill();
  // Of the full blocks of tokens[0, limit).
  std::vector<KvDiskKey> disk_keys(const KvKey& key, std::span<const TokenId> tokens, int32_t limit) const;
  // Blocks of these tokens from block `first` on, which were fetched by
  // keys.subspan(first): they are held from now on, as if whoever has this key had just
  // released them. How many: fewer, where one could not be decoded, or there is no room.
  int32_t restore(const KvKey& key, std::span<const TokenId> tokens, std::span<const KvDiskKey> keys, int32_t first,
                  std::span<const KvFetchedBlock> blocks);

  // What comes to be held and what goes is told there from now on. Before anything is
  // kept, and behind spill_to(); `events` outlives the cache.
  void tell(KvEvents& events);
  // Where there was no place for something, all is told anew, a part at a time: to be
  // called between steps. True: there is more to tell, or soon will be (a disk writes).
  bool tell_more();

  // Layers keep a state of so many floats of each text: room for `slots`, of which every
  // lease of match() takes one and the others are for copies at borders of blocks. Before
  // anything is kept, and instead of what encodes, lends, goes to disk or is told.
  Status keep_states(int64_t floats, int32_t slots, Ledger& ledger);
  // All rows before `computed` are computed and published, and the lease's state is of
  // these: kept where it is to be, in a free slot or that of the copy used least lately.
  void keep_state(KvLease& lease, int32_t computed);
  StateView states() const { return states_ == nullptr ? StateView() : states_->pool->view(); }
  KvStates state_counts() const;

  // The longest stored prefix of tokens[0, limit). A caller that must compute at least
  // the last token passes limit = size - 1.
  KvMatch peek(const KvKey& key, std::span<const TokenId> tokens, int32_t limit) const;
  // Leases that prefix; room for `blocks_max` block ids is set aside, so that growing up
  // to there allocates nothing. With states it has one of that prefix, which costs a copy
  // of it or, of no prefix, to write zeros; and none where other leases have all slots.
  KvLease match(const KvKey& key, std::span<const TokenId> tokens, int32_t limit, int32_t blocks_max);
  // Grows the lease to hold positions [0, tokens). All or nothing.
  bool reserve(KvLease& lease, int32_t tokens);
  // Positions [0, computed) hold valid K and V: full blocks among them become shared.
  // Where one is stored already, the lease changes over to it and gives its own back
  // (their bytes are equal: batch invariance); or its own takes the place of what lay
  // there encoded. Where neither can be, as what is exact and what is not differ, it
  // keeps its own to itself from there on.
  void publish(KvLease& lease, const KvKey& key, std::span<const TokenId> tokens, int32_t computed);
  // All rows from position `computed` on are still to come, and none before is computed
  // anew: what lies in front of the window goes from the sliding tables.
  void pass(KvLease& lease, int32_t computed);
  // Blocks that dropping this lease would make free or evictable.
  int32_t exclusive(const KvLease& lease) const;
  // `blocks` in all from now on; `leases` are all that hold any, together no more than
  // these (CHECKed). Prefixes that find no room are evicted; what lies beyond moves down,
  // and leases and prefixes follow. Refused (growing only: by the ledger or the system)
  // it changes nothing.
  Status resize(int32_t blocks, std::span<KvLease* const> leases);

  // What so many blocks of prefixes are worth that are evicted first, as one object. A
  // use of one is that it is found again; of one that was not found yet that is expected
  // as often as of others.
  CacheItem prefix_item(int32_t blocks, const KvWorth& worth) const;
  // And of so many blocks in all: those that nobody has go before any prefix.
  CacheItem idle_item(int32_t blocks, const KvWorth& worth) const;

  KvView view() const { return pool_->view(); }
  const KvTables& tables() const { return tables_; }
  const KvStreams& streams() const { return pool_->streams(); }
  int32_t total() const { return pool_->total(); }
  int32_t capacity() const { return pool_->capacity(); }
  int32_t free() const { return pool_->free(); }  // of nobody, nor a prefix
  int64_t block_bytes() const { return pool_->block_bytes(); }
  // What reserve() could give.
  int32_t available() const { return pool_->free() + unpinned_blocks(); }
  int32_t pages() const { return resting_ == nullptr ? 0 : resting_->arena.pages(); }  // blocks of encoded ones
  int32_t cached() const { return unpinned_blocks() + pages(); }
  int32_t leased() const { return total() - available() - pages(); }
  int64_t bytes() const { return pool_->bytes(); }
  const BlockTimes& times() const { return times_; }
  KvSummary summary() const;  // costs all that is held
  KvCoded coded() const;
  // By which it encodes; nullopt: it does not, or has none yet.
  const std::optional<KvGrid>& grid() const {
    static const std::optional<KvGrid> kNone;
    return resting_ == nullptr ? kNone : resting_->options.grid;
  }
  int64_t restored_blocks() const { return spilling_ == nullptr ? 0 : spilling_->restored_blocks; }
  KvIdentities& identities() { return identities_; }
  KvApps& apps() { return apps_; }
  const KvApps& apps() const { return apps_; }
  // As KvApps::state(). What only killed ones use goes at once, or when its last lease is
  // dropped; answers how many blocks went now.
  Result<int32_t> state_app(const std::string& name, AppState state);
  // With every live lease at hand it also checks who holds what; at idle: check({}).
  void check(std::span<const KvLease* const> leases) const;

 private:
  friend class KvLease;
  KvCache(std::unique_ptr<BlockPool> pool, bool prefix_cache, const Clock& clock)
      : pool_(std::move(pool)),
        tables_(pool_->shape().tables),
        texts_(pool_->total()),
        holdings_(pool_->total()),
        prefix_cache_(prefix_cache),
        clock_(clock) {
    forms_.set_capacity(pool_->total());
    if (pool_->shape().streams.dim > 0) lenders_.resize(static_cast<size_t>(texts_.capacity()), kNoHolding);
    if (!tables_.has_windows()) return;
    windows_ = std::make_unique<Windows>(tables_);
    set_capacity(pool_->total());
  }
  // The forms that have lists of their own (HoldingTable's groups: group_of() and these).
  enum class Form : uint8_t {
    kPlain,   // a block that will not be encoded
    kRaw,     // a block that is to be
    kBoth,    // encoded too
    kCoded,   // encoded alone
    kHollow,  // neither: kept as long as something is held behind it
  };
  static constexpr int32_t kForms = 5;
  struct Resting {
    BlobArena arena;
    KvRestOptions options;
    KvGridShape shape;
    bool lossless = false;
    Grant scratch;
    std::optional<KvCoder> coder;  // once there is a grid
    std::vector<int32_t> anchors;  // by text: to whom those are deltas that find no base there
    std::vector<KvEncodeJob> encodes;
    std::vector<int32_t> encoding;  // beside them: holdings, and their anchors
    std::vector<int32_t> encoding_on;
    std::vector<KvDecodeJob> decodes;
    std::vector<int32_t> decoding;   // beside them, where these are of many: holdings
    std::vector<std::byte> streams;  // scratch
    KvCodedTimes times;
  };
  // What the sequence of this key holds on its block of this number; kNoHolding: nothing.
  // `text`: that of the block before (kNoText: there is none), and then of this one.
  int32_t find(const KvKey& key, std::span<const TokenId> tokens, int32_t block, int32_t& text) const;
  void release(KvLease& lease);
  void set_capacity(int32_t blocks);
  bool join(KvLease& lease, const KvKey& key, int32_t holding, int32_t place);
  int32_t add(KvLease& lease, const KvKey& key, std::span<const TokenId> tokens, int32_t block, int32_t before);
  void name(int32_t holding, int32_t parent, const KvKey& key, std::span<const TokenId> tokens, int32_t block);
  int32_t take_block();
  int32_t unpinned_blocks() const;

  KvLease lease_prefix(const KvKey& key, std::span<const TokenId> tokens, int32_t blocks, int32_t blocks_max,
                       bool counts);

  // kv_window.cc: where layers attend to windows.
  struct Windows {
    explicit Windows(const KvTables& tables) : parts(tables.sliding) {}
    WindowParts parts;
    std::vector<int32_t> more;  // by holding: its blocks in full tables but the first
  };
  std::span<int32_t> more_of(int32_t holding) const;
  int32_t blocks_of(int32_t holding) const;
  KvMatch peek_window(const KvKey& key, std::span<const TokenId> tokens, int32_t places_max) const;
  void lease_window(KvLease& lease);
  void keep_window(const KvLease& lease, int32_t holding, std::span<const int32_t> blocks, int32_t place);
  void join_window(KvLease& lease, const KvKey& key, int32_t holding, int32_t place);
  void release_place(KvLease& lease, int32_t place, int64_t now_ns);
  int32_t exclusive_window(const KvLease& lease) const;
  void evict_window();
  void remove_window(int32_t holding);
  bool is_only_way(int32_t holding) const;
  void rename_window(std::span<const int32_t> names);
  void check_window(std::span<const KvLease* const> leases, std::vector<int32_t>& owners,
                    std::vector<int32_t>& held) const;

  // kv_snapshots.cc: where layers keep states.
  struct States {
    std::unique_ptr<StatePool> pool;
    StateSnapshots snapshots;  // by holding
    KvStates counts;           // the running totals
  };
  KvMatch peek_state(const KvKey& key, std::span<const TokenId> tokens, int32_t blocks_max) const;
  StateLease take_state();
  void begin_state(KvLease& lease, const KvMatch& match);
  void drop_snapshot(int32_t holding);
  void check_states(std::span<const KvLease* const> leases) const;

  // kv_spill.cc: to disk and back.
  struct Spilling {
    KvDisk* disk = nullptr;
    std::vector<bool> waits;        // by holding: it stands in `released`
    std::vector<int32_t> released;  // a stack of holdings, each once
    std::vector<std::byte> blob;    // scratch
    int64_t restored_blocks = 0;
  };
  void note_released(int32_t holding);
  bool write_out(int32_t holding);
  bool write_raw(int32_t holding);
  bool write_blob(int32_t holding);
  bool fill(int32_t block, const KvFetchedBlock& fetched);

  // kv_tell.cc: what others are told.
  struct Telling {
    Telling(KvEvents& events, KvDisk* of) : teller(events), disk(of) {}
    ~Telling();
    KvTeller teller;
    KvDisk* const disk;          // null: there is none
    std::vector<uint32_t> told;  // by holding: in which picture
    std::vector<int32_t> path;   // scratch
    int32_t next = kWhole;       // holding that is looked at next for the picture
    static constexpr int32_t kWhole = INT32_MAX;
  };
  bool is_told(int32_t holding) const {
    return telling_->told[static_cast<size_t>(holding)] == telling_->teller.picture();
  }
  void tell_of(int32_t holding);
  void tell_gone(int32_t holding);
  bool tell_path(int32_t holding, size_t places_left);
  KvEvent stored_event(int32_t holding) const;
  void check_told() const;

  // kv_lend.cc: who lends.
  int32_t lender(const KvIdentity& identity, int32_t text, int32_t layers) const;
  bool lends(int32_t holding, const KvIdentity& to, int32_t layers) const;
  void note_lender(int32_t holding);
  bool is_lender(int32_t holding) const {
    return !lenders_.empty() && lenders_[static_cast<size_t>(holdings_.text(holding))] == holding;
  }
  void lose_streams(int32_t holding);
  bool has_streams(int32_t holding) const;
  void copy_lent(int32_t from, int32_t own, int32_t layers);
  int32_t decode_lent(const KvLease& lease, int32_t blocks);
  void load_streams(int32_t holding, int32_t block);

  // kv_evict.cc: who goes first.
  void evict();
  void give_up_page();
  bool give_back_page();
  void give_up_coded();
  bool give_up_streams();
  // Which of the lists of released holdings this one belongs to: by whether it was ever
  // found, or by its applications; and by its form.
  Form form_of(int32_t holding) const;
  int32_t list_of(int32_t holding) const;
  void relist(int32_t holding) {
    if (holdings_.pins(holding) == 0) holdings_.move(holding, list_of(holding));
  }
  // The first of each list of these forms that is left, and of these the one that goes,
  // as its place there; its size: there is none. `leaf`: one that may_go(), since nothing
  // is held behind it, and few are deltas to it.
  std::span<int32_t> firsts(std::initializer_list<Form> forms) const;
  size_t goes_first(std::span<const int32_t> firsts, const KvWorth& worth, int64_t now_ns, bool leaf) const;
  int32_t first_of(std::initializer_list<Form> forms, bool leaf) const;  // kNoHolding: there is none
  bool may_go(int32_t holding) const;
  double keeps(int32_t holding, const KvWorth& worth, int64_t now_ns) const;
  double utility(int32_t holding, int64_t now_ns) const;
  void used_by(int32_t holding, const KvAppRef& app);
  void remove(int32_t holding);
  int32_t remove_one(int32_t holding);
  double expected_per_s(int32_t holding, int64_t now_ns) const;
  double recreate_s(int32_t holding, const KvWorth& worth) const;

  // kv_rest.cc: forms.
  bool is_exact(int32_t holding) const;
  KvSource source_of(int32_t holding) const;
  int32_t anchor_for(int32_t holding, bool& wait);
  bool find_grid();
  void make_coder();
  void choose_encodes();
  void finish_encode(int32_t holding, int32_t anchor, std::span<const std::byte> blob);
  std::span<const std::byte> streams_to_keep(int32_t holding);
  void keep_streams(int32_t holding, std::span<const std::byte> streams);
  bool make_chunks(int32_t holding, int32_t chunks);
  void keep_blob(int32_t holding, int32_t anchor, std::span<const std::byte> blob);
  bool recode(int32_t holding, int32_t anchor);
  void follow_base(int32_t base, int32_t before);
  void free_dependants(int32_t anchor);
  int32_t first_that_needs(int32_t anchor) const;
  bool is_paper() const { return resting_ != nullptr && resting_->options.delta == KvDelta::kPaper; }
  int32_t recoded_most() const;
  void note_decoded(int32_t holding);
  void drop_block(int32_t holding);
  void clear_blob(int32_t holding);
  void drop_streams(int32_t holding);
  void drop_blob(int32_t holding);
  int32_t released_count(Form form) const;
  void check_forms() const;

  std::unique_ptr<BlockPool> pool_;
  const KvTables tables_;
  TextTree texts_;
  HoldingTable holdings_;
  HoldingForms forms_;
  std::unique_ptr<Windows> windows_;    // null: no layer attends to a window
  std::unique_ptr<States> states_;      // null: no layer keeps one
  std::unique_ptr<Resting> resting_;    // null: nothing is encoded
  std::unique_ptr<Spilling> spilling_;  // null: nothing goes to disk
  std::unique_ptr<Telling> telling_;    // null: nobody is told
  std::vector<KvDiskKey> names_;        // by holding, where it goes to disk or others are told
  std::vector<int32_t> lenders_;        // by text: who has the most layers to lend; empty: nobody lends
  KvIdentities identities_;
  BlockTimes times_;
  double stored_ = 0, found_ = 0;  // blocks
  KvApps apps_;
  KvEviction eviction_ = KvEviction::kLru;
  KvUtility utility_;
  mutable std::vector<int32_t> firsts_;  // scratch of firsts()
  std::function<KvWorth()> worth_;
  const bool prefix_cache_;
  const Clock& clock_;
};

}  // namespace loralei
