// SPDX-License-Identifier: Apache-2.0
// WorkloadSpec: what "KIND:NUMBER:NUMBER:FILE" says. Numbers come first and the file
// last, so that a file's name may hold colons.
//
// Thread: pure functions. Failure: a sentence that repeats what was typed.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace loralei {

struct WorkloadSpec {
  std::string text;  // all of it
  std::string kind;
  std::vector<double> numbers;
  std::string file;  // empty: none was named
};

// At most `numbers_max` numbers are taken; what follows them is the file.
WorkloadSpec parse_workload_spec(const std::string& text, size_t numbers_max);

// "arrivals 'poisson:x' ...": the beginning of a sentence about it.
Error wrong_spec(const char* what, const WorkloadSpec& spec, const std::string& sentence);

// One of the spec's numbers within [low, high]; `name` stands for it in the sentence.
Result<double> spec_number(const char* what, const WorkloadSpec& spec, size_t index, const char* name, double low,
                           double high);
Result<int64_t> spec_count(const char* what, const WorkloadSpec& spec, size_t index, const char* name, int64_t low,
                           int64_t high);

}  // namespace loralei
