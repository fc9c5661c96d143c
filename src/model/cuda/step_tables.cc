// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/step_tables.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "base/limits.h"
#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 16;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

size_t module_count(const ModelConfig& config) {
  return static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules) + 2;
}

cuda::LoraPlan::Limits plan_limits(const ModelLimits& limits) {
  return {.rows = std::max(limits.rows_max, limits.logits_rows_max),
          .segments = limits.segments_max,
          .entries = StepTables::entries_max(limits)};
}

template <typename T>
int64_t room(int64_t count) {
  return aligned(count * static_cast<int64_t>(sizeof(T)));
}

// Parts and runs in use come first.
template <typename T>
int32_t used(std::span<const T> items) {
  int32_t count = 0;
  while (count < std::ssize(items) && items[static_cast<size_t>(count)].row_count > 0) ++count;
  return count;
}

bool is_decode_step(const ModelBatch& batch) {
  return batch.hidden_rows.empty() && std::all_of(batch.groups.begin(), batch.groups.end(),
                                                  [](const RowGroup& group) { return group.row_count == 1; });
}

// Places among `rows`, which ascend, of the rows [begin, begin + count): the
// first, and how many.
std::pair<int32_t, int32_t> places_among(std::span<const int32_t> rows, int32_t begin, int32_t count) {
  const auto first = std::lower_bound(rows.begin(), rows.end(), begin);
  const auto last = std::lower_bound(first, rows.end(), begin + count);
  return {static_cast<int32_t>(first - rows.begin()), static_cast<int32_t>(last - first)};
}

// `own`, each where place(row_begin, row_count) puts it, and the model's runs between
// them, over `rows` rows.
template <typename Place>
void cover(std::span<const SavedRun> own, int32_t rows, std::vector<SavedRun>& runs, Place&& place) {
  runs.clear();
  int32_t row = 0;
  for (SavedRun run : own) {
    std::tie(run.row_begin, run.row_count) = place(run.row_begin, run.row_count);
    if (run.row_count == 0) continue;
    if (run.row_begin > row) runs.push_back({.row_begin = row, .row_count = run.row_begin - row});
    runs.push_back(run);
    row = run.row_begin + run.row_count;
  }
  if (row < rows) runs.push_back({.row_begin = row, .row_count = rows - row});
}

}  // namespace

int32_t StepTables::entries_max(const ModelLimits& limits) {
  return std::max(limits.rows_max, limits.logits_rows_max) * kMaxAdaptersPerRequest;
}

int64_t StepTables::source_bytes(const ModelConfig& config, const Options& options) {
  return room<cuda::DeviceLora>(static_cast<int64_t>(module_count(config)) * options.slots_max);
}

int64_t StepTables::bytes(const ModelConfig& config, const Options& options) {
  const cuda::LoraPlan::Limits plan = plan_limits(options.limits);
  const int64_t rows = options.limits.rows_max;
  const int64_t lora = room<cuda::DeviceLoraSegment>(plan.segments) + room<cuda::DeviceLoraPart>(plan.entries) +
                       room<cuda::DeviceLoraRun>(plan.rows) + room<int32_t>(plan.entries);
  // Each apart has arrays of its own, which begin at multiples of kAlign.
  const int64_t apart =
      options.host_rows_max * static_cast<int64_t>(sizeof(cuda::DeviceLoraSegment) + sizeof(cuda::DeviceLoraPart) +
                                                   sizeof(cuda::DeviceLoraRun) + sizeof(int32_t) + 4 * kAlign);
  return 6 * room<int32_t>(rows) + room<int32_t>(options.limits.logits_rows_max) + aligned(apart) +
         room<RowChoice>(options.limits.logits_rows_max) + room<int32_t>(options.table_blocks_max) +
         room<cuda::AttentionTile>(rows) + 2 * lora + source_bytes(config, options);
}

StepTables::StepTables(const ModelConfig& config, const Options& options)
    : config_(&config),
      options_(options),
      plan_(plan_limits(options.limits)),
      head_plan_(plan_limits(options.limits)),
      apart_plan_(plan_limits(options.limits)) {
  runs_.reserve(static_cast<size_t>(options.limits.rows_max));
  tiles_.reserve(static_cast<size_t>(options.limits.rows_max));
  for (auto* segments : {&head_segments_, &together_, &one_apart_})
    segments->reserve(static_cast<size_t>(options.limits.segments_max));
  for (auto* runs : {&own_, &saved_, &hidden_saved_, &logits_saved_}) {
    runs->reserve(static_cast<size_t>(options.limits.rows_max));
  }
  for (auto* rows : {&trained_from_, &trained_to_}) rows->reserve(static_cast<size_t>(options.limits.rows_max));
  shape_.ranks.resize(module_count(config));
  pairs_.reserve(module_count(config));
  const auto slots = static_cast<size_t>(options.slots_max);
  filled_.versions.reserve(slots);
  filled_.ranks.reserve(module_count(config));
  filled_.slabs.reserve(slots);
}

Result<StepTables> StepTables::create(const ModelConfig& config, const Options& options) {
  StepTables tables(config, options);
  TRY_ASSIGN(tables.host_, PinnedBuffer::allocate(bytes(config, options)));
  TRY_ASSIGN(tables.device_, allocate_on_device(bytes(config, options), "A step's tables",
                                                "give the model fewer rows a step or less context."));
  return tables;
}

Status StepTables::take_bytes(int64_t bytes, std::byte** host, const std::byte** device) {
  if (aligned(bytes) > host_.size_bytes() - used_) {
    return Error{ErrorCode::kOverloaded, "A step's tables need more than the " + format_bytes(host_.size_bytes()) +
                                             " set aside for them: use fewer adapters or sequences at a time."};
  }
  *host = host_.data() + used_;
  *device = device_.data() + used_;
  used_ += aligned(bytes);
  return {};
}

template <typename T>
Status StepTables::put(std::span<const T> values, int32_t count, T padding, const T** device) {
  T* host = nullptr;
  TRY(take(static_cast<size_t>(count), &host, device));
  std::fill(std::copy(values.begin(), values.end(), host), host + count, padding);
  return {};
}

// Those of the step that are on their way. One that will not come ends the step.
Status StepTables::expect(const ModelBatch& batch, CudaAdapters& adapters, ArrivingLayers& arriving) {
  for (int32_t slot = 0; adapters.layered() && slot < std::ssize(batch.versions); ++slot) {
    const AdapterVersionId version = batch.versions[static_cast<size_t>(slot)];
    if (const Error* const failed = adapters.failure_of(version); failed != nullptr) {
      arriving.end_with(version);
      return *failed;
    }
    if (adapters.is_arriving(version)) arriving.add(slot, *adapters.on_its_way(version));
  }
  return {};
}

// Segments without those of adapters that are apart.
std::span<const LoraSegment> StepTables::sort_segments(const ModelBatch& batch, const ArrivingLayers& arriving) {
  apart_.clear();
  for (size_t i = 0; i < arriving.size(); ++i)
    if (arriving.is_apart(i)) apart_.push_back({i, {}});
  if (apart_.empty()) return batch.segments;
  together_.clear();
  for (const LoraSegment& segment : batch.segments)
    if (!arriving.is_apart_slot(segment.slot)) together_.push_back(segment);
  return together_;
}

Status StepTables::make_plans(const ModelBatch& batch, std::span<const LoraSegment> segments) {
  head_segments_.clear();
  if (batch.segments.empty()) return {};
  if (batch.slots > options_.slots_max) {
    return Error{ErrorCode::kOverloaded, "A step uses " + std::to_string(batch.slots) +
                                             " adapters and the model was made for " +
                                             std::to_string(options_.slots_max) + ": use fewer at a time."};
  }
  gather_segments(batch);
  if (plan_.fill(segments, static_cast<int32_t>(batch.tokens.size())) &&
      head_plan_.fill(head_segments_, static_cast<int32_t>(batch.logits_rows.size()))) {
    return {};
  }
  return too_many_pairs();
}

Status StepTables::too_many_pairs() const {
  return Error{ErrorCode::kOverloaded,
               "The rows of a step use more adapters together than the model was made for (" +
                   std::to_string(entries_max(options_.limits)) + " pairs of row and adapter, " +
                   std::to_string(options_.limits.segments_max) + " segments): use fewer adapters at a time."};
}

LoraSizes StepTables::plan_sizes(const cuda::LoraPlan& plan, std::span<const LoraSegment> segments) const {
  LoraSizes sizes;
  for (const LoraSegment& segment : segments) sizes.entries += segment.row_count;
  if (sizes.entries == 0) return sizes;  // the plan is of an earlier step
  sizes.segments = static_cast<int32_t>(segments.size());
  sizes.parts = used(plan.parts());
  sizes.runs = used(plan.runs());
  return sizes;
}

// Everything of the shape but the ranks.
void StepTables::measure(const ModelBatch& batch, std::span<const LoraSegment> segments, const CudaKv& kv,
                         bool bucket) {
  const ModelLimits& limits = options_.limits;
  StepShape& shape = shape_;
  shape.rows = static_cast<int32_t>(batch.tokens.size());
  shape.logits_rows = static_cast<int32_t>(batch.logits_rows.size());
  shape.chooses = !batch.choices.empty();
  shape.hidden_rows = static_cast<int32_t>(batch.hidden_rows.size());
  shape.positions_max = 0;
  for (const RowGroup& group : batch.groups) {
    shape.positions_max = std::max(shape.positions_max, group.position + group.row_count);
  }
  shape.slots = batch.segments.empty() ? 0 : batch.slots;
  shape.lora = plan_sizes(plan_, segments);
  shape.head_lora = plan_sizes(head_plan_, head_segments_);
  std::fill(shape.ranks.begin(), shape.ranks.end(), -1);
  shape.kv = kv.view();
  if (!bucket) return;
  const cuda::LoraPlan::Limits plan = plan_limits(limits);
  const LoraSizes sizes_max{plan.segments, plan.entries, plan.rows, plan.entries};
  shape.rows = rounded_rows(shape.rows, limits.rows_max);
  shape.logits_rows = rounded_rows(shape.logits_rows, limits.logits_rows_max);
  shape.positions_max = rounded_positions(shape.positions_max, options_.positions_max);
  shape.slots = rounded_count(shape.slots, options_.slots_max);
  shape.lora = rounded_lora(shape.lora, sizes_max);
  shape.head_lora = rounded_lora(shape.head_lora, sizes_max);
}

// Tokens, positions, the rows that want something, and where each row's block table
// begins: -1 until put_blocks().
Status StepTables::put_rows(const ModelBatch& batch, int32_t** tables, StepView& view) {
  view.rows.rows = shape_.rows;
  TRY(put(batch.tokens, shape_.rows, TokenId{-1}, &view.tokens));
  TRY(put(batch.positions, shape_.rows, 0, &view.rows.positions));
  TRY(put(batch.hidden_rows, shape_.hidden_rows, -1, &view.hidden_from));
  TRY(put(batch.logits_rows, shape_.logits_rows, -1, &view.logits_from));
  TRY(take(static_cast<size_t>(shape_.rows), tables, &view.rows.tables));
  std::fill_n(*tables, shape_.rows, -1);
  return {};
}

// Rows beyond the step's own choose nothing. A row chooses among the columns that
// its head writes.
void StepTables::fill_choices(const ModelBatch& batch, RowChoice* choices) const {
  std::fill_n(choices, shape_.logits_rows, RowChoice{});
  const auto rows = static_cast<int32_t>(batch.choices.size());
  for (const SavedRun& run : logits_saved_) {
    const int32_t columns = own_head(run) ? run.saved->lm_head.rows : config_->vocab;
    for (int32_t row = run.row_begin; row < std::min(rows, run.row_begin + run.row_count); ++row) {
      choices[row] = batch.choices[static_cast<size_t>(row)];
      choices[row].vocab = std::min(choices[row].vocab, columns);
    }
  }
}

Status StepTables::put_blocks(const ModelBatch& batch, int32_t blocks, int32_t* tables, StepView& view) {
  int64_t entries = 0;
  const auto blocks_of = [](const RowGroup& group) {
    return (int64_t{group.position} + group.row_count + kKvBlockTokens - 1) / kKvBlockTokens;
  };
  for (const RowGroup& group : batch.groups) entries += blocks_of(group);
  if (entries > options_.table_blocks_max) {
    return Error{ErrorCode::kOverloaded, "The sequences of a step have " + std::to_string(entries) +
                                             " KV blocks together and the model was made for " +
                                             std::to_string(options_.table_blocks_max) +
                                             ": give it a larger max-model-len, or run fewer sequences at a time."};
  }
  int32_t* at = nullptr;
  TRY(take(static_cast<size_t>(entries), &at, &view.rows.blocks));
  int32_t next = 0;
  for (const RowGroup& group : batch.groups) {
    std::fill_n(tables + group.row_begin, group.row_count, next);
    for (int64_t i = 0; i < blocks_of(group); ++i) {
      CHECK(group.blocks[i] >= 0 && group.blocks[i] < blocks);
      at[next++] = group.blocks[i];
    }
  }
  return {};
}

// Long runs of a sequence in tiles; the others, side by side, row by row.
Status StepTables::put_attention(const ModelBatch& batch, StepView& view) {
  runs_.clear();
  tiles_.clear();
  if (view.bucket) runs_.push_back({0, shape_.rows, shape_.positions_max});
  for (const RowGroup& group : view.bucket ? std::span<const RowGroup>() : batch.groups) {
    if (options_.tiled_attention && group.row_count >= kTiledAttentionRows) {
      for (int32_t row = 0; row < group.row_count; row += cuda::kAttentionTileRows) {
        tiles_.push_back({group.row_begin + row, std::min(cuda::kAttentionTileRows, group.row_count - row)});
      }
      continue;
    }
    const int32_t end = group.position + group.row_count;
    if (!runs_.empty() && runs_.back().row_begin + runs_.back().row_count == group.row_begin) {
      runs_.back().row_count += group.row_count;
      runs_.back().positions_max = std::max(runs_.back().positions_max, end);
    } else {
      runs_.push_back({group.row_begin, group.row_count, end});
    }
  }
  view.runs = runs_;
  view.tile_count = static_cast<int32_t>(tiles_.size());
  return put(std::span<const cuda::AttentionTile>(tiles_), view.tile_count, {}, &view.tiles);
}

// The plan has nothing but zeros behind what it uses.
Status StepTables::put_lora(const cuda::LoraPlan& plan, const LoraSizes& sizes, LoraUse& use) {
  if (sizes.entries == 0) return {};
  use.entries = sizes.entries;
  use.step.part_count = sizes.parts;
  use.step.run_count = sizes.runs;
  const auto first = [this](auto items, int32_t count, auto* device) {
    return put(items.first(static_cast<size_t>(count)), count, {}, device);
  };
  TRY(first(plan.segments(), sizes.segments, &use.step.segments));
  TRY(first(plan.parts(), sizes.parts, &use.step.parts));
  TRY(first(plan.runs(), sizes.runs, &use.step.runs));
  return first(plan.order(), sizes.entries, &use.step.order);
}

Status StepTables::put_apart(const ModelBatch& batch, const ArrivingLayers& arriving, StepView& view) {
  for (ApartLora& apart : apart_) {
    one_apart_.clear();
    for (const LoraSegment& segment : batch.segments)
      if (segment.slot == arriving.slot(apart.arriving)) one_apart_.push_back(segment);
    if (!apart_plan_.fill(one_apart_, static_cast<int32_t>(batch.tokens.size()))) return too_many_pairs();
    TRY(put_lora(apart_plan_, plan_sizes(apart_plan_, one_apart_), apart.use));
  }
  view.apart = apart_;
  return {};
}

// The segments of the rows that want logits, by their place among them.
void StepTables::gather_segments(const ModelBatch& batch) {
  head_segments_.clear();
  for (LoraSegment segment : batch.segments) {
    std::tie(segment.row_begin, segment.row_count) =
        places_among(batch.logits_rows, segment.row_begin, segment.row_count);
    if (segment.row_count > 0) head_segments_.push_back(segment);
  }
}

// Tensors that nobody brought before the step wait here.
Status StepTables::ensure_saved(const ModelBatch& batch, CudaAdapters& adapters) {
  for (const RowOverride& run : batch.overrides) {
    if (!adapters.is_arriving(run.version)) TRY(adapters.ensure(run.version, *run.saved));
  }
  own_.clear();
  for (const RowOverride& run : batch.overrides) {
    const DeviceSaved* const arriving = adapters.find_arriving_saved(run.version);
    const DeviceSaved* const saved = arriving != nullptr ? arriving : adapters.find_saved(run.version);
    if (saved == nullptr) return lost_on_its_way();
    if (saved->lm_head.rows > options_.vocab_max) {
      return unsupported("An adapter has a vocabulary of " + std::to_string(saved->lm_head.rows) +
                         " tokens and the model was made for up to " + std::to_string(options_.vocab_max) +
                         ": start it for fewer sequences at a time.");
    }
    own_.push_back({.row_begin = run.row_begin, .row_count = run.row_count, .saved = saved});
  }
  return {};
}

// Which of the rows in own_ have a trained token.
Status StepTables::put_trained(const ModelBatch& batch) {
  trained_from_.clear();
  trained_to_.clear();
  for (size_t i = 0; i < own_.size(); ++i) {
    const std::vector<TokenId>& ids = batch.overrides[i].saved->embed_tokens;
    SavedRun& run = own_[i];
    for (int32_t row = run.row_begin; row < run.row_begin + run.row_count; ++row) {
      const TokenId token = batch.tokens[static_cast<size_t>(row)];
      const auto found = std::lower_bound(ids.begin(), ids.end(), token);
      if (found == ids.end() || *found != token) continue;
      trained_from_.push_back(static_cast<int32_t>(found - ids.begin()));
      trained_to_.push_back(row);
      ++run.trained_count;
    }
  }
  const auto count = static_cast<int32_t>(trained_to_.size());
  const int32_t *from = nullptr, *to = nullptr;
  TRY(put(std::span<const int32_t>(trained_from_), count, 0, &from));
  TRY(put(std::span<const int32_t>(trained_to_), count, 0, &to));
  for (SavedRun& run : own_) {
    run.trained_from = from;
    run.trained_to = to;
    from += run.trained_count;
    to += run.trained_count;
  }
  return {};
}

Status StepTables::put_saved(const ModelBatch& batch, CudaAdapters& adapters, StepView& view) {
  TRY(ensure_saved(batch, adapters));
  TRY(put_trained(batch));
  const auto among = [](std::span<const int32_t> rows) {
    return [rows](int32_t begin, int32_t count) { return places_among(rows, begin, count); };
  };
  cover(own_, shape_.rows, saved_, [](int32_t begin, int32_t count) { return std::pair{begin, count}; });
  cover(own_, shape_.hidden_rows, hidden_saved_, among(batch.hidden_rows));
  cover(own_, shape_.logits_rows, logits_saved_, among(batch.logits_rows));
  for (const SavedRun& run : saved_) {
    const int32_t vocab = own_embed(run) ? run.saved->embed.rows : config_->vocab;
    const auto end = std::min(static_cast<size_t>(run.row_begin + run.row_count), batch.tokens.size());
    for (auto row = static_cast<size_t>(run.row_begin); row < end; ++row) {
      CHECK(batch.tokens[row] >= 0 && batch.tokens[row] < vocab);
    }
  }
  vocab_ = config_->vocab;
  for (const SavedRun& run : logits_saved_) {
    if (own_head(run)) vocab_ = std::max(vocab_, run.saved->lm_head.rows);
  }
  view.saved = saved_;
  view.hidden_saved = hidden_saved_;
  view.logits_saved = logits_saved_;
  view.vocab = vocab_;
  view.logits_stride = logits_stride(vocab_);
  return {};
}

Result<StepView> StepTables::fill(const ModelBatch& batch, const CudaKv& kv, CudaAdapters& adapters,
                                  ArrivingLayers& arriving, CudaStream& stream) {
  const int64_t begin = source_bytes(*config_, options_);
  used_ = begin;
  adapters.begin_step();
  StepView view;
  view.sources = reinterpret_cast<const cuda::DeviceLora*>(device_.data());
  view.shape = &shape_;
  TRY(expect(batch, adapters, arriving));
  view.arriving = arriving.empty() ? nullptr : &arriving;
  view.bucket = options_.buckets && batch.overrides.empty() && arriving.empty() && is_decode_step(batch);
  const std::span<const LoraSegment> segments = sort_segments(batch, arriving);
  TRY(make_plans(batch, segments));
  measure(batch, segments, kv, view.bucket);

  int32_t* tables = nullptr;
  RowChoice* choices = nullptr;
  TRY(put_rows(batch, &tables, view));
  if (shape_.chooses) TRY(take(static_cast<size_t>(shape_.logits_rows), &choices, &view.choices));
  TRY(put_attention(batch, view));
  TRY(put_lora(plan_, shape_.lora, view.lora));
  TRY(put_lora(head_plan_, shape_.head_lora, view.head_lora));
  TRY(put_apart(batch, arriving, view));
  TRY(put_blocks(batch, kv.blocks(), tables, view));  // from here on addresses are the step's own
  TRY(put_saved(batch, adapters, view));
  if (shape_.chooses) fill_choices(batch, choices);
  if (!batch.segments.empty()) TRY(put_sources(batch, adapters, !arriving.empty(), stream));
  if (view.bucket) {
    for (int32_t& rank : shape_.ranks) rank = rank < 0 ? rank : rounded_count(rank, options_.limits.rank_max);
  }
  TRY(copy_to_device(device_.data() + begin, host_.data() + begin, used_ - begin, stream));
  return view;
}

}  // namespace loralei
