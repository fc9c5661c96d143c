// SPDX-License-Identifier: Apache-2.0
// Ledger: one byte budget per device. Nothing large is allocated outside a Grant.
//
// Thread-safe.
// Ownership: a Grant is a move-only share of the budget and must not outlive its Ledger;
// dropping it returns the bytes. A loan is a grant that comes back soon by itself, such
// as the memory of a conversion: whoever asks what it could ever have counts it as free,
// and waits meanwhile.
// Invariants (check()): the sum of live grants equals used() and never exceeds
// the budget; no use is negative. Scarcity is an answer, not an error: try_grant
// says nullopt.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace loralei {

enum class MemoryUse : uint8_t { kWeights, kAdapters, kKv, kScratch, kRequests, kOther };
inline constexpr int kMemoryUses = 6;
const char* memory_use_name(MemoryUse use);

class Ledger;

class [[nodiscard]] Grant {
 public:
  Grant() = default;
  Grant(Grant&& other) noexcept;
  Grant& operator=(Grant&& other) noexcept;
  ~Grant();
  Grant(const Grant&) = delete;
  Grant& operator=(const Grant&) = delete;

  int64_t bytes() const { return bytes_; }
  void release();
  // Gives back what turned out not to be needed. CHECKs 0 <= bytes <= bytes().
  void shrink_to(int64_t bytes);
  // Asks for more, as try_grant would; false changes nothing. CHECKs bytes >= bytes() and
  // that this is a grant.
  bool grow_to(int64_t bytes);

 private:
  friend class Ledger;
  Grant(Ledger* ledger, MemoryUse use, bool lent, int64_t bytes)
      : ledger_(ledger), use_(use), lent_(lent), bytes_(bytes) {}
  Ledger* ledger_ = nullptr;
  MemoryUse use_ = MemoryUse::kOther;
  bool lent_ = false;
  int64_t bytes_ = 0;
};

class Ledger {
 public:
  explicit Ledger(int64_t budget_bytes);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // INT64_MAX: only the total counts.
  void set_cap(MemoryUse use, int64_t cap_bytes);
  // False (and nothing changes) when more than that is in use.
  bool set_budget(int64_t budget_bytes);
  std::optional<Grant> try_grant(MemoryUse use, int64_t bytes);
  std::optional<Grant> try_lend(MemoryUse use, int64_t bytes);

  int64_t budget_bytes() const;
  int64_t used_bytes() const;
  int64_t used_bytes(MemoryUse use) const;
  int64_t cap_bytes(MemoryUse use) const;
  // What try_grant(use, ...) could give now, and when others have given back `coming`.
  int64_t available_bytes(MemoryUse use, int64_t coming_bytes = 0) const;
  int64_t available_after_loans_bytes(MemoryUse use, int64_t coming_bytes = 0) const;  // and when all loans are back
  std::string describe() const;  // a small table for the start banner
  void check() const;

 private:
  friend class Grant;
  std::optional<Grant> grant(MemoryUse use, bool lent, int64_t bytes);
  bool take(MemoryUse use, bool lent, int64_t bytes);  // under the mutex
  void give_back(MemoryUse use, bool lent, int64_t bytes);

  mutable std::mutex mutex_;
  int64_t budget_bytes_;
  std::array<int64_t, kMemoryUses> used_{}, lent_{};  // lent_: of used_
  std::array<int64_t, kMemoryUses> cap_{};
  int64_t live_grants_ = 0;
};

}  // namespace loralei
