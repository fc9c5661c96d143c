// SPDX-License-Identifier: Apache-2.0
// What the two ways to open a file of the machine share: by its name (file.cc), and below
// a folder (folder.cc).
//
// Thread: pure functions; a Descriptor belongs to one thread at a time. Ownership: a
// Descriptor closes what it has. Failure: sentences with the path.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sys/file.h"

namespace loralei {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  bool is_open() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

PathKind kind_of(const struct stat& info);
// A regular file that `handle` has open for reading; anything else is refused.
Result<std::unique_ptr<File>> open_posix_file(const std::string& path, Descriptor handle);
// What lies in the folder that `handle` has open, sorted, without "." and "..".
Result<std::vector<std::string>> names_in(Descriptor handle, const std::string& path);

}  // namespace loralei
