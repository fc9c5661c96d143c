// SPDX-License-Identifier: Apache-2.0
#include "apps/adapter_store_flags.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "apps/key_flags.h"
#include "apps/options.h"
#include "apps/replica_url.h"

namespace loralei {

void add_adapter_store_options(CLI::App& command, AdapterStoreFlags& flags, const std::string& group) {
  command
      .add_option(
          "--adapter-store", flags.folder,
          "folder that keeps adapters uploaded to POST /v1/adapters, by their content; made where there is none")
      ->check([](const std::string& path) {
        return is_blank(path) ? "the path is empty; name a folder, or leave the option out" : "";
      })
      ->group(group);
  command.add_option("--adapter-store-max", flags.max_size, "the most that it may take (default: no limit)")
      ->group(group);
  command.add_option("--max-upload", flags.max_upload, "largest upload (default 4GiB)")->group(group);
  command
      .add_option("--adapter-peer", flags.peers,
                  "http://HOST:PORT of a server that is asked for adapters that the store lacks; may be given often")
      ->allow_extra_args(false)
      ->group(group);
}

// Members of the fleet as etcd tells of them. One of them may be this server, which says
// that it has nothing of what it asks for.
class FleetPeers {
 public:
  Status start(const MembershipOptions& options, LogSink& log) {
    MemberListeners listeners;
    listeners.joined = [this](const FleetMember& member) {
      const std::lock_guard lock(mutex_);
      peers_.push_back(member.address);
    };
    listeners.left = [this](const FleetMember& member) {
      const std::lock_guard lock(mutex_);
      if (const auto found = std::find(peers_.begin(), peers_.end(), member.address); found != peers_.end())
        peers_.erase(found);
    };
    TRY_ASSIGN(watch_, MemberWatch::start(options, std::move(listeners), log));
    return {};
  }
  std::vector<UpstreamAddress> peers() const {
    const std::lock_guard lock(mutex_);
    return peers_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<UpstreamAddress> peers_;
  std::unique_ptr<MemberWatch> watch_;  // last: it tells of the others
};

OpenAdapterStore::OpenAdapterStore() = default;
OpenAdapterStore::~OpenAdapterStore() = default;
OpenAdapterStore::OpenAdapterStore(OpenAdapterStore&&) noexcept = default;

const FileSystem& OpenAdapterStore::adapter_files(const FileSystem& here) {
  if (!peers) return here;
  files = std::make_unique<PeerFiles>(here, *store, *peers);
  return *files;
}

const FileSystem& OpenAdapterStore::files_of_requests(const FileSystem& here) {
  if (!peers) return here;
  files_beside = std::make_unique<PeerFiles>(here, *store, *peers, false);
  return *files_beside;
}

Result<OpenAdapterStore> open_adapter_store(const AdapterStoreFlags& flags, const FleetFlags& fleet,
                                            const std::string& key, LogSink& log) {
  OpenAdapterStore open;
  if (flags.folder.empty()) {
    for (const auto& [flag, given] :
         {std::pair("--adapter-store-max", !flags.max_size.empty()),
          std::pair("--max-upload", !flags.max_upload.empty()), std::pair("--adapter-peer", !flags.peers.empty())})
      if (given) return invalid_argument(std::string(flag) + " needs --adapter-store DIR, where adapters are kept.");
    return open;
  }
  AdapterStore::Options options{.folder = flags.folder};
  TRY(parse_size("--adapter-store-max", flags.max_size, options.max_bytes));
  TRY(parse_size("--max-upload", flags.max_upload, open.max_upload_bytes));
  std::vector<UpstreamAddress> peers;
  for (const std::string& text : flags.peers) {
    TRY_ASSIGN(UpstreamAddress peer, parse_replica_url(text));
    peers.push_back(std::move(peer));
  }
  auto store = AdapterStore::open(options);
  if (!store.ok()) return std::move(store).error().with_context("--adapter-store");
  open.store = std::move(*store);
  TRY_ASSIGN(const MembershipOptions members, membership_options(fleet));
  if (!members.etcd.empty()) {
    open.members = std::make_unique<FleetPeers>();
    TRY(open.members->start(members, log));
  }
  if (peers.empty() && !open.members) return open;
  const auto all = [peers, found = open.members.get()] {
    std::vector<UpstreamAddress> known = peers;
    if (found == nullptr) return known;
    for (const UpstreamAddress& peer : found->peers()) {
      if (std::find(known.begin(), known.end(), peer) == known.end()) known.push_back(peer);
    }
    return known;
  };
  open.peers = std::make_unique<AdapterPeers>(*open.store, AdapterPeersOptions{.peers = all, .key = key}, log);
  return open;
}

}  // namespace loralei
