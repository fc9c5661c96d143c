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
int64_t vector_bytes(const TensorInfo& info) { return info.shape.empty() ? 4 : info.shape[0] * 4; }

}  // namespace

struct WeightStore::State {
  struct Matrix {
    WeightView view;                  // panels: all where resident, else none
    std::vector<WeightPanel> panels;  // locked ones, then streamed ones
    size_t locked_panels = 0;
    int64_t locked_rows = 0;
    int64_t first_streamed = 0;  // number in the pass
    PackedMatrix packed;         // where streaming
    bool looked_up = false;      // an embedding whose rows lie on disk
  };
  Grant grant;
  HostBuffer arena;
  std::vector<Matrix> matrices;
  std::unordered_map<std::string, TensorSlot> slots;
  std::unordered_map<std::string, std::vector<float>> vectors;
  std::string fingerprint;
  int open_uses = 0;

  // Streaming only.
  PackedIndex packed;
  std::unique_ptr<File> packed_file;  // for single rows
  std::unique_ptr<Streamer> streamer;
  std::unique_ptr<PanelDecoder> decoder;  // where panels are streamed shrunk
  ResidencyPlan plan;
  std::string description;
  int64_t round_bytes = 0;
  std::vector<std::byte> row_tile, stored_tile, rows;  // look_up: one tile, as held and as stored; the rows found
  std::vector<TokenId> row_numbers;
  WeightPanel rows_panel;

  Status read_vectors(const HeldTensors& held, const TensorReader& reader, uint64_t& hash) {
    for (const TensorInfo* info : held.vectors) {
      TRY_ASSIGN(const uint64_t own, read_vector(reader, *info, vectors[info->name]));
      hash += own;
    }
    return {};
  }
  void add_matrix(const HeldMatrix& held) {
    Matrix& matrix = matrices.emplace_back();
    matrix.view.dtype = held.target.dtype;
    matrix.view.layout = held.target.layout;
    matrix.view.rows = static_cast<int32_t>(held.target.rows);
    matrix.view.cols = static_cast<int32_t>(held.target.cols);
    slots[held.source->name] = static_cast<TensorSlot>(matrices.size() - 1);
  }
  static void add_resident_panels(Matrix& matrix, const std::byte* data, int64_t rows) {
    const int64_t bytes = row_bytes(matrix.view.dtype, matrix.view.cols);
    for (int64_t row = 0; row < rows; row += kPanelRows) {
      matrix.panels.push_back({data + row * bytes, static_cast<int32_t>(row),
                               static_cast<int32_t>(std::min<int64_t>(kPanelRows, rows - row))});
    }
    matrix.locked_panels = matrix.panels.size();
    matrix.locked_rows = rows;
  }
  Status read_locked(int64_t threads);
  Status read_shrunk_row(const Matrix& matrix, int64_t row, std::byte* out);
  std::vector<StreamPanel> add_streamed_panels(const HeldTensors& held);
};

WeightStore::WeightStore() : state_(std::make_unique<State>()) {}
WeightStore::~WeightStore() { check(); }

Result<int64_t> WeightStore::bytes_needed(const BaseModelFile& model, const WeightOptions& options) {
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(const HeldTensors held, held_tensors(model, reader, options));
  int64_t bytes = 0;
  for (const HeldMatrix& matrix : held.matrices) bytes += aligned(matrix.bytes);
  for (const TensorInfo* info : held.vectors) bytes += vector_bytes(*info);
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
  TRY_ASSIGN(state.arena, HostBuffer::allocate(std::max<int64_t>(bytes, kAlignBytes)));

  std::vector<ReadUnit> units;
  std::vector<std::byte*> places;
  std::byte* next = state.arena.data();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < held.matrices.size(); ++i) {
    const HeldMatrix& matrix = held.matrices[i];
    state.add_matrix(matrix);
    State::add_resident_panels(state.matrices.back(), next, matrix.target.rows);
    places.push_back(next);
    next += aligned(matrix.bytes);
    add_units(held, i, units);
    total_bytes += matrix.target.rows * matrix.target.source_row_bytes;
  }
  for (State::Matrix& matrix : state.matrices) matrix.view.panels = matrix.panels;

  uint64_t vectors_hash = 0;
  TRY(state.read_vectors(held, reader, vectors_hash));
  std::atomic<uint64_t> hash{vectors_hash};  // a sum: units finish in any order
  std::mutex mutex;
  int64_t done_bytes = 0;
  TRY(run_units(units, options.threads, [&](const ReadUnit& unit, UnitBuffers& buffers) -> Status {
    const HeldMatrix& matrix = held.matrices[unit.matrix];
    std::byte* const out = places[unit.matrix] + unit.row_begin * row_bytes(matrix.target.dtype, matrix.target.cols);
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

// Locked rows come from the packed file, checked, a few megabytes at a time and past the page cache.
Status WeightStore::State::read_locked(int64_t threads) {
  constexpr int64_t kPieceBytes = 8 * kMiB;
  std::vector<ReadUnit> units;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Matrix& matrix = matrices[i];
    const int64_t step = std::max<int64_t>(1, kPieceBytes / matrix.packed.tile_bytes()) * kRowTile;
    for (int64_t row = 0; row < matrix.locked_rows; row += step)
      units.push_back({i, row, std::min(step, matrix.locked_rows - row)});
  }
  return run_units(units, static_cast<int>(threads), [&](const ReadUnit& unit, UnitBuffers& buffers) -> Status {
    const Matrix& matrix = matrices[unit.matrix];
    std::byte* const place = const_cast<std::byte*>(matrix.panels.front().data) +
                             unit.row_begin * row_bytes(matrix.view.dtype, matrix.view.cols);
    const int64_t first = unit.row_begin / kRowTile;
    const int64_t end = (unit.row_begin + unit.row_count + kRowTile - 1) / kRowTile;
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
    data = matrix.panels.front().data + row * bytes;
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

std::vector<StreamPanel> WeightStore::State::add_streamed_panels(const HeldTensors& held) {
  std::vector<StreamPanel> panels;
  for (size_t i = 0; i < matrices.size(); ++i) {
    Matrix& matrix = matrices[i];
    matrix.first_streamed = std::ssize(panels);
    if (held.matrices[i].planned.role == MatrixRole::kEmbed) {
      matrix.looked_up = matrix.locked_rows < matrix.view.rows;
      continue;
    }
    const int64_t step = panel_rows(held.matrices[i].planned);
    for (int64_t row = matrix.locked_rows; row < matrix.view.rows; row += step) {
      const int64_t count = std::min(step, matrix.view.rows - row);
      matrix.panels.push_back({nullptr, static_cast<int32_t>(row), static_cast<int32_t>(count)});
      panels.push_back({static_cast<int32_t>(i), row / kRowTile, (count + kRowTile - 1) / kRowTile});
    }
  }
  return panels;
}

Result<std::unique_ptr<WeightStore>> WeightStore::stream(const BaseModelFile& model, Ledger& ledger,
                                                         const WeightOptions& options,
                                                         const StreamingOptions& streaming, LogSink& log) {
  std::unique_ptr<WeightStore> store(new WeightStore());
  State& state = *store->state_;
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  TRY_ASSIGN(HeldTensors held, held_tensors(model, reader, options));
  TRY_ASSIGN(state.packed, open_packed(streaming.packed_path, model, options));
  for (size_t i = 0; i < held.matrices.size(); ++i)
    held.matrices[i].planned.stored_tile_bytes = shrunk_tile_bytes(state.packed.matrices[i]);
  const PosixFileSystem files;
  TRY_ASSIGN(state.packed_file, files.open(streaming.packed_path));

  std::vector<PlannedMatrix> planned;
  int64_t vectors = 0, largest_tile = 0, largest_row = 0;
  for (const HeldMatrix& matrix : held.matrices) planned.push_back(matrix.planned);
  for (const TensorInfo* info : held.vectors) vectors += vector_bytes(*info);
  const int64_t padding = (std::ssize(planned) + 1) * kAlignBytes;  // each matrix starts on a cache line
  TRY_ASSIGN(state.plan, plan_residency(planned, streaming.weight_bytes - vectors - padding, streaming.residency));
  int64_t locked = 0;
  for (size_t i = 0; i < held.matrices.size(); ++i) {
    state.add_matrix(held.matrices[i]);
    State::Matrix& matrix = state.matrices.back();
    matrix.packed = state.packed.matrices[i];
    matrix.locked_rows = state.plan.locked_rows[i];
    locked += aligned((matrix.locked_rows + kRowTile - 1) / kRowTile * planned[i].tile_bytes);
    if (planned[i].role != MatrixRole::kEmbed && !planned[i].tied_head) continue;
    largest_tile = std::max(largest_tile, planned[i].tile_bytes);
    largest_row = std::max(largest_row, row_bytes(matrix.view.dtype, matrix.view.cols));
  }
  const int64_t bytes = std::max<int64_t>(locked, kAlignBytes) + vectors + state.plan.window_bytes;
  auto grant = ledger.try_grant(MemoryUse::kWeights, bytes);
  if (!grant) {
    return too_large("Locked weights and the stream window need " + format_bytes(bytes) + " but only " +
                     format_bytes(ledger.available_bytes(MemoryUse::kWeights)) +
                     " of the memory budget are free; raise --memory-budget.");
  }
  state.grant = std::move(*grant);
  TRY_ASSIGN(state.arena, HostBuffer::allocate(std::max<int64_t>(locked, kAlignBytes)));
  std::byte* next = state.arena.data();
  for (size_t i = 0; i < state.matrices.size(); ++i) {
    const int64_t rows = state.matrices[i].locked_rows;
    State::add_resident_panels(state.matrices[i], next, rows);
    next += aligned((rows + kRowTile - 1) / kRowTile * planned[i].tile_bytes);
  }
  if (Status status = lock_pages(state.arena.data(), state.arena.size_bytes()); !status.ok())
    log.log(LogLevel::kWarning, status.error().message);
  TRY(state.read_locked(options.threads));

  std::vector<StreamPanel> panels = state.add_streamed_panels(held);
  for (State::Matrix& matrix : state.matrices) {
    const bool resident = matrix.locked_rows == matrix.view.rows;
    if (resident) matrix.view.panels = matrix.panels;
  }
  state.row_tile.resize(static_cast<size_t>(largest_tile));
  state.stored_tile.resize(static_cast<size_t>(largest_tile));
  state.rows.resize(static_cast<size_t>(largest_row * streaming.rows_max));
  state.row_numbers.resize(static_cast<size_t>(streaming.rows_max));
  state.description = describe_residency(planned, state.plan);
  if (!panels.empty()) {
    StreamerOptions stream;
    stream.window_bytes = state.plan.window_bytes - state.plan.decode_bytes;
    if (state.plan.decode_bytes > 0) {
      TRY_ASSIGN(state.decoder, PanelDecoder::create(state.plan.decode_bytes, panels.size(), streaming.pool));
    }
    stream.open = [&streaming](std::span<std::byte> memory) {
      BlockReaderOptions reader_options = streaming.reader;
      reader_options.memory = memory;
      return streaming.open_reader ? streaming.open_reader(streaming.packed_path, reader_options)
                                   : open_block_reader(streaming.packed_path, reader_options);
    };
    TRY_ASSIGN(state.streamer, Streamer::create(state.packed, std::move(panels), std::move(stream)));
    state.round_bytes = (state.plan.window_bytes - state.plan.decode_bytes) / kRoundsInWindow;
    state.description += "reading with " + state.streamer->how() + "\n";
  }
  uint64_t hash = 0;
  TRY(state.read_vectors(held, reader, hash));
  state.fingerprint = fingerprint_text(hash + fingerprint_value(state.packed.fingerprint));
  return store;
}

TensorSlot WeightStore::find(const std::string& name) const {
  const auto it = state_->slots.find(name);
  return it == state_->slots.end() ? kNoTensor : it->second;
}

const WeightView& WeightStore::view(TensorSlot slot) const { return state_->matrices[static_cast<size_t>(slot)].view; }

Result<EmbeddedRows> WeightStore::look_up(TensorSlot slot, std::span<const TokenId> tokens) {
  State& state = *state_;
  const State::Matrix& matrix = state.matrices[static_cast<size_t>(slot)];
  if (matrix.locked_rows == matrix.view.rows) return EmbeddedRows{matrix.view, tokens};
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
      TRY(state.packed_file->read_exact(matrix.packed.at + row * bytes, {out, static_cast<size_t>(bytes)}));
      continue;
    }
    const int64_t tile = row / kRowTile;
    const std::byte* data = state.row_tile.data();
    if (tile * kRowTile < matrix.locked_rows) {
      data = matrix.panels.front().data + tile * tile_bytes;
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
  return state_->streamer != nullptr ? state_->streamer->totals() : StreamerTotals{};
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

Result<bool> WeightUse::next() {
  WeightStore::State& state = *store_.state_;
  bool any = false;
  if (!locked_done_) {
    locked_done_ = true;
    for (size_t i = 0; i < count_; ++i) {
      const WeightStore::State::Matrix& matrix = state.matrices[static_cast<size_t>(slots_[i])];
      views_[i].panels = std::span(matrix.panels).first(matrix.locked_panels);
      any = any || matrix.locked_panels > 0;
    }
    if (any) return true;
  }
  for (size_t i = 0; i < count_; ++i) views_[i].panels = {};
  if (state.streamer == nullptr) return false;
  // Streamed panels in the order in which they arrive: wait for one, take those that are there.
  int64_t bytes = 0;
  int64_t decoded_end = 0;  // of the pass's panels: what is decoded need not stay in the window
  if (state.decoder != nullptr) state.decoder->begin_round();
  for (bool released = false; matrix_ < count_; ++matrix_, panel_ = 0) {
    WeightStore::State::Matrix& matrix = state.matrices[static_cast<size_t>(slots_[matrix_])];
    const int64_t count = std::ssize(matrix.panels) - static_cast<int64_t>(matrix.locked_panels);
    const int64_t first = panel_;
    for (; panel_ < count; ++panel_) {
      const int64_t number = matrix.first_streamed + panel_;
      if (!released) state.streamer->release(number);
      released = true;
      WeightPanel& panel = matrix.panels[matrix.locked_panels + static_cast<size_t>(panel_)];
      const int64_t tiles = (panel.row_count + kRowTile - 1) / kRowTile;
      const bool shrunk = matrix.packed.shrunk.has_value();
      if (any && (bytes >= state.round_bytes || !state.streamer->ready(number))) break;
      if (any && shrunk && !state.decoder->fits(matrix.packed, tiles)) break;
      TRY_ASSIGN(panel.data, state.streamer->wait(number));
      if (shrunk) panel.data = state.decoder->add(matrix.packed, panel.row_begin / kRowTile, tiles, panel.data);
      bytes += tiles * matrix.packed.tile_bytes();
      decoded_end = shrunk && decoded_end >= 0 ? number + 1 : -1;
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
