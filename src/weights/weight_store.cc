// SPDX-License-Identifier: Apache-2.0
#include "weights/weight_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "device/host/arena.h"
#include "sys/file.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"
#include "weights/tensor_reader.h"

namespace loralei {
namespace {

constexpr int32_t kPanelRows =
    1024;  // a multiple of kRowTile; small enough that parts of a matrix can be moved on their own
constexpr int64_t kAlignBytes = 64;           // every matrix starts on a cache line
constexpr int64_t kReadUnitBytes = 8 * kMiB;  // work handed to one loader thread at a time

static_assert(kPanelRows % kRowTile == 0);

int64_t aligned(int64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

// Norms and biases are vectors; everything else a matrix.
bool is_matrix(const TensorInfo& info) { return info.shape.size() == 2; }

}  // namespace

struct WeightStore::State {
  struct Matrix {
    WeightView view;
    std::vector<WeightPanel> panels;
    int32_t pins = 0;
  };
  Grant grant;
  HostBuffer arena;
  std::vector<Matrix> matrices;
  std::unordered_map<std::string, TensorSlot> slots;
  std::unordered_map<std::string, std::vector<float>> vectors;
  std::string fingerprint;
};

namespace {

// One run of rows of one tensor: what a loader thread takes.
struct ReadUnit {
  const TensorInfo* source = nullptr;
  TensorTarget target;
  int64_t row_begin = 0;
  int64_t row_count = 0;
};

// Runs `work` over all units on `threads` threads; the first error stops the others.
Status run_units(const std::vector<ReadUnit>& units, const TensorReader& reader, const WeightOptions& options,
                 std::atomic<uint64_t>& hash) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status first_error;
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  for (const ReadUnit& unit : units) total_bytes += unit.row_count * unit.target.source_row_bytes;
  const auto worker = [&] {
    std::vector<std::byte> buffer;
    for (;;) {
      const size_t index = next.fetch_add(1);
      if (index >= units.size() || failed.load()) return;
      const ReadUnit& unit = units[index];
      Result<uint64_t> unit_hash = reader.read_rows(*unit.source, unit.target, unit.row_begin, unit.row_count, buffer);
      const std::lock_guard lock(mutex);
      if (!unit_hash.ok()) {
        if (!failed.exchange(true)) first_error = std::move(unit_hash).error();
        return;
      }
      hash.fetch_add(unit_hash.value());  // order-free: units finish in any order
      done_bytes += unit.row_count * unit.target.source_row_bytes;
      if (options.progress) options.progress(done_bytes, total_bytes);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < std::max(1, options.threads); ++i) threads.emplace_back(worker);
  worker();
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

// Format a matrix is held in: the file's, or the wanted quantisation where its rows divide into blocks. The head and
// the embedding keep more bits than q4_0, as the field's tools do, because their rounding goes straight into the
// logits.
DType held_dtype(const TensorInfo& info, const WeightOptions& options) {
  if (!options.quantise || is_quantised(info.dtype)) return info.dtype;
  DType wanted = *options.quantise;
  const bool outer = info.name == "lm_head.weight" || info.name == "model.embed_tokens.weight";
  if (outer && wanted == DType::kQ4_0) wanted = DType::kQ8_0;
  return fits_blocks(wanted, info.shape[1]) ? wanted : info.dtype;
}

LayoutId held_layout(const TensorInfo& info, DType held, bool tied_head, const WeightOptions& options) {
  const bool looked_up_only = info.name == "model.embed_tokens.weight" && !tied_head;
  return is_quantised(held) && !looked_up_only ? options.quantised_layout : LayoutId::kPlain;
}

}  // namespace

WeightStore::WeightStore() : state_(std::make_unique<State>()) {}
WeightStore::~WeightStore() { check(); }

Result<std::unique_ptr<WeightStore>> WeightStore::load(const BaseModelFile& model, Ledger& ledger,
                                                       const WeightOptions& options) {
  if (options.quantise && !can_encode(*options.quantise)) {
    return unsupported(std::string("--quant ") + dtype_info(*options.quantise).name +
                       " cannot be made on load; choose q8_0 or q4_0.");
  }
  std::unique_ptr<WeightStore> store(new WeightStore());
  State& state = *store->state_;

  int64_t bytes = 0;
  for (const TensorInfo& info : model.index.tensors) {
    if (is_matrix(info)) {
      const DType held = held_dtype(info, options);
      const LayoutId layout = held_layout(info, held, model.config.tied_head, options);
      bytes += aligned(matrix_bytes(held, layout, info.shape[0], info.shape[1]));
    } else {
      bytes += info.shape.empty() ? 4 : info.shape[0] * 4;
    }
  }
  auto grant = ledger.try_grant(MemoryUse::kWeights, bytes);
  if (!grant) {
    return too_large("The model's weights need " + format_bytes(bytes) + " but only " +
                     format_bytes(ledger.available_bytes(MemoryUse::kWeights)) +
                     " of the memory budget are free; use a quantised file or --quant q4_0, or raise --memory-budget.");
  }
  state.grant = std::move(*grant);
  TRY_ASSIGN(state.arena, HostBuffer::allocate(std::max<int64_t>(bytes, kAlignBytes)));
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));

  std::vector<ReadUnit> units;
  std::byte* next = state.arena.data();
  state.matrices.reserve(model.index.tensors.size());
  for (const TensorInfo& info : model.index.tensors) {
    ReadUnit unit;
    unit.source = &info;
    unit.target.permuted_heads = reader.permuted_heads(info.name);
    if (!is_matrix(info)) {
      const int64_t count = info.shape.empty() ? 1 : info.shape[0];
      std::vector<float>& values = state.vectors[info.name];
      values.resize(static_cast<size_t>(count));
      // A vector is one row, or one row a number where its rows are permuted (biases of q and k).
      const bool permuted = unit.target.permuted_heads > 0;
      unit.target.dtype = DType::kF32;
      unit.target.cols = permuted ? 1 : count;
      unit.target.data = reinterpret_cast<std::byte*>(values.data());
      unit.target.rows = unit.row_count = permuted ? count : 1;
      unit.target.source_row_bytes = row_bytes(info.dtype, unit.target.cols);
      units.push_back(unit);
      continue;
    }
    State::Matrix& matrix = state.matrices.emplace_back();
    matrix.view.dtype = held_dtype(info, options);
    matrix.view.layout = held_layout(info, matrix.view.dtype, model.config.tied_head, options);
    matrix.view.rows = static_cast<int32_t>(info.shape[0]);
    matrix.view.cols = static_cast<int32_t>(info.shape[1]);
    const int64_t held_row_bytes = row_bytes(matrix.view.dtype, info.shape[1]);
    for (int32_t row = 0; row < matrix.view.rows; row += kPanelRows) {
      matrix.panels.push_back({next + row * held_row_bytes, row, std::min(kPanelRows, matrix.view.rows - row)});
    }
    state.slots[info.name] = static_cast<TensorSlot>(state.matrices.size() - 1);
    unit.target.dtype = matrix.view.dtype;
    unit.target.layout = matrix.view.layout;
    unit.target.rows = info.shape[0];
    unit.target.cols = info.shape[1];
    unit.target.data = next;
    unit.target.source_row_bytes = row_bytes(info.dtype, info.shape[1]);
    next += aligned(matrix_bytes(matrix.view.dtype, matrix.view.layout, info.shape[0], info.shape[1]));
    const int64_t unit_rows = TensorReader::unit_rows(unit.target);
    const int64_t rows_per_unit =
        std::max<int64_t>(1, kReadUnitBytes / unit.target.source_row_bytes / unit_rows) * unit_rows;
    for (int64_t row = 0; row < info.shape[0]; row += rows_per_unit) {
      unit.row_begin = row;
      unit.row_count = std::min(rows_per_unit, info.shape[0] - row);
      units.push_back(unit);
    }
  }
  for (State::Matrix& matrix : state.matrices) matrix.view.panels = matrix.panels;

  std::atomic<uint64_t> hash{0};
  TRY(run_units(units, reader, options, hash));
  static constexpr char kHex[] = "0123456789abcdef";
  for (int shift = 60; shift >= 0; shift -= 4) state.fingerprint += kHex[(hash.load() >> shift) & 15];
  return store;
}

TensorSlot WeightStore::find(const std::string& name) const {
  const auto it = state_->slots.find(name);
  return it == state_->slots.end() ? kNoTensor : it->second;
}

WeightPin WeightStore::pin(TensorSlot slot) {
  State::Matrix& matrix = state_->matrices[static_cast<size_t>(slot)];
  ++matrix.pins;
  return WeightPin(this, slot, &matrix.view);
}

void WeightStore::unpin(TensorSlot slot) {
  State::Matrix& matrix = state_->matrices[static_cast<size_t>(slot)];
  CHECK(matrix.pins > 0);
  --matrix.pins;
}

const float* WeightStore::vector(const std::string& name) const {
  const auto it = state_->vectors.find(name);
  return it == state_->vectors.end() ? nullptr : it->second.data();
}

int64_t WeightStore::resident_bytes() const { return state_->grant.bytes(); }
std::vector<DType> WeightStore::formats(LayoutId layout) const {
  std::vector<DType> formats;
  for (const State::Matrix& matrix : state_->matrices) {
    const bool known = std::find(formats.begin(), formats.end(), matrix.view.dtype) != formats.end();
    if (matrix.view.layout == layout && !known) formats.push_back(matrix.view.dtype);
  }
  return formats;
}
const std::string& WeightStore::fingerprint() const { return state_->fingerprint; }

void WeightStore::check() const {
  for (const State::Matrix& matrix : state_->matrices) CHECK(matrix.pins == 0);
}

WeightPin::WeightPin(WeightPin&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), slot_(other.slot_), view_(other.view_) {}

WeightPin& WeightPin::operator=(WeightPin&& other) noexcept {
  if (this != &other) {
    if (store_ != nullptr) store_->unpin(slot_);
    store_ = std::exchange(other.store_, nullptr);
    slot_ = other.slot_;
    view_ = other.view_;
  }
  return *this;
}

WeightPin::~WeightPin() {
  if (store_ != nullptr) store_->unpin(slot_);
}

Status WeightPin::wait_panel(int32_t index) const {
  DCHECK(index >= 0 && static_cast<size_t>(index) < view_->panels.size());
  (void)index;
  return {};
}

}  // namespace loralei
