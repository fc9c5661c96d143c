// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_service.h"

#include <algorithm>
#include <ctime>
#include <future>
#include <map>

#include "serve/adapter_paths.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

// vLLM's routes know 400, 404 and 500; being refused for load is told apart.
ApiError vllm_error_of(const Error& error) {
  const int status = error_row(error.code).status;
  return vllm_error(status == 413 ? 400 : status, error.message);
}

ApiError no_such_adapter(const std::string& name) {
  ApiError error = api_error_of_status(404, "The adapter `" + name.substr(0, 200) + "` is not registered.");
  error.code = "adapter_not_found";
  return error;
}

const char* state_name(AdapterTier tier) {
  switch (tier) {
    case AdapterTier::kSource:
      return "registered";
    case AdapterTier::kLoading:
      return "loading";
    case AdapterTier::kResident:
      return "ready";
    case AdapterTier::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace

Status AdapterService::add(const std::string& name, const std::string& path, AdapterOrigin origin,
                           const std::string& root) {
  TRY(check_adapter_name(name, options_.model_names));
  if (auto known = catalogue_.find(name); known) {
    if (known->path == path) return {};
    return invalid_argument("two adapters are named '" + name + "': " + known->path + " and " + path +
                            "; give one another name");
  }
  CatalogueEntry entry{name, path, root, origin, std::time(nullptr), catalogue_.new_source(), nullptr};
  // The engine's answer; shared, because it may come after a broken promise's time.
  auto answer = std::make_shared<std::promise<Status>>();
  auto future = answer->get_future();
  TRY(context_.dispatcher.command({0, AdapterAction::kAdd, source_spec(entry)},
                                  [answer](const CommandReply& reply) { answer->set_value(reply.status); }));
  TRY(future.get());
  entry.keep = sources_->keep(entry.source);
  return catalogue_.add(std::move(entry));
}

AdapterService::Rescan AdapterService::rescan() {
  Rescan result;
  for (const std::string& root : options_.adapter_roots) {
    auto found = scan_adapter_root(files_, root, result.notes);
    if (!found.ok()) {
      result.notes.push_back(found.error().message);
      continue;
    }
    if (found->empty())
      result.notes.push_back("--adapter-dir " + root + " holds no adapter: put folders with adapter_config.json, or " +
                             "with one .gguf file, into it.");
    for (const FoundAdapter& adapter : *found) {
      if (const auto known = catalogue_.find(adapter.name)) {
        if (known->path != adapter.path)
          result.notes.push_back(adapter.path + " is left out: '" + adapter.name + "' is registered from " +
                                 known->path);
        continue;
      }
      const Status status = add(adapter.name, adapter.path, AdapterOrigin::kDirectory, root);
      if (status.ok())
        result.added.push_back(adapter.name);
      else
        result.notes.push_back(adapter.path + " is left out: " + status.error().message);
    }
  }
  return result;
}

void AdapterService::load(std::shared_ptr<Reply> reply, const LoadLoraRequest& request) {
  auto place = resolve_adapter_path(files_, options_.adapter_roots, request.path);
  if (!place.ok()) return reply->refuse(vllm_error_of(place.error()));
  const auto& names = options_.model_names;
  if (std::find(names.begin(), names.end(), request.name) != names.end()) {
    return reply->refuse(
        vllm_error(409, "'" + request.name + "' is the name of the base model; an adapter may not take it."));
  }
  if (const Status status = check_adapter_name(request.name, names); !status.ok())
    return reply->refuse(vllm_error(400, status.error().message));
  CatalogueEntry entry{request.name, place->path, place->root, AdapterOrigin::kHttp, std::time(nullptr), {}, nullptr};
  auto text = texts_.read(entry);
  if (!text.ok()) return reply->refuse(vllm_error_of(text.error()));
  // What a scan registered is not loaded yet: loading it by hand is no conflict, as long
  // as it is the same adapter.
  auto known = catalogue_.find(request.name);
  const bool same = known && known->path == place->path && known->origin == AdapterOrigin::kDirectory;
  if (known && !request.load_inplace && !same) {
    return reply->refuse(
        vllm_error(400, "The lora adapter '" + request.name +
                            "' has already been loaded. To replace it in place, set 'load_inplace' to true."));
  }
  load_resolved(std::move(reply), std::move(entry), std::move(*text), std::move(known), request.pinned);
}

// The same files with the same texts are the same source, loaded again: whoever was made
// for it is right with either version.
void AdapterService::load_resolved(std::shared_ptr<Reply> reply, CatalogueEntry entry,
                                   std::shared_ptr<const TextModel> text, std::optional<CatalogueEntry> replaced,
                                   bool pinned) {
  AdapterCommand command{0, AdapterAction::kLoad, {}};
  if (replaced && replaced->path == entry.path && texts_.goes_with(replaced->source, *text)) {
    entry.source = replaced->source;
    entry.keep = replaced->keep;
    command.reload = true;
  } else {
    entry.source = catalogue_.new_source();
    if (replaced) command.replaces = replaced->source;
  }
  command.source = source_spec(entry);
  auto done = [this, reply, entry, text, in_place = replaced.has_value(), pinned](const CommandReply& answer) {
    if (!answer.status.ok()) return reply->refuse(vllm_error_of(answer.status.error()));
    texts_.put(entry, text);
    if (const Status status = list_loaded(entry, in_place); !status.ok())
      return reply->refuse(vllm_error_of(status.error()));
    context_.log.event(LogLevel::kInfo, "adapter loaded over HTTP",
                       {{"adapter", entry.name}, {"path", entry.path}, {"version", answer.version}});
    const auto loaded = [reply, name = entry.name](const CommandReply& last) {
      if (!last.status.ok()) return reply->refuse(vllm_error_of(last.status.error()));
      reply->text(200, lora_loaded_text(name));
    };
    if (!pinned) return loaded(answer);
    const Status status = context_.dispatcher.command({0, AdapterAction::kPin, source_spec(entry)}, loaded);
    if (!status.ok()) reply->refuse(vllm_error_of(status.error()));
  };
  const Status status = context_.dispatcher.command(std::move(command), std::move(done));
  if (!status.ok()) reply->refuse(vllm_error_of(status.error()));
}

// From now on its name means this source. The one before is dropped with its last keep.
Status AdapterService::list_loaded(const CatalogueEntry& entry, bool in_place) {
  CatalogueEntry listed = entry;
  if (listed.keep == nullptr) listed.keep = sources_->keep(listed.source);
  if (!in_place) return catalogue_.add(std::move(listed));
  if (catalogue_.replace(std::move(listed))) return {};
  return not_found("The lora adapter '" + entry.name + "' was unloaded while it was loaded.");
}

bool AdapterService::forget(const std::string& name, Dispatcher::ReplyCallback done, Status& told) {
  const auto entry = catalogue_.find(name);
  if (!entry || !catalogue_.remove(name)) return false;
  const auto unloaded = [this, name, done = std::move(done)](const CommandReply& answer) {
    if (answer.status.ok())
      context_.log.event(LogLevel::kInfo, "adapter unloaded", {{"adapter", name}, {"bytes_freed", answer.bytes_freed}});
    done(answer);
  };
  told = sources_->drop(source_spec(*entry), unloaded);
  if (!told.ok()) {
    (void)catalogue_.add(*entry);  // the engine has it still
    return true;
  }
  texts_.forget(entry->source);
  context_.metrics.adapter_gone(name);
  if (defaults_.hold(name)) {
    context_.log.event(LogLevel::kWarning, "default adapter unloaded", {{"adapter", name}},
                       "Requests that name no adapter are refused until POST /lora-adapters sets others, or an adapter "
                       "of this name is registered again.");
  }
  return true;
}

void AdapterService::unload(std::shared_ptr<Reply> reply, const std::string& name) {
  Status told;
  const bool known = forget(
      name,
      [reply, name](const CommandReply& answer) {
        if (!answer.status.ok()) return reply->refuse(vllm_error_of(answer.status.error()));
        reply->text(200, lora_unloaded_text(name));
      },
      told);
  if (!known) return reply->refuse(vllm_error(404, "The lora adapter '" + name.substr(0, 200) + "' cannot be found."));
  if (!told.ok()) reply->refuse(vllm_error_of(told.error()));
}

void AdapterService::remove(std::shared_ptr<Reply> reply, const std::string& name) {
  Status told;
  const bool known = forget(
      name,
      [reply, name](const CommandReply& answer) {
        if (!answer.status.ok()) return reply->refuse(to_api_error(answer.status.error()));
        JsonOut out;
        out.begin_object()
            .key("name")
            .string(name)
            .key("deleted")
            .boolean(true)
            .key("bytes_freed")
            .number(answer.bytes_freed)
            .end_object();
        reply->json(200, out.take());
      },
      told);
  if (!known) return reply->refuse(no_such_adapter(name));
  if (!told.ok()) reply->refuse(to_api_error(told.error()));
}

void AdapterService::pin(std::shared_ptr<Reply> reply, const std::string& name, bool pinned) {
  const auto entry = catalogue_.find(name);
  if (!entry) return reply->refuse(no_such_adapter(name));
  const AdapterAction action = pinned ? AdapterAction::kPin : AdapterAction::kUnpin;
  const Status status =
      context_.dispatcher.command({0, action, source_spec(*entry)}, [reply, name, pinned](const CommandReply& answer) {
        if (!answer.status.ok()) return reply->refuse(to_api_error(answer.status.error()));
        JsonOut out;
        out.begin_object()
            .key("name")
            .string(name)
            .key("pinned")
            .boolean(pinned)
            .key("version")
            .string_or_null(answer.version)
            .end_object();
        reply->json(200, out.take());
      });
  if (!status.ok()) reply->refuse(to_api_error(status.error()));
}

void AdapterService::set_defaults(Reply& reply, const LoraScalesRequest& request) {
  Parsed<std::vector<AdapterRef>> set = defaults_.set(request.adapters, catalogue_.list());  // places are those of now
  if (!set.ok()) return reply.refuse(set.error());
  context_.metrics.default_adapters_set();
  std::string names;
  for (const AdapterRef& one : *set) {
    JsonOut scale;
    names += (names.empty() ? "" : " + ") + scale.real(one.scale).take() + " " + one.name;
  }
  context_.log.event(LogLevel::kWarning, "default adapters set", {{"adapters", names}},
                     names.empty() ? "Requests that name no adapter are answered by the base."
                                   : "Requests that name no adapter are answered with these from now on.");
  reply.json(200, R"({"success":true})");
}

AdapterList AdapterService::shown() const {
  AdapterList adapters = context_.dispatcher.adapters().list();
  std::erase_if(adapters, [this](const auto& adapter) {
    const auto entry = catalogue_.find(adapter->source.label);
    return entry && entry->source != adapter->source.id;
  });
  return adapters;
}

std::vector<CatalogueEntry> AdapterService::failed() const {
  std::vector<CatalogueEntry> entries;
  for (const auto& adapter : shown()) {
    if (adapter->tier != AdapterTier::kFailed) continue;
    if (auto entry = catalogue_.find(adapter->source.label)) entries.push_back(std::move(*entry));
  }
  return entries;
}

std::string AdapterService::list() const {
  std::map<AdapterSourceId, std::shared_ptr<const AdapterStatus>> states;
  for (auto& adapter : context_.dispatcher.adapters().list()) states.emplace(adapter->source.id, std::move(adapter));
  std::vector<AdapterRow> rows;
  for (const CatalogueEntry& entry : catalogue_.list()) {
    AdapterRow row;
    row.name = entry.name;
    row.path = entry.path;
    row.source = adapter_origin_name(entry.origin);
    row.state = "registered";
    row.tier = "disk";
    if (const auto found = states.find(entry.source); found != states.end()) {
      const AdapterStatus& state = *found->second;
      row.state = state_name(state.tier);
      row.tier = state.tier != AdapterTier::kResident ? "disk" : state.on_device ? "device" : "memory";
      row.bytes = state.bytes;
      row.rank = state.rank;
      row.version = state.version;
      row.uses = state.uses;
      row.recent_uses = state.recent_uses;
      if (state.load_s > 0) row.load_s = state.load_s;
      row.keep_score = state.keep_score;
      row.left = state.left;
      row.running = state.users;
      row.waiting = state.waiting;
      row.pinned = state.pinned;
      row.modules.assign(state.modules.begin(), state.modules.end());
      if (state.tier == AdapterTier::kResident) row.change_norm = state.change_norm;
      row.notes = state.report;
      row.error = state.error;
    }
    rows.push_back(std::move(row));
  }
  return adapter_list(rows);
}

}  // namespace loralei
