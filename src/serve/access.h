// SPDX-License-Identifier: Apache-2.0
// AccessPolicy: who may call what. Host, keys, loopback, Origin and content type,
// in the order in which they are checked. A key comes as "Authorization: Bearer KEY" or,
// where there is none, as "x-api-key: KEY".
//
// Thread: any; use_keys() too.
// Ownership: the keys' SHA-256.
// Invariants: keys are compared in time that does not depend on where they differ;
// who holds one is known by its digest, whatever keys come and go beside it;
// an empty API key matches nothing, yet is a key: with it alone nobody comes in. Where
// the address is loopback and no API key is asked for, every route answers only requests
// for a local Host or an allowed one: a web page that rebinds its name to 127.0.0.1 sends
// its own name. A request without Host (HTTP/1.0) comes from no browser. Without an admin
// key, admin routes answer only where nobody but this machine's users can reach them:
// a loopback bind, a local Host header and no foreign Origin.
// Failure: an ApiError to answer with.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/message.h"
#include "wire/errors.h"
#include "wire/key_file.h"

namespace loralei {

// kUpload: as kAdmin, with a form for a body where the others have JSON. Web pages can
// send forms anywhere unasked, so nothing else takes one.
enum class RouteClass : unsigned char { kOpen, kApi, kAdmin, kUpload };

// Who sent a request, as far as its key tells.
struct KeyHolder {
  // Names the key without telling it: the same whenever the key is, whatever others there
  // are, in this process and in the next; "" of none. Its cached prefixes outlive a
  // process.
  std::string name;
  uint64_t number = 0;                    // of the name; 0: none
  std::shared_ptr<const NamedKey> named;  // null: none of --keys
};

class AccessPolicy {
 public:
  // secure: the server speaks https, and its own pages come from there.
  AccessPolicy(const std::vector<std::string>& api_keys, const std::string& admin_key, const std::string& bind_host,
               std::vector<std::string> allowed_hosts = {}, bool secure = false);
  // Those of --keys, in the place of the ones before; the others stay.
  void use_keys(const std::vector<NamedKey>& keys);
  // Of any request, before anything else: `on_loopback` says that the address can be
  // reached from this machine only.
  std::optional<ApiError> check_host(const HttpHead& request, bool on_loopback) const;
  // Of a head alone: what it refuses need not be read.
  std::optional<ApiError> check(const HttpHead& request, RouteClass route) const;
  KeyHolder holder(const HttpHead& request) const;
  // Different keys that may call /v1; 0: it is open.
  size_t holders() const;
  bool asks_for_keys() const { return ring()->asks; }  // of who calls /v1

 private:
  struct Known {
    Digest sha256;
    bool admin = false;
    std::shared_ptr<const NamedKey> named;  // of --keys
  };
  struct Ring {
    std::vector<Known> keys;  // each once
    bool asks = false, has_admin = false;
    const Known* find(std::string_view sent) const;
    void add(const Known& key);
  };
  std::shared_ptr<const Ring> ring() const;
  std::optional<ApiError> check_api_key(const HttpHead& request) const;
  std::optional<ApiError> check_admin(const HttpHead& request) const;
  mutable std::mutex mutex_;
  Ring fixed_;                        // what the command line names
  std::shared_ptr<const Ring> ring_;  // all; guarded by mutex_
  const std::string own_scheme_;
  const std::string bind_host_;
  const bool loopback_bind_;
  const std::vector<std::string> allowed_hosts_;  // with any port; "*" allows every one
};

// "localhost", 127.x.y.z, ::1, with or without brackets and port.
bool is_local_host(std::string_view host);
// The header's value if it is short and of printable ASCII that needs no quotes in a
// log line, else "".
std::string usable_request_id(std::string_view header);
// 24 hex digits of two random words.
std::string random_request_id(uint64_t first, uint64_t second);
// Refuses a key that nobody could send behind "Bearer ": with a line end or another
// character that cannot be seen, with white space at its ends, empty or longer
// than heads are.
Status check_key(std::string_view key);
// Keys of a --api-key-file: one per line, blank lines and lines that begin with '#' left
// out. Refused with the line's number where one is no key.
Result<std::vector<std::string>> parse_key_lines(std::string_view text);

// The Access-Control headers for `origin` ("" = no Origin header); none when
// it is not allowed.
HttpHeaders cors_headers(const std::vector<std::string>& allowed, std::string_view origin);
// The headers a web page may send, given those that its browser asks about: these
// (clients have many of their own), as long as they are a list of names of at most
// 2,048 bytes; else those that every client needs.
std::string cors_request_headers(std::string_view asked);

}  // namespace loralei
