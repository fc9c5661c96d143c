// SPDX-License-Identifier: Apache-2.0
// KvDisk at its start and on the disk's thread: what is done to the files.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "kv/kv_disk.h"
#include "sys/threads.h"

namespace loralei {

Result<KvDisk::Sizes> KvDisk::sizes_for(const KvDiskOptions& options) {
  const int64_t most = options.record_bytes_most;
  if (options.folder.empty()) return invalid_argument("the folder for keys and values has no name; name one");
  if (most <= 0 || most > kDiskPayloadBytesMost || options.fetches_most <= 0) {
    return invalid_argument("blocks of " + format_bytes(std::max<int64_t>(0, most)) +
                            " cannot be kept on disk; start without a folder for keys and values");
  }
  const int64_t record = disk_record_bytes(most);
  const int64_t least = kDiskHeaderBytes + record + disk_table_bytes(1);
  if (options.bytes_most < 2 * least) {
    return invalid_argument("keys and values in '" + options.folder + "' may take " +
                            format_bytes(std::max<int64_t>(0, options.bytes_most)) +
                            ", but with this model they need at least " + format_bytes(2 * least) +
                            "; allow them that much");
  }
  Sizes sizes;
  sizes.segment_bytes = std::clamp(options.bytes_most / kSegments, least, std::max(least, kSegmentBytesMost));
  sizes.ring_bytes = std::max(options.write_buffer_bytes, record);
  sizes.slot_bytes = std::max(options.read_buffer_bytes / options.fetches_most, 2 * record);
  sizes.slot_bytes = (sizes.slot_bytes + kDiskAlign - 1) / kDiskAlign * kDiskAlign;
  const int64_t usual = options.record_bytes_usual > 0 ? options.record_bytes_usual : most / 8;
  sizes.entries =
      static_cast<int32_t>(std::clamp<int64_t>(options.bytes_most / disk_record_bytes(usual), 16, kEntriesMost));
  return sizes;
}

int64_t KvDisk::Sizes::own_bytes() const { return DiskIndex::bytes_for(entries) + ring_bytes; }

Result<int64_t> KvDisk::memory_bytes(const KvDiskOptions& options) {
  TRY_ASSIGN(const Sizes sizes, sizes_for(options));
  return sizes.own_bytes() + ReadSlots::bytes_for(options.fetches_most, sizes.slot_bytes);
}

Result<std::unique_ptr<KvDisk>> KvDisk::open(const KvDiskOptions& options, Ledger& ledger, const Clock& clock,
                                             LogSink& log, std::function<void(KvFetched&&)> post) {
  TRY_ASSIGN(const Sizes sizes, sizes_for(options));
  const int64_t own_bytes = sizes.own_bytes();
  const int64_t slots_bytes = ReadSlots::bytes_for(options.fetches_most, sizes.slot_bytes);
  auto own = ledger.try_grant(MemoryUse::kKv, own_bytes);
  auto read = ledger.try_grant(MemoryUse::kKv, slots_bytes);
  if (!own || !read) {
    return too_large(
        "keeping keys and values in '" + options.folder + "' takes " + format_bytes(own_bytes + slots_bytes) +
        " of memory, which the memory budget does not have left; give it more, or start without the folder");
  }
  const int64_t segment_bytes_most = std::max(sizes.segment_bytes, kSegmentBytesMost);
  TRY_ASSIGN(auto segments, DiskSegments::open(options.folder, options.format, segment_bytes_most, options.bytes_most));
  auto slots = std::make_shared<ReadSlots>(options.fetches_most, sizes.slot_bytes, *std::move(read));
  std::unique_ptr<KvDisk> disk(
      new KvDisk(options, sizes, clock, log, std::move(post), std::move(segments), std::move(slots), *std::move(own)));
  TRY(disk->find_records());
  disk->tell_of_files();
  if (!options.thread) return disk;
  TRY_ASSIGN(disk->thread_, start_thread([kept = disk.get()] { kept->run(); }));
  return disk;
}

// Another limit than the last time: the oldest go.
Status KvDisk::make_room() {
  for (const DiskSegments::Elder& elder : segments_->elders()) elders_.push_back(elder.bytes);
  while (segments_->bytes() > options_.bytes_most) {
    if (!elders_.empty()) {
      TRY(segments_->remove_elder(elders_gone_++));
      elders_.pop_front();
    } else {
      CHECK(!segments_->sizes().empty());
      TRY(segments_->remove(segments_->sizes().begin()->first));
    }
  }
  return {};
}

Status KvDisk::find_records() {
  TRY(make_room());
  ReadSlot* const slot = slots_->take();
  const ReadShare share(slots_, slot);
  std::vector<uint32_t> numbers;
  for (const auto& [number, bytes] : segments_->sizes()) numbers.push_back(number);
  for (const uint32_t number : numbers) TRY(find_records_in(number, slot->memory));
  bytes_ = segments_->bytes();
  next_number_ = segments_->next_number();
  stats_.found_records = index_.size();
  stats_.damaged_files = segments_->damaged();
  stats_.foreign_files = std::ssize(segments_->foreign());
  return {};
}

// With less room in the index than the last time the oldest segments go for it.
Status KvDisk::find_records_in(uint32_t number, std::span<std::byte> buffer) {
  index_.begin(number);
  Status status;
  const auto found = [&](const DiskHeader& header) {
    const bool of_use = header.record.form == KvDiskForm::kRaw || header.record.grid == grid_;
    if (!of_use || header.payload_bytes > options_.record_bytes_most) return;
    while (index_.full() && index_.segments().size() > 1 && status.ok()) {
      const uint32_t oldest = index_.segments().front().number;
      status = segments_->remove(oldest);
      index_.drop_segment(oldest);
    }
    if (!index_.full()) index_.add(header, true);
  };
  const DiskScan scan = segments_->scan(number, buffer, found);
  TRY(std::move(status));
  if (scan.records == 0) {
    index_.drop_segment(number);
    return segments_->remove(number);
  }
  index_.segment(number)->bytes = segments_->sizes().at(number);
  return {};
}

void KvDisk::tell_of_files() const {
  const std::string& folder = segments_->folder();
  if (segments_->damaged() > 0) {
    log_.log(LogLevel::kWarning, std::to_string(segments_->damaged()) + " files of keys and values in '" + folder +
                                     "' were damaged and have been removed; what they held is computed again");
  }
  if (segments_->foreign().empty()) return;
  constexpr size_t kNamed = 4;
  std::string names;
  for (size_t i = 0; i < std::min(kNamed, segments_->foreign().size()); ++i)
    names += (i == 0 ? "'" : ", '") + segments_->foreign()[i] + "'";
  if (segments_->foreign().size() > kNamed)
    names += " and " + std::to_string(segments_->foreign().size() - kNamed) + " more";
  log_.log(LogLevel::kWarning, "'" + folder + "' holds files that are not of this model's keys and values: " + names +
                                   "; they are not used and stay there; remove them if nobody needs them");
}

void KvDisk::run() {
  name_this_thread("kv disk");
  while (const auto job = mail_.next(true)) {
    run_job(*job);
    mail_.done();
  }
}

bool KvDisk::run_one_job() {
  CHECK(!options_.thread);
  const auto job = mail_.next(false);
  if (!job) return false;
  run_job(*job);
  mail_.done();
  return true;
}

void KvDisk::run_job(const DiskJob& job) {
  if (job.kind == DiskJob::Kind::kFetch) return run_fetch(*job.slot);
  if (job.kind == DiskJob::Kind::kKeepGrid) return run_keep_grid();
  const Status status = run_change(job);
  tell_of(status);
  if (job.kind != DiskJob::Kind::kWrite) return;
  if (status.ok()) told_ = false;
  mail_.report({.kind = status.ok() ? DiskReport::Kind::kWritten : DiskReport::Kind::kNotWritten,
                .header = job.header,
                .bytes = job.bytes});
}

Status KvDisk::run_change(const DiskJob& job) {
  using Kind = DiskJob::Kind;
  switch (job.kind) {
    case Kind::kBegin:
      return segments_->begin(job.segment);
    case Kind::kWrite:
      return segments_->write(job.segment, static_cast<int64_t>(job.header.offset), job.bytes);
    case Kind::kSeal:
      return segments_->seal(job.segment);
    case Kind::kRemove:
      return segments_->remove(job.segment);
    case Kind::kRemoveElder:
      return segments_->remove_elder(job.segment);
    case Kind::kKeepGrid:
    case Kind::kFetch:
      break;
  }
  return {};
}

void KvDisk::run_keep_grid() {
  const Status status = keep_grid_();
  mail_.report({.kind = status.ok() ? DiskReport::Kind::kGridKept : DiskReport::Kind::kGridNotKept});
  if (status.ok()) return;
  log_.log(LogLevel::kWarning,
           "What is kept on disk is not encoded, and takes more room: the steps could not be kept: " +
               status.error().message);
}

// Once, until something can be written again.
void KvDisk::tell_of(const Status& status) {
  if (status.ok() || std::exchange(told_, true)) return;
  log_.log(LogLevel::kWarning, "Keys and values are not kept on disk for now: " + status.error().message +
                                   "; it is tried again every " + std::to_string(kPauseNs / 1'000'000'000) + " s");
}

void KvDisk::run_fetch(ReadSlot& slot) {
  const int64_t began_ns = clock_.now_ns();
  std::span<std::byte> room = slot.memory;
  DiskReport report{.kind = DiskReport::Kind::kRead};
  for (const ReadSlot::Ask& ask : slot.asks) {
    const auto bytes = static_cast<size_t>(disk_record_bytes(ask.header.payload_bytes));
    const bool delta = ask.header.record.form == KvDiskForm::kDelta;
    const size_t anchor_bytes = delta ? static_cast<size_t>(disk_record_bytes(ask.anchor.payload_bytes)) : 0;
    if (bytes + anchor_bytes > room.size()) {
      slot.more = true;
      break;
    }
    if (!read(ask.header, room) || (delta && !read(ask.anchor, room.subspan(bytes)))) {
      slot.more = false;  // though there may have been too many to ask for
      break;
    }
    const auto payload = [](std::span<const std::byte> record, const DiskHeader& header) {
      return record.subspan(kDiskHeaderBytes, header.payload_bytes);
    };
    slot.blocks.push_back(
        {.record = ask.header.record,
         .payload = payload(room, ask.header),
         .anchor_payload = delta ? payload(room.subspan(bytes), ask.anchor) : std::span<const std::byte>()});
    room = room.subspan(bytes + anchor_bytes);
    ++report.read_blocks;
    report.read_coded += ask.header.record.form == KvDiskForm::kRaw ? 0 : 1;
    report.read_bytes += static_cast<int64_t>(bytes + anchor_bytes);
  }
  report.read_ns = clock_.now_ns() - began_ns;
  mail_.report(report);
  post_({.ticket = slot.ticket, .blocks = slot.blocks, .more = slot.more, .share = ReadShare(slots_, &slot)});
}

bool KvDisk::read(const DiskHeader& header, std::span<std::byte> out) {
  const Status status = segments_->read(header, out);
  if (status.ok()) return true;
  const bool gone = status.error().code == ErrorCode::kNotFound;
  mail_.report({.kind = gone ? DiskReport::Kind::kGone : DiskReport::Kind::kLost, .header = header});
  return false;
}

}  // namespace loralei
