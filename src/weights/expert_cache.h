// SPDX-License-Identifier: Apache-2.0
// ExpertCache: the experts of a mixture that does not fit: those that a step's router has
// chosen are read from the packed file while those that are in memory are computed, and
// the ones used most of late stay (FlexInfer's locking, by measured use:
// expert_scores.h).
//
//   begin(layer, chosen)   what is here is pinned; what is not is asked for
//   next()                 some that are in memory: first those that were, then in the
//                          order in which they arrive; the ones before may go
//   end()                  all were handed out, or the pass was given up
//
// Experts of one size share memory, cut into places of that size: a mixture has few
// sizes, one or two.
//
// Thread: the consumer's calls come from one thread; a thread of its own reads.
// Ownership: owns its memory and the open file; `index` outlives it.
// Invariants: what is handed out is valid and unchanged until the next call; every tile
// that was read is checked before it is handed out; the memory used is what plan() says.
// An expert is in memory once, or on its way, or not there. A step is the same whatever
// is in memory, but for the order in which its experts are handed out.
// Failure: next() answers the read's error, or kCorrupt for a tile that does not match
// its check; that expert is not in memory then, and asking again reads it again.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "device/host/arena.h"
#include "formats/model_config.h"
#include "formats/packed_index.h"
#include "sys/block_reader.h"
#include "weights/expert_plan.h"
#include "weights/expert_scores.h"

namespace loralei {

inline constexpr size_t kExpertParts = kExpertMatrixCount;  // gate, up, down

struct ExpertShape {
  int32_t layers = 0;   // that have experts, in the order of a pass
  int32_t experts = 0;  // of each
  // [layers * experts][part]: matrices in the packed index.
  std::vector<std::array<int32_t, kExpertParts>> parts;
};

// [layers] of the largest expert of each.
std::vector<int64_t> expert_bytes(const PackedIndex& index, const ExpertShape& shape);

struct ExpertCacheOptions {
  int64_t bytes = 0;
  int64_t block_bytes = int64_t{1} << 20;
  double half_life = 256;  // steps
  // Opens the file; a seam for tests, which inject faults.
  std::function<Result<std::unique_ptr<BlockReader>>()> open;
};

struct ExpertTotals {
  int64_t hits = 0, misses = 0;  // experts that a step chose
  int64_t read_bytes = 0;
  int64_t waited_ns = 0;  // by the consumer
};

struct HeldExpert {
  int32_t expert = 0;                                 // in its layer
  std::array<const std::byte*, kExpertParts> data{};  // of each part, as the packed file has it
};

class ExpertCache {
 public:
  static Result<std::unique_ptr<ExpertCache>> create(const PackedIndex& index, ExpertShape shape,
                                                     ExpertCacheOptions options);
  ~ExpertCache();
  ExpertCache(const ExpertCache&) = delete;
  ExpertCache& operator=(const ExpertCache&) = delete;

  // `chosen`: of this layer, ascending, each once.
  void begin(int32_t layer, std::span<const int32_t> chosen);
  // Empty: all were handed out.
  Result<std::span<const HeldExpert>> next();
  void end();
  // These are likely to be chosen next: they are read when nothing else is, where nothing
  // goes for them that was used more.
  void expect(int32_t layer, std::span<const int32_t> experts);

  ExpertTotals totals() const;
  const ExpertPlan& plan() const { return plan_; }
  const std::string& how() const { return reader_->how(); }  // it reads, for people
  // Between passes: that who is where fits together.
  void check() const;

 private:
  // kAsked: it has a place, and its read waits for others.
  enum class State : uint8_t { kAbsent, kAsked, kReading, kArrived, kHere };
  // What is read as one, from page boundary to page boundary.
  struct Run {
    int64_t begin = 0, bytes = 0;
    int64_t to = 0;  // from the start of the place
  };
  struct Runs;
  struct Reading;
  // First in, first out; allocates nothing once it is made.
  class Queue {
   public:
    void reserve(size_t count) { ids_.reserve(count); }
    bool empty() const { return head_ == ids_.size(); }
    void push(int32_t id);
    int32_t pop();
    void remove(int32_t id);
    std::span<const int32_t> ids() const { return std::span(ids_).subspan(head_); }
    void clear();

   private:
    std::vector<int32_t> ids_;
    size_t head_ = 0;
  };
  struct Size {
    HostBuffer memory;
    std::vector<int32_t> free;  // places
  };

  ExpertCache(const PackedIndex& index, ExpertShape shape, ExpertPlan plan, ExpertCacheOptions options);
  static Runs runs_of(const PackedIndex& index, const std::array<int32_t, kExpertParts>& parts);
  friend std::vector<int64_t> expert_bytes(const PackedIndex& index, const ExpertShape& shape);
  Status start();
  size_t size_of(int32_t id) const {
    return static_cast<size_t>(plan_.size_of_layer[static_cast<size_t>(id / shape_.experts)]);
  }
  std::byte* memory_of(int32_t id) const;
  bool is_chosen(int32_t id) const;
  // Those with `lock` in their comment are called with the mutex held.
  bool give_place(int32_t id);  // lock
  void give_up(int32_t id);     // lock; it is absent then
  void place_wanted();          // lock
  void release_handed();        // lock
  Status take_arrived();
  HeldExpert held(int32_t id) const;
  void run();

  const PackedIndex& index_;
  const ExpertShape shape_;
  const ExpertPlan plan_;
  const ExpertCacheOptions options_;
  std::vector<Size> sizes_;
  std::unique_ptr<BlockReader> reader_;  // its reads end before the memory goes

  // The consumer's.
  ExpertScores scores_;          // of those that are here and may go
  std::vector<int32_t> chosen_;  // of this layer, as ids
  std::vector<int32_t> hits_;    // of them: here, and not handed out yet
  std::vector<int32_t> handed_ids_;
  std::vector<HeldExpert> handed_;
  std::vector<int32_t> taken_;  // scratch
  Queue wanted_;                // of them: absent, for want of a place
  int32_t layer_ = -1;          // between begin() and end()
  int32_t awaited_ = 0;         // chosen ones that are on their way

  // Shared with the reading thread.
  mutable std::mutex mutex_;
  std::condition_variable arrived_cv_, asked_cv_;
  std::vector<State> states_;      // by id
  std::vector<int32_t> place_of_;  // by id, among its size's; -1: none
  Queue asked_, expected_;
  std::vector<int32_t> arrived_;  // read, and not looked at by the consumer
  std::vector<std::pair<int32_t, Error>> failed_;
  ExpertTotals totals_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace loralei
