// SPDX-License-Identifier: Apache-2.0
// |B A|^2 = trace((B^T B)(A A^T)): the product itself, out * in numbers, is never made.
// Both squares are made in blocks of ranks and summed over runs of columns, so that a
// high rank needs no more memory than a low one.
#include "adapters/change.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/check.h"
#include "ops/lora_factors.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int64_t kRanks = 64;  // of a block
constexpr int64_t kColumns = 512;
constexpr int64_t kLanes = 4;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// Ranks [begin, begin + count) of columns [column, column + kColumns) of a factor,
// zeros behind its end.
struct Block {
  int64_t begin = 0, count = 0;
  std::vector<float> values = std::vector<float>(static_cast<size_t>(kRanks * kColumns));

  float* row(int64_t rank) { return values.data() + rank * kColumns; }
  const float* row(int64_t rank) const { return values.data() + rank * kColumns; }
};

using Square = std::array<double, static_cast<size_t>(kRanks* kRanks)>;

// square[i, j] += x's row i times y's row j; of one block with itself up to the
// diagonal at least.
void add_products(const Block& x, const Block& y, Square& square) {
  const auto at = [](const float* row, int64_t column) {
    Lanes lanes;
    std::memcpy(&lanes, row + column, sizeof lanes);
    return lanes;
  };
  const auto add = [&](int64_t i, int64_t j, Lanes sum) {
    square[static_cast<size_t>(i * kRanks + j)] += static_cast<double>((sum[0] + sum[1]) + (sum[2] + sum[3]));
  };
  for (int64_t i = 0; i < x.count; i += 2) {  // rows behind the last are there, whatever they hold
    const int64_t end = &x == &y ? std::min(i + 2, x.count) : y.count;
    const float *const x0 = x.row(i), *const x1 = x.row(i + 1);
    for (int64_t j = 0; j < end; j += 4) {
      const float *const y0 = y.row(j), *const y1 = y.row(j + 1), *const y2 = y.row(j + 2), *const y3 = y.row(j + 3);
      Lanes a0{}, a1{}, a2{}, a3{}, b0{}, b1{}, b2{}, b3{};
      for (int64_t column = 0; column < kColumns; column += kLanes) {
        const Lanes a = at(x0, column), b = at(x1, column);
        const Lanes c0 = at(y0, column), c1 = at(y1, column), c2 = at(y2, column), c3 = at(y3, column);
        a0 += a * c0;
        a1 += a * c1;
        a2 += a * c2;
        a3 += a * c3;
        b0 += b * c0;
        b1 += b * c1;
        b2 += b * c2;
        b3 += b * c3;
      }
      add(i, j, a0);
      add(i, j + 1, a1);
      add(i, j + 2, a2);
      add(i, j + 3, a3);
      add(i + 1, j, b0);
      add(i + 1, j + 1, b1);
      add(i + 1, j + 2, b2);
      add(i + 1, j + 3, b3);
    }
  }
}

// A [rank, in] or B transposed [rank, out].
class Factor {
 public:
  Factor(const LoraPair& pair, bool a, bool by_token) : pair_(pair), a_(a), by_token_(by_token) {}
  int64_t columns() const { return a_ ? pair_.in : pair_.out; }

  void read(int64_t column, Block& block) const {
    const int64_t count = std::min(kColumns, columns() - column);
    for (int64_t rank = 0; rank < block.count; ++rank) {
      float* const row = block.row(rank);
      if (!by_token_) read_row(block.begin + rank, column, count, row);
      std::fill(row + count, row + kColumns, 0.0f);
    }
    if (!by_token_) return;
    std::array<float, static_cast<size_t>(kRanks)> token;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = (column + i) * pair_.rank + block.begin;
      decode_row(pair_.dtype, pair_.a + first * row_bytes(pair_.dtype, 1), token.data(), block.count);
      for (int64_t rank = 0; rank < block.count; ++rank) block.row(rank)[i] = token[static_cast<size_t>(rank)];
    }
  }

 private:
  void read_row(int64_t rank, int64_t column, int64_t count, float* row) const {
    if (!a_) {
      return decode_lora_b(pair_, static_cast<int32_t>(rank), static_cast<int32_t>(column), static_cast<int32_t>(count),
                           row);
    }
    decode_lora_a(pair_, static_cast<int32_t>(rank), static_cast<int32_t>(column), static_cast<int32_t>(count), row);
  }

  const LoraPair& pair_;
  const bool a_, by_token_;
};

class ChangeSum {
 public:
  void add(const LoraPair& pair, bool embedding) {
    const Factor a(pair, true, embedding), b(pair, false, false);
    double sum = 0;
    for (int64_t i = 0; i < pair.rank; i += kRanks) {
      for (int64_t j = 0; j <= i; j += kRanks) {
        const bool some_a = multiply(a, pair.rank, i, j, squares_[0]),
                   some_b = multiply(b, pair.rank, i, j, squares_[1]);
        if (i == j) some_ |= some_a && some_b && pair.scaling != 0;
        sum += product(i == j);
      }
    }
    sum_ += sum * static_cast<double>(pair.scaling) * static_cast<double>(pair.scaling);
  }
  AdapterChange change() const {
    if (!std::isfinite(sum_)) return {std::numeric_limits<double>::infinity(), some_};
    return {std::sqrt(std::max(0.0, sum_)), some_};
  }

 private:
  // Of the two squares, which are the same below and above the diagonal.
  double product(bool diagonal) const {
    double sum = 0;
    for (int64_t i = 0; i < x_.count; ++i) {
      for (int64_t j = 0; j < (diagonal ? i + 1 : y_.count); ++j) {
        const auto k = static_cast<size_t>(i * kRanks + j);
        sum += (diagonal && i == j ? 1 : 2) * squares_[0][k] * squares_[1][k];
      }
    }
    return sum;
  }

  // Of ranks from i and from j on; whether those from i on hold anything but zeros.
  bool multiply(const Factor& factor, int64_t rank, int64_t i, int64_t j, Square& square) {
    square.fill(0);
    bool some = false;
    x_.begin = i;
    x_.count = std::min(kRanks, rank - i);
    y_.begin = j;
    y_.count = std::min(kRanks, rank - j);
    for (int64_t column = 0; column < factor.columns(); column += kColumns) {
      factor.read(column, x_);
      if (i != j) factor.read(column, y_);
      add_products(x_, i == j ? x_ : y_, square);
      for (int64_t r = 0; r < x_.count && !some; ++r)
        some = std::any_of(x_.row(r), x_.row(r) + kColumns, [](float value) { return value != 0; });
    }
    return some;
  }

  Block x_, y_;
  std::array<Square, 2> squares_;
  double sum_ = 0;
  bool some_ = false;
};

bool any_number(const float* values, int64_t count) {
  return values != nullptr && std::any_of(values, values + count, [](float value) { return value != 0; });
}

}  // namespace

AdapterChange change_of(const Adapter& adapter, const ModelConfig& config) {
  CHECK(adapter.pairs.size() == static_cast<size_t>(config.layers) * kLayerModules + 2);
  auto sum = std::make_unique<ChangeSum>();
  bool some = adapter.saved.any();
  for (size_t i = 0; i < adapter.pairs.size(); ++i) {
    const LoraPair& pair = adapter.pairs[i];
    some |= any_number(pair.b_bias, pair.out) || any_number(pair.bias_delta, pair.out);
    if (pair.rank > 0) sum->add(pair, i + 1 == adapter.pairs.size());
  }
  AdapterChange change = sum->change();
  change.some |= some;
  return change;
}

}  // namespace loralei
