// SPDX-License-Identifier: Apache-2.0
// SchemaCompiler: writes the rules of JSON schemas, values and literals into
// one GrammarBuilder.
//
// Thread: one compilation.
// Ownership: borrows the builder; `root` schemas are borrowed for the life of the
// compiler, because references into them are followed later.
// Invariants: nothing of a schema is copied but what is merged, and all work is
// counted (kMaxSchemaWork, kMaxSchemaNodes), so that a small schema that repeats itself
// cannot take more.
// Failure: Result with the path ("#/properties/x") in front; what may be left open goes
// through leave_open.
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "sampling/grammar.h"
#include "schema/json_schema.h"
#include "schema/json_schema_chars.h"
#include "schema/json_schema_number.h"

namespace loralei::schema {

using Json = nlohmann::ordered_json;

// What one compilation may cost (kMaxSchemaWork): a chain of references that doubles at
// every link ends here.
class WorkBudget {
 public:
  Status spend(int64_t work, const std::string& path);

 private:
  int64_t left_ = kMaxSchemaWork;
};

class SchemaCompiler {
 public:
  explicit SchemaCompiler(GrammarBuilder& builder, LeftOpen* left_open = nullptr)
      : b_(builder), left_open_(left_open), chars_(builder) {}

  // A rule that reads what the schema allows. References are looked up in it. `name`:
  // LeftOpen::Place::schema.
  Result<GrammarRuleId> compile_root(const Json& schema, SchemaReading reading, const std::string& name);
  GrammarRuleId any_value();
  GrammarRuleId any_object();

  // Any of the texts, sharing their beginnings; `to` is reached behind each.
  void add_texts(GrammarStateId from, std::vector<std::string> texts, GrammarStateId to);
  CharWriter& chars() { return chars_; }

 private:
  struct Object;
  struct Together;
  // Notes that what the keyword says there is not held to, and whoever calls goes on
  // without it. False: nothing may be left open, and it is an error.
  bool leave_open(const std::string& path, std::string_view keyword);

  // compile: dispatch. `path` names the place in the schema for errors.
  Result<GrammarRuleId> compile(const Json& schema, const std::string& path);
  Status fill(GrammarRuleId rule, const Json& schema, const std::string& path);
  Status fill_alternatives(GrammarRuleId rule, const Json& schema, const char* keyword, const std::string& path);
  Status fill_values(GrammarStateId from, GrammarStateId to, const Json& schema, const Json& values,
                     const std::string& path);
  Status fill_keywords(GrammarRuleId rule, const Json& schema, const std::string& path);
  Status fill_type(GrammarStateId from, GrammarStateId to, const std::string& type, const Json& schema,
                   const std::string& path);
  Status add_string(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path);
  // The inside of a string, from quote to quote.
  Result<GrammarRuleId> string_rule(const std::string* pattern, int64_t min, int64_t max, const std::string& path);
  Status add_object(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path);
  Result<Object> read_object(const Json& schema, const std::string& path);
  Status read_required(Object& object, const Json& schema, const std::string& path);
  Status read_property_counts(Object& object, const Json& schema, const std::string& path);
  Status add_array(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path);
  // Where the items' values are few and known the array is written, none of them
  // twice, the set of those that have been written being the state; else false:
  // that is left open.
  Result<bool> add_distinct(GrammarStateId from, GrammarStateId to, const Json& items, int64_t min, int64_t max,
                            const std::string& path);
  // The scalar values that a schema lists, in their texts, equal values together; none
  // where others are allowed or there are too many.
  Result<std::optional<std::vector<std::vector<std::string>>>> listed_texts(const Json& schema,
                                                                            const std::string& path);
  Result<NumberRange> read_range(const Json& schema, const std::string& path);
  Status read_multiple(NumberRange& range, bool is_integer, const Json& schema, const std::string& path);
  Result<GrammarRuleId> property_rule(std::string_view name, const Json& schema, const std::string& path);
  Result<GrammarRuleId> other_property_rule(const std::vector<std::string_view>& declared, const Json& schema,
                                            const std::string& path);

  Result<const Json*> find_reference(const std::string& reference, const std::string& path) const;
  // The schema with $ref beside other keywords and allOf merged into one object.
  Result<Json> flatten(const Json& schema, const std::string& path, int depth);
  // Two schemas that must both hold, as one; what no single schema of the supported kind
  // says is left open.
  Result<Json> merge_schemas(const Json& a, const Json& b, const std::string& path, int depth);
  Result<bool> merge_keyword(Json& out, const std::string& keyword, const Json& a, const Json& b,
                             const std::string& path);
  Status check_keywords(const Json& schema, const std::string& path);

  // Leaves a oneOf open where some value may fit two of its branches.
  Status check_exclusive(const Json& schema, const std::string& path);
  void gather(const Json& schema, Together& out);
  Together together(const Json& schema, const Json* beside);
  bool exclude(const Together& a, const Together& b, int level);
  bool exclude_by_property(const Together& a, const Together& b, int level);
  bool spend_on_exclusion(int64_t work);  // false: no more is compared

  GrammarRuleId space();
  GrammarRuleId any_string();
  GrammarRuleId number_rule(bool is_integer, const NumberRange& range);
  GrammarRuleId any_array();
  // One fixed JSON value, with free space between its tokens.
  GrammarStateId add_fixed(GrammarStateId from, const Json& value);

  GrammarBuilder& b_;
  LeftOpen* const left_open_;
  CharWriter chars_;
  const Json* root_ = nullptr;
  SchemaReading reading_ = SchemaReading::kGuided;
  std::string name_;
  // Schemas with $ref or allOf that were met, without annotations: equal
  // ones mean the same.
  std::map<std::string, GrammarRuleId> references_;
  std::map<std::tuple<std::optional<std::string>, int64_t, int64_t>, GrammarRuleId> strings_;  // pattern, lengths
  std::map<std::pair<bool, NumberRange>, GrammarRuleId> numbers_;                              // integers only, range
  int depth_ = 0;
  int nodes_ = 0;
  WorkBudget work_;
  int64_t exclusion_left_ = kMaxSchemaWork;
  std::optional<GrammarRuleId> space_;
  std::optional<GrammarRuleId> any_value_;
  std::optional<GrammarRuleId> any_object_;
  std::optional<GrammarRuleId> any_array_;
  std::optional<GrammarRuleId> any_string_;
};

int64_t work_of(const Json& value);  // to copy or to write it with all that lies in it
bool is_annotation(const std::string& keyword);
bool has_only_annotations(const Json& schema, std::initializer_list<const char*> except);
bool allows_everything(const Json& schema);
// The keywords that are held to; the others have been refused or noted.
Json known_part(const Json& schema, std::initializer_list<const char*> except);

// What "type" says, or what the other keywords are about.
std::vector<std::string> types_of(const Json& schema);
bool value_has_type(const Json& value, const std::string& type);
// Whether a value of its enum or const fits the "type" and the enum beside it.
bool is_listed(const Json& schema, const std::vector<std::string>& types, const Json& value);
std::string scalar_text(const Json& value);

// The path of a part; long names are cut.
std::string below(const std::string& path, std::string_view part);
std::string below(const std::string& path, std::string_view keyword, std::string_view part);
// Errors that name the place in the schema.
Error at_path(const std::string& path, const std::string& what);
Error too_large_at(const std::string& path, const std::string& what);
// A count keyword: a non-negative integer below 2^31, or `absent`.
Result<int64_t> read_count(const Json& schema, const char* keyword, int64_t absent, const std::string& path);

}  // namespace loralei::schema
