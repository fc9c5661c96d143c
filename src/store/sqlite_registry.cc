// SPDX-License-Identifier: Apache-2.0
#include "store/sqlite_registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/sha256.h"
#include "store/sqlite_database.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr size_t kCommittedTogether = 64;

constexpr const char* kTable =
    "CREATE TABLE versions (name TEXT NOT NULL, number INTEGER NOT NULL, gone INTEGER NOT NULL, digest TEXT NOT NULL, "
    "base TEXT NOT NULL, path TEXT NOT NULL, root TEXT NOT NULL, stamp TEXT NOT NULL, rank INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, created_s INTEGER NOT NULL, origin INTEGER NOT NULL, sha256 TEXT NOT NULL, "
    "PRIMARY KEY (name, number)) WITHOUT ROWID";
constexpr const char* kColumns =
    "name, number, gone, digest, base, path, root, stamp, rank, bytes, created_s, origin, sha256";

// A row of the table. Of a name that is gone it says the last number and nothing else.
struct Row {
  AdapterRecord record;
  bool gone = false;
};

std::string row_sha256(const Row& row) {
  Sha256 sha;
  const auto add = [&sha](std::string_view text) { sha.update(std::as_bytes(std::span(text))); };
  const auto add_text = [&add](const std::string& text) {
    add(std::to_string(text.size()) + ":");
    add(text);
  };
  const AdapterRecord& record = row.record;
  for (const std::string* text :
       {&record.name, &record.digest, &record.base, &record.path, &record.root, &record.stamp})
    add_text(*text);
  for (const int64_t number : {record.number, int64_t{row.gone}, int64_t{record.rank}, record.bytes, record.created_s,
                               static_cast<int64_t>(record.origin)})
    add_text(std::to_string(number));
  return digest_hex(sha.finish());
}

// The statements that writes are made of.
struct Statements {
  SqliteStatement last_number, newest, insert, erase, erase_older, begin, commit;
};

class SqliteRegistry final : public Registry {
 public:
  SqliteRegistry(std::unique_ptr<SqliteDatabase> database, Statements statements, const SqliteRegistryOptions& options)
      : database_(std::move(database)),
        statements_(std::move(statements)),
        options_(options),
        queue_(options.queue_limit) {}
  ~SqliteRegistry() override { SqliteRegistry::stop(); }

  Status load();
  Status start() {
    TRY_ASSIGN(thread_, start_thread([this] { write_all(); }));
    return {};
  }

  std::optional<AdapterRecord> find(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(name);
    if (found == kept_.end()) return std::nullopt;
    return found->second.rbegin()->second;
  }

  std::vector<AdapterRecord> versions(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    std::vector<AdapterRecord> all;
    if (const auto found = kept_.find(name); found != kept_.end()) {
      for (const auto& [number, record] : found->second) all.push_back(record);
    }
    return all;
  }

  std::vector<AdapterRecord> list() const override {
    const std::lock_guard lock(mutex_);
    std::vector<AdapterRecord> all;
    for (const auto& [name, versions] : kept_) {
      for (const auto& [number, record] : versions) all.push_back(record);
    }
    return all;
  }

  Status put(AdapterRecord record, Done done, int64_t /*had: nobody else writes*/) override {
    for (const std::string* text :
         {&record.name, &record.digest, &record.base, &record.path, &record.root, &record.stamp}) {
      if (text->size() > static_cast<size_t>(kSqliteFieldBytesMost) / 16)
        return too_large("the registry keeps no name and no path longer than " +
                         std::to_string(kSqliteFieldBytesMost / 16) + " bytes");
    }
    {
      const std::lock_guard lock(mutex_);
      if (kept_.size() >= kMaxAdapters && !kept_.contains(record.name))
        return too_large("more than " + std::to_string(kMaxAdapters) + " adapters are not kept in '" +
                         database_->path() + "'; unload some");
    }
    return take({{std::move(record), false}, std::move(done)});
  }

  Status remove(const std::string& name, Done done) override { return take_gone(name, 0, std::move(done)); }
  Status remove_version(const std::string& name, int64_t number, Done done) override {
    CHECK(number > 0);
    return take_gone(name, number, std::move(done));
  }

  void stop() override {
    queue_.close();
    const std::lock_guard lock(stop_mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Write {
    Row row;
    Done done;
    int64_t removed = 0;  // of one that removes: that version alone; 0: all
    int64_t number = 0;   // of the version written, or of the newest removed
  };

  Status take(Write write);
  Status take_gone(const std::string& name, int64_t number, Done done) {
    Write write{{{}, true}, std::move(done), number};
    write.row.record.name = name;
    return take(std::move(write));
  }
  void write_all();
  Status commit(std::vector<Write>& writes);
  Status write(Write& write);
  Status write_gone(Write& write, int64_t last);
  Status insert(const Row& row);
  void keep(Write& write);

  const std::unique_ptr<SqliteDatabase> database_;
  Statements statements_;  // the writer's, as the database
  const SqliteRegistryOptions options_;
  mutable std::mutex mutex_;
  std::map<std::string, std::map<int64_t, AdapterRecord>, std::less<>> kept_;  // guarded by mutex_; none is empty
  BoundedQueue<Write> queue_;
  std::mutex stop_mutex_;
  std::thread thread_;
};

Status SqliteRegistry::take(Write write) {
  if (queue_.try_push(std::move(write))) return {};
  if (queue_.size() < queue_.capacity())
    return Error{ErrorCode::kUnavailable, "the server is shutting down, and keeps nothing more"};
  return Error{ErrorCode::kOverloaded,
               "too many writes to '" + database_->path() + "' are waiting; try again in a moment"};
}

void SqliteRegistry::write_all() {
  name_this_thread("registry");
  while (std::optional<Write> first = queue_.pop()) {
    std::vector<Write> writes;
    writes.push_back(std::move(*first));
    while (writes.size() < kCommittedTogether) {
      std::optional<Write> next = queue_.try_pop();
      if (!next) break;
      writes.push_back(std::move(*next));
    }
    const Status status = commit(writes);
    if (!status.ok()) database_->rollback();
    for (Write& write : writes) {
      if (status.ok()) keep(write);
      write.done(status.ok() ? Result<int64_t>(write.number) : Result<int64_t>(status.error()));
    }
  }
}

Status SqliteRegistry::commit(std::vector<Write>& writes) {
  TRY(database_->check_in_place());
  TRY(statements_.begin.run());
  for (Write& one : writes) TRY(write(one));
  return statements_.commit.run();
}

// The number in its first column; 0: it finds no row.
Result<int64_t> number_of(SqliteStatement& statement) {
  const Result<bool> found = statement.step();
  const int64_t number = found.ok() && *found ? statement.number(0) : 0;
  statement.reset();
  TRY(found);
  return number;
}

Status SqliteRegistry::write(Write& write) {
  AdapterRecord& record = write.row.record;
  statements_.last_number.bind(1, record.name);
  TRY_ASSIGN(const int64_t last, number_of(statements_.last_number));
  if (write.row.gone) return write_gone(write, last);
  const bool again = record.number != 0;
  if (!again) record.number = last + 1;
  write.number = record.number;
  if (again) return insert(write.row);
  statements_.erase_older.bind(1, record.name);
  statements_.erase_older.bind(2, options_.keep_versions - 1);
  TRY(statements_.erase_older.run());
  return insert(write.row);
}

Status SqliteRegistry::write_gone(Write& write, int64_t last) {
  AdapterRecord& record = write.row.record;
  statements_.newest.bind(1, record.name);
  statements_.newest.bind(2, write.removed);
  TRY_ASSIGN(write.number, number_of(statements_.newest));
  if (write.number == 0) return {};  // nothing to remove
  statements_.erase.bind(1, record.name);
  statements_.erase.bind(2, write.removed);
  TRY(statements_.erase.run());
  if (write.removed != 0 && write.removed != last) return {};
  record.number = last;
  return insert(write.row);
}

Status SqliteRegistry::insert(const Row& row) {
  SqliteStatement& statement = statements_.insert;
  const AdapterRecord& record = row.record;
  int column = 0;
  statement.bind(++column, record.name);
  statement.bind(++column, record.number);
  statement.bind(++column, int64_t{row.gone});
  for (const std::string* text : {&record.digest, &record.base, &record.path, &record.root, &record.stamp})
    statement.bind(++column, *text);
  for (const int64_t number :
       {int64_t{record.rank}, record.bytes, record.created_s, static_cast<int64_t>(record.origin)})
    statement.bind(++column, number);
  statement.bind(++column, row_sha256(row));
  return statement.run();
}

void SqliteRegistry::keep(Write& write) {
  const std::lock_guard lock(mutex_);
  const std::string name = write.row.record.name;
  if (write.row.gone) {
    const auto known = kept_.find(name);
    if (known == kept_.end()) return;
    if (write.removed != 0) known->second.erase(write.removed);
    if (write.removed == 0 || known->second.empty()) kept_.erase(known);
    return;
  }
  auto& versions = kept_[name];
  versions.insert_or_assign(write.number, std::move(write.row.record));
  if (versions.size() > static_cast<size_t>(options_.keep_versions)) versions.erase(versions.begin());
}

Result<Row> read_row(const SqliteStatement& statement, const std::string& path) {
  Row row;
  AdapterRecord& record = row.record;
  record.name = statement.text(0);
  record.number = statement.number(1);
  row.gone = statement.number(2) != 0;
  int column = 2;
  for (std::string* text : {&record.digest, &record.base, &record.path, &record.root, &record.stamp})
    *text = statement.text(++column);
  record.rank = static_cast<int32_t>(statement.number(8));
  record.bytes = statement.number(9);
  record.created_s = statement.number(10);
  const int64_t origin = statement.number(11);
  record.origin = static_cast<AdapterOrigin>(origin);
  const bool sound = origin >= 0 && origin <= static_cast<int64_t>(AdapterOrigin::kHttp) && record.number > 0 &&
                     record.number < INT64_MAX && statement.text(12) == row_sha256(row);
  if (sound) return row;
  return corrupt("'" + path +
                 "' is damaged: a row is not what was written; put a copy of it in its place, or move it away and load "
                 "the adapters again");
}

Status SqliteRegistry::load() {
  TRY_ASSIGN(SqliteStatement rows, database_->prepare(std::string("SELECT ") + kColumns + " FROM versions"));
  while (true) {
    TRY_ASSIGN(const bool more, rows.step());
    if (!more) break;
    TRY_ASSIGN(Row row, read_row(rows, database_->path()));
    if (row.gone) continue;
    auto& versions = kept_[row.record.name];
    versions.emplace(row.record.number, std::move(row.record));
    // Fewer may be kept than before; the file follows with the next write of that name.
    if (versions.size() > static_cast<size_t>(options_.keep_versions)) versions.erase(versions.begin());
    if (kept_.size() > kMaxAdapters)
      return too_large("'" + database_->path() + "' holds more than " + std::to_string(kMaxAdapters) + " adapters");
  }
  return {};
}

// Whether the file is ours, and sound; true: it is new, and empty.
Result<bool> look_at(SqliteDatabase& database) {
  const std::string file = "'" + database.path() + "'";
  TRY_ASSIGN(const int64_t application, database.number("PRAGMA application_id"));
  TRY_ASSIGN(const int64_t format, database.number("PRAGMA user_version"));
  TRY_ASSIGN(const int64_t objects, database.number("SELECT count(*) FROM sqlite_schema"));
  if (application == 0 && format == 0 && objects == 0) return true;
  if (application != kRegistryApplication)
    return invalid_argument(file + " is a database of another program; name another file");
  if (format > kRegistryFormat) {
    return unsupported(file + " was written by a newer version of Loralei (format " + std::to_string(format) +
                       ", this one knows up to " + std::to_string(kRegistryFormat) +
                       "); use that version, or name another file");
  }
  TRY_ASSIGN(const std::string found, database.text("PRAGMA quick_check(1)"));
  if (found == "ok" && format == kRegistryFormat && objects == 1) return false;
  return corrupt(file + " is damaged (" + (found == "ok" ? "its tables are not ours" : found) +
                 "); put a copy of it in its place, or move it away and load the adapters again");
}

// A transaction that writes, so that who may not is told now.
Status prepare_file(SqliteDatabase& database, bool is_new) {
  TRY_ASSIGN(const std::string mode, database.text("PRAGMA journal_mode = WAL"));
  if (mode != "wal") {
    return io_error("'" + database.path() + "' lies where SQLite can keep no write-ahead log (" + mode +
                    "); name a file on a local disk");
  }
  TRY(database.run("PRAGMA synchronous = FULL"));
  TRY(database.run("BEGIN IMMEDIATE"));
  if (is_new) TRY(database.run(kTable));
  if (is_new) TRY(database.run("PRAGMA application_id = " + std::to_string(kRegistryApplication)));
  TRY(database.run("PRAGMA user_version = " + std::to_string(kRegistryFormat)));
  return database.run("COMMIT");
}

Result<Statements> prepare_statements(SqliteDatabase& database) {
  TRY_ASSIGN(SqliteStatement last_number,
             database.prepare("SELECT number FROM versions WHERE name = ?1 ORDER BY number DESC LIMIT 1"));
  TRY_ASSIGN(SqliteStatement newest,
             database.prepare("SELECT number FROM versions WHERE name = ?1 AND NOT gone AND (?2 = 0 OR number = ?2) "
                              "ORDER BY number DESC LIMIT 1"));
  TRY_ASSIGN(SqliteStatement insert,
             database.prepare(std::string("INSERT OR REPLACE INTO versions (") + kColumns +
                              ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"));
  TRY_ASSIGN(SqliteStatement erase,
             database.prepare("DELETE FROM versions WHERE name = ?1 AND (?2 = 0 OR number = ?2)"));
  TRY_ASSIGN(SqliteStatement erase_older,
             database.prepare("DELETE FROM versions WHERE name = ?1 AND (gone OR number NOT IN (SELECT number FROM "
                              "versions WHERE name = ?1 AND NOT gone ORDER BY number DESC LIMIT ?2))"));
  TRY_ASSIGN(SqliteStatement begin, database.prepare("BEGIN IMMEDIATE"));
  TRY_ASSIGN(SqliteStatement commit, database.prepare("COMMIT"));
  return Statements{std::move(last_number), std::move(newest), std::move(insert), std::move(erase),
                    std::move(erase_older), std::move(begin),  std::move(commit)};
}

}  // namespace

Result<std::unique_ptr<Registry>> open_sqlite_registry(const std::string& path, const SqliteRegistryOptions& options) {
  CHECK(options.keep_versions >= 1 && options.queue_limit >= 1);
  TRY_ASSIGN(std::unique_ptr<SqliteDatabase> database, SqliteDatabase::open(path));
  TRY_ASSIGN(const bool is_new, look_at(*database));
  TRY(prepare_file(*database, is_new));
  TRY_ASSIGN(Statements statements, prepare_statements(*database));
  auto registry = std::make_unique<SqliteRegistry>(std::move(database), std::move(statements), options);
  TRY(registry->load());
  TRY(registry->start());
  return std::unique_ptr<Registry>(std::move(registry));
}

}  // namespace loralei
