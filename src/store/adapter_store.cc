// SPDX-License-Identifier: Apache-2.0
#include "store/adapter_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/digest.h"
#include "sys/os_error.h"
#include "sys/posix_file.h"

namespace loralei {
namespace {

constexpr unsigned kFileMode = 0640;
constexpr size_t kReadBytes = 256 * 1024;

Status sync_folder(const std::string& folder) {
  const Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open()) return os_error("cannot open", folder, errno);
  if (::fsync(handle.get()) != 0 && errno != EINVAL) return os_error("cannot sync", folder, errno);
  return {};
}

Status remove_all(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return os_error("cannot remove", path, error.value());
  return {};
}

Status link_file(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) == 0 || errno == EEXIST) return {};
  if (errno == EPERM || errno == ENOTSUP || errno == EMLINK) {
    return unsupported("The adapter store needs a file system with hard links, and that of '" + parent_path(to) +
                       "' has none; put --adapter-store elsewhere.");
  }
  return os_error("cannot link", to, errno);
}

std::string bytes_text(int64_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

// --- drafts

AdapterDraft::~AdapterDraft() {
  if (open_) close_file(true);
  store_.let_go(files_);
}

Status AdapterDraft::open_file(Open& file, bool resumes) {
  TRY_ASSIGN(file.out, WriteFile::open(file.path, kFileMode));
  TRY_ASSIGN(const int64_t there, file.out->size_bytes());
  if (!resumes || there > file.file.bytes) return file.out->resize(0);
  // What is here of it is part of its digest.
  PosixFileSystem files;
  TRY_ASSIGN(const auto part, files.open(file.path));
  TRY(store_.take_room(there));
  file.granted_bytes = there;
  std::vector<std::byte> buffer(kReadBytes);
  for (int64_t at = 0; at < there;) {
    const auto bytes = std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(std::ssize(buffer), there - at)));
    TRY(part->read_exact(at, bytes));
    file.sha.update(bytes);
    at += std::ssize(bytes);
  }
  file.bytes = there;
  return {};
}

Status AdapterDraft::begin(const std::string& name) {
  CHECK(!open_);
  TRY(check_adapter_file(name));
  for (const StoredFile& file : files_) {
    if (file.name == name) return invalid_argument("The file " + name + " stands twice in this adapter; send it once.");
  }
  open_ = std::make_unique<Open>();
  open_->file.name = name;
  open_->path = store_.new_path();
  const Status opened = open_file(*open_, false);
  if (!opened.ok()) close_file(false);
  return opened;
}

Result<int64_t> AdapterDraft::begin_known(const StoredFile& file) {
  CHECK(!open_);
  TRY(check_adapter_file(file.name));
  CHECK(is_sha256_hex(file.sha256) && file.bytes >= 0);
  open_ = std::make_unique<Open>();
  open_->file = file;
  open_->known = true;
  if (store_.keep_blob(file.sha256)) {
    open_->whole = true;
    open_->bytes = file.bytes;
    return file.bytes;
  }
  open_->path = store_.folder_ + "/incoming/" + file.sha256 + ".part";
  open_->resumable = true;
  Status opened = open_file(*open_, true);
  if (!opened.ok() && opened.error().code == ErrorCode::kUnavailable) {
    // Another draft is at it, as of one with the same config: this one begins anew.
    open_->path = store_.new_path();
    open_->resumable = false;
    opened = open_file(*open_, false);
  }
  if (!opened.ok()) {
    close_file(true);
    return opened.error();
  }
  return open_->bytes;
}

Status AdapterDraft::write(std::span<const std::byte> bytes) {
  CHECK(open_);
  if (open_->whole) return invalid_argument("More bytes came of " + open_->file.name + " than it has.");
  const auto count = std::ssize(bytes);
  if (open_->known && open_->bytes + count > open_->file.bytes)
    return corrupt("More bytes came of " + open_->file.name + " than it has.");
  TRY(store_.take_room(count));
  open_->granted_bytes += count;
  TRY(open_->out->write(open_->bytes, bytes));
  open_->sha.update(bytes);
  open_->bytes += count;
  return {};
}

Status AdapterDraft::end() {
  CHECK(open_);
  if (open_->whole) {
    files_.push_back(std::move(open_->file));
    open_.reset();
    return {};
  }
  const std::string found = digest_hex(open_->sha.finish());
  if (open_->known && (open_->bytes != open_->file.bytes || found != open_->file.sha256)) {
    const Error error =
        corrupt("What came as " + open_->file.name + " has " + std::to_string(open_->bytes) +
                " bytes and the SHA-256 " + found.substr(0, 12) + ", and not " + std::to_string(open_->file.bytes) +
                " bytes and " + open_->file.sha256.substr(0, 12) + ": it is thrown away.");
    close_file(false);
    return error;
  }
  open_->file.sha256 = found;
  open_->file.bytes = open_->bytes;
  if (const Status taken = store_.take_in(*open_->out, open_->file); !taken.ok()) {
    close_file(open_->known);
    return taken;
  }
  files_.push_back(std::move(open_->file));
  open_.reset();
  return {};
}

void AdapterDraft::close_file(bool keep_part) {
  if (open_->whole) store_.let_go({open_->file});
  open_->out.reset();
  if (!open_->path.empty() && !(keep_part && open_->resumable)) (void)remove_file(open_->path);
  store_.give_room(open_->granted_bytes);
  open_.reset();
}

int64_t AdapterDraft::bytes() const {
  int64_t sum = open_ ? open_->bytes : 0;
  for (const StoredFile& file : files_) sum += file.bytes;
  return sum;
}

Result<AdapterManifest> AdapterDraft::commit() {
  CHECK(!open_);
  TRY_ASSIGN(AdapterManifest manifest, AdapterManifest::make(files_));
  // The manifest is a blob like the others, so that peers can ask for it.
  const std::string text = manifest.text();
  StoredFile own{.name = "manifest", .bytes = std::ssize(text), .sha256 = sha256_hex(text)};
  if (!store_.keep_blob(own.sha256)) {
    TRY(store_.take_room(own.bytes));
    const std::string path = store_.new_path();
    const auto written = [&]() -> Status {
      TRY_ASSIGN(WriteFile out, WriteFile::open(path, kFileMode));
      TRY(out.write(0, std::as_bytes(std::span(text))));
      return store_.take_in(out, own);
    }();
    if (!written.ok()) {
      (void)remove_file(path);
      store_.give_room(own.bytes);
      return written.error();
    }
  }
  files_.push_back(own);
  TRY(store_.put(manifest));
  return manifest;
}

// --- the store

AdapterStore::AdapterStore(std::string folder, int64_t max_bytes, WriteFile lock)
    : folder_(std::move(folder)), max_bytes_(max_bytes), lock_(std::move(lock)) {}

AdapterStore::~AdapterStore() = default;

Result<std::unique_ptr<AdapterStore>> AdapterStore::open(const Options& options) {
  TRY(make_folders(options.folder));
  const PosixFileSystem files;
  TRY_ASSIGN(const std::string folder, files.real_path(options.folder));
  for (const char* part : {"/blobs", "/adapters", "/incoming"}) TRY(make_folders(folder + part));
  Result<WriteFile> lock = WriteFile::open(folder + "/lock", kFileMode);
  if (!lock.ok()) {
    if (lock.error().code != ErrorCode::kUnavailable) return lock.error();
    return Error{ErrorCode::kUnavailable,
                 "Another server has the adapter store '" + folder +
                     "'; give each its own --adapter-store, and they fetch from each other (--adapter-peer)."};
  }
  std::unique_ptr<AdapterStore> store(new AdapterStore(folder, options.max_bytes, std::move(*lock)));
  TRY(store->read_folder());
  return store;
}

// Adapters first: a blob that none of them has was on its way when a process ended.
Status AdapterStore::read_folder() {
  TRY(clear_incoming());
  const PosixFileSystem files;
  TRY_ASSIGN(const std::vector<DirEntry> adapters, files.list(folder_ + "/adapters"));
  for (const DirEntry& entry : adapters) {
    if (!is_sha256_hex(entry.name)) continue;
    const auto text = files.read_all(blob_path(entry.name), kManifestBytesMost);
    const auto manifest = text.ok() ? AdapterManifest::parse(*text) : Result<AdapterManifest>(text.error());
    if (!manifest.ok() || manifest->digest() != entry.name) {
      TRY(remove_all(folder_of(entry.name)));
      continue;
    }
    held_[entry.name] = {*manifest, 0};
    ++blobs_[entry.name];
    for (const StoredFile& file : manifest->files) ++blobs_[file.sha256];
  }
  TRY_ASSIGN(const std::vector<DirEntry> blobs, files.list(folder_ + "/blobs"));
  for (const DirEntry& entry : blobs) {
    if (!blobs_.contains(entry.name)) {
      TRY(remove_file(blob_path(entry.name)));
      continue;
    }
    TRY_ASSIGN(const FileStamp stamp, files.stamp(blob_path(entry.name)));
    bytes_ += stamp.size_bytes;
  }
  return {};
}

Status AdapterStore::clear_incoming() const {
  const PosixFileSystem files;
  TRY_ASSIGN(const std::vector<DirEntry> incoming, files.list(folder_ + "/incoming"));
  for (const DirEntry& entry : incoming) {
    const bool part = entry.name.ends_with(".part") && is_sha256_hex(entry.name.substr(0, entry.name.size() - 5));
    if (!part) TRY(remove_all(folder_ + "/incoming/" + entry.name));
  }
  return {};
}

std::optional<AdapterManifest> AdapterStore::find(const std::string& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(digest);
  if (found == held_.end()) return std::nullopt;
  found->second.last_use = ++uses_;
  return found->second.manifest;
}

std::vector<AdapterManifest> AdapterStore::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterManifest> all;
  all.reserve(held_.size());
  for (const auto& [digest, held] : held_) all.push_back(held.manifest);
  return all;
}

std::string AdapterStore::folder_of(const std::string& digest) const { return folder_ + "/adapters/" + digest; }

std::string AdapterStore::path_of(const AdapterManifest& manifest) const {
  const std::string folder = folder_of(manifest.digest()), weights = manifest.weights_name();
  return weights.empty() ? folder : join_path(folder, weights);
}

std::string AdapterStore::digest_of(const std::string& path) const {
  const std::string adapters = folder_ + "/adapters/";
  if (!path.starts_with(adapters)) return "";
  std::string digest = path.substr(adapters.size(), 64);
  const bool ends = path.size() == adapters.size() + 64 || path[adapters.size() + 64] == '/';
  return is_sha256_hex(digest) && ends ? digest : "";
}

bool AdapterStore::has_blob(const std::string& sha256) const {
  const std::lock_guard lock(mutex_);
  return blobs_.contains(sha256);
}

Result<std::unique_ptr<File>> AdapterStore::blob(const std::string& sha256) const {
  if (!is_sha256_hex(sha256) || !has_blob(sha256))
    return not_found("The adapter store has no blob '" + sha256.substr(0, 64) + "'.");
  return PosixFileSystem().open(blob_path(sha256));
}

std::unique_ptr<AdapterDraft> AdapterStore::draft() { return std::unique_ptr<AdapterDraft>(new AdapterDraft(*this)); }

std::string AdapterStore::new_path() {
  const std::lock_guard lock(mutex_);
  return folder_ + "/incoming/" + std::to_string(++paths_);
}

Status AdapterStore::take_room(int64_t bytes) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (max_bytes_ == 0 || bytes_ + bytes <= max_bytes_) {
        bytes_ += bytes;
        return {};
      }
    }
    if (!drop_one()) break;
  }
  return Error{ErrorCode::kOverloaded,
               "The adapter store may take " + bytes_text(max_bytes_) +
                   ", and all that it has is in use or on its way: unload adapters, or raise --adapter-store-max."};
}

void AdapterStore::give_room(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ -= bytes;
}

bool AdapterStore::drop_one() {
  std::vector<std::pair<uint64_t, std::string>> by_use;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [digest, held] : held_) by_use.emplace_back(held.last_use, digest);
  }
  std::sort(by_use.begin(), by_use.end());
  for (const auto& [use, digest] : by_use) {
    if (in_use_ && in_use_(digest)) continue;
    if (remove(digest).ok()) return true;
  }
  return false;
}

bool AdapterStore::keep_blob(const std::string& sha256) {
  const std::lock_guard lock(mutex_);
  const auto found = blobs_.find(sha256);
  if (found == blobs_.end()) return false;
  ++found->second;
  return true;
}

// The same file may have come twice at once: the second one goes. What takes long is done
// before the lock.
Status AdapterStore::take_in(WriteFile& file, const StoredFile& as) {
  TRY(file.sync());
  const std::lock_guard lock(mutex_);
  if (const auto found = blobs_.find(as.sha256); found != blobs_.end()) {
    ++found->second;
    bytes_ -= as.bytes;
    return remove_file(file.path());
  }
  TRY(file.commit(blob_path(as.sha256)));
  blobs_[as.sha256] = 1;
  return {};
}

void AdapterStore::let_go(const std::vector<StoredFile>& files) {
  const std::lock_guard lock(mutex_);
  for (const StoredFile& file : files) drop_blob(file.sha256);
}

void AdapterStore::drop_blob(const std::string& sha256) {
  const auto found = blobs_.find(sha256);
  if (found == blobs_.end() || --found->second > 0) return;
  blobs_.erase(found);
  const std::string path = blob_path(sha256);
  if (const auto stamp = PosixFileSystem().stamp(path); stamp.ok()) bytes_ -= stamp->size_bytes;
  (void)remove_file(path);
}

Status AdapterStore::link_files(const AdapterManifest& manifest, const std::string& folder) const {
  TRY(make_folders(folder));
  for (const StoredFile& file : manifest.files) TRY(link_file(blob_path(file.sha256), join_path(folder, file.name)));
  return sync_folder(folder);
}

Status AdapterStore::put(const AdapterManifest& manifest) {
  const std::string digest = manifest.digest(), made = new_path();
  if (const Status linked = link_files(manifest, made); !linked.ok()) {
    (void)remove_all(made);
    return linked;
  }
  const std::lock_guard lock(mutex_);
  if (held_.contains(digest)) return remove_all(made);
  if (::rename(made.c_str(), folder_of(digest).c_str()) != 0) {
    const int reason = errno;
    (void)remove_all(made);
    return os_error("cannot rename", made, reason);
  }
  TRY(sync_folder(folder_ + "/adapters"));
  held_[digest] = {manifest, ++uses_};
  ++blobs_[digest];
  for (const StoredFile& file : manifest.files) ++blobs_[file.sha256];
  return {};
}

Status AdapterStore::remove(const std::string& digest) {
  const std::string gone = new_path();
  {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(digest);
    if (found == held_.end()) return {};
    // Out of the way at once, and then file by file.
    if (::rename(folder_of(digest).c_str(), gone.c_str()) != 0 && errno != ENOENT)
      return os_error("cannot rename", folder_of(digest), errno);
    const AdapterManifest manifest = std::move(found->second.manifest);
    held_.erase(found);
    drop_blob(digest);
    for (const StoredFile& file : manifest.files) drop_blob(file.sha256);
  }
  return remove_all(gone);
}

Status AdapterStore::remove_unused(const std::string& digest) {
  return in_use_ && in_use_(digest) ? Status() : remove(digest);
}

AdapterStore::Stats AdapterStore::stats() const {
  const std::lock_guard lock(mutex_);
  return {held_.size(), bytes_};
}

}  // namespace loralei
