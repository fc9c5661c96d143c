// SPDX-License-Identifier: Apache-2.0
// loralei serve MODEL: the server. Flags to options, start, signals, end.
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>

#include "apps/adapter_flags.h"
#include "apps/console_log.h"
#include "apps/foreign_options.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "apps/stop_signals.h"
#include "apps/text_loading.h"
#include "apps/version.h"
#include "base/limits.h"
#include "serve/access.h"
#include "serve/adapter_paths.h"
#include "serve/api_server.h"
#include "sys/file.h"
#include "sys/process.h"

namespace loralei {
namespace {

struct ServeFlags {
  EngineFlags engine;
  ServeOptions serve;
  std::vector<std::string> adapters, vllm_adapters;  // as typed behind --adapter and --lora-modules
  std::vector<std::string> notes;                    // about options that change nothing here
  std::string api_key_file, chat_template, pooling = "last", log_level = "info", log_format = "text";
  std::string max_body;
  bool no_vllm_metrics = false;
  int shutdown_timeout_s = 30;
  int max_connections = 0;
};

std::string last_component(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string last = base_name(path);
  const auto real = last == "." || last == ".." ? PosixFileSystem().real_path(path) : Result<std::string>(last);
  return real.ok() ? base_name(*real) : last;
}

// As "$KEY" of a variable that is not set.
bool blank(const std::string& text) { return text.find_first_not_of(" \t") == std::string::npos; }
std::string refuse_empty_key(const std::string& key) {
  return blank(key) ? "the key is empty; give one, or leave the option out for a server without" : "";
}
std::string refuse_empty_name(const std::string& name) {
  return blank(name) ? "the name is empty; give one, or leave the option out for the last part of the model's path"
                     : "";
}
std::string refuse_empty_key_file(const std::string& path) {
  return blank(path) ? "the path is empty; name a file of keys, or leave the option out for a server without" : "";
}

Status read_keys(const std::string& path, std::vector<std::string>& keys) {
  const PosixFileSystem files;
  const auto text = files.read_all(path, kMiB);
  if (!text.ok()) return Error(text.error()).with_context("--api-key-file");
  for (std::string& key : parse_key_lines(*text)) keys.push_back(std::move(key));
  if (keys.empty()) return invalid_argument("--api-key-file '" + path + "' holds no key; write one key a line.");
  return {};
}

// What can be said before the model is loaded, which may take minutes.
Status finish_serve_options(ServeFlags& flags) {
  ServeOptions& serve = flags.serve;
  if (serve.model_names.empty()) serve.model_names = {last_component(flags.engine.host.model_path)};
  serve.model_path = flags.engine.host.model_path;
  if (!flags.api_key_file.empty()) TRY(read_keys(flags.api_key_file, serve.api_keys));
  if (!flags.max_body.empty()) {
    auto bytes = parse_bytes(flags.max_body);
    if (!bytes.ok()) return std::move(bytes).error().with_context("--max-body");
    serve.http.limits.max_body_bytes = static_cast<size_t>(*bytes);
  }
  serve.pooling = flags.pooling == "mean" ? Pooling::kMean : Pooling::kLast;
  serve.vllm_metrics = !flags.no_vllm_metrics;
  serve.version = version_string();
  serve.commit = commit_string();
  serve.build = build_string();
  return {};
}

// So that who comes when the queue is full is told so, and not that there is no connection left.
void limit_connections(const ServeFlags& flags, const EngineOptions& engine, ServeOptions& serve, LogSink& log) {
  const int64_t wanted = connections_wanted(flags.max_connections, engine);
  const Connections possible = connections_possible(wanted, raise_descriptor_limit(wanted + kOtherDescriptors));
  if (!possible.note.empty()) log.log(LogLevel::kWarning, possible.note);
  serve.http.max_connections = possible.count;
  serve.http.max_refusals = possible.refusals;
  serve.max_preparing = engine.max_queued;
}

void take_from_model(const EngineHost& host, ServeOptions& serve) {
  serve.defaults = sampling_defaults(host.file());
  serve.vocab_size = host.file().config.vocab;
  serve.end_ids = host.file().config.eos;
  serve.isa = host.isa();
}

// The adapters that are named one by one, and whether every --adapter-dir is a folder.
Result<std::vector<AdapterFlag>> find_all_adapters(const ServeFlags& flags) {
  const PosixFileSystem files;
  TRY_ASSIGN(std::vector<AdapterFlag> found, find_adapters(files, "--adapter", flags.adapters));
  TRY_ASSIGN(const std::vector<AdapterFlag> more, find_adapters(files, "--lora-modules", flags.vllm_adapters));
  found.insert(found.end(), more.begin(), more.end());
  std::map<std::string, std::string> paths;
  for (const AdapterFlag& adapter : found) {
    TRY(check_adapter_name(adapter.name, flags.serve.model_names));
    const auto [known, fresh] = paths.emplace(adapter.name, adapter.path);
    if (!fresh && known->second != adapter.path)
      return invalid_argument("two adapters are named '" + adapter.name + "': " + known->second + " and " +
                              adapter.path + "; give one another name, as NAME=PATH");
  }
  for (const std::string& root : flags.serve.adapter_roots) {
    TRY(files.check_visible(root));
    if (files.kind(root) != PathKind::kDirectory)
      return not_found("--adapter-dir " + root + ": there is no such folder");
  }
  return found;
}

Status register_adapters(const std::vector<AdapterFlag>& adapters, ApiServer& server, LogSink& log) {
  for (const AdapterFlag& adapter : adapters) TRY(server.add_adapter(adapter.name, adapter.path));
  const AdapterService::Rescan found = server.rescan();
  for (const std::string& note : found.notes) log.log(LogLevel::kWarning, note);
  return {};
}

// Sleeps until the process is told to end; SIGHUP looks at the adapter folders again.
void wait_for_end(StopSignals& signals, ApiServer& server, LogSink& log) {
  while (signals.wait() == StopSignals::Event::kRescan) {
    const AdapterService::Rescan found = server.rescan();
    log.log(LogLevel::kInfo, "rescan: " + std::to_string(found.added.size()) + " adapters added");
    for (const std::string& note : found.notes) log.log(LogLevel::kWarning, note);
  }
}

std::string server_url(const std::string& host, int port) {
  const bool bare_ipv6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return "http://" + (bare_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Status serve(ServeFlags& flags) {
  std::signal(SIGPIPE, SIG_IGN);
  static const std::map<std::string, LogLevel> kLevels = {{"debug", LogLevel::kDebug},
                                                          {"info", LogLevel::kInfo},
                                                          {"warning", LogLevel::kWarning},
                                                          {"error", LogLevel::kError}};
  ConsoleLog log({.level = kLevels.at(flags.log_level), .json = flags.log_format == "json", .to_stdout = true});
  StopSignals signals(log);
  for (const std::string& note : flags.notes) log.log(LogLevel::kInfo, note);
  TRY_ASSIGN(EngineHostOptions options, finish_engine_options(flags.engine));
  options.process_bytes = resident_bytes;
  TRY(finish_serve_options(flags));
  limit_connections(flags, options.engine, flags.serve, log);
  TRY(HttpServer::bind(flags.serve.http, log));  // and let go again: whether the address can be had
  TRY_ASSIGN(const std::vector<AdapterFlag> adapters, find_all_adapters(flags));
  TRY_ASSIGN(std::shared_ptr<const ChatTemplate> chat_template, load_chat_template(flags.chat_template));
  std::unique_ptr<EngineHost> host;
  {
    ProgressPrinter progress("loading", log);
    TRY_ASSIGN(host,
               EngineHost::start(options, log, [&](int64_t done, int64_t total) { progress.update(done, total); }));
  }
  take_from_model(*host, flags.serve);
  TRY_ASSIGN(std::shared_ptr<const TextModel> text,
             load_text_model(host->file(), std::move(chat_template), flags.serve.model_names.front()));
  const PosixFileSystem files;
  const SteadyClock clock;
  TRY_ASSIGN(const std::unique_ptr<ApiServer> server,
             ApiServer::start(flags.serve, host->engine(), std::move(text), files, clock, log));
  TRY(register_adapters(adapters, *server, log));
  signals.serving();
  server->serve();

  const std::string url = server_url(flags.serve.http.host, server->port());
  std::printf(
      "%s\nLoralei %s serves '%s' at %s\ntry: curl %s/v1/completions -H 'Content-Type: application/json'%s -d "
      "'{\"model\": \"%s\", \"prompt\": \"Hello\", \"max_tokens\": 16}'\n",
      host->banner().c_str(), version_string(), flags.serve.model_names.front().c_str(), url.c_str(), url.c_str(),
      flags.serve.api_keys.empty() ? "" : " -H 'Authorization: Bearer KEY'", flags.serve.model_names.front().c_str());
  std::fflush(stdout);

  wait_for_end(signals, *server, log);
  log.log(LogLevel::kInfo, "draining: requests that run get " + std::to_string(flags.shutdown_timeout_s) +
                               " s; a second signal stops at once");
  const bool clean = server->shutdown(int64_t{flags.shutdown_timeout_s} * 1000);
  log.log(LogLevel::kInfo,
          clean ? "stopped" : "stopped; requests and answers that outlived --shutdown-timeout were cut off");
  return {};
}

}  // namespace

void add_serve_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("serve", "The server: OpenAI API for one base model and its adapters.");
  auto flags = std::make_shared<ServeFlags>();
  ServeOptions& serve_options = flags->serve;
  serve_options.http.port = 8080;
  serve_options.http.limits.max_body_bytes = static_cast<size_t>(kDefaultMaxBodyBytes);
  add_engine_options(*command, flags->engine);
  add_cache_dir_option(*command, flags->engine.host.cache_dir);
  const std::string adapters = "Adapters";
  // One value a flag, so that a MODEL behind it is not taken for another; vLLM's flag takes several.
  command
      ->add_option("--adapter,--lora", flags->adapters,
                   "NAME=PATH, PATH, or several of these between commas; may be given often")
      ->allow_extra_args(false)
      ->group(adapters);
  command
      ->add_option("--lora-modules", flags->vllm_adapters,
                   "the same, several behind one flag; also {\"name\": NAME, \"path\": PATH}")
      ->group(adapters);
  command
      ->add_option("--adapter-dir", serve_options.adapter_roots,
                   "folder of adapters; also a root for loading over HTTP")
      ->allow_extra_args(false)
      ->group(adapters);
  const std::string network = "Network and access";
  command->add_option("--host", serve_options.http.host, "address to listen on")->capture_default_str()->group(network);
  command->add_option("--port", serve_options.http.port, "port; 0 = any free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->group(network);
  command->add_option("--api-key", serve_options.api_keys, "key for /v1; may be given often")
      ->allow_extra_args(false)
      ->check(refuse_empty_key)
      ->group(network);
  command->add_option("--api-key-file", flags->api_key_file, "file with one key a line")
      ->check(refuse_empty_key_file)
      ->group(network);
  command->add_option("--admin-key", serve_options.admin_key, "key for loading, unloading and admin routes")
      ->check(refuse_empty_key)
      ->group(network);
  command
      ->add_option(
          "--allowed-host", serve_options.allowed_hosts,
          "name that requests may ask for beside localhost where there is no --api-key, or *; may be given often")
      ->allow_extra_args(false)
      ->group(network);
  command->add_option("--cors-origin", serve_options.cors_origins, "allowed web origin, or *")
      ->allow_extra_args(false)
      ->group(network);
  command
      ->add_option("--max-connections", flags->max_connections,
                   "open at once; 0: --max-num-seqs and --max-queued together, and 256 more")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24))
      ->group(network);
  command->add_option("--max-body", flags->max_body, "largest request body (default 8MiB)")->group(network);
  command->add_option("--shutdown-timeout", flags->shutdown_timeout_s, "seconds that running requests get at the end")
      ->capture_default_str()
      ->check(CLI::Range(0, 86400))
      ->group(network);
  const std::string api = "API and logs";
  command
      ->add_option("--served-model-name,-a,--alias", serve_options.model_names,
                   "id of the base model (default: last part of its path)")
      ->allow_extra_args(false)
      ->check(refuse_empty_name)
      ->group(api);
  command->add_option("--chat-template", flags->chat_template, "built-in name or Jinja file")->group(api);
  command->add_option("--pooling", flags->pooling, "of embeddings: last or mean")
      ->check(CLI::IsMember({"last", "mean"}))
      ->capture_default_str()
      ->group(api);
  command
      ->add_option("--metrics-adapters", serve_options.metrics_adapters,
                   "adapters with labels of their own in /metrics")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str()
      ->group(api);
  command->add_flag("--no-vllm-metrics", flags->no_vllm_metrics, "leave the aliases under vllm: out")->group(api);
  command->add_option("--log-level", flags->log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str()
      ->group(api);
  command->add_option("--log-format", flags->log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group(api);
  add_config_option(*command)->group(api);
  add_foreign_options(*command, flags->notes);
  command->callback([flags, &exit_code] {
    const Status status = serve(*flags);
    if (status.ok()) return;
    std::fprintf(stderr, "loralei serve: %s\n", status.error().message.c_str());
    exit_code = 1;
  });
}

}  // namespace loralei
