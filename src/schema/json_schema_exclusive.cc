// SPDX-License-Identifier: Apache-2.0
// oneOf: whether its branches exclude each other, so that "one of them" and "exactly one
// of them" are the same.
//
// Nothing is merged or copied: what holds together at a place is looked at part by part.
// Any part may exclude, as all of them must hold.
#include <algorithm>

#include "schema/json_schema_compiler.h"

namespace loralei::schema {

namespace {

constexpr size_t kMaxBranches = 1024;
constexpr size_t kMaxParts = 16;  // of one place; further ones are not looked at
constexpr int kMaxLevels = 4;     // of properties inside properties

enum TypeBits : unsigned { kNull = 1, kBoolean = 2, kNumber = 4, kString = 8, kArray = 16, kObject = 32, kAll = 63 };

unsigned bits_of(const std::string& type) {
  static constexpr std::pair<const char*, unsigned> kBits[] = {{"null", kNull},     {"boolean", kBoolean},
                                                               {"number", kNumber}, {"integer", kNumber},
                                                               {"string", kString}, {"array", kArray}};
  for (const auto& [name, bits] : kBits) {
    if (type == name) return bits;
  }
  return kObject;
}

unsigned bits_of(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number()) return kNumber;
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

// The values that a schema lists; empty where it lists none.
std::vector<const Json*> listed_values(const Json& schema) {
  std::vector<const Json*> values;
  if (!schema.is_object()) return values;
  if (schema.contains("const")) {
    values.push_back(&schema["const"]);
  } else if (schema.contains("enum") && schema["enum"].is_array()) {
    for (const Json& value : schema["enum"]) values.push_back(&value);
  }
  return values;
}

// Types that "type" and listed values leave, or where no "type" is given those that the
// keywords are about.
unsigned types_left(const std::vector<const Json*>& parts) {
  unsigned types = kAll;
  unsigned implied = 0;
  bool is_given = false;
  for (const Json* part : parts) {
    unsigned here = 0;
    for (const std::string& type : types_of(*part)) here |= bits_of(type);
    const bool gives = part->contains("type");
    if (gives) types &= here;
    if (!gives) implied |= here;
    is_given = is_given || gives;
    unsigned listed = 0;
    for (const Json* value : listed_values(*part)) listed |= bits_of(*value);
    if (listed != 0) types &= listed;
  }
  return is_given || implied == 0 ? types : types & implied;
}

}  // namespace

// The schemas that hold together at one place.
struct SchemaCompiler::Together {
  std::vector<const Json*> parts;  // objects
  unsigned types = kAll;
  bool nullable = false;
};

void SchemaCompiler::gather(const Json& schema, Together& out) {
  if (!schema.is_object() || out.parts.size() >= kMaxParts) return;
  out.parts.push_back(&schema);
  out.nullable = out.nullable || (schema.contains("nullable") && schema["nullable"] == true);
  if (schema.contains("$ref") && schema["$ref"].is_string()) {
    const std::string& reference = schema["$ref"].get_ref<const std::string&>();
    if (!spend_on_exclusion(16 + static_cast<int64_t>(reference.size()))) return;
    const Result<const Json*> target = find_reference(reference, "");
    if (target.ok()) gather(**target, out);
  }
  if (!schema.contains("allOf") || !schema["allOf"].is_array()) return;
  for (const Json& part : schema["allOf"]) gather(part, out);
}

SchemaCompiler::Together SchemaCompiler::together(const Json& schema, const Json* beside) {
  Together out;
  const bool is_nothing =
      schema == false || (schema.is_object() && schema.contains("not") && allows_everything(schema["not"]));
  if (is_nothing) {
    out.types = 0;
    return out;
  }
  gather(schema, out);
  if (beside != nullptr) out.parts.push_back(beside);  // its "nullable" is that of the place, not of the schema
  out.types = types_left(out.parts);
  if (out.nullable) out.types |= kNull;
  return out;
}

Status SchemaCompiler::check_exclusive(const Json& schema, const std::string& path) {
  const Json& branches = schema["oneOf"];
  if (reading_ == SchemaReading::kGuided || !branches.is_array()) return {};
  const auto refuse = [&](const std::string& what) -> Status {
    if (leave_open(path, "oneOf")) return {};
    return at_path(path, what + "; require a property that has another 'const' in each, or use 'anyOf'");
  };
  if (branches.size() > kMaxBranches)
    return refuse("'oneOf' of more than " + std::to_string(kMaxBranches) + " branches is not supported");
  TRY(work_.spend(static_cast<int64_t>(branches.size() * schema.size()), path));
  std::vector<Together> all;
  for (const Json& branch : branches) all.push_back(together(branch, &schema));
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (exclude(all[k], all[i], 0)) continue;
      return refuse("the branches " + std::to_string(k) + " and " + std::to_string(i) +
                    " of 'oneOf' may both hold for the same value, or are too much to compare");
    }
  }
  return {};
}

bool SchemaCompiler::spend_on_exclusion(int64_t work) {
  exclusion_left_ -= std::min(exclusion_left_, work);
  return exclusion_left_ > 0;
}

bool SchemaCompiler::exclude(const Together& a, const Together& b, int level) {
  if (!spend_on_exclusion(static_cast<int64_t>(a.parts.size() * b.parts.size()))) return false;
  const unsigned common = a.types & b.types;
  if (common == 0) return true;
  if ((common & kNull) != 0) return false;
  for (const Json* left : a.parts) {
    for (const Json* right : b.parts) {
      if (left == right) continue;
      const std::vector<const Json*> values = listed_values(*left);
      const std::vector<const Json*> others = listed_values(*right);
      if (values.empty() || others.empty()) continue;
      const bool apart = std::all_of(values.begin(), values.end(), [&](const Json* value) {
        return spend_on_exclusion(work_of(*value) * static_cast<int64_t>(others.size())) &&
               std::none_of(others.begin(), others.end(), [&](const Json* other) { return *value == *other; });
      });
      if (apart) return true;
    }
  }
  return common == kObject && level < kMaxLevels && exclude_by_property(a, b, level);
}

// A property that one of them requires, with values that exclude each other.
bool SchemaCompiler::exclude_by_property(const Together& a, const Together& b, int level) {
  const auto names_in = [&](const Json* part) -> const Json* {
    return part->contains("properties") && (*part)["properties"].is_object() ? &(*part)["properties"] : nullptr;
  };
  const auto requires_it = [&](const std::vector<const Json*>& parts, const std::string& name) {
    return std::any_of(parts.begin(), parts.end(), [&](const Json* part) {
      if (!part->contains("required") || !(*part)["required"].is_array()) return false;
      const Json& names = (*part)["required"];
      return spend_on_exclusion(static_cast<int64_t>(names.size())) &&
             std::find(names.begin(), names.end(), name) != names.end();
    });
  };
  for (const Json* left : a.parts) {
    const Json* properties = names_in(left);
    if (properties == nullptr) continue;
    for (const auto& [name, value] : properties->items()) {
      for (const Json* right : b.parts) {
        const Json* others = left == right ? nullptr : names_in(right);
        if (others == nullptr || !spend_on_exclusion(static_cast<int64_t>(others->size()))) continue;
        if (!others->contains(name) || (!requires_it(a.parts, name) && !requires_it(b.parts, name))) continue;
        if (exclude(together(value, nullptr), together((*others)[name], nullptr), level + 1)) return true;
      }
    }
  }
  return false;
}

}  // namespace loralei::schema
