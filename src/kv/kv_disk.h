// SPDX-License-Identifier: Apache-2.0
// KvDisk: the disk tier of the KV cache (--kv-dir). What a block of 16 tokens of one
// identity holds is kept in a log of segments (disk_format.h, disk_segments.h) and found
// again by its key, also by the next process.
//
//   put()    a copy into the ring  -> written behind the last record, then readable
//   fetch()  keys to places        -> read and checked, then post(KvFetched)
//
// The engine's thread decides everything: where a record goes, when a segment is sealed,
// and that the oldest goes (first in, first out). The disk's thread does the jobs in
// their order (a fetch goes before a seal, disk_mail.h) and reports back; nobody waits
// for a disk but flush().
//
// Thread: the engine's; `post` is called on the disk's thread, or by run_one_job(), and
// must be thread-safe. No lock is held across I/O.
// Ownership: owns its thread, files and memory, which is granted at the opening; borrows
// ledger, clock and log. A KvFetched may outlive it, but not the ledger.
// Invariants (check()): what is answered is what was put under that key with these very
// bytes, by a process of the same format. The files of DIR that no other server uses take
// at most bytes_most at any moment. Every fetch that was taken is answered once, unless
// it is destroyed before.
// Whenever the process or the machine stops, a later start finds whole records alone; at
// most what was not synced (at each sealing, and by flush()) is lost.
// Failure: open() refuses with a sentence. Later nothing fails: where something cannot be
// written, nothing is taken for kPauseNs, which is told once; what cannot be read, or is
// damaged, is not there any more. Both are counted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "kv/disk_buffers.h"
#include "kv/disk_format.h"
#include "kv/disk_index.h"
#include "kv/disk_mail.h"
#include "kv/disk_segments.h"
#include "kv/kv_disk_stats.h"
#include "memory/ledger.h"

namespace loralei {

struct KvDiskOptions {
  std::string folder;              // DIR
  Digest format{};                 // of all that the bytes depend on: model, kernels, shape, number format
  uint64_t grid = 0;               // of blobs; those of another are of no use. 0: nor is any, until learn_grid()
  int64_t bytes_most = 0;          // of files
  int64_t record_bytes_most = 0;   // of one block, in whatever form
  int64_t record_bytes_usual = 0;  // for how many records there is room in memory; 0: an eighth of that
  int64_t write_buffer_bytes = 8 << 20;
  int64_t read_buffer_bytes = 32 << 20;  // of all fetches; each gets at least two records
  int32_t fetches_most = 2;              // that are asked for and not yet dropped
  bool thread = true;                    // false: run_one_job() does the work
};

// A message to whoever asked. Holds a part of the read buffer.
struct KvFetched {
  uint64_t ticket = 0;
  std::span<const KvFetchedBlock> blocks;  // from the first key on, up to one that could not be read
  bool more = false;                       // the buffer is full: ask again for the rest
  ReadShare share;
};

struct KvDiskFound {
  size_t blocks = 0;
  int64_t bytes = 0;  // to be read for them
};

class KvDisk {
 public:
  static constexpr int64_t kPauseNs = 30'000'000'000;
  static constexpr int64_t kSegmentBytesMost = 64 << 20;
  static constexpr int64_t kSegments = 16;  // about so many, where they are smaller than that
  static constexpr int32_t kEntriesMost = 1 << 20;

  // What open() will ask the ledger for.
  static Result<int64_t> memory_bytes(const KvDiskOptions& options);
  static Result<std::unique_ptr<KvDisk>> open(const KvDiskOptions& options, Ledger& ledger, const Clock& clock,
                                              LogSink& log, std::function<void(KvFetched&&)> post);
  // What was not begun is not done; flush() first where it matters.
  ~KvDisk();
  KvDisk(const KvDisk&) = delete;
  KvDisk& operator=(const KvDisk&) = delete;

  // How many of the keys, from the first on, can be fetched. `exact`: only what is. A
  // delta counts where its anchor's record is the one it was put with.
  KvDiskFound readable(std::span<const KvDiskKey> keys, bool exact);
  bool has(const KvDiskKey& key);  // there or on its way, in whatever form
  // There or on its way, as what a delta may be told from.
  bool can_be_anchor(const KvDiskKey& key);
  // A put of it would write: nothing serves as well (what is exact serves all), or that
  // is among the oldest quarter, which goes soon.
  bool wants(const KvDiskRecord& record);
  // Copies the payload, where it wants() it. False: there is no room in the ring, writing
  // pauses, or a delta's anchor is not there as kAlone, nor on its way.
  bool put(const KvDiskRecord& record, std::span<const std::byte> payload);
  // Where none was known at the opening, and once: blobs are of this grid as soon as
  // `keep`, on the disk's thread, has kept its steps for the next process; until then,
  // and where that fails (it tells), blobs are not taken.
  void learn_grid(uint64_t grid, std::function<Status()> keep);
  // It is being kept: what is put now is found by nobody as a blob.
  bool learns_grid();
  // It could not be decoded: it is not there any more.
  void drop(const KvDiskKey& key);
  // Asks for those that are readable(). False: none is, or fetches_most are under way or
  // in somebody's hands.
  bool fetch(uint64_t ticket, std::span<const KvDiskKey> keys, bool exact);

  // What can be read from the files, and what cannot any more, is told there from now on;
  // null: to nobody. Of what an earlier process left nobody is told before tell_of().
  void tell(KvTeller* teller) { index_.tell(teller); }
  void tell_of(const KvDiskKey& key);
  // Takes what the disk's thread has said in; whether nothing is on its way any more.
  bool settled();

  // Seals what was put and waits until all jobs are done, at most so long; whether they
  // are.
  bool flush(int64_t timeout_ms);
  bool run_one_job();  // without a thread; false: there is none
  KvDiskStats stats();
  const std::string& folder() const { return segments_->folder(); }
  uint64_t grid() const { return grid_; }
  double read_bytes_per_s();  // by the reads so far; 0: there were none
  void check();

 private:
  struct Sizes {
    int64_t segment_bytes = 0, ring_bytes = 0, slot_bytes = 0;
    int32_t entries = 0;
    int64_t own_bytes() const;  // of index and ring
  };
  static Result<Sizes> sizes_for(const KvDiskOptions& options);
  KvDisk(const KvDiskOptions& options, const Sizes& sizes, const Clock& clock, LogSink& log,
         std::function<void(KvFetched&&)> post, std::unique_ptr<DiskSegments> segments,
         std::shared_ptr<ReadSlots> slots, Grant&& grant);

  // At the start.
  Status make_room();
  Status find_records();
  Status find_records_in(uint32_t number, std::span<std::byte> buffer);
  void tell_of_files() const;

  // The engine's thread.
  using Entry = DiskIndex::Entry;
  void take_reports();
  void take_report(const DiskReport& report);
  const Entry* anchor_of(const Entry& entry) const;
  const Entry* usable(const KvDiskKey& key, bool exact) const;
  bool is_old(const Entry& entry);
  bool copy(const KvDiskRecord& record, std::span<const std::byte> payload);
  bool make_place(int64_t bytes);
  void close_segment();
  void evict_oldest();   // for room on disk
  void evict_segment();  // for room in the index
  void forget_segment(uint32_t number);

  // The disk's thread.
  void run();
  void run_job(const DiskJob& job);
  Status run_change(const DiskJob& job);
  void run_keep_grid();
  void run_fetch(ReadSlot& slot);
  bool read(const DiskHeader& header, std::span<std::byte> out);
  void tell_of(const Status& status);

  const KvDiskOptions options_;
  const Sizes sizes_;
  const Clock& clock_;
  LogSink& log_;
  const std::function<void(KvFetched&&)> post_;
  const Grant grant_;  // of index and ring
  const std::shared_ptr<ReadSlots> slots_;

  DiskIndex index_;
  WriteRing ring_;
  std::vector<DiskReport> reports_;
  std::deque<int64_t> elders_;  // bytes of those that are there
  uint32_t elders_gone_ = 0;
  int64_t bytes_ = 0;              // of all segments and elders, the newest as large as it may become
  uint64_t next_number_ = 1;       // of a segment
  bool is_open_ = false;           // the newest segment takes more
  int64_t end_ = 0, records_ = 0;  // of it, when what is on its way is written
  int64_t paused_until_ns_ = INT64_MIN;
  KvDiskStats stats_;

  uint64_t grid_ = 0;
  uint64_t learnt_grid_ = 0;           // of learn_grid(); 0: it was not called
  std::function<Status()> keep_grid_;  // empty: it is done

  DiskMail mail_;
  const std::unique_ptr<DiskSegments> segments_;  // the disk's thread's, but for what never changes
  bool told_ = false;                             // that something could not be written; the disk's thread's
  std::thread thread_;
};

}  // namespace loralei
