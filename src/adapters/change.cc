// SPDX-License-Identifier: Apache-2.0
// |B A|^2 = trace((B^T B)(A A^T)): the product itself, out * in numbers, is never made. Both squares are made in blocks
// of ranks and summed over runs of columns, so that a high rank needs no more memory than a low one.
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
constexpr int64_t kColumns = 256;
constexpr int64_t kLanes = 8;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// Ranks [begin, begin + count) of columns [column, column + kColumns) of a factor, zeros behind its end.
struct Block {
  int64_t begin = 0, count = 0;
  std::vector<float> values = std::vector<float>(static_cast<size_t>(kRanks * kColumns));

  float* row(int64_t rank) { return values.data() + rank * kColumns; }
  const float* row(int64_t rank) const { return values.data() + rank * kColumns; }
};

using Square = std::array<double, static_cast<size_t>(kRanks* kRanks)>;

// square[i, j] += x's row i times y's row j; of one block with itself up to the diagonal at least.
__attribute__((always_inline)) inline void add_products(const Block& x, const Block& y, Square& square) {
  for (int64_t i = 0; i < x.count; ++i) {
    const int64_t end = &x == &y ? i + 1 : y.count;
    for (int64_t j = 0; j < end; j += 4) {  // rows behind the last are there, whatever they hold
      Lanes sums[4] = {};
      for (int64_t column = 0; column < kColumns; column += kLanes) {
        Lanes left;
        std::memcpy(&left, x.row(i) + column, sizeof left);
        for (int64_t k = 0; k < 4; ++k) {
          Lanes right;
          std::memcpy(&right, y.row(j + k) + column, sizeof right);
          sums[k] += left * right;
        }
      }
      for (int64_t k = 0; k < std::min<int64_t>(4, y.count - j); ++k) {
        float sum = 0;
        for (int64_t lane = 0; lane < kLanes; ++lane) sum += sums[k][lane];
        square[static_cast<size_t>(i * kRanks + j + k)] += static_cast<double>(sum);
      }
    }
  }
}

void add_products_plain(const Block& x, const Block& y, Square& square) { add_products(x, y, square); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void add_products_avx2(const Block& x, const Block& y, Square& square) {
  add_products(x, y, square);
}
#endif

using AddProducts = void (*)(const Block& x, const Block& y, Square& square);
AddProducts products_of_this_machine() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return add_products_avx2;
#endif
  return add_products_plain;
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
    for (int64_t i = 0; i < kRanks; ++i) {
      for (int64_t j = 0; j < (diagonal ? i + 1 : kRanks); ++j) {
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
      products_(x_, i == j ? x_ : y_, square);
      for (int64_t r = 0; r < x_.count && !some; ++r)
        some = std::any_of(x_.row(r), x_.row(r) + kColumns, [](float value) { return value != 0; });
    }
    return some;
  }

  const AddProducts products_ = products_of_this_machine();
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
