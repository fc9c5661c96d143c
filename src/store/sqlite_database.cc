// SPDX-License-Identifier: Apache-2.0
#include "store/sqlite_database.h"

#include <sqlite3.h>

#include <cstring>
#include <utility>

#include "sys/file.h"

namespace loralei {
namespace {

Error error_of(const std::string& path, sqlite3* database, int code) {
  const std::string file = "'" + path + "'";
  const int system = database == nullptr ? 0 : sqlite3_system_errno(database);
  const std::string why = system == 0 ? sqlite3_errstr(code) : std::strerror(system);
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
      return {ErrorCode::kUnavailable,
              file +
                  " is open in another program; a server that runs has it for itself: name another file, or stop "
                  "that server first"};
    case SQLITE_NOTADB:
      return corrupt(file + " is no SQLite database; name another file");
    case SQLITE_CORRUPT:
      return corrupt(file + " is damaged (" + sqlite3_errstr(code) +
                     "); put a copy of it in its place, or move it away and load the adapters again");
    case SQLITE_TOOBIG:
      return corrupt(file + " holds a value longer than " + std::to_string(kSqliteFieldBytesMost) +
                     " bytes, which none of ours is; put a copy of it in its place");
    case SQLITE_FULL:
      return io_error("there is no room on the disk for " + file + "; make some, and try again");
    case SQLITE_READONLY:
      return io_error(file + " may not be written, or its folder; give this user the right to, or name another file");
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return io_error(file + " cannot be opened for reading and writing (" + why +
                      "); its folder must be there and writable");
    case SQLITE_NOMEM:
      return {ErrorCode::kOverloaded, "there is not enough memory for " + file};
    default:
      return io_error(file + " could not be read or written (" + why + ")");
  }
}

}  // namespace

void SqliteStatement::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

// What cannot be bound (for want of memory) is told by the step.
void SqliteStatement::bind(int parameter, std::string_view text) {
  sqlite3_bind_text64(statement_.get(), parameter, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
}

void SqliteStatement::bind(int parameter, int64_t number) { sqlite3_bind_int64(statement_.get(), parameter, number); }

Result<bool> SqliteStatement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  sqlite3* const database = sqlite3_db_handle(statement_.get());
  Error error = error_of(*path_, database, sqlite3_extended_errcode(database));
  sqlite3_reset(statement_.get());
  return error;
}

int64_t SqliteStatement::number(int column) const { return sqlite3_column_int64(statement_.get(), column); }

std::string SqliteStatement::text(int column) const {
  const unsigned char* const bytes = sqlite3_column_text(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  if (bytes == nullptr) return "";
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
}

void SqliteStatement::reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

Status SqliteStatement::run() {
  Result<bool> row = step();
  while (row.ok() && *row) row = step();
  reset();
  if (!row.ok()) return row.error();
  return {};
}

void SqliteDatabase::Close::operator()(sqlite3* database) const { sqlite3_close(database); }

Result<std::unique_ptr<SqliteDatabase>> SqliteDatabase::open(const std::string& path) {
  const PathKind kind = PosixFileSystem().kind(path);
  if (path.empty() || path.find('\0') != std::string::npos) return invalid_argument("the path of a file is missing");
  if (kind == PathKind::kDirectory) return invalid_argument("'" + path + "' is a folder; name a file in it");
  if (kind == PathKind::kOther) return invalid_argument("'" + path + "' is a pipe, a device or a socket; name a file");
  std::unique_ptr<SqliteDatabase> made(new SqliteDatabase(path));
  sqlite3* database = nullptr;
  // SQLite takes ":memory:" for no file at all.
  const std::string file = path.starts_with(':') ? "./" + path : path;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  const int code = sqlite3_open_v2(file.c_str(), &database, flags, nullptr);
  made->database_.reset(database);
  if (code != SQLITE_OK) return error_of(path, database, code);
  sqlite3_limit(database, SQLITE_LIMIT_LENGTH, kSqliteFieldBytesMost);
  sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  TRY(made->run("PRAGMA locking_mode = EXCLUSIVE"));
  TRY(made->run("PRAGMA cell_size_check = ON"));
  return made;
}

Result<SqliteStatement> SqliteDatabase::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(database_.get(), sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code == SQLITE_ERROR) {  // as of a column that is not there
    return corrupt("'" + path_ + "' is damaged (" + sqlite3_errmsg(database_.get()) +
                   "); put a copy of it in its place, or move it away and load the adapters again");
  }
  if (code != SQLITE_OK) return error_of(path_, database_.get(), code);
  return SqliteStatement(path_, statement);
}

Status SqliteDatabase::run(std::string_view sql) {
  TRY_ASSIGN(SqliteStatement statement, prepare(sql));
  return statement.run();
}

Result<int64_t> SqliteDatabase::number(std::string_view sql) {
  TRY_ASSIGN(SqliteStatement statement, prepare(sql));
  TRY_ASSIGN(const bool row, statement.step());
  return row ? statement.number(0) : 0;
}

Result<std::string> SqliteDatabase::text(std::string_view sql) {
  TRY_ASSIGN(SqliteStatement statement, prepare(sql));
  TRY_ASSIGN(const bool row, statement.step());
  return row ? statement.text(0) : std::string();
}

Status SqliteDatabase::check_in_place() {
  int moved = 0;
  sqlite3_file_control(database_.get(), "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  if (moved == 0) return {};
  return io_error("'" + path_ +
                  "' was removed or replaced while this server has it open, so that nothing more can be kept there; "
                  "start the server again");
}

void SqliteDatabase::rollback() {
  if (sqlite3_get_autocommit(database_.get()) != 0) return;
  // Where this fails SQLite has rolled back by itself.
  (void)run("ROLLBACK");
}

}  // namespace loralei
