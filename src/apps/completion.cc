// SPDX-License-Identifier: Apache-2.0
#include "apps/completion.h"

#include <functional>
#include <vector>

namespace loralei {
namespace {

// One word of a shell, whatever it holds.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c == '\n' ? ' ' : c);
  return word + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string last_word(const std::string& path) { return path.substr(path.rfind(' ') + 1); }

void each(const CommandRow& command, const std::function<void(const CommandRow&)>& visit) {
  visit(command);
  for (const CommandRow& below : command.below) each(below, visit);
}

// Cases "path:option" of what stands behind an option: its words, or files. In both
// shells `case` reads them alike.
std::string value_cases(const CommandRow& program, const std::string& words, const std::string& files) {
  std::string text;
  each(program, [&](const CommandRow& command) {
    std::string with_files;
    for (const OptionRow& row : command.options) {
      if (row.value.empty()) continue;
      std::string pattern;
      for (const std::string& name : row.names)
        pattern += (pattern.empty() ? "" : "|") + quoted(command.path + ":" + name);
      if (row.choices.empty()) {
        with_files += (with_files.empty() ? "" : "|") + pattern;
      } else {
        text += "    " + pattern + ") " + words + " " + quoted(joined(row.choices)) + "; return ;;\n";
      }
    }
    if (!with_files.empty()) text += "    " + with_files + ") " + files + "; return ;;\n";
  });
  return text;
}

// Of a positional argument that takes only some words.
std::vector<std::string> positional_choices(const CommandRow& command) {
  return command.positionals.empty() ? std::vector<std::string>() : command.positionals.front().choices;
}

std::string bash_script(const CommandRow& program) {
  std::string paths, cases;
  each(program, [&](const CommandRow& command) {
    std::vector<std::string> words = positional_choices(command), options;
    for (const CommandRow& below : command.below) {
      words.push_back(last_word(below.path));
      paths += (paths.empty() ? "" : "|") + quoted(below.path);
    }
    for (const OptionRow& row : command.options) options.insert(options.end(), row.names.begin(), row.names.end());
    cases += "    " + quoted(command.path) + ") words=" + quoted(joined(words)) +
             " options=" + quoted(joined(options)) + " ;;\n";
  });
  return R"(# bash completion of loralei; `loralei completion bash` writes it.
_loralei_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
_loralei_files() { compopt -o default 2>/dev/null; COMPREPLY=(); }
_loralei() {
  local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path=loralei words= options= i
  # --option=value comes as three words.
  if [[ $cur == = ]]; then cur=; elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$path ${COMP_WORDS[i]}" in
    )" + (paths.empty() ? "''" : paths) +
         R"() path="$path ${COMP_WORDS[i]}" ;;
    esac
  done
  case "$path:$before" in
)" + value_cases(program, "_loralei_words", "_loralei_files") +
         R"(  esac
  case "$path" in
)" + cases +
         R"(  esac
  if [[ $cur == -* ]]; then _loralei_words "$options"; return; fi
  if [[ -n $words ]]; then _loralei_words "$words"; [[ ${#COMPREPLY[@]} -eq 0 ]] || return; fi
  _loralei_files
}
complete -F _loralei loralei
)";
}

// A description as zsh's _describe takes it: what is before the first colon is the word.
std::string described(const std::string& word, const std::string& description) {
  std::string escaped;
  for (const char c : word) escaped += c == ':' ? std::string("\\:") : std::string(1, c);
  return quoted(escaped + ":" + description);
}

std::string zsh_script(const CommandRow& program) {
  std::string paths, cases;
  each(program, [&](const CommandRow& command) {
    std::string words, options;
    for (const std::string& choice : positional_choices(command)) words += " " + quoted(choice);
    for (const CommandRow& below : command.below) {
      words += " " + described(last_word(below.path), below.description);
      paths += (paths.empty() ? "" : "|") + quoted(below.path);
    }
    for (const OptionRow& row : command.options)
      for (const std::string& name : row.names) options += " " + described(name, row.description);
    cases += "    " + quoted(command.path) + ") names=(" + words + ") options=(" + options + ") ;;\n";
  });
  return R"(#compdef loralei
# zsh completion of loralei; `loralei completion zsh` writes it.
_loralei_words() { compadd -- ${=1} }
_loralei() {
  local where=loralei before=${words[CURRENT-1]} one
  local -a names options
  for one in "${(@)words[2,CURRENT-1]}"; do
    case "$where $one" in
    )" + (paths.empty() ? "''" : paths) +
         R"() where="$where $one" ;;
    esac
  done
  case "$where:$before" in
)" + value_cases(program, "_loralei_words", "_files") +
         R"(  esac
  case "$where" in
)" + cases +
         R"(  esac
  if [[ $PREFIX == -* ]]; then _describe option options; return; fi
  (( $#names )) && _describe command names && return
  _files
}
_loralei "$@"
)";
}

std::string fish_script(const CommandRow& program) {
  std::string commands, rows;
  each(program, [&](const CommandRow& command) {
    const std::string here = "complete -c loralei -n " + quoted("__loralei_is '" + command.path + "'");
    for (const std::string& choice : positional_choices(command)) rows += here + " -a " + quoted(choice) + "\n";
    for (const CommandRow& below : command.below) {
      commands += " " + quoted(below.path);
      rows += here + " -f -a " + quoted(last_word(below.path)) + " -d " + quoted(below.description) + "\n";
    }
    for (const OptionRow& row : command.options) {
      std::string line = here;
      for (const std::string& name : row.names)
        line +=
            name.starts_with("--") ? " -l " + name.substr(2) : (name.size() == 2 ? " -s " : " -o ") + name.substr(1);
      if (!row.value.empty()) line += row.choices.empty() ? " -r" : " -x -a " + quoted(joined(row.choices));
      rows += line + " -d " + quoted(row.description) + "\n";
    }
  });
  return R"(# fish completion of loralei; `loralei completion fish` writes it.
function __loralei_is
    set -l path loralei
    for word in (commandline -opc)[2..]
        if contains -- "$path $word")" +
         commands + R"(
            set path "$path $word"
        end
    end
    test "$path" = "$argv[1]"
end
)" + rows;
}

}  // namespace

Result<std::string> completion_script(const CommandRow& program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  return invalid_argument("there is no completion for '" + shell + "'; choose bash, zsh or fish");
}

}  // namespace loralei
