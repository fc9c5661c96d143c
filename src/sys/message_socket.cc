// SPDX-License-Identifier: Apache-2.0
#include "sys/message_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "sys/os_error.h"

namespace loralei {
namespace {

union Rights {
  cmsghdr align;
  char bytes[CMSG_SPACE(kMessageDescriptorsMax * sizeof(int))];
};

ssize_t send_now(int socket, const msghdr& header) {
  ssize_t sent = 0;
  do sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  return sent;
}

std::vector<Descriptor> take_descriptors(msghdr& header) {
  std::vector<Descriptor> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof number, sizeof number);
      taken.emplace_back(number);
    }
  }
  return taken;
}

}  // namespace

Result<std::pair<Descriptor, Descriptor>> message_socket_pair() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return os_error("cannot make", "a socket to another process", errno);
  return std::pair{Descriptor(ends[0]), Descriptor(ends[1])};
}

Status send_message(int socket, std::string_view bytes, std::span<const int> descriptors, int wait_ms) {
  CHECK(!bytes.empty() && bytes.size() <= kMessageBytesMax && descriptors.size() <= kMessageDescriptorsMax);
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  Rights rights{};
  if (!descriptors.empty()) {
    header.msg_control = rights.bytes;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const given = CMSG_FIRSTHDR(&header);
    given->cmsg_level = SOL_SOCKET;
    given->cmsg_type = SCM_RIGHTS;
    given->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(given), descriptors.data(), descriptors.size_bytes());
  }
  while (send_now(socket, header) < 0) {
    const int error = errno;
    if (error != EAGAIN) return os_error("cannot send to", "another process", error);
    pollfd polled{.fd = socket, .events = POLLOUT, .revents = 0};
    if (::poll(&polled, 1, wait_ms) == 0)
      return Error{ErrorCode::kOverloaded, "another process does not read what it is sent"};
  }
  return {};
}

Received receive_message(int socket, SocketMessage& message, MessageWait wait) {
  char bytes[kMessageBytesMax];
  iovec part{bytes, sizeof bytes};
  Rights rights{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = rights.bytes;
  header.msg_controllen = sizeof rights.bytes;
  ssize_t got = 0;
  do got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | (wait == MessageWait::kNo ? MSG_DONTWAIT : 0));
  while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? Received::kNothing : Received::kEnd;
  if (got == 0) return Received::kEnd;
  message.descriptors = take_descriptors(header);
  message.bytes.assign(bytes, static_cast<size_t>(got));
  return Received::kMessage;
}

void end_messages(int socket) { ::shutdown(socket, SHUT_RDWR); }

}  // namespace loralei
