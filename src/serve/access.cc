// SPDX-License-Identifier: Apache-2.0
#include "serve/access.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <span>

#include "base/digest.h"
#include "base/printable.h"
#include "base/sha256.h"

namespace loralei {
namespace {

bool equal_in_constant_time(const Digest& a, const Digest& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t' || text.front() == '\r')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// As OpenAI's clients send keys, or else as Anthropic's.
std::string_view sent_key(const HttpHead& request) {
  const std::string_view value = request.header("authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (value.size() < kScheme.size() || !equals_ignoring_case(value.substr(0, kScheme.size()), kScheme))
    return trim(request.header("x-api-key"));
  return trim(value.substr(kScheme.size()));
}

std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') == std::string_view::npos ? 0 : host.find(']') - 1);
  const size_t colon = host.find(':');
  // More than one colon without brackets is a bare IPv6 address.
  if (colon != std::string_view::npos && host.find(':', colon + 1) == std::string_view::npos)
    return host.substr(0, colon);
  return host;
}

ApiError denied(int status, std::string message) { return api_error_of_status(status, std::move(message)); }

}  // namespace

bool is_local_host(std::string_view host) {
  host = without_port(trim(host));
  if (equals_ignoring_case(host, "localhost") || host == "::1") return true;
  if (!host.starts_with("127.")) return false;
  // Digits and dots only: "127.example.org" is somebody's name.
  return std::all_of(host.begin(), host.end(), [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
}

std::string random_request_id(uint64_t first, uint64_t second) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (int i = 0; i < 24; ++i) id += kHex[(i < 16 ? first : second) >> (i % 16 * 4) & 15];
  return id;
}

std::string usable_request_id(std::string_view header) {
  if (header.empty() || header.size() > 128) return {};
  for (const char c : header) {
    if (c <= 0x20 || c >= 0x7f || c == '"' || c == '\\') return {};
  }
  return std::string(header);
}

Status check_key(std::string_view key) {
  constexpr size_t kMaxBytes = 4096;
  if (!key.empty() && trim(key) == key && is_printable(key, kMaxBytes)) return {};
  return invalid_argument(
      "The key has white space at its ends, a line end or another character that cannot be seen, or more than " +
      std::to_string(kMaxBytes) + " bytes: no client could send it in a header.");
}

Result<std::vector<std::string>> parse_key_lines(std::string_view text) {
  std::vector<std::string> keys;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = trim(text.substr(0, end));
    if (!line.empty() && !line.starts_with('#')) {
      if (Status status = check_key(line); !status.ok())
        return std::move(status).error().with_context("line " + std::to_string(number));
      keys.emplace_back(line);
    }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return keys;
}

HttpHeaders cors_headers(const std::vector<std::string>& allowed, std::string_view origin) {
  if (origin.empty()) return {};
  for (const std::string& one : allowed) {
    if (one != "*" && one != origin) continue;
    return {{"Access-Control-Allow-Origin", one == "*" ? "*" : std::string(origin)},
            {"Access-Control-Expose-Headers",
             "X-Request-Id, Retry-After, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
             "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
             "x-ratelimit-reset-tokens"},
            {"Vary", "Origin"}};
  }
  return {};
}

std::string cors_request_headers(std::string_view asked) {
  constexpr size_t kMaxBytes = 2048;
  const auto may_stand = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~, ").find(c) != std::string_view::npos;
  };
  if (asked.empty() || asked.size() > kMaxBytes || !std::all_of(asked.begin(), asked.end(), may_stand))
    return "Authorization, Content-Type, X-Request-Id";
  return std::string(asked);
}

namespace {

std::string prefix_name(std::string_view key) {
  constexpr size_t kDigits = 32;
  Sha256 sum;
  sum.update(std::as_bytes(std::span(std::string_view("loralei prefixes of a key\n"))));
  sum.update(std::as_bytes(std::span(key)));
  return digest_hex(sum.finish()).substr(0, kDigits);
}

std::optional<ApiError> check_time(const std::shared_ptr<const NamedKey>& key) {
  if (!key || !key->expired(std::time(nullptr))) return std::nullopt;
  ApiError error = denied(401, "The key '" + key->name + "' has expired.");
  error.code = "invalid_api_key";
  return error;
}

}  // namespace

const AccessPolicy::Known* AccessPolicy::Ring::find(std::string_view sent) const {
  // Nobody sends the empty key: where one was set by mistake, it must not let in
  // everybody who sends none.
  if (sent.empty()) return nullptr;
  const Digest digest = key_digest(sent);
  size_t found = keys.size();
  for (size_t i = 0; i < keys.size(); ++i) found = equal_in_constant_time(keys[i].sha256, digest) ? i : found;
  return found < keys.size() ? &keys[found] : nullptr;
}

// The same key under two options may do what either may.
void AccessPolicy::Ring::add(const Known& key) {
  has_admin |= key.admin;
  for (Known& known : keys) {
    if (known.sha256 != key.sha256) continue;
    known.admin |= key.admin;
    return;
  }
  keys.push_back(key);
}

AccessPolicy::AccessPolicy(const std::vector<std::string>& api_keys, const std::string& admin_key,
                           const std::string& bind_host, std::vector<std::string> allowed_hosts, bool secure)
    : own_scheme_(secure ? "https://" : "http://"),
      bind_host_(without_port(bind_host)),
      loopback_bind_(is_local_host(bind_host)),
      allowed_hosts_(std::move(allowed_hosts)) {
  fixed_.asks = !api_keys.empty();
  for (const std::string& key : api_keys)
    if (!key.empty()) fixed_.add({key_digest(key), false, nullptr});
  if (!admin_key.empty()) fixed_.add({key_digest(admin_key), true, nullptr});
  ring_ = std::make_shared<const Ring>(fixed_);
}

void AccessPolicy::use_keys(const std::vector<NamedKey>& keys) {
  Ring ring;
  ring.asks = fixed_.asks || !keys.empty();
  ring.keys.reserve(keys.size() + fixed_.keys.size());
  for (const NamedKey& key : keys) {  // which are different
    ring.keys.push_back({key.sha256, key.admin, std::make_shared<const NamedKey>(key)});
    ring.has_admin |= key.admin;
  }
  for (const Known& key : fixed_.keys) ring.add(key);
  auto made = std::make_shared<const Ring>(std::move(ring));
  const std::lock_guard lock(mutex_);
  ring_.swap(made);
}

std::shared_ptr<const AccessPolicy::Ring> AccessPolicy::ring() const {
  const std::lock_guard lock(mutex_);
  return ring_;
}

std::optional<ApiError> AccessPolicy::check_host(const HttpHead& request, bool on_loopback) const {
  if (!on_loopback || asks_for_keys() || !has_header(request.headers, "host")) return std::nullopt;
  const std::string_view host = without_port(trim(request.header("host")));
  if (is_local_host(host) || equals_ignoring_case(host, bind_host_)) return std::nullopt;
  for (const std::string& allowed : allowed_hosts_) {
    if (allowed == "*" || equals_ignoring_case(host, without_port(allowed))) return std::nullopt;
  }
  return denied(403,
                "Without --api-key this server answers only to localhost, and the Host header names another host; "
                "--allowed-host NAME allows it.");
}

std::optional<ApiError> AccessPolicy::check(const HttpHead& request, RouteClass route) const {
  if (route == RouteClass::kApi) {
    if (auto error = check_api_key(request)) return error;
  } else if (route == RouteClass::kAdmin || route == RouteClass::kUpload) {
    if (auto error = check_admin(request)) return error;
  }
  if ((request.method == "POST" || request.method == "PUT") && request.has_body) {
    std::string_view type = request.header("content-type");
    type = trim(type.substr(0, type.find(';')));
    if (route == RouteClass::kUpload) {
      if (!equals_ignoring_case(type, "multipart/form-data"))
        return denied(415,
                      "The body must be a form: send the files as multipart/form-data, as curl -F 'file=@NAME' does.");
    } else if (!equals_ignoring_case(type, "application/json")) {
      return denied(415, "The body must be JSON: send the header 'Content-Type: application/json'.");
    }
  }
  return std::nullopt;
}

KeyHolder AccessPolicy::holder(const HttpHead& request) const {
  const std::string_view sent = sent_key(request);
  const auto ring = this->ring();
  const Known* const known = ring->find(sent);
  if (known == nullptr) return {};
  KeyHolder holder{prefix_name(sent), 0, known->named};
  std::from_chars(holder.name.data(), holder.name.data() + 16, holder.number, 16);
  return holder;
}

size_t AccessPolicy::holders() const {
  const auto ring = this->ring();
  return ring->asks ? ring->keys.size() : 0;
}

std::optional<ApiError> AccessPolicy::check_api_key(const HttpHead& request) const {
  const auto ring = this->ring();
  if (!ring->asks) return std::nullopt;
  const std::string_view key = sent_key(request);
  if (const Known* const known = ring->find(key)) return check_time(known->named);
  ApiError error = denied(
      401, key.empty() ? "An API key is needed: send it as 'Authorization: Bearer KEY'." : "The API key is not valid.");
  error.code = "invalid_api_key";
  return error;
}

std::optional<ApiError> AccessPolicy::check_admin(const HttpHead& request) const {
  const auto ring = this->ring();
  if (ring->has_admin) {
    const std::string_view key = sent_key(request);
    const Known* const known = ring->find(key);
    if (known != nullptr && known->admin) return check_time(known->named);
    if (known != nullptr) return denied(403, "This route needs the admin key; the key sent is for /v1 only.");
    ApiError error = denied(401, key.empty() ? "This route needs the admin key: send it as 'Authorization: Bearer KEY'."
                                             : "The admin key is not valid.");
    error.code = "invalid_api_key";
    return error;
  }
  // The key of /v1, if there is one, is asked for before anything else is told.
  if (auto error = check_api_key(request)) return error;
  if (!loopback_bind_) {
    return denied(
        403,
        "This route is closed because the server is reachable from other machines: start it with --admin-key KEY.");
  }
  if (!is_local_host(request.header("host"))) {
    return denied(403,
                  "Without --admin-key this route answers only to localhost, and the Host header names another host.");
  }
  const std::string_view origin = request.header("origin");
  if (!origin.empty() && origin != own_scheme_ + std::string(request.header("host"))) {
    return denied(403, "Without --admin-key this route refuses requests from web pages of another origin.");
  }
  return std::nullopt;
}

}  // namespace loralei
