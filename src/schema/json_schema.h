// SPDX-License-Identifier: Apache-2.0
// JSON schemas, regular expressions and lists of choices to GrammarPrograms.
//
// Thread: pure functions.
// Ownership: programs are immutable and shared.
// What a schema's grammar writes: a document that is valid, with properties in the
// schema's order (optional ones may be left out), and between tokens nothing, one blank,
// or a new line with indentation. Strings may use any escape, but where their content
// is fixed or has a pattern they are in plain form (only what must be escaped is).
// "type" left out is taken from the other keywords; "additionalProperties" left out
// means none where "properties" is given (so that the model keeps to what is documented:
// no property at all where it is empty) but what "required" names besides. Formats that
// are not known are annotations; beside a pattern a format counts only where the pattern
// is not supported. Numbers are finite doubles (json_schema_number.h); with bounds they
// have no exponent. oneOf is exactly one where its branches exclude each other by their
// types or values, or by those of a property that one of them requires. uniqueItems
// is held to where the items are few values that are listed (enum, const, booleans),
// multipleOf where it is a whole number up to 100, or such a one times a power of ten.
// What a schema says beyond that SchemaReading decides; what is no schema (an unknown
// type, a count that is no number) is refused always.
// Failure: invalid_argument naming the keyword and its path for what is refused (never
// ignored), too_large beyond the limits below, naming the part that goes beyond them.
// A compilation takes at most a fraction of a second and 128 MiB, whatever the schema:
// equal references, patterns and lengths are compiled once, and what is read, copied and
// compared otherwise is counted.
// Source: JSON Schema 2020-12 with draft 7's items/additionalItems, OpenAPI's nullable.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sampling/grammar.h"

namespace loralei {

inline constexpr int64_t kMaxSchemaBytes = 1 << 20;
inline constexpr int kMaxSchemaDepth = 64;     // nested schemas, references followed
inline constexpr int kMaxSchemaNodes = 20000;  // schemas compiled in all, alternatives counted each time
// Keywords, list items, characters of patterns and the like that are read, copied or
// compared; 16 bytes of text count as one.
inline constexpr int64_t kMaxSchemaWork = int64_t{4} << 20;
inline constexpr int kMaxSchemaProperties = 500;         // of one object
inline constexpr int64_t kMaxPropertyNameBytes = 32768;  // of one object that allows other properties beside them
inline constexpr int64_t kMaxPatternBytes = 16384;
inline constexpr int kMaxListedChoices = 10000;  // guided_choice, enum

// Fails for JSON text nested deeper than any of the project's readers takes, or with an
// object of more than kMaxJsonFields; to be asked before a text from outside is parsed
// into a tree: copying and writing one recurse, and its objects look each new name up
// among all before it.
Status check_json_shape(std::string_view json);
inline constexpr int kMaxJsonFields = 2000;

using GrammarPtr = std::shared_ptr<const GrammarProgram>;

// What becomes of what a schema asks for and no grammar expresses.
enum class SchemaReading : unsigned char {
  kStrict,  // it is refused
  kGuided,  // the same, but a oneOf whose branches may hold together is read as anyOf, as vLLM has it
  kOpen,    // it is left open: any JSON value of the type that is known at that place; LeftOpen tells where
};

// Where grammars hold to less than their schemas say.
inline constexpr size_t kMaxPlacesLeftOpen = 64;
struct LeftOpen {
  struct Place {
    std::string schema;   // GrammarForm::name
    std::string path;     // "#/properties/x"; of a very long one the end
    std::string keyword;  // "uniqueItems"; cut where it is very long
  };
  std::vector<Place> places;  // each once
  int64_t more = 0;           // met beyond kMaxPlacesLeftOpen
};

// `left_open`: what was left open is appended; null: nobody wants to know.
Result<GrammarPtr> compile_json_schema(std::string_view schema, const TakeMemory& take = {},
                                       SchemaReading reading = SchemaReading::kGuided, LeftOpen* left_open = nullptr);
Result<GrammarPtr> compile_json_object();                                                 // any JSON object
Result<GrammarPtr> compile_json_value();                                                  // any JSON value
Result<GrammarPtr> compile_regex(std::string_view pattern, const TakeMemory& take = {});  // the whole text matches
Result<GrammarPtr> compile_choice(const std::vector<std::string>& choices, const TakeMemory& take = {});

inline constexpr int kMaxFormSpace = 64;

// Forms put together from parts: what tool calls are written in.
struct GrammarForm {
  enum class Kind : unsigned char {
    kLiteral,
    kSchema,
    kRegex,
    kSequence,
    kChoice,
    kRepeat,
    kTriggered,
    kAnyText,
    kSpace
  };
  Kind kind = Kind::kLiteral;
  std::string text;                // the literal, schema, pattern, or kTriggered's trigger
  std::vector<GrammarForm> parts;  // kSequence, kChoice; kRepeat: what is repeated, then the separator; kTriggered: one
  bool by_special_token = false;   // kLiteral: a special token with this text may write it
  int min_count = 0;               // kRepeat, kTriggered
  int max_count = -1;              // kRepeat, kTriggered; negative: no limit
  std::string name;                // kSchema: put before errors about it; empty: nothing
  SchemaReading reading = SchemaReading::kGuided;  // kSchema

  static GrammarForm literal(std::string text) { return {Kind::kLiteral, std::move(text), {}, false, 0, -1}; }
  static GrammarForm marker(std::string text) { return {Kind::kLiteral, std::move(text), {}, true, 0, -1}; }
  static GrammarForm any_text() { return {Kind::kAnyText, {}, {}, false, 0, -1}; }  // special tokens included
  // JSON's white space, up to kMaxFormSpace of it: with any number a model
  // might never go on.
  static GrammarForm space() { return {Kind::kSpace, {}, {}, false, 0, -1}; }
  static GrammarForm schema(std::string json, std::string name = "", SchemaReading reading = SchemaReading::kGuided) {
    return {Kind::kSchema, std::move(json), {}, false, 0, -1, std::move(name), reading};
  }
  static GrammarForm regex(std::string pattern) { return {Kind::kRegex, std::move(pattern), {}, false, 0, -1}; }
  static GrammarForm sequence(std::vector<GrammarForm> parts) {
    return {Kind::kSequence, {}, std::move(parts), false, 0, -1};
  }
  static GrammarForm choice(std::vector<GrammarForm> parts) {
    return {Kind::kChoice, {}, std::move(parts), false, 0, -1};
  }
  static GrammarForm repeat(GrammarForm part, GrammarForm separator, int min_count, int max_count) {
    return {Kind::kRepeat, {}, {std::move(part), std::move(separator)}, false, min_count, max_count};
  }
  // Free text, which may end anywhere; once the trigger has been written in it, `part`
  // must follow. Then free text again, or, with `once`, the end. Only as the last part of
  // the whole form, not inside a repetition.
  static GrammarForm triggered(std::string trigger, GrammarForm part, bool once) {
    return {Kind::kTriggered, std::move(trigger), {std::move(part)}, false, 0, once ? 1 : -1};
  }
  // The same with the trigger once, which must come.
  static GrammarForm until(std::string trigger, GrammarForm part) {
    return {Kind::kTriggered, std::move(trigger), {std::move(part)}, false, 1, 1};
  }
};
Result<GrammarForm> choice_form(const std::vector<std::string>& choices);  // of compile_choice()
Result<GrammarPtr> compile_form(const GrammarForm& form, const TakeMemory& take = {}, LeftOpen* left_open = nullptr);

}  // namespace loralei
