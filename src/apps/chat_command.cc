// SPDX-License-Identifier: Apache-2.0
// loralei chat MODEL|URL: a conversation on the terminal, with a server of its own or
// with one that runs.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "apps/adapter_flags.h"
#include "apps/chat_client.h"
#include "apps/chat_server.h"
#include "apps/conversation.h"
#include "apps/options.h"
#include "base/printable.h"
#include "sys/file.h"
#include "sys/write_file.h"
#include "term/line_reader.h"
#include "term/terminal_text.h"

namespace loralei {
namespace {

constexpr char kServerGroup[] = "Of the server that is started";
constexpr char kDim[] = "\x1b[2m", kBold[] = "\x1b[1m", kPlain[] = "\x1b[0m";

volatile sig_atomic_t g_interrupted = 0;
void interrupt(int) { g_interrupted = 1; }

// Ctrl-C is heard while somebody is waited for.
class Interrupts {
 public:
  Interrupts() {
    g_interrupted = 0;
    struct sigaction action = {};
    action.sa_handler = interrupt;
    ::sigaction(SIGINT, &action, &before_);
  }
  ~Interrupts() { ::sigaction(SIGINT, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  struct sigaction before_ = {};
};

struct ChatFlags {
  std::string target, api_key, system;
  std::vector<std::string> adapters, settings, serve_words;
  std::string typed_serve_option;  // one that did not come from a variable
  bool quiet = false;
};

class Chat {
 public:
  Chat(const ChatFlags& flags, ChatClient client, std::vector<std::string> names, ChatServer* server)
      : quiet_(flags.quiet),
        colours_(::isatty(STDOUT_FILENO) == 1 && ::getenv("NO_COLOR") == nullptr),
        client_(std::move(client)),
        names_(std::move(names)),
        server_(server),
        talk_(names_.front()),
        reader_(STDIN_FILENO, STDOUT_FILENO) {
    talk_.set_system(flags.system);
  }

  Status use(const std::string& name);
  Status set(const std::string& setting) { return talk_.set(setting); }
  bool run();  // false: something failed in a conversation that nobody types

 private:
  bool order(const ChatOrder& order);  // false: the end
  void list();
  Status say(const std::string& question);
  void tell(const std::string& text) { std::fputs((text + "\n").c_str(), stdout); }
  void complain(const Error& error) {
    std::fprintf(stderr, "loralei chat: %s\n", terminal_text(error.message).c_str());
  }
  std::string dim(const std::string& text) const { return colours_ ? kDim + text + kPlain : text; }

  const bool quiet_, colours_;
  ChatClient client_;
  std::vector<std::string> names_;
  ChatServer* server_;
  Conversation talk_;
  LineReader reader_;
  bool failed_ = false;
};

Status Chat::use(const std::string& name) {
  if (auto names = client_.models(); names.ok()) names_ = *std::move(names);  // they come and go
  if (std::find(names_.begin(), names_.end(), name) != names_.end()) {
    talk_.use_model(name);
    return {};
  }
  if (name == "none") {
    talk_.use_model(names_.front());
    return {};
  }
  std::string all;
  for (const std::string& one : names_) all += (all.empty() ? "" : ", ") + printable(one);
  return not_found("there is no '" + printable(name) + "' here; there are " + all);
}

void Chat::list() {
  if (auto names = client_.models(); names.ok()) names_ = *std::move(names);
  for (const std::string& name : names_)
    tell((name == talk_.model() ? "* " : "  ") + printable(name) + (name == names_.front() ? " (the base)" : ""));
}

bool Chat::order(const ChatOrder& order) {
  using Kind = ChatOrder::Kind;
  Status status;
  switch (order.kind) {
    case Kind::kSay:
      status = say(order.text);
      break;
    case Kind::kAdapter:
      if (order.text.empty())
        list();
      else
        status = use(order.text);
      break;
    case Kind::kSystem:
      talk_.set_system(order.text);
      break;
    case Kind::kClear:
      talk_.clear();
      break;
    case Kind::kUndo:
      if (!talk_.undo()) tell("Nothing was said yet.");
      break;
    case Kind::kRetry:
      if (const auto question = talk_.again())
        status = say(*question);
      else
        tell("Nothing was said yet.");
      break;
    case Kind::kSet:
      status = talk_.set(order.text);
      break;
    case Kind::kSave:
      if (order.text.empty())
        status = invalid_argument("say where: /save FILE");
      else
        status = put_file(order.text, talk_.saved());
      break;
    case Kind::kHelp:
      std::fputs(chat_help(), stdout);
      break;
    case Kind::kUnknown:
      status = invalid_argument("there is no order /" + order.text + "; /help shows them");
      break;
    case Kind::kQuit:
      return false;
  }
  if (!status.ok()) {
    complain(status.error());
    failed_ = true;
  }
  return true;
}

Status Chat::say(const std::string& question) {
  talk_.ask(question);
  bool thinking = false;
  ChatClient::Heard heard;
  heard.text = [&](std::string_view text) {
    if (std::exchange(thinking, false)) std::fputs((std::string(colours_ ? kPlain : "") + "\n").c_str(), stdout);
    std::fputs(terminal_text(text).c_str(), stdout);
    std::fflush(stdout);
  };
  if (reader_.is_terminal()) {
    heard.reasoning = [&](std::string_view text) {
      if (!std::exchange(thinking, true) && colours_) std::fputs(kDim, stdout);
      std::fputs(terminal_text(text).c_str(), stdout);
      std::fflush(stdout);
    };
  }
  const Interrupts interrupts;
  const auto answer = client_.ask(talk_.request(), heard, [] { return g_interrupted != 0; });
  if (thinking && colours_) std::fputs(kPlain, stdout);
  if (!answer.ok()) {
    talk_.take_back_question();
    const std::string why = server_ == nullptr ? "" : server_->ended();
    return why.empty() ? answer.error() : io_error("the server has ended: " + why);
  }
  std::fputs("\n", stdout);
  if (answer->text.empty() && answer->stopped)
    talk_.take_back_question();
  else
    talk_.answered(answer->text);
  if (reader_.is_terminal() && !quiet_) {
    char figures[160];
    const double made_s = answer->all_s - answer->first_s;
    std::snprintf(figures, sizeof figures, "[%s%lld tokens, first after %.2f s, %.1f tokens/s]",
                  answer->cut ? "cut at the limit, " : "", static_cast<long long>(answer->tokens), answer->first_s,
                  made_s > 0 && answer->tokens > 1 ? static_cast<double>(answer->tokens - 1) / made_s : 0.0);
    tell(dim(answer->stopped ? "[stopped]" : figures));
  }
  std::fflush(stdout);
  return {};
}

bool Chat::run() {
  if (reader_.is_terminal() && !quiet_) tell(dim("/help shows what can be typed; Ctrl-D ends."));
  for (;;) {
    const std::string name = printable(talk_.model());
    std::fflush(stdout);
    const LineReader::Read read =
        reader_.read((colours_ ? kBold + name + ">" + kPlain : name + ">") + " ", terminal_columns(name) + 2);
    if (read.event == LineReader::Event::kEnd) break;
    if (read.event == LineReader::Event::kInterrupt) {
      tell(dim("Ctrl-D or /quit ends."));
      continue;
    }
    if (read.line.find_first_not_of(" \t\n") == read.line.npos) continue;
    if (!order(read_chat_order(read.line))) break;
  }
  return reader_.is_terminal() || !failed_;
}

bool is_url(const std::string& target) { return target.starts_with("http://") || target.starts_with("https://"); }

// Words of `serve` that make this conversation's server.
std::vector<std::string> server_words(const ChatFlags& flags) {
  std::vector<std::string> words = {flags.target};
  for (const std::string& adapter : flags.adapters) words.push_back("--adapter=" + adapter);
  words.insert(words.end(), flags.serve_words.begin(), flags.serve_words.end());
  return words;
}

Result<std::unique_ptr<ChatServer>> start_server(const ChatFlags& flags) {
  const Interrupts interrupts;
  const bool shown = ::isatty(STDERR_FILENO) == 1;
  if (shown) std::fprintf(stderr, "loading %s ...", printable(flags.target).c_str());
  auto server = ChatServer::start(server_words(flags), [] { return g_interrupted == 0; });
  if (shown) std::fputs("\r\x1b[K", stderr);
  return server;
}

Status chat(const ChatFlags& flags, int& exit_code) {
  std::unique_ptr<ChatServer> server;
  std::string url = flags.target, key = flags.api_key;
  if (!is_url(flags.target)) {
    TRY_ASSIGN(server, start_server(flags));
    url = server->url();
    key = server->key();
  } else if (!flags.typed_serve_option.empty()) {
    return invalid_argument(flags.typed_serve_option + " is for a server that is started here; " + flags.target +
                            " runs already.");
  }
  TRY_ASSIGN(ChatClient client, ChatClient::to(url, key));
  TRY_ASSIGN(std::vector<std::string> names, client.models());
  std::string first = flags.adapters.empty() ? "" : flags.adapters.front();
  if (server != nullptr && !first.empty()) {
    // By the name that the server has given it.
    TRY_ASSIGN(const std::vector<AdapterFlag> named, parse_adapter_flag(PosixFileSystem(), first));
    first = named.empty() ? "" : named.front().name;
  }
  Chat chat(flags, std::move(client), std::move(names), server.get());
  if (!first.empty()) TRY(chat.use(first));
  for (const std::string& setting : flags.settings) TRY(chat.set(setting));
  if (!chat.run()) exit_code = 1;
  return {};
}

// Every other option of `serve` is one of the server that is started here.
void add_serve_words(CLI::App& command, const CLI::App& serve, ChatFlags& flags) {
  static const std::set<std::string> kOurs = {"help",   "help-all", "host",    "port",
                                              "config", "model",    "adapter", "api-key"};
  for (const CLI::Option* option : serve.get_options()) {
    const auto& names = option->get_lnames();
    if (names.empty() || kOurs.contains(names.front()) || command.get_option_no_throw("--" + names.front())) continue;
    std::string all;
    for (const std::string& name : option->get_snames()) all += "-" + name + ",";
    for (const std::string& name : names) all += "--" + name + ",";
    all.pop_back();
    const std::string word = "--" + names.front();
    CLI::Option* added = nullptr;
    if (option->get_type_size_max() == 0) {
      added = command.add_flag_callback(
          all, [&flags, word] { flags.serve_words.push_back(word); }, option->get_description());
    } else {
      added = command.add_option_function<std::vector<std::string>>(
          all,
          [&flags, word](const std::vector<std::string>& values) {
            for (const std::string& value : values) flags.serve_words.push_back(word + "=" + value);
          },
          option->get_description());
      added->type_name(option->get_type_name())->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    added->group(kServerGroup);
  }
}

}  // namespace

void add_chat_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("chat", "A conversation on the terminal, with a model or a running server.");
  auto flags = std::make_shared<ChatFlags>();
  const auto setting = [flags](const std::string& name) {
    return [flags, name](const std::string& value) { flags->settings.push_back(name + " " + value); };
  };
  command
      ->add_option("target", flags->target,
                   "a model (folder, GGUF file, ORG/NAME), or the URL of a server: http://HOST:PORT")
      ->required();
  command->add_option(
      "--adapter,--lora", flags->adapters,
      "NAME=PATH or PATH, may be given often, the first one answers; with a URL the name of one that is there");
  command->add_option("--system", flags->system, "system message");
  command->add_option_function<std::string>("--temp,--temperature", setting("temperature"),
                                            "0 = greedy (default: the model's own)");
  command->add_option_function<std::string>("--top-p", setting("top_p"),
                                            "of the tokens that may follow, those that are likely enough");
  command->add_option_function<std::string>("-n,--max-tokens", setting("max_tokens"), "most tokens of an answer");
  command->add_option_function<std::string>("--seed", setting("seed"), "of the random numbers");
  command->add_option("--api-key", flags->api_key, "the key of the server at that URL");
  command->add_flag("-q,--quiet", flags->quiet, "no figures behind answers");
  add_serve_words(*command, *app.get_subcommand("serve"), *flags);
  show_first(*command, {"adapter", "system", "temp", "max-tokens", "api-key", "quiet", "memory-budget", "adapter-dir"});
  command->callback([command, flags, &exit_code] {
    for (const CLI::Option* option : command->parse_order())
      if (option->get_group() == kServerGroup) flags->typed_serve_option = option->get_name();
    const Status status = chat(*flags, exit_code);
    if (status.ok()) return;
    print_error("chat", status.error());
    exit_code = 1;
  });
}

}  // namespace loralei
