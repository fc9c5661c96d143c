// SPDX-License-Identifier: Apache-2.0
// The homes of adapters: which replicas should have which in memory.
//
// Left alone, every replica comes to have those that are asked for much, and the others
// thrash. An adapter that is nothing special has one home, by its number (rendezvous
// hashing: of R replicas that are up, one that goes takes a part of 1 / R along). One
// that is asked for much has as many homes as its demand needs, packed so that ranks that
// slow each other are apart (CaraServe §5), and replicas are asked to have it before the
// next request comes. Whoever routes adds, for a replica that is no home of an adapter
// and does not use it just now, what bringing it takes (RouteCandidate::stray_s), though
// it be there: wherever it is used it takes room from others.
//
// Lots are drawn with numbers that are the same for every router of a fleet, so all agree
// on them. What one of them gave the others take over: given(), take_given().
//
// An adapter's demand is the tokens that its requests take, or the requests where nobody
// tells their tokens, of which half counts after half_life_s. With D the demand of those
// asked for much, over R replicas that are up, each should have about D / R. An adapter
// that has more than copy_share of that has several homes, so that none of them has more.
// Homes are given by rank, the largest first: to a replica that has room for the demand
// and the bytes, where the largest rank is its own, else where nobody is, else where it
// is nearest; of these the least loaded.
//
// It moves slowly. Such a home is kept as long as its replica is up, the adapter is asked
// for half as much, and the replica has no more than keep_share of its part; one that is
// not needed any more is given up after dwell_s. Replicas are asked in the order of
// demand, for a few adapters and bytes at a time, and never to unload: what a replica
// keeps is its own affair.
//
// Thread: one. Plain values, no clock. Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace loralei {

struct HomesOptions {
  double interval_s = 5;     // between plans, for who calls
  double half_life_s = 60;   // of demand
  double hot_requests = 20;  // asked for so often within about a half-life is much
  double copy_share = 0.5;   // of a replica's part of all demand: more than that is shared with another
  double keep_share = 1.5;   // of its part: beyond it a replica's homes are given to others
  double dwell_s = 60;       // for which a home that is not needed is kept
  size_t moves_most = 64;    // of one plan
  int64_t bytes_most = int64_t{2} << 30;
};

struct PlacedReplica {
  bool up = true;
  int64_t bytes = 0;    // that its adapters may take
  uint64_t number = 0;  // its own, by which lots are drawn
};

// Where a replica has an adapter.
enum class AdapterPlace : uint8_t {
  kNowhere,   // it could not bring it
  kToBring,   // not in memory
  kInMemory,  // as it says
};
using PlaceOf = std::function<AdapterPlace(size_t replica, AdapterSourceId adapter)>;

// The home of what is nothing special; none where nobody is up.
std::optional<size_t> home_by_lot(AdapterSourceId adapter, std::span<const PlacedReplica> replicas);

// A replica is asked to have it in memory.
struct PlacementMove {
  size_t replica = 0;
  AdapterSourceId adapter;
  int64_t bytes = 0;
};

// The homes that an adapter was given.
struct GivenHomes {
  AdapterSourceId adapter;
  std::vector<size_t> replicas;
  friend bool operator==(const GivenHomes&, const GivenHomes&) = default;
};

class AdapterHomes {
 public:
  explicit AdapterHomes(const HomesOptions& options) : options_(options) {}

  // So many requests for it came that take so many tokens together.
  void asked(AdapterSourceId adapter, int32_t rank, int64_t bytes, double tokens, double now_s, double requests = 1);
  void gone(AdapterSourceId adapter) { adapters_.erase(adapter); }
  std::vector<PlacementMove> plan(double now_s, std::span<const PlacedReplica> replicas, const PlaceOf& place_of);

  // All of the last plan, by number; and another router's in the place of one's own: who
  // is to plan next goes on from these. What one did not know is taken for asked for.
  std::vector<GivenHomes> given() const;
  void take_given(std::span<const GivenHomes> given, double now_s);

  // Those that were given to it, as of the last plan; none: it is nothing special.
  std::vector<size_t> given_homes(AdapterSourceId adapter) const;
  // These as far as they are up, else the one by its number; one at least, where a
  // replica is up.
  std::vector<size_t> homes(AdapterSourceId adapter, std::span<const PlacedReplica> replicas) const;
  size_t adapters() const { return adapters_.size(); }
  bool knows(AdapterSourceId adapter) const { return adapters_.count(adapter) != 0; }

 private:
  struct Home {
    size_t replica = 0;
    double needed_s = 0;  // when it was last
  };
  struct Asked {
    int32_t rank = 0;
    int64_t bytes = 0;
    double tokens = 0, requests = 0;  // as of at_s
    double at_s = 0;
    std::vector<Home> homes;
  };
  struct Part {  // what a replica has of a plan
    double tokens = 0;
    int64_t bytes = 0;
    int32_t rank_max = 0;
  };
  void decay(Asked& adapter, double now_s) const;
  std::vector<std::pair<AdapterSourceId, Asked*>> hot(double now_s);
  void keep_homes(Asked& adapter, size_t wanted, double part, double now_s, std::span<const PlacedReplica> replicas,
                  const std::function<bool(size_t replica)>& can, std::vector<Part>& parts) const;
  void give_homes(Asked& adapter, size_t wanted, double part, double now_s, std::span<const PlacedReplica> replicas,
                  const std::function<bool(size_t replica)>& can, std::vector<Part>& parts) const;

  const HomesOptions options_;
  std::map<AdapterSourceId, Asked> adapters_;
};

}  // namespace loralei
