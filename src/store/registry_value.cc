// SPDX-License-Identifier: Apache-2.0
#include "store/registry_value.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "base/utf8.h"
#include "formats/json_util.h"
#include "store/etcd_messages.h"

namespace loralei {
namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kNumberMost = INT64_MAX - 1;

Result<std::string> text_of(const Json& json, const char* key, const std::string& place) {
  TRY_ASSIGN(const auto text, json_string(json, key, place));
  return text.value_or("");
}

Result<int64_t> number_of(const Json& json, const char* key, int64_t low, int64_t high, const std::string& place) {
  TRY_ASSIGN(const auto number, json_int(json, key, low, high, place));
  return number.value_or(low);
}

Result<AdapterRecord> record_of(const Json& json, std::string_view name, const std::string& place) {
  if (!json.is_object()) return corrupt(place + ": a version is no object");
  AdapterRecord record;
  record.name = name;
  TRY_ASSIGN(record.number, number_of(json, "number", 0, kNumberMost, place));
  TRY_ASSIGN(record.digest, text_of(json, "digest", place));
  TRY_ASSIGN(record.base, text_of(json, "base", place));
  TRY_ASSIGN(record.path, text_of(json, "path", place));
  TRY_ASSIGN(record.root, text_of(json, "root", place));
  TRY_ASSIGN(record.stamp, text_of(json, "stamp", place));
  TRY_ASSIGN(const int64_t rank, number_of(json, "rank", 0, INT32_MAX, place));
  record.rank = static_cast<int32_t>(rank);
  TRY_ASSIGN(record.bytes, number_of(json, "bytes", 0, kNumberMost, place));
  TRY_ASSIGN(record.created_s, number_of(json, "created", 0, kNumberMost, place));
  TRY_ASSIGN(const std::string origin, text_of(json, "origin", place));
  for (const AdapterOrigin one : {AdapterOrigin::kCommandLine, AdapterOrigin::kDirectory, AdapterOrigin::kHttp}) {
    if (origin == adapter_origin_name(one)) record.origin = one;
  }
  if (origin != adapter_origin_name(record.origin)) return corrupt(place + ": 'origin' is " + json_brief(origin));
  return record;
}

Json json_of(const AdapterRecord& record) {
  return {{"number", record.number},     {"digest", record.digest},
          {"base", record.base},         {"path", record.path},
          {"root", record.root},         {"stamp", record.stamp},
          {"rank", record.rank},         {"bytes", record.bytes},
          {"created", record.created_s}, {"origin", adapter_origin_name(record.origin)}};
}

}  // namespace

Result<std::string> registry_value_text(const RegistryValue& value) {
  Json json = {{"format", kFormat}, {"last", value.last}, {"versions", Json::array()}, {"done", Json::array()}};
  for (const RegistryDone& one : value.done) json["done"].push_back(Json{{"word", one.word}, {"number", one.number}});
  for (const AdapterRecord& record : value.versions) {
    for (const std::string* text : {&record.digest, &record.base, &record.path, &record.root, &record.stamp}) {
      if (!is_valid_utf8(*text))
        return invalid_argument("a registry in etcd keeps texts in UTF-8 only, and '" + printable(*text) + "' is none");
    }
    json["versions"].push_back(json_of(record));
  }
  std::string text = json.dump();
  if (text.size() <= kEtcdValueBytesMost) return text;
  return too_large("the versions of one adapter take more than a value of etcd holds; keep fewer (--keep-versions)");
}

Result<RegistryValue> parse_registry_value(std::string_view name, std::string_view text) {
  const std::string place = "the registry's value of '" + printable(name) + "'";
  TRY_ASSIGN(const Json json, parse_json_object(text, place, 2 * int64_t{kEtcdValueBytesMost}));
  TRY_ASSIGN(const int64_t format, number_of(json, "format", 0, kNumberMost, place));
  if (format > kFormat) return unsupported(place + " was written by a newer version of Loralei; use that version");
  if (format < kFormat) return corrupt(place + " has no format");
  RegistryValue value;
  TRY_ASSIGN(value.last, number_of(json, "last", 0, kNumberMost, place));
  const Json* done = json_find(json, "done");
  if (done == nullptr || !done->is_array() || done->size() > kRegistryDoneMost)
    return corrupt(place + " has no list of what was done");
  for (const Json& item : *done) {
    RegistryDone one;
    TRY_ASSIGN(one.word, text_of(item, "word", place));
    TRY_ASSIGN(one.number, number_of(item, "number", 0, kNumberMost, place));
    value.done.push_back(std::move(one));
  }
  const Json* list = json_find(json, "versions");
  if (list == nullptr || !list->is_array()) return corrupt(place + " has no list of versions");
  for (const Json& item : *list) {
    TRY_ASSIGN(AdapterRecord record, record_of(item, name, place));
    const int64_t before = value.versions.empty() ? 0 : value.versions.back().number;
    if (record.number <= before || record.number > value.last)
      return corrupt(place + ": the numbers of its versions are not in order");
    value.versions.push_back(std::move(record));
  }
  return value;
}

int64_t put_version(RegistryValue& value, AdapterRecord record, int64_t keep_versions) {
  if (record.number == 0) record.number = value.last + 1;
  const int64_t number = record.number;
  value.last = std::max(value.last, number);
  const auto at_least = [number](const AdapterRecord& other) { return other.number >= number; };
  const auto place = std::find_if(value.versions.begin(), value.versions.end(), at_least);
  if (place != value.versions.end() && place->number == number) {
    *place = std::move(record);
  } else {
    value.versions.insert(place, std::move(record));
  }
  while (value.versions.size() > static_cast<size_t>(keep_versions)) value.versions.erase(value.versions.begin());
  return number;
}

int64_t same_since(const RegistryValue& value, const AdapterRecord& record, int64_t had) {
  if (value.versions.empty() || record.number != 0) return 0;
  const AdapterRecord& newest = value.versions.back();
  const bool same = newest.digest == record.digest && newest.base == record.base && newest.path == record.path;
  return same && newest.number > had ? newest.number : 0;
}

int64_t remove_versions(RegistryValue& value, int64_t number) {
  const auto is_it = [number](const AdapterRecord& one) { return number == 0 || one.number == number; };
  int64_t newest = 0;
  for (const AdapterRecord& one : value.versions) newest = is_it(one) ? one.number : newest;
  std::erase_if(value.versions, is_it);
  return newest;
}

void add_done(RegistryValue& value, RegistryDone done) {
  value.done.push_back(std::move(done));
  if (value.done.size() > kRegistryDoneMost) value.done.erase(value.done.begin());
}

}  // namespace loralei
