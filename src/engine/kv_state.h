// SPDX-License-Identifier: Apache-2.0
// KvState: what the KV cache holds and for whom, at one moment between two steps.
//
// Plain values. Made when somebody asks (KvCommand): that costs the engine's thread what
// is held in all, and a step nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/apps.h"
#include "kv/kv_disk_stats.h"
#include "kv/kv_summary.h"

namespace loralei {

// Asks for a KvState; it comes with the reply.
struct KvCommand {
  uint64_t ticket = 0;
  int32_t listed_max = 100;  // holders that are named
};

// Whoever computes with the same adapters, scales and salt.
struct KvHolder {
  struct Adapter {
    std::string version;  // hex digest
    float scale = 1.0f;
    int32_t from_token = 0;  // where its part of the text begins
    int32_t from_layer = 0;  // below it all is the base's, before the last tokens of a prompt
  };
  std::vector<Adapter> adapters;  // none: the base
  bool salted = false;
  int64_t tokens = 0, bytes = 0;
  int64_t running_tokens = 0;  // of these: of sequences that run
  int64_t alone_tokens = 0;    // of these: of texts of which nobody else holds anything
  int64_t hit_tokens = 0;      // of these: found again instead of computed, each time counted
  double saved_s = 0;          // what computing those would take now
  // Of these: in blocks; encoded alone, and as differences from others' (both may lie in
  // blocks, too); and what is gone though something is held behind it.
  int64_t raw_tokens = 0, alone_coded_tokens = 0, delta_tokens = 0, gone_tokens = 0;
  int64_t stored_bytes = 0;  // of blocks and of what is encoded
};

// An application, by the id that requests or PUT /v1/apps gave it.
struct KvAppState {
  std::string id;
  AppState state = AppState::kForeground;
  int64_t tokens = 0;        // that it uses
  int64_t alone_tokens = 0;  // of these: that no other one uses
};

// Says how an application stands. What only killed ones use goes at once; the reply says
// how many bytes, or that too many have a state.
struct AppCommand {
  uint64_t ticket = 0;
  std::string id;  // not empty
  AppState state = AppState::kForeground;
};

struct KvState {
  int32_t block_tokens = 0;
  int64_t block_bytes = 0;
  int64_t total_tokens = 0, free_tokens = 0, running_tokens = 0, cached_tokens = 0;  // whole blocks
  int64_t text_tokens = 0;  // of texts, however many hold something there
  int64_t held_tokens = 0;  // of all holders
  int32_t holders = 0;
  KvCoded coded;
  std::optional<KvStates> states;   // where sequences have one beside their KV
  std::optional<KvDiskStats> disk;  // where prefixes are kept on disk
  int64_t restored_tokens = 0;      // that came back from there
  std::vector<KvHolder> first;      // those that hold most
  std::vector<KvAppState> apps;     // all that use something or have a state
};

}  // namespace loralei
