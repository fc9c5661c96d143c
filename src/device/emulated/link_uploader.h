// SPDX-License-Identifier: Apache-2.0
// LinkUploader: brings layered pieces of host memory over a link while steps are
// computed, on a thread of its own that sleeps nearly always. A layer is one copy, and
// layers arrive in order.
//
// Thread: any; the call given to on_end() is called on the uploader's thread.
// Ownership: owns link and thread; an upload's `keeps` owns what its parts point to and
// is dropped before its end is reported; the target belongs to the caller, who leaves it
// alone until then.
// Invariants: uploads end in the order of start(), each exactly once; who has seen in
// `layers_there` that a layer is may read it; no lock is held while anything is copied.
// Failure: start() cannot fail; what the link refuses ends that upload with its sentence,
// and the next one is tried. The destructor gives up what is under way and what waits;
// of these no end is reported.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/arrivals.h"
#include "base/clock.h"
#include "base/result.h"
#include "device/emulated/link.h"

namespace loralei {

struct LinkUpload {
  uint64_t id = 0;                         // whatever the caller wants to be told again
  std::vector<LinkPart> parts;             // layer by layer
  std::vector<int32_t> layer_parts;        // how many of them each layer has; 0: there is nothing to wait for
  std::shared_ptr<const void> keeps;       // null: the caller keeps what parts point to until the end
  std::shared_ptr<Arrivals> layers_there;  // told as they arrive, and of a copy that fails
};

struct LinkUploadEnd {
  uint64_t id = 0;
  Status status;
  int64_t ns = 0;  // from when its first byte was next on the link
};

class LinkUploader {
 public:
  // The clock outlives it.
  static Result<std::unique_ptr<LinkUploader>> create(std::unique_ptr<Link> link, const Clock& clock);
  ~LinkUploader();
  LinkUploader(const LinkUploader&) = delete;
  LinkUploader& operator=(const LinkUploader&) = delete;

  void start(LinkUpload&& upload);
  // Appends those that have ended; never waits for a copy.
  void poll(std::vector<LinkUploadEnd>& ended);
  // `call` is called after every end; empty: nobody from when this returns.
  void on_end(std::function<void(const LinkUploadEnd&)> call);

 private:
  struct Waiting {
    LinkUpload upload;
    int64_t asked_ns = 0;
  };
  LinkUploader(std::unique_ptr<Link> link, const Clock& clock) : link_(std::move(link)), clock_(clock) {}
  void run();
  Status send(const Waiting& waiting);

  const std::unique_ptr<Link> link_;
  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable_any started_;
  std::deque<Waiting> queue_;
  std::vector<LinkUploadEnd> ended_;
  std::function<void(const LinkUploadEnd&)> on_end_;
  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace loralei
