// SPDX-License-Identifier: Apache-2.0
// A hub on loopback, with a second server where large files lie: what it has, what it was
// asked, and how it may misbehave.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "http/message.h"
#include "hub/hub_digest.h"
#include "hub/hub_pull.h"
#include "sys/memory_file_system.h"

namespace loralei::testing_support {

struct FakeRequest {
  std::string method, target, authorization, range;
};
struct FakeAnswer {
  int status = 200;
  HttpHeaders headers;
  std::string body;
  std::optional<size_t> cut_at;  // of the body; the connection ends there
};

// Answers requests on 127.0.0.1, each connection in a thread.
class FakeServer {
 public:
  using Handler = std::function<FakeAnswer(const FakeRequest&)>;
  explicit FakeServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~FakeServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int client : open_) ::shutdown(client, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    ::close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // Also the moment after which what the handler reads may be changed.
  std::vector<FakeRequest> asked() const {
    const std::lock_guard lock(handling_);
    return asked_;
  }

 private:
  void accept_all() {
    for (;;) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      const std::lock_guard lock(mutex_);
      open_.insert(client);
      threads_.emplace_back([this, client] { serve(client); });
    }
  }
  void serve(int client) {
    for (std::optional<FakeRequest> request; (request = read(client));) {
      FakeAnswer answer = handle(*request);
      std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " X\r\n";
      if (!has_header(answer.headers, "content-length") && !has_header(answer.headers, "transfer-encoding"))
        answer.headers.emplace_back("Content-Length", std::to_string(answer.body.size()));
      for (const auto& [name, value] : answer.headers) head += name + ": " + value + "\r\n";
      std::string body = request->method == "HEAD" ? "" : answer.body.substr(0, answer.cut_at.value_or(SIZE_MAX));
      const std::string all = head + "\r\n" + body;
      size_t sent = 0;
      while (sent < all.size()) {
        const ssize_t n = ::send(client, all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += static_cast<size_t>(n);
      }
      if (sent < all.size() || answer.cut_at) break;
    }
    const std::lock_guard lock(mutex_);
    open_.erase(client);
    ::close(client);
  }
  FakeAnswer handle(const FakeRequest& request) {
    const std::lock_guard lock(handling_);
    asked_.push_back(request);
    return handler_(request);
  }
  static std::optional<FakeRequest> read(int client) {
    std::string head;
    for (char c = 0; head.find("\r\n\r\n") == std::string::npos; head += c) {
      if (::recv(client, &c, 1, 0) != 1) return std::nullopt;
    }
    std::istringstream lines(head);
    FakeRequest request;
    lines >> request.method >> request.target;
    for (std::string line; std::getline(lines, line);) {
      const auto value = [&](const std::string& name) {
        return line.substr(name.size(), line.size() - name.size() - 1);
      };
      if (line.starts_with("Authorization: ")) request.authorization = value("Authorization: ");
      if (line.starts_with("Range: ")) request.range = value("Range: ");
    }
    return request;
  }

  const Handler handler_;
  int listener_ = -1, port_ = 0;
  mutable std::mutex handling_, mutex_;
  std::vector<FakeRequest> asked_;
  std::set<int> open_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// One repository, "org/name", whose files of a kilobyte and more lie on another server.
class FakeHub {
 public:
  std::map<std::string, std::string> files;
  std::string commit = std::string(40, 'a');
  // Asked first of every request to the hub, and of every one to the other server.
  std::function<std::optional<FakeAnswer>(const FakeRequest&)> fault, far_fault;
  bool ranges = true;

  std::string url() const { return hub_.url(); }
  std::string far_url() const { return far_.url(); }
  std::vector<FakeRequest> asked() const { return hub_.asked(); }
  std::vector<FakeRequest> far_asked() const { return far_.asked(); }

  static std::string digest(const std::string& bytes, bool large) {
    MemoryFileSystem one;
    one.put("/x", bytes);
    return *hub_digest(**one.open("/x"), std::string(large ? 64 : 40, '0'), nullptr);
  }
  static bool is_large(const std::string& bytes) { return bytes.size() >= 1024; }

 private:
  FakeAnswer answer(const FakeRequest& request) {
    if (fault) {
      if (auto said = fault(request)) return *said;
    }
    const std::string resolve = "/org/name/resolve/" + commit + "/";
    if (request.target.starts_with("/api/models/org/name/revision/")) return {200, {}, list()};
    if (!request.target.starts_with(resolve)) return {404, {{"X-Error-Code", "RepoNotFound"}}, "none"};
    const auto found = files.find(request.target.substr(resolve.size()));
    if (found == files.end()) return {404, {{"X-Error-Code", "EntryNotFound"}}, "none"};
    const std::string& bytes = found->second;
    HttpHeaders headers = {{"X-Repo-Commit", commit}};
    if (!is_large(bytes)) {
      headers.emplace_back("ETag", "\"" + digest(bytes, false) + "\"");
      return {200, headers, bytes};
    }
    headers.emplace_back("X-Linked-Etag", "\"" + digest(bytes, true) + "\"");
    headers.emplace_back("X-Linked-Size", std::to_string(bytes.size()));
    headers.emplace_back("Location", far_url() + "/far/" + found->first + "?signed=1");
    return {302, headers, "elsewhere"};
  }
  FakeAnswer far_answer(const FakeRequest& request) {
    if (far_fault) {
      if (auto said = far_fault(request)) return *said;
    }
    const std::string path = request.target.substr(5, request.target.find('?') - 5);
    return part(files.at(path), request.range);
  }
  std::string list() const {
    std::string text;
    for (const auto& [path, bytes] : files) {
      text += std::string(text.empty() ? "" : ",") + R"({"rfilename":")" + path + R"(","size":)" +
              std::to_string(bytes.size()) + "}";
    }
    return R"({"sha":")" + commit + R"(","siblings":[)" + text + "]}";
  }

 public:
  FakeAnswer part(const std::string& bytes, const std::string& range) const {
    if (range.empty() || !ranges) return {200, {{"ETag", "\"other\""}}, bytes};
    const size_t dash = range.find('-');
    const size_t first = std::stoull(range.substr(6, dash - 6)), last = std::stoull(range.substr(dash + 1));
    return {206,
            {{"Content-Range",
              "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" + std::to_string(bytes.size())}},
            bytes.substr(first, last - first + 1)};
  }

 private:
  FakeServer hub_{[this](const FakeRequest& request) { return answer(request); }};
  FakeServer far_{[this](const FakeRequest& request) { return far_answer(request); }};
};

}  // namespace loralei::testing_support
