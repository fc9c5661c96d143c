// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_settings.h"

#include <algorithm>
#include <map>
#include <optional>

namespace loralei {
namespace {

constexpr int64_t kMaxTokenBytes = 4096;

std::optional<std::string> stated(const Variable& variable, const char* name) {
  auto value = variable(name);
  return value && !value->empty() ? value : std::nullopt;
}

std::string home_of(const Variable& variable) {
  if (const auto home = stated(variable, "HF_HOME")) return *home;
  if (const auto cache = stated(variable, "XDG_CACHE_HOME")) return *cache + "/huggingface";
  return stated(variable, "HOME").value_or(".") + "/.cache/huggingface";
}

std::string at_home(const Variable& variable, const std::string& path) {
  const auto home = stated(variable, "HOME");
  return path.starts_with("~/") && home ? *home + path.substr(1) : path;
}

std::string trimmed(const std::string& text) {
  const char* const blanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(blanks);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

Result<std::string> check_token(std::string token, const std::string& from) {
  const bool plain = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (plain && static_cast<int64_t>(token.size()) <= kMaxTokenBytes) return token;
  return invalid_argument(from + " holds no token: one line of letters, digits and signs is expected.");
}

Result<std::string> read_token(const FileSystem& files, const Variable& variable, const std::string& home) {
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const auto token = stated(variable, name))
      return check_token(trimmed(*token), std::string("The variable ") + name);
  }
  const std::string path = at_home(variable, stated(variable, "HF_TOKEN_PATH").value_or(home + "/token"));
  if (!files.exists(path)) return std::string();
  TRY_ASSIGN(const std::string text, files.read_all(path, kMaxTokenBytes));
  return check_token(trimmed(text), path);
}

bool is_true(const std::optional<std::string>& value) {
  std::string text = value.value_or("");
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

// As they are now: later there are threads.
Variable kept_proxies(const Variable& variable) {
  std::map<std::string, std::string> kept;
  for (const char* const name :
       {"https_proxy", "HTTPS_PROXY", "http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"}) {
    if (const auto value = variable(name)) kept[name] = *value;
  }
  return [kept](const char* name) {
    const auto found = kept.find(name);
    return found == kept.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace

Result<HubSettings> read_hub_settings(const FileSystem& files, const Variable& variable) {
  HubSettings settings;
  const std::string endpoint = stated(variable, "HF_ENDPOINT").value_or(kDefaultHubEndpoint);
  auto url = parse_http_url(endpoint);
  if (!url.ok() || url->target.find('?') != std::string::npos)
    return invalid_argument("The variable HF_ENDPOINT is no address: write https://HOST, or unset it.");
  while (url->target.ends_with('/')) url->target.pop_back();
  settings.endpoint = std::move(*url);
  const std::string home = at_home(variable, home_of(variable));
  TRY_ASSIGN(settings.token, read_token(files, variable, home));
  settings.cache_dir = home + "/hub";
  for (const char* const name : {"HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"}) {
    if (const auto stated_dir = stated(variable, name)) settings.cache_dir = at_home(variable, *stated_dir);
  }
  settings.offline = is_true(variable("HF_HUB_OFFLINE"));
  settings.variable = kept_proxies(variable);
  return settings;
}

}  // namespace loralei
