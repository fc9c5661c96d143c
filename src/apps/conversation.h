// SPDX-License-Identifier: Apache-2.0
// A conversation with a server: what was said, what the next request is, and the orders
// that somebody types between.
//
// Thread: one.
// Ownership: values.
// Invariant: turns alternate, the user's first; a question without an answer is the last
// one or none.
// Failure: orders that are none come back as sentences.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace loralei {

struct ChatOrder {
  enum class Kind : unsigned char {
    kSay,
    kAdapter,
    kSystem,
    kClear,
    kUndo,
    kRetry,
    kSet,
    kSave,
    kHelp,
    kQuit,
    kUnknown
  };
  Kind kind = Kind::kSay;
  std::string text;  // what is said, or what stands behind the order
};
// A line that begins with / is an order; // says a line that begins with one.
ChatOrder read_chat_order(std::string_view line);
const char* chat_help();

class Conversation {
 public:
  explicit Conversation(std::string model) : model_(std::move(model)) {}

  const std::string& model() const { return model_; }
  void use_model(std::string model) { model_ = std::move(model); }
  void set_system(std::string text) { system_ = std::move(text); }
  // "temperature 0.2": temperature, top_p, max_tokens, seed; "temperature" alone takes it
  // back.
  Status set(std::string_view name_and_value);

  void ask(std::string question) { turns_.push_back({"user", std::move(question)}); }
  void answered(std::string answer) { turns_.push_back({"assistant", std::move(answer)}); }
  void take_back_question();           // one that nobody answered
  bool undo();                         // the last question and its answer; false: there is none
  std::optional<std::string> again();  // the last question, taken back with its answer
  void clear() { turns_.clear(); }
  size_t turns() const { return turns_.size(); }

  std::string request() const;  // the body for /v1/chat/completions, streamed
  std::string saved() const;    // what was said, as JSON

 private:
  struct Turn {
    std::string role, content;
  };
  std::string messages(int indent) const;

  std::string model_, system_;
  std::vector<Turn> turns_;
  std::vector<std::pair<std::string, std::string>> settings_;  // names and JSON values
};

}  // namespace loralei
