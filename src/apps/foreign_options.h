// SPDX-License-Identifier: Apache-2.0
// Options of other servers that this one needs not or has otherwise: what their users
// type beside the options known here. Each is accepted where it asks for what is so
// anyway, and told in the log; else it is refused with a sentence that says what to type
// instead. foreign_table.cc lists them by what is said about them.
//
// Thread: pure functions.
// Ownership: the table is static.
// Invariant: no name stands twice, and none is an option of this server's own
// (options_test.cc).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loralei {

struct ForeignGroup {
  static constexpr const char* kAny = "*";
  static constexpr const char* kNone = nullptr;
  const char* accepted;  // values that ask for what is so anyway, apart by '|'; kAny; kNone: always refused
  const char* sentence;  // how it is here, or what to type instead
  const char* names;     // apart by spaces; one that takes a value ends in '='
};
std::span<const ForeignGroup> foreign_groups();

struct ForeignOption {
  const ForeignGroup* group = nullptr;
  bool takes_value = false;
  bool negated = false;  // "--no-X" of a flag X: is so anyway
};
// `name`: "--enable-lora". Nothing where it is none of theirs.
std::optional<ForeignOption> find_foreign_option(std::string_view name);

// The sentence for the log, or an error with the one for the user.
Result<std::string> judge_foreign_option(const ForeignOption& option, const std::string& name,
                                         const std::string& value);

}  // namespace loralei
