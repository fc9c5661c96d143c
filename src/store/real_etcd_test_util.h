// SPDX-License-Identifier: Apache-2.0
// RealEtcd: for tests, an etcd of one member as a process of its own, where
// tools/test_clients.sh has unpacked one (or LORALEI_ETCD names one).
//
// Thread: one. Ownership: the process and its folder.
// Failure: nothing where there is no program; tests skip then.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "base/log_test_util.h"
#include "store/etcd_client.h"
#include "store/patience_test_util.h"
#include "sys/child_process.h"

namespace loralei::test {

inline std::string etcd_binary() {
  const char* given = std::getenv("LORALEI_ETCD");
  const std::string path = given != nullptr ? given : LORALEI_SOURCE_DIR "/build/clients/of/etcd/usr/bin/etcd";
  return std::filesystem::exists(path) ? path : "";
}
inline constexpr const char* kNoEtcd = "no etcd here: tools/test_clients.sh brings one, or LORALEI_ETCD names one";

inline int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

class RealEtcd {
 public:
  RealEtcd() {
    std::string folder =
        (std::filesystem::is_directory("/dev/shm") ? "/dev/shm/" : testing::TempDir()) + std::string("etcd-XXXXXX");
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    port_ = free_port();
    peer_port_ = free_port();
    start();
  }
  ~RealEtcd() {
    kill();
    std::filesystem::remove_all(folder_);
  }
  EtcdOptions options() const {
    EtcdOptions options;
    options.endpoints = {{"127.0.0.1", port_}};
    return options;
  }
  void start() {
    const std::string url = "http://127.0.0.1:" + std::to_string(port_);
    const std::string peer = "http://127.0.0.1:" + std::to_string(peer_port_);
    auto child = ChildProcess::start({.program = etcd_binary(),
                                      .args = {"--data-dir",
                                               folder_.string() + "/data",
                                               "--listen-client-urls",
                                               url,
                                               "--advertise-client-urls",
                                               url,
                                               "--listen-peer-urls",
                                               peer,
                                               "--initial-advertise-peer-urls",
                                               peer,
                                               "--initial-cluster",
                                               "default=" + peer,
                                               "--heartbeat-interval",
                                               "10",
                                               "--election-timeout",
                                               "100",
                                               "--logger",
                                               "zap",
                                               "--log-outputs",
                                               "/dev/null"},
                                      .descriptors = {}});
    ASSERT_TRUE(child.ok()) << child.error().message;
    process_.emplace(*std::move(child));
    CollectingLog log;
    auto client = EtcdClient::start(options(), log);
    ASSERT_TRUE(client.ok());
    until([&] { return (*client)->get("a").ok(); });
  }
  void kill() {
    if (process_) process_->kill();
    process_.reset();
  }
  void signal(int number) { ::kill(process_->pid(), number); }

 private:
  std::filesystem::path folder_;
  int port_ = 0, peer_port_ = 0;
  std::optional<ChildProcess> process_;
};

}  // namespace loralei::test
