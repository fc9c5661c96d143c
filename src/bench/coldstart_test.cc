// SPDX-License-Identifier: Apache-2.0
// bench coldstart on small models: what each way does with requests whose adapter is not
// there, which rows and targets there are, and what is refused.
#include "bench/coldstart.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "bench/coldstart_run.h"
#include "bench/generate.h"

namespace loralei {
namespace {

class ColdStartBenchTest : public testing::Test {
 protected:
  ColdStartBenchTest()
      : folder_(std::filesystem::path(testing::TempDir()) / ("loralei-coldstart-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    options_.shape = "llama-nano";
    options_.cache_dir = folder_.string();
    options_.targets = "qkv";
    options_.rounds = 1;
    options_.foreign_max = 1e6;
    options_.host.threads = 1;
    options_.host.assist = {.program = LORALEI_ASSIST_HELPER, .args = {}};
    EngineOptions& engine = options_.host.engine;
    engine.memory_budget_bytes = int64_t{1} << 30;  // a sanitizer keeps what was freed
    engine.kv_cache_bytes = int64_t{16} << 20;
    engine.adapter_bytes = engine.host_adapter_bytes = int64_t{32} << 20;
    engine.assist_helpers = 1;
    engine.speculate = Speculation::kOff;
    options_.cold_start.requests = 12;
    options_.cold_start.loads = {0.5};
    options_.cold_start.ranks = {8};
    options_.cold_start.lengths = "fixed:12:4";
  }
  ~ColdStartBenchTest() override { std::filesystem::remove_all(folder_); }

  // A copy takes a hundred times as long as the prompt or more: nobody can miss it.
  Result<ColdRun> run_slowly(ColdStart way, int requests) {
    ColdServerOptions server;
    server.host = options_.host;
    TRY_ASSIGN(server.host.model_path, generated_model(options_.cache_dir, options_.shape, "f32", {}));
    server.host.engine.max_sequences = 4;
    server.host.engine.max_model_len = 64;
    TRY_ASSIGN(server.files, cold_adapter_files(options_, 8));
    server.link.bytes_per_s = 1e6;
    Workload workload;
    for (int i = 0; i < requests; ++i)
      workload.push_back({.adapter = "a" + std::to_string(i), .prompt_tokens = 12, .output_tokens = 4});
    server.adapters = adapters_of(workload);
    TRY_ASSIGN(const auto started, ColdServer::start(server, way, log_));
    return started->replay(workload);
  }
  static uint64_t began(const ColdRun& run, ColdStart way) { return run.starts.requests[static_cast<size_t>(way)]; }

  const BenchRow* row(const std::string& name) const {
    const auto found = std::find_if(report_.rows.begin(), report_.rows.end(), [&](const BenchRow& one) {
      return one.name == "coldstart.llama-nano.bf16.r8.qkv." + name;
    });
    return found == report_.rows.end() ? nullptr : &*found;
  }
  double value(const std::string& name) const {
    const BenchRow* const found = row(name);
    EXPECT_NE(found, nullptr) << name;
    return found == nullptr ? -1 : found->value;
  }
  std::string refused() {
    BenchReport report;
    const Status ran = bench_coldstart(options_, log_, report);
    return ran.ok() ? std::string() : ran.error().message;
  }

  const std::filesystem::path folder_;
  BenchOptions options_;
  BenchReport report_;
  NullLogSink log_;
};

TEST_F(ColdStartBenchTest, EachWayDoesWhatItsNameSays) {
  constexpr int kRequests = 6;
  for (const ColdStart way : {ColdStart::kCached, ColdStart::kOndemand, ColdStart::kLayered, ColdStart::kAssisted}) {
    SCOPED_TRACE(kColdStartNames[static_cast<size_t>(way)]);
    const Result<ColdRun> run = run_slowly(way, kRequests);
    ASSERT_TRUE(run.ok()) << run.error().message;
    ASSERT_EQ(run->served.size(), size_t{kRequests});
    for (const ServedRequest& served : run->served) {
      EXPECT_GT(served.first_ns, 0);
      EXPECT_GE(served.end_ns, served.first_ns);
      EXPECT_EQ(served.tokens, 4);
    }
    const uint64_t cold =
        began(*run, ColdStart::kLayered) + began(*run, ColdStart::kAssisted) + began(*run, ColdStart::kOndemand);
    if (way == ColdStart::kCached) {
      EXPECT_EQ(cold, 0u);
    } else {
      EXPECT_GE(cold, uint64_t{kRequests} - 1) << "copies come one after the other";
    }
    EXPECT_TRUE(way != ColdStart::kOndemand || began(*run, ColdStart::kOndemand) == cold);
    EXPECT_TRUE(way == ColdStart::kAssisted || (began(*run, ColdStart::kAssisted) == 0 && run->starts.helpers == 0));
    if (way != ColdStart::kAssisted) continue;
    EXPECT_GT(began(*run, ColdStart::kAssisted), 0u);
    EXPECT_GT(run->starts.assisted_layers, 0u);
    EXPECT_EQ(run->starts.helpers, 1);
  }
}

TEST_F(ColdStartBenchTest, TellsEveryWayOfEveryLinkAndLoad) {
  options_.cold_start.link_ratios = {4};
  options_.cold_start.links_gb_s = {2};
  options_.cold_start.ways = {ColdStart::kOndemand, ColdStart::kAuto, ColdStart::kOndemand};
  const Status ran = bench_coldstart(options_, log_, report_);
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  EXPECT_GT(value("adapter_mb"), 0);
  EXPECT_GT(value("capacity"), 0);
  EXPECT_NEAR(value("link4.copy_to_prefill"), 2 * value("link8.copy_to_prefill"), 1e-9);
  for (const std::string cell : {"link2.load0.5.", "x4.load0.5."}) {
    for (const std::string way : {"cached", "ondemand", "auto"}) {
      SCOPED_TRACE(cell + way);
      for (const char* time : {".first_token_ms", ".token_ms", ".request_ms"}) EXPECT_GT(value(cell + way + time), 0);
      double before = 0;
      for (const char* point : {"10", "20", "30", "40", "50", "60", "70", "80", "90", "99"}) {
        const double here = value(cell + way + ".first_token_p" + point + "_ms");
        EXPECT_GE(here, before);
        before = here;
      }
      if (way == "cached") continue;
      for (const char* what : {"first_token", "token", "request"}) {
        const std::string unit = std::string(".") + what;
        EXPECT_NEAR(value(cell + way + unit + "_over"),
                    (value(cell + way + unit + "_ms") / value(cell + "cached" + unit + "_ms") - 1) * 100, 1e-6);
      }
      for (const char* what : {".first_token_p50_over", ".first_token_p99_over"})
        EXPECT_GT(value(cell + way + what), -100);
      for (const char* what : {".began_layered", ".began_assisted", ".waited_for_all", ".hidden_s", ".layers_waited"})
        EXPECT_GE(value(cell + way + what), 0);
    }
    EXPECT_EQ(value(cell + "ondemand.began_layered") + value(cell + "ondemand.began_assisted"), 0);
    EXPECT_EQ(row(cell + "ondemand.helpers"), nullptr);
    EXPECT_EQ(value(cell + "auto.helpers"), 1);
    EXPECT_GE(value(cell + "auto.handover_layer"), 0);
  }
  EXPECT_EQ(report_.targets.size(), 12u);
  EXPECT_EQ(report_.plots.size(), 2u);
}

// Some adapters are asked for again and again, and the device keeps as many as it may.
TEST_F(ColdStartBenchTest, PopularAdaptersStayOnTheDevice) {
  std::ofstream file(folder_ / "functions.csv");
  file << "function,invocations_per_day\n";
  for (int i = 0; i < 8; ++i) file << "f" << i << "," << 1000 / (i * i * i + 1) << "\n";
  file.close();
  options_.cold_start.popularity = (folder_ / "functions.csv").string();
  options_.cold_start.ways = {ColdStart::kOndemand};
  options_.cold_start.requests = 40;
  options_.populations = {4, 8};
  options_.fit = 8;
  const Status ran = bench_coldstart(options_, log_, report_);
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  EXPECT_GT(value("x1.functions4.ondemand.first_token_ms"), 0);
  // All have been on the device when requests begin to count, and stay.
  EXPECT_EQ(value("x1.functions4.ondemand.waited_for_all"), 0);
  EXPECT_EQ(value("x1.functions8.ondemand.waited_for_all"), 0);
}

TEST_F(ColdStartBenchTest, PlainReadsFilesFromTheDiskAndFromMemory) {
  options_.cold_start.plain = true;
  options_.host.engine.adapter_bytes = options_.host.engine.host_adapter_bytes = 0;
  options_.rounds = 2;
  const Status ran = bench_coldstart(options_, log_, report_);
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  for (const std::string way : {"plain.ondemand.", "plain.layered."}) {
    SCOPED_TRACE(way);
    for (const char* what : {"resident.first_token_ms", "page_cache.first_token_ms", "disk.first_token_ms"})
      EXPECT_GT(value(way + what), 0);
    EXPECT_EQ(row(way + "disk.ratio")->samples, 2);
    EXPECT_GE(row(way + "disk.ratio")->max, row(way + "disk.ratio")->min);
  }
  EXPECT_EQ(value("plain.ondemand.began_layered"), 0);
  // Six were read, one of each kind in the round that does not count.
  EXPECT_EQ(row("plain.ondemand.began_layered")->note, "of 6, all rounds");
  ASSERT_EQ(report_.targets.size(), 2u);
  EXPECT_TRUE(report_.targets[1].name.ends_with("plain.layered.disk.ratio"));
  options_.adapter_paths = {(folder_ / "one").string()};
  EXPECT_NE(refused().find("two adapters of your own"), std::string::npos);
}

TEST_F(ColdStartBenchTest, UnusedComparesEnginesThatHaveNothingCold) {
  options_.cold_start.unused = true;
  options_.tax_pairs = 3;
  const Status ran = bench_coldstart(options_, log_, report_);
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  const auto found = [&](const std::string& name) {
    return std::find_if(report_.rows.begin(), report_.rows.end(),
                        [&](const BenchRow& one) { return one.name == "coldstart.llama-nano.bf16.unused." + name; });
  };
  ASSERT_EQ(report_.rows.size(), 3u);
  EXPECT_EQ(found("helpers")->value, 1);
  for (const char* what : {"decode_over", "prefill_over"}) {
    ASSERT_NE(found(what), report_.rows.end());
    EXPECT_EQ(found(what)->samples, 3);
    EXPECT_GT(found(what)->min, -100);
  }
  ASSERT_EQ(report_.targets.size(), 3u);
  EXPECT_TRUE(report_.targets[2].ok()) << "cold requests: " << report_.targets[2].measured;
}

TEST_F(ColdStartBenchTest, SaysWhatIsMissingOrWrong) {
  options_.cold_start.lengths = "fixed:12";
  EXPECT_NE(refused().find("fixed:12"), std::string::npos);
  options_.cold_start.lengths = "fixed:12:4";
  options_.cold_start.popularity = (folder_ / "absent.csv").string();
  EXPECT_NE(refused().find("absent.csv"), std::string::npos);
  options_.cold_start.popularity = "";
  options_.host.engine.adapter_bytes = 1 << 16;
  EXPECT_NE(refused().find("state more --adapter-memory"), std::string::npos);
  options_.host.engine.adapter_bytes = 0;
  options_.host.device.make = [](const DeviceRequest&) -> Result<DeviceBackend> { return DeviceBackend{}; };
  EXPECT_NE(refused().find("leave --device out"), std::string::npos);
  options_.host.device = {};
  options_.cold_start.unused = true;
  options_.tax_pairs = 0;
  EXPECT_NE(refused().find("--tax-pairs of 1 or more"), std::string::npos);
  options_.cold_start.plain = true;
  EXPECT_NE(refused().find("state one of them"), std::string::npos);
  options_.cold_start.plain = options_.cold_start.unused = false;
  options_.shape = "";
  options_.host.model_path = (folder_ / "llama-nano-bf16.gguf").string();
  EXPECT_NE(refused().find("--adapter PATH"), std::string::npos);
}

}  // namespace
}  // namespace loralei
