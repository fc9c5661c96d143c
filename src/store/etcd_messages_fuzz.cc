// SPDX-License-Identifier: Apache-2.0
// Any answer of etcd, and any value that lies there: read, or refused with a sentence.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "store/etcd_messages.h"
#include "store/fleet_homes.h"
#include "store/membership.h"
#include "store/registry_value.h"

namespace {

using namespace loralei;

void read_value(std::string_view body) {
  const auto value = parse_registry_value("name", body);
  if (!value.ok()) return CHECK(!value.error().message.empty());
  const auto text = registry_value_text(*value);
  if (text.ok()) CHECK(*parse_registry_value("name", *text) == *value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 16) {
    case 0:
      if (const auto range = parse_etcd_range(body); range.ok()) {
        for (const EtcdKeyValue& kv : range->keys) CHECK(!kv.key.empty() && kv.mod_revision >= 0);
      }
      break;
    case 1:
      (void)parse_etcd_txn(body).ok();
      break;
    case 2:
      (void)parse_etcd_header(body).ok();
      break;
    case 3:
      if (const auto lease = parse_etcd_grant(body); lease.ok()) CHECK(lease->id != 0 && lease->ttl_s > 0);
      break;
    case 4:
      if (const auto lease = parse_etcd_keep_alive(body); lease.ok()) CHECK(lease->ttl_s >= 0);
      break;
    case 5:
      if (const auto message = parse_etcd_watch(body); message.ok()) CHECK(message->compact_revision >= 0);
      break;
    case 6:
      CHECK(parse_etcd_refusal(body).code >= 0);
      break;
    case 7:
      read_value(body);
      break;
    case 8:
      if (const auto homes = parse_fleet_homes(body); homes.ok()) {
        for (const NamedHomes& one : *homes) CHECK(!one.adapter.empty());
        CHECK(parse_fleet_homes(fleet_homes_text(*homes)).ok());
      }
      break;
    default:
      if (const auto member = parse_fleet_member(body); member.ok()) {
        CHECK(*parse_fleet_member(fleet_member_text(*member)) == *member);
      }
  }
  return 0;
}
