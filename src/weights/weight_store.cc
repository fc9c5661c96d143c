// SPDX-License-Identifier: Apache-2.0
#include "weights/weight_store.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "tensor/bf16_in_f16.h"
#include "weights/weight_store_state.h"

namespace loralei {
namespace {

int64_t bytes_of_vector(const TensorInfo& info) { return numbers_of(info) * 4; }

}  // namespace

WeightStore::WeightStore() : state_(std::make_unique<State>()) {}
WeightStore::~WeightStore() { check(); }

Result<int64_t> WeightStore::bytes_needed(const BaseModelFile& model, const WeightOptions& options) {
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  int64_t bytes = 0;
  for (const HeldMatrix& matrix : held.matrices) bytes += State::Matrix::aligned(planned_bytes(matrix.planned));
  for (const TensorInfo* info : held.vectors) bytes += bytes_of_vector(*info);
  return bytes;
}

Result<std::vector<PlannedMatrix>> WeightStore::planned(const BaseModelFile& model, const WeightOptions& options) {
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  std::vector<PlannedMatrix> planned;
  for (const HeldMatrix& matrix : held.matrices) planned.push_back(matrix.planned);
  return planned;
}

Status WeightStore::State::read_vectors(const HeldTensors& held, const TensorReader& reader) {
  for (const TensorInfo* info : held.vectors) {
    TRY_ASSIGN(const uint64_t own, read_vector(reader, *info, vectors[info->name]));
    vectors_hash += own;
    vector_bytes += bytes_of_vector(*info);
  }
  return {};
}

Status WeightStore::State::reserve(const HeldTensors& held) {
  int64_t whole = 0;
  for (const HeldMatrix& matrix : held.matrices) {
    add_matrix(matrix);
    whole += matrices.back().bytes(matrices.back().view.rows);
  }
  TRY_ASSIGN(arena, HostBuffer::reserve(std::max(whole, kAlignBytes)));
  return {};
}

void WeightStore::State::add_matrix(const HeldMatrix& held) {
  Matrix& matrix = matrices.emplace_back();
  matrix.view.dtype = held.target.dtype;
  matrix.view.layout = held.target.layout;
  matrix.view.rows = static_cast<int32_t>(held.target.rows);
  matrix.view.cols = static_cast<int32_t>(held.target.cols);
  matrix.file_dtype = held.target.dtype;
  matrix.planned = held.planned;
  slots[held.source->name] = static_cast<TensorSlot>(matrices.size() - 1);
}

Status WeightStore::State::hold_as_bf16(const HeldTensors& held, const std::vector<std::atomic<bool>>& which,
                                        const std::vector<ReadUnit>& units, int threads) {
  TRY(run_units(units, threads, [&](const ReadUnit& unit, UnitBuffers&) -> Status {
    const ShardPart rows = TensorReader::held_rows(held.matrices[unit.matrix].target, unit.row_begin, unit.row_count);
    if (which[unit.matrix])
      f16_to_bf16_in_place(row(unit.matrix, rows.begin), rows.count * matrices[unit.matrix].view.cols);
    return {};
  }));
  for (size_t i = 0; i < which.size(); ++i) {
    if (which[i]) matrices[i].view.dtype = DType::kBF16;
  }
  return {};
}

std::string smaller_weights_advice(const BaseModelFile& model) {
  return can_quantise(model) ? "use a quantised file or --quant q4_0" : "use a file with fewer bits a weight";
}

Result<std::unique_ptr<WeightStore>> WeightStore::load(const BaseModelFile& model, Ledger& ledger,
                                                       const WeightOptions& options) {
  std::unique_ptr<WeightStore> store(new WeightStore());
  State& state = *store->state_;
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  TRY_ASSIGN(const int64_t bytes, bytes_needed(model, options));
  auto grant = ledger.try_grant(MemoryUse::kWeights, bytes);
  if (!grant) {
    return too_large("The model's weights need " + format_bytes(bytes) + " but only " +
                     format_bytes(ledger.available_bytes(MemoryUse::kWeights)) + " of the memory budget are free; " +
                     smaller_weights_advice(model) + ", or raise --memory-budget.");
  }
  state.grant = std::move(*grant);
  TRY(state.reserve(held));

  std::vector<ReadUnit> units;
  int64_t total_bytes = 0, arena_bytes = 0;
  for (size_t i = 0; i < held.matrices.size(); ++i) {
    State::Matrix& matrix = state.matrices[i];
    matrix.at = arena_bytes;
    matrix.locked_rows = matrix.view.rows;
    arena_bytes += matrix.bytes(matrix.locked_rows);
    add_units(held, i, units);
  }
  for (const ReadUnit& unit : units) total_bytes += unit.row_count * held.matrices[unit.matrix].target.source_row_bytes;
  TRY(state.arena.resize(arena_bytes));
  state.add_panels();

  TRY(state.read_vectors(held, reader));
  std::atomic<uint64_t> hash{options.shard.rank == 0 ? state.vectors_hash : 0};  // a sum: units finish in any order
  std::vector<std::atomic<bool>> bf16(held.matrices.size());                     // f16 so far of numbers of bf16 alone
  for (size_t i = 0; i < bf16.size(); ++i) bf16[i] = held.matrices[i].target.dtype == DType::kF16;
  std::mutex mutex;
  int64_t done_bytes = 0;
  TRY(run_units(units, options.threads, [&](const ReadUnit& unit, UnitBuffers& buffers) -> Status {
    const HeldMatrix& matrix = held.matrices[unit.matrix];
    const ShardPart rows = TensorReader::held_rows(matrix.target, unit.row_begin, unit.row_count);
    std::byte* const out = state.row(unit.matrix, rows.begin);
    TRY_ASSIGN(const uint64_t own,
               reader.read_rows(*matrix.source, matrix.target, unit.row_begin, unit.row_count, out, buffers.source));
    if (bf16[unit.matrix] && !all_bf16(out, rows.count * matrix.target.cols)) bf16[unit.matrix] = false;
    if (unit.counts) hash.fetch_add(own);
    if (!options.progress) return {};
    const std::lock_guard lock(mutex);
    done_bytes += unit.row_count * matrix.target.source_row_bytes;
    options.progress(done_bytes, total_bytes);
    return {};
  }));
  TRY(state.hold_as_bf16(held, bf16, units, options.threads));
  state.fingerprint = fingerprint_text(hash.load());
  return store;
}

Result<std::unique_ptr<WeightStore>> WeightStore::stream(const BaseModelFile& model, Ledger& ledger,
                                                         const WeightOptions& options,
                                                         const StreamingOptions& streaming, LogSink& log) {
  std::unique_ptr<WeightStore> store(new WeightStore());
  State& state = *store->state_;
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  TRY(state.reserve(held));
  state.grant = *ledger.try_grant(MemoryUse::kWeights, 0);
  TRY(state.read_vectors(held, reader));
  TRY(store->resize(model, options, streaming, log));
  state.fingerprint = state.fingerprint_with(state.packed);
  return store;
}

Result<std::unique_ptr<WeightStore>> WeightStore::stream_found(const BaseModelFile& model, Ledger& ledger,
                                                               const WeightOptions& options,
                                                               const std::string& cache_dir,
                                                               StreamingOptions& streaming, LogSink& log) {
  TRY_ASSIGN(PackedFile packed, find_or_pack(model, options, cache_dir, log));
  streaming.packed_path = packed.path;
  auto store = stream(model, ledger, options, streaming, log);
  // Of a damaged one the name is gone by now, unless it could not be removed.
  const bool removed = !PosixFileSystem().exists(packed.path);
  if (store.ok() || store.error().code != ErrorCode::kCorrupt || !removed) return store;
  log.log(LogLevel::kWarning, store.error().message);
  TRY_ASSIGN(packed, make_packed(model, options, cache_dir, log));
  streaming.packed_path = packed.path;
  return stream(model, ledger, options, streaming, log);
}

void WeightStore::join_fingerprint(const std::string& of_other) {
  state_->fingerprint = fingerprint_text(fingerprint_value(state_->fingerprint) + fingerprint_value(of_other));
}

void WeightStore::release_matrices() {
  check();
  CHECK(!streams());
  for (State::Matrix& matrix : state_->matrices) {
    matrix.locked_rows = 0;
    matrix.locked_panels = 0;
    matrix.panels.clear();
    matrix.view.panels = {};
  }
  state_->arena = HostBuffer();
  state_->grant.shrink_to(state_->vector_bytes);
}

TensorSlot WeightStore::find(const std::string& name) const {
  const auto it = state_->slots.find(name);
  return it == state_->slots.end() ? kNoTensor : it->second;
}

const WeightView& WeightStore::view(TensorSlot slot) const { return state_->matrices[static_cast<size_t>(slot)].view; }

const float* WeightStore::vector(const std::string& name) const {
  const auto it = state_->vectors.find(name);
  return it == state_->vectors.end() ? nullptr : it->second.data();
}

int64_t WeightStore::resident_bytes() const { return state_->grant.bytes(); }
int64_t WeightStore::whole_bytes() const {
  int64_t bytes = state_->vector_bytes;
  for (const State::Matrix& matrix : state_->matrices) bytes += matrix.bytes(matrix.view.rows);
  return bytes;
}
std::vector<DType> WeightStore::formats(LayoutId layout) const {
  std::vector<DType> formats;
  for (const State::Matrix& matrix : state_->matrices) {
    const bool known = std::find(formats.begin(), formats.end(), matrix.view.dtype) != formats.end();
    if (matrix.view.layout == layout && !known) formats.push_back(matrix.view.dtype);
  }
  return formats;
}
const std::string& WeightStore::fingerprint() const { return state_->fingerprint; }
bool WeightStore::streams() const { return state_->streamer != nullptr || state_->experts != nullptr; }
ExpertTotals WeightStore::expert_totals() const {
  ExpertTotals totals = state_->past_experts;
  if (state_->experts == nullptr) return totals;
  const ExpertTotals now = state_->experts->totals();
  totals.hits += now.hits;
  totals.misses += now.misses;
  totals.read_bytes += now.read_bytes;
  totals.waited_ns += now.waited_ns;
  return totals;
}
StreamerTotals WeightStore::stream_totals() const {
  StreamerTotals totals = state_->streamer_totals();
  const ExpertTotals experts = expert_totals();
  totals.read_bytes += experts.read_bytes;
  totals.waited_ns += experts.waited_ns;
  return totals;
}
StreamerTotals WeightStore::State::streamer_totals() const {
  StreamerTotals totals = past;
  if (streamer == nullptr) return totals;
  const StreamerTotals now = streamer->totals();
  totals.read_bytes += now.read_bytes;
  totals.waited_ns += now.waited_ns;
  totals.passes += now.passes;
  return totals;
}
int64_t WeightStore::read_bytes_per_pass() const { return streams() ? state_->read_per_pass : 0; }
StreamShape WeightStore::stream_shape() const {
  const ResidencyPlan& plan = state_->plan;
  return {plan.streamed_bytes, plan.decoded_bytes, plan.window_bytes, plan.window_bound_bytes};
}
std::string WeightStore::describe() const {
  const auto as_bf16 = std::count_if(state_->matrices.begin(), state_->matrices.end(), [](const State::Matrix& matrix) {
    return matrix.file_dtype == DType::kF16 && matrix.view.dtype == DType::kBF16;
  });
  if (as_bf16 == 0) return state_->description;
  return state_->description + std::to_string(as_bf16) +
         " matrices stored in f16 hold numbers of bf16 alone, as those of models trained in it do, and are held as "
         "bf16\n";
}
void WeightStore::check() const { CHECK(state_->open_uses == 0); }

}  // namespace loralei
