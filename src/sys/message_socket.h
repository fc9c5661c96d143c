// SPDX-License-Identifier: Apache-2.0
// Messages between two processes of this machine, with descriptors if wanted, over a
// socket that keeps them apart (SOCK_SEQPACKET).
//
// Thread: pure functions over a socket; one thread a direction.
// Ownership: descriptors that arrive belong to the message; those that are sent stay the
// sender's.
// Failure: sending answers a sentence; a side that is gone is an answer of receiving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sys/posix_file.h"

namespace loralei {

inline constexpr size_t kMessageBytesMax = 1024, kMessageDescriptorsMax = 4;

struct SocketMessage {
  std::string bytes;
  std::vector<Descriptor> descriptors;
};

// Two ends of a connection.
Result<std::pair<Descriptor, Descriptor>> message_socket_pair();
// kOverloaded: the other side has read so little that there was no room within `wait_ms`.
Status send_message(int socket, std::string_view bytes, std::span<const int> descriptors, int wait_ms);
enum class Received : uint8_t { kMessage, kNothing, kEnd };  // kEnd: the other side is gone
enum class MessageWait : uint8_t { kNo, kYes };
Received receive_message(int socket, SocketMessage& message, MessageWait wait);
void end_messages(int socket);  // both sides receive kEnd from now on

}  // namespace loralei
