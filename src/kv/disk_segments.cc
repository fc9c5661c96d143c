// SPDX-License-Identifier: Apache-2.0
#include "kv/disk_segments.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "sys/file.h"

namespace loralei {
namespace {

constexpr const char* kLock = "lock";
constexpr const char* kEnding = ".kv";
constexpr const char* kPart = ".part";
constexpr unsigned kOwnerOnly = 0600;
constexpr size_t kFolderDigits = 16, kNumberDigits = 8;

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string name_of(uint32_t number) {
  char name[kNumberDigits + 4];
  std::snprintf(name, sizeof name, "%08x%s", number, kEnding);
  return name;
}

// The number of a segment's name; nullopt: it is none.
std::optional<uint32_t> number_of(const std::string& name) {
  if (name.size() <= kNumberDigits || !is_hex(name.substr(0, kNumberDigits), kNumberDigits) ||
      name.substr(kNumberDigits) != kEnding)
    return std::nullopt;
  return static_cast<uint32_t>(std::stoul(name.substr(0, kNumberDigits), nullptr, 16));
}

Status make_room_for(const std::string& dir, const std::string& folder) {
  if (const std::string parent = parent_path(dir); !parent.empty()) TRY(make_folders(parent));
  TRY(make_private_folder(dir));
  return make_private_folder(folder);
}

}  // namespace

std::string DiskSegments::path_of(uint32_t number) const { return join_path(folder_, name_of(number)); }

Result<std::unique_ptr<DiskSegments>> DiskSegments::open(const std::string& dir, const Digest& format,
                                                         int64_t segment_bytes_most, int64_t bytes_most) {
  const std::string folder = join_path(dir, digest_hex(format).substr(0, kFolderDigits));
  TRY(make_room_for(dir, folder));
  auto lock = WriteFile::open(join_path(folder, kLock), kOwnerOnly);
  if (!lock.ok() && lock.error().code == ErrorCode::kUnavailable) {
    return Error{ErrorCode::kUnavailable, "another server keeps this model's keys and values in '" + folder +
                                              "'; stop it, or give this one another folder"};
  }
  if (!lock.ok()) return std::move(lock).error();
  std::unique_ptr<DiskSegments> segments(new DiskSegments(folder, format, bytes_most));
  segments->lock_ = std::move(lock).value();
  TRY(segments->look(segment_bytes_most));
  segments->look_for_elders(dir);
  return segments;
}

void DiskSegments::count(uint32_t number, int64_t bytes) {
  int64_t& counted = sizes_[number];
  bytes_ += bytes - counted;
  counted = bytes;
}

Status DiskSegments::look(int64_t segment_bytes_most) {
  TRY_ASSIGN(const std::vector<DirEntry> entries, PosixFileSystem().list(folder_));
  for (const DirEntry& entry : entries) {
    if (entry.name == kLock) continue;
    const size_t stem = entry.name.size() - std::min(entry.name.size(), std::string_view(kPart).size());
    const bool part = entry.name.substr(stem) == kPart && number_of(entry.name.substr(0, stem));
    const bool gone = part && !entry.is_directory && remove_file(join_path(folder_, entry.name)).ok();
    if (!gone && (entry.is_directory || !look_at(entry.name, segment_bytes_most))) foreign_.push_back(entry.name);
  }
  // Not even the name of what is foreign is used again.
  if (!sizes_.empty()) next_number_ = uint64_t{sizes_.rbegin()->first} + 1;
  for (const std::string& name : foreign_)
    if (const auto number = number_of(name); number && *number == next_number_) ++next_number_;
  return {};
}

// False: it is not ours.
bool DiskSegments::look_at(const std::string& name, int64_t segment_bytes_most) {
  const auto number = number_of(name);
  if (!number) return false;
  const std::string path = join_path(folder_, name);
  const auto file = PosixFileSystem().open(path);
  if (!file.ok()) return false;
  const DiskFile seen = format_.look(**file, *number);
  if (seen == DiskFile::kForeign) return false;
  const int64_t bytes = (*file)->size_bytes();
  if (seen == DiskFile::kOurs && bytes <= segment_bytes_most) {
    count(*number, bytes);
    return true;
  }
  ++damaged_;
  return remove_file(path).ok();
}

void DiskSegments::look_for_elders(const std::string& dir) {
  const PosixFileSystem files;
  const auto folders = files.list(dir);
  if (!folders.ok()) return;
  for (const DirEntry& entry : *folders) {
    const std::string folder = join_path(dir, entry.name);
    if (!entry.is_directory || !is_hex(entry.name, kFolderDigits) || entry.name == base_name(folder_)) continue;
    const auto names = files.list(folder);
    if (!names.ok() || is_being_written(join_path(folder, kLock))) continue;
    for (const DirEntry& inner : *names) {
      if (inner.is_directory || !number_of(inner.name)) continue;
      const auto file = files.open(join_path(folder, inner.name));
      if (!file.ok() || !is_disk_segment(**file)) continue;
      const FileStamp stamp = (*file)->stamp();
      elders_.push_back({folder, inner.name, stamp.size_bytes, stamp.mtime_ns});
      bytes_ += stamp.size_bytes;
    }
  }
  std::stable_sort(elders_.begin(), elders_.end(),
                   [](const Elder& a, const Elder& b) { return a.written_ns < b.written_ns; });
}

DiskScan DiskSegments::scan(uint32_t number, std::span<std::byte> buffer,
                            const std::function<void(const DiskHeader&)>& found) {
  const auto file = PosixFileSystem().open(path_of(number));
  if (!file.ok()) return {};
  const DiskScan scan = format_.scan(**file, number, buffer, found);
  if (scan.sealed || scan.records == 0) return scan;
  auto mended = WriteFile::open(path_of(number), kOwnerOnly);
  if (!mended.ok() || !mended->resize(scan.end).ok()) return scan;
  count(number, scan.end);
  file_ = std::move(mended).value();
  number_ = number;
  end_ = scan.end;
  (void)seal(number);  // or it is read record by record the next time, too
  return scan;
}

Status DiskSegments::begin(uint32_t number) {
  CHECK(!file_);
  const std::string path = path_of(number);
  if (PosixFileSystem().exists(path)) return io_error("'" + path + "' is there already; it is left as it is");
  TRY_ASSIGN(WriteFile file, WriteFile::open(path + kPart, kOwnerOnly));
  TRY(file.resize(0));
  file_ = std::move(file);
  number_ = number;
  end_ = 0;
  failed_ = false;
  std::array<std::byte, kDiskHeaderBytes> header;
  format_.write_segment(number, header);
  Status status = append(header);
  if (status.ok()) status = file_->commit(path);
  if (status.ok()) {
    end_ = kDiskHeaderBytes;
    return {};
  }
  file_.reset();
  if (remove_file(path + kPart).ok()) {
    count(number, 0);
    sizes_.erase(number);
  }
  return status;
}

// At the end of the file that is being written. Where that cannot be done it takes no
// more, and ends behind its last whole record.
Status DiskSegments::append(std::span<const std::byte> bytes) {
  const int64_t at = sizes_[number_], more = std::ssize(bytes);
  Status status;
  if (bytes_ + more > bytes_most_) {
    status = io_error("files that could not be removed from '" + folder_ + "' take the room of " + format_bytes(more));
  } else if (status = file_->write(at, bytes); status.ok()) {
    count(number_, at + more);
    return {};
  }
  failed_ = true;
  (void)file_->resize(end_);
  const auto left = file_->size_bytes();
  count(number_, left.ok() ? *left : at + more);
  return status;
}

Status DiskSegments::write(uint32_t number, int64_t offset, std::span<const std::byte> record) {
  if (!file_ || number != number_ || failed_)
    return io_error("'" + path_of(number) + "' takes no more since something of it could not be written");
  CHECK(offset == end_);
  TRY(append(record));
  end_ = offset + std::ssize(record);
  return {};
}

Status DiskSegments::put_table() {
  TRY_ASSIGN(const std::unique_ptr<File> file, PosixFileSystem().open(path_of(number_)));
  std::array<std::byte, 128 * kDiskHeaderBytes> part;
  size_t filled = 0;
  int64_t records = 0;
  for (int64_t at = kDiskHeaderBytes; at < end_; ++records) {
    const auto bytes = std::span(part).subspan(filled, kDiskHeaderBytes);
    TRY(file->read_exact(at, bytes));
    const auto header = format_.read_header(bytes);
    if (!header) return corrupt("'" + file->path() + "' was changed while it was written");
    at += disk_record_bytes(header->payload_bytes);
    filled += bytes.size();
    if (filled == part.size()) TRY(append(std::span(part).first(std::exchange(filled, 0))));
  }
  TRY(append(std::span(part).first(filled)));
  std::array<std::byte, kDiskFooterBytes> footer;
  format_.write_footer(number_, records, end_, footer);
  TRY(append(footer));
  return file_->sync();
}

Status DiskSegments::seal(uint32_t number) {
  if (!file_ || number != number_) return {};  // it could not be begun
  // What was written whole gets its table, where nothing lies behind it.
  failed_ = sizes_[number] != end_;
  const Status status = failed_ ? file_->sync() : put_table();
  file_.reset();
  return status;
}

Status DiskSegments::remove(uint32_t number) {
  if (number == number_) file_.reset();
  if (number == read_number_) read_.reset();
  doomed_.push_back(number);
  Status last;
  std::erase_if(doomed_, [&](uint32_t doomed) {
    if (Status status = remove_file(path_of(doomed)); !status.ok()) {
      last = std::move(status);
      return false;
    }
    count(doomed, 0);
    sizes_.erase(doomed);
    return true;
  });
  return last;
}

Status DiskSegments::remove_elder(size_t index) {
  const Elder& elder = elders_[index];
  // A server that has begun to use them bounds them itself.
  if (!is_being_written(join_path(elder.folder, kLock))) TRY(remove_file(join_path(elder.folder, elder.name)));
  bytes_ -= elder.bytes;
  return {};
}

Status DiskSegments::read(const DiskHeader& header, std::span<std::byte> out) {
  if (!read_ || read_number_ != header.segment) {
    read_.reset();
    TRY_ASSIGN(read_, PosixFileSystem().open(path_of(header.segment)));
    read_number_ = header.segment;
  }
  if (format_.read(*read_, header, out)) return {};
  return corrupt("a record of '" + read_->path() + "' is damaged or cannot be read");
}

}  // namespace loralei
