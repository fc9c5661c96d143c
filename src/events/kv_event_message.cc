// SPDX-License-Identifier: Apache-2.0
#include "events/kv_event_message.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

namespace loralei {
namespace {

using Json = nlohmann::json;

std::string hex16(uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = kDigits[value >> (60 - 4 * i) & 15];
  return text;
}

std::string shortest(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

const char* medium_of(KvTier tier) { return tier == KvTier::kMemory ? "GPU" : "STORAGE"; }

// Whether `next` can stand in one event with what ends with `last`.
bool goes_on(const KvEvent& last, const KvEvent& next) {
  if (next.kind != last.kind || next.tier != last.tier) return false;
  if (next.kind == KvEvent::Kind::kCleared) return false;
  if (next.kind == KvEvent::Kind::kRemoved || next.tier == KvTier::kDisk) return true;
  return next.parent == last.hash && next.owner == last.owner;
}

Json hashes_of(std::span<const KvEvent> events) {
  Json hashes = Json::array();
  for (const KvEvent& event : events) hashes.push_back(event.hash);
  return hashes;
}

Json stored(std::span<const KvEvent> events, const AdapterNameOf& name_of) {
  const KvEvent& first = events.front();
  Json tokens = Json::array();
  Json name, parent;
  if (first.tier == KvTier::kMemory) {
    for (const KvEvent& event : events) {
      for (const TokenId token : event.tokens) tokens.push_back(static_cast<uint32_t>(token));
    }
    if (first.parent != 0) parent = first.parent;
    if (std::string text = kv_owner_name(first.owner, name_of); !text.empty()) name = std::move(text);
  }
  Json keys;
  if (first.owner.salt != 0) {
    keys = Json::array();
    const std::string salt = "loralei-salt:" + hex16(first.owner.salt);
    for (size_t block = 0; block < events.size(); ++block) keys.push_back(Json::array({salt}));
  }
  return {"BlockStored", hashes_of(events),     std::move(parent), std::move(tokens), kKvBlockTokens,
          nullptr,       medium_of(first.tier), std::move(name),   std::move(keys)};
}

Json said_of(std::span<const KvEvent> events, const AdapterNameOf& name_of) {
  switch (events.front().kind) {
    case KvEvent::Kind::kStored:
      return stored(events, name_of);
    case KvEvent::Kind::kRemoved:
      return {"BlockRemoved", hashes_of(events), medium_of(events.front().tier)};
    case KvEvent::Kind::kCleared:
      break;
  }
  return Json::array({"AllBlocksCleared"});
}

}  // namespace

std::string kv_owner_name(const KvOwner& owner, const AdapterNameOf& name_of) {
  if (owner.adapters == 0) return {};
  if (owner.adapters > 1) return "sum-" + hex16(owner.identity);
  std::string name = name_of ? name_of(owner.adapter) : std::string();
  if (name.empty()) name = digest_hex(owner.adapter);
  return owner.scale == 1.0f ? name : name + "*" + shortest(owner.scale);
}

std::string kv_event_message(double seconds, std::span<const KvEvent> events, const AdapterNameOf& name_of) {
  Json said = Json::array();
  for (size_t begin = 0, end = 0; begin < events.size(); begin = end) {
    for (end = begin + 1; end < events.size() && goes_on(events[end - 1], events[end]);) ++end;
    said.push_back(said_of(events.subspan(begin, end - begin), name_of));
  }
  std::string message;
  Json::to_msgpack(Json::array({seconds, std::move(said), 0}), message);
  return message;
}

}  // namespace loralei
