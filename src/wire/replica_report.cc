// SPDX-License-Identifier: Apache-2.0
#include "wire/replica_report.h"

#include <array>
#include <climits>
#include <optional>
#include <utility>

#include "wire/json_in.h"
#include "wire/json_out.h"
#include "wire/requests.h"

namespace loralei {
namespace {

constexpr int64_t kNumberMost = int64_t{1} << 53;
constexpr size_t kDigestBytes = 256, kCostBytes = 256 * 1024;
constexpr size_t kModelNamesMost = 1024;
constexpr std::array<const char*, 3> kTierNames = {"disk", "memory", "device"};

Error unusable(const std::string& what, const std::string& why) {
  return invalid_argument("This is no " + what + ": " + why);
}

std::optional<ReplicaTier> tier_of(std::string_view name) {
  for (size_t i = 0; i < kTierNames.size(); ++i) {
    if (name == kTierNames[i]) return static_cast<ReplicaTier>(i);
  }
  return std::nullopt;
}

int64_t count_of(JsonReader& reader, std::string_view field) {
  return reader.integer(field, 0, kNumberMost).value_or(0);
}
int32_t small_count_of(JsonReader& reader, std::string_view field) {
  return static_cast<int32_t>(reader.integer(field, 0, INT32_MAX).value_or(0));
}

std::string name_of(JsonReader& reader, std::string_view field) {
  std::string name = reader.required_string(field, kMaxNameBytes);
  if (!reader.failed() && name.empty()) reader.fail(field, "'" + reader.path_of(field) + "' is empty.");
  return name;
}

std::vector<std::string> names_of(JsonReader& reader, std::string_view field, size_t most) {
  std::vector<std::string> names;
  const OrderedJson* list = reader.find_array(field, most);
  if (list == nullptr) return names;
  for (const OrderedJson& item : *list) {
    const bool fits = item.is_string() && !item.get_ref<const std::string&>().empty() &&
                      item.get_ref<const std::string&>().size() <= kMaxNameBytes;
    if (!fits) {
      reader.fail(field, "'" + reader.path_of(field) + "' holds what is no name.");
      return {};
    }
    names.push_back(item.get<std::string>());
  }
  return names;
}

void put_adapter(JsonOut& out, const ReplicaAdapter& adapter) {
  out.begin_object().key("name").string(adapter.name).key("version").string_or_null(adapter.version);
  out.key("tier").string(kTierNames[static_cast<size_t>(adapter.tier)]).key("rank").number(adapter.rank);
  out.key("bytes")
      .number(adapter.bytes)
      .key("uses")
      .number(adapter.uses)
      .key("failed")
      .boolean(adapter.failed)
      .end_object();
}

ReplicaAdapter read_adapter(JsonReader& report, const OrderedJson& json, size_t place) {
  const std::string path = "adapters[" + std::to_string(place) + "].";
  ReplicaAdapter adapter;
  if (!json.is_object()) {
    report.fail("adapters", "'adapters' holds what is no object.");
    return adapter;
  }
  JsonReader reader(json, path);
  adapter.name = name_of(reader, "name");
  adapter.version = reader.string("version", kDigestBytes).value_or("");
  const std::string tier = reader.required_string("tier");
  if (const auto known = tier_of(tier)) {
    adapter.tier = *known;
  } else {
    reader.fail("tier", "'" + path + "tier' is none of disk, memory and device.");
  }
  adapter.rank = small_count_of(reader, "rank");
  adapter.bytes = count_of(reader, "bytes");
  adapter.uses = count_of(reader, "uses");
  adapter.failed = reader.boolean("failed").value_or(false);
  if (reader.failed()) report.adopt(reader.error());
  return adapter;
}

void read_capacity(JsonReader& report, ReplicaReport& out) {
  if (const OrderedJson* json = report.find_object("capacity")) {
    JsonReader reader(*json, "capacity.");
    out.sequences_max = small_count_of(reader, "sequences");
    out.waiting_max = small_count_of(reader, "waiting");
    out.kv_tokens = count_of(reader, "kv_tokens");
    out.model_len = count_of(reader, "model_len");
    out.adapter_bytes = count_of(reader, "adapter_bytes");
    if (reader.failed()) report.adopt(reader.error());
  }
  if (const OrderedJson* json = report.find_object("load")) {
    JsonReader reader(*json, "load.");
    out.running = small_count_of(reader, "running");
    out.waiting = small_count_of(reader, "waiting");
    out.kv_tokens_free = count_of(reader, "kv_tokens_free");
    if (reader.failed()) report.adopt(reader.error());
  }
}

void put_names(JsonOut& out, const std::vector<std::string>& names) {
  out.begin_array();
  for (const std::string& name : names) out.string(name);
  out.end_array();
}

}  // namespace

std::string replica_report_body(const ReplicaReport& report) {
  JsonOut out;
  out.begin_object().key("object").string("replica").key("boot").string(report.boot);
  out.key("cursor").number(static_cast<int64_t>(report.cursor));
  out.key("since").number(static_cast<int64_t>(report.since)).key("more").boolean(report.more);
  out.key("ready").boolean(report.ready).key("models");
  put_names(out, report.models);
  out.key("base").string(report.base).key("capacity").begin_object();
  out.key("sequences").number(report.sequences_max).key("waiting").number(report.waiting_max);
  out.key("kv_tokens").number(report.kv_tokens).key("model_len").number(report.model_len);
  out.key("adapter_bytes").number(report.adapter_bytes).end_object();
  out.key("load").begin_object().key("running").number(report.running).key("waiting").number(report.waiting);
  out.key("kv_tokens_free").number(report.kv_tokens_free).end_object().key("cost");
  report.cost.empty() ? out.null() : out.raw(report.cost);
  out.key("adapters").begin_array();
  for (const ReplicaAdapter& adapter : report.adapters) put_adapter(out, adapter);
  out.end_array().key("gone");
  put_names(out, report.gone);
  return out.end_object().take();
}

Result<ReplicaReport> parse_replica_report(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return unusable("report of a replica", json.error().message);
  JsonReader reader(*json);
  ReplicaReport report;
  if (reader.required_string("object") != "replica") reader.fail("object", "'object' is not \"replica\".");
  report.boot = reader.required_string("boot", kDigestBytes);
  report.cursor = static_cast<uint64_t>(count_of(reader, "cursor"));
  report.since = static_cast<uint64_t>(count_of(reader, "since"));
  report.more = reader.boolean("more").value_or(false);
  report.ready = reader.boolean("ready").value_or(true);
  report.models = names_of(reader, "models", kModelNamesMost);
  report.base = reader.string("base", kDigestBytes).value_or("");
  read_capacity(reader, report);
  if (const OrderedJson* cost = reader.find_object("cost")) report.cost = compact_json(*cost);
  if (report.cost.size() > kCostBytes) reader.fail("cost", "'cost' is too long.");
  if (const OrderedJson* list = reader.find_array("adapters", kReportAdaptersMost)) {
    for (const OrderedJson& item : *list) report.adapters.push_back(read_adapter(reader, item, report.adapters.size()));
  }
  report.gone = names_of(reader, "gone", kReportAdaptersMost);
  if (reader.failed()) return unusable("report of a replica", reader.error().message);
  return report;
}

Result<ModelNames> parse_model_list(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return unusable("list of models", json.error().message);
  JsonReader reader(*json);
  ModelNames names;
  if (const OrderedJson* list = reader.find_array("data", kReportAdaptersMost)) {
    for (const OrderedJson& item : *list) {
      if (!item.is_object()) {
        reader.fail("data", "'data' holds what is no object.");
        break;
      }
      JsonReader card(item, "data[].");
      std::string name = name_of(card, "id");
      const bool adapter = !card.string("parent", SIZE_MAX).value_or("").empty();
      if (card.failed()) reader.adopt(card.error());
      (adapter ? names.adapters : names.base).push_back(std::move(name));
    }
  }
  if (reader.failed()) return unusable("list of models", reader.error().message);
  return names;
}

}  // namespace loralei
