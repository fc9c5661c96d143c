// SPDX-License-Identifier: Apache-2.0
#include "weights/read_units.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "base/units.h"
#include "formats/model_tensors.h"
#include "sys/threads.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

constexpr int64_t kReadUnitBytes = 8 * kMiB;  // work handed to one thread at a time

// Norms and biases are vectors; so is what stands in several dimensions, and what is held
// like them.
bool is_matrix(const TensorInfo& info) { return info.shape.size() == 2 && !is_held_as_f32(info.name); }

// Format a matrix is held in: the file's, or the wanted quantisation where its rows
// divide into blocks. The head and the embedding keep more bits than q4_0, as the field's
// tools do, because their rounding goes straight into the logits.
DType held_dtype(const TensorInfo& info, const WeightOptions& options) {
  if (!options.quantise || is_quantised(info.dtype)) return info.dtype;
  DType wanted = *options.quantise;
  const bool outer = info.name == "lm_head.weight" || info.name == "model.embed_tokens.weight";
  if (outer && wanted == DType::kQ4_0) wanted = DType::kQ8_0;
  return fits_blocks(wanted, info.shape[1]) ? wanted : info.dtype;
}

LayoutId held_layout(const TensorInfo& info, DType held, bool tied_head, const WeightOptions& options) {
  const bool looked_up_only = info.name == "model.embed_tokens.weight" && !tied_head;
  return has_tiles(held) && !looked_up_only ? options.quantised_layout : LayoutId::kPlain;
}

// "mlp.experts.7.up_proj.weight", "mlp.shared_expert.up_proj.weight"
bool planned_expert(std::string_view path, PlannedMatrix& planned) {
  constexpr std::string_view kExperts = "mlp.experts.", kShared = "mlp.shared_expert.";
  const size_t dot = path.find('.', kExperts.size());
  if (path.starts_with(kShared)) {
    path.remove_prefix(kShared.size());
  } else if (path.starts_with(kExperts) && dot != std::string_view::npos) {
    planned.expert = std::atoi(path.data() + kExperts.size());
    path.remove_prefix(dot + 1);
  } else {
    return false;
  }
  for (int part = 0; part < kExpertMatrixCount; ++part) {
    if (path != std::string(kExpertMatrices[part]) + ".weight") continue;
    planned.role = static_cast<MatrixRole>(static_cast<int>(MatrixRole::kGate) + part);
    return true;
  }
  return false;
}

// What a matrix of this canonical name is, and in which layer.
Result<PlannedMatrix> planned_matrix(const std::string& name, bool tied_head) {
  PlannedMatrix planned;
  if (name == "lm_head.weight" || (name == "model.embed_tokens.weight" && tied_head)) {
    planned.role = MatrixRole::kHead;
    planned.tied_head = tied_head;
    return planned;
  }
  if (name == "model.embed_tokens.weight") {
    planned.role = MatrixRole::kEmbed;
    return planned;
  }
  constexpr std::string_view kLayers = "model.layers.";
  if (name.starts_with(kLayers)) {
    const size_t dot = name.find('.', kLayers.size());
    const std::string_view path = dot == std::string::npos ? "" : std::string_view(name).substr(dot + 1);
    planned.layer = std::atoi(name.c_str() + kLayers.size());
    for (size_t module = 0; module < kLayerMatrices.size(); ++module) {
      const bool linear = module < kLinearMatrices.size() && path == std::string(kLinearMatrices[module]) + ".weight";
      if (!linear && path != std::string(kLayerMatrices[module]) + ".weight") continue;
      planned.role = static_cast<MatrixRole>(module);
      return planned;
    }
    if (planned_expert(path, planned)) return planned;
  }
  return internal_error("The matrix '" + name + "' has no place in the layer program.");
}

// Layer by layer in the order of use, its experts one after the other behind all else,
// then head, then embedding.
std::tuple<int32_t, int32_t, MatrixRole> order_of(const PlannedMatrix& planned) {
  return {planned.layer < 0 ? INT32_MAX : planned.layer, planned.expert, planned.role};
}

// How several ranks share a matrix. A tied head is a part of the embedding, which every
// rank has.
Cut cut_of(const PlannedMatrix& planned) {
  switch (planned.role) {
    case MatrixRole::kO:
    case MatrixRole::kDown:
      return Cut::kCols;
    case MatrixRole::kEmbed:
      return Cut::kNone;
    case MatrixRole::kHead:
      return planned.tied_head ? Cut::kNone : Cut::kRows;
    default:
      return Cut::kRows;
  }
}

Error not_cut(const std::string& why) { return invalid_argument(why); }

// A rank's part of a matrix; refused where a border is in the way of how it is held.
Status cut_target(const TensorInfo& info, const PlannedMatrix& planned, const Shard& shard, TensorTarget& target) {
  const Cut cut = cut_of(planned);
  if (shard.whole() || cut == Cut::kNone) return {};
  if (planned.role == MatrixRole::kHead) {
    const ShardPart part = tiled_part(shard, target.rows, kRowTile);
    if (part.count == 0) return not_cut("the vocabulary is too small");
    target.row_begin = part.begin;
    target.rows = part.count;
    return {};
  }
  int64_t& size = cut == Cut::kRows ? target.rows : target.cols;
  if (size % shard.size != 0)
    return not_cut("the " + std::to_string(size) + (cut == Cut::kRows ? " outputs of '" : " inputs of '") + info.name +
                   "' do not divide");
  const ShardPart part = even_part(shard, size);
  if (cut == Cut::kRows) {
    if (target.layout == LayoutId::kTile16 && part.count % kRowTile != 0)
      return not_cut("a border would fall into a tile of " + std::to_string(kRowTile) + " rows of '" + info.name + "'");
    target.row_begin = part.begin;
  } else {
    for (const DType dtype : {info.dtype, target.dtype}) {
      if (!fits_blocks(dtype, part.count))
        return not_cut("a border would fall into a block of " + std::to_string(dtype_info(dtype).block_elems) +
                       " numbers (" + dtype_info(dtype).name + ") of '" + info.name + "'");
    }
    target.col_begin = part.begin;
    target.cut_cols = true;
  }
  size = part.count;
  return {};
}

Status check_heads(const ModelConfig& config, int size) {
  if (config.whole_qk_norm && size > 1) return not_cut("it norms the queries of all heads together");
  if (config.kv_heads % size == 0 && config.heads % size == 0) return {};
  return not_cut("its " + std::to_string(config.heads) + " heads and " + std::to_string(config.kv_heads) +
                 " heads of K and V do not divide");
}

}  // namespace

Status check_shards(const BaseModelFile& model, const WeightOptions& options, int size) {
  TRY_ASSIGN(const TensorReader reader, TensorReader::open(model));
  WeightOptions tried = options;
  tried.shard = {};
  TRY(held_tensors(model, reader, tried));  // not for what is wrong with the whole
  const auto check = [&](int ranks) -> Status {
    tried.shard = {0, ranks};
    const auto held = held_tensors(model, reader, tried);
    return held.ok() ? Status() : Status(held.error());
  };
  const Status asked = check(size);
  if (asked.ok()) return {};
  std::string others;
  for (int ranks = 2; ranks <= std::min(model.config.kv_heads, kRanksMax); ++ranks) {
    if (check(ranks).ok()) others += (others.empty() ? "" : ", ") + std::to_string(ranks);
  }
  return invalid_argument("The model cannot be cut for --tensor-parallel " + std::to_string(size) + ": " +
                          asked.error().message + ". " +
                          (others.empty() ? "No number but 1 would do." : "What would do: " + others + "."));
}

int64_t numbers_of(const TensorInfo& info) {
  int64_t count = 1;
  for (const int64_t size : info.shape) count *= size;
  return count;
}

bool can_quantise(const BaseModelFile& model) {
  const auto& tensors = model.index.tensors;
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const TensorInfo& info) { return is_matrix(info) && !is_quantised(info.dtype); });
}

Result<HeldTensors> held_tensors(const BaseModelFile& model, const TensorReader& reader, const WeightOptions& options) {
  if (options.quantise && !can_encode(*options.quantise)) {
    return unsupported(std::string("--quant ") + dtype_info(*options.quantise).name +
                       " cannot be made on load; choose q8_0 or q4_0.");
  }
  if (options.quantise && !can_quantise(model)) {
    return invalid_argument(std::string("--quant ") + dtype_info(*options.quantise).name + ": " + model.path +
                            " is quantised already; leave the option out, or give the file it was made from.");
  }
  if (!options.shard.whole()) {
    if (model.config.experts.count > 0) return not_cut("its experts are not cut yet");
    if (has_linear(model.config)) return not_cut("its linear attention is not cut yet");
    if (model.config.attention_gate) return not_cut("the gates of its attention are not cut yet");
    TRY(check_heads(model.config, options.shard.size));
  }
  HeldTensors held;
  held.shard = options.shard;
  for (const TensorInfo& info : model.index.tensors) {
    if (!is_matrix(info)) {
      held.vectors.push_back(&info);
      continue;
    }
    HeldMatrix matrix;
    matrix.source = &info;
    TRY_ASSIGN(matrix.planned, planned_matrix(info.name, model.config.tied_head));
    TensorTarget& target = matrix.target;
    target.dtype = held_dtype(info, options);
    target.layout = held_layout(info, target.dtype, model.config.tied_head, options);
    target.rows = target.source_rows = info.shape[0];
    target.cols = info.shape[1];
    target.source_row_bytes = row_bytes(info.dtype, info.shape[1]);
    target.permuted_heads = reader.permuted_heads(info.name);
    TRY(cut_target(info, matrix.planned, options.shard, target));
    matrix.planned.rows = target.rows;
    matrix.planned.tile_bytes = kRowTile * row_bytes(target.dtype, target.cols);
    matrix.bytes = matrix_bytes(target.dtype, target.layout, target.rows, target.cols);
    held.matrices.push_back(matrix);
  }
  std::stable_sort(held.matrices.begin(), held.matrices.end(),
                   [](const HeldMatrix& a, const HeldMatrix& b) { return order_of(a.planned) < order_of(b.planned); });
  return held;
}

void add_units(const HeldTensors& held, size_t matrix, std::vector<ReadUnit>& units) {
  const TensorTarget& target = held.matrices[matrix].target;
  const int64_t unit_rows = TensorReader::unit_rows(target);
  const int64_t rows = std::max<int64_t>(1, kReadUnitBytes / target.source_row_bytes / unit_rows) * unit_rows;
  for (int64_t row = 0; row < target.source_rows; row += rows) {
    const int64_t count = std::min(rows, target.source_rows - row);
    if (TensorReader::held_rows(target, row, count).count == 0) continue;
    // Of ranks that have each some rows, the one that has the unit's first; of others the
    // first.
    const bool counts = target.rows < target.source_rows ? row >= target.row_begin : held.shard.rank == 0;
    units.push_back({matrix, row, count, counts});
  }
}

RoomShare share_room(int64_t room, int threads, int64_t least, int64_t most) {
  RoomShare share;
  share.threads = static_cast<int>(std::clamp<int64_t>(room / least, 1, threads));
  share.bytes = std::clamp(room / share.threads, least, most);
  return share;
}

Status run_units(const std::vector<ReadUnit>& units, int threads, const UnitWork& work) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status first_error;
  const auto worker = [&] {
    UnitBuffers buffers;
    for (;;) {
      const size_t index = next.fetch_add(1);
      if (index >= units.size() || failed.load()) return;
      Status status = work(units[index], buffers);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) first_error = std::move(status);
      return;
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < std::min<int64_t>(threads, std::ssize(units)); ++i) {
    auto helper = start_thread(worker);
    if (!helper.ok()) break;  // fewer do it as well
    helpers.push_back(std::move(helper).value());
  }
  worker();
  for (std::thread& helper : helpers) helper.join();
  return first_error;
}

Result<uint64_t> read_vector(const TensorReader& reader, const TensorInfo& info, std::vector<float>& values) {
  const int64_t count = numbers_of(info);
  values.resize(static_cast<size_t>(count));
  // A vector is one row, or one row a number where these are permuted (biases of q
  // and k) or picked.
  TensorTarget target;
  target.permuted_heads = reader.permuted_heads(info.name);
  const bool permuted = target.permuted_heads > 0 || info.stored != nullptr;
  target.dtype = DType::kF32;
  target.cols = permuted ? 1 : count;
  target.rows = target.source_rows = permuted ? count : 1;
  target.source_row_bytes = row_bytes(info.dtype, target.cols);
  std::vector<std::byte> buffer;
  TRY_ASSIGN(const uint64_t hash,
             reader.read_rows(info, target, 0, target.rows, reinterpret_cast<std::byte*>(values.data()), buffer));
  if (info.plus != 0) {
    for (float& value : values) value += info.plus;
  }
  return hash;
}

std::string fingerprint_text(uint64_t sum) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kHex[(sum >> shift) & 15];
  return text;
}
uint64_t fingerprint_value(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

}  // namespace loralei
