// SPDX-License-Identifier: Apache-2.0
// AdapterVersions: the loaded versions of adapters, and who keeps which alive
// (mechanisms §3).
//
//   source ── entry ──> current version
//   AdapterPin of a request that runs   >── version
//   AdapterClaim of one that waits      >── version, which may leave meanwhile
//
// A version is the current one of its source, or arriving, which is to become that, or it
// is retired: replaced or unloaded. A retired one lives until its last pin and claim go.
// Where the load of an arriving one fails it is of no use to anybody new, and lives until
// its last pin goes.
//
// Thread: the engine's alone. Ownership: owns the versions and the ledger grants of their
// bytes; pins and claims are move-only shares of one version and must not outlive this.
// Invariants (check()): a version without a source has pins or claims; what is granted
// is what the version takes, and nothing while its load goes on, which holds the grant.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "base/clock.h"
#include "base/ids.h"
#include "memory/ledger.h"

namespace loralei {

class AdapterVersions;
struct AdapterEntry;  // of a source (adapters/entries.h)

// One immutable loaded copy. Who uses it holds it through AdapterPin.
struct AdapterVersion {
  std::string label;
  std::shared_ptr<const Adapter> adapter;
  // Of one that was handed out early, until it is whole: its load goes on, or has failed.
  std::optional<AdapterArriving> arriving;
  bool failed = false;
  AdapterEntry* owner = nullptr;  // whose current version it is, or is to be; null once retired
  Grant grant;
  int32_t pins = 0, claims = 0;
  uint64_t youngest_order = 0;  // of the requests since it was last without pins
  int64_t last_use_ns = 0;
  bool foreseen = false;                 // loaded before anybody asked for it, and not used yet
  std::vector<uint64_t> unload_tickets;  // answered when it is freed

  bool retired() const { return owner == nullptr; }
  bool whole() const { return !arriving; }
};

// What a request that waits has of the version it was made for. Unlike a pin it keeps no
// memory: the version may leave, and then the claim says nothing. Only a version that was
// replaced or unloaded, and so could not be loaded again, stays until its claims are
// gone.
class [[nodiscard]] AdapterClaim {
 public:
  AdapterClaim() = default;
  AdapterClaim(AdapterClaim&& other) noexcept
      : versions_(std::exchange(other.versions_, nullptr)), version_(other.version_) {}
  AdapterClaim& operator=(AdapterClaim&& other) noexcept;
  ~AdapterClaim() { release(); }
  AdapterVersionId version() const { return version_; }
  void release();

 private:
  friend class AdapterVersions;
  AdapterClaim(AdapterVersions* versions, AdapterVersionId version) : versions_(versions), version_(version) {}
  AdapterVersions* versions_ = nullptr;
  AdapterVersionId version_;
};

class [[nodiscard]] AdapterPin {
 public:
  AdapterPin() = default;
  AdapterPin(AdapterPin&& other) noexcept
      : versions_(std::exchange(other.versions_, nullptr)), version_(std::exchange(other.version_, nullptr)) {}
  AdapterPin& operator=(AdapterPin&& other) noexcept;
  ~AdapterPin() { release(); }
  const Adapter& operator*() const;
  const Adapter* operator->() const { return &**this; }
  void release();

 private:
  friend class AdapterVersions;
  AdapterPin(AdapterVersions* versions, AdapterVersion* version) : versions_(versions), version_(version) {}
  AdapterVersions* versions_ = nullptr;
  AdapterVersion* version_ = nullptr;
};

struct AdapterVersionEvents {
  // A version has a user more or less; null: a retired one.
  std::function<void(AdapterEntry* owner)> used;
  // It leaves memory, just now.
  std::function<void(const AdapterVersion& version)> leaving;
};

class AdapterVersions {
 public:
  AdapterVersions(const Clock& clock, AdapterVersionEvents events);
  ~AdapterVersions();  // CHECKs that no pin is left; every version leaves
  AdapterVersions(const AdapterVersions&) = delete;
  AdapterVersions& operator=(const AdapterVersions&) = delete;

  AdapterVersionId new_id() { return AdapterVersionId{next_id_++}; }
  // The grant holds at least adapter->bytes; what is beyond goes back.
  AdapterVersion& add(AdapterEntry& owner, std::string label, std::shared_ptr<const Adapter> adapter, Grant grant);
  // One whose load goes on. Then it ends well, and the version is like any other; or not.
  // The grant is the load's, as of add().
  AdapterVersion& add_arriving(AdapterEntry& owner, std::string label, AdapterArriving arriving);
  void complete(AdapterVersion& version, Grant grant);
  void fail(AdapterVersion& version, Grant grant);
  AdapterVersion* find(AdapterVersionId id) const;  // null: it has left memory

  // order: of the request, by arrival.
  AdapterPin pin(AdapterVersion& version, uint64_t order);
  AdapterClaim claim(AdapterVersionId id);  // of one in memory
  // No source's current version any more; it leaves with its last user, or now.
  void retire(AdapterVersion& version, const std::vector<uint64_t>& unload_tickets);
  // It leaves now, though it could be loaded again; nobody has it pinned.
  void evict(AdapterVersion& version);  // one that is whole

  const std::unordered_map<uint64_t, std::unique_ptr<AdapterVersion>>& all() const { return versions_; }  // by id
  bool has(const std::array<uint8_t, 32>& digest) const { return digests_.count(digest) != 0; }  // in memory, and whole
  int64_t bytes() const { return bytes_; }
  void check() const;

 private:
  friend class AdapterPin;
  friend class AdapterClaim;
  AdapterVersion& put(AdapterEntry& owner, std::string label, std::shared_ptr<const Adapter> adapter);
  void take_grant(AdapterVersion& version, Grant grant);
  void unpin(AdapterVersion& version);
  void unclaim(AdapterVersionId id);
  void leave_unless_used(AdapterVersion& version);
  void leave(AdapterVersion& version);

  const Clock& clock_;
  const AdapterVersionEvents events_;
  std::unordered_map<uint64_t, std::unique_ptr<AdapterVersion>> versions_;
  std::map<std::array<uint8_t, 32>, int32_t> digests_;  // of these that are whole, and how many have it
  int64_t bytes_ = 0;
  uint64_t next_id_ = 1;
};

}  // namespace loralei
