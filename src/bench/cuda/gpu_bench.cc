// SPDX-License-Identifier: Apache-2.0
// gpu_bench [--smoke] [--device N] [--memory-budget BYTES] [--cache-dir DIR] [--out
// DIR] make|PART...: the GPU suite (bench/gpu_suite.h) without what `loralei bench`
// needs installed. `make` writes the model and adapters into --cache-dir (about 14 GB);
// each PART prints its table and writes DIR/PART.md and DIR/PART.json. --memory-budget:
// the host's, where the machine shows less free memory than it will give. --smoke: tiny
// sizes, to see it run. Ends with 1 when something could not be measured; a missed target
// is a line, not a failure.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/units.h"
#include "bench/gpu_suite.h"
#include "engine/cuda/cuda_backend.h"
#include "sys/cpu.h"

namespace loralei {
namespace {

constexpr double kMemoryUtilization = 0.93;  // 80 GB hold 2,000 adapters beside the model, and the probe beside both

class LinesLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view message) override {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
  }
};

struct Flags {
  bool smoke = false;
  int device = 0;
  int64_t memory_budget_bytes = 0;  // 0: what is free
  std::string cache_dir = "gpu-bench-files", out = ".";
  std::vector<std::string> parts;
};

Result<Flags> parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool takes_value =
        flag == "--device" || flag == "--memory-budget" || flag == "--cache-dir" || flag == "--out";
    if (takes_value && i + 1 == argc) return invalid_argument(flag + " needs a value.");
    if (flag == "--smoke") {
      flags.smoke = true;
    } else if (flag == "--device") {
      const std::string value = argv[++i];
      const char* const end = value.data() + value.size();
      const auto [at, error] = std::from_chars(value.data(), end, flags.device);
      if (error != std::errc() || at != end || flags.device < 0)
        return invalid_argument("--device is a number from 0.");
    } else if (flag == "--memory-budget") {
      TRY_ASSIGN(flags.memory_budget_bytes, parse_bytes(argv[++i]));
    } else if (takes_value) {
      (flag == "--out" ? flags.out : flags.cache_dir) = argv[++i];
    } else if (flag.rfind("--", 0) == 0) {
      return invalid_argument("There is no flag " + flag + ".");
    } else {
      flags.parts.push_back(flag);
    }
  }
  if (flags.parts.empty()) return invalid_argument("Name parts: make, or of the suite (bench/gpu_suite.h).");
  return flags;
}

GpuSuiteOptions suite_of(const Flags& flags) {
  GpuSuiteOptions suite;
  cuda::CudaProbeSizes probe;
  if (flags.smoke) {
    suite.shape = "llama-nano";
    suite.batches = {1, 2};
    suite.context = 32;
    suite.new_tokens = 4;
    suite.prompt = 32;
    suite.adapters = 2;
    suite.few = 2;
    suite.many = 4;
    suite.resident = 3;
    suite.rounds = suite.pairs = 1;
    suite.threads = 1;
    probe = {.read_bytes = 1 << 16, .product = 32, .upload_bytes = 1 << 16, .calls = 1, .rounds = 1};
  }
  suite.cache_dir = flags.cache_dir;
  suite.memory_budget_bytes = flags.memory_budget_bytes;
  suite.device = [ordinal = flags.device, probe](bool batch_invariant) {
    return cuda_factory({.ordinal = ordinal,
                         .batch_invariant = batch_invariant,
                         .memory_utilization = kMemoryUtilization,
                         .probe = probe});
  };
  return suite;
}

Status run_part(const GpuSuiteOptions& suite, const Flags& flags, const std::string& part, LogSink& log) {
  if (part == "make") return make_gpu_files(suite, log);
  BenchReport report;
  report.scenario = part;
  report.version = "gpu_bench";
  report.time = report_time();
  report.machine = {{"cpu", cpu_model_name()}, {"cores", std::to_string(usable_cpus())}};
  TRY(run_gpu_part(suite, part, log, report));
  std::fputs(report_table(report).c_str(), stdout);
  std::fflush(stdout);
  TRY(write_text_file(flags.out + "/" + part + ".md", report_markdown(report)));
  return write_text_file(flags.out + "/" + part + ".json", report_json(report));
}

int bench(const Flags& flags) {
  LinesLog log;
  const GpuSuiteOptions suite = suite_of(flags);
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);  // what fails is told by what is written there
  int exit_code = 0;
  for (const std::string& part : flags.parts) {
    const Status status = run_part(suite, flags, part, log);
    if (status.ok()) continue;
    std::fprintf(stderr, "gpu_bench: %s: %s\n", part.c_str(), status.error().message.c_str());
    exit_code = 1;
  }
  return exit_code;
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) {
  const auto flags = loralei::parse(argc, argv);
  if (flags.ok()) return loralei::bench(*flags);
  std::fprintf(stderr,
               "gpu_bench: %s\nusage: gpu_bench [--smoke] [--device N] [--memory-budget BYTES] [--cache-dir DIR] "
               "[--out DIR] make|PART...\n",
               flags.error().message.c_str());
  return 2;
}
