// SPDX-License-Identifier: Apache-2.0
// loralei calibrate-kv MODEL --text FILE: chooses the steps of the base's K and V by what
// they do to the next token on a text, and for how many layers adapters may read the
// base's; writes the file that serve reads.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>

#include "apps/adapter_flags.h"
#include "apps/console_log.h"
#include "apps/hub_flags.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "apps/text_loading.h"
#include "base/printable.h"
#include "base/units.h"
#include "base/utf8.h"
#include "bench/calibrate_kv.h"
#include "engine/kv_steps_file.h"
#include "formats/json_util.h"
#include "sys/file.h"
#include "sys/rooted_file_system.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

constexpr int64_t kTextBytesMost = 64 * kMiB, kLineBytesMost = 16 * kMiB;

struct CalibrateFlags {
  EngineFlags engine;
  HubFlags hub;
  std::string text, prompts, output;
  std::vector<std::string> adapters, adapter_dirs;
  bool cache_dir = false;  // was given
  bool raw = false;
  double quality = 99.5;  // percent
  int64_t tokens = 8192;
  int answer_tokens = 32;
};

// Calls for each line that says something.
Status for_lines(const std::string& path,
                 const std::function<Status(std::string_view line, const std::string& place)>& call) {
  TRY_ASSIGN(const std::string text, PosixFileSystem().read_all(path, kTextBytesMost));
  std::string_view rest = text;
  for (int64_t line = 1; !rest.empty(); ++line) {
    std::string_view one = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    if (one.ends_with('\r')) one.remove_suffix(1);
    if (!one.empty()) TRY(call(one, path + ":" + std::to_string(line)));
  }
  return {};
}

struct Prompt {
  std::string text;
  bool raw = false;
};

Result<std::vector<Prompt>> read_prompts(const CalibrateFlags& flags) {
  std::vector<Prompt> prompts;
  if (flags.prompts.empty()) return prompts;
  TRY(for_lines(flags.prompts, [&](std::string_view line, const std::string& place) -> Status {
    if (!line.starts_with('{')) {
      prompts.push_back({std::string(line), flags.raw});
      return {};
    }
    TRY_ASSIGN(const Json object, parse_json_object(line, place, kLineBytesMost));
    TRY_ASSIGN(auto prompt, json_string(object, "prompt", place));
    if (!prompt) return corrupt(place + ": an object needs \"prompt\", such as {\"prompt\": \"Q: Why?\\nA:\"}");
    prompts.push_back({*std::move(prompt), true});
    return {};
  }));
  if (prompts.empty()) return invalid_argument("--prompts " + flags.prompts + " has no prompts; write one a line.");
  return prompts;
}

// A line of a .jsonl: {"text"}, or {"prompt", "answer"}; of an "adapter" ("": the base),
// or of all.
Status read_document(const Json& object, const std::string& place, const TextModel& text,
                     const std::vector<AdapterFlag>& adapters, std::vector<KvDocument>& documents) {
  TRY_ASSIGN(const auto whole, json_string(object, "text", place));
  TRY_ASSIGN(const auto prompt, json_string(object, "prompt", place));
  TRY_ASSIGN(const auto answer, json_string(object, "answer", place));
  TRY_ASSIGN(const auto adapter, json_string(object, "adapter", place));
  if (!whole && !(prompt && answer))
    return corrupt(place + ": a line has \"text\", or \"prompt\" and \"answer\"; \"adapter\" says whose it is");
  KvDocument document;
  if (adapter && adapter->empty()) document.identity = 0;
  if (adapter && !adapter->empty()) {
    const auto named = [&](const AdapterFlag& flag) { return flag.name == *adapter; };
    const auto found = std::find_if(adapters.begin(), adapters.end(), named);
    if (found == adapters.end()) return {};  // not asked for
    document.identity = static_cast<size_t>(found - adapters.begin()) + 1;
  }
  if (whole) {
    TRY_ASSIGN(document.tokens, text.encode_text(*whole, false));
  } else {
    TRY_ASSIGN(document.tokens, text.encode_text(*prompt, true));
    document.prompt = document.tokens.size();
    TRY_ASSIGN(const std::vector<TokenId> rest, text.encode_text(*answer, false));
    document.tokens.insert(document.tokens.end(), rest.begin(), rest.end());
  }
  documents.push_back(std::move(document));
  return {};
}

Result<std::vector<KvDocument>> read_text(const CalibrateFlags& flags, const TextModel& text,
                                          const std::vector<AdapterFlag>& adapters) {
  std::vector<KvDocument> documents;
  if (!flags.text.ends_with(".jsonl")) {
    TRY_ASSIGN(const std::string whole, PosixFileSystem().read_all(flags.text, kTextBytesMost));
    TRY_ASSIGN(documents.emplace_back().tokens, text.encode_text(whole, false));
    return documents;
  }
  TRY(for_lines(flags.text, [&](std::string_view line, const std::string& place) -> Status {
    TRY_ASSIGN(const Json object, parse_json_object(line, place, kLineBytesMost));
    return read_document(object, place, text, adapters, documents);
  }));
  return documents;
}

// A name below an --adapter-dir, or what --adapter takes elsewhere.
Result<std::vector<AdapterFlag>> find_named_adapters(const CalibrateFlags& flags, const FileSystem& files,
                                                     RootedFileSystem& adapter_files, LogSink& log) {
  std::vector<std::string> values = flags.adapters;
  for (const std::string& root : flags.adapter_dirs) {
    TRY(files.check_visible(root));
    if (files.kind(root) != PathKind::kDirectory)
      return not_found("--adapter-dir " + root + ": there is no such folder");
    for (std::string& value : values) {
      const bool is_name = value.find_first_of("/=") == std::string::npos;
      if (std::string path = join_path(root, value); is_name && files.exists(path)) value = std::move(path);
    }
  }
  if (flags.adapters.empty() && !flags.adapter_dirs.empty())
    return invalid_argument("--adapter-dir is where adapters are; name those to measure with --adapter NAME.");
  return find_adapters(files, adapter_files, "--adapter", values, hub_adapters(flags.hub, log));
}

// What the tokenizer puts before a text.
Result<std::vector<TokenId>> begin_of(const TextModel& text) {
  TRY_ASSIGN(std::vector<TokenId> with, text.encode_text("a", true));
  TRY_ASSIGN(const std::vector<TokenId> without, text.encode_text("a", false));
  const auto found = std::search(with.begin(), with.end(), without.begin(), without.end());
  with.erase(found, with.end());
  return with;
}

// Its prompts in its own tokens, where it brings some.
Status read_adapter(const AdapterFlag& flag, const std::vector<Prompt>& prompts, ModelHost& host, TextModels& texts,
                    CalibratedAdapter& adapter, AdapterVersionId version) {
  adapter.name = utf8_repair(flag.name);
  TRY_ASSIGN(adapter.adapter, host.load_adapter(flag.path, version));
  CatalogueEntry entry;
  entry.name = flag.name;
  entry.path = flag.path;
  TRY_ASSIGN(const std::shared_ptr<const TextModel> text, texts.read(entry));
  for (const Prompt& prompt : prompts) {
    TRY_ASSIGN(std::vector<TokenId> tokens,
               prompt.raw ? text->encode_text(prompt.text, true) : encode_message(*text, prompt.text));
    if (!tokens.empty()) adapter.prompts.push_back(std::move(tokens));
  }
  const auto ends = text->tokenizer()->end_ids();
  adapter.ends.assign(ends.begin(), ends.end());
  adapter.ends.insert(adapter.ends.end(), host.file().config.eos.begin(), host.file().config.eos.end());
  return {};
}

// Refused before anything is measured.
Status check_writable(const std::string& path) {
  Status made = parent_path(path).empty() ? Status() : make_folders(parent_path(path));
  if (made.ok()) {
    auto probe = WriteFile::open(path + ".part");
    made = probe.ok() ? remove_file(probe->path()) : Status(probe.error());
  }
  if (made.ok()) return made;
  return Error(made.error())
      .with_context(
          "The steps cannot be written; name another place with --out FILE or "
          "--cache-dir DIR");
}

std::string output_path(const CalibrateFlags& flags, const EngineHostOptions& options, const std::string& fingerprint) {
  if (!flags.output.empty()) return flags.output;
  const std::string cache_dir = flags.cache_dir ? options.cache_dir : std::string();
  return kv_steps_paths(PosixFileSystem(), options.model_path, cache_dir, fingerprint).back();
}

void print(const KvCalibration& found, const KvCalibrationOptions& options, const std::string& path) {
  std::fputs(kv_calibration_table(found).c_str(), stdout);
  if (found.pieces < found.pieces_wanted) {
    std::printf("Memory had room for %zu of %zu pieces of the text; raise --memory-budget to use all.\n", found.pieces,
                found.pieces_wanted);
  }
  for (const KvAdapterSteps& adapter : found.steps.adapters) {
    if (adapter.quality.positions > 0) continue;
    std::printf("No line of the text is one for %s: the steps were not tried with it.\n",
                printable(adapter.name).c_str());
  }
  for (size_t i = 0; i < found.borrow.size(); ++i) {
    if (options.adapters[i].prompts.empty() || found.borrow[i].prompts > 0) continue;
    std::printf("Prompts of %s are too short to borrow a block of 16 tokens: its depth is by the text alone.\n",
                printable(options.adapters[i].name).c_str());
  }
  if (found.steps.held_out_tokens == 0) {
    std::printf(
        "The text is one piece for each model, so steps were measured on what they were searched with; a longer one "
        "tells more.\n");
  }
  if (!found.holds) {
    std::printf(
        "Even the finest steps miss the agreement of %g %%: these were written all the same. Lower --kv-quality, or "
        "take a --text of the kind that is served: where the next token is a guess, the least "
        "changes it.\n",
        100 * options.agreement);
  }
  std::printf("%s\n", printable(path).c_str());
}

Status calibrate(const CalibrateFlags& flags) {
  ConsoleLog log(ConsoleLog::Options{});
  EngineFlags engine = flags.engine;
  engine.device = "cpu";
  engine.speculate = "off";
  TRY(resolve_path(engine.host.model_path, HubKind::kModel, flags.hub, log));
  TRY_ASSIGN(EngineHostOptions options, finish_engine_options(engine));
  options.engine.max_sequences = 64;  // so many logits, at least, in a pass
  const PosixFileSystem files;
  RootedFileSystem adapter_files(files, flags.adapter_dirs);
  options.adapter_files = &adapter_files;
  TRY_ASSIGN(const std::vector<AdapterFlag> adapters, find_named_adapters(flags, files, adapter_files, log));
  TRY_ASSIGN(const std::vector<Prompt> prompts, read_prompts(flags));
  if (!files.exists(flags.text)) return not_found("--text " + flags.text + ": there is no such file");
  std::unique_ptr<ModelHost> host;
  {
    ProgressPrinter progress("loading", log);
    TRY_ASSIGN(host,
               ModelHost::start(options, log, [&](int64_t done, int64_t total) { progress.update(done, total); }));
  }
  const std::string path = output_path(flags, options, host->fingerprint());
  TRY(check_writable(path));
  TRY_ASSIGN(const std::shared_ptr<const TextModel> base, load_text_model(host->file(), nullptr, options.model_path));
  TextModels texts(base, adapter_files);
  KvCalibrationOptions asked;
  asked.model_name = utf8_repair(options.model_path.substr(options.model_path.find_last_of('/') + 1));
  TRY_ASSIGN(asked.text, read_text(flags, *base, adapters));
  TRY_ASSIGN(asked.begin, begin_of(*base));
  asked.tokens = flags.tokens;
  asked.agreement = flags.quality / 100;
  asked.answer_tokens = flags.answer_tokens;
  for (const AdapterFlag& adapter : adapters) {
    CalibratedAdapter& one = asked.adapters.emplace_back();
    TRY(read_adapter(adapter, prompts, *host, texts, one, AdapterVersionId{asked.adapters.size()}));
  }
  TRY_ASSIGN(const KvCalibration found, calibrate_kv(*host, asked, log));
  TRY(write_kv_steps(found.steps, path));
  print(found, asked, path);
  return {};
}

void add_own_options(CLI::App& command, CalibrateFlags& flags) {
  command
      .add_option(
          "--text", flags.text,
          "a text of the kind that is served; or a .jsonl file with {\"text\"} or {\"prompt\", \"answer\"} a line, "
          "and \"adapter\" where it is one's alone")
      ->required();
  command
      .add_option("--adapter,--lora", flags.adapters,
                  "NAME below --adapter-dir, PATH or NAME=PATH: steps hold for it too, and how many layers of the "
                  "base's K and V it may read is measured")
      ->allow_extra_args(false);
  command.add_option("--adapter-dir", flags.adapter_dirs, "folder of adapters")->allow_extra_args(false);
  command.add_option("--prompts", flags.prompts,
                     "prompts whose answers adapters must not change: one a line, a user's message, or a JSON object "
                     "a line whose \"prompt\" is taken as it is");
  command.add_flag("--raw", flags.raw, "give prompts to the model as they are, without the chat template");
  command
      .add_option(
          "--kv-quality", flags.quality,
          "percent that shall be left: of the probability of given answers, and of likeliest next tokens elsewhere")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command.add_option("--tokens", flags.tokens, "of the text, at most")
      ->check(CLI::Range(int64_t{32}, int64_t{1} << 24))
      ->capture_default_str();
  command.add_option("--answer-tokens", flags.answer_tokens, "of an answer to a prompt, at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("-o,--out", flags.output, "the file (default: MODEL/kv-steps.json, or MODEL.kv-steps.json)");
}

}  // namespace

void add_calibrate_kv_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "calibrate-kv", "Choose the steps of a lossy KV cache by a text, and what adapters may read of the base's.");
  auto flags = std::make_shared<CalibrateFlags>();
  add_engine_options(*command, flags->engine);
  add_hub_options(*command, flags->hub);
  // The cores compute, alone and without a server.
  for (const char* other : {"--max-num-seqs", "--device", "--enforce-eager", "--batch-invariant",
                            "--gpu-memory-utilization", "--no-prefix-cache", "--speculate"})
    command->remove_option(command->get_option(other));
  add_own_options(*command, *flags);
  CLI::Option* const cache_dir =
      command->add_option("--cache-dir", flags->engine.host.cache_dir,
                          "write to this folder instead, as serve --cache-dir looks for it there");
  add_config_option(*command);
  add_environment(*command);
  command->callback([flags, cache_dir, &exit_code] {
    flags->cache_dir = cache_dir->count() > 0;
    const Status status = calibrate(*flags);
    if (status.ok()) return;
    print_error("calibrate-kv", status.error());
    exit_code = 1;
  });
}

}  // namespace loralei
