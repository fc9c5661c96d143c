// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_listing.h"

#include <algorithm>
#include <set>

#include "base/printable.h"
#include "base/units.h"
#include "formats/json_util.h"
#include "hub/hub_name.h"

namespace loralei {
namespace {

constexpr size_t kMaxPathBytes = 1024;
constexpr size_t kMaxPartBytes = 255;

std::string shown(std::string_view text) { return "'" + printable(text, 120) + "'"; }

Result<HubFile> read_file(const Json& entry, const std::string& place) {
  if (!entry.is_object()) return corrupt(place + " has an entry that is no file: " + json_brief(entry));
  TRY_ASSIGN(const std::optional<std::string> path, json_string(entry, "rfilename", place));
  if (!path) return corrupt(place + " has a file without a name: " + json_brief(entry));
  TRY(check_hub_path(*path));
  TRY_ASSIGN(const std::optional<int64_t> bytes, json_int(entry, "size", 0, kMaxStatedBytes, place));
  return HubFile{*path, bytes.value_or(-1)};
}

}  // namespace

const HubFile* HubListing::find(std::string_view path) const {
  const auto found = std::find_if(files.begin(), files.end(), [&](const HubFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

Status check_hub_path(std::string_view path) {
  const auto refuse = [&](const char* why) {
    return corrupt("The hub lists a file called " + shown(path) + ", which " + why + "; nothing was fetched.");
  };
  if (path.empty() || path.size() > kMaxPathBytes) return refuse("no file here can be called");
  if (!is_printable(path, kMaxPathBytes)) return refuse("holds characters that cannot be seen");
  if (path.find('\\') != std::string_view::npos) return refuse("holds a backslash");
  if (path.front() == '/') return refuse("leads out of the folder");
  for (std::string_view rest = path;;) {
    const size_t slash = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, slash);
    if (part == "." || part == "..") return refuse("leads out of the folder");
    if (part.empty() || part.size() > kMaxPartBytes) return refuse("no file here can be called");
    if (slash == rest.size()) return {};
    rest.remove_prefix(slash + 1);
  }
}

Result<HubListing> parse_hub_listing(std::string_view json, const std::string& place) {
  TRY_ASSIGN(const Json answer, parse_json_object(json, place, kMaxHubListBytes));
  HubListing listing;
  TRY_ASSIGN(const std::optional<std::string> commit, json_string(answer, "sha", place));
  if (!commit || !is_commit(*commit)) return corrupt(place + " names no commit (\"sha\", 40 digits of hex).");
  listing.commit = *commit;
  const Json* const entries = json_find(answer, "siblings");
  if (entries == nullptr || !entries->is_array()) return corrupt(place + " has no list of files (\"siblings\").");
  if (entries->size() > kMaxHubFiles) {
    return too_large(place + " lists " + std::to_string(entries->size()) + " files; more than " +
                     std::to_string(kMaxHubFiles) + " are not taken.");
  }
  std::set<std::string_view> seen;
  listing.files.reserve(entries->size());
  for (const Json& entry : *entries) {
    TRY_ASSIGN(HubFile file, read_file(entry, place));
    listing.files.push_back(std::move(file));
    if (!seen.insert(listing.files.back().path).second)
      return corrupt(place + " lists the file " + shown(listing.files.back().path) + " twice; nothing was fetched.");
  }
  return listing;
}

Result<std::string> parse_hub_digest(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  const bool hex =
      std::all_of(etag.begin(), etag.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (hex && (etag.size() == 40 || etag.size() == 64)) return std::string(etag);
  return corrupt("the hub gives no checksum of it (its etag is " + shown(etag) +
                 ", neither SHA-256 nor a git blob's SHA-1)");
}

}  // namespace loralei
