// SPDX-License-Identifier: Apache-2.0
#include "weights/residency.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <optional>

#include "base/check.h"
#include "base/units.h"
#include "formats/packed_index.h"
#include "tensor/weight_view.h"
#include "weights/expert_plan.h"

namespace loralei {
namespace {

constexpr int kWindowLayers = 3;
// Where shrunk panels are decoded to: a quarter of the window (a round's share of it),
// but no more than caches like.
constexpr int64_t kDecodePart = 4;
constexpr int64_t kDecodeMost = 16 * kMiB;
constexpr int64_t kDirectSlack = 2 * 4096;  // a panel is read from page boundary to page boundary

constexpr std::array<const char*, kMatrixRoles> kRoleNames = {"q",  "k",    "v",    "o",        "gate",
                                                              "up", "down", "head", "embedding"};
constexpr std::array<const char*, 6> kPolicyNames = {"balanced",   "flex",      "layer-order",
                                                     "attn-first", "ffn-first", "none"};

int64_t tiles_of(const PlannedMatrix& matrix) { return (matrix.rows + kRowTile - 1) / kRowTile; }
int64_t stored_bytes(const PlannedMatrix& matrix) { return tiles_of(matrix) * stored_tile_bytes(matrix); }

// Locks whole tiles and counts what is left. A matrix starts with none locked.
class Locker {
 public:
  Locker(const std::vector<PlannedMatrix>& matrices, int64_t bytes)
      : matrices_(matrices), left_(bytes), tiles_(matrices.size(), 0) {}

  int64_t left() const { return left_; }
  int64_t locked_tiles(size_t index) const { return tiles_[index]; }
  int64_t streamed_tiles(size_t index) const { return tiles_of(matrices_[index]) - tiles_[index]; }
  bool lock_tiles(size_t index, int64_t tiles) {
    const int64_t bytes = tiles * matrices_[index].tile_bytes;
    if (bytes > left_) return false;
    left_ -= bytes;
    tiles_[index] += tiles;
    return true;
  }
  bool lock_all(size_t index) { return lock_tiles(index, streamed_tiles(index)); }

 private:
  const std::vector<PlannedMatrix>& matrices_;
  int64_t left_;
  std::vector<int64_t> tiles_;
};

// The model as the policies see it.
struct Shape {
  const std::vector<PlannedMatrix>& matrices;
  std::vector<std::vector<size_t>> layers;  // matrices of each layer, in order
  std::vector<size_t> outer;                // head and embedding
  int64_t touched_bytes = 0;                // in every pass: all but a looked-up embedding
  int64_t stored_bytes = 0;                 // the same, as stored
  int64_t embed_bytes = 0;
  int64_t outer_bytes = 0;

  explicit Shape(const std::vector<PlannedMatrix>& list) : matrices(list) {
    for (size_t i = 0; i < list.size(); ++i) {
      const PlannedMatrix& matrix = list[i];
      if (matrix.role == MatrixRole::kEmbed) {
        embed_bytes += planned_bytes(matrix);
      } else {
        touched_bytes += planned_bytes(matrix);
        stored_bytes += loralei::stored_bytes(matrix);
      }
      if (matrix.layer < 0) {
        outer.push_back(i);
        outer_bytes += planned_bytes(matrix);
        continue;
      }
      if (static_cast<size_t>(matrix.layer) >= layers.size()) layers.resize(static_cast<size_t>(matrix.layer) + 1);
      layers[static_cast<size_t>(matrix.layer)].push_back(i);
    }
  }
  int64_t bytes_of(MatrixRole role) const {
    int64_t bytes = 0;
    for (const PlannedMatrix& matrix : matrices) bytes += matrix.role == role ? planned_bytes(matrix) : 0;
    return bytes;
  }
};

// --- experts ---
bool is_expert(const PlannedMatrix& matrix) { return matrix.expert >= 0; }

struct ExpertSizes {
  std::vector<int64_t> layer_bytes;  // of an expert of each layer that has some
  int32_t experts = 0;               // of each
  int32_t count = 0;                 // in all
};
ExpertSizes expert_sizes(const std::vector<PlannedMatrix>& matrices) {
  ExpertSizes sizes;
  int32_t layer = -1;
  for (const PlannedMatrix& matrix : matrices) {
    if (!is_expert(matrix)) continue;
    if (matrix.layer != layer) sizes.layer_bytes.push_back(0);
    layer = matrix.layer;
    sizes.experts = std::max(sizes.experts, matrix.expert + 1);
    // In one of them, since all are alike. It is read from page to page.
    if (matrix.expert == 0)
      sizes.layer_bytes.back() += (planned_bytes(matrix) + kPackedAlign - 1) / kPackedAlign * kPackedAlign;
  }
  sizes.count = sizes.experts * static_cast<int32_t>(sizes.layer_bytes.size());
  return sizes;
}

std::vector<PlannedMatrix> without_experts(const std::vector<PlannedMatrix>& matrices) {
  std::vector<PlannedMatrix> others;
  std::copy_if(matrices.begin(), matrices.end(), std::back_inserter(others),
               [](const PlannedMatrix& matrix) { return !is_expert(matrix); });
  return others;
}

// --- balanced ---
constexpr std::array<std::array<MatrixRole, 3>, 3> kStreamedFirst = {{
    {MatrixRole::kGate, MatrixRole::kUp, MatrixRole::kDown},  // large reads first
    {MatrixRole::kQ, MatrixRole::kO, MatrixRole::kO},
    {MatrixRole::kK, MatrixRole::kV, MatrixRole::kV},
}};

// Locks all of a layer but `stream` bytes as stored, which its matrices share in
// proportion, the large ones first.
void balance_layer(const Shape& shape, const std::vector<size_t>& layer, int64_t stream, Locker& locker) {
  for (const auto& group : kStreamedFirst) {
    std::vector<size_t> members;
    int64_t group_bytes = 0;
    for (size_t index : layer) {
      if (std::find(group.begin(), group.end(), shape.matrices[index].role) == group.end()) continue;
      members.push_back(index);
      group_bytes += stored_bytes(shape.matrices[index]);
    }
    int64_t bytes = std::min(stream, group_bytes);  // to stream of this group
    stream -= bytes;
    // What rounding to tiles leaves of one member goes to the next, so that a layer is
    // off by less than a tile.
    for (size_t m = 0; m < members.size(); ++m) {
      const PlannedMatrix& matrix = shape.matrices[members[m]];
      const int64_t tile_bytes = stored_tile_bytes(matrix);
      const bool last = m + 1 == members.size();
      const int64_t share =
          last ? bytes
               : static_cast<int64_t>(static_cast<double>(bytes) * static_cast<double>(stored_bytes(matrix)) /
                                      static_cast<double>(group_bytes));
      const int64_t tiles = std::min(tiles_of(matrix), (share + (last ? tile_bytes - 1 : 0)) / tile_bytes);
      group_bytes -= stored_bytes(matrix);
      bytes -= std::min(bytes, tiles * tile_bytes);
      locker.lock_tiles(members[m], tiles_of(matrix) - tiles);
    }
  }
}

// Bytes each layer streams when `total` are spread evenly; a layer smaller than its share
// streams all it has.
std::vector<int64_t> even_shares(const std::vector<int64_t>& layer_bytes, int64_t total) {
  std::vector<int64_t> shares(layer_bytes.size(), 0);
  std::vector<size_t> order(layer_bytes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return layer_bytes[a] < layer_bytes[b]; });
  for (size_t i = 0; i < order.size(); ++i) {
    const auto left = static_cast<int64_t>(order.size() - i);
    shares[order[i]] = std::min(layer_bytes[order[i]], (total + left - 1) / left);
    total -= shares[order[i]];
  }
  return shares;
}

// Locks all but `stream` bytes as stored, which head and layers share in proportion.
void lock_all_but(const Shape& shape, int64_t stream, Locker& locker) {
  int64_t stream_layers = stream;
  for (size_t index : shape.outer) {
    const PlannedMatrix& matrix = shape.matrices[index];
    if (matrix.role != MatrixRole::kHead) continue;
    const double share = static_cast<double>(stream) / static_cast<double>(shape.stored_bytes);
    const auto tiles = static_cast<int64_t>(share * static_cast<double>(tiles_of(matrix)));
    locker.lock_tiles(index, tiles_of(matrix) - tiles);
    stream_layers -= tiles * stored_tile_bytes(matrix);
  }
  std::vector<int64_t> layer_bytes;
  for (const std::vector<size_t>& layer : shape.layers) {
    int64_t& bytes = layer_bytes.emplace_back(0);
    for (size_t index : layer) bytes += stored_bytes(shape.matrices[index]);
  }
  const std::vector<int64_t> shares = even_shares(layer_bytes, std::max<int64_t>(0, stream_layers));
  for (size_t layer = 0; layer < shares.size(); ++layer)
    balance_layer(shape, shape.layers[layer], shares[layer], locker);
}

void lock_balanced(const Shape& shape, Locker& locker) {
  // The least to stream for which what is locked, as held, fits. Nothing simpler does
  // where matrices shrink unevenly.
  int64_t low = 0, high = shape.stored_bytes;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    Locker trial(shape.matrices, shape.touched_bytes);
    lock_all_but(shape, middle, trial);
    if (shape.touched_bytes - trial.left() <= locker.left()) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  lock_all_but(shape, high, locker);
  // The last tiles: one more of each layer (and the head) in turn, as long as one fits.
  std::vector<std::vector<size_t>> turns = shape.layers;
  turns.push_back(shape.outer);
  for (bool locked = true; locked;) {
    locked = false;
    for (const std::vector<size_t>& turn : turns) {
      for (size_t index : turn) {
        if (shape.matrices[index].role == MatrixRole::kEmbed || locker.streamed_tiles(index) == 0) continue;
        if (!locker.lock_tiles(index, 1)) continue;
        locked = true;
        break;
      }
    }
  }
}

// --- the paper's policy and its ablations ---
// Locks matrices of one role in as many layers as fit, spread evenly over depth.
void lock_spread(const Shape& shape, MatrixRole role, Locker& locker) {
  std::vector<size_t> members;
  for (size_t i = 0; i < shape.matrices.size(); ++i) {
    if (shape.matrices[i].role == role) members.push_back(i);
  }
  const auto count = members.size();
  for (size_t wanted = count; wanted > 0; --wanted) {
    std::vector<size_t> chosen;
    int64_t bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      if ((i + 1) * wanted / count == i * wanted / count) continue;
      chosen.push_back(members[i]);
      bytes += planned_bytes(shape.matrices[members[i]]);
    }
    if (bytes > locker.left()) continue;
    for (size_t index : chosen) locker.lock_all(index);
    return;
  }
}

void lock_flex(const Shape& shape, Locker& locker) {
  constexpr std::array kFfn = {MatrixRole::kGate, MatrixRole::kUp, MatrixRole::kDown};
  std::array<int64_t, 4> ffn_bytes{};  // of the first n kinds, all layers
  for (size_t i = 0; i < kFfn.size(); ++i) ffn_bytes[i + 1] = ffn_bytes[i] + shape.bytes_of(kFfn[i]);
  const int64_t half_attention = (shape.bytes_of(MatrixRole::kQ) + shape.bytes_of(MatrixRole::kK) +
                                  shape.bytes_of(MatrixRole::kV) + shape.bytes_of(MatrixRole::kO)) /
                                 2;
  size_t kinds = 0;
  if (locker.left() >= ffn_bytes[3] + half_attention) {
    kinds = 3;
  } else if (locker.left() >= ffn_bytes[2]) {
    kinds = 2;
  } else if (locker.left() >= ffn_bytes[1]) {
    kinds = 1;
  }
  for (size_t i = 0; i < kinds; ++i) lock_spread(shape, kFfn[i], locker);
  for (MatrixRole role : {MatrixRole::kK, MatrixRole::kV, MatrixRole::kQ, MatrixRole::kO})
    lock_spread(shape, role, locker);
}

void lock_layer_order(const Shape& shape, Locker& locker) {
  for (const std::vector<size_t>& layer : shape.layers) {
    for (size_t index : layer) {
      if (!locker.lock_all(index)) return;
    }
  }
}

void lock_roles(const Shape& shape, std::initializer_list<MatrixRole> roles, Locker& locker) {
  for (MatrixRole role : roles) lock_spread(shape, role, locker);
}

int64_t always_locked_bytes(const Shape& shape, ResidencyPolicy policy) {
  return policy == ResidencyPolicy::kBalanced ? 0 : shape.outer_bytes;
}

// The locker holds always_locked_bytes or more.
void lock_by_policy(const Shape& shape, ResidencyPolicy policy, Locker& locker) {
  using enum MatrixRole;
  if (policy == ResidencyPolicy::kBalanced) return lock_balanced(shape, locker);
  for (size_t index : shape.outer) locker.lock_all(index);
  switch (policy) {
    case ResidencyPolicy::kFlex:
      return lock_flex(shape, locker);
    case ResidencyPolicy::kLayerOrder:
      return lock_layer_order(shape, locker);
    case ResidencyPolicy::kNone:
      return;
    case ResidencyPolicy::kAttnFirst:
      return lock_roles(shape, {kK, kV, kQ, kO, kGate, kUp, kDown}, locker);
    default:
      return lock_roles(shape, {kGate, kUp, kDown, kK, kV, kQ, kO}, locker);
  }
}

int64_t default_window_most(const Shape& shape, ResidencyPolicy policy) {
  if (policy != ResidencyPolicy::kBalanced) return kWindowMostBytes;
  const bool shrunk = std::any_of(shape.matrices.begin(), shape.matrices.end(),
                                  [](const PlannedMatrix& matrix) { return matrix.stored_tile_bytes > 0; });
  return shrunk ? kBalancedShrunkWindowBytes : kBalancedWindowBytes;
}

// What the window must hold, and what three layers stream.
struct WindowNeed {
  int64_t least = 0;
  int64_t layers = 0;   // the most that three layers in a row stream
  int64_t panel = 0;    // the largest, as stored
  int64_t decoded = 0;  // the largest that is shrunk, as held
  // Of a window of so many bytes, those for decoding; two panels have room in the rest.
  int64_t decode_bytes(int64_t window) const {
    if (decoded == 0) return 0;
    return std::clamp(std::min(window / kDecodePart, kDecodeMost), decoded, window - 2 * panel);
  }
};
WindowNeed window_need(const Shape& shape, const Locker& locker) {
  WindowNeed need;
  std::vector<int64_t> streamed(shape.layers.size(), 0);
  for (size_t i = 0; i < shape.matrices.size(); ++i) {
    const PlannedMatrix& matrix = shape.matrices[i];
    if (matrix.role == MatrixRole::kEmbed) continue;
    const int64_t left = locker.streamed_tiles(i);
    if (left == 0) continue;
    if (matrix.layer >= 0) streamed[static_cast<size_t>(matrix.layer)] += left * stored_tile_bytes(matrix);
    const int64_t tiles = std::min(left, panel_rows(matrix) / kRowTile);
    need.panel = std::max(need.panel, tiles * stored_tile_bytes(matrix) + kDirectSlack);
    if (matrix.stored_tile_bytes > 0) need.decoded = std::max(need.decoded, tiles * matrix.tile_bytes);
  }
  need.least = 2 * need.panel + need.decoded;
  for (size_t layer = 0; layer < streamed.size(); ++layer) {
    int64_t bytes = 0;
    for (size_t i = layer; i < std::min(layer + kWindowLayers, streamed.size()); ++i) bytes += streamed[i];
    need.layers = std::max(need.layers, bytes);
  }
  return need;
}

ResidencyPlan result_of(const Shape& shape, const Locker& locker, int64_t window_bytes) {
  std::vector<int64_t> locked_rows;
  for (size_t i = 0; i < shape.matrices.size(); ++i)
    locked_rows.push_back(std::min(shape.matrices[i].rows, locker.locked_tiles(i) * kRowTile));
  ResidencyPlan plan;
  plan.lock(shape.matrices, std::move(locked_rows));
  plan.window_bytes = window_bytes;
  return plan;
}

Error budget_too_small(ResidencyPolicy policy, int64_t bytes, int64_t always, int64_t window) {
  std::string text = "Of the memory budget " + format_bytes(std::max<int64_t>(bytes, 0)) +
                     " are left for weights, but streaming this model needs " + format_bytes(always + window);
  if (always > 0) {
    text += std::string(" with --residency ") + residency_policy_name(policy) +
            ", which always locks embedding and head ('balanced' needs less)";
  }
  return too_large(text + "; raise --memory-budget by " + format_bytes(always + window - bytes) + ".");
}

}  // namespace

void ResidencyPlan::lock(const std::vector<PlannedMatrix>& matrices, std::vector<int64_t> rows) {
  locked_rows = std::move(rows);
  locked_bytes = streamed_bytes = decoded_bytes = looked_up_bytes = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const PlannedMatrix& matrix = matrices[i];
    if (expert_bytes > 0 && is_expert(matrix)) continue;
    const int64_t locked = (locked_rows[i] + kRowTile - 1) / kRowTile, streamed = tiles_of(matrix) - locked;
    locked_bytes += locked * matrix.tile_bytes;
    if (matrix.role == MatrixRole::kEmbed) {
      looked_up_bytes += streamed * stored_tile_bytes(matrix);
    } else {
      streamed_bytes += streamed * stored_tile_bytes(matrix);
      decoded_bytes += streamed * matrix.tile_bytes;
    }
  }
}

const char* matrix_role_name(MatrixRole role) { return kRoleNames[static_cast<size_t>(role)]; }
const char* residency_policy_name(ResidencyPolicy policy) { return kPolicyNames[static_cast<size_t>(policy)]; }

Result<ResidencyPolicy> parse_residency_policy(const std::string& name) {
  for (size_t i = 0; i < kPolicyNames.size(); ++i) {
    if (name == kPolicyNames[i]) return static_cast<ResidencyPolicy>(i);
  }
  return invalid_argument("There is no residency policy '" + name +
                          "'; choose balanced, flex, layer-order, attn-first, ffn-first or none.");
}

int64_t planned_bytes(const PlannedMatrix& matrix) { return tiles_of(matrix) * matrix.tile_bytes; }

int64_t stored_tile_bytes(const PlannedMatrix& matrix) {
  return matrix.stored_tile_bytes > 0 ? matrix.stored_tile_bytes : matrix.tile_bytes;
}

int64_t panel_rows(const PlannedMatrix& matrix) {
  return std::max<int64_t>(1, kPanelBytes / stored_tile_bytes(matrix)) * kRowTile;
}

int64_t least_residency_bytes(const std::vector<PlannedMatrix>& matrices, ResidencyPolicy policy) {
  const Shape shape(matrices);
  if (const ExpertSizes sizes = expert_sizes(matrices); sizes.count > 0) {
    return std::min(shape.touched_bytes, least_residency_bytes(without_experts(matrices), policy) +
                                             least_expert_bytes(sizes.layer_bytes, sizes.experts));
  }
  const int64_t streaming = always_locked_bytes(shape, policy) + window_need(shape, {matrices, 0}).least;
  return std::min(streaming, shape.touched_bytes);
}

namespace {

// What does not fit, with experts.
Result<ResidencyPlan> plan_with_experts(const std::vector<PlannedMatrix>& matrices, const ExpertSizes& sizes,
                                        int64_t bytes, const ResidencyOptions& options) {
  const std::vector<PlannedMatrix> others = without_experts(matrices);
  const Shape shape(others);
  const int64_t least = least_expert_bytes(sizes.layer_bytes, sizes.experts);
  const int64_t most = most_expert_bytes(sizes.layer_bytes, sizes.experts);
  const bool embedding = options.policy != ResidencyPolicy::kBalanced;
  const int64_t all_others = shape.touched_bytes + (embedding ? shape.embed_bytes : 0);
  ResidencyPlan of_others;
  int64_t for_experts = least;
  if (bytes - all_others >= least) {
    Locker locker(others, all_others);
    for (size_t i = 0; i < others.size(); ++i) {
      if (embedding || others[i].role != MatrixRole::kEmbed) locker.lock_all(i);
    }
    of_others = result_of(shape, locker, 0);
    for_experts = std::min(most, bytes - all_others);
  } else {
    TRY_ASSIGN(of_others, plan_residency(others, bytes - least, options));
  }
  ResidencyPlan plan = of_others;
  plan.expert_bytes = for_experts;
  std::vector<int64_t> rows;
  size_t other = 0;
  for (const PlannedMatrix& matrix : matrices) rows.push_back(is_expert(matrix) ? 0 : of_others.locked_rows[other++]);
  plan.lock(matrices, std::move(rows));
  return plan;
}

}  // namespace

Result<ResidencyPlan> plan_residency(const std::vector<PlannedMatrix>& matrices, int64_t bytes,
                                     const ResidencyOptions& options) {
  const Shape shape(matrices);
  if (shape.touched_bytes <= bytes) {  // all of it, the embedding too where it fits
    Locker locker(matrices, bytes);
    for (size_t i = 0; i < matrices.size(); ++i) {
      if (matrices[i].role != MatrixRole::kEmbed) locker.lock_all(i);
    }
    for (size_t i = 0; i < matrices.size(); ++i) locker.lock_all(i);
    return result_of(shape, locker, 0);
  }
  if (const ExpertSizes sizes = expert_sizes(matrices); sizes.count > 0)
    return plan_with_experts(matrices, sizes, bytes, options);
  const int64_t always = always_locked_bytes(shape, options.policy);
  const int64_t most = options.window_bytes > 0 ? options.window_bytes : default_window_most(shape, options.policy);
  int64_t window = std::min(most, bytes - always);
  if (window <= 0) return budget_too_small(options.policy, bytes, always, window_need(shape, {matrices, 0}).least);
  // A smaller window leaves more to lock, which makes three layers' streamed bytes
  // smaller still: a few rounds settle it. Should the last one need more than it has,
  // the plan before it stands.
  std::optional<ResidencyPlan> plan;
  for (int round = 0; round < 16; ++round) {
    Locker locker(matrices, bytes - window);
    lock_by_policy(shape, options.policy, locker);
    const WindowNeed need = window_need(shape, locker);
    if (need.least > window) {
      if (options.window_bytes > 0 && window == options.window_bytes) {
        return too_large("--prefetch-window " + format_bytes(window) +
                         " cannot hold two panels of this model; it needs " + format_bytes(need.least) + ".");
      }
      if (!plan) return budget_too_small(options.policy, bytes, always, need.least);
      break;
    }
    plan = result_of(shape, locker, window);
    plan->decode_bytes = need.decode_bytes(window);
    plan->window_bound_bytes = std::min(kWindowMostBytes, need.layers);
    const int64_t wanted = std::max(need.least, std::min(most, need.layers));
    if (options.window_bytes > 0 || wanted >= window) break;
    window = wanted;
  }
  return std::move(*plan);
}

PassBytes pass_bytes(const std::vector<PlannedMatrix>& matrices, const ResidencyPlan& plan, int32_t used) {
  PassBytes bytes{.read = plan.streamed_bytes};
  for (const PlannedMatrix& matrix : matrices) {
    if (matrix.role != MatrixRole::kEmbed && !is_expert(matrix)) bytes.touched += planned_bytes(matrix);
  }
  const ExpertSizes sizes = expert_sizes(matrices);
  if (sizes.count == 0) return bytes;
  int64_t of_row = 0;
  for (const int64_t expert : sizes.layer_bytes) of_row += expert * used;
  bytes.touched += of_row;
  if (plan.expert_bytes == 0) return bytes;
  const double room =
      static_cast<double>(plan.expert_bytes) / static_cast<double>(most_expert_bytes(sizes.layer_bytes, sizes.experts));
  bytes.read += static_cast<int64_t>((1 - room) * static_cast<double>(of_row));
  return bytes;
}

std::string describe_residency(const std::vector<PlannedMatrix>& matrices, const ResidencyPlan& plan) {
  struct Sum {
    int64_t count = 0, locked = 0, streamed = 0;
  };
  std::array<Sum, kMatrixRoles> sums;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (plan.expert_bytes > 0 && is_expert(matrices[i])) continue;
    Sum& sum = sums[static_cast<size_t>(matrices[i].role)];
    const int64_t locked = (plan.locked_rows[i] + kRowTile - 1) / kRowTile;
    ++sum.count;
    sum.locked += locked * matrices[i].tile_bytes;
    sum.streamed += (tiles_of(matrices[i]) - locked) * stored_tile_bytes(matrices[i]);
  }
  char line[128];
  std::snprintf(line, sizeof line, "%-10s %8s %12s %12s\n", "tensors", "count", "locked", "streamed");
  std::string text = line;
  for (size_t role = 0; role < sums.size(); ++role) {
    const Sum& sum = sums[role];
    if (sum.count == 0) continue;
    const bool looked_up = static_cast<MatrixRole>(role) == MatrixRole::kEmbed && sum.streamed > 0;
    std::snprintf(line, sizeof line, "%-10s %8lld %12s %12s%s\n", kRoleNames[role], static_cast<long long>(sum.count),
                  format_bytes(sum.locked).c_str(), looked_up ? "-" : format_bytes(sum.streamed).c_str(),
                  looked_up ? "  (rows looked up on disk)" : "");
    text += line;
  }
  std::snprintf(line, sizeof line, "%-10s %8s %12s %12s\n", "all", "", format_bytes(plan.locked_bytes).c_str(),
                format_bytes(plan.streamed_bytes).c_str());
  text += line;
  if (plan.expert_bytes > 0) {
    const ExpertSizes sizes = expert_sizes(matrices);
    int64_t all = 0;
    for (const int64_t layer : sizes.layer_bytes) all += layer * sizes.experts;
    text += std::to_string(sizes.count) + " experts of " + format_bytes(all) + ", of which those used most are in " +
            format_bytes(plan.expert_bytes) + " of memory, and others are read when they are chosen\n";
    if (plan.window_bytes == 0) return text;
  }
  text += "stream window " + format_bytes(plan.window_bytes);
  if (plan.decode_bytes > 0) {
    text += ", " + format_bytes(plan.decode_bytes) + " of it for decoding: " + format_bytes(plan.decoded_bytes) +
            " of weights are read shrunk";
  }
  text += "\n";
  return text;
}

}  // namespace loralei
