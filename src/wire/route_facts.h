// SPDX-License-Identifier: Apache-2.0
// RouteFacts: what whoever stands in front of servers must know of a request to choose
// one, read from its body without building a tree of it: a scan of the bytes finds the
// object's own members, and only the few that count are parsed.
//
// Thread: pure functions.
// Ownership: values; `text` borrows the body.
// Invariants: time and memory follow from the body's length and nothing that it claims.
// What counts is read as the servers read it: of a key that is given twice the last
// value.
// Failure: none. A body that is no JSON object, or whose fields are wrong, is the
// server's to refuse, with its sentence: `readable` is false, and the rest is what was
// found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/requests.h"

namespace loralei {

struct RouteFacts {
  bool readable = false;
  ModelRef model;
  bool stream = false;
  int64_t max_tokens = 0;  // of one answer, as asked for; 0: not stated
  int32_t choices = 1;
  std::string_view text;  // what the prompt is made of, as JSON: messages, prompt or input; empty: none
};

RouteFacts read_route_facts(std::string_view body);

}  // namespace loralei
