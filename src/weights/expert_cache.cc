// SPDX-License-Identifier: Apache-2.0
#include "weights/expert_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "sys/threads.h"

namespace loralei {
namespace {

int64_t up(int64_t bytes) { return (bytes + kPackedAlign - 1) / kPackedAlign * kPackedAlign; }

}  // namespace

static_assert(kPackedAlign % kDirectAlign == 0);

// Parts that lie one behind the other are read as one.
struct ExpertCache::Runs {
  std::array<Run, kExpertParts> list;
  size_t count = 0;
  std::array<int64_t, kExpertParts> part_at{};  // from the start of the place
  int64_t bytes = 0;
};

ExpertCache::Runs ExpertCache::runs_of(const PackedIndex& index, const std::array<int32_t, kExpertParts>& parts) {
  Runs runs;
  for (size_t part = 0; part < kExpertParts; ++part) {
    const PackedMatrix& matrix = index.matrices[static_cast<size_t>(parts[part])];
    CHECK(matrix.at % kPackedAlign == 0 && !matrix.shrunk);
    const int64_t bytes = up(matrix.bytes());
    Run* const last = runs.count == 0 ? nullptr : &runs.list[runs.count - 1];
    runs.part_at[part] = runs.bytes;
    if (last != nullptr && last->begin + last->bytes == matrix.at) {
      last->bytes += bytes;
    } else {
      runs.list[runs.count++] = {matrix.at, bytes, runs.bytes};
    }
    runs.bytes += bytes;
  }
  return runs;
}

std::vector<int64_t> expert_bytes(const PackedIndex& index, const ExpertShape& shape) {
  CHECK(shape.layers > 0 && shape.experts > 0);
  CHECK(shape.parts.size() == static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.experts));
  std::vector<int64_t> most(static_cast<size_t>(shape.layers));
  for (size_t id = 0; id < shape.parts.size(); ++id) {
    int64_t& of_layer = most[id / static_cast<size_t>(shape.experts)];
    of_layer = std::max(of_layer, ExpertCache::runs_of(index, shape.parts[id]).bytes);
  }
  return most;
}

// --- the queue

void ExpertCache::Queue::push(int32_t id) {
  if (ids_.size() == ids_.capacity()) {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
  ids_.push_back(id);
}

int32_t ExpertCache::Queue::pop() {
  const int32_t id = ids_[head_++];
  if (empty()) clear();
  return id;
}

void ExpertCache::Queue::remove(int32_t id) {
  ids_.erase(std::find(ids_.begin() + static_cast<std::ptrdiff_t>(head_), ids_.end(), id));
  if (empty()) clear();
}

void ExpertCache::Queue::clear() {
  ids_.clear();
  head_ = 0;
}

// --- the cache

ExpertCache::ExpertCache(const PackedIndex& index, ExpertShape shape, ExpertPlan plan, ExpertCacheOptions options)
    : index_(index),
      shape_(std::move(shape)),
      plan_(std::move(plan)),
      options_(std::move(options)),
      scores_(shape_.layers, shape_.experts, options_.half_life) {}

Result<std::unique_ptr<ExpertCache>> ExpertCache::create(const PackedIndex& index, ExpertShape shape,
                                                         ExpertCacheOptions options) {
  CHECK(options.block_bytes > 0 && options.block_bytes % kDirectAlign == 0);
  TRY_ASSIGN(ExpertPlan plan, plan_experts(expert_bytes(index, shape), shape.experts, options.bytes));
  std::unique_ptr<ExpertCache> cache(new ExpertCache(index, std::move(shape), std::move(plan), std::move(options)));
  TRY(cache->start());
  return cache;
}

Status ExpertCache::start() {
  const size_t ids = shape_.parts.size();
  states_.assign(ids, State::kAbsent);
  place_of_.assign(ids, -1);
  const auto experts = static_cast<size_t>(shape_.experts);
  for (std::vector<int32_t>* list : {&chosen_, &hits_, &handed_ids_}) list->reserve(experts);
  handed_.reserve(experts);
  wanted_.reserve(experts);
  for (std::vector<int32_t>* list : {&arrived_, &taken_}) list->reserve(ids);
  asked_.reserve(ids);
  expected_.reserve(ids);
  for (const ExpertPlan::Size& size : plan_.sizes) {
    Size& made = sizes_.emplace_back();
    TRY_ASSIGN(made.memory, HostBuffer::allocate(size.places * size.expert_bytes));
    for (int32_t place = size.places; place-- > 0;) made.free.push_back(place);  // low ones first
  }
  TRY_ASSIGN(reader_, options_.open());
  TRY_ASSIGN(thread_, start_thread([this] { run(); }));
  return {};
}

ExpertCache::~ExpertCache() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  asked_cv_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::byte* ExpertCache::memory_of(int32_t id) const {
  const size_t size = size_of(id);
  return sizes_[size].memory.data() + place_of_[static_cast<size_t>(id)] * plan_.sizes[size].expert_bytes;
}

HeldExpert ExpertCache::held(int32_t id) const {
  HeldExpert held{.expert = id % shape_.experts};
  const Runs runs = runs_of(index_, shape_.parts[static_cast<size_t>(id)]);
  for (size_t part = 0; part < kExpertParts; ++part) held.data[part] = memory_of(id) + runs.part_at[part];
  return held;
}

bool ExpertCache::is_chosen(int32_t id) const {
  return layer_ >= 0 && std::binary_search(chosen_.begin(), chosen_.end(), id);
}

bool ExpertCache::give_place(int32_t id) {
  const size_t size = size_of(id);
  if (sizes_[size].free.empty()) {
    const int32_t first = scores_.take_first(plan_.sizes[size].layers);
    if (first < 0) return false;
    give_up(first);
  }
  place_of_[static_cast<size_t>(id)] = sizes_[size].free.back();
  sizes_[size].free.pop_back();
  states_[static_cast<size_t>(id)] = State::kAsked;
  return true;
}

void ExpertCache::give_up(int32_t id) {
  DCHECK(!scores_.kept(id));
  sizes_[size_of(id)].free.push_back(place_of_[static_cast<size_t>(id)]);
  place_of_[static_cast<size_t>(id)] = -1;
  states_[static_cast<size_t>(id)] = State::kAbsent;
}

void ExpertCache::place_wanted() {
  bool any = false;
  while (!wanted_.empty() && give_place(wanted_.ids().front())) {
    asked_.push(wanted_.pop());
    ++awaited_;
    any = true;
  }
  if (any) asked_cv_.notify_one();
}

void ExpertCache::release_handed() {
  for (const int32_t id : handed_ids_) scores_.keep(id);
  handed_ids_.clear();
  handed_.clear();
}

void ExpertCache::begin(int32_t layer, std::span<const int32_t> chosen) {
  CHECK(layer_ < 0 && layer >= 0 && layer < shape_.layers);
  layer_ = layer;
  awaited_ = 0;
  chosen_.clear();
  for (const int32_t expert : chosen) {
    DCHECK(expert >= 0 && expert < shape_.experts);
    DCHECK(chosen_.empty() || chosen_.back() < layer * shape_.experts + expert);
    chosen_.push_back(layer * shape_.experts + expert);
  }
  scores_.used(layer, chosen_);
  const std::lock_guard lock(mutex_);
  for (const int32_t id : chosen_) {
    switch (states_[static_cast<size_t>(id)]) {
      case State::kHere:
        scores_.drop(id);
        hits_.push_back(id);
        ++totals_.hits;
        break;
      case State::kAbsent:
        wanted_.push(id);
        ++totals_.misses;
        break;
      case State::kAsked:  // as expected, and not begun
        expected_.remove(id);
        asked_.push(id);
        [[fallthrough]];
      case State::kReading:
      case State::kArrived:
        ++awaited_;
        ++totals_.misses;
        break;
    }
  }
  asked_cv_.notify_one();
  place_wanted();
}

// What the reader has brought since, checked: chosen ones are handed out.
Status ExpertCache::take_arrived() {
  std::vector<std::pair<int32_t, Error>> failed;
  {
    std::unique_lock lock(mutex_);
    if (arrived_.empty() && failed_.empty()) {
      const int64_t begin_ns = SteadyClock().now_ns();
      arrived_cv_.wait(lock, [&] { return !arrived_.empty() || !failed_.empty(); });
      totals_.waited_ns += SteadyClock().now_ns() - begin_ns;
    }
    std::swap(arrived_, taken_);
    failed.swap(failed_);
  }
  for (const int32_t id : taken_) {
    const Runs runs = runs_of(index_, shape_.parts[static_cast<size_t>(id)]);
    Status sound;
    for (size_t part = 0; part < kExpertParts && sound.ok(); ++part) {
      const PackedMatrix& matrix = index_.matrices[static_cast<size_t>(shape_.parts[static_cast<size_t>(id)][part])];
      sound = check_tiles(index_, matrix, 0, matrix.tiles(), memory_of(id) + runs.part_at[part]);
    }
    if (!sound.ok()) {
      failed.emplace_back(id, sound.error());
      continue;
    }
    const std::lock_guard lock(mutex_);
    states_[static_cast<size_t>(id)] = State::kHere;
    if (!is_chosen(id)) {
      scores_.keep(id);
      continue;
    }
    --awaited_;
    handed_ids_.push_back(id);
    handed_.push_back(held(id));
  }
  taken_.clear();
  Status failure;
  const std::lock_guard lock(mutex_);
  for (auto& [id, error] : failed) {
    give_up(id);
    if (!is_chosen(id)) continue;  // whoever needs it asks again
    --awaited_;
    if (failure.ok()) failure = std::move(error);
  }
  return failure;
}

Result<std::span<const HeldExpert>> ExpertCache::next() {
  CHECK(layer_ >= 0);
  {
    const std::lock_guard lock(mutex_);
    release_handed();
    place_wanted();
  }
  if (!hits_.empty()) {
    for (const int32_t id : hits_) handed_.push_back(held(id));
    handed_ids_.swap(hits_);
    return std::span<const HeldExpert>(handed_);
  }
  while (handed_.empty() && (awaited_ > 0 || !wanted_.empty())) {
    TRY(take_arrived());
    const std::lock_guard lock(mutex_);
    place_wanted();
  }
  return std::span<const HeldExpert>(handed_);
}

void ExpertCache::end() {
  CHECK(layer_ >= 0);
  const std::lock_guard lock(mutex_);
  release_handed();
  for (const int32_t id : hits_) scores_.keep(id);
  hits_.clear();
  wanted_.clear();
  for (const int32_t id : asked_.ids()) give_up(id);  // not begun; what has begun arrives
  asked_.clear();
  chosen_.clear();
  layer_ = -1;
}

void ExpertCache::expect(int32_t layer, std::span<const int32_t> experts) {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (const int32_t expert : experts) {
    const int32_t id = layer * shape_.experts + expert;
    if (states_[static_cast<size_t>(id)] != State::kAbsent) continue;
    Size& size = sizes_[size_of(id)];
    if (size.free.empty()) {
      const int32_t first = scores_.take_first(plan_.sizes[size_of(id)].layers);
      if (first < 0) break;
      if (scores_.score(first) > scores_.score(id)) {
        scores_.keep(first);
        continue;
      }
      give_up(first);
    }
    give_place(id);
    expected_.push(id);
    any = true;
  }
  if (any) asked_cv_.notify_one();
}

ExpertTotals ExpertCache::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

void ExpertCache::check() const {
  const std::lock_guard lock(mutex_);
  CHECK(layer_ < 0 && handed_.empty() && hits_.empty() && wanted_.empty() && asked_.empty());
  std::vector<int64_t> used(sizes_.size());
  for (int32_t id = 0; id < std::ssize(states_); ++id) {
    const State state = states_[static_cast<size_t>(id)];
    CHECK((state == State::kAbsent) == (place_of_[static_cast<size_t>(id)] < 0));
    CHECK((state == State::kHere) == scores_.kept(id));
    if (state != State::kAbsent) ++used[size_of(id)];
  }
  for (size_t size = 0; size < sizes_.size(); ++size)
    CHECK(used[size] + std::ssize(sizes_[size].free) == plan_.sizes[size].places);
}

// --- the thread that reads

struct ExpertCache::Reading {
  struct Job {
    int32_t id = 0;
    std::byte* memory = nullptr;
    Runs runs;
    size_t run = 0;     // that is asked for next, from `asked` on
    int64_t asked = 0;  // bytes of it
    int under_way = 0;  // blocks
    Status failure = {};
    bool all_asked() const { return run == runs.count; }
  };
  std::vector<Job> jobs;  // in order; all but the last are asked for
  int blocks = 0;         // under way
};

void ExpertCache::run() {
  name_this_thread("loralei-experts");
  favour_this_thread();
  Reading reading;
  reading.jobs.reserve(static_cast<size_t>(reader_->depth()) + 1);
  struct Block {
    uint64_t tag = 0;
    int64_t offset_bytes = 0;
    std::span<std::byte> dest;
  };
  std::vector<Block> to_ask;
  std::vector<BlockDone> done;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stop_) break;
    while (reading.blocks < reader_->depth()) {
      if (reading.jobs.empty() || reading.jobs.back().all_asked()) {
        if (asked_.empty() && expected_.empty()) break;
        const int32_t id = asked_.empty() ? expected_.pop() : asked_.pop();
        states_[static_cast<size_t>(id)] = State::kReading;
        reading.jobs.push_back(
            {.id = id, .memory = memory_of(id), .runs = runs_of(index_, shape_.parts[static_cast<size_t>(id)])});
      }
      Reading::Job& job = reading.jobs.back();
      const Run& run = job.runs.list[job.run];
      const int64_t bytes = std::min(options_.block_bytes, run.bytes - job.asked);
      to_ask.push_back({static_cast<uint64_t>(job.id),
                        run.begin + job.asked,
                        {job.memory + run.to + job.asked, static_cast<size_t>(bytes)}});
      job.asked += bytes;
      ++job.under_way;
      ++reading.blocks;
      totals_.read_bytes += bytes;
      if (job.asked < run.bytes) continue;
      ++job.run;
      job.asked = 0;
    }
    if (reading.blocks == 0) {
      asked_cv_.wait(lock);
      continue;
    }
    lock.unlock();
    for (const Block& block : to_ask) reader_->submit(block.tag, block.offset_bytes, block.dest);
    to_ask.clear();
    done.clear();
    reader_->wait(done);
    for (BlockDone& block : done) {
      --reading.blocks;
      for (Reading::Job& job : reading.jobs) {
        if (static_cast<uint64_t>(job.id) != block.tag) continue;
        --job.under_way;
        if (!block.status.ok() && job.failure.ok()) job.failure = std::move(block.status);
      }
    }
    lock.lock();
    bool any = false;
    std::erase_if(reading.jobs, [&](Reading::Job& job) {
      if (!job.all_asked() || job.under_way > 0) return false;
      any = true;
      if (job.failure.ok()) {
        states_[static_cast<size_t>(job.id)] = State::kArrived;
        arrived_.push_back(job.id);
      } else {
        failed_.emplace_back(job.id, job.failure.error());
      }
      return true;
    });
    if (any) arrived_cv_.notify_one();
  }
}

}  // namespace loralei
