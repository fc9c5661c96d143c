// SPDX-License-Identifier: Apache-2.0
// ChatServer: a `loralei serve` of this process's own, for one conversation.
//
// Thread: one, which lives as long as the server may (ChildProcess).
// Ownership: the process, which ends with this object.
// Invariants: it listens on loopback alone, and answers nobody who does not know its key,
// which was drawn for it.
// Failure: what it said last.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "sys/child_process.h"

namespace loralei {

class ChatServer {
 public:
  // `words`: behind `loralei serve`. `waiting` is called now and then until it is ready;
  // false gives up.
  static Result<std::unique_ptr<ChatServer>> start(std::vector<std::string> words,
                                                   const std::function<bool()>& waiting);
  ~ChatServer();
  ChatServer(const ChatServer&) = delete;
  ChatServer& operator=(const ChatServer&) = delete;

  const std::string& url() const { return url_; }
  const std::string& key() const { return key_; }
  // Why it ended, with its last words; empty: it runs.
  std::string ended();

 private:
  ChatServer() = default;
  Status wait_ready(const std::function<bool()>& waiting);
  std::string last_words() const;

  Descriptor told_{-1}, output_{-1};
  std::unique_ptr<ChildProcess> process_;
  std::string url_, key_;
};

}  // namespace loralei
