// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include <gtest/gtest.h>

#include <fstream>

#include "sys/cpu.h"

namespace loralei {
namespace {

// The options as a command would fill them from these words; nullopt: the parser refused.
std::optional<EngineFlags> parse(std::vector<std::string> words) {
  CLI::App app;
  EngineFlags flags;
  add_engine_options(app, flags, ModelOption::kOptional);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app.parse(words);
  } catch (const CLI::ParseError&) {
    return std::nullopt;
  }
  return flags;
}

std::string refusal(std::vector<std::string> words) {
  const auto flags = parse(std::move(words));
  if (!flags) return "refused by the parser";
  const auto options = finish_engine_options(*flags);
  return options.ok() ? "" : options.error().message;
}

TEST(Options, DefaultsAndSizes) {
  const auto flags = parse({"model.gguf", "--memory-budget", "2GiB", "--kv-cache-memory", "512MiB"});
  ASSERT_TRUE(flags);
  const auto options = finish_engine_options(*flags);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->model_path, "model.gguf");
  EXPECT_EQ(options->engine.memory_budget_bytes, int64_t{2} << 30);
  EXPECT_EQ(options->engine.kv_cache_bytes, int64_t{512} << 20);
  EXPECT_EQ(options->activations, Activations::kAuto);
  EXPECT_TRUE(options->engine.prefix_cache);
  EXPECT_FALSE(options->quantise);
  EXPECT_EQ(options->engine.speculate, Speculation::kAuto);
}

TEST(Options, SpeculationIsChosenByName) {
  EXPECT_EQ(finish_engine_options(*parse({"--speculate", "off"}))->engine.speculate, Speculation::kOff);
  EXPECT_EQ(finish_engine_options(*parse({"--speculate", "lookup"}))->engine.speculate, Speculation::kLookup);
  EXPECT_EQ(finish_engine_options(*parse({"--speculate", "auto"}))->engine.speculate, Speculation::kAuto);
  EXPECT_EQ(refusal({"--speculate", "wildly"}), "refused by the parser");
}

TEST(Options, WhatComesToMemoryAheadIsChosenByName) {
  const auto keeping = [](std::vector<std::string> words) {
    return finish_engine_options(*parse(std::move(words)))->engine.adapter_keeping;
  };
  EXPECT_EQ(keeping({}).prefetch, AdapterPrefetch::kQueue);
  EXPECT_EQ(keeping({}).policy, KeepPolicy::kDensity);
  EXPECT_EQ(keeping({"--adapter-cache", "lru"}).policy, KeepPolicy::kLru);
  EXPECT_EQ(keeping({"--adapter-prefetch", "histogram"}).prefetch, AdapterPrefetch::kHistogram);
  const AdapterKeeping both = keeping({"--adapter-prefetch", "histogram", "--adapter-cache", "density"});
  EXPECT_EQ(both.prefetch, AdapterPrefetch::kHistogram);
  EXPECT_EQ(both.policy, KeepPolicy::kDensity);
  EXPECT_EQ(refusal({"--adapter-prefetch", "crystal-ball"}), "refused by the parser");
}

TEST(Options, WhatColdRequestsDoIsChosenByName) {
  const auto engine = [](std::vector<std::string> words) {
    return finish_engine_options(*parse(std::move(words)))->engine;
  };
  EXPECT_EQ(engine({}).cold_start, ColdStart::kAuto);
  EXPECT_FALSE(engine({}).cold_start_stated) << "a GPU goes by that";
  EXPECT_TRUE(engine({"--cold-start", "auto"}).cold_start_stated);
  EXPECT_LT(engine({}).assist_helpers, 0);
  for (size_t way = 0; way < kColdStartNames.size(); ++way)
    EXPECT_EQ(engine({"--cold-start", kColdStartNames[way]}).cold_start, static_cast<ColdStart>(way));
  EXPECT_EQ(engine({"--assist-helpers", "3"}).assist_helpers, 3);
  EXPECT_EQ(refusal({"--cold-start", "warm"}), "refused by the parser");
  EXPECT_EQ(refusal({"--assist-helpers", "-2"}), "refused by the parser");
}

TEST(Options, AStatedBudgetIsSharedByWhatItIsWorthUnlessSaid) {
  const auto sharing = [](std::vector<std::string> words) {
    return finish_engine_options(*parse(std::move(words)))->engine.memory_sharing;
  };
  EXPECT_EQ(sharing({}), MemorySharing::kFixed);
  EXPECT_EQ(sharing({"--memory-budget", "2GiB"}), MemorySharing::kJoint);
  EXPECT_EQ(sharing({"--memory-budget", "2GiB", "--memory-sharing", "fixed"}), MemorySharing::kFixed);
  EXPECT_EQ(sharing({"--memory-sharing", "joint"}), MemorySharing::kJoint);
  EXPECT_EQ(refusal({"--memory-sharing", "halves"}), "refused by the parser");
}

TEST(Options, TheEdgeProfileSaysWhatWasLeftOpen) {
  const auto engine = [](std::vector<std::string> words) {
    return finish_engine_options(*parse(std::move(words)))->engine;
  };
  EXPECT_EQ(engine({}).kv_sharing, KvSharing::kExact);
  const EngineOptions edge = engine({"--profile", "edge"});
  EXPECT_EQ(edge.kv_sharing, KvSharing::kBounded);
  EXPECT_EQ(edge.memory_budget_bytes, total_memory_bytes() / 4);
  EXPECT_EQ(edge.memory_sharing, MemorySharing::kJoint);
  const EngineOptions stated = engine({"--profile", "edge", "--memory-budget", "2GiB", "--kv-sharing", "lossless"});
  EXPECT_EQ(stated.kv_sharing, KvSharing::kLossless);
  EXPECT_EQ(stated.memory_budget_bytes, int64_t{2} << 30);
  EXPECT_EQ(refusal({"--profile", "cloud"}), "refused by the parser");
}

TEST(Options, DifferencesAreWithinStepsUnlessThePapersAreAskedFor) {
  const auto delta = [](std::vector<std::string> words) {
    return finish_engine_options(*parse(std::move(words)))->engine.kv_delta;
  };
  EXPECT_EQ(delta({}), KvDelta::kSteps);
  EXPECT_EQ(delta({"--kv-sharing", "bounded", "--kv-delta", "paper"}), KvDelta::kPaper);
  EXPECT_EQ(delta({"--kv-delta", "steps"}), KvDelta::kSteps);
  EXPECT_EQ(refusal({"--kv-delta", "lossless"}), "refused by the parser");
}

TEST(Options, APrefixLeavesByWhatItSavesUnlessSaid) {
  EXPECT_EQ(finish_engine_options(*parse({}))->engine.kv_eviction, KvEviction::kDensity);
  EXPECT_EQ(finish_engine_options(*parse({"--kv-eviction", "lru"}))->engine.kv_eviction, KvEviction::kLru);
  const auto useful = finish_engine_options(*parse({"--kv-eviction", "utility", "--kv-eviction-weights", "1,2,0.5"}));
  EXPECT_EQ(useful->engine.kv_eviction, KvEviction::kUtility);
  EXPECT_EQ(useful->engine.kv_utility.state, 1);
  EXPECT_EQ(useful->engine.kv_utility.recency, 2);
  EXPECT_EQ(useful->engine.kv_utility.length, 0.5);
  EXPECT_EQ(refusal({"--kv-eviction", "youngest"}), "refused by the parser");
  EXPECT_EQ(refusal({"--kv-eviction-weights", "1,2"}), "refused by the parser");
}

TEST(Options, LimitsThatNobodyStatesAreNoLengthsForQueues) {
  EXPECT_EQ(finish_engine_options(*parse({"--schedule-policy", "wrs", "--predict-length", "max-tokens"}))->notes.size(),
            1u);
  EXPECT_TRUE(finish_engine_options(*parse({"--schedule-policy", "wrs"}))->notes.empty());
  EXPECT_TRUE(finish_engine_options(*parse({"--predict-length", "max-tokens"}))->notes.empty());
}

TEST(Options, ShrinkingIsDecidedByTheMachineUnlessSaid) {
  EXPECT_EQ(finish_engine_options(*parse({}))->stream_shrink, StreamShrink::kAuto);
  EXPECT_EQ(finish_engine_options(*parse({"--stream-shrink", "on"}))->stream_shrink, StreamShrink::kOn);
  EXPECT_EQ(finish_engine_options(*parse({"--stream-shrink", "off"}))->stream_shrink, StreamShrink::kOff);
}

TEST(Options, FormatsAreChosenByName) {
  const auto flags = parse({"--quant", "q4_0", "--kv-cache-dtype", "bfloat16", "--activations", "f32"});
  ASSERT_TRUE(flags);
  const auto options = finish_engine_options(*flags);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->quantise, DType::kQ4_0);
  EXPECT_EQ(options->engine.kv_dtype, DType::kBF16);
  EXPECT_EQ(options->activations, Activations::kF32);
}

TEST(Options, Fp8HasTwoNames) {
  for (const char* name : {"fp8", "fp8_e4m3"}) {
    const auto options = finish_engine_options(*parse({"--kv-cache-dtype", name}));
    ASSERT_TRUE(options.ok()) << options.error().message;
    EXPECT_EQ(options->engine.kv_dtype, DType::kF8);
  }
  EXPECT_NE(refusal({"--kv-cache-dtype", "fp8_e5m2"}).find("fp8"), std::string::npos);
}

TEST(Options, GraphsAreUsedUnlessRefused) {
  EXPECT_FALSE(parse({})->gpu.enforce_eager);
  EXPECT_TRUE(parse({"--device", "cpu", "--enforce-eager"})->gpu.enforce_eager);
  EXPECT_EQ(refusal({"--enforce-eager"}), "");
  EXPECT_EQ(finish_engine_options(*parse({"--enforce-eager"}))->notes.size(), 1u);
}

TEST(Options, AShareOfAGpuIsCheckedAndNotSilentWithoutOne) {
  EXPECT_TRUE(finish_engine_options(*parse({}))->notes.empty());
  const auto options = finish_engine_options(*parse({"--gpu-memory-utilization", "0.5"}));
  ASSERT_TRUE(options.ok()) << options.error().message;
  ASSERT_EQ(options->notes.size(), 1u);
  EXPECT_NE(options->notes[0].find("--memory-budget"), std::string::npos) << options->notes[0];
  EXPECT_EQ(refusal({"--gpu-memory-utilization", "1"}), "");
  for (const char* share : {"0", "1.5", "-0.5", "nan", "90"})
    EXPECT_NE(refusal({"--gpu-memory-utilization", share}).find("--gpu-memory-utilization is a share"),
              std::string::npos)
        << share;
  EXPECT_EQ(refusal({"--gpu-memory-utilization", "much"}), "refused by the parser");
}

TEST(Options, HostMemoryOfAdaptersBelongsToAGpu) {
  const auto options = finish_engine_options(*parse({"--host-adapter-memory", "2GiB"}));
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->engine.host_adapter_bytes, int64_t{2} << 30);
  ASSERT_EQ(options->notes.size(), 1u);
  EXPECT_NE(options->notes[0].find("--adapter-memory"), std::string::npos) << options->notes[0];
  EXPECT_NE(refusal({"--host-adapter-memory", "much"}).find("--host-adapter-memory"), std::string::npos);
}

TEST(Options, AnEmulatedDeviceIsAsFarAwayAsOneSays) {
  for (const char* device :
       {"emulated:4", "emulated:0.001", "emulated:10000,0", "emulated:12.5,20", "emulated:4,0.5"}) {
    const auto options = finish_engine_options(*parse({"--device", device}));
    ASSERT_TRUE(options.ok()) << options.error().message;
    ASSERT_TRUE(options->device) << device;
    EXPECT_TRUE(options->notes.empty());
    EXPECT_EQ(options->device.budget()->device, device);
  }
  for (const char* device : {"emulated:", "emulated:0", "emulated:-1", "emulated:nan", "emulated:inf", "emulated:4x",
                             "emulated:4,", "emulated:4,-1", "emulated:4,2000000", "emulated:4,nan", "emulated:4,1,1"})
    EXPECT_NE(refusal({"--device", device}).find("--device emulated:GB_S[,US]"), std::string::npos) << device;
  EXPECT_NE(refusal({"--device", "emulated"}).find("emulated:GB_S[,US]"), std::string::npos);
}

// Its memory is a share of this machine's; nothing of it is recorded.
TEST(Options, WhatAGpuIsToldAnEmulatedDeviceTakesAsFits) {
  const auto bytes_of = [](std::vector<std::string> words) {
    words.insert(words.end(), {"--device", "emulated:4"});
    return finish_engine_options(*parse(std::move(words)))->device.budget()->bytes;
  };
  EXPECT_NEAR(static_cast<double>(bytes_of({"--gpu-memory-utilization", "0.1"})), static_cast<double>(bytes_of({})) / 5,
              static_cast<double>(available_memory_bytes()) / 20);
  EXPECT_NE(refusal({"--device", "emulated:4", "--gpu-memory-utilization", "1"}).find("leaves the host nothing"),
            std::string::npos);
  const auto eager = finish_engine_options(*parse({"--device", "emulated:4", "--enforce-eager"}));
  ASSERT_EQ(eager->notes.size(), 1u);
  EXPECT_NE(eager->notes[0].find("--enforce-eager says nothing here"), std::string::npos) << eager->notes[0];
  EXPECT_TRUE(
      finish_engine_options(*parse({"--device", "emulated:4", "--host-adapter-memory", "1GiB"}))->notes.empty());
}

// On the cores it is always so, and nothing is to be chosen.
TEST(Options, BatchInvarianceIsAskedFor) {
  EXPECT_FALSE(parse({})->gpu.batch_invariant);
  EXPECT_TRUE(parse({"--batch-invariant"})->gpu.batch_invariant);
  const auto on_cpu = finish_engine_options(*parse({"--device", "cpu", "--batch-invariant"}));
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.error().message;
  EXPECT_FALSE(on_cpu->device);
}

TEST(Options, RefusalsNameTheFlag) {
  EXPECT_NE(refusal({"--quant", "q5_k"}).find("--quant"), std::string::npos);
  EXPECT_NE(refusal({"--residency", "fastest"}).find("balanced"), std::string::npos);
  EXPECT_NE(refusal({"--prefetch-window", "much"}).find("--prefetch-window"), std::string::npos);
  EXPECT_NE(refusal({"--stream-shrink", "maybe"}).find("--stream-shrink"), std::string::npos);
  EXPECT_NE(refusal({"--kv-cache-dtype", "q4_0"}).find("--kv-cache-dtype"), std::string::npos);
  EXPECT_NE(refusal({"--memory-budget", "many"}).find("--memory-budget"), std::string::npos);
  for (const char* flag : {"--memory-budget", "--kv-cache-memory", "--adapter-memory", "--prefetch-window"}) {
    for (const char* size : {"0", "0.5", "0GiB"})
      EXPECT_NE(refusal({flag, size}).find(std::string(flag) + " " + size), std::string::npos) << flag << size;
  }
  EXPECT_EQ(refusal({"--activations", "int4"}), "refused by the parser");
  for (const char* device : {"gpu", "cuda:", "cuda:-1", "cuda:1x", "CPU", ""})
    EXPECT_NE(refusal({"--device", device}).find("--device is auto, cpu or cuda:N"), std::string::npos) << device;
  EXPECT_EQ(refusal({"--device", "cpu"}), "");
  EXPECT_EQ(refusal({"--threads", "-2"}), "refused by the parser");
  EXPECT_EQ(refusal({"--no-such-flag"}), "refused by the parser");
  EXPECT_EQ(refusal({"--quant", "q8_0"}), "");
  // No stated length is cut silently.
  EXPECT_EQ(refusal({"--max-model-len", std::to_string(kMaxModelLen)}), "");
  EXPECT_EQ(refusal({"--max-model-len", std::to_string(kMaxModelLen + 1)}), "refused by the parser");
  EXPECT_EQ(refusal({"--max-model-len", "99999999999999999999"}), "refused by the parser");
}

// "$KEY" of a variable that is not set would be a server open to everybody.
TEST(Options, AnEmptyKeyIsRefused) {
  const std::string path = testing::TempDir() + "/loralei-keys.toml";
  const auto told = [](std::vector<std::string> words) -> std::string {
    CLI::App app;
    int exit_code = 0;
    const std::vector<std::string> notes;
    add_serve_command(app, exit_code, notes);
    app.add_option("--never-given")->required();  // looked for last, so that nothing is served
    words.insert(words.begin(), {"serve", "/no/such/model"});
    std::reverse(words.begin(), words.end());
    try {
      app.parse(words);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "nothing";
  };
  for (const std::string flag : {"api-key", "admin-key"}) {
    for (const std::string key : {"", " "})
      EXPECT_NE(told({"--" + flag, key}).find("--" + flag + ": the key is empty"), std::string::npos) << flag << key;
    EXPECT_NE(told({"--" + flag + "="}).find("--" + flag), std::string::npos) << flag;
    EXPECT_EQ(told({"--" + flag, "k"}), "--never-given is required");
    std::ofstream(path) << flag << " = \"\"\n";
    EXPECT_NE(told({"--config", path}).find("--" + flag + ": the key is empty"), std::string::npos) << flag;
  }
  EXPECT_NE(told({"--api-key", "k", "--api-key", ""}).find("the key is empty"), std::string::npos);
  std::ofstream(path) << "api-key = [\"k\", \"\"]\n";
  EXPECT_NE(told({"--config", path}).find("the key is empty"), std::string::npos);

  EXPECT_NE(told({"--alias", ""}).find("the name is empty"), std::string::npos);
  EXPECT_NE(told({"--api-key-file", ""}).find("--api-key-file: the path is empty"), std::string::npos);
  EXPECT_EQ(told({"--api-key-file", path}), "--never-given is required");
  std::ofstream(path) << "api-key-file = \"\"\n";
  EXPECT_NE(told({"--config", path}).find("--api-key-file: the path is empty"), std::string::npos);
}

// Loading may take minutes; there is no model here, which would be told last.
TEST(Options, WhatIsWrongWithAServerIsToldBeforeItsModelIsLoaded) {
  const auto told = [](std::vector<std::string> words) {
    CLI::App app;
    int exit_code = 0;
    const std::vector<std::string> notes;
    add_serve_command(app, exit_code, notes);
    words.insert(words.begin(), {"serve", "/no/such/model", "--port", "0"});
    std::reverse(words.begin(), words.end());
    testing::internal::CaptureStderr();
    app.parse(words);
    EXPECT_NE(exit_code, 0);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(told({}).find("/no/such/model"), std::string::npos);
  EXPECT_NE(told({"--adapter", "a=/no/such/adapter"}).find("--adapter a=/no/such/adapter: "), std::string::npos);
  EXPECT_NE(told({"--adapter-dir", "/no/such/folder"}).find("--adapter-dir /no/such/folder: "), std::string::npos);
  EXPECT_NE(told({"--chat-template", "nope"}).find("--chat-template takes"), std::string::npos);
  EXPECT_NE(told({"--api-key-file", "/no/such/file"}).find("--api-key-file: "), std::string::npos);
  EXPECT_NE(told({"--max-body", "much"}).find("--max-body: "), std::string::npos);
  EXPECT_NE(told({"--host", "not a host"}).find("cannot listen on not a host"), std::string::npos);
}

TEST(Options, TheFormatOfTheFileMayBeAskedFor) {
  EngineFlags flags;
  flags.host.model_path = std::string(LORALEI_SOURCE_DIR) + "/demo/model";
  const auto refusal = [&](const std::string& dtype) {
    flags.dtype = dtype;
    const auto options = finish_engine_options(flags);
    return options.ok() ? "" : options.error().message;
  };
  std::vector<std::string> had;
  for (const char* name : {"float32", "float16", "bfloat16"}) {
    if (refusal(name).empty()) had.emplace_back(name);
  }
  ASSERT_EQ(had.size(), 1u) << "one of them is in the file";
  flags.dtype = had[0];
  const auto options = finish_engine_options(flags);
  ASSERT_EQ(options->notes.size(), 1u);
  EXPECT_NE(options->notes[0].find("changes nothing here"), std::string::npos);
  EXPECT_EQ(refusal("auto"), "");
  EXPECT_NE(refusal("int4").find("--dtype is auto"), std::string::npos);
  flags.kv_dtype = "auto";
  EXPECT_EQ(refusal("auto"), "");
}

// The command line, then the environment, then the file.
TEST(Options, TheEnvironmentStandsForOptions) {
  const std::string path = testing::TempDir() + "/loralei-environment.toml";
  std::ofstream(path) << "max-num-seqs = 3\nmax-queued = 4\nmax-num-batched-tokens = 5\n";
  ::setenv("LORALEI_MAX_NUM_SEQS", "7", 1);
  ::setenv("LORALEI_MAX_QUEUED", "8", 1);
  ::setenv("LORALEI_NO_PREFIX_CACHE", "true", 1);
  ::setenv("LORALEI_MAX_QEUED", "8", 1);
  ::setenv("LORALEI_ANSWER_TOKENS", "8", 1);
  EngineFlags flags;
  CLI::App app;
  CLI::App* const command = app.add_subcommand("serve");
  add_engine_options(*command, flags);
  add_config_option(*command);
  int other = 0, below = 0;
  CLI::App* const others = app.add_subcommand("other");
  others->add_option("--answer-tokens", other);
  others->add_subcommand("below")->add_option("--deep", below);
  add_environment(app);
  EXPECT_EQ(others->get_subcommand("below")->get_option("--deep")->get_envname(), "LORALEI_DEEP");
  std::vector<std::string> words{"serve", "model", "--max-num-seqs", "6", "--config", path}, notes;
  std::reverse(words.begin(), words.end());
  app.parse(words);
  note_unknown_variables(*command, notes);
  for (const char* name : {"LORALEI_MAX_NUM_SEQS", "LORALEI_MAX_QUEUED", "LORALEI_NO_PREFIX_CACHE", "LORALEI_MAX_QEUED",
                           "LORALEI_ANSWER_TOKENS"})
    ::unsetenv(name);
  EXPECT_EQ(flags.host.engine.max_sequences, 6);
  EXPECT_EQ(flags.host.engine.max_queued, 8);
  EXPECT_EQ(flags.host.engine.step_tokens, 5);
  EXPECT_TRUE(flags.no_prefix_cache);
  EXPECT_EQ(std::count(notes.begin(), notes.end(),
                       "The variable LORALEI_MAX_QEUED is no option of serve and changes nothing."),
            1);
  EXPECT_EQ(std::count_if(notes.begin(), notes.end(),
                          [](auto& note) { return note.find("MAX_NUM_SEQS") != std::string::npos; }),
            0);
  EXPECT_EQ(std::count_if(notes.begin(), notes.end(),
                          [](auto& note) { return note.find("ANSWER_TOKENS") != std::string::npos; }),
            0)
      << "of another command";
}

TEST(Options, HelpFitsAScreen) {
  CLI::App app;
  int exit_code = 0;
  const std::vector<std::string> none;
  add_serve_command(app, exit_code, none);
  CLI::App* const command = app.get_subcommand("serve");
  const std::string text = command->help();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 50);
  EXPECT_NE(text.find("--memory-budget"), std::string::npos);
  EXPECT_EQ(text.find("--residency"), std::string::npos);
  size_t width = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    width = std::max(width, end - at);
    at = end + 1;
  }
  EXPECT_LE(width, 130u);
}

class ConfigFile : public testing::Test {
 protected:
  // What `words` and a file with `text` say together; "" or why they were refused.
  std::string read(const std::string& text, std::vector<std::string> words) {
    std::ofstream(path_) << text;
    CLI::App app;  // as in the program, of which this is a command
    CLI::App* const command = app.add_subcommand("serve");
    flags_ = {};
    adapters_.clear();
    add_engine_options(*command, flags_);
    command->add_option("--adapter", adapters_)->allow_extra_args(false);
    add_config_option(*command);
    words.insert(words.begin(), {"serve", "--config", path_});
    std::reverse(words.begin(), words.end());
    try {
      app.parse(words);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }
  std::string path_ = testing::TempDir() + "/loralei-options.toml";
  EngineFlags flags_;
  std::vector<std::string> adapters_;
};

TEST_F(ConfigFile, GivesWhatTheCommandLineDoesNot) {
  ASSERT_EQ(read("model = \"m.gguf\"\nmax-num-seqs = 7\nthreads = 3\nno-prefix-cache = true\nenforce-eager = false\n"
                 "adapter-strict = false\nadapter = [\"a=/a\", \"b=/b\"]\n",
                 {"--threads", "5"}),
            "");
  EXPECT_EQ(flags_.host.model_path, "m.gguf");
  EXPECT_EQ(flags_.host.engine.max_sequences, 7);
  EXPECT_EQ(flags_.host.threads, 5);
  EXPECT_TRUE(flags_.no_prefix_cache);
  EXPECT_FALSE(flags_.gpu.enforce_eager);
  EXPECT_FALSE(flags_.host.engine.adapter_strict);
  EXPECT_EQ(adapters_, (std::vector<std::string>{"a=/a", "b=/b"}));
}

TEST_F(ConfigFile, IsRefusedWhereItSaysWhatIsNotKnown) {
  EXPECT_NE(read("no-such = 1\n", {"m"}).find("'no-such' is no option of serve"), std::string::npos);
  EXPECT_NE(read("[run]\nthreads = 1\n", {"m"}).find("'[run]' is no option of serve"), std::string::npos);
  EXPECT_NE(read("threads = -2\n", {"m"}), "");
  EXPECT_NE(read("threads = 1\n", {}).find("model"), std::string::npos);
  path_ = "/no/such/folder/file.toml";
  EXPECT_NE(read("", {"m"}).find(path_), std::string::npos);
}

TEST(Options, ThereAreConnectionsForMoreThanMayRunAndWait) {
  EngineOptions engine;
  engine.max_sequences = 256;
  engine.max_queued = 1024;
  EXPECT_GT(connections_wanted(0, engine), 256 + 1024);
  EXPECT_EQ(connections_wanted(7, engine), 7);
  EXPECT_EQ(connections_possible(1536, 1 << 20).count, 1536);
  EXPECT_EQ(connections_possible(1536, 1 << 20).note, "");
  const Connections few = connections_possible(1536, 1024);
  EXPECT_EQ(few.count, 1024 - kOtherDescriptors);
  EXPECT_NE(few.note.find("--max-connections"), std::string::npos) << few.note;
  for (const int64_t descriptors : {1, 20, 64, 128, 192, 193, 256, 512, 1024}) {
    const Connections some = connections_possible(1536, descriptors);
    EXPECT_GE(some.count, 1);
    EXPECT_GE(some.refusals, 1);
    if (descriptors < 20) continue;
    const int64_t files = descriptors - some.count - some.refusals;
    EXPECT_GE(files, std::min<int64_t>(kFileDescriptors, descriptors / 2)) << descriptors;
    EXPECT_GE(some.count, descriptors / 4) << "of " << descriptors;
  }
}

}  // namespace
}  // namespace loralei
