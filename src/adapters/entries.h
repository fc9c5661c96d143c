// SPDX-License-Identifier: Apache-2.0
// AdapterEntries: what is known of every source, and what of that is new.
//
// Thread: the engine's alone. Ownership: owns the entries, whose addresses stay until
// forget(). Invariants (check()): an entry is listed once where it is wanted, and once
// where something shown of it has changed; pinned_bytes() is what the current versions of
// pinned sources take. Nothing here costs the sources in total but for_each() and
// check().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/source_spec.h"
#include "adapters/versions.h"
#include "base/ids.h"
#include "base/result.h"
#include "memory/recent_uses.h"

namespace loralei {

// How far the load of a source is.
enum class AdapterStage : uint8_t { kIdle, kQueued, kStamping, kWaitingForRoom, kReading };

// A source and what has become of it.
struct AdapterEntry {
  AdapterSourceSpec spec;
  AdapterSourceId replaces;            // while it is loaded
  AdapterVersion* version = nullptr;   // its current one
  AdapterVersion* arriving = nullptr;  // that its load was handed out early
  AdapterStage stage = AdapterStage::kIdle;
  bool reload = false;             // a replacement is under way; `version` serves meanwhile
  bool forget_on_failure = false;  // the source came with the load command
  bool pinned = false;
  bool failed = false;
  Error error;
  FileStamp failed_stamp;
  bool failed_stamp_known = false;
  int64_t failed_limit_bytes = INT64_MAX;  // too large for this much room; more room is worth another try
  uint64_t failed_serial = 0;
  int64_t least_bytes = 0;    // it surely needs that much
  int64_t ask_bytes = 0;      // room to ask for next
  bool size_known = false;    // both are what the loader said
  int64_t granted_bytes = 0;  // to the job that reads it
  int64_t without_room_since_ns = INT64_MAX;
  int64_t uses = 0;
  RecentUses recent_uses;
  double load_s = 0;                  // its last read
  std::optional<Digest> last_digest;  // of its version, or the one before
  std::optional<double> keep_score;   // of KeepOrder, when room was last looked for and it could have left
  std::string left;                   // why it left memory; empty: it is there, or was never
  uint64_t wanted = UINT64_MAX;       // order of the oldest request that wants it in this round
  int32_t waiting = 0;
  bool changed = false;
  int64_t shown_idle_bytes = 0;  // idle_bytes() when it was last shown
  uint64_t job = 0;
  bool ahead = false;             // its load began before anybody asked for it
  std::vector<uint64_t> tickets;  // of load and pin commands

  int64_t version_bytes() const { return version != nullptr ? version->grant.bytes() : 0; }
  int32_t users() const {
    return (version != nullptr ? version->pins : 0) + (arriving != nullptr ? arriving->pins : 0);
  }
  int64_t pinned_bytes() const { return pinned ? version_bytes() : 0; }
  int64_t idle_bytes() const { return version != nullptr && version->pins == 0 && !pinned ? version_bytes() : 0; }
  // What its next load must give (AdapterSourceSpec), in hex; empty: anything.
  std::string expected_digest() const {
    return spec.expected_digest.empty() && spec.one_version && last_digest ? digest_hex(*last_digest)
                                                                           : spec.expected_digest;
  }
  // Its load's turn: what commands ask for goes before what requests wait for.
  uint64_t order() const { return tickets.empty() && !pinned ? wanted : 0; }
  bool goes_before(const AdapterEntry& other) const {
    return order() != other.order() ? order() < other.order() : spec.id < other.spec.id;
  }
};

enum class AdapterState : uint8_t { kSource, kLoading, kResident, kFailed };

// A view for status displays; pointers are valid until the next call.
struct RegistryView {
  const AdapterSourceSpec* source = nullptr;
  AdapterState state = AdapterState::kSource;
  const Adapter* adapter = nullptr;  // the current version, or null
  int64_t bytes = 0;
  int32_t users = 0, waiting = 0;
  int64_t uses = 0;
  const RecentUses* recent_uses = nullptr;
  double load_s = 0;
  std::optional<double> keep_score;
  const std::string* left = nullptr;
  bool pinned = false;
  const Error* error = nullptr;  // kFailed
};

class AdapterEntries {
 public:
  explicit AdapterEntries(int32_t sources_max) : sources_max_(sources_max) {}
  AdapterEntries(const AdapterEntries&) = delete;
  AdapterEntries& operator=(const AdapterEntries&) = delete;

  AdapterEntry* find(AdapterSourceId source) const;  // null: it is not known
  // One that is not known. invalid_argument without a name or path; too_large.
  Result<AdapterEntry*> add(const AdapterSourceSpec& source);
  void forget(AdapterEntry& entry);  // it has no version, and no load
  // Whose version its load replaces: another's, or its own.
  const AdapterEntry& replaced_by(const AdapterEntry& entry) const;

  void set_version(AdapterEntry& entry, AdapterVersion& version);  // it has none
  AdapterVersion* take_version(AdapterEntry& entry);               // no longer its current one; it has one
  void set_pinned(AdapterEntry& entry, bool pinned);
  int64_t pinned_bytes() const { return pinned_bytes_; }
  // Of versions that nobody uses and that are not pinned. Costs what has changed since
  // that was last shown.
  int64_t idle_bytes() const;

  // --- a round: who waits for what
  void begin_round();
  void want(AdapterEntry& entry, uint64_t order);
  std::span<AdapterEntry* const> wanted() const { return wanted_; }
  void unwant(AdapterEntry& entry);  // nobody waits with it any more, before the next round

  // --- what is new
  void touch(AdapterEntry& entry);        // what is shown of it is another
  void tell(AdapterSourceId source);      // in memory, failed, replaced, dropped
  void count_change() { ++generation_; }  // whoever waits may fare otherwise now
  uint64_t generation() const { return generation_; }
  void take_news(std::vector<AdapterSourceId>& sources);
  bool has_news() const { return !news_.empty(); }
  // Those that are gone first: they may have been added again.
  void take_changes(const std::function<void(AdapterSourceId)>& gone,
                    const std::function<void(const RegistryView&)>& changed);
  bool has_changes() const { return !changed_.empty() || !gone_.empty(); }
  void for_each(const std::function<void(AdapterEntry&)>& visit) const;
  static RegistryView view_of(const AdapterEntry& entry);

  void check() const;

 private:
  const int32_t sources_max_;
  std::map<AdapterSourceId, std::unique_ptr<AdapterEntry>> entries_;
  std::vector<AdapterEntry*> wanted_, changed_;
  std::vector<AdapterSourceId> news_, gone_;
  int64_t pinned_bytes_ = 0, shown_idle_bytes_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace loralei
