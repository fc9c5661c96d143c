// SPDX-License-Identifier: Apache-2.0
// plan_residency: which rows of the base model's matrices are locked in memory and which
// are streamed from disk in every pass (FlexInfer §3.4, mechanisms §2). A pure function
// of the tensor list and a number of bytes; any thread.
//
// A pass touches the matrices in the order of the list: layer by layer, the head last; of
// an embedding that is only looked up it reads single rows, which is no streaming. Rows
// are locked from a matrix's first row on and in whole row tiles. Locked rows take their
// bytes as the kernels use them, streamed ones as they are stored (shrunk or not); what
// is streamed shrunk is decoded into a part of the window. Of a mixture a pass uses a few
// experts alone: where not all fit, everything else is locked first, since every pass
// touches it, and what is left is a cache of experts.
// Invariants: locked_bytes + window_bytes + expert_bytes <= the bytes given; the window
// holds two of the largest panel that is streamed, and one decoded.
// Failure: too few bytes to run at all is refused with the least that would do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace loralei {

// What a matrix is to the planner. The order within a layer is that of its use.
enum class MatrixRole : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown, kHead, kEmbed };
inline constexpr int kMatrixRoles = 9;
const char* matrix_role_name(MatrixRole role);

enum class ResidencyPolicy : uint8_t {
  kBalanced,    // every layer streams the same bytes, the budget is used to the last tile; ours, the default
  kFlex,        // the paper's Algorithm 1; embedding and head always locked, as in all that follow
  kLayerOrder,  // whole tensors from the first layer on
  kAttnFirst,   // attention tensors of all layers, then FFN tensors
  kFfnFirst,    // the other way round
  kNone,        // nothing more: every layer is streamed whole
};
const char* residency_policy_name(ResidencyPolicy policy);
Result<ResidencyPolicy> parse_residency_policy(const std::string& name);

struct PlannedMatrix {
  MatrixRole role = MatrixRole::kQ;
  int32_t layer = -1;             // -1: outside the layers
  int32_t expert = -1;            // -1: of none of those that are chosen
  int64_t rows = 0;               // in tiles of kRowTile but for the last
  int64_t tile_bytes = 0;         // of one row tile
  bool tied_head = false;         // kHead: it is the embedding too
  int64_t stored_tile_bytes = 0;  // of a row tile that is shrunk on disk; 0: it is stored as it is held
};
int64_t planned_bytes(const PlannedMatrix& matrix);  // as held
int64_t stored_tile_bytes(const PlannedMatrix& matrix);

struct ResidencyOptions {
  ResidencyPolicy policy = ResidencyPolicy::kBalanced;
  int64_t window_bytes = 0;  // 0: by the policy, see below
};

struct ResidencyPlan {
  std::vector<int64_t> locked_rows;  // by matrix, in the order given; all rows of those not streamed
  int64_t locked_bytes = 0;
  int64_t streamed_bytes = 0;   // read in every pass, as stored
  int64_t decoded_bytes = 0;    // the same, as held
  int64_t looked_up_bytes = 0;  // embedding left on disk, read row by row
  int64_t window_bytes = 0;     // memory of what is on its way
  int64_t decode_bytes = 0;     // of it: where a round's shrunk panels are decoded to
  // Of the cache in which the experts of a mixture are that are used most
  // (expert_cache.h), where not all of them fit: none is locked then, and no pass streams
  // them. 0: they are as other matrices are.
  int64_t expert_bytes = 0;
  int64_t window_bound_bytes = 0;  // three layers' streamed bytes or 128 MiB, whichever is less
  bool streams() const { return streamed_bytes > 0 || expert_bytes > 0; }
  // Locks these rows of every matrix and no others. The window stays.
  void lock(const std::vector<PlannedMatrix>& matrices, std::vector<int64_t> rows);
};

// The largest piece that is streamed as one, as stored: the window holds two, so that one
// arrives while another is used.
inline constexpr int64_t kPanelBytes = int64_t{1} << 20;
// A window by default: what three layers stream, at most this.
inline constexpr int64_t kWindowMostBytes = int64_t{128} << 20;
// Where every layer streams the same bytes ('balanced') less is at most enough: a few
// blocks under way, a round being used and as much again that has arrived. What a window
// does not take is locked, and is not read; and memory that is written again soon is
// still in the caches of who writes it (weights/disk_probe.h).
inline constexpr int64_t kBalancedWindowBytes = int64_t{8} << 20;
inline constexpr int64_t kBalancedShrunkWindowBytes = int64_t{64} << 20;  // a quarter is for decoding

Result<ResidencyPlan> plan_residency(const std::vector<PlannedMatrix>& matrices, int64_t bytes,
                                     const ResidencyOptions& options);

// With so many bytes or more a plan can be made: those of a window that holds what it
// must, and of what is always locked.
int64_t least_residency_bytes(const std::vector<PlannedMatrix>& matrices, ResidencyPolicy policy);

// Rows of a streamed panel of this matrix: whole tiles of up to kPanelBytes,
// at least one.
int64_t panel_rows(const PlannedMatrix& matrix);

// Bytes of a pass of one row, of which each layer's experts are `used`. What is read of
// them is what it would be if all were chosen alike: those used most are read less.
struct PassBytes {
  int64_t touched = 0;
  int64_t read = 0;
};
PassBytes pass_bytes(const std::vector<PlannedMatrix>& matrices, const ResidencyPlan& plan, int32_t used);

// The plan by kind of tensor as a table for people.
std::string describe_residency(const std::vector<PlannedMatrix>& matrices, const ResidencyPlan& plan);

}  // namespace loralei
