// SPDX-License-Identifier: Apache-2.0
#include "adapters/load_pool.h"

#include <algorithm>
#include <utility>

#include "sys/threads.h"

namespace loralei {

namespace {

// How a read has ended, told by the files' stamps before it, at it and now.
Status judge(const AdapterSource& source, const std::string& path, const FileStamp& before,
             const std::optional<FileStamp>& of, Status read) {
  if (read.ok() && of && *of != before)
    return Error{ErrorCode::kUnavailable, path + " was exchanged before it was read; load it again"};
  // A file that changes under the reader may have given half of each, whatever
  // was made of it.
  const auto after = source.stamp(path);
  if (!after.ok()) return after.error();
  if (*after == before) return read;
  return Error{ErrorCode::kUnavailable, path + " changed while it was being read; load it again when it is complete"};
}

}  // namespace

LoadDone run_load_job(const AdapterSource& source, const LoadJob& job, const std::function<void(LoadBegun&&)>& begun) {
  LoadDone done{.id = job.id};
  done.stamp = source.stamp(job.path);
  if (!job.read || !done.stamp.ok()) return done;
  bool judged = false;
  const AdapterEarly early{.begun =
                               [&](AdapterArriving&& arriving) {
                                 begun({job.id, std::move(arriving)});
                               },
                           .judge =
                               [&](const FileStamp& of, Status read) {
                                 judged = true;
                                 return judge(source, job.path, *done.stamp, of, std::move(read));
                               }};
  AdapterLoadOptions options = job.options;
  options.early = job.early && begun ? &early : nullptr;
  done.load = source.load(job.path, options, job.version);
  if (judged) return done;
  const bool read = done.load.ok();
  Status status = judge(source, job.path, *done.stamp, read ? done.load->stamp : std::nullopt,
                        read ? Status() : Status(done.load.error()));
  if (!status.ok()) done.load = std::move(status).error();
  return done;
}

HeaderCheck check_headers(const AdapterSource& files, const AdapterSourceSpec& source, AdapterLoadOptions options,
                          int rank_max) {
  HeaderCheck check{.source = source, .stamp = std::nullopt, .status = {}};
  const auto stamp = files.stamp(source.path);
  if (!stamp.ok()) {
    check.status = stamp.error();
    return check;
  }
  options.bytes_max = 0;  // so that nothing is read behind the headers
  const auto load = files.load(source.path, options, AdapterVersionId{});
  check.status =
      load.ok() ? check_rank(load->adapter ? load->adapter->rank_max : load->rank_max, rank_max) : Status(load.error());
  if (check.status.ok() || is_the_files_own(check.status.error().code)) check.stamp = *stamp;
  return check;
}

Error not_loaded(Error error, const std::string& label) {
  return std::move(error).with_context("adapter \"" + label + "\" was not loaded");
}

Status check_rank(int rank, int rank_max) {
  if (rank <= rank_max) return {};
  return too_large("it has rank " + std::to_string(rank) + ", but at most " + std::to_string(rank_max) +
                   " is allowed here");
}

bool is_the_files_own(ErrorCode code) {
  return code == ErrorCode::kInvalidArgument || code == ErrorCode::kTooLarge || code == ErrorCode::kCorrupt ||
         code == ErrorCode::kUnsupported;
}

LoadPool::LoadPool(int threads, AdapterSource source, std::function<void(LoadDone&&)> post, Heartbeats* beats,
                   std::function<void(LoadBegun&&)> post_begun)
    : source_(std::move(source)),
      post_(std::move(post)),
      post_begun_(std::move(post_begun)),
      jobs_(static_cast<size_t>(std::max(1, threads))) {
  for (int index = 0; index < std::max(1, threads); ++index) {
    threads_.emplace_back([this, index, beats] {
      name_this_thread("adapter-load-" + std::to_string(index));
      while (auto job = jobs_.pop()) {
        const Heartbeats::Mark mark(beats, "adapter loader");
        post_(run_load_job(source_, *job, post_begun_));
      }
    });
  }
}

bool LoadPool::start(LoadJob&& job) { return jobs_.try_push(std::move(job)); }

void LoadPool::stop() {
  jobs_.close();
  while (jobs_.try_pop()) {
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace loralei
