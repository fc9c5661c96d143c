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

constexpr size_t kOthersNamed = 20;
constexpr size_t kDigestShown = 12;

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
  std::shared_ptr<AdapterRecords::Claim> claim;
  if (records_) {
    TRY_ASSIGN(claim, records_->claim(name));
  }
  if (auto known = catalogue_.find(name); known) {
    if (known->path == path) return {};
    return invalid_argument("two adapters are named '" + name + "': " + known->path + " and " + path +
                            "; give one another name");
  }
  CatalogueEntry entry{name, path, root, origin, std::time(nullptr), catalogue_.new_source(), nullptr};
  TRY(ask({0, AdapterAction::kAdd, source_spec(entry)}));
  entry.keep = sources_->keep(entry.source);
  return catalogue_.add(std::move(entry));
}

// The engine's answer, waited for. Shared, because it may come after a broken promise's
// time.
Result<std::string> AdapterService::ask(AdapterCommand command) {
  auto answer = std::make_shared<std::promise<CommandReply>>();
  auto future = answer->get_future();
  TRY(context_.dispatcher.command(std::move(command),
                                  [answer](const CommandReply& reply) { answer->set_value(reply); }));
  const CommandReply reply = future.get();
  TRY(reply.status);
  return reply.version;
}

AdapterService::Rescan AdapterService::restore(RegistryUse use) {
  records_ = std::make_unique<AdapterRecords>(std::move(use));
  Rescan result;
  size_t others = 0;
  std::string other_names;
  for (const AdapterRecord& record : records_->registry().list()) {
    if (record.base != records_->base()) {
      if (++others <= kOthersNamed) other_names += (others == 1 ? "'" : ", '") + record.name + "'";
      continue;
    }
    const Status status = restore_one(record);
    if (status.ok())
      result.added.push_back(record.name);
    else
      result.notes.push_back("'" + record.name + "' of the registry is not served: " + status.error().message);
  }
  if (others > kOthersNamed) other_names += " and " + std::to_string(others - kOthersNamed) + " more";
  if (others > 0) {
    result.notes.push_back("Of the registry these are not served, since they were loaded for another base model: " +
                           other_names);
  }
  return result;
}

// Under the digest that the record says, or not at all.
Status AdapterService::restore_one(const AdapterRecord& record) {
  if (const auto known = catalogue_.find(record.name)) {
    return invalid_argument("the command line names it, from " + known->path + "; the record, of " + record.path +
                            ", stays where it is");
  }
  TRY(check_adapter_name(record.name, options_.model_names));
  TRY_ASSIGN(const AdapterPath place, resolve_adapter_path(files_, options_.adapter_roots, record.path));
  if (place.path != record.path) return invalid_argument(record.path + " is " + place.path + " now; load it again");
  CatalogueEntry entry{
      record.name, record.path, place.root, AdapterOrigin::kHttp, record.created_s, catalogue_.new_source(), nullptr};
  const bool untouched = !record.stamp.empty() && record.stamp == records_->stamp(record.path);
  if (untouched) {
    TRY(ask({0, AdapterAction::kAdd, source_spec(entry)}));
    entry.keep = sources_->keep(entry.source);
    return catalogue_.add(std::move(entry));
  }
  // Other files, or the same ones copied or written again: they are read to know.
  entry.keep = sources_->keep(entry.source);  // dropped again below
  TRY_ASSIGN(const std::string digest, ask({0, AdapterAction::kLoad, source_spec(entry)}));
  if (digest == record.digest) return catalogue_.add(std::move(entry));
  return corrupt("the files at " + record.path + " are others than those that were loaded (now " +
                 digest.substr(0, kDigestShown) + ", then " + record.digest.substr(0, kDigestShown) +
                 "); load it again, or unload it, which takes it out of the registry");
}

void AdapterService::stop_records() {
  if (records_) records_->registry().stop();
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

// A load over HTTP on its way: engine, registry, catalogue, answer.
struct AdapterService::Load {
  std::shared_ptr<Reply> reply;
  CatalogueEntry entry;
  std::shared_ptr<const TextModel> text = nullptr;
  std::optional<CatalogueEntry> replaced = std::nullopt;  // what the name means until then
  bool pinned = false;
  std::shared_ptr<AdapterRecords::Claim> claim = nullptr;  // where records are kept
  std::string stamp = {};                                  // of the files, before they were read

  // The name is free again when the client knows.
  void refuse(const ApiError& error) const {
    if (claim) claim->release();
    reply->refuse(error);
  }
  void done() const {
    if (claim) claim->release();
    reply->text(200, lora_loaded_text(entry.name));
  }
};

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
  const auto load = std::make_shared<Load>(Load{std::move(reply), std::move(entry)});
  load->pinned = request.pinned;
  if (records_) {
    auto claim = records_->claim(request.name);
    if (!claim.ok()) return load->refuse(vllm_error_of(claim.error()));
    load->claim = std::move(*claim);
    if (const Status status = records_->check_base(request.name); !status.ok() && !request.load_inplace)
      return load->refuse(vllm_error_of(status.error()));
    load->stamp = records_->stamp(place->path);
  }
  auto text = texts_.read(load->entry);
  if (!text.ok()) return load->refuse(vllm_error_of(text.error()));
  load->text = std::move(*text);
  // What a scan registered is not loaded yet: loading it by hand is no conflict, as long
  // as it is the same adapter.
  load->replaced = catalogue_.find(request.name);
  const auto& known = load->replaced;
  const bool same = known && known->path == place->path && known->origin == AdapterOrigin::kDirectory;
  if (known && !request.load_inplace && !same) {
    return load->refuse(
        vllm_error(400, "The lora adapter '" + request.name +
                            "' has already been loaded. To replace it in place, set 'load_inplace' to true."));
  }
  load_resolved(load);
}

// The same files with the same texts are the same source, loaded again: whoever was made
// for it is right with either version. Where records are kept it is another source, which
// can be given up if the record cannot be written.
void AdapterService::load_resolved(const std::shared_ptr<Load>& load) {
  AdapterCommand command{0, AdapterAction::kLoad, {}};
  CatalogueEntry& entry = load->entry;
  const auto& replaced = load->replaced;
  if (!records_ && replaced && replaced->path == entry.path && texts_.goes_with(replaced->source, *load->text)) {
    entry.source = replaced->source;
    entry.keep = replaced->keep;
    command.reload = true;
  } else {
    entry.source = catalogue_.new_source();
    if (replaced) command.replaces = replaced->source;
  }
  command.source = source_spec(entry);
  const auto loaded = [this, load](const CommandReply& answer) {
    if (!answer.status.ok()) return load->refuse(vllm_error_of(answer.status.error()));
    if (!records_) return finish(load, answer.version);
    record(load, answer.version);
  };
  const Status status = context_.dispatcher.command(std::move(command), loaded);
  if (!status.ok()) load->refuse(vllm_error_of(status.error()));
}

// Before the name means it and before the client is told.
void AdapterService::record(const std::shared_ptr<Load>& load, const std::string& version) {
  const CatalogueEntry& entry = load->entry;
  AdapterRecord record;
  record.name = entry.name;
  record.digest = version;
  record.base = records_->base();
  record.path = entry.path;
  record.root = entry.root;
  // Files that changed meanwhile are read at the next start.
  if (load->stamp == records_->stamp(entry.path)) record.stamp = load->stamp;
  record.created_s = entry.created_s;
  if (const auto status = status_of(entry.source)) {
    record.rank = status->rank;
    record.bytes = status->bytes;
  }
  const auto written = [this, load, version](const Result<int64_t>& number) {
    if (!number.ok()) return undo(*load, number.error());
    finish(load, version);
  };
  const Status taken = records_->registry().put(std::move(record), written);
  if (!taken.ok()) undo(*load, taken.error());
}

void AdapterService::undo(const Load& load, const Error& error) {
  const auto status = status_of(load.entry.source);
  if (load.replaced && status && status->pinned) {  // the pin went over
    const Status told =
        context_.dispatcher.command({0, AdapterAction::kPin, source_spec(*load.replaced)}, [](const CommandReply&) {});
    if (!told.ok()) context_.log.log(LogLevel::kWarning, "'" + load.entry.name + "' is pinned no longer");
  }
  sources_->keep(load.entry.source).reset();  // let go at once: the engine forgets it
  context_.log.event(LogLevel::kError, "adapter not kept", {{"adapter", load.entry.name}}, error.message);
  load.refuse(vllm_error_of(Error(error).with_context("The adapter was not loaded, since it could not be kept")));
}

void AdapterService::finish(const std::shared_ptr<Load>& load, const std::string& version) {
  const CatalogueEntry& entry = load->entry;
  texts_.put(entry, load->text);
  if (const Status status = list_loaded(entry, load->replaced.has_value()); !status.ok()) {
    if (records_) forget_record(entry.name);
    return load->refuse(vllm_error_of(status.error()));
  }
  context_.log.event(LogLevel::kInfo, "adapter loaded over HTTP",
                     {{"adapter", entry.name}, {"path", entry.path}, {"version", version}});
  if (!load->pinned) return load->done();
  const auto pinned = [load](const CommandReply& last) {
    if (!last.status.ok()) return load->refuse(vllm_error_of(last.status.error()));
    load->done();
  };
  const Status status = context_.dispatcher.command({0, AdapterAction::kPin, source_spec(entry)}, pinned);
  if (!status.ok()) load->refuse(vllm_error_of(status.error()));
}

// What could not be listed is not to come back.
void AdapterService::forget_record(const std::string& name) {
  const auto told = [this, name](const Result<int64_t>& removed) {
    if (!removed.ok())
      context_.log.event(LogLevel::kError, "adapter kept", {{"adapter", name}}, removed.error().message);
  };
  const Status taken = records_->registry().remove(name, told);
  if (!taken.ok()) told(taken.error());
}

// From now on its name means this source. The one before is dropped with its last keep.
Status AdapterService::list_loaded(const CatalogueEntry& entry, bool in_place) {
  CatalogueEntry listed = entry;
  if (listed.keep == nullptr) listed.keep = sources_->keep(listed.source);
  if (!in_place) return catalogue_.add(std::move(listed));
  if (catalogue_.replace(std::move(listed))) return {};
  return not_found("The lora adapter '" + entry.name + "' was unloaded while it was loaded.");
}

bool AdapterService::forget(const std::string& name, Dispatcher::ReplyCallback done) {
  if (!records_) {
    const Result<bool> told = forget_listed(name, done);
    if (!told.ok()) done({.status = told.error()});
    return !told.ok() || *told;
  }
  auto claim = records_->claim(name);
  if (!claim.ok()) {
    done({.status = claim.error()});
    return true;
  }
  const auto refuse = [claim = *claim, done](const Error& error) {
    claim->release();
    done({.status = error});
  };
  const auto record = records_->find(name);
  if (!record && !catalogue_.find(name)) return false;
  const auto removed = [this, name, record, refuse, done, claim = *claim](const Result<int64_t>& number) {
    if (!number.ok()) return refuse(number.error());
    const Result<bool> told = forget_listed(name, [claim, done](const CommandReply& answer) {
      claim->release();
      done(answer);
    });
    if (!told.ok()) {
      if (record) put_back(*record);
      return refuse(told.error());
    }
    claim->release();      // though requests that run with it may hold up the answer
    if (!*told) done({});  // it was not served
  };
  if (!record) {
    removed(0);
    return true;
  }
  const Status taken = records_->registry().remove(name, removed);
  if (!taken.ok()) refuse(taken.error());
  return true;
}

// Of an adapter that the engine has still.
void AdapterService::put_back(const AdapterRecord& record) {
  const auto told = [this, name = record.name](const Result<int64_t>& number) {
    if (!number.ok())
      context_.log.event(LogLevel::kError, "adapter not kept", {{"adapter", name}}, number.error().message);
  };
  const Status taken = records_->registry().put(record, told);
  if (!taken.ok()) told(taken.error());
}

Result<bool> AdapterService::forget_listed(const std::string& name, const Dispatcher::ReplyCallback& done) {
  const auto entry = catalogue_.find(name);
  if (!entry || !catalogue_.remove(name)) return false;
  const auto unloaded = [this, name, done](const CommandReply& answer) {
    if (answer.status.ok())
      context_.log.event(LogLevel::kInfo, "adapter unloaded", {{"adapter", name}, {"bytes_freed", answer.bytes_freed}});
    done(answer);
  };
  if (const Status told = sources_->drop(source_spec(*entry), unloaded); !told.ok()) {
    (void)catalogue_.add(*entry);  // the engine has it still
    return told.error();
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
  const bool known = forget(name, [reply, name](const CommandReply& answer) {
    if (!answer.status.ok()) return reply->refuse(vllm_error_of(answer.status.error()));
    reply->text(200, lora_unloaded_text(name));
  });
  if (!known) reply->refuse(vllm_error(404, "The lora adapter '" + name.substr(0, 200) + "' cannot be found."));
}

void AdapterService::remove(std::shared_ptr<Reply> reply, const std::string& name) {
  const bool known = forget(name, [reply, name](const CommandReply& answer) {
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
  });
  if (!known) reply->refuse(no_such_adapter(name));
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

std::shared_ptr<const AdapterStatus> AdapterService::status_of(AdapterSourceId source) const {
  for (auto& status : context_.dispatcher.adapters().list()) {
    if (status->source.id == source) return std::move(status);
  }
  return nullptr;
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
