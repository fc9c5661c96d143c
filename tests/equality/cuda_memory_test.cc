// SPDX-License-Identifier: Apache-2.0
// Two memories, two budgets: with a device its bytes never pass the share of
// the card that was given, what it needs is counted before a byte is uploaded,
// and the host keeps nothing that only the device reads. On the emulated GPU alone
// (cuda_memory_emulated_test), which counts what is allocated and can be told what
// other programs hold.
#include <gtest/gtest.h>

#include <algorithm>

#include <filesystem>

#include "base/log_test_util.h"
#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/emulated/device_memory.h"
#include "device/cuda/emulated/emulator.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/start.h"
#include "engine/step_outputs.h"
#include "model/cuda/cuda_model.h"
#include "support/engine_driver.h"
#include "support/made_files.h"
#include "sys/file.h"
#include "sys/process.h"
#include "weights/weight_store.h"

namespace loralei::test {
namespace {

namespace fs = std::filesystem;
using cuda_emulated::allocated_bytes;
using cuda_emulated::peak_allocated_bytes;
using cuda_emulated::set_memory;

const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

class CudaMemory : public testing::Test {
 protected:
  void SetUp() override {
    set_memory(512 * kMiB, 0);
    options_.model_path = kGolden + "models/llama-gqa";
    options_.threads = 1;
    options_.engine.max_model_len = 96;
    options_.engine.max_sequences = 3;
    options_.engine.step_tokens = 16;
    options_.engine.kv_dtype = DType::kF32;
    options_.engine.adapter_rank_max = 16;
    options_.engine.memory_budget_bytes = kGiB;
    options_.engine.adapter_bytes = 200'000;
    options_.device = cuda_factory({.activation = DType::kF32});
  }
  void TearDown() override {
    EXPECT_EQ(allocated_bytes(), 0);
    set_memory(cuda_emulated::kDefaultMemoryBytes, 0);
  }

  // Why the host does not start.
  std::string refusal() {
    NullLogSink log;
    const auto host = EngineHost::start(options_, log, {});
    EXPECT_FALSE(host.ok());
    return host.ok() ? "" : host.error().message;
  }
  void expect_refused(const std::vector<std::string>& words) {
    const std::string sentence = refusal();
    for (const std::string& word : words) EXPECT_NE(sentence.find(word), std::string::npos) << word << ": " << sentence;
    EXPECT_EQ(peak_allocated_bytes(), 0) << "refused after something was uploaded";
  }

  EngineHostOptions options_;
};

Submit request_of(int prompt, int salt, std::vector<AdapterUse> adapters) {
  Submit request;
  for (int i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<TokenId>((i * 7 + salt * 31 + i / 5) % 90));
  request.adapters = std::move(adapters);
  request.max_tokens = 8;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  return request;
}

// A model of two layers whose embedding has `vocab` rows of 32 numbers.
std::string write_model(const std::string& path, int64_t vocab) {
  const auto filled = [](std::string name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i % 13) - 6) * 0.01f;
    return MadeTensor{std::move(name), std::move(shape), std::move(values)};
  };
  std::vector<MadeTensor> tensors = {filled("model.embed_tokens.weight", {vocab, 32}),
                                     filled("model.norm.weight", {32})};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      tensors.push_back(filled(layer + name + ".weight", {32, 32}));
    for (const char* name : {"input_layernorm", "post_attention_layernorm"})
      tensors.push_back(filled(layer + name + ".weight", {32}));
  }
  fs::create_directories(path);
  write_safetensors(path + "/model.safetensors", tensors);
  write_file(path + "/config.json",
             R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2,
"max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true,
"torch_dtype": "float32", "eos_token_id": 2, "vocab_size": )" +
                 std::to_string(vocab) + "}");
  return path;
}

class CudaMemoryOf : public CudaMemory, public testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(Activations, CudaMemoryOf, testing::Values(DType::kF32, DType::kBF16));

TEST_P(CudaMemoryOf, EveryByteOnTheDeviceLiesUnderItsLedger) {
  options_.device = cuda_factory({.activation = GetParam()});
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  const Ledger& ledger = *driver.host().device_ledger();
  EXPECT_EQ(ledger.budget_bytes(), static_cast<int64_t>(0.9 * static_cast<double>(512 * kMiB)));
  // What the driver takes is an allowance, and what adapters do not use yet is theirs.
  const int64_t allowance = ledger.used_bytes(MemoryUse::kOther), adapters = ledger.used_bytes(MemoryUse::kAdapters);
  EXPECT_GT(allowance, 0);
  EXPECT_EQ(adapters, 200'000);
  EXPECT_LE(allocated_bytes(), ledger.used_bytes() - allowance);
  EXPECT_GE(allocated_bytes(), ledger.used_bytes() - allowance - adapters);

  const EngineStats stats = driver.stats();
  EXPECT_EQ(stats.device, "cuda:0");
  EXPECT_EQ(stats.device_memory.memory_budget_bytes, ledger.budget_bytes());
  EXPECT_EQ(stats.device_memory.weights_bytes, ledger.used_bytes(MemoryUse::kWeights));
  EXPECT_EQ(stats.device_memory.kv_bytes, ledger.used_bytes(MemoryUse::kKv));
  EXPECT_EQ(stats.device_memory.scratch_bytes, ledger.used_bytes(MemoryUse::kScratch));
  EXPECT_EQ(stats.device_memory.adapter_bytes, 0);
  EXPECT_EQ(stats.device_memory.adapter_bytes_max, ledger.used_bytes(MemoryUse::kAdapters));
  const std::string banner = driver.host().banner();
  EXPECT_NE(banner.find("memory of cuda:0, of " + format_bytes(ledger.budget_bytes()) + ":\n" + ledger.describe()),
            std::string::npos)
      << banner;
}

TEST_F(CudaMemory, KvBlocksAreTheDevicesAndTheHostHasNone) {
  options_.engine.kv_cache_bytes = 13 * 8192 + 100;  // thirteen blocks and a bit
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  const EngineStats stats = driver.stats();
  EXPECT_EQ(stats.kv_blocks_total, 13);
  EXPECT_EQ(stats.device_memory.kv_bytes, 13 * 8192);
  EXPECT_EQ(stats.kv_bytes, 0);
}

TEST_F(CudaMemory, TheHostKeepsNothingThatOnlyTheDeviceReads) {
  EngineDriver on_cores([&] {
    EngineHostOptions cores = options_;
    cores.device = {};
    return cores;
  }());
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running() && on_cores.running());
  const WeightStore& weights = driver.host().weights();
  EXPECT_TRUE(weights.view(weights.find("model.embed_tokens.weight")).panels.empty());
  const EngineStats stats = driver.stats(), cores = on_cores.stats();
  EXPECT_GT(stats.device_memory.weights_bytes, cores.weights_bytes);
  EXPECT_LT(stats.weights_bytes, cores.weights_bytes / 10);  // norms
  EXPECT_EQ(stats.kv_bytes, 0);
  EXPECT_GT(cores.kv_bytes, 0);
  EXPECT_TRUE(cores.device.empty());
  // Of activations only what the engine samples from, and what the driver
  // copies from and to.
  const ModelConfig& config = driver.host().file().config;
  CudaModelOptions model;
  model.limits = step_limits(options_.engine, config);
  model.activation = DType::kF32;
  EXPECT_EQ(stats.scratch_bytes,
            StepOutputs::bytes(model.limits, config.hidden, config.vocab) + CudaModel::pinned_bytes(config, model));
}

// More adapters (of 60 KB) than the device holds at a time, in steps with several of
// them; and the cores' texts.
TEST_F(CudaMemory, UnderLoadTheBudgetIsKept) {
  const TempFolder folder;
  auto file = open_base_model(options_.model_path);
  ASSERT_TRUE(file.ok());
  std::vector<std::string> paths;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    paths.push_back(write_adapter(folder.path() + "/" + std::to_string(seed), file->config,
                                  {.rank = 8, .deviation = 0.3f, .seed = seed}));
  }
  const auto texts = [&](EngineDriver& driver) {
    for (size_t i = 0; i < paths.size(); ++i) driver.command(AdapterAction::kLoad, "a" + std::to_string(i), paths[i]);
    driver.collect();
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 6; ++i) driver.submit(request_of(20 + i, i, {{source_of("a" + std::to_string(i)), 1.0f}}));
      driver.collect();
    }
    std::vector<std::vector<TokenId>> all;
    for (const auto& [key, answer] : driver.answers) {
      EXPECT_EQ(answer.end, EndReason::kLength) << answer.error.message;
      all.push_back(answer.tokens);
    }
    return all;
  };
  EngineHostOptions cores = options_;
  cores.device = {};
  cores.activations = Activations::kInt8;  // this device keeps inputs as they are
  cores.engine.adapter_bytes = 0;
  EngineDriver on_cores(cores);
  int64_t most = 0;
  {
    EngineDriver driver(options_);
    ASSERT_TRUE(driver.running() && on_cores.running());
    EXPECT_EQ(texts(driver), texts(on_cores));
    const EngineStats stats = driver.stats();
    EXPECT_GT(stats.device_memory.adapter_bytes, 100'000);
    EXPECT_LE(stats.device_memory.adapter_bytes, stats.device_memory.adapter_bytes_max);
    EXPECT_EQ(stats.device_memory.adapter_bytes_max, 200'000);
    EXPECT_EQ(stats.adapter_evictions, 0u) << "the host keeps what the device has no room for";
    EXPECT_GT(stats.adapter_bytes, 200'000);
    const Ledger& ledger = *driver.host().device_ledger();
    most = ledger.used_bytes() - ledger.used_bytes(MemoryUse::kOther);
    EXPECT_LE(ledger.used_bytes(), ledger.budget_bytes());
  }
  EXPECT_LE(peak_allocated_bytes(), most);
  EXPECT_GT(peak_allocated_bytes(), most - 100'000) << "adapters were never near their bound";
}

// An adapter that changes biases is loaded against the base's, after the weights
// have left the host.
TEST_F(CudaMemory, BiasesAreStillThereForAdapters) {
  options_.model_path = kGolden + "models/qwen2";
  EngineHostOptions cores = options_;
  cores.device = {};
  cores.activations = Activations::kInt8;  // this device keeps inputs as they are
  EngineDriver on_cores(cores), on_device(options_);
  ASSERT_TRUE(on_cores.running() && on_device.running());
  const auto text = [&](EngineDriver& driver) {
    driver.command(AdapterAction::kLoad, "a", kGolden + "adapters/qwen2-bias-all");
    driver.collect();
    for (const auto& [ticket, reply] : driver.replies) EXPECT_TRUE(reply.status.ok()) << reply.status.error().message;
    const Answer answer = driver.ask(request_of(20, 1, {{source_of("a"), 1.0f}}));
    EXPECT_EQ(answer.end, EndReason::kLength) << answer.error.message;
    return answer.tokens;
  };
  EXPECT_EQ(text(on_device), text(on_cores));
}

// Requests end with the sentence, later ones are refused with it, and nothing
// waits for ever.
TEST_F(CudaMemory, ALostDeviceIsTold) {
  {
    EngineDriver driver(options_);
    ASSERT_TRUE(driver.running());
    EXPECT_EQ(driver.ask(request_of(20, 1, {})).end, EndReason::kLength);
    EXPECT_TRUE(driver.engine().health().ok());
    driver.command(AdapterAction::kLoad, "a", kGolden + "adapters/gqa-all-r16");
    driver.collect();
    cuda_emulated::fail("an address that is none");
    std::vector<uint64_t> ids;
    for (int i = 0; i < 6; ++i) {
      Submit submit = request_of(20, i, {});
      if (i % 2 == 1) submit.adapters = {{source_of("a"), 1.0f}};
      if (const uint64_t id = driver.submit(submit)) ids.push_back(id);  // refused, once it is noticed
    }
    ASSERT_FALSE(ids.empty());
    driver.collect();
    for (const uint64_t id : ids) {
      const Answer& answer = driver.answers[{id, 0}];
      EXPECT_EQ(answer.end, EndReason::kError);
      EXPECT_EQ(answer.error.code, ErrorCode::kUnavailable) << answer.error.message;
    }
    const Status health = driver.engine().health();
    ASSERT_FALSE(health.ok());
    EXPECT_NE(health.error().message.find("an address that is none"), std::string::npos) << health.error().message;
    EXPECT_EQ(driver.submit(request_of(20, 9, {})), 0u);
    EXPECT_EQ(driver.refusals.back().code, ErrorCode::kUnavailable);
  }
  cuda_emulated::take_failure();
}

// Nothing of the first is opened: a context there would take some hundred megabytes.
TEST_F(CudaMemory, AGpuBeyondTheFirstIsTheOnlyOneOpened) {
  const auto text = [&](int ordinal) {
    cuda_emulated::set_device_count(2);
    options_.device = cuda_factory({.ordinal = ordinal, .activation = DType::kF32});
    EngineDriver driver(options_);
    EXPECT_TRUE(driver.running());
    EXPECT_EQ(driver.stats().device, "cuda:" + std::to_string(ordinal));
    driver.command(AdapterAction::kLoad, "a", kGolden + "adapters/gqa-all-r16");
    driver.collect();
    for (int i = 0; i < 3; ++i) driver.submit(request_of(20, i, {}));  // recorded steps among them
    driver.submit(request_of(20, 4, {{source_of("a"), 1.0f}}));
    driver.collect();
    EXPECT_TRUE(options_.device.taken_bytes().ok());
    std::vector<std::vector<TokenId>> all;
    for (const auto& [key, answer] : driver.answers) {
      EXPECT_EQ(answer.end, EndReason::kLength) << answer.error.message;
      all.push_back(answer.tokens);
    }
    return all;
  };
  const auto first = text(0);
  EXPECT_TRUE(cuda_emulated::is_opened(0));
  EXPECT_FALSE(cuda_emulated::is_opened(1));
  EXPECT_EQ(text(1), first);
  EXPECT_FALSE(cuda_emulated::is_opened(0));
  EXPECT_TRUE(cuda_emulated::is_opened(1));
  ASSERT_TRUE(set_cuda_device(0).ok());
  cuda_emulated::set_device_count(1);
}

// Other programs hold 30 MiB when the server starts; while it runs the driver
// takes 7 more.
TEST_F(CudaMemory, WhatTheDriverTakesIsTold) {
  set_memory(512 * kMiB, 30 * kMiB);
  CollectingLog log;
  EngineDriver driver(options_, &log);
  ASSERT_TRUE(driver.running());
  EXPECT_EQ(driver.stats().device_before_bytes, 30 * kMiB);
  EXPECT_EQ(driver.stats().device_driver_bytes, 0);
  EXPECT_NE(driver.host().banner().find("30.0 MiB were taken by this program's context and others, 0 B by the driver"),
            std::string::npos)
      << driver.host().banner();
  set_memory(512 * kMiB, 37 * kMiB);
  // Looked at between steps, about once a second.
  for (int i = 0; i < 10'000 && driver.stats().device_driver_bytes == 0; ++i) driver.ask(request_of(20, 1, {}));
  const int64_t slack = driver.host().device_ledger()->used_bytes() -
                        driver.host().device_ledger()->used_bytes(MemoryUse::kOther) - allocated_bytes();
  EXPECT_EQ(driver.stats().device_driver_bytes, 7 * kMiB - slack);  // of shares not allocated
  EXPECT_LT(slack, 4096);
  EXPECT_EQ(log.text().find("were set aside"), std::string::npos);
}

TEST_F(CudaMemory, OtherProgramsMemoryIsNotTouched) {
  set_memory(512 * kMiB, 200 * kMiB);
  CollectingLog log;
  const auto host = EngineHost::start(options_, log, {});
  ASSERT_TRUE(host.ok()) << host.error().message;
  EXPECT_EQ((*host)->device_ledger()->budget_bytes(), 312 * kMiB);
  EXPECT_LE((*host)->device_ledger()->used_bytes(), 312 * kMiB);
  EXPECT_NE(log.text().find("Of the 512.0 MiB of cuda:0 312.0 MiB were free at start"), std::string::npos)
      << log.text();
}

TEST_F(CudaMemory, TheHostHasRoomForTheAdaptersOfTheDevice) {
  set_memory(kGiB, 0);
  const auto room = [&](int64_t adapter_bytes) {
    options_.engine.adapter_bytes = adapter_bytes;
    EngineDriver driver(options_);
    EXPECT_EQ(driver.stats().device_memory.adapter_bytes_max, adapter_bytes);
    return driver.stats().adapter_bytes_max;
  };
  EXPECT_EQ(room(400 * kMiB), 400 * kMiB);
  const int64_t quarter = room(kMiB);
  EXPECT_GT(quarter, 200 * kMiB);
  EXPECT_LT(quarter, 256 * kMiB);
  options_.engine.host_adapter_bytes = 300 * kMiB;
  EXPECT_EQ(room(kMiB), 300 * kMiB);
}

TEST_F(CudaMemory, AShareOfTheCardIsTheBudget) {
  options_.device = cuda_factory({.activation = DType::kF32, .memory_utilization = 0.75});
  options_.engine.max_model_len = 0;
  options_.engine.kv_cache_bytes = 4 * 8192;
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  EXPECT_EQ(driver.host().device_ledger()->budget_bytes(), 384 * kMiB);
  EXPECT_EQ(driver.engine().max_model_len(), 64) << "the device's KV cache limits what was not stated";
  const std::vector<std::string> notes = driver.host().notes();
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find("The KV cache holds 64 tokens") != std::string::npos;
  }));
}

TEST_F(CudaMemory, TooLittleIsRefusedBeforeAnythingIsUploaded) {
  set_memory(kMiB / 10, 0);
  expect_refused({"weights need", "GPU memory", "cuda:0 is 92.2 KiB", "--gpu-memory-utilization", "--device cpu"});
  set_memory(100 * kMiB, 0);
  expect_refused({"for weights", "for activations", "the budget is 90.0 MiB", "--gpu-memory-utilization",
                  "--max-num-batched-tokens"});
  set_memory(512 * kMiB, 0);
  options_.engine.kv_cache_bytes = 600 * kMiB;
  options_.engine.max_model_len = 128;
  options_.engine.max_sequences = 4096;
  expect_refused({"KV cache would need", "raise --gpu-memory-utilization or lower --kv-cache-memory"});
  options_.engine.kv_cache_bytes = 0;
  options_.engine.max_sequences = 3;
  options_.engine.adapter_bytes = kGiB;
  expect_refused({"--adapter-memory 1.00 GiB is more than", "raise --gpu-memory-utilization"});
  options_.engine.adapter_bytes = kMiB;
  options_.engine.host_adapter_bytes = 2 * kGiB;
  expect_refused({"--host-adapter-memory 2.00 GiB is more than", "raise --memory-budget"});
  options_.engine.host_adapter_bytes = 0;
  options_.device = cuda_factory({.ordinal = 3});
  expect_refused({"There is no GPU 3"});
}

// On the cores these options stream, so a packed file would be made.
TEST_F(CudaMemory, WeightsThatHostMemoryCannotTakeAreRefusedBeforeTheyArePacked) {
  const TempFolder folder;
  options_.model_path = write_model(folder.path() + "/model", 200'000);  // 25 MiB
  options_.cache_dir = folder.path() + "/cache";
  options_.engine.adapter_bytes = kMiB;
  options_.engine.kv_cache_bytes = kMiB;
  const ModelLimits limits = step_limits(options_.engine, open_base_model(options_.model_path)->config);
  options_.engine.memory_budget_bytes =
      process_memory()->rss_bytes + 24 * kMiB + StepOutputs::bytes(limits, 32, 200'000) + 14 * kMiB;
  const auto files = [&] {
    size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) count += entry.is_regular_file() ? 1 : 0;
    return count;
  };
  ASSERT_EQ(files(), 2u);
  expect_refused({"weights need 24.", "of host memory on their way to the GPU", "raise --memory-budget",
                  "--device cpu, which streams them"});
  EXPECT_EQ(files(), 2u);
  options_.device = {};
  {
    EngineDriver driver(options_);
    ASSERT_TRUE(driver.running());
    EXPECT_GT(driver.stats().streamed_bytes, 0);
  }
  EXPECT_EQ(files(), 3u);
}

TEST_F(CudaMemory, NotesAboutTheOptionsAreLogged) {
  options_.notes = {"A flag says nothing here."};
  CollectingLog log;
  const auto host = EngineHost::start(options_, log, {});
  ASSERT_TRUE(host.ok()) << host.error().message;
  EXPECT_NE(log.text().find("A flag says nothing here."), std::string::npos);
}

}  // namespace
}  // namespace loralei::test
