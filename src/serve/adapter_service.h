// SPDX-License-Identifier: Apache-2.0
// AdapterService: registering, loading, unloading and listing adapters. A name means a
// source; replaced it means another, once that is loaded.
//
// Thread: any; answers to commands come on the dispatcher's thread.
// Ownership: borrows everything; outlived by it.
// Invariants: a source is in the catalogue only after the engine has it, and the engine
// knows it as long as a request may name it, unless it is unloaded: that ends in 404.
// HTTP paths lie below the allowed roots.
// Failure: answered with vLLM's status codes and bodies on its two routes,
// OpenAI's shape on ours.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/adapter_sources.h"
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

  // At start, and on rescan: waits for the engine's answer.
  Status add(const std::string& name, const std::string& path, AdapterOrigin origin, const std::string& root);
  // Registers what is new below the roots; names and remarks, a sentence each.
  struct Rescan {
    std::vector<std::string> added;
    std::vector<std::string> notes;
  };
  Rescan rescan();

  void load(std::shared_ptr<Reply> reply, const LoadLoraRequest& request);
  void unload(std::shared_ptr<Reply> reply, const std::string& name);  // vLLM's body
  void remove(std::shared_ptr<Reply> reply, const std::string& name);  // ours, with the bytes freed
  void pin(std::shared_ptr<Reply> reply, const std::string& name, bool pinned);
  std::string list() const;
  // Without the sources that a name meant before and those that it does not mean yet.
  AdapterList shown() const;
  // Of requests that name no adapter.
  const DefaultAdapters& defaults() const { return defaults_; }
  void set_defaults(Reply& reply, const LoraScalesRequest& request);
  // Those whose last load, or whose look at the headers, has failed.
  std::vector<CatalogueEntry> failed() const;

 private:
  // `replaced`: what the name means until then.
  void load_resolved(std::shared_ptr<Reply> reply, CatalogueEntry entry, std::shared_ptr<const TextModel> text,
                     std::optional<CatalogueEntry> replaced, bool pinned);
  Status list_loaded(const CatalogueEntry& entry, bool in_place);
  // Takes the name out of the catalogue and tells the engine; false where
  // it is not there.
  bool forget(const std::string& name, Dispatcher::ReplyCallback done, Status& told);
  const ServeContext context_;
  const ServeOptions& options_;
  Catalogue& catalogue_;
  TextModels& texts_;
  const FileSystem& files_;
  const std::shared_ptr<AdapterSources> sources_;
  DefaultAdapters defaults_;
};

}  // namespace loralei
