// SPDX-License-Identifier: Apache-2.0
// AdapterService: registering, loading, unloading and listing adapters. A name means a
// source. Loaded over HTTP once more it means another, its next version, and the one
// before is "name@1" as long as it is kept. With a registry what was loaded over HTTP is
// there again after a restart.
//
//   adapter_service.cc   at start, and what is shown
//   adapter_changes.cc   loads and unloads over HTTP
//
// Thread: any; answers to commands come on the dispatcher's thread, those to writes on
// the registry's. restore() before any of the others is called by a request.
// Ownership: borrows everything; outlived by it.
// Invariants: a source is in the catalogue only after the engine has it, and the engine
// knows it as long as a request may name it, unless it is unloaded: that ends in 404.
// HTTP paths lie below the allowed roots. A load is answered well only when its record is
// written, and an unload when the record is gone; a name means a source only after that.
// A version is served with the files that it was loaded from, or not at all: the engine
// is told their digest.
// Failure: a record that cannot be written undoes the load. Errors are answered with
// vLLM's status codes and bodies on its two routes, OpenAI's shape on ours.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "serve/adapter_paths.h"
#include "serve/adapter_records.h"
#include "serve/adapter_sources.h"
#include "serve/adapter_uploads.h"
#include "serve/context.h"
#include "serve/default_adapters.h"
#include "serve/options.h"
#include "serve/reply.h"
#include "serve/text_model.h"
#include "store/catalogue.h"
#include "sys/file.h"
#include "wire/requests.h"
#include "wire/responses.h"

namespace loralei {

class AdapterService {
 public:
  AdapterService(ServeContext context, const ServeOptions& options, Catalogue& catalogue, TextModels& texts,
                 const FileSystem& files)
      : context_(context),
        options_(options),
        catalogue_(catalogue),
        texts_(texts),
        files_(files),
        sources_(std::make_shared<AdapterSources>(context.dispatcher, texts)) {}
  // The files of adapters of the store go when nothing has them any more, by `remove`.
  // Before anything is loaded.
  void use_store(std::function<void(const std::string& digest)> remove);

  // At start, and on rescan: waits for the engine's answer.
  Status add(const std::string& name, const std::string& path, AdapterOrigin origin, const std::string& root);
  // Registers what is new below the roots; names and remarks, a sentence each.
  struct Rescan {
    std::vector<std::string> added;
    std::vector<std::string> notes;
  };
  Rescan rescan();
  // Once, at start: registers what the registry holds, as far as nothing has its name
  // yet. Where its files are others than those that were loaded, a note says so, and
  // requests are told. From then on loads and unloads are kept there.
  Rescan restore(RegistryUse use);
  void stop_records();  // what was taken is written and answered, and nothing more is

  // A path below the roots, or "store:DIGEST" of an adapter that the store has.
  void load(std::shared_ptr<Reply> reply, const LoadLoraRequest& request);
  // The same of what has just come, with our answer and errors: JSON members of an object
  // that is open. Where it is refused and was not here before, it goes again.
  void load_uploaded(std::shared_ptr<Reply> reply, const UploadedAdapter& uploaded);
  // Of a name all versions, or the one of "name@3".
  void unload(std::shared_ptr<Reply> reply, const std::string& name);  // vLLM's body
  void remove(std::shared_ptr<Reply> reply, const std::string& name);  // ours, with the bytes freed
  void pin(std::shared_ptr<Reply> reply, const std::string& name, bool pinned);
  // Into memory now, fetched from a peer before where its files are elsewhere.
  void prefetch(std::shared_ptr<Reply> reply, const std::string& name);
  std::string list() const;
  // Without the sources that a name meant before and those that it does not mean yet.
  AdapterList shown() const;
  std::string name_of(const std::string& version) const;  // of the first that has it; empty: none has
  // Of requests that name no adapter.
  const DefaultAdapters& defaults() const { return defaults_; }
  void set_defaults(Reply& reply, const LoraScalesRequest& request);
  // Those whose last load, or whose look at the headers, has failed.
  std::vector<CatalogueEntry> failed() const;

 private:
  struct Load;
  void begin_load(const std::shared_ptr<Load>& load, const LoadLoraRequest& request);
  Result<AdapterPath> resolve(const std::string& path) const;
  std::string digest_of(const CatalogueEntry& entry) const;  // in the store; "": it is elsewhere
  Result<std::string> ask(AdapterCommand command);           // answers the version
  // Whether it is listed now, and what is wrong with it.
  struct Restored {
    bool listed = false;
    Status status;
  };
  Restored restore_one(const AdapterRecord& record);
  Status list_restored(CatalogueEntry& entry);
  void list_lost(const std::vector<AdapterRecord>& records);
  void load_resolved(const std::shared_ptr<Load>& load);
  void record(const std::shared_ptr<Load>& load, const std::string& version);
  void undo(Load& load, const Error& error);
  void finish(const std::shared_ptr<Load>& load, const std::string& version);
  Status list_loaded(const CatalogueEntry& entry, bool in_place);
  // Takes the name out of registry and catalogue and tells the engine; false, and `done`
  // is not called, where it is in neither.
  bool forget(const std::string& name, Dispatcher::ReplyCallback done);
  // The same of the catalogue alone; an error: it is listed still.
  Result<bool> forget_listed(const std::string& name, const Dispatcher::ReplyCallback& done);
  void list_again(const std::vector<CatalogueEntry>& entries);
  void forget_record(const CatalogueEntry& entry);
  void put_back(const std::vector<AdapterRecord>& records);
  void on_gone(const std::vector<CatalogueEntry>& gone);
  std::shared_ptr<const AdapterStatus> status_of(AdapterSourceId source) const;  // null: none
  bool is_pinned_alone(AdapterSourceId source);
  ApiError no_such_adapter(const std::string& name) const;

  const ServeContext context_;
  const ServeOptions& options_;
  Catalogue& catalogue_;
  TextModels& texts_;
  const FileSystem& files_;
  const std::shared_ptr<AdapterSources> sources_;
  std::function<void(const std::string&)> remove_stored_;
  DefaultAdapters defaults_;
  std::mutex pins_mutex_;
  std::set<AdapterSourceId> pinned_alone_;   // by "name@3": the pin stays with that version; guarded by pins_mutex_
  std::unique_ptr<AdapterRecords> records_;  // null: none are kept
};

}  // namespace loralei
