// SPDX-License-Identifier: Apache-2.0
// GrammarCache: response formats and tool sets to grammars, compiled once while they are in use.
//
// Thread-safe; compiling happens outside the lock, on the caller's text thread. Ownership: programs are shared, also
// with running requests. Invariants: at most kGrammarsKept programs are kept, and kGrammarBytesKept bytes of them and
// of what they were compiled from. Failure: an ApiError that names the request's field.
#pragma once

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

class GrammarCache {
 public:
  // Null for plain text.
  Parsed<GrammarPtr> of_output(const StructuredOutput& output);
  Parsed<GrammarPtr> of_tools(ToolCallForm form, bool parallel, const ChatRequest& request);
  int64_t bytes_kept();

 private:
  template <typename Compile>
  Parsed<GrammarPtr> find_or_compile(const std::string& key, const std::string& param, Compile compile);
  std::mutex mutex_;
  int64_t bytes_ = 0;
  std::map<std::string, GrammarPtr> programs_;
};

}  // namespace loralei
