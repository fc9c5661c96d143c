// SPDX-License-Identifier: Apache-2.0
// Any bytes as a segment of the disk tier: what is found in it lies within it, and what
// is read of that is whole. The first byte says how much of the bytes is mended first, so
// that what lies behind the sums is reached.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "kv/disk_format.h"
#include "sys/memory_file_system.h"

namespace loralei {
namespace {

constexpr uint32_t kSegment = 1;
constexpr size_t kHeader = kDiskHeaderBytes, kFooter = kDiskFooterBytes;

std::span<std::byte> bytes_at(std::string& file, size_t at, size_t count) {
  return std::as_writable_bytes(std::span(file)).subspan(at, count);
}

// The bytes' own numbers, with the sums they should have.
int64_t mend_header(const DiskFormat& format, std::string& file, size_t at) {
  DiskHeader header{.segment = kSegment, .offset = at};
  const auto get = [&](size_t from, auto& value) { std::memcpy(&value, file.data() + at + from, sizeof value); };
  uint8_t form = 0, exact = 0;
  get(4, form);
  get(5, exact);
  get(12, header.payload_bytes);
  if ((exact & 2) != 0) get(16, header.offset);
  get(24, header.record.grid);
  get(32, header.sum);
  get(40, header.anchor_sum);
  get(64, header.record.key);
  get(96, header.record.anchor);
  header.record.form = static_cast<KvDiskForm>(form & 3);
  header.record.exact = (exact & 1) != 0;
  const int64_t end = static_cast<int64_t>(at) + disk_record_bytes(header.payload_bytes);
  if ((exact & 4) != 0 && end <= std::ssize(file))
    header.sum = format.payload_sum(header.record.key, bytes_at(file, at + kHeader, header.payload_bytes));
  format.write_header(header, bytes_at(file, at, kHeader));
  return end;
}

void mend(const DiskFormat& format, uint8_t how, std::string& file) {
  if ((how & 1) != 0 && file.size() >= kHeader) format.write_segment(kSegment, bytes_at(file, 0, kHeader));
  size_t end = file.size();
  if ((how & 2) != 0 && file.size() >= 2 * kHeader + kFooter) {
    const size_t records = how >> 4;
    end -= kFooter + std::min(records, (file.size() - kHeader - kFooter) / kHeader) * kHeader;
    for (size_t at = end; at + kHeader + kFooter <= file.size(); at += kHeader) mend_header(format, file, at);
    format.write_footer(kSegment, static_cast<int64_t>(records), static_cast<int64_t>(end),
                        bytes_at(file, file.size() - kFooter, kFooter));
  }
  if ((how & 4) == 0) return;
  for (int64_t at = kDiskHeaderBytes; at + kDiskHeaderBytes <= static_cast<int64_t>(end);)
    at = mend_header(format, file, static_cast<size_t>(at));
}

}  // namespace
}  // namespace loralei

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  if (size == 0) return 0;
  const DiskFormat format(Digest{});
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  mend(format, data[0], bytes);
  MemoryFileSystem files;
  files.put("/segment", bytes);
  const auto file = files.open("/segment");
  CHECK(file.ok());
  (void)format.look(**file, kSegment);
  (void)is_disk_segment(**file);

  std::vector<DiskHeader> found;
  std::vector<std::byte> buffer((data[0] & 8) != 0 ? 128 : 1024);
  const DiskScan scan =
      format.scan(**file, kSegment, buffer, [&](const DiskHeader& header) { found.push_back(header); });
  CHECK(scan.records <= std::ssize(found) && scan.end <= std::max(std::ssize(bytes), kDiskHeaderBytes));
  for (size_t i = 0; i < found.size(); ++i) {
    const DiskHeader& header = found[i];
    const int64_t record = disk_record_bytes(header.payload_bytes), begin = static_cast<int64_t>(header.offset);
    CHECK(header.segment == kSegment && begin >= kDiskHeaderBytes && begin + record <= std::ssize(bytes));
    std::vector<std::byte> out(static_cast<size_t>(record));
    const bool whole = format.read(**file, header, out);
    // The last ones are those of the scan; without a table each of them is whole.
    CHECK(whole || scan.sealed || static_cast<int64_t>(i) < std::ssize(found) - scan.records);
    CHECK(!whole || std::memcmp(out.data(), bytes.data() + begin, static_cast<size_t>(record)) == 0);
  }
  return 0;
}
