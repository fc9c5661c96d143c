// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_helper.h"

#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "assist/assist_channel.h"
#include "assist/assist_control.h"
#include "assist/assist_factors.h"
#include "base/clock.h"
#include "device/host/arena.h"
#include "device/host/thread_pool.h"
#include "ops/op_table.h"
#include "sys/confinement.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int64_t kLookNs = 1'000'000'000;  // between two looks at the control socket, where nothing comes

// A parent that does not hear it is gone, or learns it from the answers to its messages.
void say(ControlKind kind, uint64_t version, const std::string& text) {
  const Status said = send_control(kAssistControlDescriptor, {kind, version, 0, text});
  static_cast<void>(said);
}

class Helper {
 public:
  Helper(AssistChannel channel, const OpTable& table, HostBuffer scratch)
      : channel_(std::move(channel)), table_(table), scratch_(std::move(scratch)), pool_(1) {
    ctx_.pool = &pool_;
    ctx_.scratch = scratch_.bytes();
  }

  void run() {
    AssistHeader& header = channel_.header();
    const int64_t spin_ns = channel_.settings().spin_ns;
    uint32_t asked = 0, answered = 0;
    while (!ended_) {
      asked = header.asks.wait(asked, spin_ns, kLookNs);
      const uint32_t generation = header.request.generation.load(std::memory_order_acquire);
      if (generation == answered) {
        read_controls();
        continue;
      }
      answered = generation;
      const int64_t start = clock_.now_ns();
      const AssistAnswer answer = serve();
      if (ended_) return;
      header.answer.store(static_cast<uint32_t>(answer), std::memory_order_relaxed);
      header.busy_ns.store(clock_.now_ns() - start, std::memory_order_relaxed);
      header.done.post(generation);
    }
  }

 private:
  struct Known {
    SharedMemory memory;
    std::vector<FactorPlace> places;
  };

  void read_controls() {
    while (!ended_ && read_control(MessageWait::kNo)) {
    }
  }

  // False: there is none now.
  bool read_control(MessageWait wait) {
    ControlMessage message;
    std::vector<Descriptor> descriptors;
    const Received received = receive_control(kAssistControlDescriptor, message, descriptors, wait);
    if (received == Received::kEnd) ended_ = true;
    if (received != Received::kMessage) return false;
    ++controls_;
    if (message.kind == ControlKind::kForget) known_.erase(message.version);
    if (message.kind == ControlKind::kLearn) {
      const Status learnt = learn(message, std::move(descriptors));
      if (!learnt.ok()) say(ControlKind::kRefused, message.version, learnt.error().message);
    }
    return true;
  }

  Status learn(const ControlMessage& message, std::vector<Descriptor> descriptors) {
    known_.erase(message.version);
    if (descriptors.size() != 2) return corrupt("an adapter came without its memory");
    TRY_ASSIGN(SharedMemory memory,
               SharedMemory::open(std::move(descriptors[0]), message.memory_bytes, SharedMemory::Access::kRead));
    const AssistShape& shape = channel_.settings().shape;
    TRY_ASSIGN(const SharedMemory table, SharedMemory::open(std::move(descriptors[1]), factor_table_bytes(shape.layers),
                                                            SharedMemory::Access::kRead));
    TRY_ASSIGN(std::vector<FactorPlace> places, read_factor_table(table.bytes(), memory.size_bytes(), shape));
    memory.close_descriptor();
    known_.emplace(message.version, Known{std::move(memory), std::move(places)});
    return {};
  }

  AssistAnswer serve() {
    const AssistRequest& request = channel_.header().request;
    const uint32_t controls = request.controls.load(std::memory_order_relaxed);
    while (controls_ != controls && !ended_) read_control(MessageWait::kYes);
    const auto known = known_.find(request.version.load(std::memory_order_relaxed));
    const int32_t layer = request.layer.load(std::memory_order_relaxed);
    const uint32_t modules = request.modules.load(std::memory_order_relaxed);
    const int32_t rows = request.rows.load(std::memory_order_relaxed);
    const AssistChannel::Settings& settings = channel_.settings();
    if (known == known_.end() || layer < 0 || layer >= settings.shape.layers || !is_assist_mask(modules) || rows < 1 ||
        rows > settings.rows_max)
      return AssistAnswer::kRefused;
    compute(known->second, layer, modules, rows);
    return AssistAnswer::kDone;
  }

  // What `lora` adds to -0.0, the one number that changes no sum.
  void compute(const Known& known, int32_t layer, uint32_t modules, int32_t rows) {
    std::array<LoraPair, kAssistTargetsMax> pairs;
    std::array<LoraSource, kAssistTargetsMax> sources;
    std::array<LoraTarget, kAssistTargetsMax> targets;
    size_t count = 0;
    int32_t in = 0;
    for (int32_t index = 0; index < kLayerModules; ++index) {
      if ((modules >> index & 1) == 0) continue;
      const auto module = static_cast<Module>(index);
      const int32_t out = channel_.settings().shape.out(module);
      in = channel_.settings().shape.in(module);
      float* const sums = channel_.sums(module);
      const int64_t stride = channel_.sums_stride(module);
      for (int32_t row = 0; row < rows; ++row) std::fill_n(sums + row * stride, out, -0.0f);
      pairs[count] = pair_of(known.places[static_cast<size_t>(layer * kLayerModules + index)], known.memory.data());
      sources[count].pair = &pairs[count];
      targets[count] = {.y = sums, .y_stride = stride, .sources = &sources[count], .out = out};
      ++count;
    }
    const LoraSegment segment{0, rows, 0, 1.0f};
    table_.lora(ctx_, {.x = channel_.x(0),
                       .x_stride = channel_.x_stride(),
                       .in = in,
                       .segments = {&segment, 1},
                       .targets = {targets.data(), count}});
  }

  const AssistChannel channel_;
  const OpTable& table_;
  const HostBuffer scratch_;
  ThreadPool pool_;
  OpContext ctx_;
  const SteadyClock clock_;
  std::map<uint64_t, Known> known_;
  uint32_t controls_ = 0;  // messages read
  bool ended_ = false;     // the parent is gone
};

Result<Helper*> make_helper(std::optional<Helper>& place) {
  TRY_ASSIGN(AssistChannel channel, AssistChannel::open(Descriptor(kAssistChannelDescriptor)));
  const AssistChannel::Settings& settings = channel.settings();
  TRY_ASSIGN(const OpTable* table, select_op_table(settings.ops_table));
  const OpLimits limits{.rows_max = settings.rows_max,
                        .in_max = settings.shape.in_max(),
                        .heads = 1,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .rank_max = settings.shape.rank_max,
                        .segments_max = 1,
                        .threads = 1};
  TRY_ASSIGN(HostBuffer scratch, HostBuffer::allocate(table->scratch_bytes(limits)));
  if (settings.cpu >= 0) pin_this_thread(settings.cpu);
  return &place.emplace(std::move(channel), *table, std::move(scratch));
}

}  // namespace

int run_assist_helper() {
  if (!is_open_descriptor(kAssistChannelDescriptor) || !is_open_descriptor(kAssistControlDescriptor)) {
    std::fprintf(stderr,
                 "this is a part of 'loralei serve', which starts it when it wants it; alone it does nothing\n");
    return kAssistHelperUsage;
  }
  ignore_group_signals();
  name_this_thread("assist-helper");
  std::optional<Helper> helper;
  if (const Result<Helper*> made = make_helper(helper); !made.ok()) {
    const std::string& sentence = made.error().message;
    std::fprintf(stderr, "a helper cannot start: %s\n", sentence.c_str());
    say(ControlKind::kRefused, 0, sentence);
    return kAssistHelperUsage;
  }
  confine_this_process(kAssistChannelDescriptor, kAssistControlDescriptor);
  say(ControlKind::kReady, 0, "");
  helper->run();
  return 0;
}

}  // namespace loralei
