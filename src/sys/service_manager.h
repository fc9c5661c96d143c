// SPDX-License-Identifier: Apache-2.0
// ServiceManager: tells the service manager that started this process (systemd,
// Type=notify) when it is ready, reads its files again, and ends. Without one, nothing is
// done.
//
// Thread: one. Ownership: borrows the log; each message has a socket of its own.
// Failure: a manager that cannot be told is told nothing, and the log says so.
// Source: sd_notify(3), the protocol's text.
#pragma once

#include <string>

#include "base/log.h"
#include "base/result.h"

namespace loralei {

class ServiceManager {
 public:
  // `socket`: a path, or behind an @ a name without file; empty: nobody is told.
  ServiceManager(std::string socket, LogSink& log) : socket_(std::move(socket)), log_(log) {}
  static ServiceManager of_environment(LogSink& log);  // the one that NOTIFY_SOCKET names

  void ready(const std::string& status);  // a line that `systemctl status` shows
  void reloading();
  void reloaded();  // ready as before
  void stopping();

 private:
  void tell(const std::string& message);
  [[nodiscard]] Status send(const std::string& message) const;

  const std::string socket_;
  LogSink& log_;
  std::string status_;
};

}  // namespace loralei
