// SPDX-License-Identifier: Apache-2.0
#include "weights/stored_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "base/check.h"
#include "tensor/codec.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace loralei {
namespace {

constexpr int64_t kBlock = 32;  // numbers of a block but for those of fp8g
constexpr float kScaleMax = 0x1p100f;

int64_t scale_bytes(const StoredForm& form) { return row_bytes(form.scale_dtype, 1); }

uint32_t load_word(const std::byte* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// The eight nibbles of a word, the lowest first, as bytes.
uint64_t spread(uint32_t word) {
  uint64_t x = word;
  x = (x | x << 16) & 0x0000FFFF0000FFFFull;
  x = (x | x << 8) & 0x00FF00FF00FF00FFull;
  return (x | x << 4) & 0x0F0F0F0F0F0F0F0Full;
}

// AWQ's place of output j of eight, from the lowest bits of a word on.
constexpr int awq_shift(int64_t output) {
  constexpr std::array<int, 8> kPlace = {0, 4, 1, 5, 2, 6, 3, 7};
  return 4 * kPlace[static_cast<size_t>(output % 8)];
}

// A vector is a matrix of one column.
int64_t cols_of(const TensorInfo& info) { return info.shape.size() > 1 ? info.shape[1] : 1; }

class RowReader {
 public:
  RowReader(std::span<const std::shared_ptr<File>> files, const TensorInfo& info, int64_t row_begin, int64_t row_count,
            std::byte* out, std::span<std::byte> scratch)
      : files_(files),
        info_(info),
        form_(*info.stored),
        rows_(info.stored->rows),
        cols_(cols_of(info)),
        begin_(info.stored->row_begin + row_begin),
        count_(row_count),
        out_(out),
        out_row_(row_bytes(info.dtype, cols_of(info))),
        rest_(scratch) {}

  Status by_columns();
  Status by_rows();
  Status crossed();
  Status mxfp4();

 private:
  std::byte* take(int64_t bytes) {
    CHECK(bytes <= static_cast<int64_t>(rest_.size()));
    std::byte* const at = rest_.data();
    rest_ = rest_.subspan(static_cast<size_t>(bytes));
    return at;
  }
  Status read(const StoredPart& part, int64_t offset, std::byte* to, int64_t bytes) const {
    return files_[part.file]->read_exact(part.offset + offset, {to, static_cast<size_t>(bytes)});
  }
  // `count` words from the `word`th on of each of `lines` lines of `width` words.
  Status read_lines(const StoredPart& part, int64_t first_line, int64_t lines, int64_t width, int64_t word,
                    int64_t count, std::byte* to) const;

  std::string place(int64_t row) const { return "'" + info_.name + "', row " + std::to_string(row); }
  float scale_at(const std::byte* scales, int64_t index) const {
    float scale;
    decode_row(form_.scale_dtype, scales + index * scale_bytes(form_), &scale, 1);
    return scale;
  }
  // The head of a block: its scale, and its zero point where it has one.
  Status put_head(std::byte* block, float scale, std::optional<int> stored_zero, int64_t row) const;
  Status column_heads(int64_t block, const std::byte* scales, const std::byte* zeros);
  void column_quants(int64_t block, const std::byte* words);
  Status put_row(int64_t row, const std::byte* quants, const std::byte* scales, const std::byte* zeros);
  Status put_fp8_row(int64_t row, const std::byte* quants, const std::byte* scales);
  int head_bytes() const { return info_.dtype == DType::kInt4G ? 4 : 2; }

  std::span<const std::shared_ptr<File>> files_;
  const TensorInfo& info_;
  const StoredForm& form_;
  const int64_t rows_, cols_, begin_, count_;  // of what is stored
  std::byte* const out_;
  const int64_t out_row_;
  std::span<std::byte> rest_;
};

Status RowReader::read_lines(const StoredPart& part, int64_t first_line, int64_t lines, int64_t width, int64_t word,
                             int64_t count, std::byte* to) const {
  if (count == width) return read(part, first_line * width * 4, to, lines * width * 4);
  for (int64_t line = 0; line < lines; ++line)
    TRY(read(part, ((first_line + line) * width + word) * 4, to + line * count * 4, count * 4));
  return {};
}

Status RowReader::put_head(std::byte* block, float scale, std::optional<int> stored_zero, int64_t row) const {
  const uint16_t half = f32_to_f16(scale);
  if (f16_to_f32(half) != scale || !std::isfinite(scale)) {
    return unsupported(place(row) + ": its scale " + std::to_string(scale) +
                       " is no number of f16, and scales are held as those; use a checkpoint with scales of f16, the "
                       "original weights or a GGUF file.");
  }
  std::memcpy(block, &half, sizeof half);
  if (!stored_zero) return {};
  const int middle = 1 << (form_.bits - 1);
  if (form_.zeros_are_middle) {  // tools disagree whether that is stored less one
    if (*stored_zero == middle || *stored_zero == middle - 1) return {};
    return corrupt(place(row) + ": its zero point is stored as " + std::to_string(*stored_zero) +
                   ", but the config says that weights are symmetric (\"sym\": true), which makes it " +
                   std::to_string(middle - form_.zero_offset) + "; correct the config or use another checkpoint.");
  }
  if (form_.zero_offset > 0 && *stored_zero == 15) {
    return unsupported(place(row) +
                       ": its zero point is stored as 15, which some tools read as 16 and some as 0; use "
                       "a checkpoint of \"checkpoint_format\": \"gptq_v2\", the original weights or a "
                       "GGUF file.");
  }
  const uint16_t zero = f32_to_f16(static_cast<float>(*stored_zero + form_.zero_offset));
  std::memcpy(block + 2, &zero, sizeof zero);
  return {};
}

// Heads of the blocks number `block` of all rows: scales [count], zeros as words.
Status RowReader::column_heads(int64_t block, const std::byte* scales, const std::byte* zeros) {
  const int64_t each = 32 / form_.bits;
  const DTypeInfo dtype = dtype_info(info_.dtype);
  for (int64_t r = 0; r < count_; ++r) {
    const uint32_t word = load_word(zeros + r / each * 4);
    const int shift = form_.kind == StoredKind::kAwq ? awq_shift(r) : static_cast<int>(r % each) * form_.bits;
    const int zero = static_cast<int>(word >> shift & ((1u << form_.bits) - 1));
    TRY(put_head(out_ + r * out_row_ + block * dtype.block_bytes, scale_at(scales, r), zero, begin_ + r));
  }
  return {};
}

// Their numbers. `words`: of GPTQ a line of `count` words for each 32 / bits inputs, of
// AWQ a line of count / 8 for each input.
void RowReader::column_quants(int64_t block, const std::byte* words) {
  const int64_t block_at = block * dtype_info(info_.dtype).block_bytes + head_bytes();
  const auto word_at = [&](int64_t line, int64_t r) { return load_word(words + (line * count_ + r) * 4); };
  for (int64_t r = 0; r < count_; ++r) {
    std::byte* const to = out_ + r * out_row_ + block_at;
    if (form_.kind == StoredKind::kAwq) {
      const int shift = awq_shift(r);
      const std::byte* const column = words + r / 8 * 4;
      for (int64_t i = 0; i < 16; ++i) {
        const uint32_t low = load_word(column + i * (count_ / 8) * 4) >> shift & 15;
        const uint32_t high = load_word(column + (i + 16) * (count_ / 8) * 4) >> shift & 15;
        to[i] = static_cast<std::byte>(low | high << 4);
      }
    } else if (form_.bits == 4) {
      for (int64_t half = 0; half < 2; ++half) {
        const uint64_t bytes = spread(word_at(half, r)) | spread(word_at(half + 2, r)) << 4;
        std::memcpy(to + 8 * half, &bytes, sizeof bytes);
      }
    } else {
      for (int64_t line = 0; line < 8; ++line) {
        const uint32_t bytes = word_at(line, r) ^ 0x80808080u;
        std::memcpy(to + 4 * line, &bytes, sizeof bytes);
      }
    }
  }
}

Status RowReader::by_columns() {
  const int64_t each = 32 / form_.bits;
  const bool awq = form_.kind == StoredKind::kAwq;
  CHECK(begin_ % kRowTile == 0 && count_ % each == 0);
  // Of AWQ eight outputs share a word, of GPTQ 32 / bits inputs.
  const int64_t lines = awq ? kBlock : kBlock / each, width = awq ? rows_ / each : rows_;
  const int64_t word = awq ? begin_ / each : begin_, words = awq ? count_ / each : count_;
  std::byte* const strip = take(lines * words * 4);
  std::byte* const scales = take((count_ * scale_bytes(form_) + 3) / 4 * 4);
  std::byte* const zeros = take(count_ / each * 4);
  for (int64_t block = 0, group = -1; block < cols_ / kBlock; ++block) {
    if (block * kBlock / form_.group != group) {
      group = block * kBlock / form_.group;
      TRY(read(form_.scales, (group * rows_ + begin_) * scale_bytes(form_), scales, count_ * scale_bytes(form_)));
      TRY(read_lines(form_.zeros, group, 1, rows_ / each, begin_ / each, count_ / each, zeros));
    }
    TRY(column_heads(block, scales, zeros));
    TRY(read_lines(form_.quants, block * lines, lines, width, word, words, strip));
    column_quants(block, strip);
  }
  return {};
}

// A row of integers: `scales` [groups], `zeros` the words of its eight rows [groups].
Status RowReader::put_row(int64_t row, const std::byte* quants, const std::byte* scales, const std::byte* zeros) {
  const DTypeInfo dtype = dtype_info(info_.dtype);
  std::byte* to = out_ + (row - begin_) * out_row_;
  for (int64_t block = 0; block < cols_ / kBlock; ++block, to += dtype.block_bytes) {
    const int64_t group = block * kBlock / form_.group;
    std::optional<int> zero;
    if (form_.has_zeros) zero = static_cast<int>(load_word(zeros + group * 4) >> (row % 8 * 4) & 15);
    TRY(put_head(to, scale_at(scales, group), zero, row));
    const std::byte* const from = quants + block * kBlock * form_.bits / 8;
    if (form_.bits == 4) {
      for (int half = 0; half < 2; ++half) {
        const uint64_t bytes = spread(load_word(from + 4 * half)) | spread(load_word(from + 8 + 4 * half)) << 4;
        std::memcpy(to + head_bytes() + 8 * half, &bytes, sizeof bytes);
      }
      continue;
    }
    const std::byte flip{static_cast<unsigned char>(form_.kind == StoredKind::kPacked ? 0x80 : 0)};
    for (int64_t i = 0; i < kBlock; ++i) to[head_bytes() + i] = from[i] ^ flip;
  }
  return {};
}

Status RowReader::put_fp8_row(int64_t row, const std::byte* quants, const std::byte* scales) {
  const DTypeInfo dtype = dtype_info(info_.dtype);
  std::byte* to = out_ + (row - begin_) * out_row_;
  for (int64_t k = 0; k < cols_; k += dtype.block_elems, to += dtype.block_bytes) {
    const float scale = scale_at(scales, k / form_.group);
    if (!(std::fabs(scale) < kScaleMax)) {
      return corrupt(place(row) + ": its scale is " + std::to_string(scale) +
                     ", which is no scale of weights; the checkpoint is damaged.");
    }
    std::memcpy(to, &scale, sizeof scale);
    std::memcpy(to + 4, quants + k, static_cast<size_t>(dtype.block_elems));
    const auto is_nan = [](std::byte byte) { return (byte & std::byte{0x7F}) == std::byte{0x7F}; };
    if (std::any_of(to + 4, to + dtype.block_bytes, is_nan))
      return corrupt(place(row) + ": holds a weight that is not a number; the checkpoint is damaged.");
  }
  return {};
}

Status RowReader::by_rows() {
  const int64_t row_words = cols_ * form_.bits / 8, scale_row = form_.groups * scale_bytes(form_);
  std::byte* const quants = take(kRowTile * row_words);
  std::byte* const scales = take(kRowTile * scale_row);
  std::byte* const zeros = take(form_.has_zeros ? 2 * form_.groups * 4 : 0);
  CHECK(begin_ % kRowTile == 0);
  for (int64_t first = begin_; first < begin_ + count_; first += kRowTile) {
    const int64_t end = std::min(first + kRowTile, begin_ + count_);
    const int64_t first_scale = first / form_.group_rows, end_scale = (end - 1) / form_.group_rows + 1;
    TRY(read(form_.quants, first * row_words, quants, (end - first) * row_words));
    TRY(read(form_.scales, first_scale * scale_row, scales, (end_scale - first_scale) * scale_row));
    if (form_.has_zeros)
      TRY(read_lines(form_.zeros, first / 8, (end - first + 7) / 8, form_.groups, 0, form_.groups, zeros));
    for (int64_t row = first; row < end; ++row) {
      const std::byte* const own = quants + (row - first) * row_words;
      const std::byte* const by = scales + (row / form_.group_rows - first_scale) * scale_row;
      if (info_.dtype == DType::kF8G) {
        TRY(put_fp8_row(row, own, by));
      } else {
        TRY(put_row(row, own, by, zeros + (row - first) / 8 * form_.groups * 4));
      }
    }
  }
  return {};
}

// Numbers in the matrix's own format, inputs before outputs: strips of inputs, whose
// numbers are put in their rows.
Status RowReader::crossed() {
  const int64_t size = row_bytes(info_.dtype, 1), step = form_.row_step;
  const int64_t line = rows_ * step * size, part = count_ * step * size;
  const int64_t lines_most = std::min(kBlock, cols_);
  std::byte* const strip = take(lines_most * part);
  for (int64_t col = 0; col < cols_; col += kBlock) {
    const int64_t lines = std::min(kBlock, cols_ - col);
    if (part == line) {
      TRY(read(form_.quants, col * line, strip, lines * line));
    } else {
      for (int64_t i = 0; i < lines; ++i)
        TRY(read(form_.quants, (col + i) * line + begin_ * step * size, strip + i * part, part));
    }
    for (int64_t r = 0; r < count_; ++r) {
      const std::byte* const from = strip + (r * step + form_.row_first) * size;
      std::byte* const to = out_ + r * out_row_ + col * size;
      for (int64_t i = 0; i < lines; ++i) std::memcpy(to + i * size, from + i * part, static_cast<size_t>(size));
    }
  }
  return {};
}

// Blocks of two numbers a byte and their scales, of all matrices in turn.
Status RowReader::mxfp4() {
  constexpr int64_t kQuants = kBlock / 2;
  const int64_t blocks = cols_ / kBlock, step = form_.row_step;
  std::byte* const quants = take(kRowTile * step * blocks * kQuants);
  std::byte* const scales = take(kRowTile * step * blocks);
  for (int64_t first = begin_; first < begin_ + count_; first += kRowTile) {
    const int64_t rows = std::min<int64_t>(kRowTile, begin_ + count_ - first);
    TRY(read(form_.quants, first * step * blocks * kQuants, quants, rows * step * blocks * kQuants));
    TRY(read(form_.scales, first * step * blocks, scales, rows * step * blocks));
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t own = (r * step + form_.row_first) * blocks;
      std::byte* to = out_ + (first + r - begin_) * out_row_;
      for (int64_t block = 0; block < blocks; ++block, to += 1 + kQuants) {
        if (scales[own + block] == std::byte{0xFF})
          return corrupt(place(first + r) + ": has a scale that is not a number; the checkpoint is damaged.");
        to[0] = scales[own + block];
        const std::byte* const from = quants + (own + block) * kQuants;
        for (int half = 0; half < 2; ++half) {
          const uint64_t bytes = spread(load_word(from + 4 * half)) | spread(load_word(from + 8 + 4 * half)) << 4;
          std::memcpy(to + 1 + 8 * half, &bytes, sizeof bytes);
        }
      }
    }
  }
  return {};
}

bool is_by_columns(const StoredForm& form) { return form.kind == StoredKind::kGptq || form.kind == StoredKind::kAwq; }

}  // namespace

int64_t stored_scratch_bytes(const TensorInfo& info, int64_t row_count) {
  const StoredForm& form = *info.stored;
  if (form.kind == StoredKind::kCrossed)
    return std::min(kBlock, cols_of(info)) * row_count * form.row_step * row_bytes(info.dtype, 1);
  if (form.kind == StoredKind::kMxfp4) return kRowTile * form.row_step * info.shape[1] / kBlock * (kBlock / 2 + 1);
  if (is_by_columns(form)) {
    const int64_t strip = kBlock * form.bits / 8 * row_count;  // as many bytes whichever way words lie
    return strip + (row_count * scale_bytes(form) + 3) / 4 * 4 + (row_count * form.bits + 31) / 32 * 4;
  }
  return kRowTile * (info.shape[1] * form.bits / 8 + form.groups * scale_bytes(form)) + 2 * form.groups * 4;
}

Status read_stored_rows(std::span<const std::shared_ptr<File>> files, const TensorInfo& info, int64_t row_begin,
                        int64_t row_count, std::byte* out, std::span<std::byte> scratch) {
  CHECK(info.stored != nullptr && row_begin >= 0 && row_count <= info.shape[0] - row_begin);
  RowReader reader(files, info, row_begin, row_count, out, scratch);
  if (info.stored->kind == StoredKind::kCrossed) return reader.crossed();
  if (info.stored->kind == StoredKind::kMxfp4) return reader.mxfp4();
  return is_by_columns(*info.stored) ? reader.by_columns() : reader.by_rows();
}

}  // namespace loralei
