// SPDX-License-Identifier: Apache-2.0
#include "serve/structured_output.h"

namespace loralei {

template <typename Compile>
Parsed<GrammarPtr> GrammarCache::find_or_compile(const std::string& key, const std::string& param, Compile compile) {
  {
    std::lock_guard lock(mutex_);
    const auto known = programs_.find(key);
    if (known != programs_.end()) return known->second;
  }
  Result<GrammarPtr> program = compile();
  if (!program.ok()) {
    ApiError error = to_api_error(program.error(), param);
    error.status = 400;  // a grammar beyond the limits is the request's fault, not its size
    return error;
  }
  const int64_t bytes = (*program)->bytes() + static_cast<int64_t>(key.size());
  std::lock_guard lock(mutex_);
  GrammarPtr counted_program = counted(std::move(*program));
  if (!counted_program) {
    return to_api_error({ErrorCode::kOverloaded,
                         "The grammars of running requests take as much memory as they may; try again in a moment."},
                        param);
  }
  if (programs_.size() >= kGrammarsKept || bytes_ + bytes > kGrammarBytesKept) {
    programs_.clear();
    bytes_ = 0;
  }
  // A key alone may be as large as a request's body.
  if (bytes <= kGrammarBytesKept && programs_.emplace(key, counted_program).second) bytes_ += bytes;
  return counted_program;
}

GrammarPtr GrammarCache::counted(GrammarPtr program) {
  const int64_t bytes = program->bytes();
  const auto has_room = [&] { return *alive_bytes_ + bytes <= max_alive_bytes_; };
  if (!has_room()) {  // those that are only kept go first
    programs_.clear();
    bytes_ = 0;
  }
  if (!has_room()) return nullptr;
  *alive_bytes_ += bytes;
  const GrammarProgram* const raw = program.get();
  return {raw, [alive = alive_bytes_, bytes, program = std::move(program)](const GrammarProgram*) { *alive -= bytes; }};
}

int64_t GrammarCache::bytes_kept() {
  std::lock_guard lock(mutex_);
  return bytes_;
}

Parsed<GrammarPtr> GrammarCache::of_output(const StructuredOutput& output) {
  switch (output.format) {
    case OutputFormat::kText:
      return GrammarPtr();
    case OutputFormat::kJsonObject:
      return find_or_compile("o", output.param, [] { return compile_json_object(); });
    case OutputFormat::kJsonSchema:
      return find_or_compile("s" + output.schema, output.param, [&] { return compile_json_schema(output.schema); });
    case OutputFormat::kRegex:
      return find_or_compile("r" + output.regex, output.param, [&] { return compile_regex(output.regex); });
    case OutputFormat::kChoice: {
      std::string key = "c";
      for (const std::string& choice : output.choices) key += std::to_string(choice.size()) + ":" + choice;
      return find_or_compile(key, output.param, [&] { return compile_choice(output.choices); });
    }
  }
  return GrammarPtr();
}

Parsed<GrammarPtr> GrammarCache::of_tools(ToolCallForm form, bool parallel, const ChatRequest& request) {
  std::vector<Tool> tools;
  ToolChoice choice;
  switch (request.tool_choice) {
    case WireToolChoice::kAuto:
      choice.mode = ToolChoiceMode::kAuto;
      break;
    case WireToolChoice::kNone:
      return GrammarPtr();
    case WireToolChoice::kRequired:
      choice.mode = ToolChoiceMode::kRequired;
      break;
    case WireToolChoice::kFunction:
      choice.mode = ToolChoiceMode::kNamed;
      break;
  }
  choice.name = request.tool_choice_name;
  choice.parallel = parallel;
  std::string key = "t" + std::to_string(static_cast<int>(form)) + std::to_string(static_cast<int>(choice.mode)) +
                    (choice.parallel ? "p" : "s") + choice.name;
  for (const ToolSpec& tool : request.prompt.tools) {
    tools.push_back({tool.name, tool.parameters});
    key += "|" + tool.name + "=" + tool.parameters;
  }
  return find_or_compile(key, "tools", [&] { return compile_tool_grammar(form, tools, choice); });
}

}  // namespace loralei
