// SPDX-License-Identifier: Apache-2.0
#include "sys/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "sys/env.h"
#include "sys/os_error.h"

namespace loralei {

ServiceManager ServiceManager::of_environment(LogSink& log) {
  return ServiceManager(env_string("NOTIFY_SOCKET").value_or(""), log);
}

void ServiceManager::ready(const std::string& status) {
  status_ = status;
  std::replace(status_.begin(), status_.end(), '\n', ' ');  // each line of a message is one of its fields
  reloaded();
}

void ServiceManager::reloading() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  tell("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now.tv_sec * 1'000'000 + now.tv_nsec / 1000));
}

void ServiceManager::reloaded() { tell("READY=1\nSTATUS=" + status_); }

void ServiceManager::stopping() { tell("STOPPING=1"); }

void ServiceManager::tell(const std::string& message) {
  if (socket_.empty()) return;
  const Status told = send(message);
  if (!told.ok()) log_.log(LogLevel::kWarning, told.error().message);
}

Status ServiceManager::send(const std::string& message) const {
  const std::string what = "the service manager cannot be told at NOTIFY_SOCKET=" + socket_;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if ((socket_[0] != '/' && socket_[0] != '@') || socket_.size() >= sizeof(address.sun_path))
    return invalid_argument(what + ": that is neither a path nor a name behind an @ of at most " +
                            std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';
  const int file = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (file < 0) return io_error(what + ": " + errno_text(errno));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const ssize_t sent =
      ::sendto(file, message.data(), message.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
  const int error = errno;
  ::close(file);
  if (sent != static_cast<ssize_t>(message.size())) return io_error(what + ": " + errno_text(error));
  return {};
}

}  // namespace loralei
