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

Parsed<GrammarPtr> GrammarCache::of_output(const StructuredOutput& output) {
  switch (output.format) {
    case OutputFormat::kText:
      return GrammarPtr();
    case OutputFormat::kJsonObject:
      return find_or_compile("o", output.param, [](const TakeMemory&, LeftOpen*) { return compile_json_object(); });
    case OutputFormat::kJsonSchema:
      return find_or_compile("s" + std::to_string(static_cast<int>(reading_of(output))) + output.schema, output.param,
                             [&](const TakeMemory& take, LeftOpen* left_open) {
                               return compile_json_schema(output.schema, take, reading_of(output), left_open);
                             });
    case OutputFormat::kRegex:
      return find_or_compile("r" + output.regex, output.param,
                             [&](const TakeMemory& take, LeftOpen*) { return compile_regex(output.regex, take); });
    case OutputFormat::kChoice: {
      std::string key = "c";
      for (const std::string& choice : output.choices) key += std::to_string(choice.size()) + ":" + choice;
      return find_or_compile(key, output.param,
                             [&](const TakeMemory& take, LeftOpen*) { return compile_choice(output.choices, take); });
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
    tools.push_back({tool.name, tool.parameters, tool.strict});
    key += "|" + tool.name + (tool.strict ? "!=" : "=") + tool.parameters;
  }
  return find_or_compile(key, "tools", [&](const TakeMemory& take, LeftOpen* left_open) {
    return compile_tool_grammar(form, tools, choice, take, left_open);
  });
}

}  // namespace loralei
