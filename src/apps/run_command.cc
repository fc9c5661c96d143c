// SPDX-License-Identifier: Apache-2.0
// loralei run MODEL [--adapter PATH] "prompt": one answer on the terminal,
// streamed; no server.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "apps/adapter_flags.h"
#include "apps/console_log.h"
#include "apps/hub_flags.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "apps/text_loading.h"
#include "base/utf8.h"
#include "serve/plan.h"
#include "sys/file.h"
#include "sys/rooted_file_system.h"
#include "text/stream_decoder.h"

namespace loralei {
namespace {

constexpr int64_t kWaitNs = 1'000'000'000;
constexpr size_t kPromptBytesMax = 64 << 20;

struct RunFlags {
  EngineFlags engine;
  HubFlags hub;
  std::string adapter, prompt, system, chat_template;
  bool raw = false, prompt_given = false;
  int max_tokens = 512;
  double temperature = -1;  // not given: the model's own default
  uint64_t seed = 0;
};

Result<std::vector<TokenId>> make_prompt(const RunFlags& flags, const TextModel& text) {
  if (!flags.raw && !text.has_template() && !flags.system.empty())
    return invalid_argument("--system needs a chat template, and this model ships none: name one by --chat-template.");
  return flags.raw ? text.encode_text(flags.prompt, true) : encode_message(text, flags.prompt, flags.system);
}

constexpr AdapterSourceId kOnlyAdapter{1};

Status load_adapter_now(Engine& engine, const AdapterFlag& adapter) {
  AdapterCommand command;
  command.ticket = 1;
  command.action = AdapterAction::kLoad;
  command.source = {kOnlyAdapter, adapter.name, adapter.path};
  TRY(engine.command(std::move(command)));
  for (;;) {
    for (CommandReply& reply : engine.wait_output(kWaitNs).replies) return std::move(reply.status);
  }
}

SamplingParams sampling(const RunFlags& flags, const BaseModelFile& file) {
  GenerationFields fields;
  if (flags.temperature >= 0) fields.temperature = flags.temperature;
  return sampling_of(fields, sampling_defaults(file), flags.seed);
}

// Prints tokens as they come; answers the number of them.
Result<int> stream_answer(Engine& engine, const Tokenizer::Ptr& tokenizer) {
  StreamDecoder decoder(tokenizer, StreamDecoder::Mode::kMidStream);
  int tokens = 0;
  for (;;) {
    for (const TokenEvent& event : engine.wait_output(kWaitNs).tokens) {
      if (event.end == EndReason::kError) return event.error;
      if (event.has_token) {
        ++tokens;
        const bool ending = event.end == EndReason::kStop;
        if (!ending) std::fputs(decoder.push(event.token).c_str(), stdout);
        std::fflush(stdout);
      }
      if (event.end == EndReason::kNone) continue;
      std::fputs((decoder.flush() + "\n").c_str(), stdout);
      std::fflush(stdout);
      return tokens;
    }
  }
}

// All of standard input, without its last line end.
Result<std::string> read_prompt() {
  std::string text, piece(1 << 16, '\0');
  while (const size_t got = std::fread(piece.data(), 1, piece.size(), stdin)) {
    text.append(piece, 0, got);
    if (text.size() > kPromptBytesMax)
      return invalid_argument("what comes from standard input is longer than 64 MiB; a prompt is not.");
  }
  if (std::ferror(stdin) != 0) return io_error("standard input cannot be read.");
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (text.empty()) return invalid_argument("standard input is empty; say what to ask there, or behind the model.");
  if (!is_valid_utf8(text)) return invalid_argument("what comes from standard input is no UTF-8 text.");
  return text;
}

Status take_prompt(RunFlags& flags) {
  const bool none = !flags.prompt_given;
  if (none && ::isatty(STDIN_FILENO) == 1) return invalid_argument("say what to ask: loralei run MODEL \"...\"");
  if (!none && flags.prompt != "-") return {};
  TRY_ASSIGN(flags.prompt, read_prompt());
  return {};
}

Status run_once(RunFlags& flags, const std::vector<std::string>& notes) {
  TRY(take_prompt(flags));
  ConsoleLog log(ConsoleLog::Options{});
  EngineFlags engine = flags.engine;
  TRY(resolve_path(engine.host.model_path, HubKind::kModel, flags.hub, log));
  TRY_ASSIGN(EngineHostOptions options, finish_engine_options(engine));
  for (const std::string& note : notes) log.log(LogLevel::kInfo, note);
  options.engine.max_sequences = 1;
  const PosixFileSystem files;
  RootedFileSystem adapter_files(files);
  options.adapter_files = &adapter_files;
  std::vector<AdapterFlag> adapters;
  if (!flags.adapter.empty()) {
    TRY_ASSIGN(adapters,
               find_adapters(files, adapter_files, "--adapter", {flags.adapter}, hub_adapters(flags.hub, log)));
  }
  if (adapters.size() > 1) return invalid_argument("--adapter " + flags.adapter + ": run takes one adapter.");
  TRY_ASSIGN(std::shared_ptr<const ChatTemplate> chat_template, load_chat_template(flags.chat_template));
  std::unique_ptr<EngineHost> host;
  {
    ProgressPrinter progress("loading", log);
    TRY_ASSIGN(host,
               EngineHost::start(options, log, [&](int64_t done, int64_t total) { progress.update(done, total); }));
  }
  log.set_level(LogLevel::kWarning);  // a start may take long and says what it does; then the answer speaks
  TRY_ASSIGN(std::shared_ptr<const TextModel> text,
             load_text_model(host->file(), std::move(chat_template), options.model_path));
  TextModels texts(text, adapter_files);
  Submit request;
  request.id = RequestId{1};
  for (const AdapterFlag& adapter : adapters) {
    TRY(load_adapter_now(host->engine(), adapter));
    CatalogueEntry entry;
    entry.name = adapter.name;
    entry.path = adapter.path;
    TRY_ASSIGN(text, texts.read(entry));  // its own tokens and chat template, if it has some
    request.adapters.push_back({kOnlyAdapter, 1.0f});
  }
  TRY_ASSIGN(request.prompt, make_prompt(flags, *text));
  const auto ends = text->tokenizer()->end_ids();
  request.stop_ids.assign(ends.begin(), ends.end());
  request.sampling = sampling(flags, host->file());
  request.max_tokens = flags.max_tokens;
  const SteadyClock clock;
  const int64_t start = clock.now_ns();
  const size_t prompt_tokens = request.prompt.size();
  TRY(host->engine().submit(std::move(request)));
  TRY_ASSIGN(const int tokens, stream_answer(host->engine(), text->tokenizer()));
  const double seconds = static_cast<double>(clock.now_ns() - start) * 1e-9;
  std::fprintf(stderr, "[%zu prompt tokens, %d new tokens in %.2f s, %.1f tokens/s]\n", prompt_tokens, tokens, seconds,
               tokens / seconds);
  return {};
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code, const std::vector<std::string>& notes) {
  CLI::App* command = app.add_subcommand("run", "One answer on the terminal, streamed; no server.");
  auto flags = std::make_shared<RunFlags>();
  add_engine_options(*command, flags->engine);
  command->remove_option(command->get_option("--max-num-seqs"));  // one answer is one sequence
  add_cache_dir_option(*command, flags->engine.host.cache_dir);
  add_hub_options(*command, flags->hub);
  CLI::Option* const prompt = command->add_option("prompt,-p,--prompt", flags->prompt,
                                                  "what to ask; -, or none in a pipe: what comes from standard input");
  command->add_option("--adapter,--lora", flags->adapter, "PATH or NAME=PATH of a LoRA adapter");
  CLI::Option* const system = command->add_option("--system", flags->system, "system message");
  CLI::Option* const chat_template =
      command->add_option("--chat-template", flags->chat_template, "built-in name or Jinja file");
  command->add_flag("--raw", flags->raw, "give the prompt to the model as it is, without the chat template")
      ->excludes(system)
      ->excludes(chat_template);
  command->add_option("-n,--max-tokens,--predict", flags->max_tokens, "most new tokens")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--temp,--temperature", flags->temperature, "0 = greedy (default: the model's own)")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--seed", flags->seed, "of the random numbers")->capture_default_str();
  add_config_option(*command);
  add_environment(*command);
  command->callback([flags, prompt, &exit_code, &notes] {
    flags->prompt_given = prompt->count() > 0;
    const Status status = run_once(*flags, notes);
    if (status.ok()) return;
    print_error("run", status.error());
    exit_code = 1;
  });
}

}  // namespace loralei
