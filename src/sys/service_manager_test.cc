// SPDX-License-Identifier: Apache-2.0
#include "sys/service_manager.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "base/log_test_util.h"

namespace loralei {
namespace {

// What systemd has at the other end.
class Manager {
 public:
  explicit Manager(const std::string& name) {
    file_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(file_, reinterpret_cast<const sockaddr*>(&address), size), 0);
  }
  ~Manager() { ::close(file_); }
  std::string heard() {
    char text[512];
    const ssize_t got = ::recv(file_, text, sizeof(text), MSG_DONTWAIT);
    return got < 0 ? "" : std::string(text, static_cast<size_t>(got));
  }

 private:
  int file_ = -1;
};

TEST(ServiceManager, IsToldOfABeginningAReloadAndAnEnd) {
  CollectingLog log;
  for (const std::string& name : {testing::TempDir() + "loralei-notify-" + std::to_string(::getpid()),
                                  "@loralei-notify-" + std::to_string(::getpid())}) {
    Manager manager(name);
    ServiceManager service(name, log);
    service.ready("serves\n'a' at b");
    EXPECT_EQ(manager.heard(), "READY=1\nSTATUS=serves 'a' at b");
    service.reloading();
    const std::string reload = manager.heard();
    EXPECT_EQ(reload.rfind("RELOADING=1\nMONOTONIC_USEC=", 0), 0u) << reload;
    EXPECT_EQ(reload.find_first_not_of("0123456789", reload.find('=', 12) + 1), std::string::npos) << reload;
    service.reloaded();
    EXPECT_EQ(manager.heard(), "READY=1\nSTATUS=serves 'a' at b");
    service.stopping();
    EXPECT_EQ(manager.heard(), "STOPPING=1");
    ::unlink(name.c_str());
  }
  EXPECT_EQ(log.text(), "");
}

TEST(ServiceManager, WithoutOneNothingIsDone) {
  CollectingLog log;
  ::unsetenv("NOTIFY_SOCKET");
  ServiceManager service = ServiceManager::of_environment(log);
  service.ready("x");
  service.stopping();
  EXPECT_EQ(log.text(), "");
}

TEST(ServiceManager, OneThatCannotBeToldIsNoHarm) {
  for (const std::string& name : {std::string("relative"), "/" + std::string(200, 'x'), std::string("/nowhere/socket"),
                                  std::string("@loralei-nobody-listens")}) {
    CollectingLog log;
    ServiceManager(name, log).stopping();
    EXPECT_NE(log.text().find("NOTIFY_SOCKET=" + name), std::string::npos) << log.text();
  }
}

}  // namespace
}  // namespace loralei
