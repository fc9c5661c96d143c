// SPDX-License-Identifier: Apache-2.0
// WeightStore: what is locked and what is streamed, at the start and changed
// between two passes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "sys/file.h"
#include "sys/pages.h"
#include "sys/write_file.h"
#include "weights/weight_store_state.h"

namespace loralei {
namespace {

constexpr int32_t kPanelRows = 1024;  // of resident matrices
// A round of streamed panels takes at most this part of the window: while it is used,
// the rest goes on arriving.
constexpr int64_t kRoundsInWindow = 4;

static_assert(kPanelRows % kRowTile == 0);

// A successor of its name is another file: an inode is not given again while it is open.
bool same_file(const FileStamp& a, const FileStamp& b) { return a.inode == b.inode; }

Error replaced(const std::string& path) {
  return corrupt("'" + path + "' was removed or replaced since it was opened; start again.");
}

}  // namespace

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
  int64_t bytes = state.vector_bytes + plan.window_bytes + plan.expert_bytes;
  for (size_t i = 0; i < planned.size(); ++i) bytes += state.matrices[i].bytes(plan.locked_rows[i]);
  const int64_t granted = state.grant.bytes();
  if (bytes > granted && !state.grant.grow_to(bytes)) {
    return too_large("Locked weights and the stream window need " + format_bytes(bytes) +
                     ", more than is free of the memory budget; raise --memory-budget.");
  }
  if (plan.streams()) {  // a reader of its own opens the file by its name
    const PosixFileSystem files;
    const auto stamp = files.stamp(streaming.packed_path);
    if (!stamp.ok() || *stamp != state.packed_file->stamp()) {
      state.grant.shrink_to(std::min(state.grant.bytes(), granted));
      return replaced(streaming.packed_path).with_context("Weights stay as they are");
    }
  }
  if (state.streamer != nullptr) state.past = state.streamer_totals();
  state.streamer.reset();
  state.decoder.reset();
  if (plan.expert_bytes != state.plan.expert_bytes) state.drop_experts();
  const ResidencyPlan before = std::exchange(state.plan, std::move(plan));
  const Status read = state.lock_rows(state.plan.locked_rows, options.threads, log);
  if (!read.ok()) {  // what was to be locked passes through the window instead; of a larger plan that of before
    std::vector<int64_t> rows;
    for (const State::Matrix& matrix : state.matrices) rows.push_back(matrix.locked_rows);
    if (bytes > granted) state.plan = before;
    const int64_t held = state.vector_bytes + state.locked_bytes() + state.plan.expert_bytes;
    if (bytes > granted) {
      bytes = held + before.window_bytes;
    } else {
      state.plan.window_bytes = std::max(state.plan.window_bytes, std::min(bytes - held, kWindowMostBytes));
      if (state.packed.shrink) state.plan.decode_bytes = std::max(state.plan.decode_bytes, state.plan.window_bytes / 2);
    }
    state.plan.lock(planned, std::move(rows));
  }
  state.description = describe_residency(planned, state.plan);
  state.read_per_pass = pass_bytes(planned, state.plan, model.config.experts.used).read;
  state.make_look_up_memory(streaming.rows_max);
  state.streaming = streaming;
  state.stream_failure = state.start_streams();
  state.grant.shrink_to(bytes);
  if (!read.ok()) return state.packed_failure(read.error());
  return state.stream_failure;
}

Status WeightStore::State::open_packed_file(const BaseModelFile& model, const WeightOptions& options,
                                            const std::string& path) {
  if (packed_file != nullptr) return {};
  TRY_ASSIGN(PackedIndex index, open_packed(path, model, options));
  // Rows that are held are never mixed with those of another model.
  if (!fingerprint.empty() && fingerprint != fingerprint_with(index)) {
    return corrupt("'" + model.path + "' has changed since it was loaded, and '" + path +
                   "' holds what it is now; start again to serve that.");
  }
  const PosixFileSystem files;
  TRY_ASSIGN(packed_file, files.open(path));
  packed = std::move(index);
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i].packed = packed.matrices[i];
    matrices[i].view.dtype = packed.matrices[i].dtype;
    matrices[i].planned.stored_tile_bytes = shrunk_tile_bytes(packed.matrices[i]);
  }
  return {};
}

PackedDamage WeightStore::damage() const { return state_->damage; }
bool WeightStore::packed_shrunk() const { return state_->packed.shrink; }

Status WeightStore::reopen(const BaseModelFile& model, const WeightOptions& options, const std::string& path,
                           LogSink& log) {
  check();
  State& state = *state_;
  state.past = state.streamer_totals();
  state.streamer.reset();  // it reads by the index that goes
  state.drop_experts();
  std::unique_ptr<File> before = std::move(state.packed_file);
  const Status opened = open_packed_file(model, options, path);
  state.stream_failure = opened;
  if (!opened.ok()) {
    state.packed_file = std::move(before);
    return opened;
  }
  state.damage = PackedDamage::kNone;
  StreamingOptions streaming = state.streaming;
  streaming.packed_path = path;
  state.streaming = streaming;
  // Should the plan be refused, the next pass opens the file itself.
  state.stream_failure = Error{ErrorCode::kUnavailable, "'" + path + "' is not streamed from yet."};
  return resize(model, options, streaming, log);
}

Error WeightStore::State::packed_failure(Error error) {
  if (error.code != ErrorCode::kCorrupt) return error;
  const std::string& path = packed_file->path();
  const auto stamp = PosixFileSystem().stamp(path);
  const bool there = stamp.ok() && same_file(*stamp, packed_file->stamp());
  const bool removed = !there || remove_file(path).ok();
  damage = removed ? PackedDamage::kRemoved : PackedDamage::kStays;
  error.message += " '" + path +
                   (removed ? "' has been removed, and is made anew by a running server or the next start."
                            : "' cannot be removed: delete it, and it will be made anew.");
  return error;
}

std::vector<PlannedMatrix> WeightStore::State::planned() const {
  std::vector<PlannedMatrix> planned;
  for (const Matrix& matrix : matrices) planned.push_back(matrix.planned);
  return planned;
}

void WeightStore::State::slide(std::span<const int64_t> rows) {
  const auto move = [&](Matrix& matrix, int64_t to) {
    if (to != matrix.at)
      std::memmove(arena.data() + to, arena.data() + matrix.at, static_cast<size_t>(matrix.bytes(matrix.locked_rows)));
    matrix.at = to;
  };
  // To the left from the first on, then to the right from the last on: nothing is
  // overwritten that is still needed.
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

void WeightStore::State::lock_arena(LogSink& log) const {
  if (arena.size_bytes() == 0) return;
  if (Status status = lock_pages(arena.data(), arena.size_bytes()); !status.ok())
    log.log(LogLevel::kWarning, status.error().message);
}

Status WeightStore::State::lock_rows(std::span<const int64_t> rows, int threads, LogSink& log) {
  std::vector<int64_t> kept;
  int64_t bytes = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i].locked_rows = std::min(matrices[i].locked_rows, rows[i]);
    kept.push_back(matrices[i].locked_rows);
    bytes += matrices[i].bytes(rows[i]);
  }
  slide(kept);
  Status status = arena.resize(bytes);
  if (status.ok()) {
    lock_arena(log);
    slide(rows);
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i].locked_rows = rows[i];
    status = read_locked(kept, threads);
    if (status.ok()) return {};
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i].locked_rows = kept[i];
    slide(kept);
  }
  TRY(arena.resize(locked_bytes()));
  return status;
}

// Locked rows from `kept` on come from the packed file, checked, a few megabytes at a
// time. Shrunk ones are read beside their place: into memory that the window will take,
// which is not there yet, and what else is free.
Status WeightStore::State::read_locked(std::span<const int64_t> kept, int threads) {
  constexpr int64_t kPieceBytes = 8 * kMiB;
  RoomShare share{threads, kPieceBytes};
  int64_t tile_bytes = 0;
  for (const Matrix& matrix : matrices) tile_bytes = std::max(tile_bytes, shrunk_tile_bytes(matrix.packed));
  if (tile_bytes > 0) {
    int64_t room = plan.window_bytes;
    const int64_t wanted = threads * tile_bytes;
    if (room < wanted && grant.grow_to(grant.bytes() + wanted - room)) room = wanted;
    share = share_room(room, threads, tile_bytes, kPieceBytes);
  }
  std::vector<ReadUnit> units;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Matrix& matrix = matrices[i];
    const int64_t step = std::max<int64_t>(1, share.bytes / matrix.packed.tile_bytes()) * kRowTile;
    for (int64_t row = kept[i]; row < matrix.locked_rows; row += step)
      units.push_back({i, row, std::min(step, matrix.locked_rows - row)});
  }
  return run_units(units, share.threads, [&](const ReadUnit& unit, UnitBuffers& buffers) -> Status {
    const Matrix& matrix = matrices[unit.matrix];
    const int64_t first = unit.row_begin / kRowTile;
    const int64_t end = matrix.tiles(unit.row_begin + unit.row_count);
    std::byte* const place = arena.data() + matrix.at + first * matrix.planned.tile_bytes;
    int64_t bytes = 0;
    for (int64_t tile = first; tile < end; ++tile) bytes += matrix.packed.bytes_of_tile(tile);
    if (matrix.packed.shrunk) {
      buffers.shrunk.reserve(static_cast<size_t>(share.bytes));
      buffers.shrunk.resize(static_cast<size_t>(bytes));
    }
    std::byte* const out = matrix.packed.shrunk ? buffers.shrunk.data() : place;
    TRY(packed_file->read_exact(matrix.packed.at + first * matrix.packed.tile_bytes(),
                                {out, static_cast<size_t>(bytes)}));
    TRY(check_tiles(packed, matrix.packed, first, end - first, out));
    for (int64_t tile = first; matrix.packed.shrunk && tile < end; ++tile) {
      const std::byte* const data = out + (tile - first) * matrix.packed.tile_bytes();
      TRY(matrix.packed.restore_tile(tile, {data, static_cast<size_t>(matrix.packed.tile_bytes())},
                                     place + (tile - first) * matrix.packed.held_tile_bytes()));
    }
    return {};
  });
}

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
    const bool cached = plan.expert_bytes > 0 && matrix.planned.expert >= 0;
    const bool in_passes = matrix.planned.role != MatrixRole::kEmbed && !cached;
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

Result<std::unique_ptr<BlockReader>> WeightStore::State::open_stream(std::span<std::byte> memory) const {
  BlockReaderOptions options = streaming.reader;
  options.memory = memory;
  auto reader = streaming.open_reader ? streaming.open_reader(streaming.packed_path, options)
                                      : open_block_reader(streaming.packed_path, options);
  if (reader.ok() && !same_file((*reader)->stamp(), packed_file->stamp())) return replaced(streaming.packed_path);
  return reader;
}

Status WeightStore::State::start_streams() {
  TRY(start_streamer(add_panels()));
  return start_experts();
}

void WeightStore::State::drop_experts() {
  if (experts == nullptr) return;
  const ExpertTotals totals = experts->totals();
  past_experts.hits += totals.hits;
  past_experts.misses += totals.misses;
  past_experts.read_bytes += totals.read_bytes;
  past_experts.waited_ns += totals.waited_ns;
  experts.reset();
}

Status WeightStore::State::start_experts() {
  if (plan.expert_bytes == 0) return {};
  if (experts == nullptr) TRY(make_experts());
  int64_t places = 0;
  for (const ExpertPlan::Size& size : experts->plan().sizes) places += size.places;
  description += "room for " + std::to_string(places) + " experts, read with " + experts->how() + "\n";
  return {};
}

Status WeightStore::State::make_experts() {
  ExpertShape shape;
  expert_layer.clear();
  for (size_t i = 0; i < matrices.size(); ++i) {
    const PlannedMatrix& matrix = matrices[i].planned;
    if (matrix.expert < 0) continue;
    const auto layer = static_cast<size_t>(matrix.layer);
    if (expert_layer.size() <= layer) {
      expert_layer.resize(layer + 1, -1);
      expert_layer[layer] = shape.layers++;
    }
    const auto part = static_cast<size_t>(matrix.role) - static_cast<size_t>(MatrixRole::kGate);
    if (part == 0) shape.parts.emplace_back();
    CHECK(part < kExpertParts);
    shape.parts.back()[part] = static_cast<int32_t>(i);
    shape.experts = std::max(shape.experts, matrix.expert + 1);
  }
  expert_panels.resize(static_cast<size_t>(shape.experts));
  ExpertCacheOptions options;
  options.bytes = plan.expert_bytes;
  options.open = [this] { return open_stream({}); };
  TRY_ASSIGN(experts, ExpertCache::create(packed, std::move(shape), std::move(options)));
  return {};
}

Status WeightStore::State::start_streamer(std::vector<StreamPanel> panels) {
  if (panels.empty()) return {};
  StreamerOptions options;
  options.window_bytes = plan.window_bytes - plan.decode_bytes;
  if (plan.decode_bytes > 0) {
    TRY_ASSIGN(decoder, PanelDecoder::create(plan.decode_bytes, panels.size(), streaming.pool));
  }
  arrived = TileRound(panels.size());
  options.read_ahead = streaming.read_ahead;
  options.open = [this](std::span<std::byte> memory) { return open_stream(memory); };
  TRY_ASSIGN(streamer, Streamer::create(packed, std::move(panels), std::move(options)));
  round_bytes = (plan.window_bytes - plan.decode_bytes) / kRoundsInWindow;
  locked_round_bytes = streaming.locked_round_bytes > 0 ? streaming.locked_round_bytes : plan.window_bytes;
  description += "reading with " + streamer->how() + "\n";
  return {};
}

}  // namespace loralei
