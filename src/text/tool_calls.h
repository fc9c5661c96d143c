// SPDX-License-Identifier: Apache-2.0
// Tool calls in the forms that models were trained on: the grammar that holds generation to a form and to the tools'
// schemas, and the parser that turns streamed text back into content and calls.
//
//   hermes   <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>      several in a row, each on a new line
//   llama3   {"name": "f", "parameters": {...}}                               several joined by "; ", before the first
//            possibly <|python_tag|>
//   mistral  [TOOL_CALLS][{"name": "f", "arguments": {...}}]                  several as members of the one list
//
// Thread: compile_tool_grammar is a pure function; a ToolCallParser belongs to one choice of one response.
// Invariants of the parser: the events do not depend on how the text was split; hermes' opening marker is never passed
// on as content; the arguments that are streamed are the model's own text, passed on as it comes. White space around
// calls is no content. Failure: invalid_argument naming the tool and what is wrong with it. Malformed calls are no
// error: their text is content, without the markers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/json_schema.h"

namespace loralei {

enum class ToolCallForm : unsigned char { kHermes, kLlama3, kMistral };

// Which form a model's chat template asks for: "<tool_call>" in its text means hermes; "[TOOL_CALLS]" mistral (but for
// the later form with [ARGS]); "parameters" beside "name" in the way Llama 3 asks for it llama3. None when the template
// shows no tools or names none of these forms.
std::optional<ToolCallForm> detect_tool_call_form(std::string_view chat_template_source);
// Some templates of Llama 3 refuse messages with more than one call: the model must not write them, then.
bool takes_single_calls_only(std::string_view chat_template_source);
// The id under which a call is answered, made of a text that no other call has: "call_..." or, where templates refuse
// any other, nine letters and digits.
std::string tool_call_id(ToolCallForm form, std::string_view unique);

struct Tool {
  std::string name;
  std::string parameters;  // JSON text of a schema; empty: the tool takes none
  bool strict = false;     // what no grammar expresses of them is refused, not left open
};
inline constexpr int kMaxTools = 128;  // as the OpenAI API

enum class ToolChoiceMode : unsigned char { kNone, kAuto, kRequired, kNamed };
struct ToolChoice {
  ToolChoiceMode mode = ToolChoiceMode::kAuto;
  std::string name;      // kNamed
  bool parallel = true;  // false: one call, then the end
};

// "tools" of a request (JSON text of [{"type": "function", "function": {"name", "parameters", ...}}]).
Result<std::vector<Tool>> read_tools(std::string_view json);

// kAuto: free text until a call begins, then the form. kRequired and kNamed: the form from the first token. For kNone
// there is no grammar, and invalid_argument. In llama3's form a text that begins with "{" is a call, as there is no
// other marker. `left_open`: as compile_form has it, the schemas named "the parameters of the tool 'f'".
Result<GrammarPtr> compile_tool_grammar(ToolCallForm form, const std::vector<Tool>& tools, const ToolChoice& choice,
                                        const TakeMemory& take = {}, LeftOpen* left_open = nullptr);

struct ToolCallEvent {
  enum class Kind : unsigned char { kContent, kCallBegin, kArguments, kCallEnd };
  Kind kind = Kind::kContent;
  int index = 0;     // of the call, from 0
  std::string text;  // content, the call's name, or a piece of its arguments
};

class ToolCallParser {
 public:
  explicit ToolCallParser(ToolCallForm form) : form_(form) {}

  // Takes more text; returns what is now certain.
  std::vector<ToolCallEvent> push(std::string_view text);
  // The text has ended: what was held back becomes content, a call that is open ends.
  std::vector<ToolCallEvent> finish();

  // After finish: whether the response's finish_reason is "tool_calls".
  bool has_calls() const { return calls_ > 0; }

 private:
  enum class State : unsigned char {
    kContent,    // free text, watching for a call
    kHeader,     // behind the marker: {"name": "...", "arguments":
    kArguments,  // inside the arguments' object
    kTail,       // behind the arguments, up to the end of the call
    kBroken,     // hermes: not the usual header; read whole at the end marker
    kPlain,      // the others: no call can come any more
  };
  using Events = std::vector<ToolCallEvent>;
  // Each handles what it can of pending_ and says whether to go on (with the state it has set).
  void run(Events& out, bool at_end);
  bool run_content(Events& out, bool at_end);
  bool run_beginning(Events& out, bool at_end);
  bool run_header(Events& out, bool at_end);
  bool run_arguments(Events& out);
  bool run_tail(bool at_end);
  bool run_broken(Events& out, bool at_end);
  void emit_content(Events& out, std::string text);
  void begin_call(Events& out, std::string name);

  ToolCallForm form_;
  State state_ = State::kContent;
  std::string pending_;  // text that no event has passed on yet
  int calls_ = 0;
  int depth_ = 0;  // of brackets inside the arguments
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace loralei
