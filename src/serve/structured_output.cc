// SPDX-License-Identifier: Apache-2.0
#include "serve/structured_output.h"

#include <algorithm>

#include "base/printable.h"
#include "serve/request_memory.h"

namespace loralei {
namespace {

constexpr int64_t kCompileBytes = 2 * kMiB;  // of the smallest grammar while it is built

SchemaReading reading_of(const StructuredOutput& output) {
  if (!output.strict) return SchemaReading::kGuided;
  return *output.strict ? SchemaReading::kStrict : SchemaReading::kOpen;
}

bool has_form_alone(const std::optional<Reasoning>& reasoning) {
  return !reasoning || reasoning->begin == ReasoningBegin::kContent;
}

// Grammars of one answer differ by the reasoning before it.
std::string reasoning_key(const std::optional<Reasoning>& reasoning) {
  if (has_form_alone(reasoning)) return "";
  return std::to_string(static_cast<int>(reasoning->begin)) + std::string(reasoning->form.open) + "|";
}

Result<GrammarForm> form_of(const StructuredOutput& output) {
  switch (output.format) {
    case OutputFormat::kText:
      break;
    case OutputFormat::kJsonObject:
      return GrammarForm::schema(R"({"type":"object"})");
    case OutputFormat::kJsonSchema:
      return GrammarForm::schema(output.schema, "", reading_of(output));
    case OutputFormat::kRegex:
      return GrammarForm::regex(output.regex);
    case OutputFormat::kChoice:
      return choice_form(output.choices);
  }
  return GrammarForm::any_text();
}

std::string key_of(const StructuredOutput& output) {
  switch (output.format) {
    case OutputFormat::kText:
      break;
    case OutputFormat::kJsonObject:
      return "o";
    case OutputFormat::kJsonSchema:
      return "s" + std::to_string(static_cast<int>(reading_of(output))) + output.schema;
    case OutputFormat::kRegex:
      return "r" + output.regex;
    case OutputFormat::kChoice: {
      std::string key = "c";
      for (const std::string& choice : output.choices) key += std::to_string(choice.size()) + ":" + choice;
      return key;
    }
  }
  return "";
}

// must: as behind_reasoning() has it.
Result<GrammarPtr> compile_behind(const std::optional<Reasoning>& reasoning, GrammarForm form, bool must,
                                  const TakeMemory& take, LeftOpen* left_open) {
  if (has_form_alone(reasoning)) return compile_form(form, take, left_open);
  return compile_form(behind_reasoning(*reasoning, std::move(form), must), take, left_open);
}

}  // namespace

template <typename Compile>
Parsed<GrammarPtr> GrammarCache::find_or_compile(const std::string& key, const std::string& param, Compile compile) {
  {
    std::lock_guard lock(mutex_);
    const auto known = programs_.find(key);
    if (known != programs_.end()) return known->second;
  }
  ByteShare share(memory_);
  const TakeMemory take = [&](int64_t more_bytes) { return this->take(share, more_bytes); };
  const auto key_bytes = static_cast<int64_t>(key.size());
  if (const Status status = take(kCompileBytes + 2 * key_bytes); !status.ok())
    return to_api_error(status.error(), param);
  LeftOpen left_open;
  Result<GrammarPtr> program = compile(take, &left_open);
  if (!program.ok()) {
    ApiError error = to_api_error(program.error(), param);
    // A grammar beyond the limits is the request's fault, not its size.
    if (program.error().code != ErrorCode::kOverloaded) error.status = 400;
    return error;
  }
  tell(left_open, param);
  const int64_t bytes = (*program)->bytes() + key_bytes;
  share.shrink_to(bytes);
  // Until its last holder drops it, who may outlive the cache.
  const GrammarProgram* const raw = program->get();
  GrammarPtr granted(raw, [memory = std::make_shared<ByteShare>(std::move(share)),
                           program = std::move(*program)](const GrammarProgram*) { memory->release(); });
  const std::lock_guard lock(mutex_);
  const int64_t most = most_kept_bytes();
  if (programs_.size() >= kGrammarsKept || bytes_ + bytes > most) {
    programs_.clear();
    bytes_ = 0;
  }
  // A key alone may be as large as a request's body.
  if (bytes <= most && programs_.emplace(key, granted).second) bytes_ += bytes;
  return granted;
}

// A line for every schema.
void GrammarCache::tell(const LeftOpen& left_open, const std::string& param) {
  const auto& places = left_open.places;
  for (auto place = places.begin(); place != places.end();) {
    const std::string& schema = place->schema;
    std::string sentence;
    int64_t count = 0;
    for (; place != places.end() && place->schema == schema; ++place, ++count)
      sentence += (count > 0 ? ", '" : "'") + place->keyword + "' at " + place->path;
    if (place == places.end() && left_open.more > 0) sentence += " and " + std::to_string(left_open.more) + " more";
    log_.event(LogLevel::kInfo, "schema left open", {{"param", param}, {"places", count}},
               printable(schema + (schema.empty() ? "" : ": ") + "answers are not held to " + sentence +
                         "; with 'strict' true such a schema is refused"));
  }
}

Status GrammarCache::take(ByteShare& share, int64_t more_bytes) {
  const int64_t bytes = share.bytes() + more_bytes;
  while (!share.grow_to(bytes)) {
    if (!drop_kept()) return no_memory(*memory_, bytes, "This form's grammar");
  }
  return {};
}

bool GrammarCache::drop_kept() {
  std::map<std::string, GrammarPtr> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(programs_);
  bytes_ = 0;
  return !dropped.empty();
}

int64_t GrammarCache::most_kept_bytes() const {
  return std::min(kGrammarBytesKept, memory_->most_bytes() / kGrammarShareKept);
}

int64_t GrammarCache::bytes_kept() {
  std::lock_guard lock(mutex_);
  return bytes_;
}

Parsed<GrammarPtr> GrammarCache::of_output(const StructuredOutput& output, const std::optional<Reasoning>& reasoning) {
  if (output.format == OutputFormat::kText) return GrammarPtr();
  return find_or_compile(reasoning_key(reasoning) + key_of(output), output.param,
                         [&](const TakeMemory& take, LeftOpen* left_open) -> Result<GrammarPtr> {
                           TRY_ASSIGN(GrammarForm form, form_of(output));
                           return compile_behind(reasoning, std::move(form), true, take, left_open);
                         });
}

Parsed<GrammarPtr> GrammarCache::of_tools(ToolCallForm form, bool parallel, const ChatRequest& request,
                                          const std::optional<Reasoning>& reasoning) {
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
  std::string key = reasoning_key(reasoning) + "t" + std::to_string(static_cast<int>(form)) +
                    std::to_string(static_cast<int>(choice.mode)) + (choice.parallel ? "p" : "s") + choice.name;
  for (const ToolSpec& tool : request.prompt.tools) {
    tools.push_back({tool.name, tool.parameters, tool.strict});
    key += "|" + tool.name + (tool.strict ? "!=" : "=") + tool.parameters;
  }
  return find_or_compile(key, "tools", [&](const TakeMemory& take, LeftOpen* left_open) -> Result<GrammarPtr> {
    TRY_ASSIGN(GrammarForm whole, tool_grammar_form(form, tools, choice));
    return compile_behind(reasoning, std::move(whole), choice.mode != ToolChoiceMode::kAuto, take, left_open);
  });
}

}  // namespace loralei
