// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/printable.h"
#include "store/etcd_watch.h"
#include "store/registry_value.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr size_t kTextBytesMost = 4096;  // as SQLite's registry
constexpr size_t kNameBytesMost = 1024;

int64_t ms_until(int64_t until_ns) { return std::max<int64_t>(1, (until_ns - SteadyClock().now_ns()) / kNsPerMs); }

std::string random_word() {
  std::random_device device;
  return std::to_string((uint64_t{device()} << 32) | device());
}

class EtcdRegistry final : public Registry {
 public:
  EtcdRegistry(std::unique_ptr<EtcdClient> client, const EtcdRegistryOptions& options, LogSink& log)
      : client_(std::move(client)), options_(options), log_(log), word_(random_word()), queue_(options.queue_limit) {}
  ~EtcdRegistry() override { EtcdRegistry::stop(); }

  Status start();

  std::optional<AdapterRecord> find(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    const auto found = names_.find(name);
    if (found == names_.end() || found->second.value.versions.empty()) return std::nullopt;
    return found->second.value.versions.back();
  }
  std::vector<AdapterRecord> versions(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    const auto found = names_.find(name);
    return found == names_.end() ? std::vector<AdapterRecord>() : found->second.value.versions;
  }
  std::vector<AdapterRecord> list() const override {
    const std::lock_guard lock(mutex_);
    std::vector<AdapterRecord> all;
    for (const auto& [name, known] : names_)
      all.insert(all.end(), known.value.versions.begin(), known.value.versions.end());
    return all;
  }

  Status put(AdapterRecord record, Done done, int64_t had) override;
  Status remove(const std::string& name, Done done) override {
    return take({.name = name, .record = {}, .removed = 0, .done = std::move(done)});
  }
  Status remove_version(const std::string& name, int64_t number, Done done) override {
    CHECK(number > 0);
    return take({.name = name, .record = {}, .removed = number, .done = std::move(done)});
  }
  void stop() override;

 private:
  struct Write {
    std::string name;
    std::optional<AdapterRecord> record;  // to be put; else one removes
    int64_t had = INT64_MAX;              // Registry::put()
    int64_t removed = 0;                  // that version; 0: all
    Done done;
    int64_t until_ns = 0;
    std::string word = {};  // RegistryDone's
  };
  // What is known of a name.
  struct Known {
    int64_t revision = 0;  // at which it was changed; 0: its key is not there
    RegistryValue value;
  };

  Status take(Write write);
  void write_all();
  Result<int64_t> write(const Write& write);
  std::optional<Known> remembered(const std::string& name) const;
  Result<Known> known_of(const EtcdKeyValue& kv) const;
  Result<Known> read(const Write& write);
  void keep(const std::string& name, Known known);  // mutex_ is held
  void keep_own(const std::string& name, Known known);
  void take_news(const EtcdNews& news);
  std::string key_of(const std::string& name) const { return options_.prefix + name; }
  std::string name_of(const std::string& key) const { return key.substr(options_.prefix.size()); }

  const std::unique_ptr<EtcdClient> client_;
  const EtcdRegistryOptions options_;
  LogSink& log_;
  const std::string word_;  // of this process
  mutable std::mutex mutex_;
  std::map<std::string, Known, std::less<>> names_;  // guarded by mutex_, as those below
  size_t kept_ = 0;                                  // of these have versions
  int64_t told_ = 0;                                 // revision that the watch has come to
  std::optional<Error> damage_;                      // that the last list had
  uint64_t writes_ = 0;
  BoundedQueue<Write> queue_;
  std::mutex stop_mutex_;
  bool stopped_ = false;  // guarded by stop_mutex_
  std::thread thread_;
  std::unique_ptr<EtcdWatch> watch_;
};

Status EtcdRegistry::start() {
  EtcdWatchOptions watch;
  watch.prefix = options_.prefix;
  watch.on_news = [this](const EtcdNews& news) { take_news(news); };
  watch.on_state = [this](const Status& status) {
    if (status.ok()) return log_.log(LogLevel::kInfo, "The registry in etcd is up to date.");
    log_.log(LogLevel::kWarning, "The registry in etcd is away: " + status.error().message +
                                     ". What was known of it is served; loads and unloads are refused.");
  };
  TRY_ASSIGN(watch_, EtcdWatch::start(watch, *client_));
  TRY(watch_->wait_for_first(options_.deadline_ms));
  {
    const std::lock_guard lock(mutex_);
    if (damage_) return *damage_;
    if (kept_ > kMaxAdapters)
      return too_large("etcd holds more than " + std::to_string(kMaxAdapters) + " adapters under '" + options_.prefix +
                       "'");
  }
  TRY_ASSIGN(thread_, start_thread([this] { write_all(); }));
  return {};
}

void EtcdRegistry::stop() {
  queue_.close();
  const std::lock_guard lock(stop_mutex_);
  if (std::exchange(stopped_, true)) return;
  if (thread_.joinable()) thread_.join();
  client_->stop();
  if (watch_) watch_->stop();
}

Status EtcdRegistry::put(AdapterRecord record, Done done, int64_t had) {
  for (const std::string* text : {&record.digest, &record.base, &record.path, &record.root, &record.stamp}) {
    if (text->size() > kTextBytesMost)
      return too_large("the registry keeps no path longer than " + std::to_string(kTextBytesMost) + " bytes");
  }
  if (record.name.size() > kNameBytesMost)
    return too_large("the registry keeps no name longer than " + std::to_string(kNameBytesMost) + " bytes");
  {
    const std::lock_guard lock(mutex_);
    if (kept_ >= kMaxAdapters && names_.find(record.name) == names_.end())
      return too_large("more than " + std::to_string(kMaxAdapters) + " adapters are not kept; unload some");
  }
  const std::string name = record.name;
  return take({.name = name, .record = std::move(record), .had = had, .removed = 0, .done = std::move(done)});
}

Status EtcdRegistry::take(Write write) {
  write.until_ns = SteadyClock().now_ns() + options_.deadline_ms * kNsPerMs;
  {
    const std::lock_guard lock(mutex_);
    write.word = word_ + "." + std::to_string(++writes_);
  }
  if (queue_.try_push(std::move(write))) return {};
  if (queue_.size() < queue_.capacity())
    return Error{ErrorCode::kUnavailable, "the server is shutting down, and keeps nothing more"};
  return Error{ErrorCode::kOverloaded, "too many writes to etcd are waiting; try again in a moment"};
}

void EtcdRegistry::write_all() {
  name_this_thread("registry");
  while (const std::optional<Write> next = queue_.pop()) next->done(write(*next));
}

std::optional<EtcdRegistry::Known> EtcdRegistry::remembered(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

Result<EtcdRegistry::Known> EtcdRegistry::known_of(const EtcdKeyValue& kv) const {
  Known known{kv.mod_revision, {}};
  if (kv.mod_revision == 0) return known;
  TRY_ASSIGN(known.value, parse_registry_value(name_of(kv.key), kv.value));
  // Others may keep more.
  auto& versions = known.value.versions;
  const auto most = static_cast<size_t>(options_.keep_versions);
  if (versions.size() > most) versions.erase(versions.begin(), versions.end() - static_cast<std::ptrdiff_t>(most));
  return known;
}

Result<EtcdRegistry::Known> EtcdRegistry::read(const Write& write) {
  TRY_ASSIGN(const EtcdKeyValue kv, client_->get(key_of(write.name), ms_until(write.until_ns)));
  return known_of(kv);
}

// Until nobody else was faster. What is remembered may be old: then the transaction finds
// what is there now.
Result<int64_t> EtcdRegistry::write(const Write& write) {
  std::optional<Known> known = remembered(write.name);
  bool fresh = !known;
  if (!known) {
    TRY_ASSIGN(known, read(write));
  }
  while (true) {
    const int64_t same = write.record ? same_since(known->value, *write.record, write.had) : 0;
    if (same > 0 && fresh) return same;
    if (same > 0) {  // as was told; it may be gone by now
      TRY_ASSIGN(known, read(write));
      fresh = true;
      continue;
    }
    Known next = *known;
    const int64_t number = write.record ? put_version(next.value, *write.record, options_.keep_versions)
                                        : remove_versions(next.value, write.removed);
    if (number == 0 && fresh) return 0;  // nothing to remove
    if (number == 0) {
      TRY_ASSIGN(known, read(write));
      fresh = true;
      continue;
    }
    if (SteadyClock().now_ns() >= write.until_ns)
      return Error{ErrorCode::kUnavailable, "etcd did not answer in time; try again in a moment"};
    add_done(next.value, {write.word, number});
    const std::string key = key_of(write.name);
    EtcdTxn txn;
    txn.compares = {{.key = key, .what = EtcdCompare::What::kModRevision, .revision = known->revision}};
    TRY_ASSIGN(std::string text, registry_value_text(next.value));
    txn.puts = {{key, std::move(text)}};
    txn.reads = {key};
    TRY_ASSIGN(const EtcdTxnAnswer answer, client_->txn(txn, ms_until(write.until_ns)));
    if (answer.succeeded) {
      next.revision = answer.header.revision;
      keep_own(write.name, std::move(next));
      return number;
    }
    TRY_ASSIGN(known, known_of(answer.found.empty() ? EtcdKeyValue{.key = key} : answer.found.front()));
    fresh = true;
    const auto is_it = [&](const RegistryDone& done) { return done.word == write.word; };
    const auto done = std::find_if(known->value.done.begin(), known->value.done.end(), is_it);
    if (done == known->value.done.end()) continue;
    const int64_t told = done->number;
    keep_own(write.name, *std::move(known));
    return told;
  }
}

// Of a name that has no versions the last number is read again where it is needed. Until
// the watch has come to it it stays, lest an older word of the watch is taken for news.
void EtcdRegistry::keep(const std::string& name, Known known) {
  const auto found = names_.find(name);
  if (found != names_.end()) {
    if (found->second.revision > known.revision) return;
    if (!found->second.value.versions.empty()) --kept_;
    names_.erase(found);
  }
  const bool gone = known.value.versions.empty();
  if (gone && known.revision <= told_) return;
  if (!gone) ++kept_;
  names_.emplace(name, std::move(known));
}

void EtcdRegistry::keep_own(const std::string& name, Known known) {
  const std::lock_guard lock(mutex_);
  if (known.revision > told_) keep(name, std::move(known));  // else the watch has told what came of it
}

void EtcdRegistry::take_news(const EtcdNews& news) {
  const std::lock_guard lock(mutex_);
  if (news.anew) {
    names_.clear();
    kept_ = 0;
  }
  if (news.listed) damage_.reset();
  told_ = news.revision;
  for (const EtcdEvent& event : news.events) {
    EtcdKeyValue gone;
    gone.key = event.kv.key;
    auto known = known_of(event.removed ? gone : event.kv);
    if (known.ok()) {
      known->revision = event.kv.mod_revision;
      keep(name_of(event.kv.key), *std::move(known));
      continue;
    }
    damage_ = known.error();
    log_.log(LogLevel::kError, known.error().message + ". It is not used; remove it from etcd, or put it right.");
  }
}

}  // namespace

Result<std::unique_ptr<Registry>> open_etcd_registry(const EtcdRegistryOptions& options, LogSink& log) {
  CHECK(options.keep_versions >= 1 && options.queue_limit >= 1 && options.prefix.ends_with('/'));
  TRY_ASSIGN(std::unique_ptr<EtcdClient> client, EtcdClient::start(options.etcd, log));
  auto registry = std::make_unique<EtcdRegistry>(std::move(client), options, log);
  TRY(registry->start());
  return std::unique_ptr<Registry>(std::move(registry));
}

}  // namespace loralei
