// SPDX-License-Identifier: Apache-2.0
#include "weights/tensor_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/fast_hash.h"
#include "base/limits.h"
#include "formats/model_tensors.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"
#include "weights/stored_rows.h"

namespace loralei {
namespace {

constexpr int64_t kConvertChunk = 4096;  // numbers converted at a time; a multiple of every block size

void convert_row(DType from, const std::byte* source, DType to, std::byte* out, int64_t count) {
  if (from == to) {
    std::memcpy(out, source, static_cast<size_t>(row_bytes(to, count)));
    return;
  }
  float chunk[kConvertChunk];
  for (int64_t begin = 0; begin < count; begin += kConvertChunk) {
    const int64_t size = std::min(kConvertChunk, count - begin);
    decode_row(from, source + row_bytes(from, begin), chunk, size);
    encode_row(to, chunk, out + row_bytes(to, begin), size);
  }
}

}  // namespace

Result<TensorReader> TensorReader::open(const BaseModelFile& model) {
  TensorReader reader;
  const PosixFileSystem file_system;
  CHECK(model.index.stamps.size() == model.index.files.size());
  for (size_t i = 0; i < model.index.files.size(); ++i) {
    TRY_ASSIGN(std::unique_ptr<File> file, file_system.open(model.index.files[i]));
    if (file->stamp() != model.index.stamps[i]) {  // tensors may lie elsewhere in it now
      return corrupt("'" + file->path() + "' has changed since it was opened; start again to serve what it is now.");
    }
    reader.files_.push_back(std::move(file));
  }
  reader.permuted_qk_ = model.permuted_qk;
  reader.heads_ = model.config.heads;
  reader.kv_heads_ = model.config.kv_heads;
  reader.rotary_dim_ = rotary_dim_of(model.config);
  return reader;
}

int32_t TensorReader::permuted_heads(const std::string& name) const {
  if (!permuted_qk_) return 0;
  if (name.ends_with("q_proj.weight") || name.ends_with("q_proj.bias")) return heads_;
  if (name.ends_with("k_proj.weight") || name.ends_with("k_proj.bias")) return kv_heads_;
  return 0;
}

int64_t TensorReader::unit_rows(const TensorTarget& target) {
  const int64_t head = target.permuted_heads > 0 ? target.source_rows / target.permuted_heads : 1;
  return std::lcm(int64_t{kRowTile}, head);
}

ShardPart TensorReader::held_rows(const TensorTarget& target, int64_t row_begin, int64_t row_count) {
  const int64_t begin = std::clamp<int64_t>(row_begin - target.row_begin, 0, target.rows);
  const int64_t end = std::clamp<int64_t>(row_begin + row_count - target.row_begin, 0, target.rows);
  return {begin, end - begin};
}

// Whether rows are held as they are read.
bool TensorReader::in_place(const TensorInfo& info, const TensorTarget& target) {
  const bool tiles = target.layout == LayoutId::kTile16;
  const bool whole = target.rows == target.source_rows && !target.cut_cols;
  return whole && !tiles && target.permuted_heads == 0 && target.dtype == info.dtype;
}

int64_t TensorReader::buffer_bytes(const TensorInfo& info, const TensorTarget& target, int64_t row_count) {
  const int64_t parts = info.stored ? stored_scratch_bytes(info, row_count) : 0;
  if (in_place(info, target)) return parts;
  return row_count * target.source_row_bytes + kRowTile * row_bytes(target.dtype, target.cols) + parts;
}

Status TensorReader::fetch(const TensorInfo& info, const TensorTarget& target, int64_t row_begin, int64_t row_count,
                           std::byte* to, std::span<std::byte> scratch) const {
  if (info.stored) return read_stored_rows(files_, info, row_begin, row_count, to, scratch);
  const int64_t bytes = row_count * target.source_row_bytes;
  return files_[info.file]->read_exact(info.offset + row_begin * target.source_row_bytes,
                                       {to, static_cast<size_t>(bytes)});
}

Result<uint64_t> TensorReader::read_rows(const TensorInfo& info, const TensorTarget& target, int64_t row_begin,
                                         int64_t row_count, std::byte* out, std::vector<std::byte>& buffer) const {
  const int64_t held_row_bytes = row_bytes(target.dtype, target.cols);
  const int64_t source_bytes = row_count * target.source_row_bytes;
  const bool tiles = target.layout == LayoutId::kTile16;
  // Source rows, then converted ones of a tile, then parts of rows that are stored in
  // such.
  buffer.resize(static_cast<size_t>(buffer_bytes(info, target, row_count)));
  const bool as_read = in_place(info, target);
  const int64_t parts_at = as_read ? 0 : source_bytes + kRowTile * held_row_bytes;
  std::byte* const source = as_read ? out : buffer.data();
  TRY(fetch(info, target, row_begin, row_count, source, std::span(buffer).subspan(static_cast<size_t>(parts_at))));
  uint64_t seed = mix64(static_cast<uint64_t>(row_begin) + 1);
  seed = fast_hash(reinterpret_cast<const std::byte*>(info.name.data()), info.name.size(), seed);
  const uint64_t hash = fast_hash(source, static_cast<size_t>(source_bytes), seed);
  if (as_read) return hash;

  const int64_t head_rows = target.permuted_heads > 0 ? target.source_rows / target.permuted_heads : 0;
  const ShardPart held = held_rows(target, row_begin, row_count);
  const int64_t first = held.begin + target.row_begin - row_begin;  // of the unit
  // The file's row for row `i` of what is held: our row (head, half, i) is the file's
  // (head, i, half).
  const auto source_row = [&](int64_t i) {
    i += first;
    if (head_rows > 0) i = qk_row(i, head_rows, rotary_dim_);
    return source + i * target.source_row_bytes + row_bytes(info.dtype, target.col_begin);
  };
  if (!tiles) {
    for (int64_t i = 0; i < held.count; ++i) {
      convert_row(info.dtype, source_row(i), target.dtype, out + i * held_row_bytes, target.cols);
    }
    return hash;
  }
  std::byte* const converted = buffer.data() + source_bytes;
  for (int64_t begin = 0; begin < held.count; begin += kRowTile) {
    std::array<const std::byte*, kRowTile> rows{};
    for (int64_t r = 0; r < std::min<int64_t>(kRowTile, held.count - begin); ++r) {
      rows[static_cast<size_t>(r)] = source_row(begin + r);
      if (info.dtype == target.dtype) continue;
      convert_row(info.dtype, rows[static_cast<size_t>(r)], target.dtype, converted + r * held_row_bytes, target.cols);
      rows[static_cast<size_t>(r)] = converted + r * held_row_bytes;
    }
    pack_tile(target.dtype, rows, target.cols, out + begin * held_row_bytes);
  }
  return hash;
}

}  // namespace loralei
