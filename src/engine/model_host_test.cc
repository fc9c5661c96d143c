// SPDX-License-Identifier: Apache-2.0
#include "engine/model_host.h"

#include <gtest/gtest.h>

#include "weights/weight_store.h"

namespace loralei {
namespace {

const std::string kDemo = std::string(LORALEI_SOURCE_DIR) + "/demo/";

EngineHostOptions demo_options() {
  EngineHostOptions options;
  options.model_path = kDemo + "model";
  options.threads = 1;
  return options;
}

TEST(ModelHost, OpensTheModelAsAnEngineDoes) {
  NullLogSink log;
  auto engine = EngineHost::start(demo_options(), log, {});
  auto host = ModelHost::start(demo_options(), log, {});
  ASSERT_TRUE(engine.ok() && host.ok());
  EXPECT_EQ((*host)->fingerprint(), (*engine)->weights().fingerprint());
  EXPECT_EQ((*host)->kv_dtype(), (*engine)->kv_dtype());
  EXPECT_EQ((*host)->max_model_len(), (*engine)->engine().max_model_len());
  EXPECT_EQ((*host)->file().config.layers, 4);
}

TEST(ModelHost, AdaptersAreGrantedAndRefusedWithASentence) {
  NullLogSink log;
  EngineHostOptions options = demo_options();
  options.engine.adapter_rank_max = 32;
  auto host = ModelHost::start(options, log, {});
  ASSERT_TRUE(host.ok());
  const int64_t before = (*host)->ledger().used_bytes(MemoryUse::kAdapters);
  const auto adapter = (*host)->load_adapter(kDemo + "adapters/shout", AdapterVersionId{1});
  ASSERT_TRUE(adapter.ok());
  EXPECT_EQ((*host)->ledger().used_bytes(MemoryUse::kAdapters) - before, (*adapter)->bytes);
  const auto wide = (*host)->load_adapter(kDemo + "adapters/cipher", AdapterVersionId{2});  // of rank 64
  ASSERT_FALSE(wide.ok());
  EXPECT_NE(wide.error().message.find("--max-lora-rank"), std::string::npos);
  EXPECT_FALSE((*host)->load_adapter(kDemo + "model", AdapterVersionId{3}).ok());
}

TEST(ModelHost, ADeviceIsRefused) {
  NullLogSink log;
  EngineHostOptions options = demo_options();
  options.device.budget = []() -> Result<DeviceBudget> { return internal_error("not asked"); };
  options.device.make = [](const DeviceRequest&) -> Result<DeviceBackend> { return internal_error("not asked"); };
  const auto host = ModelHost::start(options, log, {});
  ASSERT_FALSE(host.ok());
  EXPECT_NE(host.error().message.find("--device cpu"), std::string::npos);
}

}  // namespace
}  // namespace loralei
