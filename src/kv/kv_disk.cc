// SPDX-License-Identifier: Apache-2.0
// KvDisk on the engine's thread: what is where, what is wanted, and what has to go.
#include "kv/kv_disk.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {

KvDisk::KvDisk(const KvDiskOptions& options, const Sizes& sizes, const Clock& clock, LogSink& log,
               std::function<void(KvFetched&&)> post, std::unique_ptr<DiskSegments> segments,
               std::shared_ptr<ReadSlots> slots, Grant&& grant)
    : options_(options),
      sizes_(sizes),
      clock_(clock),
      log_(log),
      post_(std::move(post)),
      grant_(std::move(grant)),
      slots_(std::move(slots)),
      index_(sizes.entries),
      ring_(sizes.ring_bytes),
      grid_(options.grid),
      segments_(std::move(segments)) {}

KvDisk::~KvDisk() {
  mail_.stop();
  if (thread_.joinable()) thread_.join();
}

void KvDisk::take_reports() {
  mail_.take(reports_);
  for (const DiskReport& report : reports_) take_report(report);
  reports_.clear();
}

void KvDisk::take_report(const DiskReport& report) {
  using Kind = DiskReport::Kind;
  switch (report.kind) {
    case Kind::kWritten:
      ring_.give_back(report.bytes);
      index_.set_written(report.header);
      ++stats_.written_blocks;
      stats_.written_bytes += report.header.payload_bytes;
      stats_.written_coded += report.header.record.form == KvDiskForm::kRaw ? 0 : 1;
      return;
    case Kind::kNotWritten:
      ring_.give_back(report.bytes);
      index_.drop(report.header);
      ++stats_.failed_writes;
      paused_until_ns_ = clock_.now_ns() + kPauseNs;
      if (is_open_ && index_.segments().back().number == report.header.segment) close_segment();
      return;
    case Kind::kLost:
      index_.drop(report.header);
      ++stats_.lost_records;
      return;
    case Kind::kGone:
      if (const DiskSegment* const segment = index_.segment(report.header.segment)) {
        stats_.lost_records += segment->records;
        forget_segment(segment->number);
      }
      return;
    case Kind::kRead:
      stats_.read_blocks += report.read_blocks;
      stats_.read_coded += report.read_coded;
      stats_.read_bytes += report.read_bytes;
      stats_.read_s += static_cast<double>(report.read_ns) * 1e-9;
      return;
    case Kind::kGridKept:
      grid_ = learnt_grid_;
      keep_grid_ = {};
      return;
    case Kind::kGridNotKept:
      keep_grid_ = {};
      return;
  }
}

// The record that a delta was put with, there or on its way; null: it is not.
const KvDisk::Entry* KvDisk::anchor_of(const Entry& entry) const {
  const Entry* const anchor = index_.find(entry.header.record.anchor);
  const bool is_the_same = anchor != nullptr && anchor->header.record.form == KvDiskForm::kAlone &&
                           anchor->header.sum == entry.header.anchor_sum;
  return is_the_same ? anchor : nullptr;
}

const KvDisk::Entry* KvDisk::usable(const KvDiskKey& key, bool exact) const {
  const Entry* const entry = index_.find(key);
  if (entry == nullptr || !entry->written || (exact && !entry->header.record.exact)) return nullptr;
  if (entry->header.record.form != KvDiskForm::kDelta) return entry;
  const Entry* const anchor = anchor_of(*entry);
  return anchor != nullptr && anchor->written ? entry : nullptr;
}

KvDiskFound KvDisk::readable(std::span<const KvDiskKey> keys, bool exact) {
  take_reports();
  KvDiskFound found;
  for (const KvDiskKey& key : keys) {
    const Entry* const entry = usable(key, exact);
    if (entry == nullptr) break;
    ++found.blocks;
    found.bytes += disk_record_bytes(entry->header.payload_bytes);
    if (entry->header.record.form == KvDiskForm::kDelta)
      found.bytes += disk_record_bytes(anchor_of(*entry)->header.payload_bytes);
  }
  return found;
}

double KvDisk::read_bytes_per_s() {
  take_reports();
  return stats_.read_s > 0 ? static_cast<double>(stats_.read_bytes) / stats_.read_s : 0;
}

bool KvDisk::has(const KvDiskKey& key) {
  take_reports();
  return index_.find(key) != nullptr;
}

bool KvDisk::can_be_anchor(const KvDiskKey& key) {
  take_reports();
  const Entry* const entry = index_.find(key);
  return entry != nullptr && entry->header.record.form == KvDiskForm::kAlone;
}

// So much is written after it that the rest of the room is a quarter.
bool KvDisk::is_old(const Entry& entry) {
  const DiskSegment* const segment = index_.segment(entry.header.segment);
  const DiskSegment& newest = index_.segments().back();
  const int64_t behind = newest.began_at + newest.bytes - segment->began_at;
  return behind >= options_.bytes_most / 4 * 3;
}

bool KvDisk::wants(const KvDiskRecord& record) {
  take_reports();
  const Entry* const there = index_.find(record.key);
  if (there == nullptr || (record.exact && !there->header.record.exact)) return true;
  if (there->header.record.form == KvDiskForm::kDelta && anchor_of(*there) == nullptr) return true;
  return there->written && is_old(*there);
}

bool KvDisk::put(const KvDiskRecord& record, std::span<const std::byte> payload) {
  CHECK(record.form == KvDiskForm::kRaw ? record.grid == 0 : record.grid == grid_ && record.grid != 0);
  CHECK(!payload.empty() && std::ssize(payload) <= options_.record_bytes_most);
  if (!wants(record) || copy(record, payload)) return true;
  ++stats_.refused_puts;
  return false;
}

// Places are made first: what goes for them may be the anchor.
bool KvDisk::copy(const KvDiskRecord& record, std::span<const std::byte> payload) {
  const int64_t bytes = disk_record_bytes(std::ssize(payload));
  if (clock_.now_ns() < paused_until_ns_ || !ring_.has_room(static_cast<size_t>(bytes))) return false;
  while (index_.full()) evict_segment();
  if (!make_place(bytes)) return false;
  DiskHeader header{.record = record,
                    .segment = index_.segments().back().number,
                    .payload_bytes = static_cast<uint32_t>(payload.size()),
                    .offset = static_cast<uint64_t>(end_)};
  if (record.form == KvDiskForm::kDelta) {
    const Entry* const anchor = index_.find(record.anchor);
    if (anchor == nullptr || anchor->header.record.form != KvDiskForm::kAlone) return false;
    header.anchor_sum = anchor->header.sum;
  }
  header.sum = segments_->format().payload_sum(record.key, payload);
  const std::span<std::byte> piece = ring_.take(static_cast<size_t>(bytes));
  segments_->format().write_header(header, piece.first(kDiskHeaderBytes));
  const auto rest = std::copy(payload.begin(), payload.end(), piece.begin() + kDiskHeaderBytes);
  std::fill(rest, piece.end(), std::byte{0});
  index_.add(header, false);
  mail_.put({.kind = DiskJob::Kind::kWrite, .segment = header.segment, .header = header, .bytes = piece});
  end_ += bytes;
  ++records_;
  return true;
}

void KvDisk::learn_grid(uint64_t grid, std::function<Status()> keep) {
  CHECK(grid_ == 0 && learnt_grid_ == 0 && grid != 0 && keep);
  learnt_grid_ = grid;
  keep_grid_ = std::move(keep);
  mail_.put({.kind = DiskJob::Kind::kKeepGrid});
}

bool KvDisk::learns_grid() {
  take_reports();
  return static_cast<bool>(keep_grid_);
}

void KvDisk::drop(const KvDiskKey& key) {
  take_reports();
  if (const Entry* const entry = index_.find(key)) {
    index_.drop(DiskHeader(entry->header));
    ++stats_.lost_records;
  }
}

void KvDisk::tell_of(const KvDiskKey& key) {
  take_reports();
  index_.tell_of(key);
}

bool KvDisk::settled() {
  const bool idle = mail_.wait_idle(0);  // before what it said last
  take_reports();
  return idle;
}

// So much at the end of the newest segment.
bool KvDisk::make_place(int64_t bytes) {
  if (is_open_ && end_ + bytes + disk_table_bytes(records_ + 1) <= sizes_.segment_bytes) return true;
  if (is_open_) close_segment();
  if (next_number_ > UINT32_MAX) return false;
  while (bytes_ + sizes_.segment_bytes > options_.bytes_most) evict_oldest();
  const auto number = static_cast<uint32_t>(next_number_++);
  index_.begin(number);
  index_.segment(number)->bytes = sizes_.segment_bytes;
  bytes_ += sizes_.segment_bytes;
  mail_.put({.kind = DiskJob::Kind::kBegin, .segment = number});
  is_open_ = true;
  end_ = kDiskHeaderBytes;
  records_ = 0;
  return true;
}

void KvDisk::close_segment() {
  CHECK(is_open_);
  DiskSegment& newest = *index_.segment(index_.segments().back().number);
  bytes_ -= newest.bytes;
  newest.bytes = end_ + disk_table_bytes(records_);
  bytes_ += newest.bytes;
  mail_.put({.kind = DiskJob::Kind::kSeal, .segment = newest.number});
  is_open_ = false;
}

void KvDisk::evict_oldest() {
  if (!elders_.empty()) {
    bytes_ -= elders_.front();
    elders_.pop_front();
    mail_.put({.kind = DiskJob::Kind::kRemoveElder, .segment = elders_gone_++});
  } else {
    evict_segment();
  }
}

void KvDisk::evict_segment() {
  CHECK(!index_.segments().empty());
  const DiskSegment& oldest = index_.segments().front();
  stats_.evicted_records += oldest.records;
  forget_segment(oldest.number);
}

void KvDisk::forget_segment(uint32_t number) {
  if (is_open_ && index_.segments().back().number == number) close_segment();
  bytes_ -= index_.segment(number)->bytes;
  index_.drop_segment(number);
  mail_.put({.kind = DiskJob::Kind::kRemove, .segment = number});
}

bool KvDisk::fetch(uint64_t ticket, std::span<const KvDiskKey> keys, bool exact) {
  take_reports();
  if (keys.empty() || usable(keys.front(), exact) == nullptr) return false;
  ReadSlot* const slot = slots_->take();
  if (slot == nullptr) return false;
  slot->ticket = ticket;
  slot->asks.clear();
  slot->blocks.clear();
  slot->more = false;
  for (const KvDiskKey& key : keys) {
    const Entry* const entry = usable(key, exact);
    if (entry == nullptr) break;
    slot->more = slot->asks.size() == ReadSlot::kAsksMost;
    if (slot->more) break;
    const bool delta = entry->header.record.form == KvDiskForm::kDelta;
    slot->asks.push_back({.header = entry->header, .anchor = delta ? anchor_of(*entry)->header : DiskHeader{}});
  }
  mail_.put({.kind = DiskJob::Kind::kFetch, .slot = slot});
  return true;
}

bool KvDisk::flush(int64_t timeout_ms) {
  take_reports();
  if (is_open_) close_segment();
  while (!options_.thread && run_one_job()) {
  }
  const bool idle = mail_.wait_idle(timeout_ms);
  take_reports();
  return idle;
}

KvDiskStats KvDisk::stats() {
  take_reports();
  KvDiskStats stats = stats_;
  stats.records = index_.size();
  stats.segments = std::ssize(index_.segments());
  stats.bytes = bytes_ - (is_open_ ? index_.segments().back().bytes - end_ : 0);
  stats.bytes_most = options_.bytes_most;
  return stats;
}

void KvDisk::check() {
  take_reports();
  index_.check();
  int64_t bytes = 0;
  for (const int64_t elder : elders_) bytes += elder;
  for (const DiskSegment& segment : index_.segments()) bytes += segment.bytes;
  CHECK(bytes == bytes_ && bytes_ <= options_.bytes_most);
  CHECK(!is_open_ || (!index_.segments().empty() && end_ + disk_table_bytes(records_) <= sizes_.segment_bytes));
}

}  // namespace loralei
