// SPDX-License-Identifier: Apache-2.0
// Tool calls in the forms that models were trained on: the grammar that holds generation
// to a form and to the tools' schemas, and the parser that turns streamed text back into
// content and calls.
//
//   hermes   <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>
//   llama3   {"name": "f", "parameters": {...}}
//   mistral  [TOOL_CALLS][{"name": "f", "arguments": {...}}]
//
// Several calls: hermes writes them in a row, each on a new line; llama3 joins
// them by "; ", with <|python_tag|> possibly before the first; mistral has them as
// members of one list.
//
// Thread: the grammar is made by pure functions; a ToolCallParser belongs to one
// choice of one response.
// Invariants of the parser: the events do not depend on how the text was split; hermes'
// opening marker is never passed on as content; the arguments that are streamed are
// the model's own text, passed on as it comes. A call's object is read whatever the
// order of its members and its white space are, and members besides name and arguments
// are read past; arguments that come before the name wait for it. White space around
// calls is no content.
// Failure: invalid_argument naming the tool and what is wrong with it. Malformed calls
// are no error: their text is content, without the markers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "schema/json_schema.h"

namespace loralei {

enum class ToolCallForm : unsigned char { kHermes, kLlama3, kMistral };

// Which form a model's chat template asks for: "<tool_call>" in its text means hermes;
// "[TOOL_CALLS]" mistral (but for the later form with [ARGS]); "parameters" beside "name"
// in the way Llama 3 asks for it llama3. None when the template shows no tools or names
// none of these forms.
std::optional<ToolCallForm> detect_tool_call_form(std::string_view chat_template_source);
// Some templates of Llama 3 refuse messages with more than one call: the model must
// not write them, then.
bool takes_single_calls_only(std::string_view chat_template_source);
// The id under which a call is answered, made of a text that no other call has:
// "call_..." or, where templates refuse any other, nine letters and digits.
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

// "tools" of a request (JSON text of [{"type": "function", "function": {"name",
// "parameters", ...}}]).
Result<std::vector<Tool>> read_tools(std::string_view json);

// kAuto: free text until a call begins, then the form, with the name before the arguments
// or behind them and with white space wherever JSON takes it (inside the arguments:
// as json_schema.h says). kRequired and kNamed: the form from the first token,
// spelt as above: the name comes first, since it chooses the schema of what follows.
// For kNone there is no grammar, and invalid_argument. In llama3's form a text that
// begins with "{" is a call, as there is no other marker. The schemas are named
// "the parameters of the tool 'f'".
Result<GrammarForm> tool_grammar_form(ToolCallForm form, const std::vector<Tool>& tools, const ToolChoice& choice);
// Compiled; `take` and `left_open` as compile_form() has them.
Result<GrammarPtr> compile_tool_grammar(ToolCallForm form, const std::vector<Tool>& tools, const ToolChoice& choice,
                                        const TakeMemory& take = {}, LeftOpen* left_open = nullptr);

struct ToolCallEvent {
  enum class Kind : unsigned char { kContent, kCallBegin, kArguments, kCallEnd };
  Kind kind = Kind::kContent;
  int index = 0;     // of the call, from 0
  std::string text;  // content, the call's name, or a piece of its arguments
};

// One call's JSON object, read once as it comes.
class ToolCallObject {
 public:
  enum class Found : unsigned char { kMore, kClosed, kMalformed };

  // in_list: a bracket or a comma of the list stands before it.
  explicit ToolCallObject(bool in_list) : place_(in_list ? Place::kSeparator : Place::kOpen) {}

  // `text`: from the beginning, longer than at the last call. Reads on to the object's
  // end, or to what cannot be.
  Found read(std::string_view text);
  size_t end() const { return at_; }  // of what was read
  const std::optional<std::string>& name() const { return name_; }
  bool has_arguments() const { return arguments_begin_ != std::string_view::npos; }
  bool arguments_closed() const { return arguments_end_ != std::string_view::npos; }
  size_t arguments_begin() const { return arguments_begin_; }
  size_t arguments_end() const { return arguments_closed() ? arguments_end_ : at_; }  // so far

 private:
  // What comes next. White space may, too, but inside a key or value.
  enum class Place : unsigned char {
    kSeparator,
    kOpen,
    kFirstKey,
    kKey,
    kInKey,
    kColon,
    kValue,
    kInValue,
    kBehindValue,
    kClosed
  };
  enum class Member : unsigned char { kName, kArguments, kOther };

  bool step(std::string_view text);  // false: this character cannot be here
  bool begin_value(char c);
  bool step_value(std::string_view text);
  bool end_value(std::string_view text, size_t end);
  Member member_of(std::string_view key) const;
  bool string_ends(char c);  // of a key or value: this character is its last

  Place place_;
  Member member_ = Member::kOther;
  size_t at_ = 0;
  size_t begin_ = 0;  // of the key or value
  int depth_ = 0;     // of brackets inside the value
  bool in_string_ = false, escaped_ = false;
  std::optional<std::string> name_;
  size_t arguments_begin_ = std::string_view::npos, arguments_end_ = std::string_view::npos;
};

class ToolCallParser {
 public:
  explicit ToolCallParser(ToolCallForm form) : form_(form), call_(in_list()) {}

  // Takes more text; returns what is now certain.
  std::vector<ToolCallEvent> push(std::string_view text);
  // The text has ended: what was held back becomes content, a call that is open ends.
  std::vector<ToolCallEvent> finish();

  // After finish: whether there are calls and the text did not end inside one, which
  // makes "tool_calls" of the finish_reason "stop".
  bool ends_with_calls() const { return calls_ > 0 && !cut_off_; }

 private:
  enum class State : unsigned char {
    kContent,  // free text, watching for a call
    kCall,     // behind the marker: the call's object
    kTail,     // behind the object, up to the end of the call
    kBroken,   // hermes: no call; waits for its end marker
    kPlain,    // the others: no call can come any more
  };
  using Events = std::vector<ToolCallEvent>;
  // Each handles what it can of pending_ and says whether to go on (with the
  // state it has set).
  void run(Events& out, bool at_end);
  bool run_content(Events& out, bool at_end);
  bool run_beginning(Events& out, bool at_end);
  bool run_call(Events& out, bool at_end);
  bool run_tail(bool at_end);
  bool run_broken(Events& out, bool at_end);
  bool in_list() const { return form_ == ToolCallForm::kMistral; }
  void emit_content(Events& out, std::string text);
  void expect_call();
  void begin_call(Events& out, std::string name);
  void pass_on_arguments(Events& out);
  void end_call(Events& out);

  ToolCallForm form_;
  State state_ = State::kContent;
  std::string pending_;  // text that no event has passed on yet; of a call, all of it
  int calls_ = 0;
  ToolCallObject call_;  // kCall
  bool begun_ = false;   // the call's events have
  size_t passed_ = 0;    // where in pending_ the arguments that were passed on end
  bool open_ = false;    // more of the arguments may come
  size_t searched_ = 0;  // kBroken: up to where there is no end marker
  bool cut_off_ = false;
};

}  // namespace loralei
