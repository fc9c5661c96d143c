// SPDX-License-Identifier: Apache-2.0
// Which functions and types a source defines, told from its braces. It knows no C++: it
// relies on sources being as clang-format leaves them.
//
// A function is a `{` at namespace or class scope whose statement has a parenthesis. Its
// lines are counted from the line on which that statement begins to the closing brace,
// with its lambdas; TEST and TEST_P are functions.
//
// A type is a struct, class, union or enum with a body, or an alias (`using X = ...`), at
// namespace scope: not nested, not in a namespace without a name, no specialisation.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "house_source.h"

struct HouseFunction {
  std::string name;  // with the classes around it and its own qualifiers: "Sampler::run", "SamplerTest.Greedy"
  int line = 0;
  int lines = 0;
};

struct HouseType {
  std::string name;  // with its namespaces: "loralei::cuda::Dim3"
  int line = 0;
};

struct HouseScopes {
  std::vector<HouseFunction> functions;
  std::vector<HouseType> types;
  bool balanced = true;  // else some brace has no partner, and the rest says little
};

HouseScopes scopes_of(const HouseSource& source);
