// SPDX-License-Identifier: Apache-2.0
// Three rules of the house about what stands in the sources.
//
// 1. A comment on a line of its own is at most 90 columns wide, its indentation included;
//    a comment behind code ends by column 120. tools/wide_comments.txt: the beginnings of
//    paths that are not there yet.
// 2. A function of src/ has at most 70 lines. tools/long_functions.txt: those that have
//    more, a line each: `path function lines`.
// 3. The headers of src/ define no type twice, with its namespaces counted as part
//    of its name: any two of them may meet in one binary. cuda::LoraArgs is another
//    type than LoraArgs. Not looked at are *.inl.h, which are bodies: each is included
//    in a namespace of its own, and several of them are alternatives of each other
//    (simd_avx2, simd_neon).
//
// Both lists may only shrink: what they name and is not needed any more is a breach too.
// A list that is not there is empty.
//
// One thread. Breaches go to `report`.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "house_source.h"

using ReportBreach = std::function<void(const std::string& file, int line, const std::string& what)>;

class CommentRule {
 public:
  CommentRule(const std::filesystem::path& root, ReportBreach report);
  void look_at(const HouseSource& source);
  void finish();  // behind the last source

 private:
  bool may_be_wide(const std::string& file);

  ReportBreach report_;
  std::map<std::string, bool> prefixes_;  // and whether one was needed
};

class FunctionRule {
 public:
  FunctionRule(const std::filesystem::path& root, ReportBreach report);
  void look_at(const HouseSource& source);
  void finish();

 private:
  ReportBreach report_;
  // By "path function": the lines of each that is listed, the longest first.
  // Overloads share a name.
  std::map<std::string, std::vector<int>> listed_;
  std::set<std::string> seen_;  // of these
};

class TypeRule {
 public:
  explicit TypeRule(ReportBreach report) : report_(std::move(report)) {}
  void look_at(const HouseSource& source);

 private:
  ReportBreach report_;
  std::map<std::string, std::string> headers_;  // of types by name
};
