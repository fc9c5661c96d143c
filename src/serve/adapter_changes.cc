// SPDX-License-Identifier: Apache-2.0
// Loads and unloads over HTTP.
#include <algorithm>
#include <ctime>
#include <utility>

#include "serve/adapter_paths.h"
#include "serve/adapter_service.h"
#include "serve/resolve.h"
#include "store/version_name.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

// vLLM's routes know 400, 404 and 500; being refused for load is told apart.
ApiError vllm_error_of(const Error& error) {
  const int status = error_row(error.code).status;
  return vllm_error(status == 413 ? 400 : status, error.message);
}

}  // namespace

// A load over HTTP on its way: engine, registry, catalogue, answer.
struct AdapterService::Load {
  std::shared_ptr<Reply> reply;
  CatalogueEntry entry;
  std::shared_ptr<const TextModel> text = nullptr;
  std::optional<CatalogueEntry> replaced = std::nullopt;  // what the name means until then
  bool pinned = false;
  std::shared_ptr<AdapterRecords::Claim> claim = nullptr;  // where records are kept
  std::string stamp = {};                                  // of the files, before they were read
  std::shared_ptr<const void> use = nullptr;               // of an adapter of the store
  std::optional<UploadedAdapter> uploaded = std::nullopt;  // it has just come: our answers, not vLLM's
  std::function<void()> refused = {};

  // The name is free again when the client knows.
  void refuse(const Error& error) { refuse(uploaded ? to_api_error(error) : vllm_error_of(error)); }
  void refuse(const ApiError& error) {
    if (claim) claim->release();
    use.reset();
    if (refused) refused();
    reply->refuse(uploaded ? api_error_of_status(error.status, error.message) : error);
  }
  void done() const {
    if (claim) claim->release();
    if (!uploaded) return reply->text(200, lora_loaded_text(entry.name));
    JsonOut out;
    out.begin_object().key("name").string(entry.name).key("version").string(entry.digest);
    out.key("number").number(entry.number);
    out.key("load_inplace").boolean(uploaded->load_inplace).key("pinned").boolean(uploaded->pinned);
    put_manifest(uploaded->manifest, out);
    reply->json(200, out.end_object().take());
  }
};

void AdapterService::use_store(std::function<void(const std::string&)> remove) {
  remove_stored_ = std::move(remove);
  sources_->set_unused([this](const std::string& digest) { remove_stored_(digest); });
  options_.adapter_store.store->set_in_use([sources = std::weak_ptr(sources_)](const std::string& digest) {
    const auto told = sources.lock();
    return told != nullptr && told->uses(digest);
  });
}

Result<AdapterPath> AdapterService::resolve(const std::string& path) const {
  if (!path.starts_with(kStorePrefix)) return resolve_adapter_path(files_, options_.adapter_roots, path);
  const AdapterStore* const store = options_.adapter_store.store;
  if (store == nullptr)
    return invalid_argument("This server has no adapter store: start it with --adapter-store DIR to load " + path +
                            ".");
  TRY_ASSIGN(const StoreName name, parse_store_name(path));
  const auto manifest = store->find(name.digest);
  if (manifest && !name.weights.empty() && name.weights != manifest->weights_name())
    return not_found("The adapter " + path + " has no file of that name.");
  if (manifest) return AdapterPath{store->path_of(*manifest), store->folder_of(name.digest)};
  if (options_.adapter_store.peers == nullptr) return not_found("The adapter store has no adapter " + path + ".");
  // It is fetched when its files are opened.
  const std::string folder = store->folder_of(name.digest);
  return AdapterPath{name.weights.empty() ? folder : join_path(folder, name.weights), folder};
}

std::string AdapterService::digest_of(const CatalogueEntry& entry) const {
  const AdapterStore* const store = options_.adapter_store.store;
  return store == nullptr || entry.origin != AdapterOrigin::kHttp ? "" : store->digest_of(entry.path);
}

void AdapterService::load(std::shared_ptr<Reply> reply, const LoadLoraRequest& request) {
  begin_load(std::make_shared<Load>(Load{std::move(reply), {}}), request);
}

void AdapterService::load_uploaded(std::shared_ptr<Reply> reply, const UploadedAdapter& uploaded) {
  const auto load = std::make_shared<Load>(Load{std::move(reply), {}});
  load->uploaded = uploaded;
  if (uploaded.fresh) {
    load->refused = [this, digest = uploaded.manifest.digest()] { remove_stored_(digest); };
  }
  begin_load(load, {uploaded.name, store_name(uploaded.manifest), uploaded.load_inplace, uploaded.pinned});
}

void AdapterService::begin_load(const std::shared_ptr<Load>& load, const LoadLoraRequest& request) {
  auto place = resolve(request.path);
  if (!place.ok()) return load->refuse(place.error());
  const auto& names = options_.model_names;
  if (std::find(names.begin(), names.end(), request.name) != names.end()) {
    return load->refuse(
        vllm_error(409, "'" + request.name + "' is the name of the base model; an adapter may not take it."));
  }
  if (const Status status = check_adapter_name(request.name, names); !status.ok())
    return load->refuse(vllm_error(400, status.error().message));
  load->entry = {request.name, place->path, place->root, AdapterOrigin::kHttp, std::time(nullptr), {}, nullptr};
  load->use = sources_->use(digest_of(load->entry));
  load->pinned = request.pinned;
  if (records_) {
    auto claim = records_->claim(request.name);
    if (!claim.ok()) return load->refuse(claim.error());
    load->claim = std::move(*claim);
    if (const Status status = records_->check_base(request.name); !status.ok() && !request.load_inplace)
      return load->refuse(status.error());
    load->stamp = records_->stamp(place->path);
  }
  auto text = texts_.read(load->entry);
  if (!text.ok()) return load->refuse(text.error());
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

// Another source even where the path is the same: its files are other ones, or it is the
// next version all the same. What the name meant goes on beside it while it is kept; its
// pin goes over, unless it was of that version alone.
void AdapterService::load_resolved(const std::shared_ptr<Load>& load) {
  AdapterCommand command{0, AdapterAction::kLoad, {}};
  load->entry.source = catalogue_.new_source();
  const auto& replaced = load->replaced;
  if (replaced && (options_.keep_versions == 1 || !is_pinned_alone(replaced->source)))
    command.replaces = replaced->source;
  command.source = source_spec(load->entry);
  const auto loaded = [this, load](const CommandReply& answer) {
    if (!answer.status.ok()) return load->refuse(answer.status.error());
    load->entry.digest = answer.version;
    if (records_) return record(load, answer.version);
    load->entry.number = catalogue_.new_number(load->entry.name);
    finish(load, answer.version);
  };
  const Status status = context_.dispatcher.command(std::move(command), loaded);
  if (!status.ok()) load->refuse(status.error());
}

// Before the name means it and before the client is told.
void AdapterService::record(const std::shared_ptr<Load>& load, const std::string& version) {
  const CatalogueEntry& entry = load->entry;
  AdapterRecord record;
  record.name = entry.name;
  record.digest = version;
  record.base = records_->base();
  const std::string stored = digest_of(entry);
  const auto manifest = stored.empty() ? std::nullopt : options_.adapter_store.store->find(stored);
  record.path = manifest ? store_name(*manifest) : entry.path;  // wherever the store is next time
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
    load->entry.number = *number;
    finish(load, version);
  };
  const int64_t had = load->replaced ? load->replaced->number : 0;
  const Status taken = records_->registry().put(std::move(record), written, had);
  if (!taken.ok()) undo(*load, taken.error());
}

void AdapterService::undo(Load& load, const Error& error) {
  const auto status = status_of(load.entry.source);
  if (load.replaced && status && status->pinned) {  // the pin went over
    const Status told =
        context_.dispatcher.command({0, AdapterAction::kPin, source_spec(*load.replaced)}, [](const CommandReply&) {});
    if (!told.ok()) context_.log.log(LogLevel::kWarning, "'" + load.entry.name + "' is pinned no longer");
  }
  sources_->keep(load.entry.source).reset();  // let go at once: the engine forgets it
  context_.log.event(LogLevel::kError, "adapter not kept", {{"adapter", load.entry.name}}, error.message);
  load.refuse(Error(error).with_context("The adapter was not loaded, since it could not be kept"));
}

void AdapterService::finish(const std::shared_ptr<Load>& load, const std::string& version) {
  const CatalogueEntry& entry = load->entry;
  texts_.put(entry, load->text);
  if (const Status status = list_loaded(entry, load->replaced.has_value()); !status.ok()) {
    if (records_) forget_record(entry);
    return load->refuse(status.error());
  }
  context_.log.event(LogLevel::kInfo, "adapter loaded over HTTP",
                     {{"adapter", version_name(entry.name, entry.number)}, {"path", entry.path}, {"version", version}});
  if (!load->pinned) return load->done();
  const auto pinned = [load](const CommandReply& last) {
    if (!last.status.ok()) return load->refuse(last.status.error());
    load->done();
  };
  const Status status = context_.dispatcher.command({0, AdapterAction::kPin, source_spec(entry)}, pinned);
  if (!status.ok()) load->refuse(status.error());
}

// What could not be listed is not to come back.
void AdapterService::forget_record(const CatalogueEntry& entry) {
  const auto told = [this, name = entry.name](const Result<int64_t>& removed) {
    if (!removed.ok())
      context_.log.event(LogLevel::kError, "adapter kept", {{"adapter", name}}, removed.error().message);
  };
  const Status taken = records_->registry().remove_version(entry.name, entry.number, told);
  if (!taken.ok()) told(taken.error());
}

// From now on its name means this source. What is not kept beside it is dropped with its
// last keep: requests that run with it, or are on their way, have one.
Status AdapterService::list_loaded(const CatalogueEntry& entry, bool in_place) {
  CatalogueEntry listed = entry;
  listed.keep = sources_->keep(listed.source, digest_of(listed));
  if (!in_place) return catalogue_.add(std::move(listed));
  if (const auto left = catalogue_.replace(std::move(listed)); left) {
    on_gone(*left);
    return {};
  }
  return not_found("The lora adapter '" + entry.name + "' was unloaded while it was loaded.");
}

bool AdapterService::forget(const std::string& name, Dispatcher::ReplyCallback done) {
  if (!records_) {
    const Result<bool> told = forget_listed(name, done);
    if (!told.ok()) done({.status = told.error()});
    return !told.ok() || *told;
  }
  const auto version = parse_version_name(name);
  auto claim = records_->claim(version ? std::string(version->name) : name);
  if (!claim.ok()) {
    done({.status = claim.error()});
    return true;
  }
  const std::vector<AdapterRecord> records = records_->find(name);
  if (records.empty() && !catalogue_.find(name)) return false;
  const auto refuse = [claim = *claim, done](const Error& error) {
    claim->release();
    done({.status = error});
  };
  const auto removed = [this, name, records, refuse, done, claim = *claim](const Result<int64_t>& number) {
    if (!number.ok()) return refuse(number.error());
    const Result<bool> told = forget_listed(name, [claim, done](const CommandReply& answer) {
      claim->release();
      done(answer);
    });
    if (!told.ok()) {
      put_back(records);
      return refuse(told.error());
    }
    claim->release();      // though requests that run with it may hold up the answer
    if (!*told) done({});  // it was not served
  };
  if (records.empty()) {
    removed(0);
    return true;
  }
  Registry& registry = records_->registry();
  const bool all = records.front().name == name;
  const Status taken = all ? registry.remove(name, removed)
                           : registry.remove_version(records.front().name, records.front().number, removed);
  if (!taken.ok()) refuse(taken.error());
  return true;
}

// Of an adapter that the engine has still.
void AdapterService::put_back(const std::vector<AdapterRecord>& records) {
  for (const AdapterRecord& record : records) {
    const auto told = [this, name = record.name](const Result<int64_t>& number) {
      if (!number.ok())
        context_.log.event(LogLevel::kError, "adapter not kept", {{"adapter", name}}, number.error().message);
    };
    const Status taken = records_->registry().put(record, told);
    if (!taken.ok()) told(taken.error());
  }
}

void AdapterService::list_again(const std::vector<CatalogueEntry>& entries) {
  for (const CatalogueEntry& entry : entries) {
    if (!catalogue_.replace(entry)) (void)catalogue_.add(entry);
  }
}

// Answered when the last user of the last version is gone.
Result<bool> AdapterService::forget_listed(const std::string& name, const Dispatcher::ReplyCallback& done) {
  struct Sum {
    std::mutex mutex;
    size_t left = 0;
    CommandReply reply;  // of all
  };
  std::vector<CatalogueEntry> gone = catalogue_.remove(name);
  if (gone.empty()) return false;
  const auto sum = std::make_shared<Sum>();
  sum->left = gone.size();
  const auto unloaded = [this, name, done, sum](const CommandReply& answer) {
    {
      const std::lock_guard lock(sum->mutex);
      sum->reply.bytes_freed += answer.bytes_freed;
      if (!answer.status.ok()) sum->reply.status = answer.status;
      if (--sum->left > 0) return;
    }
    const CommandReply& all = sum->reply;
    if (all.status.ok())
      context_.log.event(LogLevel::kInfo, "adapter unloaded", {{"adapter", name}, {"bytes_freed", all.bytes_freed}});
    done(all);
  };
  // The newest decides. Whether the engine is told of the others now, or with the last
  // keep of theirs, makes no difference to anybody new.
  if (const Status told = sources_->drop(source_spec(gone.back()), unloaded); !told.ok()) {
    list_again(gone);  // the engine has it still
    return told.error();
  }
  texts_.forget(gone.back().source);
  for (size_t i = 0; i + 1 < gone.size(); ++i) {
    texts_.forget(gone[i].source);
    if (!sources_->drop(source_spec(gone[i]), unloaded).ok()) unloaded({});
  }
  const std::string& plain = gone.back().name;
  if (!catalogue_.find(plain)) context_.metrics.adapter_gone(plain);
  on_gone(gone);
  return true;
}

// No request can name them any more.
void AdapterService::on_gone(const std::vector<CatalogueEntry>& gone) {
  {
    const std::lock_guard lock(pins_mutex_);
    for (const CatalogueEntry& entry : gone) pinned_alone_.erase(entry.source);
  }
  std::set<std::string> names;
  for (const CatalogueEntry& entry : gone) {
    names.insert(entry.name);
    if (entry.number > 0) names.insert(version_name(entry.name, entry.number));
  }
  for (const std::string& name : names) {
    if (!defaults_.hold(name) || catalogue_.find(name)) continue;
    context_.log.event(LogLevel::kWarning, "default adapter unloaded", {{"adapter", name}},
                       "Requests that name no adapter are refused until POST /lora-adapters sets others, or an adapter "
                       "of this name is registered again.");
  }
}

void AdapterService::unload(std::shared_ptr<Reply> reply, const std::string& name) {
  const bool known = forget(name, [reply, name](const CommandReply& answer) {
    if (!answer.status.ok()) return reply->refuse(vllm_error_of(answer.status.error()));
    reply->text(200, lora_unloaded_text(name));
  });
  if (!known)
    reply->refuse(vllm_error(
        404, "The lora adapter '" + name.substr(0, 200) + "' cannot be found." + versions_there(name, catalogue_)));
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

}  // namespace loralei
