// SPDX-License-Identifier: Apache-2.0
// Profile: what a machine takes for a model's steps and for its adapters, as measured by
// `loralei profile` or made by hand. A JSON file, and what `loralei simulate` computes
// with.
//
//   {"format": "loralei-profile", "version": 1, "name": ..., "source": ...,
//    "model":  {"name", "max_tokens", "kv_bytes_per_token", "adapter_bytes_per_rank",
//               "layers"},                                  if adapters come in layers
//    "memory": {"kv_bytes", "adapter_bytes", "host_adapter_bytes"},
//    "step":   {"linear": [[rows, seconds], ...], "<term>": seconds, ...},
//    "disk":   {"seconds", "bytes_per_second", "at_once"},   if adapters were measured
//    "link":   {"seconds", "bytes_per_second", "at_once"},   only where there is a device
//    "assist": {"message_seconds", "row_seconds_per_rank"     if cores may help a device
//               "hidden", "rows_per_second": [[rank, rows], ...]},   and were measured
//    "fit":    {"steps", "r2", "mean_error", "p90_error", "mean_bias"}}     if measured
//
// A plain value. Failure: parse_profile() answers a sentence with file and line; unknown
// keys are errors, so that a misspelt one is not a zero.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/step_fit.h"
#include "cost/step_model.h"

namespace loralei {

struct ProfiledModel {
  std::string name;
  int32_t max_tokens = 0;  // prompt and output together; 0: not stated
  int64_t kv_bytes_per_token = 0;
  int64_t adapter_bytes_per_rank = 0;  // of an adapter's bytes in memory
  int32_t layers = 0;                  // in which adapters come over the link; 0: as a whole
  friend bool operator==(const ProfiledModel&, const ProfiledModel&) = default;
};

// Of what computes: the device where there is one.
struct ProfiledMemory {
  int64_t kv_bytes = 0, adapter_bytes = 0;
  int64_t host_adapter_bytes = 0;  // beside a device
  friend bool operator==(const ProfiledMemory&, const ProfiledMemory&) = default;
};

// How long bytes take: `seconds` each time, and then the rate. As many as `at_once` do
// not slow each other down; the next one waits.
struct TransferCost {
  double seconds = 0;
  double bytes_per_second = 0;
  int32_t at_once = 1;
  double predict_s(int64_t bytes) const { return seconds + static_cast<double>(bytes) / bytes_per_second; }
  friend bool operator==(const TransferCost&, const TransferCost&) = default;
};

// What one core takes for low-rank products of one layer: passing rows on, and computing
// each. And as measured (CaraServe §4.2): rows of [hidden] a second through one module of
// as many outputs, by the rank of its pair.
struct AssistCost {
  struct Point {
    int32_t rank = 0;
    double rows_per_second = 0;
    friend bool operator==(const Point&, const Point&) = default;
  };
  double message_seconds = 0;
  double row_seconds_per_rank = 0;  // above 0
  int32_t hidden = 0;               // 0: without points
  std::vector<Point> points = {};   // ranks rise
  friend bool operator==(const AssistCost&, const AssistCost&) = default;
};

struct Profile {
  std::string name, source;  // source: where the numbers are from, for people
  ProfiledModel model;
  ProfiledMemory memory;
  StepModel step;
  std::optional<TransferCost> disk;  // an adapter into host memory; none: not known
  std::optional<TransferCost> link;  // and on to the device
  std::optional<AssistCost> assist;  // none: cores cannot help
  std::optional<FitQuality> fit;
  friend bool operator==(const Profile&, const Profile&) = default;
};

// `place` names the file in messages.
Result<Profile> parse_profile(std::string_view text, const std::string& place);
std::string profile_text(const Profile& profile);

// Profiles that come with the program, by name (cost/devices.cc says where their numbers
// are from).
std::vector<std::string> device_names();
std::optional<Profile> device_profile(std::string_view name);

}  // namespace loralei
