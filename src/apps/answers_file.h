// SPDX-License-Identifier: Apache-2.0
// A file of prompts and their answers, as instruction sets are published, for bench
// lengths: a JSON object a line.
//
//   {"prompt": "Name three fruits.", "answer": "Apple, pear, plum.", "adapter": "lists"}
//
// `adapter` may be left out. One thread. Failure: "FILE:LINE: what is wrong there".
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "bench/lengths.h"

namespace loralei {

// `tokenizer`: a folder with tokenizer.json or tokenizer.model. An answer has its tokens
// and the end.
Result<std::vector<AnsweredPrompt>> read_answers(const std::string& path, const std::string& tokenizer);

}  // namespace loralei
