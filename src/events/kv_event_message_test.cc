// SPDX-License-Identifier: Apache-2.0
// The bytes are those of msgspec, which vLLM says its events with: made by
//   python3 -m venv /tmp/v && /tmp/v/bin/pip install msgspec==0.23.0
//   /tmp/v/bin/python tests/vectors/make_kv_events.py
#include "events/kv_event_message.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace loralei {
namespace {

using Json = nlohmann::json;

constexpr double kSeconds = 1764500000.1;

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

KvEvent stored(uint64_t hash, uint64_t parent, TokenId token, const KvOwner& owner = {}) {
  KvEvent event{.kind = KvEvent::Kind::kStored, .hash = hash, .parent = parent, .owner = owner};
  event.tokens.fill(token);
  return event;
}
KvEvent on_disk(KvEvent::Kind kind, uint64_t hash) { return {.kind = kind, .tier = KvTier::kDisk, .hash = hash}; }
KvEvent removed(uint64_t hash) { return {.kind = KvEvent::Kind::kRemoved, .hash = hash}; }

KvOwner adapter(uint8_t digest, float scale = 1) {
  KvOwner owner{.adapters = 1, .scale = scale, .identity = digest};
  owner.adapter[0] = digest;
  return owner;
}
std::string name_of(const Digest& version) { return version[0] == 1 ? "sql" : ""; }

TEST(KvEventMessage, IsByteForByteWhatMsgspecMakesOfVllmsStructs) {
  KvEvent first = stored(1, 0, 0);
  first.tokens = {0, 127, 128, 65535, 65536, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  KvOwner salted = adapter(1, 0.5f);
  salted.salt = 255;
  const std::vector<KvEvent> events = {{},
                                       first,
                                       stored(UINT64_MAX, 1, 7),
                                       stored(300, UINT64_MAX, 9, salted),
                                       on_disk(KvEvent::Kind::kStored, 1),
                                       on_disk(KvEvent::Kind::kStored, 300),
                                       removed(300),
                                       removed(1),
                                       on_disk(KvEvent::Kind::kRemoved, 300)};
  EXPECT_EQ(kv_event_message(kSeconds, events, name_of),
            bytes_of("93cb41da4b08880666669691b0416c6c426c6f636b73436c656172656499ab426c6f636b53746f7265649201cfffffff"
                     "ffffffffffc0dc0020007fcc80cdffffce0001000005060708090a0b0c0d0e0f07070707070707070707070707070707"
                     "10c0a3475055c0c099ab426c6f636b53746f72656491cd012ccfffffffffffffffffdc00100909090909090909090909"
                     "090909090910c0a3475055a773716c2a302e359191bd6c6f72616c65692d73616c743a30303030303030303030303030"
                     "30666699ab426c6f636b53746f7265649201cd012cc09010c0a753544f52414745c0c093ac426c6f636b52656d6f7665"
                     "6492cd012c01a347505593ac426c6f636b52656d6f76656491cd012ca753544f5241474500"));
}

// What would be another chain, owner, tier or kind is another event.
TEST(KvEventMessage, OneChainOfOneOwnerIsOneEvent) {
  const auto said = [](std::vector<KvEvent> events) {
    return Json::from_msgpack(kv_event_message(kSeconds, events, name_of))[1];
  };
  EXPECT_EQ(said({stored(1, 0, 5), stored(2, 1, 6), stored(3, 2, 7)}).size(), 1u);
  EXPECT_EQ(said({stored(1, 0, 5), stored(2, 0, 6)}).size(), 2u);
  EXPECT_EQ(said({stored(1, 0, 5), stored(2, 1, 6, adapter(1))}).size(), 2u);
  EXPECT_EQ(said({stored(1, 0, 5), removed(1), stored(1, 0, 5)}).size(), 3u);
  EXPECT_EQ(said({{}, {}}).size(), 2u);
  const Json both = said({stored(1, 0, 5), stored(2, 1, 6)});
  EXPECT_EQ(both[0][1], Json::array({1, 2}));
  EXPECT_EQ(both[0][3].size(), 2u * kKvBlockTokens);
  EXPECT_EQ(both[0].size(), 9u);
  EXPECT_TRUE(both[0][8].is_null()) << "extra keys are of salts alone";
}

TEST(KvEventMessage, NamesOfOwnersAreNeverTheBasesAndNeverEachOthers) {
  EXPECT_EQ(kv_owner_name({}, name_of), "");
  EXPECT_EQ(kv_owner_name(adapter(1), name_of), "sql");
  std::set<std::string> names = {"", "sql"};
  KvOwner sum = adapter(1), other = adapter(1);
  sum.adapters = other.adapters = 2;
  sum.identity = 7;
  other.identity = 8;
  for (const KvOwner& owner :
       {adapter(1, 0.5f), adapter(1, 0.25f), adapter(2), adapter(3), adapter(2, 0.5f), sum, other})
    EXPECT_TRUE(names.insert(kv_owner_name(owner, name_of)).second) << kv_owner_name(owner, name_of);
  EXPECT_EQ(kv_owner_name(adapter(2), {}).size(), 64u) << "of one that is not served any more: its digest";
}

}  // namespace
}  // namespace loralei
