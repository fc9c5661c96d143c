// SPDX-License-Identifier: Apache-2.0
// A model that is a hash chain, a device's tier without a device, and adapters that exist
// only in memory.
//
// Thread: one, but for FakeFiles. Ownership: as the interfaces say.
//
// The fake executor keeps a hash of everything a position depends on (tokens before it,
// adapters and scales of its row) in the KV cache itself, at the address the real kernels
// would use, and reads the hash of the position before from there. Logits are a function
// of that hash. A wrong block, a wrong prefix, a lost adapter or a stale block changes
// the output, which expected_output() knows without any engine. With states (use_states)
// the hash and the number of positions so far stand in the sequence's state as well, and
// both go into the next one: a state of another text, or of this one at another
// position, changes the output, too.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "adapters/load_pool.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "engine/api.h"
#include "engine/executor.h"
#include "sampling/sampler.h"

namespace loralei::sim {

inline constexpr int32_t kVocab = 50;
inline constexpr int32_t kHidden = 3;
inline constexpr TokenId kEos = 0;

inline ModelConfig fake_config() {
  ModelConfig config;
  config.architecture = "fake";
  config.layers = 1;
  config.heads = config.kv_heads = 1;
  config.head_dim = 4;
  config.hidden = kHidden;
  config.ffn = 1;
  config.vocab = kVocab;
  config.max_position = 400;
  config.eos = {kEos};
  config.dtype = DType::kF32;
  return config;
}

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 31);
}

// An adapter as the fake model sees it: a number, from some position on, with a scale.
struct FakeUse {
  uint64_t content = 0;
  float scale = 1.0f;
  int32_t first_position = 0;
};

inline uint64_t next_hash(uint64_t previous, TokenId token) { return mix(previous, static_cast<uint64_t>(token) + 1); }
inline uint64_t adapted(uint64_t hash, uint64_t content, float scale) {
  return mix(mix(hash, content), std::bit_cast<uint32_t>(scale));
}
inline float fake_logit(uint64_t hash, int32_t id) {
  return static_cast<float>(mix(hash, static_cast<uint64_t>(id) + 77) >> 40) * 0x1p-24f * 6.0f;
}
inline float fake_hidden(uint64_t hash, int32_t index) {
  return static_cast<float>(mix(hash, static_cast<uint64_t>(index) + 999) >> 40) * 0x1p-24f;
}

// Hash of every position of a text.
inline std::vector<uint64_t> hash_chain(const std::vector<TokenId>& tokens, const std::vector<FakeUse>& uses) {
  std::vector<uint64_t> chain;
  uint64_t hash = 1;
  for (size_t position = 0; position < tokens.size(); ++position) {
    hash = next_hash(hash, tokens[position]);
    for (const FakeUse& use : uses) {
      if (use.scale != 0.0f && static_cast<int32_t>(position) >= use.first_position)
        hash = adapted(hash, use.content, use.scale);
    }
    chain.push_back(hash);
  }
  return chain;
}

inline std::vector<float> fake_logits(uint64_t hash, int32_t vocab = kVocab) {
  std::vector<float> logits;
  for (int32_t id = 0; id < vocab; ++id) logits.push_back(fake_logit(hash, id));
  return logits;
}

struct Expected {
  std::vector<TokenId> tokens;
  EndReason end = EndReason::kNone;
};

// What the request must give, whatever else runs.
inline Expected expected_output(const Submit& submit, int32_t choice, const std::vector<FakeUse>& uses,
                                int64_t max_model_len) {
  Expected expected;
  Sampler sampler;
  std::vector<TokenId> text = submit.prompt;
  const auto limit = std::min<int64_t>(submit.max_tokens, max_model_len - static_cast<int64_t>(submit.prompt.size()));
  while (expected.end == EndReason::kNone) {
    const auto logits = fake_logits(hash_chain(text, uses).back());
    std::vector<TokenId> forbidden = submit.stop_ids;
    if (!submit.ignore_eos) forbidden.push_back(kEos);
    if (expected.tokens.size() >= static_cast<size_t>(submit.min_tokens)) forbidden.clear();
    const TokenId token = sampler.sample({.logits = logits,
                                          .params = &submit.sampling,
                                          .choice = static_cast<uint32_t>(choice),
                                          .position = text.size(),
                                          .prompt = submit.prompt,
                                          .output = expected.tokens,
                                          .forbidden = forbidden});
    text.push_back(token);
    expected.tokens.push_back(token);
    if (token == kEos && !submit.ignore_eos) expected.end = EndReason::kStop;
    for (const TokenId stop : submit.stop_ids) expected.end = token == stop ? EndReason::kStop : expected.end;
    if (expected.end == EndReason::kNone && static_cast<int64_t>(expected.tokens.size()) >= limit)
      expected.end = EndReason::kLength;
  }
  return expected;
}

// A device's tier of adapters: so many bytes, and uploads that end, or come layer by
// layer, when the test says so. CHECKs that it is used as promised.
class FakeTier final : public DeviceTier {
 public:
  // `layers` 0: they come as a whole.
  explicit FakeTier(int64_t bytes_max, int32_t layers = 0) : bytes_max_(bytes_max), layers_(layers) {}

  Result<bool> hold(std::span<const Adapter* const> adapters) override {
    int64_t all = 0, missing = 0;
    for (const Adapter* adapter : adapters) {
      all += adapter->bytes;
      missing += copies_.count(adapter->version) == 0 ? adapter->bytes : 0;
    }
    if (all > bytes_max_) return too_large("the device has " + std::to_string(bytes_max_) + " bytes");
    if (!make_room(adapters, missing)) return false;
    for (const Adapter* adapter : adapters) {
      if (copies_.count(adapter->version) != 0) ++copies_[adapter->version].holds;
    }
    for (const Adapter* adapter : adapters) {
      if (copies_.count(adapter->version) != 0) continue;
      Copy& copy = copies_[adapter->version];
      copy = {.bytes = adapter->bytes, .holds = 1, .released = ++releases_, .keeps = adapter->storage};
      if (layers_ > 0) copy.arrivals = std::make_shared<Arrivals>(layers_ + 1);
      for (int32_t piece = 0; piece <= layers_; ++piece)
        copy.bytes_through.push_back(copy.bytes * (piece + 1) / (layers_ + 1));
    }
    return true;
  }
  std::optional<AdapterOnItsWay> on_its_way(AdapterVersionId version) const override {
    const Copy& copy = copies_.at(version);
    if (layers_ == 0) return std::nullopt;
    int64_t before = 0;
    for (const auto& [other, another] : copies_) {
      if (other == version) break;
      if (another.state == State::kOnTheWay)
        before += AdapterOnItsWay{another.arrivals, another.bytes_through, 0}.bytes_left(layers_);
    }
    return AdapterOnItsWay{copy.arrivals, copy.bytes_through, before};
  }
  Result<bool> arrived(AdapterVersionId version) override {
    const Copy& copy = copies_.at(version);
    CHECK(copy.holds > 0);
    if (copy.state == State::kFailed && lost) return Error{ErrorCode::kUnavailable, "the fake device is lost"};
    if (copy.state == State::kFailed) return internal_error("the copy was refused");
    return copy.state == State::kThere;
  }
  void release(AdapterVersionId version) override {
    Copy& copy = copies_.at(version);
    CHECK(copy.holds > 0);
    copy.released = ++releases_;
    if (--copy.holds == 0 && copy.state == State::kFailed) copies_.erase(version);
  }
  void forget(AdapterVersionId version) override {
    const auto found = copies_.find(version);
    if (found == copies_.end()) return;
    CHECK(found->second.holds == 0);
    if (found->second.state == State::kOnTheWay) {
      found->second.forgotten = true;
    } else {
      copies_.erase(found);
    }
  }
  bool has(AdapterVersionId version) const override { return copies_.count(version) != 0; }
  int64_t free_bytes() const { return bytes_max_ - bytes(); }
  void drop_unused(AdapterVersionId version) override {
    const auto found = copies_.find(version);
    if (found != copies_.end() && found->second.holds == 0 && found->second.state == State::kThere)
      copies_.erase(found);
  }
  void on_upload(std::function<void(UploadDone&&)> call) override { news = std::move(call); }
  int64_t bytes_max() const override { return bytes_max_; }
  void choose_leaving(ChooseLeaving choose) override { choose_ = std::move(choose); }
  DeviceTierStats stats() const override { return {uploads, upload_bytes, upload_ns}; }

  // The oldest upload ends, or that of `wanted`; null: there is none. Whoever ends it
  // tells the loop.
  std::optional<UploadDone> end_upload(bool well = true, std::optional<AdapterVersionId> wanted = {}) {
    for (auto& [version, copy] : copies_) {
      if (copy.state != State::kOnTheWay || (wanted && *wanted != version)) continue;
      ++uploads;
      upload_bytes += copy.bytes;
      upload_ns += ns_per_byte * copy.bytes;
      if (layers_ > 0 && !well && !copy.arrivals->whole()) copy.arrivals->fail(internal_error("the copy was refused"));
      while (layers_ > 0 && well && !copy.arrivals->whole()) copy.arrivals->advance();
      copy.state = well ? State::kThere : State::kFailed;
      copy.keeps.reset();
      UploadDone done{version, well ? Status() : Status(internal_error("the copy was refused"))};
      if (copy.forgotten || (!well && copy.holds == 0)) copies_.erase(done.version);
      return done;
    }
    return std::nullopt;
  }
  // One layer more of the oldest upload, or of `wanted`, where one is missing.
  bool bring_layer(std::optional<AdapterVersionId> wanted = {}) {
    for (auto& [version, copy] : copies_) {
      if (copy.state != State::kOnTheWay || (wanted && *wanted != version) || copy.arrivals->whole()) continue;
      copy.arrivals->advance();
      return true;
    }
    return false;
  }
  void expect_usable(AdapterVersionId version) const {
    const Copy& copy = copies_.at(version);
    CHECK(copy.holds > 0 && (copy.state == State::kThere || layers_ > 0));
  }
  // Layers of a step's adapter are missing.
  bool lacks_layers(AdapterVersionId version) const {
    const Copy& copy = copies_.at(version);
    return copy.state != State::kThere && !copy.arrivals->whole();
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [version, copy] : copies_) sum += copy.bytes;
    CHECK(sum <= bytes_max_);
    return sum;
  }
  int64_t held_bytes() const {
    int64_t sum = 0;
    for (const auto& [version, copy] : copies_) sum += copy.holds > 0 ? copy.bytes : 0;
    return sum;
  }
  int32_t holds() const {
    int32_t sum = 0;
    for (const auto& [version, copy] : copies_) sum += copy.holds;
    return sum;
  }
  size_t copies() const { return copies_.size(); }
  int64_t uploads = 0, upload_bytes = 0, upload_ns = 0;
  int64_t ns_per_byte = 0;  // that uploads are said to take
  bool lost = false;        // that is why uploads fail
  std::function<void(UploadDone&&)> news;

 private:
  enum class State { kOnTheWay, kThere, kFailed };
  struct Copy {
    int64_t bytes = 0;
    int32_t holds = 0;
    uint64_t released = 0;  // last
    std::shared_ptr<const void> keeps;
    State state = State::kOnTheWay;
    bool forgotten = false;
    std::shared_ptr<Arrivals> arrivals = nullptr;
    std::vector<int64_t> bytes_through = {};
  };
  // Beside those that are named; nobody leaves in vain.
  bool make_room(std::span<const Adapter* const> named, int64_t bytes_wanted) {
    int64_t room = free_bytes();
    if (room >= bytes_wanted) return true;
    std::vector<AdapterVersionId> idle;
    for (const auto& [version, copy] : copies_) {
      const bool stays = std::any_of(named.begin(), named.end(),
                                     [id = version](const Adapter* adapter) { return adapter->version == id; });
      if (!stays && copy.holds == 0 && copy.state == State::kThere) idle.push_back(version);
    }
    std::sort(idle.begin(), idle.end(), [this](AdapterVersionId a, AdapterVersionId b) {
      return copies_.at(a).released < copies_.at(b).released;
    });
    if (choose_) choose_(idle);
    size_t leave = 0;
    for (; leave < idle.size() && room < bytes_wanted; ++leave) room += copies_.at(idle[leave]).bytes;
    if (room < bytes_wanted) return false;
    for (size_t i = 0; i < leave; ++i) copies_.erase(idle[i]);
    return true;
  }
  const int64_t bytes_max_;
  const int32_t layers_;
  std::map<AdapterVersionId, Copy> copies_;
  uint64_t releases_ = 0;
  ChooseLeaving choose_;
};

class FakeExecutor final : public Executor {
 public:
  explicit FakeExecutor(ModelLimits limits) : limits_(limits) {}
  const ModelLimits& limits() const override { return limits_; }
  DeviceTier* device_tier() override { return tier.get(); }
  int64_t streamed_bytes() const override { return streaming ? 1 : 0; }
  bool chooses_tokens() const override { return chooses; }
  Status ready() override {
    ++asked;
    return readiness;
  }

  void use_kv(const KvView& kv, const KvStreams&) override { kv_ = kv; }
  void use_states(const StateView& states) override { states_ = states; }
  void announce(const Adapter& adapter) override { adapters_[adapter.version] = &adapter; }
  bool begins_early() const override { return early_loads; }
  void announce_early(const Adapter& adapter, std::shared_ptr<const Arrivals> arrivals) override {
    announce(adapter);
    arriving_[adapter.version] = std::move(arrivals);
  }
  void withdraw(AdapterVersionId version) override {
    adapters_.erase(version);
    arriving_.erase(version);
  }
  Status reserve_vocab(int32_t vocab) override {
    stride_ = std::max(stride_, int64_t{vocab});
    logits_.resize(static_cast<size_t>(limits_.logits_rows_max * stride_));
    return {};
  }
  void start(const StepBatch& batch) override {
    waits_ = {};
    Status status = await_layers(batch);
    if (status.ok()) status = compute(batch);
    if (!status.ok()) spoil_states(batch);
    end_step({batch.step, std::move(status), waits_});
  }
  StepResult result() const override {
    return {.logits = logits_.data(),
            .logits_stride = stride_,
            .chosen = chosen_,
            .hidden = hidden_.data(),
            .hidden_size = kHidden};
  }

  KvTables tables;           // of the KV cache
  bool early_loads = false;  // steps may begin with adapters that are being read
  // What becomes of layers that a step lacks: they come while it waits, are late, or
  // will not come. Empty: they come; of one that is being read whoever reads it must
  // bring them.
  std::function<Status(AdapterVersionId version)> layers_come;
  int64_t early_steps = 0;  // with adapters of which something was missing
  int64_t steps = 0, rows = 0, segments = 0;
  bool chooses = false;  // tokens of rows that leave it to the executor, whose logits are not given
  int64_t chosen = 0, not_chosen = 0;
  bool fail_next = false;
  bool lost = false;  // every step fails
  Status readiness;   // what ready() answers
  Status damage;      // and from the step of fail_next on
  int asked = 0;      // ready()
  bool streaming = false;
  std::unique_ptr<FakeTier> tier;  // null: adapters are used in host memory
  ManualClock* clock = nullptr;    // on which a step takes step_ns
  int64_t step_ns = 0;
  int64_t layers_ns = 0;  // and the wait for the layers of an adapter that has not all of them

 private:
  StepWaits waits_;
  struct Cell {  // what a position keeps in its 16 bytes of K
    uint64_t hash;
    uint64_t position;
  };

  // And the step would answer something of it.
  bool is_being_read(AdapterVersionId version, const StepBatch& batch) const {
    const auto found = arriving_.find(version);
    const bool answers = !batch.logits_rows.empty() || !batch.hidden_rows.empty();
    return answers && found != arriving_.end() && !found->second->whole();
  }
  Status await_layers(const StepBatch& batch) {
    bool early = false;
    for (const AdapterVersionId version : batch.adapters) {
      if (tier != nullptr) tier->expect_usable(version);
      if (tier != nullptr ? !tier->lacks_layers(version) : !is_being_read(version, batch)) continue;
      CHECK(batch.arrivals_wait_ns > 0);
      early = true;
      ++waits_.layers;
      Status status = layers_come ? layers_come(version) : Status();
      if (!status.ok()) waits_.ended_by = version;
      if (!status.ok()) return status;
      waits_.ns += layers_ns;
      if (clock != nullptr) clock->advance_ns(layers_ns);
      while (tier != nullptr && tier->bring_layer(version)) {
      }
      CHECK(tier != nullptr || !is_being_read(version, batch));
    }
    early_steps += early ? 1 : 0;
    return {};
  }

  Status compute(const StepBatch& batch) {
    ++steps;
    if (clock != nullptr) clock->advance_ns(step_ns);
    rows += static_cast<int64_t>(batch.tokens.size());
    segments += static_cast<int64_t>(batch.segments.size());
    if (fail_next) {
      fail_next = false;
      readiness = damage;
      return internal_error("the fake executor was told to fail");
    }
    if (lost) return Error{ErrorCode::kUnavailable, "the fake device is lost"};
    CHECK(static_cast<int32_t>(batch.tokens.size()) <= limits_.rows_max &&
          static_cast<int32_t>(batch.logits_rows.size()) <= limits_.logits_rows_max);
    CHECK(static_cast<int32_t>(batch.segments.size()) <= limits_.segments_max);
    hashes_.resize(batch.tokens.size());
    for (const BatchGroup& group : batch.groups) {
      for (int32_t i = 0; i < group.row_count; ++i) compute_row(batch, group, i);
    }
    chosen_.assign(batch.choices.size(), kNoToken);
    for (size_t index = 0; index < batch.logits_rows.size(); ++index) {
      float* out = logits_.data() + static_cast<int64_t>(index) * stride_;
      std::fill(out, out + stride_, -std::numeric_limits<float>::infinity());
      for (int32_t id = 0; id < kVocab; ++id)
        out[id] = fake_logit(hashes_[static_cast<size_t>(batch.logits_rows[index])], id);
      if (chooses) choose(batch, index, {out, static_cast<size_t>(stride_)});
    }
    hidden_.clear();
    for (const int32_t row : batch.hidden_rows) {
      for (int32_t i = 0; i < kHidden; ++i) hidden_.push_back(fake_hidden(hashes_[static_cast<size_t>(row)], i));
    }
    return {};
  }

  std::byte* cell(const StepBatch& batch, const BatchGroup& group, int32_t position, int32_t table = 0) const {
    const int32_t index = position / kKvBlockTokens;
    CHECK(index < group.blocks_count);
    const int32_t block = batch.blocks[static_cast<size_t>(group.blocks_begin + table * group.blocks_count + index)];
    CHECK(block >= 0);  // else it went, and somebody still reads it
    return kv_.slice(block, 0, 0) + (position % kKvBlockTokens) * 16;
  }

  // Each of its positions must be what the one behind it was computed from: told by the
  // tokens' hashes, which a chain of the same text alone has.
  void read_window(const StepBatch& batch, const BatchGroup& group, int32_t position, uint64_t hash) const {
    for (int32_t table = tables.full; table < tables.count(); ++table) {
      for (int32_t at = position; at >= std::max(0, position - tables.window + 1); --at) {
        Cell seen;
        std::memcpy(&seen, cell(batch, group, at, table), sizeof seen);
        CHECK(seen.position == static_cast<uint64_t>(at));
        if (at == position) CHECK(seen.hash == hash);
        if (tables.full == 0) continue;
        Cell whole;
        std::memcpy(&whole, cell(batch, group, at), sizeof whole);
        CHECK(seen.hash == whole.hash);
      }
    }
  }

  // What the state says of the text before `position`, if all is well `hash`, as of this
  // row from now on.
  uint64_t read_state(const BatchGroup& group, int32_t position, uint64_t hash) const {
    if (states_.slots == 0) return hash;
    CHECK(group.state >= 0 && group.state < states_.slots);
    Cell seen;
    std::memcpy(&seen, states_.at(group.state), sizeof seen);
    const bool is_this = seen.position == static_cast<uint64_t>(position) && (position == 0 || seen.hash == hash);
    return is_this ? hash : mix(mix(hash, seen.hash), seen.position);
  }
  void write_state(const BatchGroup& group, int32_t position, uint64_t hash) const {
    if (states_.slots == 0) return;
    const Cell now{hash, static_cast<uint64_t>(position) + 1};
    std::memcpy(states_.at(group.state), &now, sizeof now);
  }
  void spoil_states(const StepBatch& batch) const {
    for (const BatchGroup& group : batch.groups)
      if (states_.slots > 0) write_state(group, group.position + group.row_count - 1, 0xBAD);
  }

  void choose(const StepBatch& batch, size_t index, std::span<float> logits) {
    CHECK(batch.choices.size() == batch.logits_rows.size());
    const RowChoice& choice = batch.choices[index];
    if (choice.vocab == 0) {
      ++not_chosen;
      return;
    }
    ++chosen;
    SamplingParams params;
    params.temperature = choice.temperature;
    params.top_p = choice.top_p;
    params.min_p = choice.min_p;
    params.top_k = choice.top_k;
    params.seed = choice.seed;
    chosen_[index] = sampler_.sample({.logits = logits.first(static_cast<size_t>(choice.vocab)),
                                      .params = &params,
                                      .choice = choice.choice,
                                      .position = choice.position});
    std::fill(logits.begin(), logits.end(), std::numeric_limits<float>::quiet_NaN());
  }

  void compute_row(const StepBatch& batch, const BatchGroup& group, int32_t i) {
    const int32_t row = group.row_begin + i, position = group.position + i;
    CHECK(batch.positions[static_cast<size_t>(row)] == position);
    uint64_t previous = 1;
    if (position > 0) {
      Cell before;
      std::memcpy(&before, cell(batch, group, position - 1), sizeof before);
      CHECK(before.position == static_cast<uint64_t>(position - 1));  // else the block holds another text
      previous = before.hash;
    }
    previous = read_state(group, position, previous);
    uint64_t hash = next_hash(previous, batch.tokens[static_cast<size_t>(row)]);
    for (const LoraSegment& segment : batch.segments) {
      if (row < segment.row_begin || row >= segment.row_begin + segment.row_count) continue;
      const AdapterVersionId version = batch.adapters[static_cast<size_t>(segment.slot)];
      if (tier != nullptr) tier->expect_usable(version);
      uint64_t content;
      std::memcpy(&content, adapters_.at(version)->pairs[0].a, sizeof content);
      hash = adapted(hash, content, segment.scale);
    }
    const Cell now{hash, static_cast<uint64_t>(position)};
    for (int32_t table = 0; table < tables.count(); ++table)
      std::memcpy(cell(batch, group, position, table), &now, sizeof now);
    read_window(batch, group, position, hash);
    write_state(group, position, hash);
    hashes_[static_cast<size_t>(row)] = hash;
  }

  const ModelLimits limits_;
  KvView kv_;
  StateView states_;
  std::map<AdapterVersionId, const Adapter*> adapters_;
  std::map<AdapterVersionId, std::shared_ptr<const Arrivals>> arriving_;
  int64_t stride_ = 0;
  std::vector<float> logits_, hidden_;
  std::vector<TokenId> chosen_;
  std::vector<uint64_t> hashes_;
  Sampler sampler_;
};

// Adapter files in memory. Thread-safe; loads may be held back.
class FakeFiles {
 public:
  struct File {
    FileStamp stamp;
    int64_t bytes = 1000;
    uint64_t content = 0;
    std::vector<TokenId> invocation;
    bool saved_tensors = false;
    std::optional<Error> broken;
  };

  void put(const std::string& path, uint64_t content, int64_t bytes = 1000) {
    const std::lock_guard lock(mutex_);
    File file;
    file.stamp = {content, bytes, ++clock_};
    file.bytes = bytes;
    file.content = content;
    files_[path] = file;
  }
  template <typename Change>
  void change(const std::string& path, Change&& change) {
    const std::lock_guard lock(mutex_);
    change(files_[path]);
    files_[path].stamp.mtime_ns = ++clock_;
  }
  // The content behind a version digest prefix (as events report it).
  static uint64_t content_of(const std::string& version) { return std::stoull(version.substr(0, 12), nullptr, 16); }

  AdapterSource source() {
    return {[this](const std::string& path) { return stamp(path); },
            [this](const std::string& path, const AdapterLoadOptions& options, AdapterVersionId version) {
              return load(path, options, version);
            }};
  }

 private:
  Result<FileStamp> stamp(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(path);
    if (found == files_.end()) return not_found(path + " does not exist");
    return found->second.stamp;
  }
  Result<AdapterLoad> load(const std::string& path, const AdapterLoadOptions& options, AdapterVersionId version) {
    const std::lock_guard lock(mutex_);
    const File& file = files_[path];
    if (file.broken) return *file.broken;
    if (file.bytes > options.bytes_max) return AdapterLoad{.bytes_needed = file.bytes};
    auto adapter = std::make_shared<Adapter>();
    auto storage = std::make_shared<uint64_t>(file.content);
    adapter->version = version;
    for (int i = 0; i < 6; ++i)
      adapter->digest[static_cast<size_t>(i)] = static_cast<uint8_t>(file.content >> (8 * (5 - i)));
    TRY(check_digest(adapter->digest, options.expected_digest, path));
    adapter->bytes = file.bytes;
    adapter->rank_max = 4;
    adapter->vocab = kVocab;
    adapter->pairs.resize(kLayerModules + 2);
    adapter->pairs[0].rank = 4;
    adapter->pairs[0].a = reinterpret_cast<const std::byte*>(storage.get());
    adapter->alora_invocation = file.invocation;
    if (file.saved_tensors) adapter->saved.final_norm = reinterpret_cast<const float*>(storage.get());
    adapter->storage = storage;
    return AdapterLoad{.adapter = std::move(adapter)};
  }

  std::mutex mutex_;
  std::map<std::string, File> files_;
  int64_t clock_ = 0;
};

}  // namespace loralei::sim
