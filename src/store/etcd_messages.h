// SPDX-License-Identifier: Apache-2.0
// What is said to etcd's JSON gateway, and what it says: requests to text, and its
// answers, which are untrusted, back. Calls that etcd 3.4, 3.5 and 3.6 have alike.
//
// Thread: pure functions, any thread.
// Ownership: values.
// Invariants: int64 travel as strings, keys and values as base64, and what is zero is
// left out, as the gateway has it; an answer of more than kEtcdAnswerBytes is not read.
// Failure: kCorrupt for what is no answer of etcd.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

inline constexpr int64_t kEtcdAnswerBytes = 8 << 20;
inline constexpr size_t kEtcdValueBytesMost = 1 << 20;  // that we write; etcd takes 1.5 MiB in one request

struct EtcdKeyValue {
  std::string key, value;
  int64_t create_revision = 0, mod_revision = 0;  // both 0: it is not there
  int64_t lease = 0;                              // 0: none
  friend bool operator==(const EtcdKeyValue&, const EtcdKeyValue&) = default;
};

struct EtcdEvent {
  bool removed = false;
  EtcdKeyValue kv;  // of one that was removed: the key, and at which revision
  friend bool operator==(const EtcdEvent&, const EtcdEvent&) = default;
};

// Of all answers.
struct EtcdHeader {
  std::string cluster;  // its number, as text
  int64_t revision = 0;
};

enum class EtcdOrder : unsigned char { kByKey, kByCreation };

struct EtcdRangeRequest {
  std::string key;
  std::string end;       // empty: that key alone; else all from `key` up to and without this
  int64_t limit = 0;     // 0: none
  int64_t revision = 0;  // 0: now
  bool count_only = false;
  EtcdOrder order = EtcdOrder::kByKey;
};
struct EtcdRange {
  EtcdHeader header;
  std::vector<EtcdKeyValue> keys;
  bool more = false;
};

// Holds when all of its compares do.
struct EtcdCompare {
  enum class What : unsigned char { kCreateRevision, kModRevision, kValue };
  std::string key;
  What what = What::kModRevision;
  int64_t revision = 0;  // 0: the key is not there
  std::string value = {};
};
struct EtcdPut {
  std::string key, value;
  int64_t lease = 0;
};
struct EtcdTxn {
  std::vector<EtcdCompare> compares;
  std::vector<EtcdPut> puts;
  std::vector<std::string> removals;
  std::vector<std::string> reads;  // keys to be read where the compares do not hold
};
struct EtcdTxnAnswer {
  EtcdHeader header;
  bool succeeded = false;
  std::vector<EtcdKeyValue> found;  // of `reads`, those that are there
  bool repeated = false;            // it was sent before, and may have been done then
};

struct EtcdLease {
  int64_t id = 0;
  int64_t ttl_s = 0;  // 0: it is over
};

struct EtcdWatchMessage {
  EtcdHeader header;
  bool created = false, canceled = false;
  bool fragment = false;         // more of the same revision follows
  int64_t compact_revision = 0;  // what was asked for lies before it, and is gone
  std::string why;               // it was canceled
  std::vector<EtcdEvent> events;
};

// What it answers instead.
struct EtcdRefusal {
  int code = 0;  // of gRPC; 0: none was told
  std::string message;
};

// The first key behind all that begin so; "\0": none is.
inline std::string etcd_prefix_end(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty()) {
    if (static_cast<unsigned char>(end.back()) < 0xff) {
      end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
      return end;
    }
    end.pop_back();
  }
  return std::string(1, '\0');
}

std::string etcd_range_body(const EtcdRangeRequest& request);
std::string etcd_put_body(const EtcdPut& put);
std::string etcd_delete_body(std::string_view key);
std::string etcd_txn_body(const EtcdTxn& txn);
std::string etcd_grant_body(int64_t id, int64_t ttl_s);
std::string etcd_lease_body(int64_t id);  // of keepalive and revoke
std::string etcd_compact_body(int64_t revision);
std::string etcd_watch_body(std::string_view key, std::string_view end, int64_t start_revision);

Result<EtcdRange> parse_etcd_range(std::string_view body);
Result<EtcdTxnAnswer> parse_etcd_txn(std::string_view body);
Result<EtcdHeader> parse_etcd_header(std::string_view body);  // of put, delete, revoke
Result<EtcdLease> parse_etcd_grant(std::string_view body);
Result<EtcdLease> parse_etcd_keep_alive(std::string_view body);
Result<EtcdWatchMessage> parse_etcd_watch(std::string_view line);
EtcdRefusal parse_etcd_refusal(std::string_view body);

}  // namespace loralei
