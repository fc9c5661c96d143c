// SPDX-License-Identifier: Apache-2.0
// SchemaCompiler: writes the rules of JSON schemas, values and literals into one GrammarBuilder.
//
// Thread: one compilation. Ownership: borrows the builder; `root` schemas are borrowed for the life of the compiler,
// because references into them are followed later. Invariants: nothing of a schema is copied but what is merged, and
// all work is counted (kMaxSchemaWork, kMaxSchemaNodes), so that a small schema that repeats itself cannot take more.
// Failure: Result with the path ("#/properties/x") in front.
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
#include "text/json_schema.h"
#include "text/json_schema_chars.h"
#include "text/json_schema_number.h"

namespace loralei::schema {

using Json = nlohmann::ordered_json;

// What one compilation may cost (kMaxSchemaWork): a chain of references that doubles at every link ends here.
class WorkBudget {
 public:
  Status spend(int64_t work, const std::string& path);

 private:
  int64_t left_ = kMaxSchemaWork;
};

class SchemaCompiler {
 public:
  explicit SchemaCompiler(GrammarBuilder& builder) : b_(builder), chars_(builder) {}

  // A rule that reads what the schema allows. References are looked up in it.
  Result<GrammarRuleId> compile_root(const Json& schema);
  GrammarRuleId any_value();
  GrammarRuleId any_object();

  // Any of the texts, sharing their beginnings; `to` is reached behind each.
  void add_texts(GrammarStateId from, std::vector<std::string> texts, GrammarStateId to);
  CharWriter& chars() { return chars_; }

 private:
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
  Status add_array(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path);
  Result<GrammarRuleId> property_rule(std::string_view name, const Json& schema, const std::string& path);
  Result<GrammarRuleId> other_property_rule(const std::vector<std::string_view>& declared, const Json& schema,
                                            const std::string& path);

  Result<const Json*> find_reference(const std::string& reference, const std::string& path) const;
  // The schema with $ref beside other keywords and allOf merged into one object.
  Result<Json> flatten(const Json& schema, const std::string& path, int depth);
  Status check_keywords(const Json& schema, const std::string& path) const;

  GrammarRuleId space();
  GrammarRuleId any_string();
  GrammarRuleId number_rule(bool is_integer, const NumberRange& range);
  GrammarRuleId any_array();
  // One fixed JSON value, with free space between its tokens.
  GrammarStateId add_fixed(GrammarStateId from, const Json& value);

  GrammarBuilder& b_;
  CharWriter chars_;
  const Json* root_ = nullptr;
  // Schemas with $ref or allOf that were met, without annotations: equal ones mean the same.
  std::map<std::string, GrammarRuleId> references_;
  std::map<std::tuple<std::optional<std::string>, int64_t, int64_t>, GrammarRuleId> strings_;  // pattern, lengths
  std::map<std::pair<bool, NumberRange>, GrammarRuleId> numbers_;                              // integers only, range
  int depth_ = 0;
  int nodes_ = 0;
  WorkBudget work_;
  std::optional<GrammarRuleId> space_;
  std::optional<GrammarRuleId> any_value_;
  std::optional<GrammarRuleId> any_object_;
  std::optional<GrammarRuleId> any_array_;
  std::optional<GrammarRuleId> any_string_;
};

// Two schemas that must both hold, as one; refused where no single schema of the supported kind says so.
Result<Json> merge_schemas(const Json& a, const Json& b, const std::string& path, int depth, WorkBudget& budget);
int64_t work_of(const Json& value);  // to copy or to write it with all that lies in it
bool is_annotation(const std::string& keyword);

// The path of a part; long names are cut.
std::string below(const std::string& path, std::string_view part);
std::string below(const std::string& path, std::string_view keyword, std::string_view part);
// Errors that name the place in the schema.
Error at_path(const std::string& path, const std::string& what);
Error too_large_at(const std::string& path, const std::string& what);
// A count keyword: a non-negative integer below 2^31, or `absent`.
Result<int64_t> read_count(const Json& schema, const char* keyword, int64_t absent, const std::string& path);

}  // namespace loralei::schema
