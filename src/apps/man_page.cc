// SPDX-License-Identifier: Apache-2.0
#include "apps/man_page.h"

#include <algorithm>
#include <cctype>

namespace loralei {
namespace {

// Text that means nothing to the formatter.
std::string plain(const std::string& text) {
  std::string escaped;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool begins = i == 0 || text[i - 1] == '\n';
    if (begins && (c == '.' || c == '\'')) escaped += "\\&";
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string bold(const std::string& text) { return "\\fB" + plain(text) + "\\fR"; }
std::string slanted(const std::string& text) { return "\\fI" + plain(text) + "\\fR"; }

std::string dashed(std::string path) {
  std::replace(path.begin(), path.end(), ' ', '-');
  return path;
}

// "A or b" for the library's {a,b}.
std::string told(const OptionRow& row) {
  std::string text = plain(row.description);
  const auto add = [&text](const std::string& sentence) { text += (text.empty() ? "" : "\n.br\n") + sentence; };
  if (!row.choices.empty()) {
    std::string words;
    for (const std::string& choice : row.choices) words += (words.empty() ? "" : ", ") + bold(choice);
    add("One of " + words + ".");
  }
  if (!row.range.empty()) add("Range: " + plain(row.range) + ".");
  if (!row.default_value.empty()) add("Default: " + bold(row.default_value) + ".");
  if (row.repeated) add("May be given several times.");
  if (!row.variable.empty()) add("Variable: " + bold(row.variable) + ".");
  return text;
}

std::string paragraph(const OptionRow& row, bool positional) {
  std::string head;
  for (const std::string& name : row.names)
    head += (head.empty() ? "" : ", ") + (positional ? slanted(name) : bold(name));
  if (!positional && !row.value.empty()) head += " " + slanted(row.value);
  const std::string text = told(row);
  return ".TP\n" + head + "\n" + (text.empty() ? "\\&" : text) + "\n";
}

std::string options_section(const CommandRow& command) {
  std::string text;
  std::vector<std::string> groups;
  for (const OptionRow& row : command.options)
    if (std::find(groups.begin(), groups.end(), row.group) == groups.end()) groups.push_back(row.group);
  for (const std::string& group : groups) {
    text += group == "Options" ? ".SH OPTIONS\n" : ".SS " + plain(group) + "\n";
    for (const OptionRow& row : command.options)
      if (row.group == group) text += paragraph(row, false);
  }
  return text;
}

std::string synopsis(const CommandRow& command) {
  std::string text = bold(command.path);
  if (!command.options.empty()) text += " [" + slanted("OPTIONS") + "]";
  for (const OptionRow& row : command.positionals)
    text += (row.required ? " " : " [") + slanted(row.names.front()) + (row.repeated ? " ..." : "") +
            (row.required ? "" : "]");
  if (!command.below.empty()) text += " " + slanted("COMMAND");
  return text;
}

// The first sentence, without its full stop: what apropos(1) shows.
std::string brief(const std::string& description) {
  std::string text = description.substr(0, description.find('\n'));
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

std::string page_text(const CommandRow& command, const CommandRow& program, const std::string& version) {
  std::string name = dashed(command.path), title = name;
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string text = ".TH " + plain(title) + " 1 \"\" \"Loralei " + version + "\" \"User Commands\"\n";
  text += ".SH NAME\n" + plain(name) + " \\- " + plain(brief(command.description)) + "\n";
  text += ".SH SYNOPSIS\n" + synopsis(command) + "\n.SH DESCRIPTION\n" + plain(command.description) + "\n";
  for (const OptionRow& row : command.positionals) text += paragraph(row, true);
  if (!command.below.empty()) {
    text += ".SH COMMANDS\n";
    for (const CommandRow& below : command.below)
      text += ".TP\n" + bold(below.path.substr(command.path.size() + 1)) + "\n" + plain(below.description) + "\nSee " +
              bold(dashed(below.path)) + "(1).\n";
  }
  text += options_section(command);
  text +=
      ".SH ENVIRONMENT\nEvery option that has a variable takes its value where the option is not given. What an option "
      "says counts more than its variable, and that more than a file of \\fB\\-\\-config\\fR.\n";
  text +=
      ".SH EXIT STATUS\n.TP\n0\nWhat was asked for is done.\n.TP\n1\nIt could not be done; a sentence says why.\n"
      ".TP\n2\nWhat was typed is wrong.\n";
  text += ".SH SEE ALSO\n";
  std::string others;
  const auto add = [&](const CommandRow& one) {
    if (one.path != command.path) others += (others.empty() ? "" : ",\n") + bold(dashed(one.path)) + "(1)";
  };
  add(program);
  for (const CommandRow& one : program.below) add(one);
  return text + others + "\n";
}

void add_pages(const CommandRow& command, const CommandRow& program, const std::string& version,
               std::vector<ManPage>& pages) {
  pages.push_back({dashed(command.path) + ".1", page_text(command, program, version)});
  for (const CommandRow& below : command.below) add_pages(below, program, version, pages);
}

}  // namespace

std::vector<ManPage> man_pages(const CommandRow& program, const std::string& version) {
  std::vector<ManPage> pages;
  add_pages(program, program, version, pages);
  return pages;
}

}  // namespace loralei
