// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_service.h"

#include <algorithm>
#include <ctime>
#include <future>
#include <map>

#include "serve/adapter_paths.h"
#include "serve/resolve.h"
#include "store/version_name.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

constexpr size_t kOthersNamed = 20;

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

void fill(AdapterRow& row, const AdapterStatus& state) {
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

CatalogueEntry entry_of(const AdapterRecord& record, const std::string& root, AdapterSourceId source) {
  return {record.name, record.path, root,          AdapterOrigin::kHttp, record.created_s,
          source,      nullptr,     record.number, record.digest};
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
  std::vector<AdapterRecord> lost;
  for (const AdapterRecord& record : records_->registry().list()) {
    if (record.base != records_->base()) {
      if (++others <= kOthersNamed) other_names += (others == 1 ? "'" : ", '") + record.name + "'";
      continue;
    }
    const Restored restored = restore_one(record);
    if (restored.listed && (result.added.empty() || result.added.back() != record.name))
      result.added.push_back(record.name);
    if (restored.status.ok()) continue;
    result.notes.push_back("'" + version_name(record.name, record.number) +
                           "' of the registry is not served: " + restored.status.error().message);
    if (!restored.listed) lost.push_back(record);
  }
  list_lost(lost);
  if (others > kOthersNamed) other_names += " and " + std::to_string(others - kOthersNamed) + " more";
  if (others > 0) {
    result.notes.push_back("Of the registry these are not served, since they were loaded for another base model: " +
                           other_names);
  }
  return result;
}

// Under the digest that the record says: other files are an error of the requests that
// ask for it.
AdapterService::Restored AdapterService::restore_one(const AdapterRecord& record) {
  const auto refused = [](Error error) { return Restored{false, std::move(error)}; };
  if (const Status named = check_adapter_name(record.name, options_.model_names); !named.ok())
    return refused(named.error());
  if (const auto known = catalogue_.find(record.name); known && known->number == 0) {
    return refused(invalid_argument("the command line names it, from " + known->path + "; the record, of " +
                                    record.path + ", stays where it is"));
  }
  const auto place = resolve(record.path);
  if (!place.ok()) return refused(place.error());
  const bool stored = record.path.starts_with(kStorePrefix);
  if (!stored && place->path != record.path)
    return refused(invalid_argument(record.path + " is " + place->path + " now; load it again"));
  CatalogueEntry entry = entry_of(record, place->root, catalogue_.new_source());
  entry.path = place->path;
  if (const Status listed = list_restored(entry); !listed.ok()) return refused(listed.error());
  // What is named by its content is what it was.
  const bool untouched = stored || (!record.stamp.empty() && record.stamp == records_->stamp(record.path));
  if (untouched) return {true, {}};
  // Other files, or the same ones copied or written again: they are read to know.
  const auto digest = ask({0, AdapterAction::kLoad, source_spec(entry)});
  return {true, digest.ok() ? Status() : Status(digest.error())};
}

Status AdapterService::list_restored(CatalogueEntry& entry) {
  TRY(ask({0, AdapterAction::kAdd, source_spec(entry)}));
  entry.keep = sources_->keep(entry.source, digest_of(entry));
  if (catalogue_.replace(entry)) return {};
  return catalogue_.add(entry);
}

// Where an older version is served the name would mean that one: whoever asks for the
// newest is told what is wrong with it.
void AdapterService::list_lost(const std::vector<AdapterRecord>& records) {
  for (const AdapterRecord& record : records) {
    const auto known = catalogue_.find(record.name);
    if (!known || known->name != record.name || known->number == 0 || known->number > record.number) continue;
    CatalogueEntry entry = entry_of(record, record.root, catalogue_.new_source());
    (void)list_restored(entry);  // a note has told of it
  }
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
      if (const Status named = check_adapter_name(adapter.name, options_.model_names); !named.ok()) {
        result.notes.push_back(adapter.path + " is left out: " + named.error().message);
        continue;
      }
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
  if (!status.ok()) return reply->refuse(to_api_error(status.error()));
  const std::lock_guard lock(pins_mutex_);
  if (pinned && entry->number > 0 && entry->name != name) {
    pinned_alone_.insert(entry->source);
  } else {
    pinned_alone_.erase(entry->source);
  }
}

void AdapterService::prefetch(std::shared_ptr<Reply> reply, const std::string& name) {
  const auto entry = catalogue_.find(name);
  if (!entry) return reply->refuse(no_such_adapter(name));
  const auto answer_with = [reply, name](const std::string& version) {
    JsonOut out;
    out.begin_object().key("name").string(name).key("in_memory").boolean(true);
    reply->json(200, out.key("version").string_or_null(version).end_object().take());
  };
  // What is there already is no second load.
  const auto resident = [this, source = entry->source] {
    auto status = status_of(source);
    return status && status->tier == AdapterTier::kResident ? status : nullptr;
  };
  if (const auto there = resident()) return answer_with(there->version);
  const auto done = [reply, answer_with, resident](const CommandReply& answer) {
    if (answer.status.ok()) return answer_with(answer.version);
    if (const auto there = resident()) return answer_with(there->version);  // it came meanwhile
    reply->refuse(to_api_error(answer.status.error()));
  };
  const Status status = context_.dispatcher.command({0, AdapterAction::kLoad, source_spec(*entry)}, done);
  if (!status.ok()) reply->refuse(to_api_error(status.error()));
}

bool AdapterService::is_pinned_alone(AdapterSourceId source) {
  const std::lock_guard lock(pins_mutex_);
  return pinned_alone_.contains(source);
}

ApiError AdapterService::no_such_adapter(const std::string& name) const {
  ApiError error = api_error_of_status(
      404, "The adapter `" + name.substr(0, 200) + "` is not registered." + versions_there(name, catalogue_));
  error.code = "adapter_not_found";
  return error;
}

void AdapterService::set_defaults(Reply& reply, const LoraScalesRequest& request) {
  Parsed<std::vector<AdapterRef>> set = defaults_.set(request.adapters, catalogue_);
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

std::string AdapterService::name_of(const std::string& version) const {
  for (const auto& adapter : shown()) {
    if (adapter->version == version) return adapter->source.label;
  }
  return {};
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
  const auto state_of = [&states](const CatalogueEntry& entry) -> const AdapterStatus* {
    const auto found = states.find(entry.source);
    return found == states.end() ? nullptr : found->second.get();
  };
  std::vector<AdapterRow> rows;
  for (const CatalogueEntry& entry : catalogue_.list()) {
    AdapterRow row;
    row.name = entry.name;
    row.path = entry.path;
    row.source = adapter_origin_name(entry.origin);
    row.number = entry.number;
    if (const AdapterStatus* const state = state_of(entry)) fill(row, *state);
    if (entry.number > 0) {
      for (const CatalogueEntry& version : catalogue_.versions(entry.name)) {
        AdapterVersionRow& shown = row.versions.emplace_back();
        shown.number = version.number;
        shown.digest = version.digest;
        shown.path = version.path;
        const AdapterStatus* const state = state_of(version);
        if (state == nullptr) continue;
        shown.state = state_name(state->tier);
        shown.pinned = state->pinned;
        shown.error = state->error;
      }
    }
    rows.push_back(std::move(row));
  }
  return adapter_list(rows);
}

}  // namespace loralei
