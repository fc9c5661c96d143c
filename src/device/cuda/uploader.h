// SPDX-License-Identifier: Apache-2.0
// Uploader: brings pieces of ordinary host memory to a GPU while it computes: a thread of
// its own, with helpers where there is much, gathers them into pinned memory, in chunks,
// and copies each chunk on a stream of its own (CopyEngine).
//
// An upload may come in pieces (the layers of an adapter) and be told of piece by piece:
// no copy then goes beyond a piece's end, and behind it the stream itself writes how many
// there are, so that another stream can wait for them without anybody on the host.
//
// Why through pinned memory instead of pinning what is uploaded: whoever starts an upload
// does no more than put it in a queue; pinning takes about as long as copying, unpinning
// may wait for the device, and a host cache of many gigabytes would be pinned for the
// sake of what is uploaded now and then. It costs one pass over the bytes at the speed of
// memory, which overlaps with the copy of the chunk before; one core copies some 10 GB/s
// and PCIe takes up to 55, hence the helpers.
//
// Thread: any; on_end's callback is called on the uploader's thread.
// Ownership: owns thread, stream and pinned memory; an upload's `keeps` owns what its
// parts point to and is dropped before its end is reported; the target on the device
// belongs to the caller, who leaves it alone until then.
// Invariants: uploads end in the order of start(), each exactly once; of a piece that is
// told of everything is there, and of a whole upload every piece is before its end; no
// more than staging_bytes are in flight; no allocation on the device after create(); no
// lock is held while anything is copied.
// Failure: start() cannot fail; what the driver refuses ends that upload with a sentence,
// and the next one is tried. The destructor drops what was not begun and waits for
// what is in flight.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/arrivals.h"
#include "base/result.h"
#include "device/cuda/copy_engine.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/stream_gate.h"
#include "device/host/thread_pool.h"

namespace loralei {

struct UploadPart {
  const void* from = nullptr;
  int64_t at = 0;  // in the target
  int64_t bytes = 0;
};

struct Upload {
  uint64_t id = 0;
  uint64_t subject = 0;               // whatever the caller wants to be told again
  std::byte* to = nullptr;            // on the device
  int64_t bytes = 0;                  // of the target, more than 0
  std::vector<UploadPart> parts;      // by `at`, without overlap; what lies between them becomes 0
  std::shared_ptr<const void> keeps;  // null: the caller keeps the parts until the end
  // Of one that is told of piece by piece: where each ends in the target, the last with
  // it. What is there is told to threads by `arrivals` and to streams by `gate`, which
  // the caller keeps until the end.
  std::vector<int64_t> piece_ends;     // ascending; empty: it is told of as a whole
  std::shared_ptr<Arrivals> arrivals;  // [piece_ends]; of one that fails, too
  StreamGate* gate = nullptr;
};

struct UploadEnd {
  uint64_t id = 0, subject = 0;
  Status status;
  int64_t ns = 0;  // from when its first byte was touched
};

class Uploader {
 public:
  struct Options {
    int device = 0;
    int64_t staging_bytes = int64_t{16} << 20;
    int gather_threads = 4;  // the uploader's own among them; fewer where the process has fewer cores
  };
  // With `device` as the thread's.
  static Result<std::unique_ptr<Uploader>> create(const Options& options);
  ~Uploader();

  void start(Upload&& upload);
  // Appends those that have ended; never blocks.
  void poll(std::vector<UploadEnd>& ended);
  // The same, after waiting until there is one. Only while an upload is under way.
  void wait(std::vector<UploadEnd>& ended);
  // `call` is called after every end; empty: nobody from when this returns.
  void on_end(std::function<void(const UploadEnd&)> call);

 private:
  struct Going {
    Upload upload;
    int64_t begin_ns = 0;
  };
  Uploader() = default;
  void run(int device);
  void begin(Upload&& upload);
  Status send(const Upload& upload);
  Status send_chunk(const Upload& upload, int64_t at, int64_t bytes);
  Status settle();
  Status take_done();
  void settle_all(const Error& error);
  void report(Status status);

  std::unique_ptr<ThreadPool> gatherers_;
  CopyEngine copies_;
  PinnedBuffer staging_;
  int64_t chunk_bytes_ = 0;
  // Of the thread alone.
  Status usable_;
  std::deque<Going> going_;  // some of their copies are in flight; oldest first
  size_t next_chunk_ = 0;
  // Of all.
  std::mutex mutex_;
  std::condition_variable started_, ended_changed_;
  std::deque<Upload> queue_;
  std::vector<UploadEnd> ended_;
  std::function<void(const UploadEnd&)> on_end_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loralei
