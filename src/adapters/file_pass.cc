// SPDX-License-Identifier: Apache-2.0
#include "adapters/file_pass.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "adapters/placing.h"
#include "base/check.h"
#include "base/sha256.h"
#include "base/units.h"
#include "ops/lora_factors.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int64_t kWindowBytes = kMiB;      // is still in the second cache when it is hashed and placed
constexpr int64_t kNearBytes = 4 * kKiB;    // what lies between two tensors is then fetched with them
constexpr int64_t kAheadBytes = 16 * kMiB;  // of one run; behind that the system sees by itself how it is read

void hash_length(Sha256& sha, int64_t length) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(length) >> (8 * i));
  sha.update(bytes);
}

int64_t row_bytes_of(const TensorInfo& info, int64_t cols) { return row_bytes(info.dtype, cols) * (info.f64 ? 2 : 1); }

// The rows of such a tensor lie in memory as in the file.
bool stays_as_read(const Placement& placement, const TensorInfo& info, int64_t rows) {
  return !info.f64 && !info.crossed && placement.to == info.dtype && placement.plus == 0 && !placement.transpose &&
         placement.scale_offset < 0 && placement.row_order.empty() && placement.col_order.empty() &&
         placement.row_begin == 0 && placement.row_count == rows;
}

// Numbers of a row as the file has it.
int64_t file_cols(const Placement& placement) {
  return placement.tensor->crossed ? placement.tensor->shape[0] : placement.cols;
}

}  // namespace

void FileCuts::add(int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  cuts_.push_back(offset);
  cuts_.push_back(offset + bytes);
}

std::vector<int64_t> FileCuts::finish(int64_t file_bytes) && {
  cuts_.push_back(0);
  cuts_.push_back(file_bytes);
  std::sort(cuts_.begin(), cuts_.end());
  cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  CHECK(cuts_.front() == 0 && cuts_.back() == file_bytes);
  return std::move(cuts_);
}

FilePass::FilePass(const File& file, std::vector<int64_t> cuts, const LoadPlan& plan, std::byte* storage)
    : file_(file),
      cuts_(std::move(cuts)),
      digests_(cuts_.size() - 1),
      hashed_(cuts_.size() - 1),
      storage_(storage),
      layer_bytes_(static_cast<size_t>(plan.layers) + 1) {
  for (const Placement& placement : plan.placements) {
    CHECK(placement.layer >= 0 && placement.layer <= plan.layers);
    if (placement.cols > 0 && placement.tensor->bytes > 0) placements_.push_back(&placement);
  }
  const auto place_of = [](const Placement* one) { return std::tuple(one->layer, one->tensor->offset); };
  std::stable_sort(placements_.begin(), placements_.end(),
                   [&](const Placement* x, const Placement* y) { return place_of(x) < place_of(y); });
  for (int32_t layer = 0; layer <= plan.layers + 1; ++layer) {
    const auto begin = std::partition_point(placements_.begin(), placements_.end(),
                                            [&](const Placement* one) { return one->layer < layer; });
    layer_begin_.push_back(static_cast<size_t>(begin - placements_.begin()));
  }
  for (size_t i = 0; i < placements_.size(); i += group_at(i).size())
    layer_bytes_[static_cast<size_t>(placements_[i]->layer)] += placements_[i]->tensor->bytes;
}

FilePass::Group FilePass::group_at(size_t first) const {
  size_t end = first;
  while (end < placements_.size() && placements_[end]->tensor == placements_[first]->tensor) ++end;
  return Group(placements_).subspan(first, end - first);
}

// Which part begins there.
size_t FilePass::part_at(int64_t offset) const {
  const auto found = std::lower_bound(cuts_.begin(), cuts_.end(), offset);
  CHECK(found != cuts_.end() && *found == offset);
  return static_cast<size_t>(found - cuts_.begin());
}

// The system may begin to fetch this layer while the one before it is placed.
void FilePass::announce(int32_t layer) const {
  const auto place = static_cast<size_t>(layer);
  if (place + 1 >= layer_begin_.size()) return;
  int64_t begin = 0, end = 0;
  const auto tell = [&] {
    if (end > begin) file_.will_read(begin, std::min(end - begin, kAheadBytes));
  };
  for (size_t i = layer_begin_[place]; i < layer_begin_[place + 1]; ++i) {
    const TensorInfo& info = *placements_[i]->tensor;
    if (info.offset > end + kNearBytes || end == 0) {
      tell();
      begin = info.offset;
    }
    end = info.offset + info.bytes;
  }
  tell();
}

Status FilePass::read_layer(int32_t layer) {
  announce(layer + 1);
  const auto place = static_cast<size_t>(layer);
  for (size_t i = layer_begin_[place]; i < layer_begin_[place + 1];) {
    const Group group = group_at(i);
    TRY(read_tensor(group));
    i += group.size();
  }
  return finish_window();
}

Status FilePass::read_rest() {
  for (size_t part = 0; part < digests_.size(); ++part) {
    if (hashed_[part]) continue;
    PageHash hash;
    for (int64_t at = cuts_[part]; at < cuts_[part + 1]; at += std::ssize(buffer_)) {
      buffer_.resize(static_cast<size_t>(std::min(kWindowBytes, cuts_[part + 1] - at)));
      TRY(file_.read_exact(at, buffer_));
      hash.update(buffer_);
    }
    digests_[part] = hash.finish();
    hashed_[part] = true;
  }
  return {};
}

Digest FilePass::digest(const std::string& config_text) const {
  CHECK(std::find(hashed_.begin(), hashed_.end(), false) == hashed_.end());
  Sha256 sha;
  hash_length(sha, std::ssize(config_text));
  sha.update(std::as_bytes(std::span(config_text)));
  for (size_t part = 0; part < digests_.size(); ++part) {
    hash_length(sha, cuts_[part + 1] - cuts_[part]);
    sha.update(std::as_bytes(std::span(digests_[part])));
  }
  return sha.finish();
}

// Window by window: of a large tensor as many rows as are left in each.
Status FilePass::read_tensor(Group group) {
  const TensorInfo& info = *group[0]->tensor;
  const size_t part = part_at(info.offset);
  const int64_t bytes_per_row = row_bytes_of(info, file_cols(*group[0]));
  const int64_t rows = info.bytes / bytes_per_row;
  CHECK(rows * bytes_per_row == info.bytes && info.offset + info.bytes == cuts_[part + 1] && !hashed_[part]);
  const bool direct = group.size() == 1 && stays_as_read(*group[0], info, rows);
  const auto buffer_bytes = static_cast<size_t>(std::max(kWindowBytes, bytes_per_row));
  if (!direct && buffer_.size() < buffer_bytes) {
    TRY(finish_window());  // which lies in what is given up
    buffer_.resize(buffer_bytes);
  }
  for (int64_t row = 0, count = 0; row < rows; row += count) {
    if (window_bytes_ > 0 && kWindowBytes - window_bytes_ < bytes_per_row) TRY(finish_window());
    count = std::clamp<int64_t>((kWindowBytes - window_bytes_) / bytes_per_row, 1, rows - row);
    const int64_t bytes = count * bytes_per_row;
    std::byte* const to = direct ? storage_ + group[0]->offset + row * bytes_per_row : buffer_.data() + buffer_used_;
    const std::span<std::byte> dest(to, static_cast<size_t>(bytes));
    TRY(file_.read_exact(info.offset + row * bytes_per_row, dest));
    window_.push_back({.group = group,
                       .part = part,
                       .row = row,
                       .count = count,
                       .bytes = dest,
                       .placed = direct,
                       .last = row + count == rows,
                       .hash = row == 0 ? PageHash() : open_});
    window_bytes_ += bytes;
    if (!direct) buffer_used_ += bytes;
  }
  return {};
}

// What has been read is hashed, looked at and put where it belongs.
Status FilePass::finish_window() {
  hashed_pieces_.clear();
  for (Piece& piece : window_) hashed_pieces_.push_back({&piece.hash, piece.bytes});
  PageHash::update_all(hashed_pieces_);
  for (Piece& piece : window_) {
    TRY(place(piece));
    if (!piece.last) {
      open_ = piece.hash;
      continue;
    }
    digests_[piece.part] = piece.hash.finish();
    hashed_[piece.part] = true;
  }
  window_.clear();
  window_bytes_ = buffer_used_ = 0;
  return {};
}

Status FilePass::place(const Piece& piece) {
  const TensorInfo& info = *piece.group[0]->tensor;
  const int64_t cols = file_cols(*piece.group[0]), numbers = piece.count * cols;
  const std::byte* source = piece.bytes.data();
  DType format = info.dtype;
  const float plus = piece.group[0]->plus;
  if (info.f64 || piece.group[0]->to != info.dtype || plus != 0) {
    decoded_.resize(static_cast<size_t>(numbers));
    decode(info, source, numbers);
    if (plus != 0) {
      for (float& number : decoded_) number += plus;
    }
    source = reinterpret_cast<const std::byte*>(decoded_.data());
    format = DType::kF32;
  }
  const int64_t wrong = first_not_finite(format, source, numbers);
  if (wrong >= 0) {
    return corrupt(file_.path() + ": tensor \"" + info.name +
                   "\" holds a value that is not a finite number (NaN or infinity) at index " +
                   std::to_string(piece.row * cols + wrong));
  }
  int64_t row = piece.row, count = piece.count;
  if (info.crossed) {
    cross(info, format, piece, source);
    if (!piece.last) return {};
    source = crossed_.data();
    row = 0;
    count = info.shape[0];
  }
  if (!piece.group[0]->col_order.empty()) source = move_cols(*piece.group[0], format, count, source);
  for (const Placement* placement : piece.group) {
    std::byte* const place = storage_ + placement->offset;
    if (placement->scale_offset >= 0)
      quantise_rows(*placement, row, count, reinterpret_cast<const float*>(source));
    else if (!piece.placed)
      place_rows(*placement, format, row, count, source, place);
  }
  return {};
}

// Rows whose columns stand where they belong.
const std::byte* FilePass::move_cols(const Placement& placement, DType format, int64_t count, const std::byte* source) {
  const int64_t number = row_bytes(format, 1);
  moved_.resize(static_cast<size_t>(count * placement.cols * number));
  for (int64_t i = 0; i < count * placement.cols; ++i) {
    const int64_t col = placement.col_order[static_cast<size_t>(i % placement.cols)];
    std::memcpy(moved_.data() + (i / placement.cols * placement.cols + col) * number, source + i * number,
                static_cast<size_t>(number));
  }
  return moved_.data();
}

// The file's rows are columns.
void FilePass::cross(const TensorInfo& info, DType format, const Piece& piece, const std::byte* source) {
  crossed_.resize(static_cast<size_t>(info.shape[0] * row_bytes(format, info.shape[1])));
  const Placement columns{.row_count = info.shape[1], .cols = info.shape[0], .transpose = true};
  place_rows(columns, format, piece.row, piece.count, source, crossed_.data());
}

void FilePass::decode(const TensorInfo& info, const std::byte* source, int64_t count) {
  if (!info.f64) return decode_row(info.dtype, source, decoded_.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    double number;
    std::memcpy(&number, source + 8 * i, sizeof number);
    const bool fits = std::fabs(number) <= static_cast<double>(std::numeric_limits<float>::max());
    decoded_[static_cast<size_t>(i)] = fits ? static_cast<float>(number) : std::numeric_limits<float>::infinity();
  }
}

// Rows [row, row + count) of a tensor to int8: those of A each for itself; of B,
// whose scales are those of runs of rows, as soon as kLoraQuantGroup are there, and all
// together where they come in another order.
void FilePass::quantise_rows(const Placement& placement, int64_t row, int64_t count, const float* source) {
  const int64_t begin = std::max(row, placement.row_begin), cols = placement.cols;
  const int64_t end = std::min(row + count, placement.row_begin + placement.row_count);
  std::byte* const out = storage_ + placement.offset;
  auto* const scales = reinterpret_cast<float*>(storage_ + placement.scale_offset);
  const bool ordered = placement.row_order.empty();
  const int64_t run = ordered ? kLoraQuantGroup : placement.row_count;
  for (int64_t r = begin; r < end; ++r) {
    const float* const from = source + (r - row) * cols;
    const int64_t number = r - placement.row_begin, first = number / run * run;
    if (!placement.transpose) {
      quantise_lora(from, 1, cols, out + number * lora_quant_row_bytes(cols), scales + number * lora_quant_groups(cols),
                    0, 1);
      continue;
    }
    staged_.resize(static_cast<size_t>(run * cols));
    const int64_t to = ordered ? number - first : placement.row_order[static_cast<size_t>(number)];
    for (int64_t c = 0; c < cols; ++c) staged_[static_cast<size_t>(c * run + to)] = from[c];
    const int64_t there = number + 1 - first;
    if (there < run && number + 1 < placement.row_count) continue;
    for (int64_t c = 0; c < cols; ++c) {
      quantise_lora(staged_.data() + c * run, 1, there, out + c * lora_quant_row_bytes(placement.row_count) + first,
                    scales + first / kLoraQuantGroup * cols + c, 0, cols);
    }
  }
}

}  // namespace loralei
