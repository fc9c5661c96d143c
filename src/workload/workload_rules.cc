// SPDX-License-Identifier: Apache-2.0
#include "workload/workload_rules.h"

#include <unordered_set>

#include "base/limits.h"
#include "base/printable.h"

namespace loralei {
namespace {

std::string quoted(const std::string& name) { return "'" + printable(name, 80) + "'"; }

Status check_name(const char* what, const std::string& name) {
  if (name.size() > kWorkloadNameBytesMax)
    return corrupt(std::string("the ") + what + " " + quoted(name) + " has " + std::to_string(name.size()) +
                   " bytes; at most " + std::to_string(kWorkloadNameBytesMax) + " are read. Shorten it.");
  if (!is_printable(name))
    return corrupt(std::string("the ") + what + " " + quoted(name) +
                   " holds control characters or what is no UTF-8. Give it a name that can be shown.");
  return {};
}

Status check_tokens(const char* what, int64_t tokens, int64_t most, const std::string& most_is) {
  if (tokens >= 1 && tokens <= most) return {};
  return corrupt(std::string(what) + " is " + std::to_string(tokens) + "; it must be from 1 to " +
                 std::to_string(most) + most_is + ".");
}

Status check_prefixes(const WorkloadRequest& request) {
  if (request.prefixes.size() > kWorkloadPrefixesMax)
    return corrupt("the request has " + std::to_string(request.prefixes.size()) + " prefixes; at most " +
                   std::to_string(kWorkloadPrefixesMax) + " are read. Leave the shortest out.");
  std::unordered_set<std::string> ids;
  int32_t last = 0;
  for (const WorkloadPrefix& prefix : request.prefixes) {
    if (prefix.id.empty()) return corrupt("a prefix has no \"id\". Name the text that requests share.");
    TRY(check_name("prefix", prefix.id));
    TRY(check_tokens("\"tokens\" of a prefix", prefix.tokens, request.prompt_tokens, ", the length of the prompt"));
    if (!ids.insert(prefix.id).second)
      return corrupt("the prefix " + quoted(prefix.id) + " stands twice. Keep the longer one.");
    if (prefix.tokens <= last)
      return corrupt("the prefix " + quoted(prefix.id) + " has " + std::to_string(prefix.tokens) +
                     " tokens and stands behind one of " + std::to_string(last) + ". Put the longest last.");
    last = prefix.tokens;
  }
  return {};
}

}  // namespace

Status WorkloadRules::check(const WorkloadRequest& request, int64_t line) {
  if (request.at_ns < 0 || request.at_ns > kWorkloadSecondsMax * kNsPerSecond)
    return corrupt("\"t\" is " + seconds_text(request.at_ns) + "; it must be from 0 to " +
                   std::to_string(kWorkloadSecondsMax) + " seconds.");
  if (request.at_ns < last_ns_)
    return corrupt("\"t\" goes back from " + seconds_text(last_ns_) + " to " + seconds_text(request.at_ns) +
                   ". Sort the lines by t.");
  TRY(check_tokens("\"prompt_tokens\"", request.prompt_tokens, kMaxModelLen, ""));
  TRY(check_tokens("\"output_tokens\"", request.output_tokens, kMaxModelLen, ""));
  TRY(check_name("adapter", request.adapter));
  TRY(check_name("app", request.app));
  TRY(check_name("key", request.key));
  TRY(check_prefixes(request));
  if (request.rank < 0 || request.rank > kMaxLoraRank)
    return corrupt("\"rank\" is " + std::to_string(request.rank) + "; it must be from 1 to " +
                   std::to_string(kMaxLoraRank) + ", or be left out.");
  if (request.rank > 0) {
    if (request.adapter.empty())
      return corrupt("a \"rank\" is stated without an \"adapter\". Name the adapter, or leave the rank out.");
    const StatedRank stated = ranks_.try_emplace(request.adapter, StatedRank{request.rank, line}).first->second;
    if (stated.rank != request.rank)
      return corrupt("the adapter " + quoted(request.adapter) + " has rank " + std::to_string(request.rank) +
                     " here and rank " + std::to_string(stated.rank) + " in line " + std::to_string(stated.line) +
                     ". Give each rank an adapter of its own.");
  }
  last_ns_ = request.at_ns;
  return {};
}

}  // namespace loralei
