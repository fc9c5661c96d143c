// SPDX-License-Identifier: Apache-2.0
#include "bench/trace_bodies.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "workload/prompts.h"

namespace loralei {
namespace {

using nlohmann::json;

constexpr const char* kWords =
    "river stone apple seven north paper silver window green garden yellow engine mountain letter quiet winter table "
    "bread cloud summer house field light water morning evening road forest bridge island harbour market music";

Error unavailable(std::string sentence) { return Error{ErrorCode::kUnavailable, std::move(sentence)}; }

Result<json> ask(HttpClient& client, const char* method, const char* target, const std::string& body) {
  TRY_ASSIGN(const HttpResponse response, client.request(method, target, {{"Content-Type", "application/json"}}, body));
  json answer = json::parse(response.body, nullptr, false);
  if (response.status != 200 || !answer.is_object()) {
    return unavailable(std::string("The server answered ") + method + " " + target + " with " +
                       std::to_string(response.status) + ": " + response.body.substr(0, 200));
  }
  return answer;
}

struct Served {
  std::string base;             // the first listed that has no parent
  std::set<std::string> names;  // of all that are listed
};
Result<Served> served_models(HttpClient& client) {
  TRY_ASSIGN(const json answer, ask(client, "GET", "/v1/models", ""));
  Served served;
  const auto list = answer.find("data");
  if (list != answer.end() && list->is_array()) {
    for (const json& model : *list) {
      if (!model.is_object() || !model.contains("id") || !model["id"].is_string()) continue;
      const std::string id = model["id"];
      if (served.base.empty() && (!model.contains("parent") || model["parent"].is_null())) served.base = id;
      served.names.insert(id);
    }
  }
  if (served.base.empty()) return unavailable("GET /v1/models lists no model.");
  return served;
}

// The numbers of llama-server's adapters, by the names of their files; none where it has
// no such route.
std::map<std::string, int64_t> adapter_numbers(HttpClient& client) {
  std::map<std::string, int64_t> numbers;
  const auto response = client.get("/lora-adapters");
  if (!response.ok() || response->status != 200) return numbers;
  const json list = json::parse(response->body, nullptr, false);
  if (!list.is_array()) return numbers;
  for (const json& adapter : list) {
    if (!adapter.is_object() || !adapter.contains("id") || !adapter["id"].is_number_integer()) continue;
    if (!adapter.contains("path") || !adapter["path"].is_string()) continue;
    const std::filesystem::path path = adapter["path"].get<std::string>();
    numbers.emplace(path.stem().string(), adapter["id"].get<int64_t>());
  }
  return numbers;
}

Result<std::vector<int32_t>> plain_tokens(HttpClient& client, const std::string& model) {
  const json body = {{"model", model}, {"prompt", kWords}, {"content", kWords}, {"add_special_tokens", false}};
  TRY_ASSIGN(const json answer, ask(client, "POST", "/tokenize", body.dump()));
  std::vector<int32_t> tokens;
  const auto list = answer.find("tokens");
  if (list != answer.end() && list->is_array())
    for (const json& token : *list)
      if (token.is_number_unsigned()) tokens.push_back(token.get<int32_t>());
  if (tokens.size() < 8) return unavailable("POST /tokenize names no token ids.");
  return tokens;
}

}  // namespace

Result<TraceBodies> TraceBodies::create(HttpClient& client, const Workload& workload,
                                        const TraceBenchOptions& options) {
  TraceBodies bodies;
  bodies.ignore_eos_ = options.ignore_eos;
  TRY_ASSIGN(Served served, served_models(client));
  TRY_ASSIGN(bodies.tokens_, plain_tokens(client, served.base));
  std::optional<std::map<std::string, int64_t>> numbers;
  for (const WorkloadRequest& request : workload) {
    if (request.adapter.empty() || bodies.names_.count(request.adapter) != 0) continue;
    const size_t index = bodies.names_.size();
    const std::string& name =
        options.adapters.empty() ? request.adapter : options.adapters[index % options.adapters.size()];
    bodies.names_[request.adapter] = name;
    if (served.names.size() > 1) continue;  // adapters are models there
    if (!numbers) numbers = adapter_numbers(client);
    if (numbers->empty()) continue;  // the server may know more names than it lists
    const auto number = numbers->find(name);
    if (number == numbers->end())
      return unavailable("The server has no adapter \"" + name +
                         "\": neither GET /v1/models nor GET /lora-adapters names it. Start it with a file of that "
                         "name, or name its own with --adapter.");
    bodies.numbers_.insert(*number);
  }
  bodies.model_ = std::move(served.base);
  return bodies;
}

std::string TraceBodies::of(const WorkloadRequest& request, size_t index) const {
  std::vector<int32_t> prompt;
  for_each_prompt_number(request, index, [&](uint64_t number) { prompt.push_back(tokens_[number % tokens_.size()]); });
  json body = {{"model", model_},
               {"prompt", std::move(prompt)},
               {"max_tokens", request.output_tokens},
               {"temperature", 0},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (!request.adapter.empty()) {
    const std::string& name = names_.at(request.adapter);
    if (const auto number = numbers_.find(name); number != numbers_.end()) {
      body["lora"] = {{{"id", number->second}, {"scale", 1.0}}};
    } else {
      body["model"] = name;
    }
  }
  if (ignore_eos_) body["ignore_eos"] = true;
  return body.dump();
}

}  // namespace loralei
