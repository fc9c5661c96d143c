// SPDX-License-Identifier: Apache-2.0
// ColdStart: what becomes of a request whose adapter is not where steps compute
// (mechanisms §6, CaraServe §4).
//
//   kAuto      whichever of the next three answers first, as far as can be predicted
//   kLayered   it begins when every layer will be there before it is needed, or, beside
//              others, when its step would wait for a small part of itself
//   kAssisted  it begins at once, and other cores compute what has not arrived
//   kOndemand  it waits for all of its adapters
//   kCached    adapters are brought before anybody asks, and kept; to compare with
//
// A prompt that computes for `pass_s` needs layer l of n after l / n of that. So it may
// begin `stall_s` later than now and will wait for nothing:
//
//   stall_s = max over l of (arrival_s(l) - pass_s * l / n)
//
// Plain values; no failure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace loralei {

enum class ColdStart : uint8_t { kAuto, kLayered, kAssisted, kOndemand, kCached };
inline constexpr std::array<const char*, 5> kColdStartNames = {"auto", "layered", "assisted", "ondemand", "cached"};

// Where layers would be in time even if they came so many times as late as predicted,
// others need not be kept out of their steps.
inline constexpr double kEarlySlowness = 1.25;

// `arrival_s(piece)`: from now until a layer is there; piece `layers` is what comes
// behind them. Negative: there is so much time to spare.
template <typename ArrivalS>
double stall_s(int32_t layers, double pass_s, ArrivalS&& arrival_s) {
  double stall_s = -pass_s;
  for (int32_t piece = 0; piece <= layers; ++piece)
    stall_s = std::max(stall_s, arrival_s(piece) - pass_s * static_cast<double>(piece) / static_cast<double>(layers));
  return stall_s;
}

// What helpers would do for one adapter's rows.
struct AssistOffer {
  int32_t rows = 0;       // of a step, at most; 0: nothing
  int32_t rows_each = 1;  // of a helper, as long as others are free
  int32_t helpers = 1;
  double row_s = 0;      // of a row in one layer
  double message_s = 0;  // of a layer, whatever its rows

  double layer_s(int32_t step_rows) const {
    const int32_t taken = std::clamp((step_rows + rows_each - 1) / rows_each, 1, helpers);
    return message_s + row_s * static_cast<double>((step_rows + taken - 1) / taken);
  }
};

// A prompt that computes for `pass_s`, begun now, with helpers for whatever layers are
// not there when it gets to them: a layer takes as long as the slower of both, or until
// it is there and then as ever.
template <typename ArrivalS>
double assisted_pass_s(int32_t layers, double pass_s, double helper_layer_s, ArrivalS&& arrival_s) {
  const double layer_s = pass_s / static_cast<double>(layers);
  double now_s = 0;
  for (int32_t layer = 0; layer < layers; ++layer) {
    const double wait_s = arrival_s(layer) - now_s;
    now_s += wait_s <= 0 ? layer_s : std::min(std::max(layer_s, helper_layer_s), wait_s + layer_s);
  }
  return now_s;
}

inline constexpr int32_t kMaxAssistHelpers = 64;  // processes

// Steps with helpers are counted by the layer from which the device went on alone, up to
// each of these and beyond.
inline constexpr std::array<int32_t, 9> kHandoverLimits = {0, 1, 2, 4, 8, 16, 32, 64, 128};

// What became of cold requests, and of their layers.
struct ColdStarts {
  std::array<uint64_t, kColdStartNames.size()> requests{};  // by the way that was taken: kLayered to kOndemand
  uint64_t layers_waited = 0;                               // of steps, for layers that were to be there
  uint64_t given_up = 0;                                    // steps that ended with a layer that was late
  double waited_s = 0;                                      // for layers
  double hidden_s = 0;           // that adapters were still on their way while their requests were computed
  uint64_t assisted_layers = 0;  // of steps, computed with helpers
  std::array<uint64_t, kHandoverLimits.size() + 1> handovers{};
  uint64_t handover_layers = 0;  // the sum of these layers
  int32_t helpers = 0;           // that are there
  uint64_t helper_restarts = 0;
};

}  // namespace loralei
