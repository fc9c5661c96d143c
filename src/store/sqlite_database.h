// SPDX-License-Identifier: Apache-2.0
// One connection to an SQLite file that nobody else may have open, and its statements.
//
// Thread: one at a time.
// Ownership: a statement borrows its database and goes before it.
// Invariants: schemas of strangers run nothing (no triggers, views or functions of a
// file); no text or blob that is longer than kSqliteFieldBytesMost is read or written.
// Failure: sentences that name the file; kCorrupt for a damaged one, kUnavailable for one
// that is open elsewhere, kIo for what the system refuses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace loralei {

inline constexpr int kSqliteFieldBytesMost = 64 << 10;

class SqliteStatement {
 public:
  // Of the next run; numbers begin with 1. Texts are copied.
  void bind(int parameter, std::string_view text);
  void bind(int parameter, int64_t number);
  // True: there is a row, to be read before the next step. False: that was all.
  Result<bool> step();
  int64_t number(int column) const;
  std::string text(int column) const;
  void reset();  // ends a run, and forgets what was bound
  Status run();  // to its end, and reset

 private:
  friend class SqliteDatabase;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  SqliteStatement(const std::string& path, sqlite3_stmt* statement) : path_(&path), statement_(statement) {}

  const std::string* path_;  // the database's
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class SqliteDatabase {
 public:
  // Makes the file where there is none, and locks it with the first read.
  static Result<std::unique_ptr<SqliteDatabase>> open(const std::string& path);

  Result<SqliteStatement> prepare(std::string_view sql);
  Status run(std::string_view sql);              // one statement, its rows left out
  Result<int64_t> number(std::string_view sql);  // in the first column of its first row; 0: no row
  Result<std::string> text(std::string_view sql);
  // Whether the file is still at its path: what is written to one that was removed
  // or replaced is lost.
  Status check_in_place();
  void rollback();  // where a transaction is open
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  explicit SqliteDatabase(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace loralei
