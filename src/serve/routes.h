// SPDX-License-Identifier: Apache-2.0
// The table of routes: method and path to a route, who may call it, and the name
// it has in metrics.
// Thread: pure functions.
// Ownership: none.
// Invariant: one row per route; patterns hold at most one {name}, which takes the rest of
// the path (names of models and adapters may hold slashes) up to the pattern's end.
// Failure: kNotFound, or kWrongMethod with what is allowed.
#pragma once

#include <string>
#include <string_view>

#include "serve/access.h"

namespace loralei {

enum class RouteId : unsigned char {
  kNotFound,
  kWrongMethod,
  kPreflight,  // OPTIONS
  kIndex,
  kDashboardFile,
  kHealth,
  kReady,
  kVersion,
  kMetrics,
  kModels,
  kModel,
  kReplica,
  kChat,
  kResponses,
  kMessages,
  kCountTokens,
  kCompletions,
  kEmbeddings,
  kTokenize,
  kDetokenize,
  kAdapters,
  kAdapterDelete,
  kAdapterPin,
  kAdapterUnpin,
  kAdapterPrefetch,
  kAdapterRescan,
  kAdapterUpload,
  kAdapterBlobs,
  kAdapterBlob,
  kLoadLora,
  kUnloadLora,
  kQueues,
  kKv,
  kApps,
  kAppState,
  kMemory,
  kSetMemory,
  kDrain,
  kEvents,
  kLoraAdapters,
  kSetLoraAdapters,
  kProps,
  kTokenizerInfo,
  kServerInfo,
  kModelInfo,
};

struct RouteMatch {
  RouteId id = RouteId::kNotFound;
  RouteClass access = RouteClass::kOpen;
  const char* label = "unknown";  // the pattern
  std::string name;               // what {name} took, percent-decoded
  std::string allow;              // kWrongMethod: methods that exist here
};
RouteMatch match_route(std::string_view method, std::string_view path);
// Of a path that is none: the end of a sentence that says what to send instead, as
// far as that is known.
std::string other_route(std::string_view method, std::string_view path);
// One line per route, for people.
std::string route_list();

}  // namespace loralei
