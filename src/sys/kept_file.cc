// SPDX-License-Identifier: Apache-2.0
#include "sys/kept_file.h"

#include <span>
#include <utility>

#include "sys/threads.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

std::string part_of(const std::string& path) { return path + ".part"; }

}  // namespace

Result<std::unique_ptr<KeptFile>> KeptFile::start(std::string path, LogSink& log) {
  TRY(WriteFile::open(part_of(path)));
  TRY(remove_file(part_of(path)));
  std::unique_ptr<KeptFile> file(new KeptFile(std::move(path), log));
  TRY_ASSIGN(file->thread_, start_thread([kept = file.get()] { kept->run(); }));
  return file;
}

KeptFile::~KeptFile() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void KeptFile::put(Make value) {
  {
    const std::lock_guard lock(mutex_);
    std::swap(waiting_, value);
  }
  changed_.notify_one();
}

Status KeptFile::write(const std::string& bytes) const {
  TRY_ASSIGN(WriteFile file, WriteFile::open(part_of(path_)));
  TRY(file.resize(0));
  TRY(file.write(0, std::as_bytes(std::span(bytes))));
  return file.commit(path_);
}

void KeptFile::run() {
  name_this_thread("kept file");
  for (;;) {
    Make make;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stops_ || waiting_; });
      if (!waiting_) return;
      make = std::exchange(waiting_, {});
    }
    const Status status = write(make());
    if (!status.ok())
      log_.log(LogLevel::kWarning,
               status.error().message + "; '" + path_ + "' stays as it was, and is tried again later");
  }
}

}  // namespace loralei
