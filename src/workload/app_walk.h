// SPDX-License-Identifier: Apache-2.0
// AppChances: which application is opened after which, as a table of chances. AppWalk:
// how the owner of a phone goes from one to the next.
//
// A file has a line for each application and in it a number for each, separated by
// commas, without names: number j of line i says how likely j follows i. Lines need not
// sum to 1.
//
// Thread: AppChances is immutable; a walk is one thread's.
// Ownership: a walk copies what it needs.
// Invariants: a line has a number above 0. The same seed is the same walk, with any
// compiler.
// Failure: FILE:LINE and what is wrong there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "workload/draws.h"

namespace loralei {

class AppChances {
 public:
  static constexpr size_t kAppsMost = 4096;

  static Result<AppChances> read(const std::string& path);
  // Made up, of the kind that was published for the users of a city: 181 applications; a
  // good third of the time the same again, often one of a dozen akin, and sometimes any.
  static AppChances drawn(uint64_t seed);

  size_t apps() const { return apps_; }
  double weight(size_t from, size_t to) const { return weights_[from * apps_ + to]; }

 private:
  explicit AppChances(size_t apps) : apps_(apps) {}
  Status add_line(std::string_view line, const std::string& place);

  size_t apps_ = 0;
  std::vector<double> weights_;  // [from][to]
};

// One owner uses few of all applications: those that a walk from any of them meets first,
// and from then on he stays among them.
class AppWalk {
 public:
  AppWalk(const AppChances& chances, size_t owned, uint64_t seed);

  size_t owned() const { return next_.size(); }  // at most as many as there are
  size_t next();                                 // which of these is used next, from 0

 private:
  std::vector<WeightedDraw> next_;  // of each
  Prng random_;
  size_t now_ = 0;
};

}  // namespace loralei
