// SPDX-License-Identifier: Apache-2.0
#include "weights/weight_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "device/host/arena.h"
#include "formats/packed_index.h"
#include "sys/file.h"
#include "sys/pages.h"
#include "tensor/tile_layout.h"
#include "weights/pack.h"
#include "weights/panel_decoder.h"
#include "weights/tensor_reader.h"

namespace loralei {
namespace {

constexpr int32_t kPanelRows = 1024;  // of resident matrices
constexpr int64_t kAlignBytes = 64;   // every matrix starts on a cache line
// A round of streamed panels takes at most this part of the window: while it is used, the rest goes on arriving.
constexpr int64_t kRoundsInWindow = 4;

static_assert(kPanelRows % kRowTile == 0);

int64_t aligned(int64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }
int64_t bytes_of_vector(const TensorInfo& info) { return info.shape.empty() ? 4 : info.shape[0] * 4; }

}  // namespace

struct WeightStore::State {
  struct Matrix {
    WeightView view;                  // panels: all where resident, else none
    std::vector<WeightPanel> panels;  // locked ones, then streamed ones
    size_t locked_panels = 0;
    int64_t locked_rows = 0;
    int64_t at = 0;              // of the locked rows, in the arena
    int64_t first_streamed = 0;  // number in the pass
    PlannedMatrix planned;
    PackedMatrix packed;  // once there is a packed file

    int64_t tiles(int64_t matrix_rows) const { return (matrix_rows + kRowTile - 1) / kRowTile; }
    int64_t bytes(int64_t matrix_rows) const { return aligned(tiles(matrix_rows) * planned.tile_bytes); }
    bool resident() const { return locked_rows == view.rows; }
  };
  Grant grant;
  HostBuffer arena;  // room for all rows reserved; holds the locked ones, one matrix after the other
  int64_t vector_bytes = 0;
  std::vector<Matrix> matrices;
  std::unordered_map<std::string, TensorSlot> slots;
  std::unordered_map<std::string, std::vector<float>> vectors;
  std::string fingerprint;
  int open_uses = 0;

  // Streaming only.
  PackedIndex packed;
  std::unique_ptr<File> packed_file;  // for single rows
  std::unique_ptr<Streamer> streamer;
  StreamerTotals past;                    // of the streamers before this one
  Status stream_failure;                  // why there is none although something is to be streamed
  std::unique_ptr<PanelDecoder> decoder;  // where panels are streamed shrunk
  ResidencyPlan plan;
  std::string description;
  int64_t round_bytes = 0;  // of streamed panels
  int64_t locked_round_bytes = 0;
  std::vector<std::byte> row_tile, stored_tile, rows;  // look_up: one tile, as held and as stored; the rows found
  std::vector<TokenId> row_numbers;
  WeightPanel rows_panel;

  Status read_vectors(const HeldTensors& held, const TensorReader& reader, uint64_t& hash) {
    for (const TensorInfo* info : held.vectors) {
      TRY_ASSIGN(const uint64_t own, read_vector(reader, *info, vectors[info->name]));
      hash += own;
      vector_bytes += bytes_of_vector(*info);
    }
    return {};
  }
  // Room for everything, of which nothing is held yet.
  Status reserve(const HeldTensors& held) {
    int64_t whole = 0;
    for (const HeldMatrix& matrix : held.matrices) {
      add_matrix(matrix);
      whole += matrices.back().bytes(matrices.back().view.rows);
    }
    TRY_ASSIGN(arena, HostBuffer::reserve(std::max(whole, kAlignBytes)));
    return {};
  }
  void add_matrix(const HeldMatrix& held) {
    Matrix& matrix = matrices.emplace_back();
    matrix.view.dtype = held.target.dtype;
    matrix.view.layout = held.target.layout;
    matrix.view.rows = static_cast<int32_t>(held.target.rows);
    matrix.view.cols = static_cast<int32_t>(held.target.cols);
    matrix.planned = held.planned;
    slots[held.source->name] = static_cast<TensorSlot>(matrices.size() - 1);
  }
  std::vector<PlannedMatrix> planned() const {
    std::vector<PlannedMatrix> planned;
    for (const Matrix& matrix : matrices) planned.push_back(matrix.planned);
    return planned;
  }
  // What a plan does not count: vectors, and that each matrix starts on a cache line.
  int64_t beside_plan() const { return vector_bytes + std::ssize(matrices) * kAlignBytes; }
  int64_t locked_bytes() const {
    int64_t bytes = 0;
    for (const Matrix& matrix : matrices) bytes += matrix.bytes(matrix.locked_rows);
    return bytes;
  }
  void lock_arena(LogSink& log) const {
    if (arena.size_bytes() == 0) return;
    if (Status status = lock_pages(arena.data(), arena.size_bytes()); !status.ok())
      log.log(LogLevel::kWarning, status.error().message);
  }
  Status open_packed_file(const BaseModelFile& model, const WeightOptions& options, const std::string& path);
  void make_look_up_memory(int32_t rows_max);
  void slide(std::span<const int64_t> rows);
  Status lock_rows(std::span<const int64_t> rows, int threads, LogSink& log);
  Status read_locked(std::span<const int64_t> kept, int threads);
  Status read_shrunk_row(const Matrix& matrix, int64_t row, std::byte* out);
  std::vector<StreamPanel> add_panels();
  Status start_streamer(std::vector<StreamPanel> panels, const StreamingOptions& streaming);
};

WeightStore::WeightStore() : state_(std::make_unique<State>()) {}
WeightStore::~WeightStore() { check(); }

Result<int64_t> WeightStore::bytes_needed(const BaseModelFile& model, const WeightOptions& options) {
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  int64_t bytes = 0;
  for (const HeldMatrix& matrix : held.matrices) bytes += aligned(planned_bytes(matrix.planned));
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
                     format_bytes(ledger.available_bytes(MemoryUse::kWeights)) +
                     " of the memory budget are free; use a quantised file or --quant q4_0, or raise --memory-budget.");
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
    total_bytes += held.matrices[i].target.rows * held.matrices[i].target.source_row_bytes;
  }
  TRY(state.arena.resize(arena_bytes));
  state.add_panels();

  uint64_t vectors_hash = 0;
  TRY(state.read_vectors(held, reader, vectors_hash));
  std::atomic<uint64_t> hash{vectors_hash};  // a sum: units finish in any order
  std::mutex mutex;
  int64_t done_bytes = 0;
  TRY(run_units(units, options.threads, [&](const ReadUnit& unit, UnitBuffers& buffers) -> Status {
    const HeldMatrix& matrix = held.matrices[unit.matrix];
    std::byte* const out = state.arena.data() + state.matrices[unit.matrix].at +
                           unit.row_begin * row_bytes(matrix.target.dtype, matrix.target.cols);
    TRY_ASSIGN(const uint64_t own,
               reader.read_rows(*matrix.source, matrix.target, unit.row_begin, unit.row_count, out, buffers.source));
    hash.fetch_add(own);
    if (!options.progress) return {};
    const std::lock_guard lock(mutex);
    done_bytes += unit.row_count * matrix.target.source_row_bytes;
    options.progress(done_bytes, total_bytes);
    return {};
  }));
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
  uint64_t hash = 0;
  TRY(state.read_vectors(held, reader, hash));
  TRY(store->resize(model, options, streaming, log));
  state.fingerprint = fingerprint_text(hash + fingerprint_value(state.packed.fingerprint));
  return store;
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

// --- resizing ---
Result<ResidencyPlan> WeightStore::plan_for(int64_t weight_bytes, const ResidencyOptions& residency) const {
  const int64_t beside = weight_bytes >= whole_bytes() ? state_->vector_bytes : state_->beside_plan();
  return plan_residency(state_->planned(), weight_bytes - beside, residency);
}

int64_t WeightStore::least_bytes(ResidencyPolicy policy) const {
  return std::min(whole_bytes(), state_->beside_plan() + least_residency_bytes(state_->planned(), policy));
}

Status WeightStore::open_packed_file(const BaseModelFile& model, const WeightOptions& options,
                                     const std::string& path) {
  return state_->open_packed_file(model, options, path);
}

Status WeightStore::resize(const BaseModelFile& model, const WeightOptions& options, const StreamingOptions& streaming,
                           LogSink& log) {
  check();
  State& state = *state_;
  TRY(open_packed_file(model, options, streaming.packed_path));
  TRY_ASSIGN(ResidencyPlan plan, plan_for(streaming.weight_bytes, streaming.residency));
  const std::vector<PlannedMatrix> planned = state.planned();
  int64_t bytes = state.vector_bytes + plan.window_bytes;
  for (size_t i = 0; i < planned.size(); ++i) bytes += state.matrices[i].bytes(plan.locked_rows[i]);
  if (bytes > state.grant.bytes() && !state.grant.grow_to(bytes)) {
    return too_large("Locked weights and the stream window need " + format_bytes(bytes) +
                     ", more than is free of the memory budget; raise --memory-budget.");
  }
  if (state.streamer != nullptr) state.past = stream_totals();
  state.streamer.reset();
  state.decoder.reset();
  state.plan = std::move(plan);
  state.description = describe_residency(planned, state.plan);
  const Status read = state.lock_rows(state.plan.locked_rows, options.threads, log);
  if (!read.ok()) {  // what was to be locked passes through the window instead
    const int64_t left = bytes - state.vector_bytes - state.locked_bytes();
    state.plan.window_bytes = std::max(state.plan.window_bytes, std::min(left, kWindowMostBytes));
    if (state.packed.shrink) state.plan.decode_bytes = std::max(state.plan.decode_bytes, state.plan.window_bytes / 2);
  }
  state.make_look_up_memory(streaming.rows_max);
  state.stream_failure = state.start_streamer(state.add_panels(), streaming);
  state.grant.shrink_to(bytes);
  TRY(state.stream_failure);
  return read;
}

Status WeightStore::State::open_packed_file(const BaseModelFile& model, const WeightOptions& options,
                                            const std::string& path) {
  if (packed_file != nullptr) return {};
  TRY_ASSIGN(PackedIndex index, open_packed(path, model, options));
  const PosixFileSystem files;
  TRY_ASSIGN(packed_file, files.open(path));
  packed = std::move(index);
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i].packed = packed.matrices[i];
    matrices[i].planned.stored_tile_bytes = shrunk_tile_bytes(packed.matrices[i]);
  }
  return {};
}

// For rows of an embedding that lie on disk.
void WeightStore::State::make_look_up_memory(int32_t rows_max) {
  int64_t tile = 0, row = 0;
  for (const Matrix& matrix : matrices) {
    if (matrix.resident() || (matrix.planned.role != MatrixRole::kEmbed && !matrix.planned.tied_head)) continue;
    tile = std::max(tile, matrix.planned.tile_bytes);
    row = std::max(row, row_bytes(matrix.view.dtype, matrix.view.cols));
  }
  row_tile.resize(static_cast<size_t>(tile));
  stored_tile.resize(static_cast<size_t>(tile));
  rows.resize(static_cast<size_t>(row * rows_max));
  row_numbers.resize(static_cast<size_t>(rows_max));
}

// Moves the first `rows` locked rows of every matrix to where they belong when these are locked and nothing else.
void WeightStore::State::slide(std::span<const int64_t> rows) {
  const auto move = [&](Matrix& matrix, int64_t to) {
    if (to != matrix.at)
      std::memmove(arena.data() + to, arena.data() + matrix.at, static_cast<size_t>(matrix.bytes(matrix.locked_rows)));
    matrix.at = to;
  };
  // To the left from the first on, then to the right from the last on: nothing is overwritten that is still needed.
  int64_t end = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const int64_t to = end;
    end += matrices[i].bytes(rows[i]);
    if (to <= matrices[i].at) move(matrices[i], to);
  }
  for (size_t i = matrices.size(); i-- > 0;) {
    end -= matrices[i].bytes(rows[i]);
    if (end > matrices[i].at) move(matrices[i], end);
  }
}

// Locks the first `rows` of every matrix: keeps those that are there, reads the others.
Status WeightStore::State::lock_rows(std::span<const int64_t> rows, int threads, LogSink& log) {
  std::vector<int64_t> kept;
  int64_t bytes = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i].locked_rows = std::min(matrices[i].locked_rows, rows[i]);
    kept.push_back(matrices[i].locked_rows);
    bytes += matrices[i].bytes(rows[i]);
  }
  slide(kept);
  TRY(arena.resize(bytes));
  lock_arena(log);
  slide(rows);
  for (size_t i = 0; i < matrices.size(); ++i) matrices[i].locked_rows = rows[i];
  Status status = read_locked(kept, threads);
  for (size_t i = 0; i < matrices.size() && !status.ok(); ++i) matrices[i].locked_rows = kept[i];
  return status;
}

// Locked rows from `kept` on come from the packed file, checked, a few megabytes at a time and past the page cache.
Status WeightStore::State::read_locked(std::span<const int64_t> kept, int threads) {
  constexpr int64_t kPieceBytes = 8 * kMiB;
  std::vector<ReadUnit> units;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Matrix& matrix = matrices[i];
    const int64_t step = std::max<int64_t>(1, kPieceBytes / matrix.packed.tile_bytes()) * kRowTile;
    for (int64_t row = kept[i]; row < matrix.locked_rows; row += step)
      units.push_back({i, row, std::min(step, matrix.locked_rows - row)});
  }
  return run_units(units, threads, [&](const ReadUnit& unit, UnitBuffers& buffers) -> Status {
    const Matrix& matrix = matrices[unit.matrix];
    const int64_t first = unit.row_begin / kRowTile;
    const int64_t end = matrix.tiles(unit.row_begin + unit.row_count);
    std::byte* const place = arena.data() + matrix.at + first * matrix.planned.tile_bytes;
    int64_t bytes = 0;
    for (int64_t tile = first; tile < end; ++tile) bytes += matrix.packed.bytes_of_tile(tile);
    if (matrix.packed.shrunk) buffers.shrunk.resize(static_cast<size_t>(bytes));
    std::byte* const out = matrix.packed.shrunk ? buffers.shrunk.data() : place;
    TRY(packed_file->read_exact(matrix.packed.at + first * matrix.packed.tile_bytes(),
                                {out, static_cast<size_t>(bytes)}));
    for (int64_t tile = first; tile < end; ++tile) {
      const std::byte* const data = out + (tile - first) * matrix.packed.tile_bytes();
      const uint32_t check = tile_check({data, static_cast<size_t>(matrix.packed.bytes_of_tile(tile))}, tile);
      if (check != packed.checks[static_cast<size_t>(matrix.packed.first_check + tile)]) {
        return corrupt("'" + packed_file->path() + "' is damaged in '" + matrix.packed.name +
                       "'; delete it and start again, and it will be made anew.");
      }
      if (!matrix.packed.shrunk) continue;
      TRY(matrix.packed.restore_tile(tile, {data, static_cast<size_t>(matrix.packed.tile_bytes())},
                                     place + (tile - first) * matrix.packed.held_tile_bytes()));
    }
    return {};
  });
}

// Its whole tile is read and decoded, unless it is locked.
Status WeightStore::State::read_shrunk_row(const Matrix& matrix, int64_t row, std::byte* out) {
  const int64_t bytes = row_bytes(matrix.view.dtype, matrix.view.cols);
  const std::byte* data = nullptr;
  if (row < matrix.locked_rows) {
    data = arena.data() + matrix.at + row * bytes;
  } else {
    const int64_t tile = row / kRowTile;
    const std::span<std::byte> stored = std::span(stored_tile).first(static_cast<size_t>(matrix.packed.tile_bytes()));
    TRY(packed_file->read_exact(matrix.packed.at + tile * matrix.packed.tile_bytes(), stored));
    TRY(matrix.packed.restore_tile(tile, stored, row_tile.data()));
    data = row_tile.data() + row % kRowTile * bytes;
  }
  std::memcpy(out, data, static_cast<size_t>(bytes));
  return {};
}

// The panels of every matrix as its locked rows stand; answers those that are streamed, in the order of a pass.
std::vector<StreamPanel> WeightStore::State::add_panels() {
  std::vector<StreamPanel> streamed;
  for (size_t i = 0; i < matrices.size(); ++i) {
    Matrix& matrix = matrices[i];
    const int64_t bytes = row_bytes(matrix.view.dtype, matrix.view.cols);
    const auto add = [&](const std::byte* data, int64_t row, int64_t count) {
      matrix.panels.push_back({data, static_cast<int32_t>(row), static_cast<int32_t>(count)});
    };
    matrix.panels.clear();
    for (int64_t row = 0; row < matrix.locked_rows; row += kPanelRows)
      add(arena.data() + matrix.at + row * bytes, row, std::min<int64_t>(kPanelRows, matrix.locked_rows - row));
    matrix.locked_panels = matrix.panels.size();
    matrix.first_streamed = std::ssize(streamed);
    const int64_t step = panel_rows(matrix.planned);
    const bool in_passes = matrix.planned.role != MatrixRole::kEmbed;
    for (int64_t row = matrix.locked_rows; in_passes && row < matrix.view.rows; row += step) {
      const int64_t count = std::min(step, matrix.view.rows - row);
      add(nullptr, row, count);
      streamed.push_back({static_cast<int32_t>(i), row / kRowTile, matrix.tiles(count)});
    }
    matrix.view.panels =
        matrix.resident() ? std::span<const WeightPanel>(matrix.panels) : std::span<const WeightPanel>();
  }
  return streamed;
}

Status WeightStore::State::start_streamer(std::vector<StreamPanel> panels, const StreamingOptions& streaming) {
  if (panels.empty()) return {};
  StreamerOptions options;
  options.window_bytes = plan.window_bytes - plan.decode_bytes;
  if (plan.decode_bytes > 0) {
    TRY_ASSIGN(decoder, PanelDecoder::create(plan.decode_bytes, panels.size(), streaming.pool));
  }
  options.read_ahead = streaming.read_ahead;
  options.open = [&streaming](std::span<std::byte> memory) {
    BlockReaderOptions reader_options = streaming.reader;
    reader_options.memory = memory;
    return streaming.open_reader ? streaming.open_reader(streaming.packed_path, reader_options)
                                 : open_block_reader(streaming.packed_path, reader_options);
  };
  TRY_ASSIGN(streamer, Streamer::create(packed, std::move(panels), std::move(options)));
  round_bytes = (plan.window_bytes - plan.decode_bytes) / kRoundsInWindow;
  locked_round_bytes = streaming.locked_round_bytes > 0 ? streaming.locked_round_bytes : plan.window_bytes;
  description += "reading with " + streamer->how() + "\n";
  return {};
}

TensorSlot WeightStore::find(const std::string& name) const {
  const auto it = state_->slots.find(name);
  return it == state_->slots.end() ? kNoTensor : it->second;
}

const WeightView& WeightStore::view(TensorSlot slot) const { return state_->matrices[static_cast<size_t>(slot)].view; }

Result<EmbeddedRows> WeightStore::look_up(TensorSlot slot, std::span<const TokenId> tokens) {
  State& state = *state_;
  const State::Matrix& matrix = state.matrices[static_cast<size_t>(slot)];
  if (matrix.resident()) return EmbeddedRows{matrix.view, tokens};
  CHECK(tokens.size() <= state.row_numbers.size());
  const int64_t bytes = row_bytes(matrix.view.dtype, matrix.view.cols);
  const int64_t tile_bytes = matrix.packed.held_tile_bytes();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t row = tokens[i];
    CHECK(row >= 0 && row < matrix.view.rows);
    std::byte* const out = state.rows.data() + static_cast<int64_t>(i) * bytes;
    state.row_numbers[i] = static_cast<TokenId>(i);
    if (matrix.packed.shrunk) {
      TRY(state.read_shrunk_row(matrix, row, out));
      continue;
    }
    if (matrix.view.layout == LayoutId::kPlain) {
      if (row < matrix.locked_rows) {
        std::memcpy(out, state.arena.data() + matrix.at + row * bytes, static_cast<size_t>(bytes));
      } else {
        TRY(state.packed_file->read_exact(matrix.packed.at + row * bytes, {out, static_cast<size_t>(bytes)}));
      }
      continue;
    }
    const int64_t tile = row / kRowTile;
    const std::byte* data = state.row_tile.data();
    if (tile * kRowTile < matrix.locked_rows) {
      data = state.arena.data() + matrix.at + tile * tile_bytes;
    } else {
      TRY(state.packed_file->read_exact(matrix.packed.at + tile * tile_bytes,
                                        {state.row_tile.data(), static_cast<size_t>(tile_bytes)}));
    }
    unpack_tile_row(matrix.view.dtype, data, static_cast<int>(row % kRowTile), matrix.view.cols, out);
  }
  state.rows_panel = {state.rows.data(), 0, static_cast<int32_t>(tokens.size())};
  EmbeddedRows rows;
  rows.view = {matrix.view.dtype,
               LayoutId::kPlain,
               static_cast<int32_t>(tokens.size()),
               matrix.view.cols,
               {&state.rows_panel, 1}};
  rows.tokens = {state.row_numbers.data(), tokens.size()};
  return rows;
}

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
bool WeightStore::streams() const { return state_->streamer != nullptr; }
StreamerTotals WeightStore::stream_totals() const {
  StreamerTotals totals = state_->past;
  if (state_->streamer == nullptr) return totals;
  const StreamerTotals now = state_->streamer->totals();
  totals.read_bytes += now.read_bytes;
  totals.waited_ns += now.waited_ns;
  totals.passes += now.passes;
  return totals;
}
StreamShape WeightStore::stream_shape() const {
  const ResidencyPlan& plan = state_->plan;
  return {plan.streamed_bytes, plan.decoded_bytes, plan.window_bytes, plan.window_bound_bytes};
}
std::string WeightStore::describe() const { return state_->description; }
void WeightStore::check() const { CHECK(state_->open_uses == 0); }

void WeightStore::end_pass(bool done) {
  if (state_->streamer == nullptr) return;
  if (done) {
    state_->streamer->end_pass();
  } else {
    state_->streamer->restart();
  }
}

WeightPass::~WeightPass() {
  if (!done_) store_.end_pass(false);
}
void WeightPass::done() {
  done_ = true;
  store_.end_pass(true);
}

WeightUse::WeightUse(WeightStore& store, std::span<const TensorSlot> slots) : store_(store), count_(slots.size()) {
  CHECK(count_ > 0 && count_ <= kMatricesMax);
  for (size_t i = 0; i < count_; ++i) {
    slots_[i] = slots[i];
    views_[i] = store.view(slots[i]);
    views_[i].panels = {};
  }
  ++store_.state_->open_uses;
}
WeightUse::~WeightUse() { --store_.state_->open_uses; }

// Finds the streamed panel that comes next; false: none is left.
bool WeightUse::awaits_streamed() {
  for (; matrix_ < count_; ++matrix_, panel_ = 0) {
    const WeightStore::State::Matrix& matrix = store_.state_->matrices[static_cast<size_t>(slots_[matrix_])];
    if (panel_ < std::ssize(matrix.panels) - static_cast<int64_t>(matrix.locked_panels)) return true;
  }
  return false;
}

Result<bool> WeightUse::next() {
  WeightStore::State& state = *store_.state_;
  for (size_t i = 0; i < count_; ++i) views_[i].panels = {};
  if (streamed_end_ > 0) state.streamer->release(streamed_end_);
  if (!awaits_streamed()) return next_locked(INT64_MAX);
  if (state.streamer != nullptr) {
    const WeightStore::State::Matrix& matrix = state.matrices[static_cast<size_t>(slots_[matrix_])];
    if (state.streamer->ready(matrix.first_streamed + panel_)) return next_streamed();
  }
  if (next_locked(state.locked_round_bytes)) return true;
  if (state.streamer == nullptr) return state.stream_failure.error();
  return next_streamed();
}

bool WeightUse::next_locked(int64_t most_bytes) {
  int64_t bytes = 0;
  for (; locked_matrix_ < count_ && bytes < most_bytes; ++locked_matrix_, locked_panel_ = 0) {
    const WeightStore::State::Matrix& matrix = store_.state_->matrices[static_cast<size_t>(slots_[locked_matrix_])];
    const std::span<const WeightPanel> locked = std::span(matrix.panels).first(matrix.locked_panels);
    const size_t first = locked_panel_;
    for (; locked_panel_ < locked.size() && bytes < most_bytes; ++locked_panel_)
      bytes += matrix.bytes(locked[locked_panel_].row_count);
    views_[locked_matrix_].panels = locked.subspan(first, locked_panel_ - first);
    if (locked_panel_ < locked.size()) break;
  }
  return bytes > 0;
}

// Streamed panels in the order in which they arrive: waits for one, takes those that are there.
Result<bool> WeightUse::next_streamed() {
  WeightStore::State& state = *store_.state_;
  bool any = false;
  int64_t bytes = 0;
  int64_t decoded_end = 0;  // of the pass's panels: what is decoded need not stay in the window
  if (state.decoder != nullptr) state.decoder->begin_round();
  for (; matrix_ < count_; ++matrix_, panel_ = 0) {
    WeightStore::State::Matrix& matrix = state.matrices[static_cast<size_t>(slots_[matrix_])];
    const int64_t count = std::ssize(matrix.panels) - static_cast<int64_t>(matrix.locked_panels);
    const int64_t first = panel_;
    for (; panel_ < count; ++panel_) {
      const int64_t number = matrix.first_streamed + panel_;
      WeightPanel& panel = matrix.panels[matrix.locked_panels + static_cast<size_t>(panel_)];
      const int64_t tiles = matrix.tiles(panel.row_count);
      const bool shrunk = matrix.packed.shrunk.has_value();
      if (any && (bytes >= state.round_bytes || !state.streamer->ready(number))) break;
      if (any && shrunk && !state.decoder->fits(matrix.packed, tiles)) break;
      TRY_ASSIGN(panel.data, state.streamer->wait(number));
      if (shrunk) panel.data = state.decoder->add(matrix.packed, panel.row_begin / kRowTile, tiles, panel.data);
      bytes += tiles * matrix.packed.tile_bytes();
      decoded_end = shrunk && decoded_end >= 0 ? number + 1 : -1;
      streamed_end_ = number + 1;
      any = true;
    }
    views_[matrix_].panels =
        std::span(matrix.panels)
            .subspan(matrix.locked_panels + static_cast<size_t>(first), static_cast<size_t>(panel_ - first));
    if (panel_ < count) break;
  }
  if (decoded_end != 0 && state.decoder != nullptr) {
    TRY(state.decoder->decode());
    if (decoded_end > 0) state.streamer->release(decoded_end);
  }
  return any;
}

}  // namespace loralei
