// SPDX-License-Identifier: Apache-2.0
// For tests of the registry and the load pool: a registry over files that exist only
// here.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "adapters/registry.h"
#include "adapters/source_test_util.h"
#include "base/log.h"

namespace loralei::testing_support {

// Files that exist only here, and jobs that end when the test says so.
struct RegistryWorld {
  struct File {
    FileStamp stamp;
    int64_t bytes = 0;  // in memory
    std::optional<Error> broken;
    std::vector<std::string> doubts = {};
  };
  std::map<std::string, File> files;
  std::deque<LoadJob> jobs;
  Ledger own_ledger{1 << 20};
  Ledger& ledger;
  ManualClock clock;
  struct Log final : LogSink {
    std::vector<std::string> warnings;
    void log(LogLevel level, std::string_view message) override {
      if (level == LogLevel::kWarning) warnings.emplace_back(message);
    }
  } log;
  uint64_t order = 0;
  std::mutex asked_mutex;    // several threads may read
  AdapterLoadOptions asked;  // of the last read
  std::map<std::string, int> reads;
  struct Begun {
    std::shared_ptr<Adapter> adapter;
    std::shared_ptr<Arrivals> arrivals;
  };
  std::map<uint64_t, Begun> begun;  // by version: handed out early, and their jobs have not ended
  std::map<AdapterSourceId, std::string> shown;
  std::unique_ptr<AdapterRegistry> registry;

  // `shared`: the ledger, where others have a part of it; null: one of its own.
  explicit RegistryWorld(int64_t adapter_bytes = 1 << 20, RegistryOptions options = {}, Ledger* shared = nullptr)
      : ledger(shared != nullptr ? *shared : own_ledger) {
    ledger.set_cap(MemoryUse::kAdapters, adapter_bytes);
    registry = std::make_unique<AdapterRegistry>(ledger, clock, log, options, [this](LoadJob&& job) {
      jobs.push_back(std::move(job));
      return true;
    });
  }

  void put(const std::string& path, int64_t bytes, uint64_t inode = 1) {
    files[path] = {{inode, bytes, 0}, bytes, std::nullopt, {}};
  }

  AdapterSource source() {
    return {[this](const std::string& path) -> Result<FileStamp> {
              const auto found = files.find(path);
              if (found == files.end()) return not_found(path + " does not exist");
              return found->second.stamp;
            },
            [this](const std::string& path, const AdapterLoadOptions& options,
                   AdapterVersionId version) -> Result<AdapterLoad> {
              {
                const std::lock_guard lock(asked_mutex);
                asked = options;
                ++reads[path];
              }
              const File& file = files.at(path);
              if (file.broken) return *file.broken;
              if (file.bytes > options.bytes_max) return AdapterLoad{.bytes_needed = file.bytes};
              const auto found = begun.find(version.value);
              auto adapter = found != begun.end() ? found->second.adapter : without_numbers(file, version);
              adapter->doubts = file.doubts;
              adapter->digest[0] = static_cast<uint8_t>(file.stamp.inode);
              TRY(check_digest(adapter->digest, options.expected_digest, path));
              return AdapterLoad{.adapter = std::move(adapter)};
            }};
  }

  static std::shared_ptr<Adapter> without_numbers(const File& file, AdapterVersionId version) {
    auto adapter = std::make_shared<Adapter>();
    adapter->version = version;
    adapter->bytes = file.bytes;
    adapter->rank_max = 8;
    return adapter;
  }

  // Hands one out early, as its loader does when its memory is there; false where the
  // job is none that could, or has done so.
  bool begin_one(size_t index = 0) {
    const LoadJob& job = jobs.at(index);
    if (!job.early) return false;
    const File& file = files.at(job.path);
    if (file.bytes > job.options.bytes_max || begun.contains(job.version.value)) return false;
    Begun& one = begun[job.version.value];
    one = {without_numbers(file, job.version), std::make_shared<Arrivals>(2)};
    registry->on_load_begun({job.id, {one.adapter, one.arrivals, {1, 1}}});
    registry->check();
    return true;
  }

  // Ends one job; false when none is in progress.
  bool finish_one(size_t index = 0) {
    if (jobs.empty()) return false;
    LoadJob job = std::move(jobs[index]);
    jobs.erase(jobs.begin() + static_cast<int64_t>(index));
    LoadDone done = run_load_job(source(), job);
    if (const auto found = begun.find(job.version.value); found != begun.end()) {
      Arrivals& arrivals = *found->second.arrivals;
      if (!done.load.ok()) arrivals.fail(done.load.error());
      while (!arrivals.failed() && !arrivals.whole()) arrivals.advance();
      begun.erase(found);
    }
    registry->on_load_done(std::move(done));
    registry->check();
    return true;
  }
  // One request that tries until it is answered.
  AcquireOutcome use(const std::string& name, std::vector<AdapterPin>& pins, Error& error) {
    return use(std::vector<std::string>{name}, pins, error);
  }
  AcquireOutcome use(const std::vector<std::string>& names, std::vector<AdapterPin>& pins, Error& error) {
    const uint64_t since = registry->serial(), mine = ++order;
    for (int round = 0; round < 20; ++round) {
      registry->begin_round();
      const auto outcome = acquire(names, mine, since, pins, error);
      if (outcome != AcquireOutcome::kWaiting) return outcome;
      registry->pump();
      registry->check();
      (void)finish_one();
    }
    return AcquireOutcome::kWaiting;
  }
  AcquireOutcome acquire(const std::vector<std::string>& names, uint64_t order, uint64_t since,
                         std::vector<AdapterPin>& pins, Error& error, bool early = false) {
    std::vector<AdapterSourceId> sources;
    for (const std::string& name : names) sources.push_back(source_of(name));
    return early ? registry->acquire_early({sources, {}}, order, since, pins, error)
                 : registry->acquire(sources, order, since, pins, error);
  }
  std::vector<RegistryReply> replies() {
    std::vector<RegistryReply> result;
    registry->take_replies(result);
    return result;
  }
  // What take_changes() has told so far is what for_each() says of all.
  void expect_changes_tell_all() {
    const auto text_of = [](const RegistryView& view) {
      return view.source->path + ' ' + std::to_string(static_cast<int>(view.state)) + ' ' + std::to_string(view.bytes) +
             ' ' + std::to_string(view.users) + ' ' + std::to_string(view.waiting) + ' ' + std::to_string(view.uses) +
             ' ' + std::to_string(view.pinned) + ' ' + (view.error != nullptr ? view.error->message : "") + ' ' +
             (view.adapter != nullptr ? std::to_string(view.adapter->version.value) : "");
    };
    std::map<AdapterSourceId, std::string> all;
    registry->take_changes([&](AdapterSourceId source) { shown.erase(source); },
                           [&](const RegistryView& view) { shown[view.source->id] = text_of(view); });
    registry->for_each([&](const RegistryView& view) { all[view.source->id] = text_of(view); });
    EXPECT_EQ(shown, all);
    ledger.check();
    EXPECT_FALSE(registry->has_changes());
  }
  void settle() {
    for (int i = 0; i < 20; ++i) {
      registry->begin_round();
      registry->pump();
      if (!finish_one()) return;
    }
  }
};

}  // namespace loralei::testing_support
