// SPDX-License-Identifier: Apache-2.0
// KeyLedger: what the keys of --keys have used, and what is left to them of a minute.
//
// A limit is a bucket that holds a minute's worth, is full at first and fills evenly: so
// who was quiet may ask for a minute's at once, and nobody for more than two of them in
// any minute. A request is taken out when it arrives. Tokens are taken out when its
// prompt is known, before anything of it is computed: the prompt's and the most that may
// be answered, for else a hundred requests at once would each find the bucket full. What
// was not used comes back at its end. Where the client names no limit of the answer
// kAssumedAnswer tokens are taken, and what is more is a debt that later requests wait
// for: the model's whole length would be more than most limits.
//
// Thread: any, at once.
// Ownership: tickets share their key's account with the ledger, and may outlive it.
// Invariants: an account belongs to a name, so that it goes on when the file is read
// again; a ticket gives back what it took, once; counters never fall while the name
// stands in the file; at most kLabelled names are shown, the first that came, all others
// together as "other".
// Failure: a KeyRefusal to answer with.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "http/message.h"
#include "wire/errors.h"
#include "wire/key_file.h"

namespace loralei {

enum class KeyLimit : unsigned char { kRequests, kTokens, kRunning, kAdapter };
inline constexpr std::array<const char*, 4> kKeyLimitNames = {"requests", "tokens", "running", "adapter"};

// As /metrics shows it.
struct KeyFigures {
  std::string name;
  int64_t running = 0;
  int64_t requests = 0, prompt_tokens = 0, output_tokens = 0;
  std::array<int64_t, kKeyLimitNames.size()> refused{};
};

struct KeyRefusal {
  ApiError error;
  HttpHeaders headers;  // Retry-After, where waiting helps
};

// One request of a key, from its arrival to its end.
class KeyTicket {
 public:
  struct Account;
  KeyTicket(std::shared_ptr<Account> account, const Clock& clock);
  ~KeyTicket();
  KeyTicket(const KeyTicket&) = delete;
  KeyTicket& operator=(const KeyTicket&) = delete;

  static constexpr int64_t kAssumedAnswer = 1000;
  const std::string& name() const;
  // Once, before it is computed. `stated`: the client named the most that is answered.
  std::optional<KeyRefusal> take_tokens(int64_t prompt, int64_t answer, bool stated);
  // Its end, once: what it came to. Without it nothing was used.
  void used(int64_t prompt, int64_t output);
  void refused_adapter();
  HttpHeaders headers() const;  // x-ratelimit-...: of the limits that there are

 private:
  const std::shared_ptr<Account> account_;
  const Clock& clock_;
  int64_t taken_ = 0;  // of the tokens' bucket; guarded by the account's mutex
  bool settled_ = false;
};

class KeyLedger {
 public:
  explicit KeyLedger(const Clock& clock);
  ~KeyLedger();

  void set_keys(const std::vector<NamedKey>& keys);
  struct Entry {
    std::shared_ptr<KeyTicket> ticket;  // null: refused, or no key of this name
    std::optional<KeyRefusal> refusal;
    HttpHeaders headers;
  };
  Entry enter(const std::string& name);
  std::vector<KeyFigures> figures() const;  // by name, "other" last where there is one

 private:
  static constexpr size_t kLabelled = 1000;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<KeyTicket::Account>, std::less<>> accounts_;
  size_t labelled_ = 0;
  std::optional<KeyFigures> others_;  // of names without a label that are gone
};

// As a part of the metrics' page; nothing of a key but its name.
std::string key_metrics(const std::vector<KeyFigures>& keys);

}  // namespace loralei
