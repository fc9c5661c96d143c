// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

namespace loralei {
namespace {

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

RequestRecord record(const std::string& adapter) {
  RequestRecord r;
  r.id = "r";
  r.adapter = adapter;
  r.prompt_tokens = 10;
  r.output_tokens = 5;
  r.admitted = true;
  r.ttft_s = 0.05;
  r.total_s = 0.5;
  return r;
}

TEST(Metrics, ColdRequestsByWhatTheyDid) {
  Metrics metrics({"base", 2048, 100, true});
  EngineStats stats;
  stats.cold_starts.requests = {0, 5, 4, 3, 0};
  stats.cold_starts.waited_s = 0.125;
  stats.cold_starts.handovers = {0, 0, 0, 2};
  stats.cold_starts.handover_layers = 7;
  const std::string text = metrics.render(stats, {}, {}, 1234.0);
  for (const char* line :
       {"loralei_cold_requests_total{way=\"layered\"} 5\n", "loralei_cold_requests_total{way=\"assisted\"} 4\n",
        "loralei_cold_requests_total{way=\"ondemand\"} 3\n", "loralei_cold_layer_wait_seconds_total 0.125\n",
        "loralei_cold_handover_layer_bucket{le=\"2\"} 0\n", "loralei_cold_handover_layer_bucket{le=\"4\"} 2\n",
        "loralei_cold_handover_layer_sum 7\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(Metrics, WhetherAServerIsPacedAndWhatWasLate) {
  Metrics metrics({"base", 2048, 100, true});
  EngineStats stats;
  EXPECT_NE(metrics.render(stats, {}, {}, 1234.0).find("loralei_paced 0\n"), std::string::npos);
  stats.paced_as = "a10-llama2-7b";
  stats.paced_late_steps = 3;
  stats.paced_late_s = 0.25;
  const std::string text = metrics.render(stats, {}, {}, 1234.0);
  for (const char* line :
       {"loralei_paced 1\n", "loralei_paced_steps_late_total 3\n", "loralei_paced_late_seconds_total 0.25\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(Metrics, ExpertsAreCountedByWhereTheyWere) {
  EngineStats stats;
  stats.expert_hits = 30;
  stats.expert_misses = 12;
  const std::string text = Metrics({"base", 2048, 100, true}).render(stats, {}, {}, 1234.0);
  EXPECT_NE(text.find("loralei_expert_uses_total{found=\"memory\"} 30\n"), std::string::npos);
  EXPECT_NE(text.find("loralei_expert_uses_total{found=\"disk\"} 12\n"), std::string::npos);
}

TEST(Metrics, OwnNamesAndVllmsNames) {
  Metrics metrics({"base", 2048, 100, true});
  metrics.request_done(record("a"));
  metrics.inter_token(0.02);
  metrics.http_request("/v1/chat/completions", "POST", 200);
  metrics.http_request("unknown", "BREW", 404);
  metrics.unknown_fields(2);
  EngineStats stats;
  stats.running = 3;
  stats.kv_blocks_total = 10;
  stats.kv_blocks_used = 5;
  stats.generated_tokens = 77;
  stats.drafted_tokens = 40;
  stats.accepted_tokens = 30;
  stats.step_s = 8;
  stats.rows = 541;
  stats.steps_by_rows = {2, 0, 1, 1, 0, 0, 0, 1};
  stats.adapter_uploads = 4;
  stats.adapter_loads_ahead = 9;
  stats.adapter_loads_ahead_used = 6;
  stats.waited_s[static_cast<size_t>(WaitCause::kAdapterLoad)] = 2.5;
  stats.slo_requests[static_cast<size_t>(SloKind::kTpot)] = {6, 7};
  stats.adapter_upload_bytes = 5000;
  stats.adapter_upload_s = 0.25;
  stats.products_s = 5;
  stats.attention_s = 1.5;
  stats.lora_s = 0.5;
  stats.collective_s = 0.25;
  stats.collective_bytes = 4096;
  const std::string text = metrics.render(stats, {}, {}, 1234.0);
  for (const char* line :
       {"loralei_requests_running 3\n",
        "vllm:num_requests_running{model_name=\"base\",engine=\"0\"} 3\n",
        "vllm:kv_cache_usage_perc{model_name=\"base\",engine=\"0\"} 0.5\n",
        "loralei_generation_tokens_total 77\n",
        "loralei_slo_requests_total{slo=\"ttft\",met=\"no\"} 0\n",
        "loralei_slo_requests_total{slo=\"tpot\",met=\"no\"} 6\n",
        "loralei_slo_requests_total{slo=\"tpot\",met=\"yes\"} 7\n",
        "vllm:generation_tokens_total{model_name=\"base\",engine=\"0\"} 77\n",
        "loralei_adapter_requests_total{adapter=\"a\"} 1\n",
        "loralei_adapter_generation_tokens_total{adapter=\"a\"} 5\n",
        "loralei_adapter_uploads_total 4\n",
        "loralei_adapter_predicted_loads_total 9\n",
        "loralei_adapter_predicted_loads_used_total 6\n",
        "loralei_request_wait_seconds_total{cause=\"adapter_load\"} 2.5\n",
        "loralei_adapter_upload_bytes_total 5000\n",
        "loralei_adapter_upload_seconds_total 0.25\n",
        "http_requests_total{handler=\"unknown\",method=\"other\",status=\"404\"} 1\n",
        "loralei_speculation_drafted_tokens_total 40\n",
        "loralei_speculation_accepted_tokens_total 30\n",
        "loralei_unknown_request_fields_total 2\n",
        "loralei_work_seconds_total{part=\"products\"} 5\n",
        "loralei_work_seconds_total{part=\"collectives\"} 0.25\n",
        "loralei_work_seconds_total{part=\"rest\"} 0.75\n",
        "loralei_collective_bytes_total 4096\n",
        "loralei_rows_per_step_bucket{le=\"1\"} 2\n",
        "loralei_rows_per_step_bucket{le=\"16\"} 3\n",
        "loralei_rows_per_step_sum 541\n",
        "vllm:iteration_tokens_total_count{model_name=\"base\",engine=\"0\"} 5\n",
        "vllm:iteration_tokens_total_bucket{model_name=\"base\",engine=\"0\",le=\"+Inf\"} 5\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"base\",engine=\"0\",le=\"0.06\"} 1\n",
        "loralei_time_to_first_token_seconds_bucket{le=\"0.04\"} 0\n",
        "vllm:request_success_total{model_name=\"base\",engine=\"0\",finished_reason=\"stop\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  const std::string own = Metrics({"base", 2048, 100, false}).render(stats, {}, {}, 0);
  EXPECT_EQ(own.find("vllm:"), std::string::npos);
}

// Whoever announces a figure must show it: with everything happened once, no family
// is without a number.
TEST(Metrics, NoFamilyStaysEmptyWhereEverythingHappened) {
  Metrics metrics({"base", 2048, 100, true});
  RequestRecord request = record("a");
  request.cached_tokens = request.longest_output = request.max_tokens = 3;
  request.queue_s = 0.01;
  metrics.request_done(request);
  metrics.inter_token(0.02);
  metrics.http_request("/v1/models", "GET", 200);
  metrics.unknown_fields(1);
  metrics.refused("draining");
  metrics.default_adapters_set();
  EngineStats s;
  static_cast<MemoryShares&>(s) = s.device_memory = {9, 1, 1, 2, 1, 1, 1, 1};
  s.device = "cuda:0";
  s.device_before_bytes = s.device_driver_bytes = 1;
  s.running = s.waiting = s.waiting_for_adapter = s.held = s.rows_last = 1;
  s.kv_blocks_total = s.kv_blocks_used = s.kv_blocks_cached = s.kv_restored_blocks = 1;
  s.kv_coded = {.agreement = 1, .blobs = 1, .pages = 1, .bytes = 1, .page_bytes = 1, .times = {1, 1, 1, 1, 1, 1}};
  s.kv_disk = {.records = 1,
               .bytes = 1,
               .written_bytes = 1,
               .read_bytes = 1,
               .read_coded = 1,
               .read_s = 1,
               .refused_puts = 1,
               .lost_records = 1};
  s.kv_events = {.stored = 1, .removed = 1, .batches = 1, .lost = 1, .pictures = 1, .replays = 1};
  s.kv_states = {.slots = 1, .running = 1, .snapshots = 1, .bytes = 1, .kept = 1, .dropped = 1, .found = 1};
  for (TimeCounts* times :
       {&s.kv_block_times.lifetime, &s.kv_block_times.idle_before_evict, &s.kv_block_times.reuse_gap})
    times->add(1'000'000);
  s.steps = s.prompt_tokens = s.cached_tokens = s.generated_tokens = s.preemptions = s.squashes = s.rows = 1;
  s.prefix_queries = s.prefix_hits = s.drafted_tokens = s.accepted_tokens = s.borrowed_tokens = 1;
  s.adapter_loads = s.adapter_load_failures = s.adapter_evictions = s.adapter_uploads = 1;
  s.adapter_loads_ahead = s.adapter_loads_ahead_used = 1;
  s.adapter_load_bytes = s.idle_adapter_bytes = 1;
  s.adapter_upload_bytes = s.disk_read_bytes = s.streamed_bytes = 1;
  s.adapter_upload_s = s.step_ms_last = s.products_s = s.attention_s = s.lora_s = s.disk_s = 1;
  s.collective_s = s.paced_late_s = 1;
  s.collective_bytes = s.paced_late_steps = s.expert_hits = s.expert_misses = 1;
  s.paced_as = "slow";
  s.step_s = 6;
  s.steps_by_rows[0] = 1;
  s.waited_s.fill(1);
  s.cold_starts = {{1, 1, 1, 1, 1}, 1, 1, 1, 1, 1, {1}, 1, 1, 1};
  s.kv_floor_bytes = s.adapter_floor_bytes = 1;
  s.given = {1, 1, 1, 1};
  s.length_errors[0] = {.counts = {1, 1, 1, 1, 1, 1, 1}, .sum = 9};
  s.slo_requests = {{{1, 1}, {1, 1}}};
  s.queues[0] = {1, 1, 1};
  AdapterStatus adapter;
  adapter.source.label = "a";
  adapter.tier = AdapterTier::kResident;
  adapter.bytes = 1;
  adapter.on_device = true;
  std::istringstream lines(
      metrics.render(s, {std::make_shared<const AdapterStatus>(adapter)}, {1, 1, 1, 1, 1}, 1.0, {1, 1}));
  std::map<std::string, double> families;
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      families[family] = 0;
    } else if (!line.starts_with("#")) {
      families.at(family) += std::stod(line.substr(line.rfind(' ')));
    }
  }
  EXPECT_GT(families.size(), 85u);
  for (const auto& [name, sum] : families) EXPECT_GT(sum, 0) << name;
}

TEST(Metrics, StatesAreShownByWhoseTheyAre) {
  EngineStats stats;
  stats.kv_states = {.slots = 9, .running = 2, .snapshots = 3, .bytes = 4096, .kept = 7, .dropped = 4, .found = 5};
  const std::string text = Metrics({"base", 2048, 100, true}).render(stats, {}, {}, 0);
  for (const char* line :
       {"loralei_kv_states{state=\"total\"} 9\n", "loralei_kv_states{state=\"running\"} 2\n",
        "loralei_kv_states{state=\"kept\"} 3\n", "loralei_kv_state_bytes 4096\n",
        "loralei_kv_state_copies_total{event=\"kept\"} 7\n", "loralei_kv_state_copies_total{event=\"dropped\"} 4\n",
        "loralei_kv_state_copies_total{event=\"found\"} 5\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(Metrics, KvBlocksAreShownByHowLongTheyStay) {
  EngineStats stats;
  stats.kv_block_times.lifetime.add(40'000'000'000);
  stats.kv_block_times.reuse_gap.add(4'000'000);
  stats.kv_block_times.reuse_gap.add(int64_t{3600} * 1'000'000'000);
  const std::string text = Metrics({"base", 2048, 100, true}).render(stats, {}, {}, 0);
  for (const char* line :
       {"loralei_kv_block_lifetime_seconds_bucket{le=\"30\"} 0\n",
        "loralei_kv_block_lifetime_seconds_bucket{le=\"60\"} 1\n", "loralei_kv_block_lifetime_seconds_sum 40\n",
        "loralei_kv_block_idle_before_evict_seconds_count 0\n",
        "vllm:kv_block_reuse_gap_seconds_bucket{model_name=\"base\",engine=\"0\",le=\"0.005\"} 1\n",
        "vllm:kv_block_reuse_gap_seconds_bucket{model_name=\"base\",engine=\"0\",le=\"1800\"} 1\n",
        "vllm:kv_block_reuse_gap_seconds_count{model_name=\"base\",engine=\"0\"} 2\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(Metrics, ADeviceHasAMemoryOfItsOwn) {
  Metrics metrics({"base", 2048, 100, true});
  EngineStats stats;
  stats.memory_budget_bytes = 1000;
  EXPECT_EQ(metrics.render(stats, {}, {}, 0).find("device"), std::string::npos);
  stats.device = "cuda:1";
  stats.device_memory = {500, 100, 20, 50, 200, 30, 40, 10};
  stats.device_before_bytes = 60;
  stats.device_driver_bytes = 7;
  const std::string text = metrics.render(stats, {}, {}, 0);
  for (const char* line : {"loralei_memory_bytes{use=\"budget\"} 1000\n",
                           "loralei_device_memory_bytes{device=\"cuda:1\",use=\"budget\"} 500\n",
                           "loralei_device_memory_bytes{device=\"cuda:1\",use=\"weights\"} 100\n",
                           "loralei_device_memory_beside_bytes{device=\"cuda:1\",by=\"context\"} 60\n",
                           "loralei_device_memory_beside_bytes{device=\"cuda:1\",by=\"driver\"} 7\n",
                           "loralei_device_memory_bytes{device=\"cuda:1\",use=\"adapters\"} 20\n",
                           "loralei_device_memory_bytes{device=\"cuda:1\",use=\"adapters_max\"} 50\n",
                           "loralei_device_memory_bytes{device=\"cuda:1\",use=\"kv_cache\"} 200\n",
                           "loralei_device_memory_bytes{device=\"cuda:1\",use=\"scratch\"} 30\n",
                           "loralei_device_memory_bytes{device=\"cuda:1\",use=\"requests\"} 40\n",
                           "loralei_device_memory_bytes{device=\"cuda:1\",use=\"other\"} 10\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(Metrics, ResidencyIsOneSeriesOfWhatIsInMemory) {
  Metrics metrics({"base", 2048, 2, true});
  EngineStats stats;
  stats.adapter_bytes = 300;
  stats.adapter_bytes_max = 1000;
  AdapterList adapters;
  for (int i = 0; i < 3; ++i) {
    AdapterStatus adapter;
    adapter.source.label = "r" + std::to_string(i);
    adapter.tier = AdapterTier::kResident;
    adapter.uses = i;
    adapter.bytes = 100;
    adapters.push_back(std::make_shared<const AdapterStatus>(adapter));
  }
  AdapterStatus loading;
  loading.source.label = "w";
  loading.tier = AdapterTier::kLoading;
  loading.uses = 9;
  adapters.push_back(std::make_shared<const AdapterStatus>(loading));
  AdapterStatus waited;
  waited.source.label = "q";
  waited.waiting = 1;
  adapters.push_back(std::make_shared<const AdapterStatus>(waited));
  metrics.render(stats, adapters, {}, 1.0);
  const std::string text = metrics.render(stats, adapters, {}, 1700000000.5);
  EXPECT_EQ(count(text, "\nvllm:lora_requests_info{"), 1u);
  EXPECT_NE(text.find("max_lora=\"10\",running_lora_adapters=\"r2,r1,r0\",waiting_lora_adapters=\"q,w\"} 1700000000.5"),
            std::string::npos)
      << text;
  EXPECT_EQ(count(text, "\nloralei_adapter_bytes{"), 2u);  // these are a series each
}

TEST(Metrics, WithADeviceRunningAdaptersAreThoseOnIt) {
  Metrics metrics({"base", 2048, 100, true});
  EngineStats stats;
  stats.device = "cuda:0";
  stats.adapter_bytes = 300;
  stats.adapter_bytes_max = 3000;
  stats.device_memory.adapter_bytes = 100;
  stats.device_memory.adapter_bytes_max = 400;
  AdapterList adapters;
  const auto put = [&](const char* name, AdapterTier tier, bool on_device) {
    AdapterStatus status;
    status.source.label = name;
    status.tier = tier;
    status.on_device = on_device;
    adapters.push_back(std::make_shared<const AdapterStatus>(status));
  };
  put("host", AdapterTier::kResident, false);
  put("both", AdapterTier::kResident, true);
  put("coming", AdapterTier::kLoading, false);
  put("disk1", AdapterTier::kSource, false);
  put("disk2", AdapterTier::kSource, false);
  put("bad", AdapterTier::kFailed, false);
  const std::string text = metrics.render(stats, adapters, {}, 17.0);
  for (const char* sample : {"max_lora=\"4\",running_lora_adapters=\"both\",waiting_lora_adapters=\"coming\"} 17",
                             "adapter_name=\"both\",level=\"gpu\"", "adapter_name=\"host\",level=\"cpu\"",
                             "vllm:num_gpu_loaded_lora_adapters{model_name=\"base\",engine=\"0\"} 1\n",
                             "vllm:num_cpu_loaded_lora_adapters{model_name=\"base\",engine=\"0\"} 2\n",
                             "loralei_adapters{tier=\"disk\"} 2\n", "loralei_adapters{tier=\"failed\"} 1\n",
                             "loralei_adapters{tier=\"loading\"} 1\n", "loralei_adapters{tier=\"memory\"} 1\n",
                             "loralei_adapters{tier=\"device\"} 1\n"})
    EXPECT_NE(text.find(sample), std::string::npos) << sample << "\n" << text;
}

TEST(Metrics, LabelsByAdapterAreBounded) {
  Metrics metrics({"base", 2048, 3, true});
  for (int i = 0; i < 10; ++i) {
    for (int k = 0; k <= i; ++k) metrics.request_done(record("n" + std::to_string(i)));
  }
  metrics.request_done(record("other"));
  const std::string text = metrics.render({}, {}, {}, 0);
  EXPECT_EQ(count(text, "\nloralei_adapter_requests_total{"), 6u);  // three, base, sum, other
  EXPECT_NE(text.find("loralei_adapter_requests_total{adapter=\"n2\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("loralei_adapter_requests_total{adapter=\"other\"} 50\n"), std::string::npos) << text;
}

TEST(Metrics, CountersByAdapterNeverFall) {
  std::set<std::string> registered = {"a", "b", "c"};
  MetricsOptions options{"base", 2048, 1, true};
  options.registered = [&](const std::string& name) { return registered.contains(name); };
  Metrics metrics(options);
  const auto requests = [&](const std::string& label) {
    const std::string text = metrics.render({}, {}, {}, 0), name = "loralei_adapter_requests_total{adapter=\"" + label;
    const size_t at = text.find(name + "\"} ");
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + name.size() + 3));
  };
  EXPECT_EQ(requests("other"), 0);  // there from the start: a rate needs what it rises from
  metrics.request_done(record("a"));
  for (int i = 0; i < 5; ++i) metrics.request_done(record("b"));
  EXPECT_EQ(requests("a"), 1);
  EXPECT_EQ(requests("b"), -1) << "busier, but it came when the place was taken";
  EXPECT_EQ(requests("other"), 5);
  registered.erase("a");
  metrics.adapter_gone("a");
  EXPECT_EQ(requests("a"), -1);
  metrics.request_done(record("a"));  // ran when it was unloaded: takes no place
  metrics.request_done(record("b"));
  EXPECT_EQ(requests("b"), 1);
  EXPECT_EQ(requests("other"), 6);
}

TEST(Metrics, WhatWasNeverAdmittedCountsByItsEndAlone) {
  Metrics metrics({"base", 2048, 100, true});
  RequestRecord refused = record("a");
  refused.admitted = false;
  refused.ttft_s = -1;
  refused.end = "error";
  metrics.request_done(refused);
  const std::string text = metrics.render({}, {}, {}, 0);
  EXPECT_NE(text.find("loralei_requests_total{end=\"error\"} 1\n"), std::string::npos);
  for (const char* name : {"latency_seconds", "prompt_tokens", "generation_tokens", "params_n"})
    EXPECT_NE(text.find("loralei_request_" + std::string(name) + "_count 0\n"), std::string::npos) << name;
  EXPECT_EQ(text.find("adapter=\"a\""), std::string::npos);
}

TEST(Metrics, EmbeddingsAreNoGenerations) {
  Metrics metrics({"base", 2048, 100, true});
  RequestRecord embedding = record("a");
  embedding.generates = false;
  embedding.choices = 12;  // inputs
  metrics.request_done(embedding);
  const std::string text = metrics.render({}, {}, {}, 0);
  for (const char* name : {"generation_tokens", "longest_generation_tokens", "params_n", "params_max_tokens"})
    EXPECT_NE(text.find("loralei_request_" + std::string(name) + "_count 0\n"), std::string::npos) << name;
  for (const char* name : {"latency_seconds", "prompt_tokens"})
    EXPECT_NE(text.find("loralei_request_" + std::string(name) + "_count 1\n"), std::string::npos) << name;
}

TEST(Metrics, WhoWaitsForAnAdapterWaits) {
  EngineStats stats;
  stats.waiting = 2;
  stats.waiting_for_adapter = 3;
  const std::string text = Metrics({"base", 2048, 100, true}).render(stats, {}, {}, 0);
  EXPECT_NE(text.find("loralei_requests_waiting 2\n"), std::string::npos);
  EXPECT_NE(text.find("loralei_requests_waiting_for_adapter 3\n"), std::string::npos);
  EXPECT_NE(text.find("vllm:num_requests_waiting{model_name=\"base\",engine=\"0\"} 5\n"), std::string::npos);
}

TEST(Metrics, AnAdapterWithAPlusInItsNameIsNoSum) {
  Metrics metrics({"base", 2048, 3, true});
  metrics.request_done(record("c++"));
  RequestRecord sum = record("a+b");
  sum.adapters = 2;
  metrics.request_done(sum);
  const std::string text = metrics.render({}, {}, {}, 0);
  EXPECT_NE(text.find("loralei_adapter_requests_total{adapter=\"c++\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("loralei_adapter_requests_total{adapter=\"sum\"} 1\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("adapter=\"a+b\""), std::string::npos);
}

TEST(Metrics, TellHowTheLogFares) {
  const std::string text =
      Metrics({"base", 2048, 3, true}).render({}, {}, {}, 0, {.dropped_lines = 7, .stuck_ms = 1500});
  EXPECT_NE(text.find("loralei_log_lines_dropped_total 7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("loralei_log_stuck_seconds 1.5\n"), std::string::npos) << text;
}

class OneLine final : public LogSink {
 public:
  void log(LogLevel, std::string_view message) override { text = message; }
  std::string text;
};

TEST(RequestLog, OneEvent) {
  OneLine log;
  log_request(log, record("a b"));
  EXPECT_EQ(log.text,
            "request kind=chat id=r adapter=\"a b\" version=- prompt=10 cached=0 out=5 queue_ms=0.0 ttft_ms=50.0 "
            "total_ms=500.0 choices=1 end=stop");
}

TEST(RequestLog, ARefusalIsBounded) {
  OneLine log;
  log_refusal(log, "r", "BREW", "/v1/models", 400, std::string(10'000, 'x'));
  EXPECT_TRUE(log.text.starts_with("request refused id=r method=other route=/v1/models status=400: xxx")) << log.text;
  EXPECT_LT(log.text.size(), 600u);
}

TEST(Metrics, AsOpenMetrics) {
  EXPECT_EQ(
      as_openmetrics("# HELP a_total Some.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n# HELP b Other.\n# TYPE b "
                     "gauge\nb 1\n# HELP vllm:c Old.\n# TYPE vllm:c counter\nvllm:c 3\n"),
      "# HELP a Some.\n# TYPE a counter\na_total{x=\"1\"} 2\n# HELP b Other.\n# TYPE b gauge\nb 1\n# HELP vllm:c "
      "Old.\n# TYPE vllm:c unknown\nvllm:c 3\n# EOF\n");
}

}  // namespace
}  // namespace loralei
