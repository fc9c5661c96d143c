// SPDX-License-Identifier: Apache-2.0
#include "apps/chat_server.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

#include "base/printable.h"
#include "sys/os_error.h"

namespace loralei {
namespace {

constexpr int kLookMs = 100, kEndMs = 10'000;
constexpr size_t kSecretBytes = 16, kWordsBytes = 4096;

Result<std::string> secret() {
  unsigned char bytes[kSecretBytes];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
    return io_error("no random numbers can be had: " + errno_text(errno));
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

// A socket of a name that nobody else knows, where the server says that it is ready
// (sys/service_manager.h).
Result<Descriptor> listen_for_readiness(const std::string& name) {
  Descriptor told(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!told.is_open()) return io_error("no socket can be had: " + errno_text(errno));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(told.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
    return io_error("a socket cannot be bound: " + errno_text(errno));
  return told;
}

}  // namespace

Result<std::unique_ptr<ChatServer>> ChatServer::start(std::vector<std::string> words,
                                                      const std::function<bool()>& waiting) {
  std::unique_ptr<ChatServer> server(new ChatServer());
  TRY_ASSIGN(server->key_, secret());
  TRY_ASSIGN(const std::string unique, secret());
  const std::string name = "loralei-chat-" + unique;
  TRY_ASSIGN(server->told_, listen_for_readiness(name));
  server->output_ = Descriptor(::memfd_create("loralei-chat", MFD_CLOEXEC));
  if (!server->output_.is_open()) return io_error("no memory for the server's log: " + errno_text(errno));
  // By the environment, where no list of processes shows them.
  ::setenv("LORALEI_API_KEY", server->key_.c_str(), 1);
  ::setenv("NOTIFY_SOCKET", ("@" + name).c_str(), 1);
  words.insert(words.begin(), "serve");
  for (const char* word : {"--host", "127.0.0.1", "--port", "0"}) words.emplace_back(word);
  auto process = ChildProcess::start(
      {.program = "/proc/self/exe", .args = std::move(words), .output = server->output_.get(), .own_group = true});
  ::unsetenv("LORALEI_API_KEY");
  ::unsetenv("NOTIFY_SOCKET");
  if (!process.ok()) return process.error();
  server->process_ = std::make_unique<ChildProcess>(*std::move(process));
  TRY(server->wait_ready(waiting));
  return server;
}

Status ChatServer::wait_ready(const std::function<bool()>& waiting) {
  for (;;) {
    pollfd polled{.fd = told_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&polled, 1, kLookMs) == 1) {
      char bytes[512];
      const ssize_t got = ::recv(told_.get(), bytes, sizeof bytes, 0);
      const std::string text(bytes, got > 0 ? static_cast<size_t>(got) : 0);
      const size_t port = text.rfind(" on port ");
      if (text.starts_with("READY=1") && port != text.npos) {
        url_ = "http://127.0.0.1:" + text.substr(port + 9);
        return {};
      }
    }
    if (const std::string why = ended(); !why.empty()) return io_error(why);
    if (!waiting()) return Error{ErrorCode::kCancelled, "the model was not waited for"};
  }
}

std::string ChatServer::ended() {
  const auto how = process_->reap();
  if (!how) return "";
  const std::string words = last_words();
  return words.empty() ? "the server ended with " + *how : words;
}

// The last line that says something; its own sentences begin with its name.
std::string ChatServer::last_words() const {
  std::string text(kWordsBytes, '\0');
  const off_t size = ::lseek(output_.get(), 0, SEEK_END);
  const off_t from = size > static_cast<off_t>(kWordsBytes) ? size - static_cast<off_t>(kWordsBytes) : 0;
  const ssize_t got = ::pread(output_.get(), text.data(), text.size(), from);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  std::string line;
  while (!text.empty() && (line.empty() || line.starts_with("Run with --help"))) {
    const size_t begin = text.rfind('\n') + 1;  // npos + 1 is 0
    line = text.substr(begin);
    text.resize(begin == 0 ? 0 : begin - 1);
  }
  if (line.starts_with("loralei serve: ")) line.erase(0, std::strlen("loralei serve: "));
  return printable(line);
}

ChatServer::~ChatServer() {
  if (process_ == nullptr) return;
  process_->signal(SIGTERM);
  pollfd polled{.fd = process_->pidfd(), .events = POLLIN, .revents = 0};
  ::poll(&polled, 1, kEndMs);  // else ChildProcess ends it
}

}  // namespace loralei
