// SPDX-License-Identifier: Apache-2.0
#include "sys/block_reader.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "sys/os_error.h"
#include "sys/threads.h"

namespace loralei {
namespace {

// The open file, and what both ways of reading share.
class OpenFile {
 public:
  OpenFile(int handle, std::string path, FileStamp stamp) : handle_(handle), path_(std::move(path)), stamp_(stamp) {}
  ~OpenFile() {
    if (handle_ >= 0) ::close(handle_);
  }
  OpenFile(OpenFile&& other) noexcept
      : handle_(std::exchange(other.handle_, -1)), path_(std::move(other.path_)), stamp_(other.stamp_) {}
  OpenFile(const OpenFile&) = delete;

  int handle() const { return handle_; }
  const std::string& path() const { return path_; }
  FileStamp stamp() const { return stamp_; }

 private:
  int handle_;
  std::string path_;
  FileStamp stamp_;
};

void check_block(int64_t offset_bytes, std::span<std::byte> dest) {
  CHECK(offset_bytes >= 0 && offset_bytes % kDirectAlign == 0);
  CHECK(!dest.empty() && static_cast<int64_t>(dest.size()) % kDirectAlign == 0);
  CHECK(reinterpret_cast<uintptr_t>(dest.data()) % static_cast<uintptr_t>(kDirectAlign) == 0);
}

struct Block {
  uint64_t tag = 0;
  int64_t offset = 0;
  std::span<std::byte> dest;
  size_t done = 0;
};

// What is left of the block, waiting for it.
Status read_now(const OpenFile& file, Block& block, size_t largest) {
  while (block.done < block.dest.size()) {
    const ssize_t got =
        ::pread(file.handle(), block.dest.data() + block.done, std::min(largest, block.dest.size() - block.done),
                block.offset + static_cast<int64_t>(block.done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("cannot read", file.path(), errno);
    if (got == 0) return end_of_file(file.path(), block.offset, block.dest.size(), block.done);
    block.done += static_cast<size_t>(got);
  }
  return {};
}

// --- threads ---
class PoolBlockReader final : public BlockReader {
 public:
  PoolBlockReader(OpenFile file, const BlockReaderOptions& options, std::string how)
      : file_(std::move(file)),
        depth_(options.depth),
        largest_(static_cast<size_t>(options.largest_read_bytes)),
        how_(std::move(how)) {}
  // As many threads as the depth, or as the system gives; one at least.
  Status start() {
    while (std::ssize(threads_) < depth_) {
      auto thread = start_thread([this] { work(); });
      if (!thread.ok() && !threads_.empty()) break;
      if (!thread.ok()) return std::move(thread).error();
      threads_.push_back(std::move(thread).value());
    }
    return {};
  }
  ~PoolBlockReader() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      under_way_ -= waiting_.size();
      waiting_.clear();
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void submit(uint64_t tag, int64_t offset_bytes, std::span<std::byte> dest) override {
    check_block(offset_bytes, dest);
    {
      const std::lock_guard lock(mutex_);
      CHECK(under_way_ < static_cast<size_t>(depth_));
      ++under_way_;
      waiting_.push_back({tag, offset_bytes, dest});
    }
    wake_.notify_one();
  }
  void wait(std::vector<BlockDone>& done) override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return !finished_.empty() || under_way_ == 0; });
    for (BlockDone& block : finished_) done.push_back(std::move(block));
    under_way_ -= finished_.size();
    finished_.clear();
  }
  int depth() const override { return depth_; }
  FileStamp stamp() const override { return file_.stamp(); }
  const std::string& how() const override { return how_; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Block block = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      Status status = read_now(file_, block, largest_);
      lock.lock();
      finished_.push_back({block.tag, std::move(status)});
      done_.notify_one();
    }
  }

  OpenFile file_;
  const int depth_;
  const size_t largest_;
  const std::string how_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Block> waiting_;
  std::vector<BlockDone> finished_;
  size_t under_way_ = 0;  // submitted, not yet handed out by wait()
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// --- io_uring ---
// The rings shared with the kernel, set up with the system calls themselves: three calls
// do not warrant a library in the core.
class Ring {
 public:
  static Result<std::unique_ptr<Ring>> make(unsigned entries) {
    auto ring = std::unique_ptr<Ring>(new Ring());
    io_uring_params params{};
    ring->handle_ = static_cast<int>(::syscall(__NR_io_uring_setup, entries, &params));
    if (ring->handle_ < 0) return os_error("io_uring_setup", "io_uring", errno);
    if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) return unsupported("this kernel's io_uring is too old");
    ring->map_bytes_ = std::max(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                                params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    ring->map_ = static_cast<std::byte*>(::mmap(nullptr, ring->map_bytes_, PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_POPULATE, ring->handle_, IORING_OFF_SQ_RING));
    if (ring->map_ == MAP_FAILED) return os_error("mmap", "io_uring", errno);
    ring->sqe_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    void* const sqes = ::mmap(nullptr, ring->sqe_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                              ring->handle_, IORING_OFF_SQES);
    if (sqes == MAP_FAILED) return os_error("mmap", "io_uring", errno);
    ring->sqes_ = static_cast<io_uring_sqe*>(sqes);
    const auto at = [&](unsigned offset) { return reinterpret_cast<unsigned*>(ring->map_ + offset); };
    ring->sq_tail_ = at(params.sq_off.tail);
    ring->sq_mask_ = *at(params.sq_off.ring_mask);
    ring->sq_array_ = at(params.sq_off.array);
    ring->cq_head_ = at(params.cq_off.head);
    ring->cq_tail_ = at(params.cq_off.tail);
    ring->cq_mask_ = *at(params.cq_off.ring_mask);
    ring->cqes_ = reinterpret_cast<io_uring_cqe*>(ring->map_ + params.cq_off.cqes);
    return ring;
  }
  ~Ring() {
    if (sqes_ != nullptr) ::munmap(sqes_, sqe_bytes_);
    if (map_ != nullptr && map_ != MAP_FAILED) ::munmap(map_, map_bytes_);
    if (handle_ >= 0) ::close(handle_);
  }
  Ring(const Ring&) = delete;

  // True when the kernel keeps the memory's pages at hand: reads into it need
  // not look them up.
  bool register_memory(std::span<std::byte> memory) {
    iovec whole{memory.data(), memory.size()};
    return ::syscall(__NR_io_uring_register, handle_, IORING_REGISTER_BUFFERS, &whole, 1) == 0;
  }

  // Whether reads of this file go through: rings are set up on systems that then refuse
  // to read with them.
  Status try_read(const OpenFile& file, std::span<std::byte> dest, bool registered) {
    int error = submit_read(file.handle(), 0, 0, dest, registered);
    if (error == 0) error = std::max(0, -next().res);
    return error == 0 ? Status() : os_error("cannot read", file.path(), error);
  }

  // 0, or a positive errno: then the kernel took nothing, and the ring is as it was.
  int submit_read(int file, uint64_t user_data, int64_t offset, std::span<std::byte> dest, bool registered) {
    const unsigned tail = *sq_tail_;
    io_uring_sqe& entry = sqes_[tail & sq_mask_];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = registered ? IORING_OP_READ_FIXED : IORING_OP_READ;
    entry.fd = file;
    entry.off = static_cast<uint64_t>(offset);
    entry.addr = reinterpret_cast<uint64_t>(dest.data());
    entry.len = static_cast<uint32_t>(dest.size());
    entry.user_data = user_data;
    sq_array_[tail & sq_mask_] = tail & sq_mask_;
    std::atomic_ref<unsigned>(*sq_tail_).store(tail + 1, std::memory_order_release);
    const int error = enter(1, 0);
    if (error != 0) std::atomic_ref<unsigned>(*sq_tail_).store(tail, std::memory_order_release);
    return error;
  }
  // Waits for one completion.
  io_uring_cqe next() {
    const unsigned head = *cq_head_;
    while (std::atomic_ref<unsigned>(*cq_tail_).load(std::memory_order_acquire) == head) {
      const int error = enter(0, 1);
      CHECK(error == 0 || error == EINTR || error == EAGAIN || error == EBUSY);
    }
    const io_uring_cqe completion = cqes_[head & cq_mask_];
    std::atomic_ref<unsigned>(*cq_head_).store(head + 1, std::memory_order_release);
    return completion;
  }
  bool has_next() const { return std::atomic_ref<unsigned>(*cq_tail_).load(std::memory_order_acquire) != *cq_head_; }

 private:
  Ring() = default;
  int enter(unsigned submitted, unsigned wanted) const {
    for (;;) {
      const long result = ::syscall(__NR_io_uring_enter, handle_, submitted, wanted,
                                    wanted > 0 ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
      if (result >= static_cast<long>(submitted)) return 0;
      if (result >= 0) return EAGAIN;
      if (errno != EINTR) return errno;
    }
  }

  int handle_ = -1;
  std::byte* map_ = nullptr;
  size_t map_bytes_ = 0, sqe_bytes_ = 0;
  io_uring_sqe* sqes_ = nullptr;
  unsigned *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  unsigned sq_mask_ = 0, cq_mask_ = 0;
  io_uring_cqe* cqes_ = nullptr;
};

class RingBlockReader final : public BlockReader {
 public:
  RingBlockReader(OpenFile file, std::unique_ptr<Ring> ring, const BlockReaderOptions& options, bool registered,
                  std::string how)
      : file_(std::move(file)),
        ring_(std::move(ring)),
        largest_(static_cast<size_t>(options.largest_read_bytes)),
        registered_(registered),
        how_(std::move(how)),
        blocks_(static_cast<size_t>(options.depth)) {
    for (size_t i = 0; i < blocks_.size(); ++i) free_.push_back(i);
  }
  ~RingBlockReader() override {
    std::vector<BlockDone> done;
    while (free_.size() < blocks_.size()) wait(done);
  }
  void submit(uint64_t tag, int64_t offset_bytes, std::span<std::byte> dest) override {
    check_block(offset_bytes, dest);
    CHECK(!free_.empty());
    const size_t slot = free_.back();
    free_.pop_back();
    blocks_[slot] = {tag, offset_bytes, dest};
    start(slot);
  }
  void wait(std::vector<BlockDone>& done) override {
    const size_t before = done.size();
    for (BlockDone& block : refused_) done.push_back(std::move(block));
    refused_.clear();
    while ((done.size() == before && free_.size() < blocks_.size()) || ring_->has_next()) {
      const io_uring_cqe completion = ring_->next();
      const auto slot = static_cast<size_t>(completion.user_data);
      Block& block = blocks_[slot];
      if (completion.res == -EINTR || completion.res == -EAGAIN) {
        start(slot);
      } else if (completion.res < 0) {
        finish(slot, os_error("cannot read", file_.path(), -completion.res), done);
      } else if (completion.res == 0) {
        finish(slot, end_of_file(file_.path(), block.offset, block.dest.size(), block.done), done);
      } else {
        block.done += static_cast<size_t>(completion.res);
        // The rest of a short read must still be aligned; what is lost by reading a page
        // twice is nothing.
        block.done -= block.done == block.dest.size() ? 0 : block.done % static_cast<size_t>(kDirectAlign);
        if (block.done == block.dest.size()) {
          finish(slot, {}, done);
        } else if (completion.res < kDirectAlign) {
          finish(slot, end_of_file(file_.path(), block.offset, block.dest.size(), block.done), done);
        } else {
          start(slot);
        }
      }
      if (done.size() == before) {
        for (BlockDone& refused : refused_) done.push_back(std::move(refused));
        refused_.clear();
      }
    }
  }
  int depth() const override { return static_cast<int>(blocks_.size()); }
  FileStamp stamp() const override { return file_.stamp(); }
  const std::string& how() const override { return how_; }

 private:
  void start(size_t slot) {
    const Block& block = blocks_[slot];
    const std::span<std::byte> rest = block.dest.subspan(block.done);
    const int error = ring_->submit_read(file_.handle(), slot, block.offset + static_cast<int64_t>(block.done),
                                         rest.first(std::min(rest.size(), largest_)), registered_);
    // Mostly for want of the kernel's own memory: slower, but the read is done.
    if (error != 0) finish(slot, read_now(file_, blocks_[slot], largest_), refused_);
  }
  void finish(size_t slot, Status status, std::vector<BlockDone>& done) {
    done.push_back({blocks_[slot].tag, std::move(status)});
    free_.push_back(slot);
  }

  OpenFile file_;
  std::unique_ptr<Ring> ring_;
  const size_t largest_;
  const bool registered_;
  const std::string how_;
  std::vector<Block> blocks_;
  std::vector<size_t> free_;
  std::vector<BlockDone> refused_;  // by the ring, and read without it; wait() hands them out
};

}  // namespace

Result<std::unique_ptr<BlockReader>> open_block_reader(const std::string& path, const BlockReaderOptions& options) {
  CHECK(options.depth > 0 && options.depth <= 256);
  CHECK(options.largest_read_bytes > 0 && options.largest_read_bytes % kDirectAlign == 0);
  std::string place = "past the page cache";
  int handle = -1;
  if (options.allow_direct) handle = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT | O_NONBLOCK);
  if (handle < 0) {
    const int refused = errno;
    handle = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (handle < 0) return os_error("cannot open", path, errno);
    place = options.allow_direct
                ? "through the page cache (the file system refuses direct reads: " + errno_text(refused) + ")"
                : "through the page cache";
  }
  struct stat info {};
  if (::fstat(handle, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(handle);
    return invalid_argument("'" + path + "' is not a regular file.");
  }
  OpenFile file(handle, path, stamp_of(info));
  std::string refused;
  if (options.allow_ring) {
    bool registered = false;
    const auto usable_ring = [&]() -> Result<std::unique_ptr<Ring>> {
      TRY_ASSIGN(std::unique_ptr<Ring> ring, Ring::make(static_cast<unsigned>(options.depth)));
      registered = !options.memory.empty() && ring->register_memory(options.memory);
      alignas(kDirectAlign) std::byte page[kDirectAlign];
      TRY(ring->try_read(file, registered ? options.memory.first(kDirectAlign) : std::span(page), registered));
      return ring;
    };
    auto ring = usable_ring();
    if (ring.ok()) {
      return std::unique_ptr<BlockReader>(std::make_unique<RingBlockReader>(std::move(file), std::move(ring).value(),
                                                                            options, registered, "io_uring, " + place));
    }
    refused = " (io_uring is refused: " + ring.error().message + ")";
  }
  auto pool = std::make_unique<PoolBlockReader>(std::move(file), options,
                                                std::to_string(options.depth) + " threads" + refused + ", " + place);
  TRY(pool->start());
  return std::unique_ptr<BlockReader>(std::move(pool));
}

}  // namespace loralei
