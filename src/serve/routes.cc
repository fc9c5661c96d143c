// SPDX-License-Identifier: Apache-2.0
#include "serve/routes.h"

#include <optional>

namespace loralei {
namespace {

struct Row {
  const char* method;
  const char* pattern;
  RouteId id;
  RouteClass access;
};

constexpr RouteClass kOpen = RouteClass::kOpen;
constexpr RouteClass kApi = RouteClass::kApi;
constexpr RouteClass kAdmin = RouteClass::kAdmin;

constexpr Row kRows[] = {
    {"GET", "/", RouteId::kIndex, kOpen},
    {"GET", "/dashboard/{name}", RouteId::kDashboardFile, kOpen},
    {"GET", "/health", RouteId::kHealth, kOpen},
    {"GET", "/ping", RouteId::kHealth, kOpen},
    {"GET", "/ready", RouteId::kReady, kOpen},
    {"GET", "/version", RouteId::kVersion, kOpen},
    {"GET", "/metrics", RouteId::kMetrics, kOpen},
    {"GET", "/v1/models", RouteId::kModels, kApi},
    {"GET", "/v1/models/{name}", RouteId::kModel, kApi},
    {"GET", "/v1/replica", RouteId::kReplica, kApi},
    {"POST", "/v1/chat/completions", RouteId::kChat, kApi},
    {"POST", "/v1/completions", RouteId::kCompletions, kApi},
    {"POST", "/v1/responses", RouteId::kResponses, kApi},
    {"POST", "/v1/messages", RouteId::kMessages, kApi},
    {"POST", "/v1/messages/count_tokens", RouteId::kCountTokens, kApi},
    {"POST", "/v1/embeddings", RouteId::kEmbeddings, kApi},
    {"POST", "/tokenize", RouteId::kTokenize, kApi},
    {"POST", "/detokenize", RouteId::kDetokenize, kApi},
    {"GET", "/v1/adapters", RouteId::kAdapters, kApi},
    {"POST", "/v1/adapters", RouteId::kAdapterUpload, RouteClass::kUpload},
    {"GET", "/v1/adapters/blobs", RouteId::kAdapterBlobs, kAdmin},
    {"GET", "/v1/adapters/blobs/{name}", RouteId::kAdapterBlob, kAdmin},
    {"POST", "/v1/adapters/rescan", RouteId::kAdapterRescan, kAdmin},
    {"POST", "/v1/adapters/{name}/pin", RouteId::kAdapterPin, kAdmin},
    {"POST", "/v1/adapters/{name}/unpin", RouteId::kAdapterUnpin, kAdmin},
    {"POST", "/v1/adapters/{name}/prefetch", RouteId::kAdapterPrefetch, kAdmin},
    {"DELETE", "/v1/adapters/{name}", RouteId::kAdapterDelete, kAdmin},
    {"POST", "/v1/load_lora_adapter", RouteId::kLoadLora, kAdmin},
    {"POST", "/v1/unload_lora_adapter", RouteId::kUnloadLora, kAdmin},
    {"GET", "/v1/queues", RouteId::kQueues, kAdmin},
    {"GET", "/v1/kv", RouteId::kKv, kAdmin},
    {"GET", "/v1/apps", RouteId::kApps, kAdmin},
    {"PUT", "/v1/apps/{name}", RouteId::kAppState, kAdmin},
    {"GET", "/v1/admin/memory", RouteId::kMemory, kAdmin},
    {"PUT", "/v1/admin/memory", RouteId::kSetMemory, kAdmin},
    {"POST", "/v1/admin/drain", RouteId::kDrain, kAdmin},
    {"GET", "/v1/admin/events", RouteId::kEvents, kAdmin},
    // What clients of llama.cpp, vLLM and SGLang read.
    {"GET", "/lora-adapters", RouteId::kLoraAdapters, kApi},
    {"POST", "/lora-adapters", RouteId::kSetLoraAdapters, kAdmin},
    {"GET", "/props", RouteId::kProps, kApi},
    {"GET", "/tokenizer_info", RouteId::kTokenizerInfo, kApi},
    {"GET", "/server_info", RouteId::kServerInfo, kApi},
    {"GET", "/get_server_info", RouteId::kServerInfo, kApi},
    {"GET", "/model_info", RouteId::kModelInfo, kApi},
    {"GET", "/get_model_info", RouteId::kModelInfo, kApi},
};

// What {name} takes, "" for a pattern without one; nothing when the path does not fit.
std::optional<std::string> fits(std::string_view pattern, std::string_view path) {
  const size_t open = pattern.find('{');
  if (open == std::string_view::npos) return pattern == path ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, open);
  const std::string_view after = pattern.substr(pattern.find('}') + 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after))
    return std::nullopt;
  return percent_decode(path.substr(before.size(), path.size() - before.size() - after.size()));
}

}  // namespace

RouteMatch match_route(std::string_view method, std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  RouteMatch other;
  for (const Row& row : kRows) {
    auto name = fits(row.pattern, path);
    if (!name) continue;
    if (wanted == row.method) return {row.id, row.access, row.pattern, std::move(*name), {}};
    if (other.id == RouteId::kNotFound) other.label = row.pattern;
    other.id = method == "OPTIONS" ? RouteId::kPreflight : RouteId::kWrongMethod;
    if (other.allow.find(row.method) == std::string::npos)
      other.allow += (other.allow.empty() ? "" : ", ") + std::string(row.method);
  }
  return other;
}

std::string other_route(std::string_view method, std::string_view path) {
  struct Meant {
    std::string_view path, instead;
  };
  // Ollama's, llama.cpp's, TGI's and SGLang's own.
  static constexpr Meant kMeant[] = {{"/api/chat", "POST /v1/chat/completions"},
                                     {"/api/generate", "POST /v1/completions"},
                                     {"/api/tags", "GET /v1/models"},
                                     {"/api/embed", "POST /v1/embeddings"},
                                     {"/api/embeddings", "POST /v1/embeddings"},
                                     {"/api/version", "GET /version"},
                                     {"/completion", "POST /v1/completions"},
                                     {"/generate", "POST /v1/completions"},
                                     {"/generate_stream", "POST /v1/completions with \"stream\": true"},
                                     {"/embedding", "POST /v1/embeddings"},
                                     {"/embed", "POST /v1/embeddings"},
                                     {"/load_lora_adapter", "POST /v1/load_lora_adapter"},
                                     {"/unload_lora_adapter", "POST /v1/unload_lora_adapter"},
                                     {"/info", "GET /server_info"},
                                     {"/slots", "GET /props and GET /metrics"},
                                     {"/get_load", "GET /metrics"}};
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  constexpr std::string_view kVersion = "/v1";
  const auto exists = [&](const std::string& other) {
    const RouteId id = match_route(method, other).id;
    return id != RouteId::kNotFound && id != RouteId::kWrongMethod && id != RouteId::kPreflight;
  };
  const auto say = [](std::string_view instead) { return "; send " + std::string(instead) + " instead."; };
  // A base URL with "/v1" where the client adds it, or without it where the
  // client does not.
  while (path.starts_with("/v1/v1")) path.remove_prefix(kVersion.size());
  const std::string as_is(path.substr(0, 200)), with = std::string(kVersion) + as_is;
  if (exists(as_is)) return say(std::string(method) + " " + as_is);
  if (exists(with)) return say(std::string(method) + " " + with);
  if (path.starts_with("/v1/")) path.remove_prefix(kVersion.size());
  if (const std::string bare(path.substr(0, 200)); exists(bare)) return say(std::string(method) + " " + bare);
  for (const Meant& one : kMeant) {
    if (path == one.path) return say(one.instead);
  }
  return "; GET / lists the routes.";
}

std::string route_list() {
  std::string out;
  for (const Row& row : kRows) {
    std::string method = row.method;
    method.resize(7, ' ');
    out += method + row.pattern + (row.access == kAdmin || row.access == RouteClass::kUpload ? "   (admin)\n" : "\n");
  }
  return out;
}

}  // namespace loralei
