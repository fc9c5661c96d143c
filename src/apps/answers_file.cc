// SPDX-License-Identifier: Apache-2.0
#include "apps/answers_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "formats/json_util.h"
#include "sys/file.h"
#include "text/tokenizer.h"

namespace loralei {
namespace {

constexpr int64_t kFileBytesMost = kGiB, kLineBytesMost = 16 * kMiB;

Result<AnsweredPrompt> read_line(std::string_view line, const Tokenizer& tokenizer, const std::string& place) {
  TRY_ASSIGN(const Json object, parse_json_object(line, place, kLineBytesMost));
  TRY_ASSIGN(const auto prompt, json_string(object, "prompt", place));
  TRY_ASSIGN(const auto answer, json_string(object, "answer", place));
  TRY_ASSIGN(auto adapter, json_string(object, "adapter", place));
  if (!prompt || !answer) {
    return corrupt(place +
                   ": a line is an object with \"prompt\" and \"answer\", such as {\"prompt\": \"Name a fruit.\", "
                   "\"answer\": \"Apple.\"}");
  }
  AnsweredPrompt one{.adapter = std::move(adapter).value_or("")};
  TRY_ASSIGN(one.prompt, tokenizer.encode(*prompt));
  TRY_ASSIGN(const std::vector<TokenId> tokens, tokenizer.encode(*answer, {.add_special = false}));
  one.answer_tokens = static_cast<int32_t>(tokens.size()) + 1;
  return one;
}

}  // namespace

Result<std::vector<AnsweredPrompt>> read_answers(const std::string& path, const std::string& tokenizer) {
  if (path.empty() || tokenizer.empty()) {
    return invalid_argument(
        "bench lengths takes --answers FILE, a JSON object with \"prompt\" and \"answer\" a line, and --tokenizer "
        "FOLDER");
  }
  TRY_ASSIGN(const Tokenizer::Ptr model, Tokenizer::from_directory(tokenizer));
  TRY_ASSIGN(const std::string text, PosixFileSystem().read_all(path, kFileBytesMost));
  std::vector<AnsweredPrompt> answers;
  std::string_view rest = text;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const std::string_view one = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    if (one.empty()) continue;
    TRY_ASSIGN(AnsweredPrompt answered, read_line(one, *model, path + ":" + std::to_string(line)));
    answers.push_back(std::move(answered));
  }
  return answers;
}

}  // namespace loralei
