// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_name.h"

#include <algorithm>

#include "base/printable.h"

namespace loralei {
namespace {

constexpr std::string_view kScheme = "hf://";
constexpr size_t kMaxPartBytes = 96;
constexpr size_t kMaxRevisionBytes = 256;

bool has_only(std::string_view text, std::string_view more) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           more.find(c) != std::string_view::npos;
  });
}

bool is_part(std::string_view text) {
  if (text.empty() || text.size() > kMaxPartBytes || !has_only(text, "._-")) return false;
  const auto edge = [](char c) { return c == '.' || c == '-'; };
  return !edge(text.front()) && !edge(text.back()) && text.find("..") == std::string_view::npos &&
         text.find("--") == std::string_view::npos;
}

bool is_revision(std::string_view text) {
  if (text.empty() || text.size() > kMaxRevisionBytes || !has_only(text, "._-/+")) return false;
  while (!text.empty()) {
    const size_t slash = std::min(text.find('/'), text.size());
    const std::string_view part = text.substr(0, slash);
    if (part.empty() || part.front() == '.' || part.front() == '-' || part.find("..") != std::string_view::npos)
      return false;
    if (slash + 1 == text.size()) return false;
    text.remove_prefix(std::min(slash + 1, text.size()));
  }
  return true;
}

std::optional<HubName> read(std::string_view text) {
  HubName name;
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    name.file = text.substr(colon + 1);
    const bool plain = !name.file.empty() && name.file.size() <= kMaxRevisionBytes && has_only(name.file, "._-") &&
                       name.file.front() != '.' && name.file.find("..") == std::string::npos;
    if (!plain) return std::nullopt;
    text = text.substr(0, colon);
  }
  const size_t at = text.find('@');
  if (at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_part(text.substr(0, slash)) || !is_part(text.substr(slash + 1)))
    return std::nullopt;
  name.repository = text;
  return name;
}

}  // namespace

std::string HubName::text() const {
  return repository + (revision == "main" ? "" : "@" + revision) + (file.empty() ? "" : ":" + file);
}

Result<std::optional<HubName>> parse_hub_name(std::string_view text) {
  const bool stated = text.starts_with(kScheme);
  if (stated) text.remove_prefix(kScheme.size());
  std::optional<HubName> name = read(text);
  if (!name && stated) {
    return invalid_argument("'hf://" + printable(text, 200) +
                            "' is no name on a hub: write hf://ORG/NAME, hf://ORG/NAME@REVISION or "
                            "hf://ORG/NAME@REVISION:Q4_K_M.");
  }
  return name;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace loralei
