// SPDX-License-Identifier: Apache-2.0
// HouseSource: a source as the rules of the house look at it: its lines, and the same
// lines with comments, literals and preprocessor lines blanked, so that a brace or a
// parenthesis in `code` is one of the program's.
//
// A plain value. Columns of `code` are bytes of the line.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

struct HouseLine {
  std::string text;
  std::string code;
  bool comment_only = false;    // begins with "//" after its indentation
  bool comment_behind = false;  // code, then "//"
};

struct HouseSource {
  std::string name;  // the path below the project's root
  std::vector<HouseLine> lines;
};

HouseSource read_house_source(const std::filesystem::path& path, const std::string& name);

// How many columns a line takes: its code points.
int columns_of(const std::string& line);
