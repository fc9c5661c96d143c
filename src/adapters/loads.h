// SPDX-License-Identifier: Apache-2.0
// AdapterLoads: the life of a load. Queued -> stamp looked at -> room granted -> read ->
// installed or failed.
//
// Thread: the engine's alone; file work happens through `start_load` and comes back by
// on_done(). Ownership: owns the jobs and their grants; borrows the rest. Invariants
// (check()): bytes are granted before they are read; at most loads_max jobs are in
// progress, and one ahead; a source is listed here while it is being loaded.
//
// The size in memory is not known before the file is parsed: room for the file's size is
// granted first (with int8 for the least it can take, which is less than the file), and
// once more for exactly what is needed where the loader says that it is more. Where a
// load can never fit it is refused with the numbers. A failure that lies in the file is
// remembered with the stamp it was seen at: a later request has the stamp looked at again
// and gets the same answer at once unless it changed; one of the system (a read, its
// memory) ends those who waited, and the next request tries again. What a command asks
// for is always tried.
//
// With RegistryOptions::early a version is arriving from the moment at which its memory
// is there, and who asks for it so may use it: it is the entry's `arriving` until it is
// installed. The job holds its grant. Where the load fails, or the source is dropped
// meanwhile, those who have it pinned keep it, and the grant goes over to it when the
// load has ended.
//
// A load ahead is one that nobody waits for yet (adapters/foresight.h). It begins while
// there is no other, and its job is one beside those of loads_max, so that no other waits
// for its turn. It takes room that is free, or that is had by those of whom less is
// expected. Where it finds none, or another load comes before it reads, it is given up.
// As soon as somebody wants it, it is a load like others. What it reads into is taken
// until it has ended: only a load to which all idle adapters together give too little
// room waits for that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "adapters/cache.h"
#include "adapters/entries.h"
#include "adapters/foresight.h"
#include "adapters/load_pool.h"
#include "adapters/replies.h"
#include "adapters/versions.h"
#include "base/clock.h"
#include "base/log.h"
#include "memory/ledger.h"

namespace loralei {

// Each keeps a descriptor open, of which there are few: what is loaded while as many
// versions are in memory lies in memory of this process alone, and the log says so once.
inline constexpr size_t kSharedVersionsMost = 64;

struct RegistryOptions {
  int32_t loads_max = 2;
  int32_t rank_max = 0;  // 0: the limit of limits.h; larger adapters are refused
  int32_t sources_max = 65536;
  bool strict = true;
  bool int8 = false;                              // AdapterLoadOptions::int8
  bool shared = false;                            // AdapterLoadOptions::shared, of up to kSharedVersionsMost
  KeepOrder keep;                                 // who leaves first for another's room
  Shelf* beside = nullptr;                        // that loads may take of; outlives the registry
  bool foresees = false;                          // by AdapterForesight, and loads ahead
  bool early = false;                             // versions may be used before their last layer is there
  std::function<void(AdapterVersionId)> dropped;  // told of every version that leaves memory, just before; may be empty
};

class AdapterLoads {
 public:
  // start_load takes a job or says false (busy; tried again at the next pump()).
  AdapterLoads(const Clock& clock, LogSink& log, const RegistryOptions& options,
               std::function<bool(LoadJob&&)> start_load, AdapterEntries& entries, AdapterVersions& versions,
               AdapterCache& cache, AdapterForesight& foresight, RegistryReplies& replies)
      : clock_(clock),
        log_(log),
        options_(options),
        start_load_(std::move(start_load)),
        entries_(entries),
        versions_(versions),
        cache_(cache),
        foresight_(foresight),
        replies_(replies) {}
  AdapterLoads(const AdapterLoads&) = delete;
  AdapterLoads& operator=(const AdapterLoads&) = delete;

  void want(AdapterEntry& entry);  // unless its load is under way
  // Before anybody does; while there is no other load. Nothing where it is in memory, or
  // the last load has failed.
  void want_ahead(AdapterEntry& entry);
  // What was to be replaced, where it gave its room to a load that came to nothing.
  void bring_back(AdapterSourceId source);
  // Starts what can be started, in the order of who wants it. What nobody waits for any
  // more, and was not begun, is given up.
  void pump();
  void on_begun(LoadBegun&& begun);  // of a read, before its end
  void on_done(LoadDone&& done);
  // The source is dropped; its load, if one is under way, installs nothing. True where
  // the command's ticket is answered when the read has ended.
  bool leave(AdapterEntry& entry, uint64_t ticket);
  // What somebody has seen who looked at the files before anybody asked for them: a
  // failure stands as if a load had met it (and is counted and logged by nobody here),
  // and one whose files have changed since is over. Nothing where a load has told more,
  // or is under way.
  void checked(const HeaderCheck& check);
  void fail_outstanding(const Error& error);  // the tickets of leave()

  std::span<AdapterEntry* const> active() const { return active_; }  // being loaded
  bool loading() const { return !active_.empty() || !jobs_.empty(); }
  bool waits_for_room() const { return !active_.empty() && jobs_.empty(); }  // behind pump()
  bool is_impatient() const;
  uint64_t serial() const { return serial_; }  // of failures
  uint64_t loads() const { return loads_; }
  int64_t load_bytes() const { return load_bytes_; }  // in memory, of those that ended well
  uint64_t failures() const { return failures_; }
  uint64_t loads_ahead() const { return loads_ahead_; }  // that ended well
  void check() const;

 private:
  struct Job {
    AdapterEntry* entry = nullptr;  // null: the source was dropped meanwhile
    AdapterSourceId source;
    bool read = false;
    bool ahead = false;  // begun while nobody waited for it
    Grant grant;
    AdapterVersionId version;
    int64_t begin_ns = 0;
    std::vector<uint64_t> unload_tickets;
  };

  void finish(AdapterEntry& entry);
  void settle(AdapterEntry& entry);
  bool is_given_up(const AdapterEntry& entry) const;
  static bool is_begun(const AdapterEntry& entry) { return entry.job != 0; }
  static bool is_ahead(const AdapterEntry& entry) { return entry.ahead && entry.order() == UINT64_MAX; }
  bool has_turn(const AdapterEntry& entry) const;
  void advance_ahead(AdapterEntry& entry);
  std::optional<int64_t> advance_room(AdapterEntry& entry);
  bool start_job(AdapterEntry& entry, bool read, Grant grant);
  void tell_of_unshared();
  void on_stamp(AdapterEntry& entry, const Result<FileStamp>& stamp);
  void on_read(AdapterEntry& entry, Job& job, LoadDone& done);
  void ask_again(AdapterEntry& entry, int64_t bytes_needed, int64_t granted_bytes);
  void end_of_dropped(Job& job, LoadDone& done);
  void give_up_arriving(AdapterEntry& entry, Job& job);
  Status admissible(const Job& job, const Adapter& adapter) const;
  void install(AdapterEntry& entry, Job& job, std::shared_ptr<const Adapter> adapter);
  void fail(AdapterEntry& entry, Error error, const FileStamp* stamp);
  void remember(AdapterEntry& entry, Error error, const FileStamp* stamp);

  const Clock& clock_;
  LogSink& log_;
  const RegistryOptions options_;
  const std::function<bool(LoadJob&&)> start_load_;
  AdapterEntries& entries_;
  AdapterVersions& versions_;
  AdapterCache& cache_;
  AdapterForesight& foresight_;
  RegistryReplies& replies_;
  std::unordered_map<uint64_t, Job> jobs_;
  std::vector<AdapterEntry*> active_;
  std::vector<AdapterEntry*> turn_;  // of pump(): active_ as it began
  uint64_t serial_ = 0, next_job_ = 1, loads_ = 0, failures_ = 0, loads_ahead_ = 0;
  int32_t jobs_ahead_ = 0;  // of jobs_
  int64_t load_bytes_ = 0;
  bool told_of_unshared_ = false;
};

}  // namespace loralei
