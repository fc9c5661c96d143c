// SPDX-License-Identifier: Apache-2.0
// check_includes ROOT: the rules of the house that a program can see. Prints each breach
// as file:line and exits 1.
//
// Here: every #include under src/ against tools/rooms.txt, the SPDX line first, #pragma
// once in headers, no file over 800 lines. In house_rules.h: the width of comments (also
// of tests/ and tools/), the length of functions, the names of types.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "house_rules.h"
#include "house_source.h"

namespace fs = std::filesystem;

namespace {

struct Rooms {
  std::map<std::string, std::vector<std::string>> may_include;
  std::set<std::string> core;
};

bool read_rooms(const fs::path& path, Rooms& rooms) {
  std::ifstream file(path);
  if (!file) return false;
  bool core = true;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (line == "---") {
      core = false;
      continue;
    }
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return false;
    const std::string room = line.substr(0, colon);
    std::istringstream allowed(line.substr(colon + 1));
    for (std::string word; allowed >> word;) rooms.may_include[room].push_back(word);
    rooms.may_include[room].push_back(room);
    if (core) rooms.core.insert(room);
  }
  return true;
}

// `target` is an include path such as "ops/args.h"; `word` a room, a header without its
// ending ("ops/args"), or "*".
bool allows(const std::string& word, const std::string& target) {
  if (word == "*") return true;
  if (word.find('/') != std::string::npos) return target.rfind(word + ".", 0) == 0 || target.rfind(word + "/", 0) == 0;
  return target.rfind(word + "/", 0) == 0;
}

bool starts_with_any(const std::string& text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& p) { return text.rfind(p, 0) == 0; });
}

// Library headers that only some rooms may use (docs: ARCHITECTURE.md, "Libraries").
std::string library_breach(const std::string& room, const std::string& relative, const std::string& header,
                           const Rooms& rooms, bool is_test) {
  static const std::vector<std::string> kSystemOnly = {"sys/", "unistd", "fcntl", "linux/", "sched.h", "pthread"};
  if (header.rfind("boost/", 0) == 0 && room != "http" && room != "store" && room != "route") {
    return "Boost belongs to http/, store/ and route/";
  }
  if (header.rfind("nlohmann/", 0) == 0 && rooms.core.count(room) && room != "formats" && room != "cost") {
    return "nlohmann-json belongs to formats/ and cost/ in the core";
  }
  const bool cuda_folder = starts_with_any(relative, {"device/cuda/", "ops/cuda/"});
  if (!cuda_folder && starts_with_any(header, {"cuda", "cublas", "mma", "cooperative_groups"})) {
    return "CUDA belongs to device/cuda and ops/cuda";
  }
  if (header.rfind("spdlog/", 0) == 0 && room != "apps") return "spdlog belongs to apps/";
  if (!is_test && room != "sys" && rooms.core.count(room) && starts_with_any(header, kSystemOnly)) {
    return "only sys/ talks to the operating system";
  }
  return "";
}

int check_file(const fs::path& path, const fs::path& source_root, const Rooms& rooms) {
  const fs::path relative = fs::relative(path, source_root);
  const std::string room = relative.begin()->string();
  const auto known = rooms.may_include.find(room);
  int breaches = 0;
  const auto report = [&](int line, const std::string& what) {
    std::cerr << "src/" << relative.string() << ":" << line << ": " << what << "\n";
    ++breaches;
  };
  if (known == rooms.may_include.end()) {
    report(1, "room '" + room + "' is not in tools/rooms.txt");
    return breaches;
  }
  const bool is_test = path.stem().string().find("_test") != std::string::npos ||
                       relative.string().find("/emulated/") != std::string::npos;
  std::ifstream file(path);
  std::string line;
  bool pragma_once = false;
  int number = 0;
  while (std::getline(file, line)) {
    ++number;
    if (number == 1 && line.find("SPDX-License-Identifier: Apache-2.0") == std::string::npos) report(1, "no SPDX line");
    if (line.rfind("#pragma once", 0) == 0) pragma_once = true;
    if (line.rfind("#include \"", 0) == 0) {
      const std::string target = line.substr(10, line.find('"', 10) - 10);
      const auto& words = known->second;
      const auto allowed = [&](const std::string& word) { return allows(word, target); };
      if (!fs::exists(source_root / target)) {
        report(number, "include \"" + target + "\" is not a file under src/");
      } else if (!(is_test && allows("sim", target)) && std::none_of(words.begin(), words.end(), allowed)) {
        report(number, room + "/ may not include " + target + " (tools/rooms.txt)");
      }
    } else if (line.rfind("#include <", 0) == 0) {
      const std::string breach =
          library_breach(room, relative.string(), line.substr(10, line.find('>') - 10), rooms, is_test);
      if (!breach.empty()) report(number, breach);
    }
  }
  // x.inl.h is a body included once per instruction set.
  const bool is_header = (path.extension() == ".h" && path.stem().extension() != ".inl") || path.extension() == ".cuh";
  if (is_header && !pragma_once) report(1, "header without #pragma once");
  if (number > 800) report(number, "file of " + std::to_string(number) + " lines: which two things is it?");
  return breaches;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> kEndings = {".h", ".cc", ".cu", ".cuh", ".inc"};
  return kEndings.count(path.extension().string()) > 0;
}

// In the order of their names, so that breaches are told alike everywhere.
std::vector<fs::path> sources_below(const fs::path& folder) {
  std::vector<fs::path> paths;
  if (!fs::exists(folder)) return paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (is_source(entry.path())) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// What all of src/, and the comments of tests/ and tools/, breach of house_rules.h.
int check_rules(const fs::path& root) {
  int breaches = 0;
  const auto report = [&breaches](const std::string& file, int line, const std::string& what) {
    std::cerr << file << ":" << line << ": " << what << "\n";
    ++breaches;
  };
  CommentRule comments(root, report);
  FunctionRule functions(root, report);
  TypeRule types(report);
  for (const char* folder : {"src", "tests", "tools"}) {
    for (const fs::path& path : sources_below(root / folder)) {
      const HouseSource source = read_house_source(path, fs::relative(path, root).string());
      comments.look_at(source);
      if (folder != std::string("src")) continue;
      functions.look_at(source);
      types.look_at(source);
    }
  }
  comments.finish();
  functions.finish();
  return breaches;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: check_includes ROOT\n";
    return 2;
  }
  const fs::path root = argv[1];
  Rooms rooms;
  if (!read_rooms(root / "tools" / "rooms.txt", rooms)) {
    std::cerr << "check_includes: cannot read " << (root / "tools" / "rooms.txt") << "\n";
    return 2;
  }
  int breaches = 0;
  const std::vector<fs::path> files = sources_below(root / "src");
  for (const fs::path& path : files) breaches += check_file(path, root / "src", rooms);
  breaches += check_rules(root);
  std::cout << files.size() << " files, " << breaches << " breaches\n";
  return breaches == 0 && !files.empty() ? 0 : 1;
}
