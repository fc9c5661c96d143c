// SPDX-License-Identifier: Apache-2.0
#include "serve/resolve.h"

#include <algorithm>
#include <optional>

namespace loralei {
namespace {

bool is_base(const std::string& name, const std::vector<std::string>& model_names) {
  return name.empty() || std::find(model_names.begin(), model_names.end(), name) != model_names.end();
}

constexpr size_t kNamesListed = 10;

// The names that there are: whoever asks may have them all (GET /v1/models).
std::string existing_names(const std::vector<std::string>& model_names, const Catalogue& catalogue) {
  std::string text;
  size_t listed = 0;
  for (const std::string& name : model_names) text += (listed++ == 0 ? "" : ", ") + name;
  for (size_t place = 0; listed < kNamesListed; ++place, ++listed) {
    const auto entry = catalogue.at(place);
    if (!entry) break;
    text += ", " + entry->name;
  }
  const size_t all = model_names.size() + catalogue.size();
  if (all > listed) text += " and " + std::to_string(all - listed) + " more";
  return text;
}

ApiError unknown(const std::string& name, std::string param, const std::vector<std::string>& model_names,
                 const Catalogue& catalogue) {
  ApiError error = api_error_of_status(404, "The model `" + name.substr(0, 200) + "` does not exist. There is " +
                                                existing_names(model_names, catalogue) + "; GET /v1/models lists all.");
  error.param = std::move(param);
  error.code = "model_not_found";
  return error;
}

// Answered with the base instead, who set the default would not notice.
ApiError default_gone(const std::string& name) {
  ApiError error = api_error_of_status(
      404, "The adapter `" + name +
               "`, which POST /lora-adapters made the default of requests that name none, is not " +
               "registered any more. Name an adapter in the request, or \"lora\": [] for the base alone, or let the " +
               "defaults be set again.");
  error.code = "model_not_found";
  return error;
}

// An adapter by its name, or by "base:adapter".
std::optional<CatalogueEntry> find_adapter(const std::string& name, const std::vector<std::string>& model_names,
                                           const Catalogue& catalogue) {
  if (auto entry = catalogue.find(name)) return entry;
  for (const std::string& base : model_names) {
    if (!name.starts_with(base + ":")) continue;
    if (auto entry = catalogue.find(name.substr(base.size() + 1))) return entry;  // "m" and "m:7b" may both be bases
  }
  return std::nullopt;
}

}  // namespace

Error with_names(Error error, const ResolvedModel& model) {
  if (error.code != ErrorCode::kNotFound || model.entries.empty()) return error;
  if (error.message.starts_with("adapter \"")) return error;  // of its files: it has been named
  return std::move(error).with_context("adapter \"" + model.label + "\"");
}

Parsed<ResolvedModel> resolve_model(const ModelRef& ref, const std::vector<std::string>& model_names,
                                    const Catalogue& catalogue, const std::vector<AdapterRef>& defaults) {
  ResolvedModel out;
  const bool by_default = ref.adapters.empty() && !ref.names_none && is_base(ref.model, model_names);
  std::vector<AdapterRef> wanted = by_default ? defaults : ref.adapters;
  std::string param = ref.adapters_param;
  if (!is_base(ref.model, model_names)) {
    auto entry = find_adapter(ref.model, model_names, catalogue);
    if (!entry) return unknown(ref.model, "model", model_names, catalogue);
    // The same adapter under both names is what some clients send.
    if (!wanted.empty() && !(wanted.size() == 1 && wanted[0].name == entry->name)) {
      ApiError error = api_error_of_status(400, "'model' names the adapter `" + entry->name + "` and '" + param +
                                                    "' names adapters too; let 'model' name the base, or leave '" +
                                                    param + "' out.");
      error.param = param;
      return error;
    }
    if (wanted.empty()) wanted.push_back({entry->name, -1, 1.0f});
    param = "model";
  }
  for (const AdapterRef& one : wanted) {
    auto entry =
        one.index >= 0 ? catalogue.at(static_cast<size_t>(one.index)) : find_adapter(one.name, model_names, catalogue);
    if (!entry && one.index < 0 && is_base(one.name, model_names))
      continue;  // the base, named as an adapter: nothing to add
    if (!entry && by_default) return default_gone(one.name);
    if (!entry) {
      return unknown(one.index >= 0 ? std::to_string(one.index) : one.name, param, model_names, catalogue);
    }
    for (const CatalogueEntry& other : out.entries) {
      if (other.name != entry->name) continue;
      ApiError error = api_error_of_status(400, "The adapter `" + entry->name + "` is named twice.");
      error.param = param;
      return error;
    }
    if (one.scale == 0.0f) continue;
    out.label += (out.label.empty() ? "" : "+") + entry->name;
    out.adapters.push_back({entry->source, one.scale});
    out.entries.push_back(std::move(*entry));
  }
  if (!ref.model.empty())
    out.shown = ref.model;
  else if (wanted.size() == 1 && !wanted[0].name.empty())
    out.shown = wanted[0].name;
  else
    out.shown = out.label.empty() ? model_names.front() : out.label;
  return out;
}

}  // namespace loralei
