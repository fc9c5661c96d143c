// SPDX-License-Identifier: Apache-2.0
// bench coldstart --plain: the first request to an adapter that lies in a file, on the
// cores, beside one to an adapter that is in memory; with the file in the system's memory
// and on the disk alone.
#include <memory>
#include <utility>

#include "bench/coldstart.h"
#include "bench/engine_client.h"
#include "bench/rig.h"
#include "sys/file_cache.h"

namespace loralei {
namespace {

constexpr double kRatioMost = 1.05;  // of the first token's time
constexpr AdapterSourceId kResident{1};
constexpr uint64_t kFirstSource = 2;  // that is read
constexpr double kLeftShare = 0.01;   // of a file that may still be in memory

struct Round {
  double resident_ms = 0, cached_ms = 0, disk_ms = 0;
};

// An engine that starts requests in one way. There are no helpers beside the cores, so
// that auto would be layered.
struct Server {
  ColdStart way = ColdStart::kOndemand;
  std::unique_ptr<EngineHost> host = nullptr;
  std::unique_ptr<EngineClient> client = nullptr;
  uint64_t next_source = kFirstSource;
  std::vector<Round> rounds = {};
};

// An adapter is a file, or a folder of files.
Result<std::vector<std::string>> files_of(const std::string& path) {
  const PosixFileSystem system;
  if (system.kind(path) != PathKind::kDirectory) return std::vector<std::string>{path};
  TRY_ASSIGN(const std::vector<DirEntry> entries, system.list(path));
  std::vector<std::string> files;
  for (const DirEntry& entry : entries) files.push_back(join_path(path, entry.name));
  return files;
}

Status leave_on_disk(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    TRY(drop_cached_file(file));
    TRY_ASSIGN(const int64_t left, cached_file_bytes(file));
    TRY_ASSIGN(const FileStamp stamp, PosixFileSystem().stamp(file));
    if (static_cast<double>(left) > kLeftShare * static_cast<double>(stamp.size_bytes))
      return io_error("the system keeps '" + file + "' in memory; put adapters (--cache-dir) on a disk.");
  }
  return {};
}

Result<double> first_token_ms(Server& server, int prompt_tokens, AdapterSourceId adapter) {
  TRY_ASSIGN(const RequestId id, server.client->ask(prompt_tokens, 1, adapter));
  TRY(server.client->follow_to_the_end());
  return server.client->asked(id).first_token_s() * 1e3;
}

// Of an adapter that the engine has not read before; it is forgotten then.
Result<double> first_request_ms(Server& server, int prompt_tokens, const std::string& path, bool from_disk) {
  const AdapterSourceSpec source{{server.next_source}, "plain-" + std::to_string(server.next_source), path};
  ++server.next_source;
  TRY(server.client->command(AdapterAction::kAdd, source));
  TRY_ASSIGN(const std::vector<std::string> files, files_of(path));
  if (from_disk) TRY(leave_on_disk(files));
  TRY_ASSIGN(const double ms, first_token_ms(server, prompt_tokens, source.id));
  TRY(server.client->command(AdapterAction::kDrop, source));
  return ms;
}

Result<Round> run_round(Server& server, int prompt_tokens, const std::string& path) {
  Round round;
  TRY_ASSIGN(round.resident_ms, first_token_ms(server, prompt_tokens, kResident));
  TRY_ASSIGN(round.disk_ms, first_request_ms(server, prompt_tokens, path, true));
  TRY_ASSIGN(round.cached_ms, first_request_ms(server, prompt_tokens, path, false));
  return round;
}

void add_rows(const std::string& prefix, const Server& server, BenchReport& report) {
  const auto row = [&](const std::string& name, const char* unit, const auto& value) {
    std::vector<double> values;
    for (const Round& round : server.rounds) values.push_back(value(round));
    report.rows.push_back(summarise(prefix + name, unit, std::move(values)));
  };
  const auto first_requests = [&](const std::string& name, double Round::*ms) {
    row(name + ".first_token_ms", "ms", [=](const Round& round) { return round.*ms; });
    row(name + ".ratio", "ratio", [=](const Round& round) { return round.*ms / round.resident_ms; });
    const BenchRow& ratio = report.rows.back();
    if (server.way != ColdStart::kOndemand) report.targets.push_back({ratio.name, "<=", kRatioMost, ratio.value});
  };
  row("resident.first_token_ms", "ms", [](const Round& round) { return round.resident_ms; });
  first_requests("page_cache", &Round::cached_ms);
  first_requests("disk", &Round::disk_ms);
  const ColdStarts starts = server.host->engine().stats().cold_starts;
  const auto early = static_cast<double>(starts.requests[static_cast<size_t>(ColdStart::kLayered)]);
  report.rows.push_back(summarise(prefix + "began_layered", "requests", {early}));
  report.rows.back().note = "of " + std::to_string(server.next_source - kFirstSource) + ", all rounds";
}

Result<Server> open_server(const BenchOptions& options, EngineHostOptions host, ColdStart way,
                           const std::string& resident, const Clock& clock, LogSink& log) {
  host.engine.cold_start = way;
  host.engine.max_sequences = 1;
  host.engine.max_model_len = options.prompts.front() + 1;
  Server server{.way = way};
  TRY_ASSIGN(server.host, EngineHost::start(host, log, {}));
  server.client = std::make_unique<EngineClient>(server.host->engine(), clock, server.host->file().config.vocab, 1);
  TRY(server.client->command(AdapterAction::kLoad, AdapterSourceSpec{kResident, "resident", resident}));
  return server;
}

}  // namespace

Status bench_coldstart_plain(const BenchOptions& options, LogSink& log, BenchReport& report) {
  EngineHostOptions host = options.host;
  TRY_ASSIGN(const std::string label, choose_model_file(options, log, host));
  const int rank = options.adapter_paths.empty() ? options.cold_start.ranks.back() : 0;
  TRY_ASSIGN(const std::vector<std::string> files, cold_adapter_files(options, rank));
  if (files.size() < 2 || files[0] == files[1])
    return invalid_argument(
        "bench coldstart --plain needs two adapters of your own, one of which stays in memory: state --adapter twice.");
  NullLogSink no_log;  // each request is a load
  const SteadyClock clock;
  std::vector<Server> servers;
  for (const ColdStart way : {ColdStart::kOndemand, ColdStart::kLayered}) {
    TRY_ASSIGN(Server server, open_server(options, host, way, files[0], clock, no_log));
    servers.push_back(std::move(server));
  }
  QuietRounds rounds(options.rounds, options.foreign_max);
  while (rounds.next()) {
    std::vector<Round> round(servers.size());
    for (size_t turn = 0; turn < servers.size(); ++turn) {
      const size_t at = (turn + static_cast<size_t>(rounds.number())) % servers.size();
      TRY_ASSIGN(round[at], run_round(servers[at], options.prompts.front(), files[1]));
    }
    if (!rounds.keep()) continue;
    for (size_t i = 0; i < servers.size(); ++i) servers[i].rounds.push_back(round[i]);
  }
  const size_t first_row = report.rows.size();
  const std::string prefix = "coldstart." + label + rank_name(options, rank) + ".plain.";
  for (const Server& server : servers)
    add_rows(prefix + kColdStartNames[static_cast<size_t>(server.way)] + ".", server, report);
  rounds.describe(report, first_row);
  return {};
}

}  // namespace loralei
