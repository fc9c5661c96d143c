// SPDX-License-Identifier: Apache-2.0
// The words of a command line, before the parser: other servers' names for options of
// this one, their options that this one has not, underscores for dashes, short options of
// several letters, several names behind one flag.
//
// Thread: pure functions, at start. Failure: a sentence that says what to type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

struct CommandWords {
  std::vector<std::string> words;  // the parser's
  std::vector<std::string> notes;  // for the log: what was typed and changes nothing
};

// `words`: from the command ("serve") on. `own`: the command's options, with their
// dashes; they stay what they are.
Result<CommandWords> read_command_words(const std::vector<std::string>& words, const std::vector<std::string>& own);

// Of `known`, the one that may have been meant by `name`; "" where none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace loralei
