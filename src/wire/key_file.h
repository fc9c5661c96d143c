// SPDX-License-Identifier: Apache-2.0
// A file of API keys with names: a JSON object a line, each a key, what it may do and how
// much of it; blank lines and lines that begin with '#' are left out.
//
//   {"name": "alice", "key": "sk-...", "requests_per_minute": 60}
//   {"name": "batch", "key_sha256": "9f86...", "adapters": ["a-*"]}
//
// Thread: pure functions.
// Ownership: values; of a key only its SHA-256 is kept.
// Invariants: names and keys stand once; what is not known is refused, so that no limit
// is lost by a slip of the pen.
// Failure: a sentence with the line's number, which holds nothing of a key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/result.h"

namespace loralei {

struct NamedKey {
  std::string name;  // of letters, digits and "._-@", at most 64
  Digest sha256{};   // of the key
  bool admin = false;
  // 0: no limit.
  int64_t requests_per_minute = 0, tokens_per_minute = 0, max_running = 0;
  bool all_adapters = true;
  std::vector<std::string> adapters;  // else those whose names one of these matches; the base is everybody's
  int64_t expires_s = 0;              // Unix seconds; 0: never

  bool may_use(std::string_view adapter) const;
  bool expired(int64_t now_s) const { return expires_s != 0 && now_s >= expires_s; }
};

inline constexpr size_t kMaxNamedKeys = 10'000;
inline constexpr const char* kOtherKeys = "other";  // no key's name: that of all without a label of their own

Result<std::vector<NamedKey>> parse_key_file(std::string_view text);
Digest key_digest(std::string_view key);  // SHA-256
// '*' stands for any characters, also none.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace loralei
