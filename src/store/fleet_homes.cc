// SPDX-License-Identifier: Apache-2.0
#include "store/fleet_homes.h"

#include <map>
#include <utility>

#include "formats/json_util.h"

namespace loralei {
namespace {

constexpr int64_t kFormat = 1;
constexpr size_t kNameBytesMost = 1024;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string fleet_homes_text(const std::vector<NamedHomes>& homes) {
  Json json = {{"format", kFormat}, {"replicas", Json::array()}, {"homes", Json::object()}};
  std::map<std::string, size_t> numbers;
  size_t bytes = dump(json).size();
  for (const NamedHomes& one : homes) {
    Json places = Json::array();
    std::vector<std::string> fresh;
    for (const std::string& replica : one.replicas) {
      const auto [known, is_new] = numbers.emplace(replica, numbers.size());
      if (is_new) fresh.push_back(replica);
      places.push_back(known->second);
    }
    const Json entry = {{one.adapter, places}};
    bytes += dump(entry).size() + dump(Json(fresh)).size();
    if (bytes > kFleetHomesBytesMost) break;
    for (const std::string& replica : fresh) json["replicas"].push_back(replica);
    json["homes"].update(entry);
  }
  return dump(json);
}

Result<std::vector<NamedHomes>> parse_fleet_homes(std::string_view text) {
  const std::string place = "the homes of adapters";
  TRY_ASSIGN(const Json json, parse_json_object(text, place, static_cast<int64_t>(kFleetHomesBytesMost)));
  TRY_ASSIGN(const auto format, json_int(json, "format", 0, INT64_MAX, place));
  if (format.value_or(0) > kFormat) return unsupported("they were written by a newer version of Loralei");
  if (format.value_or(0) < kFormat) return corrupt("they have no format");
  TRY_ASSIGN(const auto replicas, json_strings(json, "replicas", place));
  for (const std::string& replica : replicas.value_or(std::vector<std::string>())) {
    if (replica.empty() || replica.size() > kNameBytesMost) return corrupt("a replica has no address");
  }
  const Json* homes = json_find(json, "homes");
  if (homes == nullptr || !homes->is_object()) return corrupt("they name no adapters");
  std::vector<NamedHomes> found;
  for (const auto& [name, places] : homes->items()) {
    if (name.empty() || name.size() > kNameBytesMost) return corrupt("an adapter has no name");
    NamedHomes one{name, {}};
    if (!places.is_array()) return corrupt("an adapter's homes are no list");
    for (const Json& number : places) {
      const bool fits = number.is_number_unsigned() && replicas && number.get<uint64_t>() < replicas->size();
      if (!fits) return corrupt("an adapter's home is no replica");
      one.replicas.push_back((*replicas)[number.get<size_t>()]);
    }
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace loralei
