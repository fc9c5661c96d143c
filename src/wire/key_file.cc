// SPDX-License-Identifier: Apache-2.0
#include "wire/key_file.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <set>
#include <span>

#include "base/printable.h"
#include "base/sha256.h"
#include "wire/json_in.h"

namespace loralei {
namespace {

constexpr size_t kNameBytes = 64;
constexpr size_t kKeyBytes = 4096;  // as long as heads may be
constexpr size_t kPatternBytes = 512;
constexpr size_t kPatterns = 1000;
constexpr int64_t kMostOfALimit = 1'000'000'000'000;
constexpr std::string_view kFields[] = {
    "name",        "key",      "key_sha256", "admin", "requests_per_minute", "tokens_per_minute",
    "max_running", "adapters", "expires"};

bool is_name(std::string_view name) {
  const auto may_stand = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-@").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kNameBytes && std::all_of(name.begin(), name.end(), may_stand);
}

bool is_sendable(std::string_view key) {
  return !key.empty() && key.front() != ' ' && key.back() != ' ' && is_printable(key, kKeyBytes);
}

std::optional<Digest> parse_digest(std::string_view hex) {
  Digest digest{};
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    digest[i / 2] = static_cast<uint8_t>(digest[i / 2] << 4 | digit);
  }
  return digest;
}

// "2027-01-31", of which it is the beginning, or "2027-01-31T12:00:00Z".
std::optional<int64_t> parse_date(const std::string& text) {
  for (const char* form : {"%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"}) {
    std::tm utc{};
    const char* const end = ::strptime(text.c_str(), form, &utc);
    if (end == nullptr || *end != '\0' || text.find_first_of(" \t") != std::string::npos) continue;
    const std::tm asked = utc;
    const int64_t seconds = timegm(&utc);
    if (seconds > 0 && utc.tm_mday == asked.tm_mday) return seconds;  // else a day that no month has
  }
  return std::nullopt;
}

// One of "key" and "key_sha256".
Result<Digest> read_secret(JsonReader& reader) {
  const std::optional<std::string> key = reader.string("key"), hex = reader.string("key_sha256");
  if (reader.failed()) return invalid_argument(reader.error().message);
  if (key.has_value() == hex.has_value())
    return invalid_argument("needs one of 'key' and 'key_sha256', the SHA-256 of the key as 64 hex digits");
  if (hex) {
    const auto digest = parse_digest(*hex);
    if (!digest) return invalid_argument("'key_sha256' is not 64 hex digits, as printf %s KEY | sha256sum prints them");
    return *digest;
  }
  if (is_sendable(*key)) return key_digest(*key);
  return invalid_argument(
      "'key' is empty or longer than 4096 bytes, has white space at its ends, or characters that cannot be seen: no "
      "client could send it");
}

Status read_adapters(const OrderedJson& object, NamedKey& key) {
  const auto found = object.find("adapters");
  if (found == object.end()) return {};
  const Error wrong = invalid_argument(
      "'adapters' is no list of names, in which * stands for any characters, as [\"team-a-*\"]; without it the key may "
      "use all, with [] the base model alone");
  if (!found->is_array() || found->size() > kPatterns) return wrong;
  key.all_adapters = false;
  for (const OrderedJson& one : *found) {
    if (!one.is_string()) return wrong;
    key.adapters.push_back(one.get<std::string>());
    if (key.adapters.back().empty() || key.adapters.back().size() > kPatternBytes) return wrong;
  }
  return {};
}

Result<NamedKey> read_key(std::string_view line) {
  // What a parser says of a text repeats the text, which holds a key.
  Parsed<OrderedJson> tree = parse_json_object(line);
  if (!tree.ok())
    return invalid_argument("is no JSON object; write one key a line, as {\"name\": \"alice\", \"key\": \"...\"}");
  const OrderedJson& object = *tree;
  for (const auto& [field, value] : object.items()) {
    if (std::find(std::begin(kFields), std::end(kFields), field) == std::end(kFields))
      return invalid_argument("has the field '" + printable(field, kNameBytes) +
                              "', which is none; there are name, key, key_sha256, admin, requests_per_minute, "
                              "tokens_per_minute, max_running, adapters and expires");
    if (value.is_null()) return invalid_argument("has '" + field + "': null; leave it out");
  }
  JsonReader reader(object);
  NamedKey key;
  key.name = reader.string("name").value_or("");
  if (!reader.failed() && (!is_name(key.name) || key.name == kOtherKeys))
    return invalid_argument(
        "needs a 'name' of at most 64 letters, digits and ._-@ (and not \"other\"), which metrics and log show");
  TRY_ASSIGN(key.sha256, read_secret(reader));
  key.admin = reader.boolean("admin").value_or(false);
  for (const auto& [field, limit] :
       {std::pair("requests_per_minute", &key.requests_per_minute),
        std::pair("tokens_per_minute", &key.tokens_per_minute), std::pair("max_running", &key.max_running)})
    *limit = reader.integer(field, 1, kMostOfALimit).value_or(0);
  const std::optional<std::string> expires = reader.string("expires");
  if (reader.failed()) return invalid_argument(reader.error().message);
  if (expires) {
    const auto date = parse_date(*expires);
    if (!date) return invalid_argument("'expires' is no date such as 2027-01-31 or 2027-01-31T12:00:00Z (UTC)");
    key.expires_s = *date;
  }
  TRY(read_adapters(object, key));
  return key;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

}  // namespace

Digest key_digest(std::string_view key) {
  Sha256 sum;
  sum.update(std::as_bytes(std::span(key)));
  return sum.finish();
}

// The last '*' may take more when what follows does not fit: time is at most the product
// of both lengths.
bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool NamedKey::may_use(std::string_view adapter) const {
  return all_adapters ||
         std::any_of(adapters.begin(), adapters.end(), [&](const auto& pattern) { return matches(pattern, adapter); });
}

Result<std::vector<NamedKey>> parse_key_file(std::string_view text) {
  std::vector<NamedKey> keys;
  std::set<std::string, std::less<>> names;
  std::set<Digest> digests;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    const std::string where = "line " + std::to_string(number);
    auto key = read_key(line);
    if (!key.ok()) return std::move(key).error().with_context(where);
    if (!names.insert(key->name).second)
      return invalid_argument(where + ": the name '" + key->name + "' stands twice; give each key its own");
    if (!digests.insert(key->sha256).second)
      return invalid_argument(where + ": '" + key->name + "' has the key of another name; give each its own");
    keys.push_back(std::move(*key));
    if (keys.size() > kMaxNamedKeys)
      return invalid_argument(where + ": there are more than " + std::to_string(kMaxNamedKeys) + " keys");
  }
  if (keys.empty())
    return invalid_argument("holds no key; write one a line, as {\"name\": \"alice\", \"key\": \"...\"}");
  return keys;
}

}  // namespace loralei
