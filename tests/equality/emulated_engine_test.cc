// SPDX-License-Identifier: Apache-2.0
// An engine on the emulated device answers bit for bit as one on the cores, however few
// adapters its memory has room for, and whatever the link does: adapters of all kinds,
// a link that fails, stalls and comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/prng.h"
#include "base/units.h"
#include "device/emulated/link_test_util.h"
#include "engine/emulated/adapter_copy.h"
#include "engine/emulated/adapter_places.h"
#include "engine/emulated/emulated_backend.h"
#include "support/emulated_subjects.h"
#include "support/engine_driver.h"
#include "support/model_harness.h"
#include "support/patience.h"
#include "sys/cpu.h"

namespace loralei::test {
namespace {

using testing_support::LinkHand;

constexpr const char* kSeed = "EMULATED_ENGINE_TEST_SEED";

// That each adapter has on the device, the largest first.
std::vector<int64_t> bytes_on_device(const Subject& subject) {
  const auto harness = ModelHarness::open(kGolden + subject.model).value();
  const ModelConfig& config = harness->config();
  std::vector<int64_t> bytes;
  for (const std::string& name : subject.adapters) {
    const Adapter* const adapter = harness->load(kGolden + "adapters/" + name, true, subject.int8).value();
    bytes.push_back(AdapterPlaces::range_bytes(copy_bytes(*adapter, {config.layers, config.hidden, config.head_dim})));
  }
  std::sort(bytes.rbegin(), bytes.rend());
  return bytes;
}

size_t adapters_used(const std::vector<Submit>& requests) {
  std::set<AdapterSourceId> used;
  for (const Submit& request : requests)
    for (const AdapterUse& use : request.adapters) used.insert(use.source);
  return used.size();
}

class EmulatedEngine : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Subjects, EmulatedEngine, testing::Range(size_t{0}, subjects().size()),
                         [](const auto& info) { return subjects()[info.param].name; });

TEST_P(EmulatedEngine, AnswersAreThoseOfTheCoresHoweverFewAdaptersHaveRoom) {
  Prng random(seed_of_run(kSeed));
  const Subject subject = subjects()[GetParam()];
  const std::vector<Submit> all = some_requests(random, subject, 60);
  std::vector<Submit> single;
  std::copy_if(all.begin(), all.end(), std::back_inserter(single),
               [](const Submit& request) { return request.adapters.size() < 2; });
  const auto on_cores = start(options_of(subject), subject);
  ASSERT_NE(on_cores, nullptr);
  const std::vector<Answer> want = one_by_one(*on_cores, all), want_single = one_by_one(*on_cores, single);
  for (const Answer& answer : want) ASSERT_EQ(answer.end, EndReason::kLength) << answer.error.message;

  const std::vector<int64_t> bytes = bytes_on_device(subject);
  int64_t room = 0;
  for (size_t places = 1; places <= bytes.size(); ++places) {
    room += bytes[places - 1];
    if (places > 2 && places < bytes.size()) continue;
    SCOPED_TRACE(testing::Message() << "room for " << places << " adapters");
    EngineHostOptions options = options_of(subject);
    options.engine.adapter_bytes = room;
    options.device = emulated_factory({.name = "emulated:4", .poison = true});
    const auto device = start(options, subject);
    ASSERT_NE(device, nullptr);
    expect_same(at_once(*device, places == 1 ? single : all), places == 1 ? want_single : want);
    expect_same(one_by_one(*device, single), want_single);
    const EngineStats stats = device->stats();
    EXPECT_GE(stats.adapter_uploads, adapters_used(single));
    EXPECT_LE(stats.device_memory.adapter_bytes, room);
    EXPECT_EQ(stats.device_memory.adapter_bytes_max, room);
  }
}

// --- what the link does

class EmulatedLink : public testing::Test {
 protected:
  void SetUp() override {
    subject_ = {"gqa", "models/llama-gqa", {"gqa-qv-r8", "gqa-all-r16", "gqa-save-head-tied"}, {}};
    on_cores_ = start(options_of(subject_), subject_);
    EngineHostOptions options = options_of(subject_);
    options.engine.adapter_bytes = 1 << 20;
    options.device = emulated_factory(
        {.name = "emulated:4", .make_link = [this](const Clock&) { return hand_.link(); }, .poison = true});
    device_ = start(options, subject_);
    ASSERT_TRUE(on_cores_ != nullptr && device_ != nullptr);
  }
  static Submit asks(const std::string& adapter, int salt = 1) {
    Submit request;
    for (int i = 0; i < 20; ++i) request.prompt.push_back(3 + (i * 7 + salt * 13) % 80);
    if (!adapter.empty()) request.adapters = {{source_of(adapter), 1.0f}};
    request.max_tokens = 6;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.logprobs = 0;
    return request;
  }
  void expect_cores(const Answer& answer, const Submit& request) {
    const Answer want = on_cores_->ask(request);
    EXPECT_EQ(answer.end, EndReason::kLength) << answer.error.message;
    EXPECT_EQ(answer.tokens, want.tokens);
    EXPECT_EQ(answer.logprobs, want.logprobs);
  }
  const Answer& answer(uint64_t id) { return device_->answers[{id, 0}]; }
  // Takes output until only so many requests are open.
  void collect_to(size_t open) {
    until([&] {
      device_->take(1'000'000);
      return device_->open() <= open;
    });
  }

  Subject subject_;
  LinkHand hand_;
  std::unique_ptr<EngineDriver> on_cores_, device_;
};

TEST_F(EmulatedLink, WhileItStallsOthersGoOnAndThenWhoWaited) {
  hand_.let(1);  // the first layer of the first adapter arrives
  const uint64_t waits = device_->submit(asks("gqa-qv-r8")), behind = device_->submit(asks("gqa-all-r16"));
  const uint64_t base = device_->submit(asks(""));
  collect_to(2);
  expect_cores(answer(base), asks(""));
  EXPECT_TRUE(answer(waits).tokens.empty() && answer(behind).tokens.empty());
  hand_.let(LinkHand::kAll);
  collect_to(0);
  expect_cores(answer(waits), asks("gqa-qv-r8"));
  expect_cores(answer(behind), asks("gqa-all-r16"));
  EXPECT_EQ(device_->stats().adapter_uploads, 2u);
}

TEST_F(EmulatedLink, ACopyThatFailsEndsItsRequestsAndIsTriedForTheNext) {
  hand_.fail(internal_error("the cable is out"));
  hand_.let(1);
  const uint64_t failed = device_->submit(asks("gqa-qv-r8")), base = device_->submit(asks(""));
  collect_to(0);
  EXPECT_EQ(answer(failed).end, EndReason::kError);
  EXPECT_EQ(answer(failed).error.message, "adapter \"gqa-qv-r8\" could not be brought to the device: the cable is out");
  expect_cores(answer(base), asks(""));
  hand_.fail({});
  hand_.let(LinkHand::kAll);
  expect_cores(device_->ask(asks("gqa-qv-r8")), asks("gqa-qv-r8"));
}

// A device that nothing reaches any more ends all with the sentence, as a GPU does that
// is lost.
TEST_F(EmulatedLink, ALostDeviceEndsAllWithItsSentence) {
  hand_.fail(Error{ErrorCode::kUnavailable, "the device has fallen off"});
  const uint64_t lost = device_->submit(asks("gqa-qv-r8")), other = device_->submit(asks("gqa-all-r16"));
  hand_.wait_asked(1);
  hand_.let(1);
  collect_to(0);
  for (const uint64_t id : {lost, other}) {
    EXPECT_EQ(answer(id).end, EndReason::kError);
    EXPECT_EQ(answer(id).error.code, ErrorCode::kUnavailable) << answer(id).error.message;
    EXPECT_NE(answer(id).error.message.find("fallen off"), std::string::npos) << answer(id).error.message;
  }
  EXPECT_FALSE(device_->engine().health().ok());
}

TEST_F(EmulatedLink, AnAdapterIsUnloadedWhileItIsOnItsWay) {
  const uint64_t cancelled = device_->submit(asks("gqa-qv-r8"));
  hand_.wait_asked(1);
  EXPECT_GT(device_->stats().adapter_bytes, 0);
  device_->engine().cancel(RequestId{cancelled});
  device_->command(AdapterAction::kDrop, "gqa-qv-r8");
  device_->collect();
  EXPECT_EQ(device_->stats().adapter_bytes, 0) << "it has left host memory";
  EXPECT_GT(device_->stats().device_memory.adapter_bytes, 0) << "the link still writes there";
  device_->command(AdapterAction::kAdd, "gqa-qv-r8", kGolden + "adapters/gqa-qv-r8");
  device_->collect();
  const uint64_t again = device_->submit(asks("gqa-qv-r8"));
  hand_.let(LinkHand::kAll);
  collect_to(0);
  expect_cores(answer(again), asks("gqa-qv-r8"));
}

// Brings nothing but zeros.
class ZeroLink final : public Link {
 public:
  Status copy(std::span<const LinkPart> parts, int64_t, const std::stop_token&) override {
    for (const LinkPart& part : parts) std::fill_n(part.to, part.bytes, std::byte{0});
    return {};
  }
};

// With zeros for its factors an adapter changes nothing: no step reads what was copied.
TEST_F(EmulatedLink, StepsReadWhatItBrought) {
  EngineHostOptions options = options_of(subject_);
  options.engine.adapter_bytes = 1 << 20;
  options.device = emulated_factory(
      {.make_link = [](const Clock&) -> std::unique_ptr<Link> { return std::make_unique<ZeroLink>(); }});
  const auto zeros = start(options, subject_);
  ASSERT_NE(zeros, nullptr);
  const Answer base = on_cores_->ask(asks(""));
  for (const char* name : {"gqa-qv-r8", "gqa-all-r16"}) {
    const Answer got = zeros->ask(asks(name));
    EXPECT_EQ(got.tokens, base.tokens);
    EXPECT_EQ(got.logprobs, base.logprobs);
    EXPECT_NE(got.logprobs, on_cores_->ask(asks(name)).logprobs);
  }
}

// --- memory, and what is refused

class EmulatedHost : public testing::Test {
 protected:
  std::string refusal(const EngineHostOptions& options) {
    const auto host = EngineHost::start(options, log_, {});
    return host.ok() ? "" : host.error().message;
  }
  EngineHostOptions options(double memory_share = 0.5) const {
    EngineHostOptions options = options_of(subjects()[0]);
    options.device = emulated_factory({.name = "emulated:4", .memory_share = memory_share});
    return options;
  }
  NullLogSink log_;
};

TEST_F(EmulatedHost, NoByteCountsTwiceNorBeyondTheMachine) {
  EngineHostOptions unstated = options();
  unstated.engine.memory_budget_bytes = 0;
  const auto host = EngineHost::start(unstated, log_, {});
  ASSERT_TRUE(host.ok()) << host.error().message;
  const Ledger& hosts = (*host)->ledger();
  const Ledger* const device = (*host)->device_ledger();
  ASSERT_NE(device, nullptr);
  EXPECT_LE(hosts.budget_bytes() + device->budget_bytes(), total_memory_bytes());
  EXPECT_GT(device->used_bytes(MemoryUse::kWeights), 0);
  EXPECT_GT(device->used_bytes(MemoryUse::kKv), 0);
  EXPECT_GT(device->used_bytes(MemoryUse::kAdapters), 0);
  EXPECT_GT(device->used_bytes(MemoryUse::kScratch), 0);
  EXPECT_EQ(hosts.used_bytes(MemoryUse::kWeights), 0);
  EXPECT_EQ(hosts.used_bytes(MemoryUse::kKv), 0);
  EXPECT_NE((*host)->banner().find("memory of emulated:4, of "), std::string::npos) << (*host)->banner();
  EXPECT_EQ((*host)->banner().find("driver"), std::string::npos) << (*host)->banner();
}

TEST_F(EmulatedHost, WhatCannotBeIsRefusedWithASentence) {
  EngineHostOptions large = options();
  large.engine.memory_budget_bytes = total_memory_bytes();
  const std::string both = refusal(large);
  EXPECT_NE(both.find("more together than"), std::string::npos) << both;
  EXPECT_NE(both.find("--gpu-memory-utilization"), std::string::npos) << both;
  const std::string weights = refusal(options(1e-9));
  EXPECT_NE(weights.find("of the device's memory, and the budget of emulated:4 is"), std::string::npos) << weights;
  EngineHostOptions encoded = options();
  encoded.engine.kv_sharing = KvSharing::kBounded;
  EXPECT_NE(refusal(encoded).find("KV in the memory of a device cannot be encoded"), std::string::npos);
  EngineHostOptions on_disk = options();
  on_disk.engine.kv_dir = "/tmp/never-made";
  EXPECT_NE(refusal(on_disk).find("--kv-dir keeps what lies in host memory"), std::string::npos);
}

TEST_F(EmulatedHost, AnAdapterLargerThanItsMemoryIsRefusedAndTheBudgetStays) {
  const Subject subject = {"gqa", "models/llama-gqa", {"gqa-all-r16", "gqa-qv-r8"}, {}};
  EngineHostOptions small = options();
  small.engine.adapter_bytes = bytes_on_device(subject)[1];
  const auto device = start(small, subject);
  ASSERT_NE(device, nullptr);
  Submit request;
  request.prompt = {5, 6, 7};
  request.max_tokens = 2;
  request.adapters = {{source_of("gqa-all-r16"), 1.0f}};
  const Answer refused = device->ask(request);
  EXPECT_EQ(refused.end, EndReason::kError);
  EXPECT_NE(refused.error.message.find("of the device's memory"), std::string::npos) << refused.error.message;
  EXPECT_NE(refused.error.message.find("--adapter-memory"), std::string::npos) << refused.error.message;
  request.adapters = {{source_of("gqa-qv-r8"), 1.0f}};
  EXPECT_NE(device->ask(request).end, EndReason::kError);

  const uint64_t ticket = device->set_memory(int64_t{256} << 20);
  device->collect();
  ASSERT_FALSE(device->replies[ticket].status.ok());
  EXPECT_NE(device->replies[ticket].status.error().message.find("while an emulated device computes"),
            std::string::npos);
}

}  // namespace
}  // namespace loralei::test
