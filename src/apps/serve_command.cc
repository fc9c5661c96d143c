// SPDX-License-Identifier: Apache-2.0
// loralei serve MODEL: the server. Flags to options, start, signals, end.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>

#include "apps/adapter_flags.h"
#include "apps/adapter_store_flags.h"
#include "apps/console_log.h"
#include "apps/fleet_flags.h"
#include "apps/hub_flags.h"
#include "apps/kept_lengths.h"
#include "apps/key_flags.h"
#include "apps/kv_events_flags.h"
#include "apps/options.h"
#include "apps/pace_flag.h"
#include "apps/progress.h"
#include "apps/registry_flag.h"
#include "apps/replica_url.h"
#include "apps/simulation.h"
#include "apps/stop_signals.h"
#include "apps/text_loading.h"
#include "apps/tls_flags.h"
#include "apps/version.h"
#include "base/limits.h"
#include "base/printable.h"
#include "cost/step_log.h"
#include "parallel/process_group.h"
#include "serve/access.h"
#include "serve/adapter_paths.h"
#include "serve/api_server.h"
#include "sys/file.h"
#include "sys/hub_folder.h"
#include "sys/process.h"
#include "sys/rooted_file_system.h"
#include "sys/service_manager.h"
#include "wire/requests.h"

namespace loralei {
namespace {

constexpr const char* kUnprintableName =
    "the name is longer than 512 bytes, or holds a line end or another character that cannot be seen; give a plain one";
constexpr size_t kNamesShown = 20;
// That the start waits for a look at the adapters; the rest is looked at beside requests.
constexpr int64_t kChecksMs = 1000;
constexpr int64_t kEndMs = 800;     // for threads to end in, beyond --shutdown-timeout
constexpr int64_t kLeaveMs = 1000;  // that the end waits for etcd to take it out of the fleet

struct ServeFlags {
  EngineFlags engine;
  ServeOptions serve;
  AdapterStoreFlags adapter_store;
  KvEventsOptions kv_events;
  std::vector<std::string> adapters, vllm_adapters;  // as typed behind --adapter and --lora-modules
  std::string api_key_file, keys_file, chat_template, pooling = "last", prefix_cache_scope, log_level = "info",
                                                      log_format = "text";
  std::string step_log, state_dir, registry, cost_file;  // paths; empty: none
  std::string pace;                                      // a profile's name or file; empty: none
  FleetFlags fleet;
  HubFlags hub;
  TlsFlags tls;
  std::string max_body, generation_config = "auto", reasoning_parser = "auto", template_kwargs;
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

std::string refuse_name(const std::string& name) {
  if (is_blank(name))
    return "the name is empty; give one, or leave the option out for the last part of the model's path";
  return is_printable(name, kMaxNameBytes) ? "" : kUnprintableName;
}
std::string refuse_empty_key_file(const std::string& path) {
  return is_blank(path) ? "the path is empty; name a file of keys, or leave the option out for a server without" : "";
}

std::string refuse_empty_keys(const std::string& path) {
  return is_blank(path) ? "the path is empty; name a file of keys, or leave the option out" : "";
}

std::string refuse_empty_registry(const std::string& path) {
  return is_blank(path) ? "the path is empty; name a file, or leave the option out for a server that keeps nothing"
                        : "";
}

Status read_keys(const std::string& path, std::vector<std::string>& keys) {
  const PosixFileSystem files;
  const auto text = files.read_all(path, kMiB);
  if (!text.ok()) return Error(text.error()).with_context("--api-key-file");
  auto found = parse_key_lines(*text);
  if (!found.ok()) return std::move(found).error().with_context("--api-key-file '" + path + "'");
  for (std::string& key : *found) keys.push_back(std::move(key));
  if (keys.empty()) return invalid_argument("--api-key-file '" + path + "' holds no key; write one key a line.");
  return {};
}

// What can be said before the model is loaded, which may take minutes.
Status finish_serve_options(ServeFlags& flags) {
  ServeOptions& serve = flags.serve;
  if (serve.model_names.empty()) {
    const auto hub = find_hub_folder(PosixFileSystem(), flags.engine.host.model_path);
    serve.model_names = {hub.ok() && *hub ? (*hub)->name : last_component(flags.engine.host.model_path)};
    if (!is_printable(serve.model_names.front(), kMaxNameBytes)) {
      return invalid_argument("The last part of the model's path cannot be the model's name (" +
                              printable(serve.model_names.front()) + "): give one with --served-model-name.");
    }
  }
  serve.model_path = flags.engine.host.model_path;
  if (!flags.api_key_file.empty()) TRY(read_keys(flags.api_key_file, serve.api_keys));
  auto max_body_bytes = static_cast<int64_t>(serve.http.limits.max_body_bytes);
  TRY(parse_size("--max-body", flags.max_body, max_body_bytes));
  serve.http.limits.max_body_bytes = static_cast<size_t>(max_body_bytes);
  if (!flags.prefix_cache_scope.empty())
    serve.prefix_cache_scope = flags.prefix_cache_scope == "key" ? PrefixCacheScope::kKey : PrefixCacheScope::kServer;
  serve.pooling = flags.pooling == "mean" ? Pooling::kMean : Pooling::kLast;
  serve.vllm_metrics = !flags.no_vllm_metrics;
  if (!flags.cost_file.empty()) {
    TRY_ASSIGN(const Profile profile, find_profile(flags.cost_file));
    serve.cost = profile_text(profile);
  }
  serve.version = version_string();
  serve.commit = commit_string();
  serve.build = build_string();
  return {};
}

// Routers speak plain HTTP to replicas, and would find this one and never reach it.
Status set_tls(ServeFlags& flags, LogSink& log) {
  TRY_ASSIGN(flags.serve.http.tls, read_tls(flags.tls, log));
  if (!flags.serve.http.tls || flags.fleet.etcd.empty()) return {};
  return invalid_argument(
      "--ssl-certfile and --etcd do not go together: routers speak plain HTTP to the servers of a fleet. Give the "
      "certificate to loralei route, and let the servers listen without TLS on a network of their own.");
}

// So that who comes when the queue is full is told so, and not that there is
// no connection left.
void limit_connections(const ServeFlags& flags, const EngineOptions& engine, ServeOptions& serve, LogSink& log) {
  const int64_t wanted = connections_wanted(flags.max_connections, engine);
  const Connections possible = connections_possible(wanted, raise_descriptor_limit(wanted + kOtherDescriptors));
  if (!possible.note.empty()) log.log(LogLevel::kWarning, possible.note);
  serve.http.max_connections = possible.count;
  serve.http.max_refusals = possible.refusals;
  serve.max_preparing = engine.max_queued;
}

void take_from_model(const EngineHost& host, bool with_defaults, ServeOptions& serve) {
  if (with_defaults) serve.defaults = sampling_defaults(host.file());
  serve.max_running = host.max_sequences();
  serve.vocab_size = host.file().config.vocab;
  serve.end_ids = host.file().config.eos;
  serve.isa = host.isa();
  serve.base_digest = host.weights().fingerprint();
}

// The adapters that are named one by one, and whether every --adapter-dir is a folder.
Result<std::vector<AdapterFlag>> find_all_adapters(const ServeFlags& flags, const FileSystem& files,
                                                   RootedFileSystem& adapter_files, LogSink& log) {
  const HubAdapters hub = hub_adapters(flags.hub, log);
  TRY_ASSIGN(std::vector<AdapterFlag> found, find_adapters(files, adapter_files, "--adapter", flags.adapters, hub));
  TRY_ASSIGN(const std::vector<AdapterFlag> more,
             find_adapters(files, adapter_files, "--lora-modules", flags.vllm_adapters, hub));
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

// What is served beside the base, and what was left out, a sentence each.
struct Registered {
  std::vector<std::string> names, notes;
  AdapterChecks::State checks;
};
Result<Registered> register_adapters(const std::vector<AdapterFlag>& adapters, RegistryUse registry, ApiServer& server,
                                     LogSink& log) {
  Registered all;
  const auto add = [&](AdapterService::Rescan found) {
    for (const std::string& note : found.notes) log.log(LogLevel::kWarning, note);
    all.names.insert(all.names.end(), found.added.begin(), found.added.end());
    all.notes.insert(all.notes.end(), found.notes.begin(), found.notes.end());
  };
  for (const AdapterFlag& adapter : adapters) {
    TRY(server.add_adapter(adapter.name, adapter.path));
    if (std::find(all.names.begin(), all.names.end(), adapter.name) == all.names.end())
      all.names.push_back(adapter.name);
  }
  if (registry.registry) add(server.restore_adapters(std::move(registry)));
  add(server.rescan());
  all.checks = server.check_adapters(kChecksMs);
  return all;
}

// A line for each adapter that is broken, as far as that is known, and what
// is not known yet.
std::string broken_adapters(const AdapterChecks::State& checks) {
  std::string text;
  for (const AdapterChecks::Broken& one : checks.named) text += "broken: " + printable(one.sentence) + "\n";
  if (checks.broken > checks.named.size())
    text += "broken: " + std::to_string(checks.broken - checks.named.size()) + " more (GET /v1/adapters)\n";
  if (!checks.complete()) {
    text += "adapters: " + std::to_string(checks.all - checks.checked) + " of " + std::to_string(checks.all) +
            " are still being checked; the log says when that is complete\n";
  }
  return text;
}

// The first adapter that is not known to be broken, else the base.
std::string first_sound(const Registered& adapters, const std::string& base) {
  for (const std::string& name : adapters.names) {
    const auto is_it = [&](const AdapterChecks::Broken& one) { return one.name == name; };
    if (std::none_of(adapters.checks.named.begin(), adapters.checks.named.end(), is_it)) return name;
  }
  return base;
}

std::string first_names(const std::vector<std::string>& names) {
  std::string text;
  const size_t count = std::min(names.size(), kNamesShown);
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + printable(names[i]);
  if (count < names.size()) text += " and " + std::to_string(names.size() - count) + " more (GET /v1/models)";
  return text;
}

// A first request that shows what this server is for: a chat, with an adapter
// where there is one.
std::string first_request(const ServeOptions& serve, bool chats, const std::string& model, const std::string& url) {
  const std::string key = serve.api_keys.empty() && serve.named_keys.empty() ? "" : " -H 'Authorization: Bearer KEY'";
  const std::string head = "curl " + url + "/v1/";
  const std::string json = " -H 'Content-Type: application/json'" + key + " -d '{\"model\": \"" + model + "\", ";
  return chats ? head + "chat/completions" + json + "\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"
               : head + "completions" + json + "\"prompt\": \"Hello\", \"max_tokens\": 16}'";
}

void read_keys_again(const ServeFlags& flags, ApiServer& server, LogSink& log) {
  if (flags.keys_file.empty()) return;
  const auto keys = read_named_keys(flags.keys_file, log);
  if (!keys.ok()) return log.log(LogLevel::kError, "The keys in use stay: " + keys.error().message);
  server.use_keys(*keys);
  log.log(LogLevel::kInfo, "keys: " + std::to_string(keys->size()) + " of --keys are in use");
}

// Sleeps until the process is told to end; SIGHUP looks at the adapter folders again, at
// the certificate and at the keys.
void wait_for_end(const ServeFlags& flags, StopSignals& signals, ApiServer& server, size_t adapters, LogSink& log) {
  ServiceManager service = ServiceManager::of_environment(log);
  service.ready("serves " + std::to_string(adapters) + " adapters on port " + std::to_string(server.port()));
  while (signals.wait() == StopSignals::Event::kRescan) {
    service.reloading();
    if (auto tls = read_tls_again(flags.tls, log)) server.use_tls(std::move(tls));
    read_keys_again(flags, server, log);
    const AdapterService::Rescan found = server.rescan();
    log.log(LogLevel::kInfo, "rescan: " + std::to_string(found.added.size()) + " adapters added");
    for (const std::string& note : found.notes) log.log(LogLevel::kWarning, note);
    service.reloaded();
  }
  service.stopping();
}

void add_shares(const MemoryShares& shares, bool device, LogFields& fields) {
  const auto add = [&](const char* hosts, const char* devices, int64_t bytes) {
    fields.emplace_back(device ? devices : hosts, bytes);
  };
  add("budget_bytes", "device_budget_bytes", shares.memory_budget_bytes);
  add("weights_bytes", "device_weights_bytes", shares.weights_bytes);
  add("adapters_bytes", "device_adapters_bytes", shares.adapter_bytes);
  add("adapters_bytes_max", "device_adapters_bytes_max", shares.adapter_bytes_max);
  add("kv_bytes", "device_kv_bytes", shares.kv_bytes);
  add("scratch_bytes", "device_scratch_bytes", shares.scratch_bytes);
  add("other_bytes", "device_other_bytes", shares.other_bytes);
}

// What it serves, where, and what its memory goes into. `ignored`: options that
// change nothing.
void announce(EngineHost& host, const ServeOptions& serve, int port, bool chats, const Registered& adapters,
              const std::vector<std::string>& ignored, ConsoleLog& log) {
  for (const std::string& note : host.notes()) log.log(LogLevel::kInfo, note);
  const std::string url = server_url(serve.http.host, port, serve.http.tls != nullptr),
                    model = printable(serve.model_names.front());
  const EngineStats stats = host.engine().stats();
  LogFields fields = {{"version", serve.version},
                      {"commit", serve.commit},
                      {"model", model},
                      {"path", serve.model_path},
                      {"url", url},
                      {"isa", serve.isa},
                      {"threads", host.threads()},
                      {"max_model_len", host.engine().max_model_len()}};
  fields.emplace_back("adapters", static_cast<int64_t>(adapters.names.size()));
  fields.emplace_back("adapter_names", first_names(adapters.names));
  fields.emplace_back("left_out", static_cast<int64_t>(adapters.notes.size()));
  fields.emplace_back("broken", static_cast<int64_t>(adapters.checks.broken));
  fields.emplace_back("options_without_effect", static_cast<int64_t>(ignored.size()));
  add_shares(stats, false, fields);
  fields.emplace_back("streamed_bytes_per_pass", stats.streamed_bytes);
  if (!stats.paced_as.empty()) fields.emplace_back("paced_as", stats.paced_as);
  if (!stats.device.empty()) {
    fields.emplace_back("device", stats.device);
    add_shares(stats.device_memory, true, fields);
  }
  std::string text = host.banner() + "\n";
  for (const std::string& note : adapters.notes) text += "adapter: " + printable(note) + "\n";
  text += broken_adapters(adapters.checks);
  for (const std::string& note : ignored) text += "option: " + printable(note) + "\n";
  text += "adapters: " + std::to_string(adapters.names.size()) +
          (adapters.names.empty() ? " (--adapter-dir DIR or --adapter NAME=PATH adds some)"
                                  : "; " + first_names(adapters.names)) +
          "\n";
  const std::string asked = printable(first_sound(adapters, serve.model_names.front()));
  log.announce("serving", fields,
               text + "Loralei " + serve.version + " serves '" + model + "' at " + url +
                   (stats.paced_as.empty() ? "" : ", PACED as " + printable(stats.paced_as)) +
                   "\ntry: " + first_request(serve, chats, asked, url) + "\n");
}

// Whom a server answers that others can reach and that asks for no key.
void warn_of_open_door(const ServeOptions& serve, bool on_loopback, LogSink& log) {
  if (on_loopback || !serve.api_keys.empty() || !serve.named_keys.empty()) return;
  log.log(LogLevel::kWarning, "Whoever reaches " + serve.http.host +
                                  " may use this server: give --api-key KEY, or listen on 127.0.0.1 only.");
}

// Routers find out themselves when it is ready.
Status join_fleet(const ServeFlags& flags, UpstreamAddress address, int port, int64_t sequences, Membership& membership,
                  LogSink& log) {
  if (address.port == 0) address.port = port;
  FleetMember member;
  member.address = std::move(address);
  member.model = flags.serve.model_names.front();
  member.base = flags.serve.base_digest;
  member.sequences_max = sequences;
  return membership.join(flags.fleet, std::move(member), log);
}

void tell_of_reasoning(const TextModel& text, LogSink& log) {
  if (const auto reasoning = text.reasoning(false)) {
    log.log(LogLevel::kInfo, "what the model thinks between '" + std::string(reasoning->open) + "' and '" +
                                 std::string(reasoning->close) +
                                 "' comes as \"reasoning_content\"; --reasoning-parser none leaves it in the content");
  }
}

// Until what runs has ended, or the time is over.
void drain(ApiServer& server, Membership& membership, int timeout_s, LogSink& log) {
  log.log(LogLevel::kInfo,
          "draining: requests that run get " + std::to_string(timeout_s) + " s; a second signal stops at once");
  membership.leave_and_wait(kLeaveMs);
  const bool clean = server.shutdown(int64_t{timeout_s} * 1000);
  log.log(LogLevel::kInfo,
          clean ? "stopped" : "stopped; requests and answers that outlived --shutdown-timeout were cut off");
}

Status serve_one(ServeFlags& flags, EngineHostOptions options, const std::vector<std::string>& ignored,
                 StopSignals& signals, ConsoleLog& log) {
  for (const std::string& note : ignored) log.log(LogLevel::kInfo, note);
  options.process_bytes = resident_bytes;
  TRY(finish_serve_options(flags));
  TRY_ASSIGN(flags.serve.named_keys, read_named_keys(flags.keys_file, log));
  TRY(set_tls(flags, log));
  TRY(set_pace(flags.pace, options, flags.serve, log));
  options.model_names = flags.serve.model_names;
  limit_connections(flags, options.engine, flags.serve, log);
  TRY_ASSIGN(const UpstreamAddress advertised, advertised_address(flags.fleet, flags.serve.http.host));
  TRY(HttpServer::bind(flags.serve.http, log));  // and let go again: whether the address can be had
  TRY_ASSIGN(OpenAdapterStore store, open_adapter_store(flags.adapter_store, flags.fleet, flags.serve.admin_key, log));
  flags.serve.adapter_store = store.use();
  const PosixFileSystem files;
  RootedFileSystem files_here(files, flags.serve.adapter_roots);
  if (store.store) files_here.add_wide_root(store.root());
  TRY_ASSIGN(const std::vector<AdapterFlag> adapters, find_all_adapters(flags, files, files_here, log));
  const FileSystem& adapter_files = store.adapter_files(files_here);
  options.adapter_files = &adapter_files;
  TRY_ASSIGN(RegistryUse registry,
             open_registry({flags.registry, flags.serve.keep_versions, flags.fleet.fleet}, adapter_files, log));
  TRY_ASSIGN(std::shared_ptr<const ChatTemplate> chat_template, load_chat_template(flags.chat_template));
  TRY_ASSIGN(ChatSettings chat_settings, read_chat_settings(flags.reasoning_parser, flags.template_kwargs));
  TRY_ASSIGN(KvEventsUse kv_events, open_kv_events(flags.kv_events, log));
  options.kv_events = kv_events.events;
  std::unique_ptr<StepLog> step_log;
  if (!flags.step_log.empty()) {
    TRY_ASSIGN(step_log, StepLog::create(flags.step_log));
    options.on_step = [steps = step_log.get()](const StepRecord& record) { steps->add(record); };
  }
  TRY_ASSIGN(const std::unique_ptr<KeptLengths> kept_lengths, KeptLengths::open(flags.state_dir, log, options));
  std::unique_ptr<EngineHost> host;
  {
    ProgressPrinter progress("loading", log);
    TRY_ASSIGN(host,
               EngineHost::start(options, log, [&](int64_t done, int64_t total) { progress.update(done, total); }));
  }
  registry.base = host->weights().fingerprint();
  take_from_model(*host, flags.generation_config == "auto", flags.serve);
  TRY_ASSIGN(std::shared_ptr<const TextModel> text,
             load_text_model(host->file(), std::move(chat_template), flags.serve.model_names.front(),
                             std::move(chat_settings)));
  const bool chats = text->has_template();
  tell_of_reasoning(*text, log);
  const SteadyClock clock;
  Membership membership;
  flags.serve.on_drain = [&membership] { membership.leave(); };
  TRY_ASSIGN(
      const std::unique_ptr<ApiServer> server,
      ApiServer::start(flags.serve, host->engine(), std::move(text), store.files_of_requests(files_here), clock, log));
  TRY_ASSIGN(
      const std::unique_ptr<KvEventPublisher> publisher,
      publish_kv_events(
          std::move(kv_events), [&server](const Digest& version) { return server->adapter_of(version); }, clock));
  TRY_ASSIGN(const Registered registered, register_adapters(adapters, std::move(registry), *server, log));
  warn_of_open_door(flags.serve, server->on_loopback(), log);
  const int64_t timeout_ms = int64_t{flags.shutdown_timeout_s} * 1000;
  signals.serving(timeout_ms + kLeaveMs + kEndMs);
  server->serve();
  TRY(join_fleet(flags, advertised, server->port(), flags.serve.max_running, membership, log));

  announce(*host, flags.serve, server->port(), chats, registered, ignored, log);
  wait_for_end(flags, signals, *server, registered.names.size(), log);
  drain(*server, membership, flags.shutdown_timeout_s, log);
  return {};
}

// Whatever signals a rank gets, rank 0 tells it when to end, or the time is over.
Status serve_rank(const ServeFlags& flags, const EngineHostOptions& options, StopSignals& signals, LogSink& log) {
  signals.serving(int64_t{flags.shutdown_timeout_s} * 1000 + kEndMs);
  return run_rank(options, log, {});
}

// A model by its name on a hub is one by its path from here on.
Status find_model(ServeFlags& flags, LogSink& log) {
  std::string& path = flags.engine.host.model_path;
  if (const auto name = name_meant_by(PosixFileSystem(), path); name.ok() && *name) {
    EngineFlags others = flags.engine;  // which a long download should not wait for to be refused
    others.dtype = "auto";              // it asks the model's files
    TRY(finish_engine_options(others));
  }
  TRY_ASSIGN(const std::optional<HubPlace> place, find_hub_name(path, HubKind::kModel, flags.hub, log));
  if (!place) return {};
  path = place->path;
  if (flags.serve.model_names.empty()) flags.serve.model_names = {place->repository};
  return {};
}

// Where mpirun has started several processes, rank 0 is the server.
Status serve(ServeFlags& flags, const std::vector<std::string>& ignored) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write
  keep_little_free_memory();
  ConsoleLog log(ConsoleLog::of_server(flags.log_level, flags.log_format));
  StopSignals signals(log);
  TRY(find_model(flags, log));
  TRY_ASSIGN(EngineHostOptions options, finish_engine_options(flags.engine));
  if (started_processes() == 1) return serve_one(flags, std::move(options), ignored, signals, log);
  TRY_ASSIGN(const std::unique_ptr<ProcessGroup> processes, ProcessGroup::join());
  options.processes = processes.get();
  const bool serves = processes->collective().rank() == 0;
  const Status ended =
      serves ? serve_one(flags, options, ignored, signals, log) : serve_rank(flags, options, signals, log);
  if (ended.ok()) return {};
  print_error("serve", ended.error());
  processes->end_process(1);
  return ended;
}

constexpr const char* kLogGroup = "API and logs";
constexpr const char* kNetworkGroup = "Network and access";

void add_log_options(CLI::App& command, ServeFlags& flags) {
  command.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str()
      ->group(kLogGroup);
  command
      .add_option("--step-log", flags.step_log,
                  "file that gets a line for every step: what it computed and how long that took")
      ->group(kLogGroup);
  command
      .add_option("--cost-file", flags.cost_file,
                  "profile of this machine (loralei profile) that a router is told what steps cost here by")
      ->group(kLogGroup);
  add_pace_option(command, flags.pace, kLogGroup);
  command
      .add_option("--state-dir", flags.state_dir,
                  "folder that keeps what is learned of answers' lengths (--predict-length) for the next start")
      ->group(kLogGroup);
  command.add_option("--log-format", flags.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group(kLogGroup);
}

void add_adapter_options(CLI::App& command, ServeFlags& flags) {
  add_hub_options(command, flags.hub, "Model and engine");
  const std::string adapters = "Adapters";
  // One value a flag, so that a MODEL behind it is not taken for another; vLLM's
  // flag takes several.
  command
      .add_option("--adapter,--lora", flags.adapters,
                  "NAME=PATH, PATH, or several of these between commas; ORG/NAME for one on a hub; may be given "
                  "often")
      ->allow_extra_args(false)
      ->group(adapters);
  command
      .add_option("--lora-modules", flags.vllm_adapters,
                  "the same, several behind one flag; also {\"name\": NAME, \"path\": PATH}")
      ->group(adapters);
  command
      .add_option("--adapter-dir", flags.serve.adapter_roots, "folder of adapters; also a root for loading over HTTP")
      ->allow_extra_args(false)
      ->group(adapters);
  command
      .add_option("--registry", flags.registry,
                  "file that keeps what is loaded over HTTP for the next start, made where there is none; or "
                  "etcd://HOST:PORT[,HOST:PORT...] for all servers of a fleet")
      ->check(refuse_empty_registry)
      ->group(adapters);
  command
      .add_option("--keep-versions", flags.serve.keep_versions,
                  "of each name that is loaded over HTTP again: how many of its newest versions are kept, as NAME@3")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->group(adapters);
  add_adapter_store_options(command, flags.adapter_store, adapters);
}

// Who may ask, and what nobody else reads.
void add_key_options(CLI::App& command, ServeFlags& flags) {
  add_tls_options(command, flags.tls, kNetworkGroup);
  command.add_option("--api-key", flags.serve.api_keys, "key for /v1; may be given often")
      ->allow_extra_args(false)
      ->check(refuse_key)
      ->group(kNetworkGroup);
  command.add_option("--api-key-file", flags.api_key_file, "file with one key a line")
      ->check(refuse_empty_key_file)
      ->group(kNetworkGroup);
  command
      .add_option("--keys", flags.keys_file,
                  "file of keys with names and limits, a JSON object a line; read again at SIGHUP")
      ->check(refuse_empty_keys)
      ->group(kNetworkGroup);
  command.add_option("--admin-key", flags.serve.admin_key, "key for loading, unloading and admin routes")
      ->check(refuse_key)
      ->group(kNetworkGroup);
  command
      .add_option("--prefix-cache-scope", flags.prefix_cache_scope,
                  "who shares cached prefixes: server (all) or key (requests of one key; default with several keys)")
      ->check(CLI::IsMember({"server", "key"}))
      ->group(kNetworkGroup);
}

// How routers and gateways find it and what it has.
void add_fleet_options(CLI::App& command, ServeFlags& flags) {
  FleetFlags& fleet = flags.fleet;
  add_kv_events_options(command, flags.kv_events, kNetworkGroup);
  command.add_option("--etcd", fleet.etcd, "HOST:PORT[,HOST:PORT...] of etcd, where routers find this server")
      ->group(kNetworkGroup);
  command
      .add_option("--advertise", fleet.advertise,
                  "HOST:PORT where routers reach this server (default: where it listens)")
      ->group(kNetworkGroup);
  command.add_option("--fleet", fleet.fleet, "name of the fleet in etcd")
      ->check(refuse_fleet)
      ->capture_default_str()
      ->group(kNetworkGroup);
}

}  // namespace

void add_serve_command(CLI::App& app, int& exit_code, const std::vector<std::string>& notes) {
  CLI::App* command = app.add_subcommand("serve", "The server: OpenAI API for one base model and its adapters.");
  auto flags = std::make_shared<ServeFlags>();
  ServeOptions& serve_options = flags->serve;
  serve_options.http.port = 8080;
  serve_options.http.limits.max_body_bytes = static_cast<size_t>(kDefaultMaxBodyBytes);
  add_engine_options(*command, flags->engine);
  add_cache_dir_option(*command, flags->engine.host.cache_dir);
  add_adapter_options(*command, *flags);
  const std::string network = kNetworkGroup;
  command->add_option("--host", serve_options.http.host, "address to listen on")->capture_default_str()->group(network);
  command->add_option("--port", serve_options.http.port, "port; 0 = any free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->group(network);
  add_key_options(*command, *flags);
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
  add_fleet_options(*command, *flags);
  command
      ->add_option("--served-model-name,-a,--alias", serve_options.model_names,
                   "id of the base model (default: last part of its path)")
      ->allow_extra_args(false)
      ->check(refuse_name)
      ->group(kLogGroup);
  command->add_option("--chat-template", flags->chat_template, "built-in name or Jinja file")->group(kLogGroup);
  command
      ->add_option("--default-chat-template-kwargs", flags->template_kwargs,
                   "JSON object that chat templates see where a request does not say it")
      ->group(kLogGroup);
  command
      ->add_option("--reasoning-parser", flags->reasoning_parser,
                   "how reasoning is told from the answer: auto (as the chat template marks it), none or a form's name")
      ->capture_default_str()
      ->group(kLogGroup);
  command->add_option("--pooling", flags->pooling, "of embeddings: last or mean")
      ->check(CLI::IsMember({"last", "mean"}))
      ->capture_default_str()
      ->group(kLogGroup);
  command
      ->add_option("--metrics-adapters", serve_options.metrics_adapters,
                   "adapters with labels of their own in /metrics")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str()
      ->group(kLogGroup);
  command->add_flag("--no-vllm-metrics", flags->no_vllm_metrics, "leave the aliases under vllm: out")->group(kLogGroup);
  add_log_options(*command, *flags);
  add_config_option(*command)->group(kLogGroup);
  command
      ->add_option(
          "--generation-config", flags->generation_config,
          "sampling of requests that say nothing: auto (the model's generation_config.json) or vllm (1.0, all)")
      ->check(CLI::IsMember({"auto", "vllm"}))
      ->capture_default_str()
      ->group(kLogGroup);
  add_environment(*command);
  show_first(*command, {"adapter", "adapter-dir", "memory-budget", "max-model-len", "max-num-seqs", "threads", "device",
                        "quant", "kv-cache-dtype", "host", "port", "api-key", "admin-key", "served-model-name",
                        "chat-template", "log-format", "config", "help", "help-all"});
  command->callback([flags, &exit_code, &notes] {
    const Status status = serve(*flags, notes);
    if (status.ok()) return;
    print_error("serve", status.error());
    exit_code = status.error().code == ErrorCode::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace loralei
