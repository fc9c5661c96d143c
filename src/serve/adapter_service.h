// SPDX-License-Identifier: Apache-2.0
// AdapterService: registering, loading, unloading and listing adapters; keeps the
// catalogue and the engine's registry in step.
//
// Thread: any; answers to commands come on the dispatcher's thread.
// Ownership: borrows everything; outlived by it.
// Invariants: a name is in the catalogue only after the engine has it, and leaves it
// before the engine forgets it, so that a request which found the name finds it in the
// engine too, but for a race that ends in 404; commands about names reach the engine
// in the order in which the catalogue was looked at for them. HTTP paths lie below
// the allowed roots.
// Failure: answered with vLLM's status codes and bodies on its two routes,
// OpenAI's shape on ours.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
      : context_(context), options_(options), catalogue_(catalogue), texts_(texts), files_(files) {}

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
  // Of requests that name no adapter.
  const DefaultAdapters& defaults() const { return defaults_; }
  void set_defaults(Reply& reply, const LoraScalesRequest& request);
  // Those whose last load, or whose look at the headers, has failed.
  std::vector<CatalogueEntry> failed() const;

 private:
  void load_resolved(std::shared_ptr<Reply> reply, CatalogueEntry entry, std::shared_ptr<const TextModel> text,
                     bool known, bool in_place, bool pinned);
  // Takes the name out of the catalogue and tells the engine; false where
  // it is not there.
  bool forget(const std::string& name, Dispatcher::ReplyCallback done, Status& told);
  const ServeContext context_;
  const ServeOptions& options_;
  Catalogue& catalogue_;
  TextModels& texts_;
  const FileSystem& files_;
  DefaultAdapters defaults_;
  std::mutex order_;  // held from a look at the catalogue until the command that follows from it is queued
};

}  // namespace loralei
