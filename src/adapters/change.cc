// SPDX-License-Identifier: Apache-2.0
// |B A|^2 = trace((B^T B)(A A^T)): the product itself, out * in numbers, is never made.
// Both squares are made in blocks of ranks and summed over runs of columns, so that a
// high rank needs no more memory than a low one.
#include "adapters/change.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "adapters/change_products.h"
#include "ops/lora_factors.h"
#include "tensor/dtype.h"

namespace loralei {
namespace {

constexpr int64_t kRanks = kChangeRanks, kColumns = kChangeColumns;

// Ranks [begin, begin + count) of columns [column, column + kColumns) of a factor,
// zeros behind its end.
struct Block {
  int64_t begin = 0, count = 0;
  std::vector<float> values = std::vector<float>(static_cast<size_t>(kRanks * kColumns));

  float* row(int64_t rank) { return values.data() + rank * kColumns; }
  const float* row(int64_t rank) const { return values.data() + rank * kColumns; }
};

// A [rank, in] or B transposed [rank, out].
class Factor {
 public:
  Factor(const LoraPair& pair, bool a, bool by_token)
      : products_(change_products().front()), pair_(pair), a_(a), by_token_(by_token) {}
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
      products_.decode(pair_.dtype, pair_.a + first * row_bytes(pair_.dtype, 1), token.data(), block.count);
      for (int64_t rank = 0; rank < block.count; ++rank) block.row(rank)[i] = token[static_cast<size_t>(rank)];
    }
  }

 private:
  void read_row(int64_t rank, int64_t column, int64_t count, float* row) const {
    const auto r = static_cast<int32_t>(rank), first = static_cast<int32_t>(column), n = static_cast<int32_t>(count);
    if (pair_.a_scale != nullptr)
      return a_ ? decode_lora_a(pair_, r, first, n, row) : decode_lora_b(pair_, r, first, n, row);
    const std::byte* const from =
        a_ ? pair_.a + rank * lora_a_stride_bytes(pair_) : pair_.b_t + rank * lora_b_stride_bytes(pair_);
    products_.decode(pair_.dtype, from + column * row_bytes(pair_.dtype, 1), row, count);
  }

  const ChangeProducts& products_;
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
        multiply(a, pair.rank, i, j, squares_[0]);
        multiply(b, pair.rank, i, j, squares_[1]);
        sum += product(i == j);
      }
    }
    sum_ += sum * static_cast<double>(pair.scaling) * static_cast<double>(pair.scaling);
  }
  double norm() const {
    return std::isfinite(sum_) ? std::sqrt(std::max(0.0, sum_)) : std::numeric_limits<double>::infinity();
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

  // Of ranks from i and from j on.
  void multiply(const Factor& factor, int64_t rank, int64_t i, int64_t j, ChangeSquare& square) {
    square.fill(0);
    x_.begin = i;
    x_.count = std::min(kRanks, rank - i);
    y_.begin = j;
    y_.count = std::min(kRanks, rank - j);
    for (int64_t column = 0; column < factor.columns(); column += kColumns) {
      factor.read(column, x_);
      if (i != j) factor.read(column, y_);
      const Block& by = i == j ? x_ : y_;
      change_products().front().add(x_.values.data(), x_.count, by.values.data(), by.count, square);
    }
  }

  Block x_, y_;
  std::array<ChangeSquare, 2> squares_;
  double sum_ = 0;
};

bool any_number(const float* values, int64_t count) {
  return values != nullptr && std::any_of(values, values + count, [](float value) { return value != 0; });
}

// Some number of it is not zero.
bool any_number(const Factor& factor, int64_t ranks, Block& block) {
  for (block.begin = 0; block.begin < ranks; block.begin += kRanks) {
    block.count = std::min(kRanks, ranks - block.begin);
    for (int64_t column = 0; column < factor.columns(); column += kColumns) {
      factor.read(column, block);
      if (any_number(block.values.data(), block.count * kColumns)) return true;
    }
  }
  return false;
}

std::array<const std::vector<LoraPair>*, 3> expert_lists(const Adapter& adapter) {
  return {&adapter.experts.router, &adapter.experts.shared_gates, &adapter.experts.matrices};
}

bool is_embedding(const Adapter& adapter, const LoraPair& pair) { return &pair == &adapter.embed_pair(); }

}  // namespace

bool changes_something(const Adapter& adapter) {
  if (adapter.saved.any()) return true;
  Block block;
  for (const auto* list : expert_lists(adapter)) {
    for (const LoraPair& pair : *list) {
      if (any_number(pair.b_bias, pair.out)) return true;
      if (pair.rank > 0 && pair.scaling != 0 && any_number(Factor(pair, true, false), pair.rank, block) &&
          any_number(Factor(pair, false, false), pair.rank, block))
        return true;
    }
  }
  for (const LoraPair& pair : adapter.pairs) {
    if (any_number(pair.b_bias, pair.out) || any_number(pair.bias_delta, pair.out)) return true;
    if (pair.rank > 0 && pair.scaling != 0 &&
        any_number(Factor(pair, true, is_embedding(adapter, pair)), pair.rank, block) &&
        any_number(Factor(pair, false, false), pair.rank, block))
      return true;
  }
  return false;
}

double change_norm(const Adapter& adapter) {
  const auto sum = std::make_unique<ChangeSum>();
  for (const LoraPair& pair : adapter.pairs)
    if (pair.rank > 0) sum->add(pair, is_embedding(adapter, pair));
  for (const auto* list : expert_lists(adapter)) {
    for (const LoraPair& pair : *list)
      if (pair.rank > 0) sum->add(pair, false);
  }
  return sum->norm();
}

}  // namespace loralei
