// SPDX-License-Identifier: Apache-2.0
// ChatClient: asks a server of OpenAI's API, ours or another, and hears the answer as it
// is made.
//
// Thread: one; an answer is heard on a thread of its own, so that the caller can end it
// at once.
// Ownership: owns its connections.
// Invariant: behind ask() nothing of that answer is told any more.
// Failure: the server's own sentence where it has one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/url.h"

namespace loralei {

class TlsTrust;

struct ChatAnswer {
  std::string text;
  int64_t tokens = 0;
  double first_s = 0, all_s = 0;  // until the first token, and the last
  bool stopped = false;           // by the caller
  bool cut = false;               // by the limit of tokens
};

class ChatClient {
 public:
  struct Heard {
    std::function<void(std::string_view)> text;       // of the answer, as it comes
    std::function<void(std::string_view)> reasoning;  // before it
  };

  static Result<ChatClient> to(const std::string& url, std::string key);

  // The names that can be asked; the base's first.
  Result<std::vector<std::string>> models() const;
  // `stopped` is asked every few milliseconds.
  Result<ChatAnswer> ask(const std::string& body, const Heard& heard, const std::function<bool()>& stopped) const;

 private:
  struct Running;
  static void run(const std::shared_ptr<Running>& running);

  HttpUrl url_;
  std::string key_;
  std::shared_ptr<const TlsTrust> trust_;
};

}  // namespace loralei
