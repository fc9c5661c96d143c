// SPDX-License-Identifier: Apache-2.0
// What makes products fastest on this machine: which kernel they take where several
// would do, measured when the program starts, and how early they ask for weights.
// All kernels give the same bits (ops/args.h), so the choice is about speed alone,
// and takes so few milliseconds that nothing is kept from one start to the next: there is
// no file to be stale.
//
// One thread, which the context's pool joins.
// Ownership: none; allocates only while measuring.
// Failure: none; where memory for the measurement is refused the defaults stay.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "tensor/dtype.h"

namespace loralei {

struct OpContext;
struct OpTable;

// How early a product asks for its weights, and where they are brought: lines of the
// first-level cache are few, and what waits there long is in the way.
struct WeightsAsked {
  int32_t ahead_bytes = 0;  // of a tile; 0: nothing is asked for
  bool second_level = false;

  bool operator==(const WeightsAsked&) const = default;
};

struct TileTuning {
  // From how many rows of a call on the matrix unit takes over from vectors, by format
  // (tables that have one).
  std::array<int32_t, kDTypeCount> matrix_rows;
  // Calls of up to so many rows multiply packed tiles, unpacked anew for every pass of
  // rows; more get them written out once. Eight where unpacking takes the dot products'
  // place, sixteen (the most that is tried) where it does not.
  int32_t packed_rows;
  // Whether a product with few rows keeps its sums in registers, in formats of 32 (tables
  // that have both): its dot products load their input words themselves then, twice as
  // often, which is nothing where a dot product takes a unit twice as long as a load.
  bool sums_in_registers;
  // How a product with few rows asks for its weights. Not measured at start, since
  // what memory gives changes from moment to moment on a shared machine, but known
  // of the processor.
  std::array<WeightsAsked, kDTypeCount> tiles_asked;  // by format
  // Up to so many rows compute so little that the processor brings the weights faster if
  // nothing is asked for.
  std::array<int32_t, kDTypeCount> unasked_rows;
  // Whether a product with few rows in plain layout asks for the rows of weights that
  // come next; one row of inputs (up to three rounded ones) then meets one row of
  // weights after the other.
  bool ask_for_rows;
  // Where factors of adapters that meet one row are brought when they are asked for:
  // there, else to the first level.
  bool factors_to_second_level;

  TileTuning();
  int32_t of(DType dtype) const { return matrix_rows[static_cast<size_t>(dtype)]; }
  WeightsAsked asked(DType dtype, int rows) const {
    const auto format = static_cast<size_t>(dtype);
    return rows <= unasked_rows[format] ? WeightsAsked{} : tiles_asked[format];
  }
};

// Sets matrix_rows and sums_in_registers of ctx.tuning for `formats`, where the
// table has a choice.
void tune_tiles(OpContext& ctx, const OpTable& table, std::span<const DType> formats, const Clock& clock);

}  // namespace loralei
