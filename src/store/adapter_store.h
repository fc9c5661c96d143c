// SPDX-License-Identifier: Apache-2.0
// AdapterStore: adapters in a folder, each under the SHA-256 of what it is, so that none
// is ever changed and the same one is there once.
//
//   DIR/blobs/SHA256          a file of an adapter, or its manifest (adapter_manifest.h)
//   DIR/adapters/DIGEST/      the files again (hard links) under their own names: what a
//                             loader is given
//   DIR/incoming/             on the way in; what was fetched in part is gone on with
//
// Thread-safe. A draft is one thread's at a time.
// Ownership: one process at a time has the folder, by a lock that goes with it. Drafts
// borrow the store.
// Invariants: an adapter is there whole or not at all, after a crash too; what is in it
// has the digests that it says, which were checked before it got there. Nothing is
// written outside of the folder, whatever names are asked for. Files that somebody has
// open go on being read after remove().
// Failure: sentences with the path. kOverloaded where max_bytes are taken by adapters
// that are in use.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "store/adapter_manifest.h"
#include "sys/file.h"
#include "sys/write_file.h"

namespace loralei {

class AdapterStore;

// An adapter on its way into the store, a file after the other.
class AdapterDraft {
 public:
  AdapterDraft(AdapterDraft&&) = delete;
  ~AdapterDraft();  // what did not get in goes, but for parts that can be gone on with

  // The next file, whatever is in it.
  Status begin(const std::string& name);
  // One that is known: answers how much of it is here already, to be gone on behind;
  // all of it where another adapter has it, too.
  Result<int64_t> begin_known(const StoredFile& file);
  Status write(std::span<const std::byte> bytes);
  // kCorrupt where it is another than the one that is known: then its part goes.
  Status end();
  int64_t bytes() const;                                           // of all files so far
  const std::vector<StoredFile>& files() const { return files_; }  // that have ended
  // Into the store.
  Result<AdapterManifest> commit();

 private:
  friend class AdapterStore;
  struct Open {
    StoredFile file;
    bool known = false, whole = false;
    bool resumable = false;  // its path says what it is a part of
    std::string path;        // on its way
    std::optional<WriteFile> out;
    Sha256 sha;
    int64_t bytes = 0;
    int64_t granted_bytes = 0;  // of the store's
  };
  explicit AdapterDraft(AdapterStore& store) : store_(store) {}
  Status open_file(Open& file, bool resumes);
  void close_file(bool keep_part);

  AdapterStore& store_;
  std::unique_ptr<Open> open_;  // null: between two files
  std::vector<StoredFile> files_;
};

class AdapterStore {
 public:
  struct Options {
    std::string folder;
    int64_t max_bytes = 0;  // of all blobs together; 0: no limit but the disk
  };
  // Makes the folder where it is not there, and clears what was left on the way.
  static Result<std::unique_ptr<AdapterStore>> open(const Options& options);
  ~AdapterStore();

  const std::string& folder() const { return folder_; }  // real
  // Whether an adapter is used, so that it may not go to make room for another. Called
  // with no lock held; set before the first upload.
  void set_in_use(std::function<bool(const std::string& digest)> in_use) { in_use_ = std::move(in_use); }

  std::optional<AdapterManifest> find(const std::string& digest) const;
  std::vector<AdapterManifest> list() const;  // by digest
  // What a loader is given, whether or not it is there now: folder or .gguf file.
  std::string path_of(const AdapterManifest& manifest) const;
  std::string folder_of(const std::string& digest) const;
  // The digest of the adapter that `path` is, or lies in; "": it is not of this store.
  std::string digest_of(const std::string& path) const;
  // A file or a manifest, to be sent to a peer. kNotFound.
  Result<std::unique_ptr<File>> blob(const std::string& sha256) const;
  bool has_blob(const std::string& sha256) const;

  std::unique_ptr<AdapterDraft> draft();
  // And those of its blobs that no other adapter has. One that is not there is removed.
  Status remove(const std::string& digest);
  Status remove_unused(const std::string& digest);  // unless it is in use

  struct Stats {
    size_t adapters = 0;
    int64_t bytes = 0;
  };
  Stats stats() const;

 private:
  friend class AdapterDraft;
  AdapterStore(std::string folder, int64_t max_bytes, WriteFile lock);
  Status read_folder();
  Status clear_incoming() const;
  std::string blob_path(const std::string& sha256) const { return folder_ + "/blobs/" + sha256; }
  std::string new_path();           // of something on its way
  Status take_room(int64_t bytes);  // for so many more; makes it
  void give_room(int64_t bytes);
  bool drop_one();  // the one that was used least lately and is in no use
  // A blob that is there is kept for a draft, until it lets go.
  bool keep_blob(const std::string& sha256);
  // Takes a file in as a blob, kept for a draft; its bytes are granted.
  Status take_in(WriteFile& file, const StoredFile& as);
  void let_go(const std::vector<StoredFile>& files);
  Status put(const AdapterManifest& manifest);
  Status link_files(const AdapterManifest& manifest, const std::string& folder) const;
  // Under mutex_: what no adapter and no draft has goes.
  void drop_blob(const std::string& sha256);

  struct Held {
    AdapterManifest manifest;
    uint64_t last_use = 0;
  };
  const std::string folder_;
  const int64_t max_bytes_;
  const WriteFile lock_;
  std::function<bool(const std::string&)> in_use_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Held> held_;  // by digest
  std::map<std::string, int> blobs_;          // those that are there: how many adapters and drafts have each
  int64_t bytes_ = 0;                         // of blobs, and of what is on its way
  mutable uint64_t uses_ = 0;
  uint64_t paths_ = 0;
};

}  // namespace loralei
