// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_pool.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/units.h"

namespace loralei {
namespace {

// What a helper may have told: any number.
int64_t told_ns(int64_t ns) { return std::clamp<int64_t>(ns, 0, 3'600'000'000'000); }

}  // namespace

AssistTicket& AssistTicket::operator=(AssistTicket&& other) noexcept {
  if (this == &other) return *this;
  if (pool_ != nullptr) pool_->abandon_slices(*this);
  pool_ = std::exchange(other.pool_, nullptr);
  count_ = std::exchange(other.count_, 0);
  modules_ = other.modules_;
  std::copy_n(other.slices_.begin(), count_, slices_.begin());
  return *this;
}

AssistTicket::~AssistTicket() {
  if (pool_ != nullptr) pool_->abandon_slices(*this);
}

Result<std::unique_ptr<AssistPool>> AssistPool::create(AssistOptions options, const Clock& clock, LogSink& log) {
  if (options.helpers < 1 || options.helpers > kAssistHelpersMax)
    return invalid_argument("there may be 1 to " + std::to_string(kAssistHelpersMax) + " helpers, not " +
                            std::to_string(options.helpers));
  const AssistChannel::Settings settings{options.shape, options.rows_max, -1, options.helper_spin_ns,
                                         options.ops_table};
  TRY(check_assist_settings(settings));
  const int64_t bytes = assist_layout(options.shape, options.rows_max).bytes;
  if (bytes > options.bytes_max / options.helpers)
    return too_large(std::to_string(options.helpers) + " helpers with " + std::to_string(options.rows_max) +
                     " rows each take " + format_bytes(bytes) + " of shared memory each, " +
                     format_bytes(bytes * options.helpers) + " together, but there are " +
                     format_bytes(options.bytes_max) + " for them; allow fewer helpers or fewer rows");
  TRY_ASSIGN(auto keeper, HelperKeeper::create({.program = options.program,
                                                .args = options.args,
                                                .helpers = options.helpers,
                                                .cpus = options.cpus,
                                                .settings = settings,
                                                .start_at_most_ns = options.start_at_most_ns},
                                               clock, log));
  return std::unique_ptr<AssistPool>(new AssistPool(std::move(options), clock, std::move(keeper)));
}

AssistPool::AssistPool(AssistOptions options, const Clock& clock, std::unique_ptr<HelperKeeper> keeper)
    : options_(std::move(options)),
      clock_(clock),
      keeper_(std::move(keeper)),
      lives_(static_cast<size_t>(options_.helpers)),
      places_(lives_.size()) {}

AssistPool::~AssistPool() = default;

Status AssistPool::learn(AdapterVersionId version, const AssistFactors& factors) {
  TRY(factors.check(options_.shape));
  keeper_->learn(version, factors);
  return {};
}

void AssistPool::forget(AdapterVersionId version) { keeper_->forget(version); }

AssistStats AssistPool::stats() const {
  AssistStats stats = stats_;
  stats.restarts = keeper_->restarts();
  return stats;
}

Status AssistPool::check(const AssistTask& task, int32_t rows_each) const {
  CHECK(task.rows > 0 && rows_each > 0 && is_assist_mask(task.modules));
  CHECK(task.layer >= 0 && task.layer < options_.shape.layers);
  if (!keeper_->knows(task.version))
    return not_found("helpers know nothing of adapter version " + std::to_string(task.version.value));
  return {};
}

bool AssistPool::is_free(size_t helper, int64_t now_ns) {
  Place& place = places_[helper];
  if (place.use == Use::kTaken) return false;
  if (keeper_->has_news(helper)) {
    keeper_->take(helper, lives_[helper]);
    place.use = Use::kFree;
  }
  const HelperKeeper::Life& life = lives_[helper];
  if (life == nullptr || life->condemned || life->gone.load(std::memory_order_acquire)) return false;
  if (place.use == Use::kFree || life->answered()) return true;
  if (now_ns - place.abandoned_ns > options_.abandoned_at_most_ns) life->condemn();
  return false;
}

Result<AssistTicket> AssistPool::publish(const AssistTask& task, int32_t rows_each) {
  TRY(check(task, rows_each));
  const int32_t wanted = std::min((task.rows - 1) / rows_each + 1, options_.helpers);
  const int64_t now = clock_.now_ns();
  AssistTicket ticket;
  for (size_t i = 0; i < lives_.size() && ticket.count_ < wanted; ++i) {
    if (is_free(i, now)) ticket.slices_[static_cast<size_t>(ticket.count_++)].helper = static_cast<int32_t>(i);
  }
  if (int64_t{ticket.count_} * options_.rows_max < task.rows) {
    const std::string free = std::to_string(std::exchange(ticket.count_, 0));
    return Error{ErrorCode::kOverloaded, free + " of " + std::to_string(options_.helpers) +
                                             " helpers are free, too few for " + std::to_string(task.rows) + " rows"};
  }
  ticket.pool_ = this;
  ticket.modules_ = task.modules;
  for (int32_t i = 0, begin = 0; i < ticket.count_; ++i) {
    AssistTicket::Slice& slice = ticket.slices_[static_cast<size_t>(i)];
    slice.row_begin = begin;
    slice.rows = (task.rows - begin) / (ticket.count_ - i);
    begin += slice.rows;
    send(task, slice);
  }
  return ticket;
}

void AssistPool::send(const AssistTask& task, const AssistTicket::Slice& slice) {
  const auto helper = static_cast<size_t>(slice.helper);
  HelperProcess& life = *lives_[helper];
  places_[helper].use = Use::kTaken;
  size_t module = 0;
  while ((task.modules >> module & 1) == 0) ++module;
  const size_t row_bytes = static_cast<size_t>(options_.shape.ins[module]) * sizeof(float);
  for (int32_t row = 0; row < slice.rows; ++row)
    std::memcpy(life.channel.x(row), task.x + (slice.row_begin + row) * task.x_stride, row_bytes);
  AssistRequest& request = life.channel.header().request;
  request.controls.store(life.controls, std::memory_order_relaxed);
  request.version.store(task.version.value, std::memory_order_relaxed);
  request.layer.store(task.layer, std::memory_order_relaxed);
  request.modules.store(task.modules, std::memory_order_relaxed);
  request.rows.store(slice.rows, std::memory_order_relaxed);
  request.generation.store(++life.generation, std::memory_order_release);
  life.nudge();
  ++stats_.messages;
  stats_.rows += static_cast<uint64_t>(slice.rows);
}

Status AssistPool::wait_for(const AssistTicket::Slice& slice, int64_t end_ns) {
  HelperProcess& life = *lives_[static_cast<size_t>(slice.helper)];
  SharedSignal& done = life.channel.header().done;
  for (;;) {
    const uint32_t value = done.value();
    // Looked at behind the value: the keeper raises that after a helper's end.
    if (life.gone.load(std::memory_order_acquire))
      return Error{ErrorCode::kUnavailable, "a helper process ended while it worked"};
    if (value == life.generation) break;
    const int64_t left = end_ns - clock_.now_ns();
    if (left <= 0) {
      life.condemn();
      ++stats_.late;
      return Error{ErrorCode::kDeadline, "a helper process was too slow and is replaced"};
    }
    done.wait(value, options_.caller_spin_ns, left);
  }
  const AssistHeader& header = life.channel.header();
  if (header.answer.load(std::memory_order_relaxed) != static_cast<uint32_t>(AssistAnswer::kDone)) {
    ++stats_.refused;
    return Error{ErrorCode::kInternal, "a helper process refused its message"};
  }
  stats_.busy_ns += told_ns(header.busy_ns.load(std::memory_order_relaxed));
  return {};
}

Status AssistPool::wait(AssistTicket& ticket, int64_t at_most_ns) {
  CHECK(ticket.pool_ == this && ticket.count_ > 0);
  const int64_t end_ns = clock_.now_ns() + at_most_ns;
  for (int32_t i = 0; i < ticket.count_; ++i) {
    if (Status status = wait_for(ticket.slices_[static_cast<size_t>(i)], end_ns); !status.ok()) {
      abandon_slices(ticket);
      return status;
    }
  }
  return {};
}

void AssistPool::end(AssistTicket& ticket) {
  for (int32_t i = 0; i < ticket.count_; ++i)
    places_[static_cast<size_t>(ticket.slices_[static_cast<size_t>(i)].helper)].use = Use::kFree;
  ticket.count_ = 0;
  ticket.pool_ = nullptr;
}

void AssistPool::abandon_slices(AssistTicket& ticket) {
  const int64_t now = clock_.now_ns();
  for (int32_t i = 0; i < ticket.count_; ++i)
    places_[static_cast<size_t>(ticket.slices_[static_cast<size_t>(i)].helper)] = {Use::kAbandoned, now};
  ticket.count_ = 0;
  ticket.pool_ = nullptr;
}

void AssistPool::abandon(AssistTicket&& ticket) { abandon_slices(ticket); }

}  // namespace loralei
