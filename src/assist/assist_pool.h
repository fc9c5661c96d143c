// SPDX-License-Identifier: Apache-2.0
// AssistPool: helper processes that compute the sums of low-rank products (sum + b_bias,
// see LoraSumArgs) from factors in host memory, for rows whose adapter is not yet where
// the step is computed (CaraServe section 4). One core a helper.
//
// Thread: one caller (the engine's thread); helper_pids() from any.
// Ownership: the helpers and their memory. What learn() was given is held until forget().
// Invariants: publish() and collect() allocate nothing, hold no lock while they wait, and
// make no system call but to sleep and to wake who sleeps. Sums are those of the op table
// of that name, bit for bit, whatever the split. An answer is taken for the message that
// it is for only: messages are numbered, and a helper that is replaced has a new memory.
// Failure: create() answers what is too large, or why helpers do not start. A helper that
// dies, is late or refuses is an error of the ticket it worked on, and is replaced in the
// background; no other ticket is touched.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "assist/assist_factors.h"
#include "assist/helper_keeper.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/result.h"

namespace loralei {

inline constexpr int32_t kAssistHelpersMax = 64;

struct AssistOptions {
  // What is started with `args`: a program that calls run_assist_helper(). The running
  // program itself is /proc/self/exe, also when its file was replaced.
  std::string program;
  std::vector<std::string> args;
  int32_t helpers = 0;
  std::vector<int> cpus;  // helper i runs on cpus[i % size] alone; empty: anywhere
  int32_t rows_max = 0;   // of a helper in one message
  AssistShape shape;
  std::string ops_table;          // the caller's own, by name
  int64_t bytes_max = INT64_MAX;  // of all helpers' memory for rows
  // Before a side sleeps: to be woken takes tens of microseconds. A helper should spin as
  // long as its caller has to do between the messages of a prefill.
  int64_t helper_spin_ns = 200'000, caller_spin_ns = 1'000'000;
  int64_t start_at_most_ns = 10'000'000'000;
  int64_t abandoned_at_most_ns = 1'000'000'000;  // longer, and a helper that works on an abandoned ticket is replaced
};

// One message for modules that read one layer input: a mask within one group
// (kAssistGroups).
struct AssistTask {
  AdapterVersionId version;
  int32_t layer = 0;
  uint32_t modules = 0;
  const float* x = nullptr;  // [rows, in]; copied
  int64_t x_stride = 0;
  int32_t rows = 0;
};

struct AssistStats {
  uint64_t messages = 0;  // published, a slice each
  uint64_t rows = 0;
  uint64_t late = 0;      // slices whose helper was too slow
  uint64_t refused = 0;   // slices that their helper refused
  uint64_t restarts = 0;  // helpers that ended
  int64_t busy_ns = 0;    // as helpers tell, of what was collected
};

class AssistPool;

// What publish() began. Abandoned when it is destroyed; does not outlive the pool.
class AssistTicket {
 public:
  AssistTicket() = default;
  AssistTicket(AssistTicket&& other) noexcept { *this = std::move(other); }
  AssistTicket& operator=(AssistTicket&& other) noexcept;
  ~AssistTicket();
  int32_t slices() const { return count_; }  // helpers that work on it; 0: it is over

 private:
  friend class AssistPool;
  struct Slice {
    int32_t helper = 0;
    int32_t row_begin = 0, rows = 0;
  };
  AssistPool* pool_ = nullptr;
  std::array<Slice, kAssistHelpersMax> slices_;
  int32_t count_ = 0;
  uint32_t modules_ = 0;
};

class AssistPool {
 public:
  static Result<std::unique_ptr<AssistPool>> create(AssistOptions options, const Clock& clock, LogSink& log);
  ~AssistPool();

  int32_t helpers() const { return options_.helpers; }
  int32_t ready_helpers() const { return keeper_->ready(); }
  std::vector<int> helper_pids() const { return keeper_->helper_pids(); }

  // All helpers map the adapter's memory; before its first use.
  Status learn(AdapterVersionId version, const AssistFactors& factors);
  // A ticket that is under way on it may be refused.
  void forget(AdapterVersionId version);

  // Splits the rows evenly over so many helpers as parts of `rows_each` need, or fewer
  // where fewer are free and can take them all. kOverloaded: they cannot.
  Result<AssistTicket> publish(const AssistTask& task, int32_t rows_each);
  // Waits until all sums are there, at most so long; then calls visit(row_begin,
  // row_count, module, sums, stride) for every slice and module. The ticket is over in
  // any case.
  template <typename Visit>
  Status collect(AssistTicket& ticket, int64_t at_most_ns, Visit&& visit) {
    TRY(wait(ticket, at_most_ns));
    for (int32_t i = 0; i < ticket.count_; ++i) {
      const AssistTicket::Slice& slice = ticket.slices_[static_cast<size_t>(i)];
      const AssistChannel& channel = lives_[static_cast<size_t>(slice.helper)]->channel;
      for (int32_t index = 0; index < kLayerModules; ++index) {
        if ((ticket.modules_ >> index & 1) == 0) continue;
        const auto module = static_cast<Module>(index);
        visit(slice.row_begin, slice.rows, module, static_cast<const float*>(channel.sums(module)),
              channel.sums_stride(module));
      }
    }
    end(ticket);
    return {};
  }
  void abandon(AssistTicket&& ticket);  // its sums are not wanted
  AssistStats stats() const;

 private:
  friend class AssistTicket;
  enum class Use : uint8_t { kFree, kTaken, kAbandoned };
  struct Place {
    Use use = Use::kFree;
    int64_t abandoned_ns = 0;
  };

  AssistPool(AssistOptions options, const Clock& clock, std::unique_ptr<HelperKeeper> keeper);
  Status check(const AssistTask& task, int32_t rows_each) const;
  bool is_free(size_t helper, int64_t now_ns);
  void send(const AssistTask& task, const AssistTicket::Slice& slice);
  Status wait(AssistTicket& ticket, int64_t at_most_ns);
  Status wait_for(const AssistTicket::Slice& slice, int64_t end_ns);
  void end(AssistTicket& ticket);
  void abandon_slices(AssistTicket& ticket);

  const AssistOptions options_;
  const Clock& clock_;
  std::unique_ptr<HelperKeeper> keeper_;
  std::vector<HelperKeeper::Life> lives_;  // [helper]; null: none was ready so far
  std::vector<Place> places_;              // [helper]
  AssistStats stats_;
};

}  // namespace loralei
