// SPDX-License-Identifier: Apache-2.0
// --adapter-store DIR and what goes with it: the folder that keeps adapters by their
// content, and the servers that are asked for those that it lacks: those that are named,
// and with --etcd the members of the fleet.
//
// Thread: one, at start and end. Ownership: owns store and peers, which outlive whatever
// is given their files. Failure: a sentence with the flag.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/fleet_flags.h"
#include "base/log.h"
#include "base/result.h"
#include "serve/options.h"
#include "store/adapter_peers.h"
#include "store/adapter_store.h"

namespace loralei {

struct AdapterStoreFlags {
  std::string folder, max_size, max_upload;  // as typed; empty: not given
  std::vector<std::string> peers;
};
void add_adapter_store_options(CLI::App& command, AdapterStoreFlags& flags, const std::string& group);

class FleetPeers;

struct OpenAdapterStore {
  OpenAdapterStore();
  ~OpenAdapterStore();
  OpenAdapterStore(OpenAdapterStore&&) noexcept;

  std::unique_ptr<FleetPeers> members;             // null: without --etcd
  std::unique_ptr<AdapterStore> store;             // null: there is none
  std::unique_ptr<AdapterPeers> peers;             // null: none are asked
  std::unique_ptr<PeerFiles> files, files_beside;  // of adapters, with peers
  int64_t max_upload_bytes = AdapterStoreUse{}.max_upload_bytes;

  AdapterStoreUse use() const { return {store.get(), peers.get(), max_upload_bytes}; }
  // The folder that adapters are opened below; "": there is none.
  std::string root() const { return store ? store->folder() + "/adapters" : ""; }
  // Of adapters, here or at peers, for who loads them: `here` or what is made of it,
  // which lives as long as this. And for who answers requests and must not wait for a
  // peer.
  const FileSystem& adapter_files(const FileSystem& here);
  const FileSystem& files_of_requests(const FileSystem& here);
};
// `key`: what peers are asked with.
Result<OpenAdapterStore> open_adapter_store(const AdapterStoreFlags& flags, const FleetFlags& fleet,
                                            const std::string& key, LogSink& log);

}  // namespace loralei
