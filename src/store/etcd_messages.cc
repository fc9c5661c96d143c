// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_messages.h"

#include <charconv>
#include <optional>
#include <utility>

#include "base/base64.h"
#include "base/printable.h"
#include "formats/json_util.h"

namespace loralei {
namespace {

constexpr size_t kSaidBytes = 200;  // of what etcd said, in an error

Error unusable(const std::string& why) { return corrupt("this is no answer of etcd: " + why); }

// An int64 comes as a string; some programs in between make numbers of them.
Result<int64_t> number_of(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return 0;
  if (value->is_number_integer() && !value->is_number_unsigned()) return value->get<int64_t>();
  if (value->is_number_unsigned() && value->get<uint64_t>() <= INT64_MAX) return value->get<int64_t>();
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    int64_t number = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (problem == std::errc() && end == text.data() + text.size()) return number;
  }
  return unusable("'" + std::string(key) + "' is " + json_brief(*value) + ", which is no number");
}

Result<int64_t> count_of(const Json& object, const char* key) {
  TRY_ASSIGN(const int64_t number, number_of(object, key));
  if (number < 0) return unusable("'" + std::string(key) + "' is less than 0");
  return number;
}

Result<std::string> bytes_of(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return std::string();
  auto bytes = value->is_string() ? base64_decode(value->get_ref<const std::string&>()) : std::nullopt;
  if (bytes) return *std::move(bytes);
  return unusable("'" + std::string(key) + "' is not base64");
}

Result<bool> flag_of(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return unusable("'" + std::string(key) + "' is neither true nor false");
  return value->get<bool>();
}

// Absent: an empty one.
Result<const Json*> object_of(const Json& object, const char* key) {
  static const Json kEmpty = Json::object();
  const Json* value = json_find(object, key);
  if (value == nullptr) return &kEmpty;
  if (!value->is_object()) return unusable("'" + std::string(key) + "' is no object");
  return value;
}

Result<const Json*> list_of(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  const Json* value = json_find(object, key);
  if (value == nullptr) return &kEmpty;
  if (!value->is_array()) return unusable("'" + std::string(key) + "' is no list");
  for (const Json& item : *value) {
    if (!item.is_object()) return unusable("'" + std::string(key) + "' holds what is no object");
  }
  return value;
}

Result<EtcdHeader> header_of(const Json& answer) {
  EtcdHeader header;
  TRY_ASSIGN(const Json* const json, object_of(answer, "header"));
  TRY_ASSIGN(header.revision, count_of(*json, "revision"));
  if (const Json* cluster = json_find(*json, "cluster_id")) header.cluster = json_brief(*cluster);
  return header;
}

Result<EtcdKeyValue> key_value_of(const Json& json) {
  EtcdKeyValue kv;
  TRY_ASSIGN(kv.key, bytes_of(json, "key"));
  TRY_ASSIGN(kv.value, bytes_of(json, "value"));
  TRY_ASSIGN(kv.create_revision, count_of(json, "create_revision"));
  TRY_ASSIGN(kv.mod_revision, count_of(json, "mod_revision"));
  TRY_ASSIGN(kv.lease, number_of(json, "lease"));
  if (kv.key.empty()) return unusable("a key is empty");
  return kv;
}

Result<std::vector<EtcdKeyValue>> key_values_of(const Json& range) {
  std::vector<EtcdKeyValue> all;
  TRY_ASSIGN(const Json* const list, list_of(range, "kvs"));
  for (const Json& item : *list) {
    TRY_ASSIGN(EtcdKeyValue kv, key_value_of(item));
    all.push_back(std::move(kv));
  }
  return all;
}

Result<EtcdEvent> event_of(const Json& json) {
  EtcdEvent event;
  const Json* type = json_find(json, "type");
  const bool put = type == nullptr || *type == "PUT" || *type == 0;
  event.removed = !put && (*type == "DELETE" || *type == 1);
  if (!put && !event.removed) return unusable("an event is of the kind " + json_brief(*type));
  TRY_ASSIGN(const Json* const kv, object_of(json, "kv"));
  TRY_ASSIGN(event.kv, key_value_of(*kv));
  return event;
}

Result<Json> parse_answer(std::string_view body) {
  auto json = parse_json_object(body, "an answer of etcd", kEtcdAnswerBytes);
  if (json.ok()) return json;
  return unusable(printable(json.error().message));
}

// Of an answer that is one of a stream.
Result<Json> parse_result(std::string_view line) {
  TRY_ASSIGN(Json json, parse_answer(line));
  if (const Json* error = json_find(json, "error")) return unusable(json_brief(*error));
  const Json* result = json_find(json, "result");
  if (result == nullptr || !result->is_object()) return unusable("it has no 'result'");
  return Json(*result);
}

Json put_json(const EtcdPut& put) {
  Json json = {{"key", base64_encode(put.key)}, {"value", base64_encode(put.value)}};
  if (put.lease != 0) json["lease"] = std::to_string(put.lease);
  return json;
}

Json compare_json(const EtcdCompare& compare) {
  Json json = {{"key", base64_encode(compare.key)}, {"result", "EQUAL"}};
  switch (compare.what) {
    case EtcdCompare::What::kCreateRevision:
      json["target"] = "CREATE";
      json["create_revision"] = std::to_string(compare.revision);
      break;
    case EtcdCompare::What::kModRevision:
      json["target"] = "MOD";
      json["mod_revision"] = std::to_string(compare.revision);
      break;
    case EtcdCompare::What::kValue:
      json["target"] = "VALUE";
      json["value"] = base64_encode(compare.value);
      break;
  }
  return json;
}

}  // namespace

std::string etcd_range_body(const EtcdRangeRequest& request) {
  Json json = {{"key", base64_encode(request.key)}};
  if (!request.end.empty()) json["range_end"] = base64_encode(request.end);
  if (request.limit > 0) json["limit"] = std::to_string(request.limit);
  if (request.revision > 0) json["revision"] = std::to_string(request.revision);
  if (request.count_only) json["count_only"] = true;
  if (request.order == EtcdOrder::kByCreation) {
    json["sort_target"] = "CREATE";
    json["sort_order"] = "ASCEND";
  }
  return json.dump();
}

std::string etcd_put_body(const EtcdPut& put) { return put_json(put).dump(); }

std::string etcd_delete_body(std::string_view key) { return Json{{"key", base64_encode(key)}}.dump(); }

std::string etcd_txn_body(const EtcdTxn& txn) {
  Json json = {{"compare", Json::array()}, {"success", Json::array()}, {"failure", Json::array()}};
  for (const EtcdCompare& compare : txn.compares) json["compare"].push_back(compare_json(compare));
  for (const EtcdPut& put : txn.puts) json["success"].push_back({{"requestPut", put_json(put)}});
  for (const std::string& key : txn.removals)
    json["success"].push_back({{"requestDeleteRange", {{"key", base64_encode(key)}}}});
  for (const std::string& key : txn.reads) json["failure"].push_back({{"requestRange", {{"key", base64_encode(key)}}}});
  return json.dump();
}

std::string etcd_grant_body(int64_t id, int64_t ttl_s) {
  return Json{{"ID", std::to_string(id)}, {"TTL", std::to_string(ttl_s)}}.dump();
}

std::string etcd_lease_body(int64_t id) { return Json{{"ID", std::to_string(id)}}.dump(); }

std::string etcd_compact_body(int64_t revision) {
  return Json{{"revision", std::to_string(revision)}, {"physical", true}}.dump();
}

std::string etcd_watch_body(std::string_view key, std::string_view end, int64_t start_revision) {
  const Json create = {{"key", base64_encode(key)},
                       {"range_end", base64_encode(end)},
                       {"start_revision", std::to_string(start_revision)},
                       {"progress_notify", true},
                       {"fragment", true}};
  return Json{{"create_request", create}}.dump();
}

Result<EtcdRange> parse_etcd_range(std::string_view body) {
  TRY_ASSIGN(const Json json, parse_answer(body));
  EtcdRange range;
  TRY_ASSIGN(range.header, header_of(json));
  TRY_ASSIGN(range.keys, key_values_of(json));
  TRY_ASSIGN(range.more, flag_of(json, "more"));
  return range;
}

Result<EtcdTxnAnswer> parse_etcd_txn(std::string_view body) {
  TRY_ASSIGN(const Json json, parse_answer(body));
  EtcdTxnAnswer answer;
  TRY_ASSIGN(answer.header, header_of(json));
  TRY_ASSIGN(answer.succeeded, flag_of(json, "succeeded"));
  TRY_ASSIGN(const Json* const responses, list_of(json, "responses"));
  for (const Json& response : *responses) {
    TRY_ASSIGN(const Json* const range, object_of(response, "response_range"));
    TRY_ASSIGN(std::vector<EtcdKeyValue> found, key_values_of(*range));
    for (EtcdKeyValue& kv : found) answer.found.push_back(std::move(kv));
  }
  return answer;
}

Result<EtcdHeader> parse_etcd_header(std::string_view body) {
  TRY_ASSIGN(const Json json, parse_answer(body));
  return header_of(json);
}

namespace {

Result<EtcdLease> lease_of(const Json& json) {
  EtcdLease lease;
  TRY_ASSIGN(lease.id, number_of(json, "ID"));
  TRY_ASSIGN(lease.ttl_s, number_of(json, "TTL"));
  if (lease.ttl_s < 0) lease.ttl_s = 0;
  return lease;
}

}  // namespace

Result<EtcdLease> parse_etcd_grant(std::string_view body) {
  TRY_ASSIGN(const Json json, parse_answer(body));
  TRY_ASSIGN(const EtcdLease lease, lease_of(json));
  if (lease.id == 0 || lease.ttl_s == 0) return unusable("it grants no lease");
  return lease;
}

Result<EtcdLease> parse_etcd_keep_alive(std::string_view body) {
  TRY_ASSIGN(const Json json, parse_result(body));
  return lease_of(json);
}

Result<EtcdWatchMessage> parse_etcd_watch(std::string_view line) {
  TRY_ASSIGN(const Json json, parse_result(line));
  EtcdWatchMessage message;
  TRY_ASSIGN(message.header, header_of(json));
  TRY_ASSIGN(message.created, flag_of(json, "created"));
  TRY_ASSIGN(message.canceled, flag_of(json, "canceled"));
  TRY_ASSIGN(message.fragment, flag_of(json, "fragment"));
  TRY_ASSIGN(message.compact_revision, count_of(json, "compact_revision"));
  if (const Json* why = json_find(json, "cancel_reason"); why != nullptr && why->is_string())
    message.why = printable(why->get_ref<const std::string&>().substr(0, kSaidBytes));
  TRY_ASSIGN(const Json* const events, list_of(json, "events"));
  for (const Json& item : *events) {
    TRY_ASSIGN(EtcdEvent event, event_of(item));
    message.events.push_back(std::move(event));
  }
  return message;
}

// Etcd 3.4 says "error" and "message", later ones "message" alone; in a stream "error" is
// an object that holds them.
EtcdRefusal parse_etcd_refusal(std::string_view body) {
  EtcdRefusal refusal;
  const auto json = parse_json_object(body, "an answer of etcd", kEtcdAnswerBytes);
  if (!json.ok()) {
    refusal.message = printable(body.substr(0, kSaidBytes));
    return refusal;
  }
  const Json* said = &*json;
  if (const Json* error = json_find(*json, "error"); error != nullptr && error->is_object()) said = error;
  for (const char* key : {"code", "grpc_code"}) {
    const auto code = number_of(*said, key);
    if (code.ok() && *code > 0 && *code < 1000) refusal.code = static_cast<int>(*code);
  }
  for (const char* key : {"error", "message"}) {
    if (const Json* text = json_find(*said, key); text != nullptr && text->is_string())
      refusal.message = printable(text->get_ref<const std::string&>().substr(0, kSaidBytes));
  }
  if (refusal.message.empty()) refusal.message = printable(body.substr(0, kSaidBytes));
  return refusal;
}

}  // namespace loralei
