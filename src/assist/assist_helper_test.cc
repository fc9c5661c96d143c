// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>

#include "assist/assist_test_util.h"

namespace loralei {
namespace {

constexpr int64_t kLong = 60'000'000'000;
constexpr int32_t kRows = 8;

AssistChannel::Settings settings() { return {test_shape(), kRows, -1, 5'000, (*select_op_table(""))->name}; }

// A helper without a pool: what a parent might send by mistake is sent on purpose.
class BareHelper {
 public:
  explicit BareHelper(const std::function<void(AssistHeader&)>& before_start = [](AssistHeader&) {}) {
    auto channel = AssistChannel::create("bare", settings());
    auto ends = message_socket_pair();
    before_start(channel->header());
    auto child = ChildProcess::start({LORALEI_ASSIST_HELPER, {}, {channel->descriptor(), ends->second.get()}});
    life_ = std::make_unique<HelperProcess>(*std::move(channel), std::move(ends->first), *std::move(child));
  }

  HelperProcess& life() { return *life_; }
  AssistHeader& header() { return life_->channel.header(); }

  // What it says next; its end is said by a closed socket.
  ControlMessage hear() {
    ControlMessage message;
    std::vector<Descriptor> none;
    if (receive_control(life_->control.get(), message, none, MessageWait::kYes) != Received::kMessage)
      message.text = "(its end)";
    return message;
  }
  std::string end() {
    pollfd polled{.fd = life_->child.pidfd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&polled, 1, 60'000), 1);
    return life_->child.reap().value_or("has not ended");
  }

  void learn(uint64_t version, int64_t bytes, const std::vector<int>& descriptors) {
    ASSERT_TRUE(send_control(life_->control.get(), {ControlKind::kLearn, version, bytes, {}}, descriptors).ok());
    ++life_->controls;
    life_->nudge();
  }
  void learn(uint64_t version, const AssistFactors& factors) {
    learn(version, factors.memory_bytes(), {factors.memory_descriptor(), factors.table_descriptor()});
  }

  AssistAnswer ask(uint64_t version, int32_t layer, uint32_t modules, int32_t rows) {
    AssistRequest& request = header().request;
    request.controls.store(life_->controls);
    request.version.store(version);
    request.layer.store(layer);
    request.modules.store(modules);
    request.rows.store(rows);
    request.generation.store(++life_->generation);
    life_->nudge();
    SharedSignal& done = header().done;
    for (uint32_t seen = done.value(); seen != life_->generation;) seen = done.wait(seen, 0, kLong);
    return static_cast<AssistAnswer>(header().answer.load());
  }

 private:
  std::unique_ptr<HelperProcess> life_;
};

TEST(AssistHelper, IsReadyAndEndsWithItsSocket) {
  BareHelper helper;
  EXPECT_EQ(helper.hear().kind, ControlKind::kReady);
  end_messages(helper.life().control.get());
  helper.life().nudge();
  EXPECT_EQ(helper.end(), "exit status 0");
}

TEST(AssistHelper, NoticesThatItsSocketIsClosedEvenIfNobodyCalls) {
  BareHelper helper;
  EXPECT_EQ(helper.hear().kind, ControlKind::kReady);
  end_messages(helper.life().control.get());
  EXPECT_EQ(helper.end(), "exit status 0");
}

TEST(AssistHelper, StartedByHandSaysWhatItIs) {
  int ends[2] = {};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor from(ends[0]);
  auto child = std::make_unique<ChildProcess>(
      ChildProcess::start({"/bin/sh", {"-c", "exec 2>&3 3>&-; exec " LORALEI_ASSIST_HELPER}, {ends[1]}}).value());
  ::close(ends[1]);
  char text[256] = {};
  EXPECT_GT(::read(from.get(), text, sizeof text - 1), 0);
  EXPECT_STREQ(text, "this is a part of 'loralei serve', which starts it when it wants it; alone it does nothing\n");
  pollfd polled{.fd = child->pidfd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&polled, 1, 60'000), 1);
  EXPECT_EQ(child->reap(), "exit status 2");
}

TEST(AssistHelper, RefusesAChannelThatIsNotItsOwnVersionOrNotWhole) {
  const auto refusal = [](const std::function<void(AssistHeader&)>& change) {
    BareHelper helper(change);
    const ControlMessage message = helper.hear();
    EXPECT_EQ(message.kind, ControlKind::kRefused);
    EXPECT_EQ(helper.end(), "exit status 2");
    return message.text;
  };
  EXPECT_EQ(refusal([](AssistHeader& header) { header.version = kAssistVersion + 1; }),
            "the server's channel has version 3, this program's 2; start the server again, with one program for both");
  EXPECT_NE(refusal([](AssistHeader& header) { header.magic = 1; }).find("none of a server's"), std::string::npos);
  EXPECT_NE(refusal([](AssistHeader& header) { ++header.rows_max; }).find("bytes instead of"), std::string::npos);
  EXPECT_NE(refusal([](AssistHeader& header) { header.shape.outs[2] = -1; }).find("outputs"), std::string::npos);
  EXPECT_NE(refusal([](AssistHeader& header) { header.shape.layers = INT32_MAX; }).find("layers"), std::string::npos);
  EXPECT_NE(refusal([](AssistHeader& header) { header.ops_table[0] = '?'; }).find("is not known"), std::string::npos);
}

// Every value of a message, right and wrong ones: it lives, and the next right one is
// answered right.
TEST(AssistHelper, RefusesMessagesOutOfRangeAndLives) {
  const uint64_t seed = 520;
  Prng prng(seed);
  const AssistShape shape = test_shape();
  const SharedAdapter adapter(prng, shape);
  OnePlace place(**select_op_table(""), shape, kRows);
  BareHelper helper;
  EXPECT_EQ(helper.hear().kind, ControlKind::kReady);
  helper.learn(7, adapter.factors(shape));
  constexpr uint64_t kWrong[] = {0, 1, 3, 8, 9, 0x7f, 0x80, 0x7fffffff, 0x80000000, 0xffffffff};
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto any = [&] { return static_cast<uint32_t>(prng.below(3) == 0 ? prng() : kWrong[prng.below(10)]); };
    const uint64_t version = prng.below(4) == 0 ? any() : 7;
    const auto layer = static_cast<int32_t>(prng.below(2) == 0 ? any() : prng.below(3));
    const uint32_t modules = prng.below(2) == 0 ? any() : module_bit(Module::kO);
    const auto rows = static_cast<int32_t>(prng.below(2) == 0 ? any() : 1 + prng.below(kRows));
    const bool right =
        version == 7 && layer >= 0 && layer < shape.layers && is_assist_mask(modules) && rows >= 1 && rows <= kRows;
    ASSERT_EQ(helper.ask(version, layer, modules, rows), right ? AssistAnswer::kDone : AssistAnswer::kRefused)
        << "seed " << seed << " version " << version << " layer " << layer << " modules " << modules << " rows "
        << rows;
    refused += right ? 0 : 1;
  }
  EXPECT_GT(refused, 500);
  for (int i = 0; i < 20; ++i) {
    const TestTask test(prng, shape, adapter.adapter(), {7}, kRows);
    size_t module = 0;
    while ((test.task.modules >> module & 1) == 0) ++module;
    const AssistChannel& channel = helper.life().channel;
    for (int32_t row = 0; row < test.task.rows; ++row)
      std::copy_n(test.task.x + row * test.task.x_stride, shape.ins[module], channel.x(row));
    ASSERT_EQ(helper.ask(7, test.task.layer, test.task.modules, test.task.rows), AssistAnswer::kDone);
    SumCheck check(place, test);
    for (int32_t index = 0; index < kLayerModules; ++index) {
      const auto one = static_cast<Module>(index);
      if ((test.task.modules >> index & 1) != 0)
        check(0, test.task.rows, one, channel.sums(one), channel.sums_stride(one));
    }
    EXPECT_TRUE(check.is_right()) << "seed " << seed;
  }
}

// Asked to have read more than was sent, it waits, and is killed by whoever waits for it.
TEST(AssistHelper, ThatWaitsForWhatWasNotSentCanBeKilled) {
  BareHelper helper;
  EXPECT_EQ(helper.hear().kind, ControlKind::kReady);
  helper.header().request.controls.store(0xffffffff);
  helper.header().request.generation.store(1);
  helper.life().nudge();
  EXPECT_EQ(helper.header().done.wait(0, 0, 50'000'000), 0u);
  helper.life().child.kill();
  EXPECT_EQ(helper.end(), "signal 9");
}

TEST(AssistHelper, RefusesAdaptersItCannotReadAndLives) {
  Prng prng(521);
  const AssistShape shape = test_shape();
  const SharedAdapter adapter(prng, shape);
  const AssistFactors factors = adapter.factors(shape);
  BareHelper helper;
  EXPECT_EQ(helper.hear().kind, ControlKind::kReady);
  const SharedMemory garbage = std::move(SharedMemory::create("garbage", factor_table_bytes(shape.layers))).value();
  for (std::byte& byte : garbage.bytes()) byte = static_cast<std::byte>(prng());
  const Descriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  const int memory = factors.memory_descriptor(), table = factors.table_descriptor();
  const auto refusal = [&](int64_t bytes, const std::vector<int>& descriptors) {
    helper.learn(3, bytes, descriptors);
    const ControlMessage message = helper.hear();
    EXPECT_EQ(message.kind, ControlKind::kRefused);
    EXPECT_EQ(message.version, 3u);
    EXPECT_EQ(helper.ask(3, 0, 1, 1), AssistAnswer::kRefused);
    return message.text;
  };
  EXPECT_EQ(refusal(1, {}), "an adapter came without its memory");
  EXPECT_EQ(refusal(1, {memory}), "an adapter came without its memory");
  EXPECT_EQ(refusal(1, {memory, table, table}), "an adapter came without its memory");
  EXPECT_NE(refusal(1, {memory, garbage.descriptor()}).find("the table of an adapter's factors"), std::string::npos);
  EXPECT_NE(refusal(1, {memory, unsealed.get()}).find("cut short"), std::string::npos);
  EXPECT_NE(refusal(1, {unsealed.get(), table}).find("cut short"), std::string::npos);
  EXPECT_NE(refusal(1, {garbage.descriptor(), table}).find("do not lie within"), std::string::npos);
  EXPECT_NE(refusal(factors.memory_bytes() + 1, {memory, table}).find("are expected"), std::string::npos);
  // A message that is none is counted and forgotten.
  ASSERT_TRUE(send_message(helper.life().control.get(), "?", {}, 0).ok());
  ++helper.life().controls;
  helper.learn(3, factors);
  EXPECT_EQ(helper.ask(3, 0, 1, 1), AssistAnswer::kDone);
  ASSERT_TRUE(send_control(helper.life().control.get(), {ControlKind::kForget, 3, 0, {}}).ok());
  ++helper.life().controls;
  EXPECT_EQ(helper.ask(3, 0, 1, 1), AssistAnswer::kRefused);
}

TEST(AssistHelper, HasNoDescriptorsButItsTwoAndNoSignalOfTheTerminalEndsIt) {
  Prng prng(522);
  const AssistShape shape = test_shape();
  const SharedAdapter adapter(prng, shape);
  const Descriptor careless(::open("/dev/null", O_RDONLY));  // NOLINT: without O_CLOEXEC on purpose
  BareHelper helper;
  EXPECT_EQ(helper.hear().kind, ControlKind::kReady);
  helper.learn(1, adapter.factors(shape));
  EXPECT_EQ(helper.ask(1, 0, 1, 1), AssistAnswer::kDone);
  const int pid = helper.life().child.pid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::kill(pid, number);
  EXPECT_EQ(helper.ask(1, 0, 1, 1), AssistAnswer::kDone);
  const std::filesystem::path process = "/proc/" + std::to_string(pid);
  std::error_code error;
  std::set<std::string> descriptors;
  for (const auto& one : std::filesystem::directory_iterator(process / "fd", error)) {
    descriptors.insert(one.path().filename());
    const std::string target = std::filesystem::read_symlink(one.path(), error);
    EXPECT_TRUE(target.starts_with("socket:") || (target.starts_with("/memfd:") && target.ends_with(" (deleted)")))
        << target;
  }
  std::ifstream status(process / "status");
  const std::string text((std::istreambuf_iterator<char>(status)), std::istreambuf_iterator<char>());
  EXPECT_NE(text.find("NoNewPrivs:\t1\n"), std::string::npos);
  if (error) GTEST_SKIP() << "only root sees what a process that cannot be looked into has open";
  EXPECT_EQ(descriptors, (std::set<std::string>{"3", "4"}));
}

}  // namespace
}  // namespace loralei
