// SPDX-License-Identifier: Apache-2.0
// AdapterUploads: the adapter store as HTTP shows it: forms with files that go into it as
// they come, blobs that peers fetch, and fetching from them.
//
// Thread: any. What touches the disk runs on threads of its own, a piece at a time, and
// fetches on others.
// Ownership: borrows store and peers, which outlive it. An upload is owned by its
// request; one whose client leaves takes what it brought along.
// Invariants: of a body no more is in memory than a piece. Nothing is in the store before
// the form has ended well.
// Failure: sentences for the client; kOverloaded where too many uploads are under way.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "http/server.h"
#include "serve/metrics.h"
#include "serve/options.h"
#include "serve/reply.h"
#include "serve/text_pool.h"
#include "store/adapter_peers.h"
#include "store/adapter_store.h"
#include "wire/json_out.h"

namespace loralei {

// An adapter that has come, and what its form says of it.
struct UploadedAdapter {
  AdapterManifest manifest;
  bool fresh = true;  // the store did not have it before
  std::string name;   // to be loaded under; empty: not to be loaded
  bool load_inplace = false, pinned = false;
};

class AdapterUploads {
 public:
  explicit AdapterUploads(const AdapterStoreUse& use);
  ~AdapterUploads() { stop(); }

  bool has_store() const { return use_.store != nullptr; }
  // For the body of POST /v1/adapters. With a store.
  std::shared_ptr<BodySink> begin(const HttpHead& head);
  // Of a sink of begin() that has taken a whole body, or as much as it wanted.
  void finish(const std::shared_ptr<BodySink>& sink, std::function<void(Result<UploadedAdapter>)> done);
  void send_blob(std::shared_ptr<Reply> reply, const std::string& sha256, std::string_view range);
  std::string list() const;
  AdapterStoreFigures figures() const;
  // Whether `path` names an adapter of the store ("store:DIGEST") that is not here and
  // might be fetched; then its digest.
  std::string missing(const std::string& path) const;
  // The files at this path of a catalogue's entry are the store's and will be fetched
  // when they are opened.
  bool is_elsewhere(const std::string& path) const;
  void fetch(const std::string& digest, std::function<void(const Status&)> done);
  void remove(const std::string& digest);  // later, and if it is in no use then
  void stop();

 private:
  class Upload;
  struct Sending;
  void send_some(const std::shared_ptr<Sending>& sending);
  bool run(TextPool& pool, std::function<void()> work);
  const AdapterStoreUse use_;
  std::atomic<int> uploads_{0};
  TextPool disk_, fetches_;
};

// "store:DIGEST" or "store:DIGEST/NAME.gguf": what a record says of an adapter of the
// store, wherever that is.
std::string store_name(const AdapterManifest& manifest);
struct StoreName {
  std::string digest, weights;
};
Result<StoreName> parse_store_name(std::string_view path);
// Its files: digest, bytes and names, as JSON members of an object that is open.
void put_manifest(const AdapterManifest& manifest, JsonOut& out);

}  // namespace loralei
