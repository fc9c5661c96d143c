// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_control.h"

#include <cstring>
#include <utility>

namespace loralei {
namespace {

// What goes before the text.
struct Head {
  uint32_t kind = 0;
  uint32_t unused = 0;
  uint64_t version = 0;
  int64_t memory_bytes = 0;
};

}  // namespace

Status send_control(int socket, const ControlMessage& message, std::span<const int> descriptors, int wait_ms) {
  const Head head{static_cast<uint32_t>(message.kind), 0, message.version, message.memory_bytes};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(message.text, 0, kMessageBytesMax - sizeof head);
  return send_message(socket, bytes, descriptors, wait_ms);
}

Received receive_control(int socket, ControlMessage& message, std::vector<Descriptor>& descriptors, MessageWait wait) {
  SocketMessage received;
  if (const Received what = receive_message(socket, received, wait); what != Received::kMessage) return what;
  Head head;
  const bool whole = received.bytes.size() >= sizeof head;
  if (whole) std::memcpy(&head, received.bytes.data(), sizeof head);
  message = {static_cast<ControlKind>(head.kind), head.version, head.memory_bytes,
             whole ? received.bytes.substr(sizeof head) : std::string()};
  descriptors = std::move(received.descriptors);
  return Received::kMessage;
}

}  // namespace loralei
