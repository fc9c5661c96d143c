// SPDX-License-Identifier: Apache-2.0
#include "schema/json_schema.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <vector>

#include "base/limits.h"
#include "base/utf8.h"
#include "schema/json_schema_compiler.h"
#include "schema/json_schema_regex.h"

namespace loralei {

namespace {

using schema::CharForm;
using schema::Json;
using schema::SchemaCompiler;

constexpr int kMaxFormDepth = 32;

Result<Json> parse_schema(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxSchemaBytes) {
    return too_large("the schema has " + std::to_string(text.size()) + " bytes; at most " +
                     std::to_string(kMaxSchemaBytes) + " are accepted");
  }
  TRY(check_json_shape(text));
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return invalid_argument("the schema is not valid JSON");
  return json;
}

// The tree of it, from its brackets, commas and colons: every value stands behind one.
int64_t schema_tree_bytes(std::string_view text) {
  constexpr int64_t kValueBytes = 240;  // with its key, in a table of an object or a list that doubles
  const auto marks =
      std::count_if(text.begin(), text.end(), [](char c) { return std::strchr("[{,:", c) != nullptr && c != 0; });
  return kValueBytes * (marks + 1) + 4 * static_cast<int64_t>(text.size());
}

class FormCompiler {
 public:
  FormCompiler(const TakeMemory& take, LeftOpen* left_open) : take_(take), b_(take), compiler_(b_, left_open) {}

  Result<GrammarPtr> run(const GrammarForm& form) {
    const GrammarRuleId root = b_.add_rule();
    end_ = b_.add_state();
    b_.end_rule(end_);
    TRY_ASSIGN(const GrammarStateId last, add(b_.start(root), form, 0));
    b_.add_empty(last, end_);
    return std::move(b_).finish(root);
  }

 private:
  // What a form has twice under one name is compiled once. Both texts are the form's,
  // which outlives this.
  Result<GrammarRuleId> schema_rule(const GrammarForm& form) {
    const std::tuple<std::string_view, std::string_view, SchemaReading> key(form.name, form.text, form.reading);
    if (const auto known = schema_rules_.find(key); known != schema_rules_.end()) return known->second;
    if (take_) TRY(take_(schema_tree_bytes(form.text)));
    TRY_ASSIGN(Json json, parse_schema(form.text));
    schemas_.push_back(std::move(json));
    TRY_ASSIGN(const GrammarRuleId rule, compiler_.compile_root(schemas_.back(), form.reading, form.name));
    schema_rules_.emplace(key, rule);
    return rule;
  }

  GrammarRuleId space_rule() {
    if (space_) return *space_;
    space_ = b_.add_rule();
    GrammarStateId at = b_.start(*space_);
    b_.end_rule(at);
    for (int i = 0; i < kMaxFormSpace; ++i) {
      const GrammarStateId next = b_.add_state();
      for (const uint8_t c : {' ', '\n', '\r', '\t'}) b_.add_range(at, c, c, next);
      b_.end_rule(next);
      at = next;
    }
    return *space_;
  }

  Result<GrammarStateId> add(GrammarStateId from, const GrammarForm& form, int depth) {
    if (depth > kMaxFormDepth)
      return invalid_argument("a form nests deeper than " + std::to_string(kMaxFormDepth) + " levels");
    switch (form.kind) {
      case GrammarForm::Kind::kLiteral: {
        if (!form.by_special_token) return b_.literal(from, form.text);
        const GrammarStateId begin = b_.add_state();
        b_.add_empty(from, begin);
        b_.mark_free_text(begin);
        return b_.literal(begin, form.text);
      }
      case GrammarForm::Kind::kAnyText: {
        const GrammarStateId loop = b_.add_state();
        b_.add_empty(from, loop);
        b_.mark_free_text(loop);
        b_.add_range(loop, 0, 255, loop);
        return loop;
      }
      case GrammarForm::Kind::kSpace:
        return b_.call(from, space_rule());
      case GrammarForm::Kind::kSchema: {
        Result<GrammarRuleId> rule = schema_rule(form);
        if (!rule.ok() && !form.name.empty()) return std::move(rule).error().with_context(form.name);
        if (!rule.ok()) return rule.error();
        return b_.call(from, *rule);
      }
      case GrammarForm::Kind::kRegex: {
        TRY_ASSIGN(const schema::CharAutomaton automaton, schema::parse_regex(form.text, schema::RegexMode::kWhole));
        return compiler_.chars().add_automaton(from, automaton, CharForm::kPlain);
      }
      case GrammarForm::Kind::kSequence:
        for (const GrammarForm& part : form.parts) {
          TRY_ASSIGN(from, add(from, part, depth + 1));
        }
        return from;
      case GrammarForm::Kind::kChoice:
        return add_choice(from, form, depth);
      case GrammarForm::Kind::kRepeat:
        return add_repeat(from, form, depth);
      case GrammarForm::Kind::kTriggered:
        return add_triggered(from, form, depth);
    }
    return invalid_argument("an unknown kind of form");
  }

  Result<GrammarStateId> add_choice(GrammarStateId from, const GrammarForm& form, int depth) {
    const GrammarStateId to = b_.add_state();
    const bool all_literal = std::all_of(form.parts.begin(), form.parts.end(), [](const GrammarForm& part) {
      return part.kind == GrammarForm::Kind::kLiteral && !part.by_special_token;
    });
    if (all_literal) {  // share beginnings: thousands of choices are common
      std::vector<std::string> texts;
      for (const GrammarForm& part : form.parts) texts.push_back(part.text);
      compiler_.add_texts(from, std::move(texts), to);
      return to;
    }
    for (const GrammarForm& part : form.parts) {
      const GrammarStateId begin = b_.add_state();
      b_.add_empty(from, begin);
      TRY_ASSIGN(const GrammarStateId last, add(begin, part, depth + 1));
      b_.add_empty(last, to);
    }
    return to;
  }

  Result<GrammarStateId> add_repeat(GrammarStateId from, const GrammarForm& form, int depth) {
    if (form.parts.size() != 2 || form.min_count < 0 || (form.max_count >= 0 && form.max_count < form.min_count)) {
      return invalid_argument("a repetition needs a part, a separator and a sensible count");
    }
    ++in_rule_;
    const GrammarRuleId part = b_.add_rule();
    TRY_ASSIGN(const GrammarStateId part_last, add(b_.start(part), form.parts[0], depth + 1));
    b_.end_rule(part_last);
    const GrammarRuleId separator = b_.add_rule();
    TRY_ASSIGN(const GrammarStateId separator_last, add(b_.start(separator), form.parts[1], depth + 1));
    b_.end_rule(separator_last);
    --in_rule_;
    const GrammarStateId to = b_.add_state();
    if (form.min_count == 0) b_.add_empty(from, to);
    const int counted = form.max_count >= 0 ? form.max_count : std::max(form.min_count, 1);
    GrammarStateId at = from;
    for (int i = 0; i < counted && !b_.is_full(); ++i) {
      if (i > 0) at = b_.call(at, separator);
      at = b_.call(at, part);
      if (i + 1 >= form.min_count) b_.add_empty(at, to);
    }
    if (form.max_count < 0) b_.add_call(b_.call(at, separator), part, at);
    return to;
  }

  Result<GrammarStateId> add_triggered(GrammarStateId from, const GrammarForm& form, int depth) {
    if (form.text.empty() || form.parts.size() != 1)
      return invalid_argument("a triggered form needs a trigger and one part");
    if (in_rule_ > 0) return invalid_argument("a triggered form cannot stand inside a repetition");
    const GrammarStateId free = b_.add_state();
    b_.add_empty(from, free);
    const GrammarStateId early_end = form.min_count == 0 ? end_ : b_.add_state();  // where nothing ends
    const GrammarStateId behind = b_.free_text_until(free, form.text, early_end);
    TRY_ASSIGN(const GrammarStateId last, add(behind, form.parts[0], depth + 1));
    b_.add_empty(last, form.max_count == 1 ? end_ : free);
    return last;
  }

  const TakeMemory& take_;
  GrammarBuilder b_;
  SchemaCompiler compiler_;
  int in_rule_ = 0;  // repetitions around the current part
  std::deque<Json> schemas_;
  std::map<std::tuple<std::string_view, std::string_view, SchemaReading>, GrammarRuleId> schema_rules_;
  std::optional<GrammarRuleId> space_;
  GrammarStateId end_ = 0;
};

Result<GrammarPtr> compile_shared(bool object_only) {
  GrammarBuilder builder;
  SchemaCompiler compiler(builder);
  const GrammarRuleId rule = object_only ? compiler.any_object() : compiler.any_value();
  return std::move(builder).finish(rule);
}

}  // namespace

Status check_json_shape(std::string_view json) {
  std::vector<int> fields(1, 0);  // of the objects around, the innermost last
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      fields.push_back(0);
      if (fields.size() > 2 * kMaxJsonDepth + 1)
        return invalid_argument("the JSON text nests deeper than " + std::to_string(2 * kMaxJsonDepth) + " levels");
    } else if ((c == '}' || c == ']') && fields.size() > 1) {
      fields.pop_back();
    } else if (c == ':' && ++fields.back() > kMaxJsonFields) {
      return invalid_argument("an object of the JSON text has more than " + std::to_string(kMaxJsonFields) + " fields");
    }
  }
  return {};
}

Result<GrammarPtr> compile_json_schema(std::string_view schema, const TakeMemory& take, SchemaReading reading,
                                       LeftOpen* left_open) {
  return compile_form(GrammarForm::schema(std::string(schema), "", reading), take, left_open);
}
Result<GrammarPtr> compile_json_object() { return compile_shared(true); }
Result<GrammarPtr> compile_json_value() { return compile_shared(false); }
Result<GrammarPtr> compile_regex(std::string_view pattern, const TakeMemory& take) {
  return compile_form(GrammarForm::regex(std::string(pattern)), take);
}

Result<GrammarForm> choice_form(const std::vector<std::string>& choices) {
  if (choices.empty()) return invalid_argument("the list of choices is empty");
  if (choices.size() > static_cast<size_t>(kMaxListedChoices))
    return too_large("there are more than " + std::to_string(kMaxListedChoices) + " choices");
  std::vector<GrammarForm> parts;
  for (const std::string& choice : choices) {
    if (choice.empty() || !is_valid_utf8(choice)) return invalid_argument("a choice is empty or not valid UTF-8");
    parts.push_back(GrammarForm::literal(choice));
  }
  return GrammarForm::choice(std::move(parts));
}

Result<GrammarPtr> compile_choice(const std::vector<std::string>& choices, const TakeMemory& take) {
  TRY_ASSIGN(const GrammarForm form, choice_form(choices));
  return compile_form(form, take);
}

Result<GrammarPtr> compile_form(const GrammarForm& form, const TakeMemory& take, LeftOpen* left_open) {
  return FormCompiler(take, left_open).run(form);
}

}  // namespace loralei
