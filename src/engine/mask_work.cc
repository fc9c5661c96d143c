// SPDX-License-Identifier: Apache-2.0
#include "engine/mask_work.h"

#include <algorithm>
#include <array>

#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kShare = 10;            // of a step's time
constexpr int64_t kLeastBudgetNs = 1000;  // of a step that took no time by its clock
// What a mask may have taken in each class; beyond the last it is dear.
constexpr std::array<int64_t, 2> kClassWork = {4096, 65536};
constexpr int kDear = static_cast<int>(kClassWork.size());
constexpr int64_t kSliceWork = 512;  // tens of microseconds
constexpr int64_t kAloneNsMin = 1'000'000, kAloneNsMax = 5'000'000;
constexpr int64_t kMemoryStep = 64 * kKiB;
constexpr int64_t kDraftWorkLeast = 4096;  // of a step: usual forms

int class_of(const Sequence& sequence) {
  int number = 0;
  while (number < kDear && sequence.mask_work >= kClassWork[static_cast<size_t>(number)]) ++number;
  return number;
}

}  // namespace

bool waits_for_mask(const Sequence& sequence) {
  const Request& request = *sequence.request;
  if (request.submit.sampling.grammar == nullptr || !request.samples()) return false;
  return sequence.grammar == nullptr || !sequence.grammar->ready();
}

bool has_dear_mask(const Sequence& sequence) { return class_of(sequence) == kDear; }

void MaskWork::step_took(int64_t ns) {
  step_ns_ = ns;
  left_ns_ = std::min<int64_t>(left_ns_, 0) + std::max(kLeastBudgetNs, ns / kShare);
}

int64_t MaskWork::work_for_draft(int64_t step_ns, size_t rows) const {
  if (rows == 0 || left_ns_ < 0) return 0;
  return std::max(kDraftWorkLeast, step_ns / kShare / kUsualWorkNs) / static_cast<int64_t>(rows);
}

int64_t MaskWork::spent_ns(int64_t begin_ns, int64_t work) const {
  const int64_t threads = pool_ == nullptr ? 1 : pool_->threads();
  return std::max(clock_.now_ns() - begin_ns, work * kLeastWorkNs / threads);
}

// The next ones of wanted_: as many as there are threads, of them one dear one at most.
// False: there are none.
bool MaskWork::choose(bool cheap_only) {
  const size_t threads = pool_ == nullptr ? 1 : static_cast<size_t>(pool_->threads());
  const auto middle = wanted_.begin() + static_cast<int64_t>(std::min(threads, wanted_.size()));
  std::partial_sort(wanted_.begin(), middle, wanted_.end(), [](const Sequence* a, const Sequence* b) {
    const int x = class_of(*a), y = class_of(*b);
    return x != y ? x < y : a->mask_since < b->mask_since;
  });
  chosen_.clear();
  for (auto next = wanted_.begin(); next != middle; ++next) {
    const bool dear = has_dear_mask(**next);
    if (dear && cheap_only) break;
    chosen_.push_back(*next);
    if (dear) break;
  }
  return !chosen_.empty();
}

int64_t MaskWork::work_on(Sequence& sequence) const {
  int64_t begun = 0;
  if (sequence.grammar == nullptr) {
    const SamplingParams& sampling = sequence.request->submit.sampling;
    sequence.grammar = std::make_unique<GrammarState>(sampling.grammar, sampling.vocab_trie);
    begun = sequence.grammar->work();
  }
  begun += sequence.grammar->prepare(kSliceWork);
  if (!has_memory(sequence)) sequence.grammar->give_up();
  return begun;
}

// Asked for after a slice, which takes kilobytes: those of all threads are the slack.
bool MaskWork::has_memory(Sequence& sequence) const {
  if (memory_ == nullptr) return true;
  ByteShare& share = sequence.grammar_memory;
  if (share.bytes() == 0) share = ByteShare(memory_);
  const int64_t bytes = (sequence.grammar->bytes() / kMemoryStep + 1) * kMemoryStep;
  if (bytes < share.bytes() / 2) share.shrink_to(bytes);
  if (share.grow_to(bytes)) return true;
  sequence.mask_refusal =
      Error{bytes > memory_->most_bytes() ? ErrorCode::kTooLarge : ErrorCode::kOverloaded,
            "Following this form takes more memory than there is for requests (" + format_bytes(bytes) + " of " +
                format_bytes(memory_->most_bytes()) +
                "); try again when fewer run, write it with fewer ways to read the same text, or start the server with "
                "more --request-memory."};
  return false;
}

int64_t MaskWork::work_on_chosen() {
  const auto count = static_cast<int64_t>(chosen_.size());
  const auto work_range = [this](int64_t begin, int64_t end, int) {
    for (int64_t index = begin; index < end; ++index) {
      Sequence& sequence = *chosen_[static_cast<size_t>(index)];
      sequence.mask_slice = work_on(sequence);
    }
  };
  if (pool_ == nullptr || count < 2) {
    work_range(0, count, 0);
  } else {
    pool_->parallel_for(count, 1, work_range);
  }
  int64_t sum = 0;
  for (Sequence* sequence : chosen_) {
    sum += sequence->mask_slice;
    const int before = class_of(*sequence);
    sequence->mask_work += sequence->mask_slice;
    if (sequence->grammar->ready()) {
      sequence->mask_work = 0;
      sequence->mask_since = 0;
      std::erase(wanted_, sequence);
    } else if (class_of(*sequence) != before) {
      sequence->mask_since = ++arrivals_;  // behind those of its class
      if (sequence->admitted) continue;
      sequence->grammar.reset();
      sequence->grammar_memory.release();
    }
  }
  return sum;
}

void MaskWork::run(std::span<Sequence* const> wanted, Beside beside) {
  wanted_.assign(wanted.begin(), wanted.end());
  for (Sequence* sequence : wanted_) {
    if (sequence->mask_since == 0) sequence->mask_since = ++arrivals_;
  }
  int64_t dear_ns = left_ns_;
  if (beside == Beside::kNobody) dear_ns = std::clamp(step_ns_, kAloneNsMin, kAloneNsMax);
  const int64_t cheap_ns = beside == Beside::kGrammars ? std::max(dear_ns, step_ns_) : dear_ns;
  const int64_t begin_ns = clock_.now_ns();
  int64_t work = 0, spent = 0;
  for (;;) {
    spent = spent_ns(begin_ns, work);
    const bool some_can_run = beside != Beside::kNobody || wanted_.size() < wanted.size();
    if (spent >= cheap_ns || !choose(spent >= dear_ns || (beside == Beside::kNobody && some_can_run))) break;
    work += work_on_chosen();
  }
  work_ += work;
  if (beside == Beside::kOthers) left_ns_ -= spent;
  if (beside == Beside::kGrammars) left_ns_ = std::min(left_ns_, std::max<int64_t>(0, left_ns_ - spent));
}

}  // namespace loralei
