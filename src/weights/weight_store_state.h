// SPDX-License-Identifier: Apache-2.0
// What a WeightStore holds, for the files that make it up: loading (weight_store.cc),
// what is locked and what is streamed (weight_resize.cc), rows of an embedding
// (weight_look_up.cc), rounds of a pass (weight_use.cc). Threads, ownership, invariants
// and failure: weight_store.h.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/host/arena.h"
#include "formats/packed_index.h"
#include "sys/file.h"
#include "tensor/tile_layout.h"
#include "weights/expert_cache.h"
#include "weights/pack.h"
#include "weights/panel_decoder.h"
#include "weights/tensor_reader.h"
#include "weights/weight_store.h"

namespace loralei {

struct WeightStore::State {
  static constexpr int64_t kAlignBytes = 64;  // every matrix starts on a cache line

  struct Matrix {
    WeightView view;                  // panels: all where resident, else none
    std::vector<WeightPanel> panels;  // locked ones, then streamed ones
    size_t locked_panels = 0;
    int64_t locked_rows = 0;
    int64_t at = 0;                  // of the locked rows, in the arena
    int64_t first_streamed = 0;      // number in the pass
    DType file_dtype = DType::kF32;  // or the one --quant asked for; view has what is held
    PlannedMatrix planned;
    PackedMatrix packed;  // once there is a packed file
    // Looked up on disk: the tiles that were found to be sound, and the checks of their
    // rows where these lie plain.
    std::vector<bool> checked;
    std::vector<uint32_t> row_checks;

    static int64_t aligned(int64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }
    int64_t tiles(int64_t matrix_rows) const { return (matrix_rows + kRowTile - 1) / kRowTile; }
    int64_t bytes(int64_t matrix_rows) const { return aligned(tiles(matrix_rows) * planned.tile_bytes); }
    bool resident() const { return locked_rows == view.rows; }
    bool holds_plain_rows() const { return packed.layout == LayoutId::kPlain && !packed.shrunk; }
  };
  Grant grant;
  HostBuffer arena;  // room for all rows reserved; holds the locked ones, one matrix after the other
  int64_t vector_bytes = 0;
  std::vector<Matrix> matrices;
  std::unordered_map<std::string, TensorSlot> slots;
  std::unordered_map<std::string, std::vector<float>> vectors;
  std::string fingerprint;  // empty until all is loaded
  uint64_t vectors_hash = 0;
  int open_uses = 0;

  // Streaming only.
  PackedIndex packed;
  std::unique_ptr<File> packed_file;  // for single rows
  PackedDamage damage = PackedDamage::kNone;
  StreamingOptions streaming;  // of the last resize()
  std::unique_ptr<Streamer> streamer;
  std::unique_ptr<ExpertCache> experts;  // null: experts are as other matrices are
  std::vector<int32_t> expert_layer;     // by layer of the model: which of those with experts; -1: it has none
  std::vector<std::array<WeightPanel, kExpertParts>> expert_panels;  // of those that are handed out, by expert
  StreamerTotals past;                                               // of the streamers before this one
  ExpertTotals past_experts;                                         // and of the caches
  Status stream_failure;                  // why there is none although something is to be streamed
  Status pass_failure;                    // what this pass has failed of: nothing more of it is handed out
  TileRound arrived;                      // panels of a round, to be checked
  std::unique_ptr<PanelDecoder> decoder;  // where panels are streamed shrunk
  ResidencyPlan plan;
  int64_t read_per_pass = 0;  // as is expected
  std::string description;
  int64_t round_bytes = 0;  // of streamed panels
  int64_t locked_round_bytes = 0;
  std::vector<std::byte> row_tile, stored_tile, rows;  // look_up: one tile, as held and as stored; the rows found
  std::vector<TokenId> row_numbers;
  WeightPanel rows_panel;

  // A resident row.
  std::byte* row(size_t matrix, int64_t number) {
    const Matrix& of = matrices[matrix];
    return arena.data() + of.at + number * row_bytes(of.view.dtype, of.view.cols);
  }

  // Loading (weight_store.cc).
  Status read_vectors(const HeldTensors& held, const TensorReader& reader);
  // Of these vectors and the matrices that a packed file was made of.
  std::string fingerprint_with(const PackedIndex& index) const {
    return fingerprint_text(vectors_hash + fingerprint_value(index.fingerprint));
  }
  Status reserve(const HeldTensors& held);  // room for everything, of which nothing is held yet
  void add_matrix(const HeldMatrix& held);
  // Makes bf16 of these resident f16 matrices, whose numbers are all of it.
  Status hold_as_bf16(const HeldTensors& held, const std::vector<std::atomic<bool>>& which,
                      const std::vector<ReadUnit>& units, int threads);

  // Resizing (weight_resize.cc).
  std::vector<PlannedMatrix> planned() const;
  // What a plan does not count: vectors, and that each matrix starts on a cache line.
  int64_t beside_plan() const { return vector_bytes + std::ssize(matrices) * kAlignBytes; }
  int64_t locked_bytes() const {
    int64_t bytes = 0;
    for (const Matrix& matrix : matrices) bytes += matrix.bytes(matrix.locked_rows);
    return bytes;
  }
  Status open_packed_file(const BaseModelFile& model, const WeightOptions& options, const std::string& path);
  // What reading the packed file failed of. A damaged one is removed, so that it is made
  // anew; what is sound of it can be read as long as it is open.
  Error packed_failure(Error error);
  // Moves the first `rows` locked rows of every matrix to where they belong when these
  // are locked and nothing else.
  void slide(std::span<const int64_t> rows);
  // Locks the first `rows` of every matrix: keeps those that are there, reads the others.
  Status lock_rows(std::span<const int64_t> rows, int threads, LogSink& log);
  void lock_arena(LogSink& log) const;
  Status read_locked(std::span<const int64_t> kept, int threads);  // may take more grant, for resize() to give back
  // What is in `arrived` against its checksums, in the window: every tile in every pass,
  // so that a file that is changed in place is found out in the pass that meets it. By
  // the caller alone, at 50 GB/s: waking the others for a panel costs more than it saves,
  // and takes time from the thread that reads.
  Status check_arrived();
  // The panels of every matrix as its locked rows stand; answers those that are streamed,
  // in the order of a pass.
  std::vector<StreamPanel> add_panels();
  StreamerTotals streamer_totals() const;
  Status start_streams();  // of panels, and of experts
  Status start_streamer(std::vector<StreamPanel> panels);
  Status start_experts();
  Status make_experts();
  void drop_experts();
  Result<std::unique_ptr<BlockReader>> open_stream(std::span<std::byte> memory) const;

  // Rows of an embedding that lie on disk (weight_look_up.cc).
  void make_look_up_memory(int32_t rows_max);
  Status read_row(Matrix& matrix, int64_t row, std::byte* out);
};

}  // namespace loralei
