// SPDX-License-Identifier: Apache-2.0
#include "adapters/load_pool.h"

#include <algorithm>
#include <utility>

#include "sys/threads.h"

namespace loralei {

LoadDone run_load_job(const AdapterSource& source, const LoadJob& job) {
  LoadDone done{.id = job.id};
  done.stamp = source.stamp(job.path);
  if (!job.read || !done.stamp.ok()) return done;
  done.load = source.load(job.path, job.options, job.version);
  if (done.load.ok() && done.load->stamp && *done.load->stamp != *done.stamp) {
    done.load = Error{ErrorCode::kUnavailable, job.path + " was exchanged before it was read; load it again"};
    return done;
  }
  // A file that changes under the reader may have given half of each, whatever
  // was made of it.
  const auto after = source.stamp(job.path);
  if (!after.ok()) {
    done.load = after.error();
  } else if (!(*after == *done.stamp)) {
    done.load = Error{ErrorCode::kUnavailable,
                      job.path + " changed while it was being read; load it again when it is complete"};
  }
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

LoadPool::LoadPool(int threads, AdapterSource source, std::function<void(LoadDone&&)> post, Heartbeats* beats)
    : source_(std::move(source)), post_(std::move(post)), jobs_(static_cast<size_t>(std::max(1, threads))) {
  for (int index = 0; index < std::max(1, threads); ++index) {
    threads_.emplace_back([this, index, beats] {
      name_this_thread("adapter-load-" + std::to_string(index));
      while (auto job = jobs_.pop()) {
        const Heartbeats::Mark mark(beats, "adapter loader");
        post_(run_load_job(source_, *job));
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
