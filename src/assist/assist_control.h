// SPDX-License-Identifier: Apache-2.0
// The few messages between a pool and a helper that are not about a step: adapters that
// come (with their memory) and go, and what the helper has to say.
//
// Thread: pure functions over a message socket; one thread a direction.
// Ownership: as of SocketMessage.
// Failure: sending answers a sentence. Nothing that arrives is believed: whoever receives
// looks at the kind, and at how many descriptors there are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sys/message_socket.h"

namespace loralei {

enum class ControlKind : uint32_t {
  kLearn = 1,  // an adapter: its memory and its table (assist_factors.h) come along
  kForget,     // an adapter
  kReady,      // the helper has started
  kRefused     // the helper cannot do it, and says why: an adapter, or (0) anything
};

struct ControlMessage {
  ControlKind kind{};
  uint64_t version = 0;      // of an adapter
  int64_t memory_bytes = 0;  // of its memory
  std::string text;          // cut where it is long
};

Status send_control(int socket, const ControlMessage& message, std::span<const int> descriptors = {}, int wait_ms = 0);
Received receive_control(int socket, ControlMessage& message, std::vector<Descriptor>& descriptors, MessageWait wait);

}  // namespace loralei
