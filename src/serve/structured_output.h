// SPDX-License-Identifier: Apache-2.0
// GrammarCache: response formats and tool sets to grammars, compiled once while they are in use.
//
// Thread-safe; compiling happens outside the lock, on the caller's text thread. Ownership: programs are shared, also
// with running requests. Invariants: at most kGrammarsKept programs are kept, and kGrammarBytesKept bytes of them and
// of what they were compiled from; all that anybody holds, kept or not, take at most `max_alive_bytes`, beside those
// that are being compiled. Failure: an ApiError that names the request's field; 429 where there is no room.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/units.h"
#include "text/tool_calls.h"
#include "wire/requests.h"

namespace loralei {

inline constexpr size_t kGrammarsKept = 64;  // a service uses few schemas
inline constexpr int64_t kGrammarBytesKept = 64 * kMiB;

inline constexpr int64_t kGrammarBytesAlive = 512 * kMiB;  // several of the largest, thousands of usual ones

class GrammarCache {
 public:
  explicit GrammarCache(int64_t max_alive_bytes = kGrammarBytesAlive) : max_alive_bytes_(max_alive_bytes) {}

  // Null for plain text.
  Parsed<GrammarPtr> of_output(const StructuredOutput& output);
  Parsed<GrammarPtr> of_tools(ToolCallForm form, bool parallel, const ChatRequest& request);
  int64_t bytes_kept();
  int64_t bytes_alive() const { return *alive_bytes_; }

 private:
  template <typename Compile>
  Parsed<GrammarPtr> find_or_compile(const std::string& key, const std::string& param, Compile compile);
  GrammarPtr counted(GrammarPtr program);  // null: no room
  const int64_t max_alive_bytes_;
  // Of every program until its last holder drops it, who may outlive the cache.
  const std::shared_ptr<std::atomic<int64_t>> alive_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  std::mutex mutex_;
  int64_t bytes_ = 0;
  std::map<std::string, GrammarPtr> programs_;
};

}  // namespace loralei
