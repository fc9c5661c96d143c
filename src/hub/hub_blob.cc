// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_blob.h"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <optional>

#include "base/printable.h"
#include "hub/hub_digest.h"
#include "hub/part_map.h"
#include "sys/file.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

constexpr int64_t kSyncBytes = int64_t{8} << 20;  // what a power failure may cost of each piece

std::string part_path(const std::string& folder, const HubBlob& blob) {
  return join_path(folder, blob.digest + ".loralei-part");
}
std::string map_path(const std::string& folder, const HubBlob& blob) {
  return join_path(folder, blob.digest + ".loralei-map");
}

bool read_number(std::string_view& text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// Whether "bytes 5-9/20" begins at `from` and is of a file of so many bytes.
bool range_fits(std::string_view text, int64_t from, int64_t bytes) {
  int64_t first = 0, last = 0, all = 0;
  if (!text.starts_with("bytes ")) return false;
  text.remove_prefix(6);
  if (!read_number(text, first) || !text.starts_with('-')) return false;
  text.remove_prefix(1);
  if (!read_number(text, last) || !text.starts_with('/')) return false;
  text.remove_prefix(1);
  return first == from && (text == "*" || (read_number(text, all) && text.empty() && all == bytes));
}

class Fetcher {
 public:
  Fetcher(const HubBlobFetch& fetch, WriteFile data, PartMap map)
      : fetch_(fetch), blob_(fetch.blob), data_(std::move(data)), map_(std::move(map)) {}

  Status run() {
    fetch_.arrived += map_.done_bytes() - fetch_.counted;
    Status done = work();
    if (!done.ok() && no_ranges_.exchange(false)) {
      fetch_.arrived -= map_.done_bytes();
      TRY(map_.begin_anew(std::max<int64_t>(1, blob_.bytes)));
      done = work();
    }
    TRY(done);
    return data_.sync();
  }

 private:
  // One request for the rest of a piece.
  struct Try {
    size_t piece = 0;
    int64_t at = 0, end = 0;  // of the file
    int64_t synced = 0;
    bool begun = false;
    std::optional<Error> failure;  // that no other try would mend
  };

  Status work() {
    return fetch_.workers.run(
        map_.pieces(), [this](HubConnection& connection, size_t piece) { return fetch_piece(connection, piece); },
        fetch_.tick);
  }

  Error refused(const std::string& why) const { return corrupt(printable(blob_.path) + ": " + why); }

  Status fetch_piece(HubConnection& connection, size_t piece) {
    HubPatience patience(fetch_.network.settings());
    while (!map_.is_whole(piece)) {
      if (fetch_.workers.stop()) return hub_stopped();
      const int64_t before = map_.done_of(piece);
      Try one;
      one.piece = piece;
      one.at = one.synced = map_.offset_of(piece) + before;
      one.end = map_.offset_of(piece) + map_.bytes_of(piece);
      HttpHeaders headers;
      if (one.at > 0 || one.end < blob_.bytes)
        headers.emplace_back("Range", "bytes=" + std::to_string(one.at) + "-" + std::to_string(one.end - 1));
      auto answer = connection.ask("GET", fetch_.url, headers, [&](const HubAnswer& head, std::string_view bytes) {
        return take(one, head, bytes);
      });
      if (one.begun) TRY(keep(one));
      if (one.failure) return *one.failure;
      if (no_ranges_ || fetch_.workers.stop()) return hub_stopped();
      if (map_.is_whole(piece)) break;
      const Error error = error_of(answer);
      if (map_.done_of(piece) > before) patience.got_further();
      const int64_t wait_ms = answer.ok() ? retry_after_ms(*answer) : 0;
      if (!patience.again(error, wait_ms, fetch_.workers.stop()))
        return Error(error).with_context("fetching " + printable(blob_.path));
    }
    return {};
  }

  Error error_of(const Result<HubAnswer>& answer) const {
    if (!answer.ok()) return answer.error();
    if (answer->status < 200 || answer->status > 299)
      return hub_refusal(fetch_.network.settings(), *answer, fetch_.repository, printable(blob_.path));
    return io_error(answer->url.origin() + " ends it before it is complete");
  }

  bool take(Try& one, const HubAnswer& head, std::string_view bytes) {
    if (!one.begun) {
      one.failure = begin(one, head);
      one.begun = !one.failure && !no_ranges_;
      if (!one.begun) return false;
    }
    if (static_cast<int64_t>(bytes.size()) > one.end - one.at) {
      one.failure = refused("the hub sends more than the " + std::to_string(blob_.bytes) + " bytes that it has");
      return false;
    }
    if (const Status written = data_.write(one.at, std::as_bytes(std::span(bytes))); !written.ok()) {
      one.failure = written.error();
      return false;
    }
    one.at += static_cast<int64_t>(bytes.size());
    fetch_.arrived += static_cast<int64_t>(bytes.size());
    if (one.at - one.synced >= kSyncBytes) {
      if (const Status kept = keep(one); !kept.ok()) {
        one.failure = kept.error();
        return false;
      }
    }
    return !fetch_.workers.stop();
  }

  // What the head of a good answer says about the bytes behind it.
  std::optional<Error> begin(Try& one, const HubAnswer& head) {
    const std::string_view coding = head.header("content-encoding");
    if (!coding.empty() && !equals_ignoring_case(coding, "identity"))
      return refused("the hub sends it compressed, which was not asked for");
    if (head.status == 206) {
      if (range_fits(head.header("content-range"), one.at, blob_.bytes)) return std::nullopt;
      return refused("the hub sends another part than the one that was asked for, or of a file of another size");
    }
    if (head.status != 200) return refused("the hub answers " + std::to_string(head.status) + " in the place of bytes");
    if (map_.pieces() > 1) {
      no_ranges_ = true;
      return std::nullopt;
    }
    fetch_.arrived -= one.at;  // the whole of it comes again
    one.at = one.synced = 0;
    return std::nullopt;
  }

  Status keep(Try& one) {
    const std::lock_guard lock(mutex_);
    TRY(data_.sync());
    one.synced = one.at;
    return map_.set(one.piece, one.at - map_.offset_of(one.piece));
  }

  const HubBlobFetch& fetch_;
  const HubBlob& blob_;
  WriteFile data_;
  PartMap map_;
  std::mutex mutex_;
  std::atomic<bool> no_ranges_{false};
};

Status check_digest(const HubBlobFetch& fetch, const std::string& path) {
  TRY_ASSIGN(const std::unique_ptr<File> file, PosixFileSystem().open(path));
  const auto tick = [&](int64_t) {
    if (fetch.tick) fetch.tick();
  };
  TRY_ASSIGN(const std::string digest, hub_digest(*file, fetch.blob.digest, tick));
  if (file->size_bytes() == fetch.blob.bytes && digest == fetch.blob.digest) return {};
  return corrupt(printable(fetch.blob.path) + ": what came is not what the hub has announced (its checksum is " +
                 digest + ", not " + fetch.blob.digest + "); nothing of it is kept, try again");
}

}  // namespace

Status fetch_hub_blob(const HubBlobFetch& fetch) {
  const std::string path = part_path(fetch.folder, fetch.blob), map = map_path(fetch.folder, fetch.blob);
  const int64_t piece_bytes = fetch.network.settings().piece_bytes;
  Status fetched;
  {
    TRY_ASSIGN(WriteFile data, WriteFile::open(path));
    TRY_ASSIGN(PartMap parts, PartMap::open(map, fetch.blob.bytes, piece_bytes));
    TRY_ASSIGN(const int64_t there, data.size_bytes());
    if (there != fetch.blob.bytes) {
      TRY(parts.begin_anew(piece_bytes));
      TRY(data.resize(0));
      TRY(data.resize(fetch.blob.bytes));
    }
    fetched = Fetcher(fetch, std::move(data), std::move(parts)).run();
  }
  if (fetched.ok()) fetched = check_digest(fetch, path);
  if (!fetched.ok()) {
    if (fetched.error().code != ErrorCode::kCorrupt) return fetched;
    TRY(remove_file(path));
    TRY(remove_file(map));
    return fetched;
  }
  TRY_ASSIGN(WriteFile whole, WriteFile::open(path));
  TRY(whole.commit(join_path(fetch.folder, fetch.blob.digest)));
  return remove_file(map);
}

int64_t hub_blob_arrived(const std::string& folder, const HubBlob& blob, int64_t piece_bytes) {
  const auto stamp = PosixFileSystem().stamp(part_path(folder, blob));
  if (!stamp.ok() || stamp->size_bytes != blob.bytes) return 0;
  return PartMap::look(map_path(folder, blob), blob.bytes, piece_bytes);
}

}  // namespace loralei
