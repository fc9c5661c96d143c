// SPDX-License-Identifier: Apache-2.0
// Reasoning: what a model thinks before it answers, told apart from the answer by the
// marks that it was trained on.
//
//   think     <think>...</think>             DeepSeek, Qwen 3, GLM 4.5, ...
//   mistral   [THINK]...[/THINK]             Magistral
//   seed_oss  <seed:think>...</seed:think>
//   kimi      ◁think▷...◁/think▷
//   granite   Here is my thought process: ... Here is my response: ...
//   gpt_oss   <|channel|>analysis<|message|>...
//             <|end|><|start|>assistant<|channel|>final<|message|>
//
// Thread: pure functions; a ReasoningStream belongs to one choice of one answer.
// Ownership: forms are static text.
// Invariants of the stream: what comes out does not depend on how the text was split;
// neither the marks nor white space beside them are passed on; all other text is,
// in its order, reasoning before content. A text that ends before its reasoning
// does has no content.
// Failure: none; a text without marks is content as it is.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schema/json_schema.h"

namespace loralei {

struct ReasoningForm {
  std::string_view open, close;
  bool always = false;  // the model begins inside, also where the prompt shows no mark
  // What an answer without reasoning begins with, which is no part of it; empty: nothing.
  std::string_view answer = "";
  // What the marks are made of, where that is several special tokens and text.
  std::array<std::string_view, 4> tokens = {};
};

// By the names that vLLM and SGLang have for the models ("deepseek_r1", "qwen3"; "-"
// counts as "_"), and those above.
std::optional<ReasoningForm> reasoning_form(std::string_view name);
std::vector<std::string_view> reasoning_form_names();
// The one whose marks a chat template writes or looks for.
std::optional<ReasoningForm> detect_reasoning_form(std::string_view chat_template_source);

// Where an answer begins, given the prompt before it.
enum class ReasoningBegin : unsigned char {
  kInside,   // the prompt has opened it
  kMaybe,    // the answer may open it
  kContent,  // the prompt has closed it: the model was asked not to think
};
// `continued`: the content of the final message where the answer goes on with
// it; else empty.
ReasoningBegin reasoning_begin(const ReasoningForm& form, std::string_view prompt, std::string_view continued);

// Of one request.
struct Reasoning {
  ReasoningForm form;
  ReasoningBegin begin = ReasoningBegin::kMaybe;
};

// The form of a whole text whose answer has the form `answer`, which has none for the
// reasoning before it. `must`: the answer may not be left out by ending while reasoning;
// false for an `answer` that is free text anyway.
GrammarForm behind_reasoning(const Reasoning& reasoning, GrammarForm answer, bool must);

class ReasoningStream {
 public:
  explicit ReasoningStream(const Reasoning& reasoning);

  struct Piece {
    std::string reasoning, content;
  };
  // `last`: the text ends with this piece.
  Piece push(std::string_view text, bool last);
  bool inside() const { return state_ == State::kInside; }

 private:
  enum class State : unsigned char {
    kStart,    // whether there is any is not known yet
    kInside,   // reasoning
    kBehind,   // white space behind its end
    kContent,  // nothing but content any more
  };
  // Each handles what it can of pending_ and says whether to go on (with the
  // state it has set).
  bool run_start(bool last);
  bool run_inside(Piece& piece, bool last);
  bool run_behind();

  ReasoningForm form_;
  State state_;
  bool may_open_ = true;  // kInside: none of its marks has come
  bool begun_ = false;    // kInside: something but white space has come
  std::string pending_;   // not passed on yet
};

}  // namespace loralei
