// SPDX-License-Identifier: Apache-2.0
#include "serve/resolve.h"

#include <algorithm>
#include <optional>

#include "store/version_name.h"

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

// "base:adapter" without the base; as it is where it is none.
std::vector<std::string> possible_names(const std::string& name, const std::vector<std::string>& model_names) {
  std::vector<std::string> names = {name};
  for (const std::string& base : model_names)
    if (name.starts_with(base + ":"))
      names.push_back(name.substr(base.size() + 1));  // "m" and "m:7b" may both be bases
  return names;
}

ApiError unknown(const std::string& name, std::string param, const std::vector<std::string>& model_names,
                 const Catalogue& catalogue) {
  std::string there;
  for (const std::string& one : possible_names(name, model_names))
    if (there.empty()) there = versions_there(one, catalogue);
  const std::string shown = "The model `" + name.substr(0, 200);
  ApiError error = api_error_of_status(404, there.empty() ? shown + "` does not exist. There is " +
                                                                existing_names(model_names, catalogue) +
                                                                "; GET /v1/models lists all."
                                                          : shown + "` does not exist." + there);
  error.param = std::move(param);
  error.code = "model_not_found";
  return error;
}

// Answered with the base instead, who set the default would not notice.
ApiError default_gone(const std::string& name, const Catalogue& catalogue) {
  ApiError error =
      api_error_of_status(404, "The adapter `" + name +
                                   "`, which POST /lora-adapters made the default of requests that name none, is not " +
                                   "registered any more." + versions_there(name, catalogue) +
                                   " Name an adapter in the request, or \"lora\": [] for the base alone, or let the " +
                                   "defaults be set again.");
  error.code = "model_not_found";
  return error;
}

bool is_same(const CatalogueEntry& one, const CatalogueEntry& other) {
  return one.name == other.name && one.number == other.number;
}

// An adapter by its name, or by "base:adapter".
std::optional<CatalogueEntry> find_adapter(const std::string& name, const std::vector<std::string>& model_names,
                                           const Catalogue& catalogue) {
  for (const std::string& one : possible_names(name, model_names))
    if (auto entry = catalogue.find(one)) return entry;
  return std::nullopt;
}

}  // namespace

Error with_names(Error error, const ResolvedModel& model) {
  for (const CatalogueEntry& entry : model.entries) {
    const std::string plain = "adapter \"" + entry.name + "\"";
    if (!error.message.starts_with(plain)) continue;  // of its files: it has been named
    const auto is_it = [&](const CatalogueEntry& other) { return other.name == entry.name; };
    const bool is_clear = std::count_if(model.entries.begin(), model.entries.end(), is_it) == 1;
    if (entry.number == 0 || !is_clear) return error;
    error.message = "adapter \"" + version_name(entry.name, entry.number) + "\"" + error.message.substr(plain.size());
    return error;
  }
  if (error.code != ErrorCode::kNotFound || model.entries.empty() || error.message.starts_with("adapter \""))
    return error;
  return std::move(error).with_context("adapter \"" + model.label + "\"");
}

std::string versions_there(const std::string& name, const Catalogue& catalogue) {
  const auto wanted = parse_version_name(name);
  if (!wanted) return "";
  const std::vector<CatalogueEntry> versions = catalogue.versions(wanted->name);
  if (versions.empty()) return "";
  const std::string plain = "`" + std::string(wanted->name) + "`";
  if (versions.back().number == 0) return " " + plain + " has no versions, since it was not loaded over HTTP.";
  const size_t first = versions.size() - std::min(versions.size(), kNamesListed);
  std::string list;
  for (size_t i = first; i < versions.size(); ++i) {
    list += i == first ? "" : i + 1 == versions.size() ? " and " : ", ";
    list += "`" + version_name(versions[i].name, versions[i].number) + "`";
  }
  if (versions.size() == 1) return " Of " + plain + " there is only " + list + ".";
  return " Of " + plain + " there are " +
         (first > 0 ? "the newest " + std::to_string(kNamesListed) + " of " + std::to_string(versions.size()) + ": "
                    : "") +
         list + ".";
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
    const auto is_it = [&](const AdapterRef& one) {
      const auto other = one.index < 0 ? find_adapter(one.name, model_names, catalogue) : std::nullopt;
      return other && is_same(*other, *entry);
    };
    if (!wanted.empty() && !(wanted.size() == 1 && is_it(wanted[0]))) {
      ApiError error = api_error_of_status(400, "'model' names the adapter `" + entry->name + "` and '" + param +
                                                    "' names adapters too; let 'model' name the base, or leave '" +
                                                    param + "' out.");
      error.param = param;
      return error;
    }
    if (wanted.empty()) wanted.push_back({ref.model, -1, 1.0f});
    param = "model";
  }
  for (const AdapterRef& one : wanted) {
    auto entry =
        one.index >= 0 ? catalogue.at(static_cast<size_t>(one.index)) : find_adapter(one.name, model_names, catalogue);
    if (!entry && one.index < 0 && is_base(one.name, model_names))
      continue;  // the base, named as an adapter: nothing to add
    if (!entry && by_default) return default_gone(one.name, catalogue);
    if (!entry) {
      return unknown(one.index >= 0 ? std::to_string(one.index) : one.name, param, model_names, catalogue);
    }
    for (const CatalogueEntry& other : out.entries) {
      if (!is_same(other, *entry)) continue;
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

Parsed<ResolvedModel> resolve_model_for(const NamedKey* key, const ModelRef& ref,
                                        const std::vector<std::string>& model_names, const Catalogue& catalogue,
                                        const std::vector<AdapterRef>& defaults) {
  auto model = resolve_model(ref, model_names, catalogue, defaults);
  if (key == nullptr || key->all_adapters) return model;
  const auto may_use = [&](const CatalogueEntry& entry) { return key->may_use(entry.name); };
  if (model.ok() ? std::all_of(model->entries.begin(), model->entries.end(), may_use)
                 : model.error().code != "model_not_found")
    return model;
  ApiError error = api_error_of_status(
      404, "There is no such model or adapter that the key '" + key->name + "' may use; GET /v1/models lists those.");
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

}  // namespace loralei
