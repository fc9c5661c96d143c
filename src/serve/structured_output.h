// SPDX-License-Identifier: Apache-2.0
// GrammarCache: response formats and tool sets to grammars, compiled once while
// they are in use.
//
// Thread-safe; compiling happens outside the lock, on the caller's text thread.
// Ownership: programs are shared, also with running requests; the log is borrowed, and
// told what of a schema a grammar leaves open when it is compiled.
// Invariants: at most kGrammarsKept programs are kept, and most_kept_bytes() of them
// and of what they were compiled from; all that anybody holds, kept or not, and what
// compiling takes, is granted by `memory`; those that are only kept make room.
// Failure: an ApiError that names the request's field; 429 where there is no room now,
// 400 where there never is.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/byte_budget.h"
#include "base/log.h"
#include "base/units.h"
#include "schema/reasoning.h"
#include "schema/tool_calls.h"
#include "wire/requests.h"

namespace loralei {

inline constexpr size_t kGrammarsKept = 64;  // a service uses few schemas
inline constexpr int64_t kGrammarBytesKept = 64 * kMiB;
inline constexpr int64_t kGrammarShareKept = 16;  // and this part of what requests may have

class GrammarCache {
 public:
  GrammarCache(std::shared_ptr<ByteBudget> memory, LogSink& log) : memory_(std::move(memory)), log_(log) {}

  // Null for plain text. Behind the reasoning, if there may be some.
  Parsed<GrammarPtr> of_output(const StructuredOutput& output, const std::optional<Reasoning>& reasoning = {});
  Parsed<GrammarPtr> of_tools(ToolCallForm form, bool parallel, const ChatRequest& request,
                              const std::optional<Reasoning>& reasoning = {});
  int64_t bytes_kept();
  int64_t most_kept_bytes() const;

 private:
  template <typename Compile>
  Parsed<GrammarPtr> find_or_compile(const std::string& key, const std::string& param, Compile compile);
  void tell(const LeftOpen& left_open, const std::string& param);
  Status take(ByteShare& share, int64_t more_bytes);
  bool drop_kept();  // false: there is none

  const std::shared_ptr<ByteBudget> memory_;
  LogSink& log_;
  std::mutex mutex_;
  int64_t bytes_ = 0;
  std::map<std::string, GrammarPtr> programs_;
};

}  // namespace loralei
