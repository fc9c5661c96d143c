// SPDX-License-Identifier: Apache-2.0
// WorkloadLengths: how long prompts and answers are, by a word of where that is from:
//   fixed:IN:OUT   always the same
//   draw:FILE      a row of a CSV for each request, drawn with the seed
//   order:FILE     its rows one after another, and again from the first
// The CSV's columns say what it is: ContextTokens and GeneratedTokens (Azure),
// prompt_tokens and output_tokens (AIBrix), input_tokens_llama2 and
// output_tokens_llama2 (instruction sets), input_chars and output_chars at four
// characters a token (LRAgent), or input_mean, input_p10 ... output_p99 (ServeGen).
//
// Of the last kind a row is two distributions, not a length: input and output are drawn
// independently by the inverse of a quantile function that is linear between the stated
// points, level below the lowest, and above the highest rises so far that the mean is
// the stated one. A request of a ServeGen client takes that client's row of its time
// (or the nearest one before, else the first); where the client has none, and for
// requests of no client, any row is drawn.
//
// Thread: one at a time: next() goes on.
// Invariants: a length is at least 1 and within its limit, after scaling; request n's
// draws depend on seed and n alone (and its client and time, for ServeGen).
// Failure: a sentence about the word, or FILE:LINE about the file.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/prng.h"
#include "base/result.h"
#include "workload/arrivals.h"

namespace loralei {

struct WorkloadLength {
  int32_t prompt = 1, output = 1;
};

struct LengthOptions {
  std::string spec;
  double scale = 1;  // of both, before the limits
  int64_t prompt_max = kMaxModelLen, output_max = kMaxModelLen;
  uint64_t seed = 1;
};

// A length of `tokens` tokens, scaled and within [1, most].
int32_t scaled_tokens(double tokens, double scale, int64_t most);

class WorkloadLengths {
 public:
  static Result<WorkloadLengths> open(const LengthOptions& options);
  WorkloadLength next(const WorkloadArrival& arrival);

  // The inverse of a distribution's function, as chances and values, both ascending.
  struct Quantiles {
    std::array<double, 8> chances{}, values{};
    double at(double chance) const;
  };

 private:
  enum class Kind : uint8_t { kFixed, kDraw, kOrder, kQuantiles };
  struct Tokens {
    double prompt = 0, output = 0;
  };
  struct QuantileRow {
    double start_s = 0;
    Quantiles input, output;
  };
  WorkloadLengths(const LengthOptions& options, Kind kind);
  Status read_rows(const class CsvTable& table);
  Status read_quantiles(const class CsvTable& table);
  size_t quantile_row(const WorkloadArrival& arrival);

  LengthOptions options_;
  Kind kind_;
  Prng random_;
  size_t next_row_ = 0;
  std::vector<Tokens> rows_;
  std::vector<QuantileRow> quantiles_;
  std::map<int32_t, std::vector<size_t>> by_client_;  // rows of each, by time
};

}  // namespace loralei
