// SPDX-License-Identifier: Apache-2.0
#include "sys/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "sys/os_error.h"
#include "sys/posix_file.h"

namespace loralei {
namespace {

constexpr int kMaxLinks = 40;  // of one path, as the system itself allows

// The steps of `path`, the last one first.
std::vector<std::string> steps_of(const std::string& path) {
  std::vector<std::string> steps;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) steps.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

Result<std::string> read_link(const Descriptor& link, const std::string& name) {
  char target[PATH_MAX];
  const ssize_t length = ::readlinkat(link.get(), "", target, sizeof target);
  if (length < 0) return os_error("cannot follow the link", name, errno);
  return std::string(target, static_cast<size_t>(length));
}

// One path on its way from a folder downwards; no step of it follows a link unseen.
class Steps {
 public:
  Steps(const Descriptor& root, const std::string& real_path, const std::string& name, const std::string& path)
      : root_(root), real_path_(real_path), name_(name), path_(path), todo_(steps_of(path)) {}

  Result<Descriptor> open(int flags) {
    while (!todo_.empty()) {
      const std::string step = std::move(todo_.back());
      todo_.pop_back();
      if (step == ".") continue;
      if (step == "..") {
        if (folders_.empty()) return leads_out();
        folders_.pop_back();
        continue;
      }
      Descriptor next(::openat(here(), step.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      if (!next.is_open()) return failed(errno);
      struct stat info {};
      if (::fstat(next.get(), &info) != 0) return failed(errno);
      if (S_ISLNK(info.st_mode)) {
        TRY(follow(next, step));
      } else if (S_ISDIR(info.st_mode)) {
        folders_.push_back({std::move(next), step});
      } else if (!todo_.empty()) {
        return failed(ENOTDIR);
      } else if ((flags & O_PATH) != 0) {
        return next;
      } else {
        Descriptor found(::openat(here(), step.c_str(), flags | O_NOFOLLOW));
        if (found.is_open()) return found;
        if (errno != ELOOP) return failed(errno);
        TRY(count_link());  // exchanged for a link just now: looked at again
        todo_.push_back(step);
      }
    }
    Descriptor found(::openat(here(), ".", flags));
    if (!found.is_open()) return failed(errno);
    return found;
  }

 private:
  struct Level {
    Descriptor handle;
    std::string name;
  };

  int here() const { return folders_.empty() ? root_.get() : folders_.back().handle.get(); }
  std::string name_of(const std::string& step) const {
    std::string name = name_;
    for (const Level& level : folders_) name = join_path(name, level.name);
    return join_path(name, step);
  }

  Status count_link() {
    if (++links_ > kMaxLinks) return failed(ELOOP);
    return {};
  }

  Status follow(const Descriptor& handle, const std::string& step) {
    TRY(count_link());
    link_ = name_of(step);
    TRY_ASSIGN(target_, read_link(handle, link_));
    std::string rest = target_;
    if (rest.starts_with('/')) {
      if (!is_under(real_path_, rest)) return leads_out();
      rest = rest.substr(real_path_.size());
      folders_.clear();
    }
    for (std::string& next : steps_of(rest)) todo_.push_back(std::move(next));
    return {};
  }

  Error leads_out() const {
    return link_.empty() ? path_leads_out(join_path(name_, path_), name_) : link_leads_out(link_, target_, name_);
  }
  Error failed(int reason) const {
    if (reason == ENOENT && !link_.empty()) return link_leads_nowhere(link_);
    return os_error("cannot open", join_path(name_, path_), reason);
  }

  const Descriptor& root_;
  const std::string& real_path_;
  const std::string& name_;
  const std::string& path_;
  std::vector<std::string> todo_;
  std::vector<Level> folders_;  // from below the root to where we are
  int links_ = 0;
  std::string link_, target_;  // the last one followed
};

class PosixFolder final : public UntrustedFolder {
 public:
  PosixFolder(Descriptor root, std::string real_path, std::string name, FolderWalk walk)
      : root_(std::move(root)), real_path_(std::move(real_path)), name_(std::move(name)), walk_(walk) {}

  Result<std::unique_ptr<File>> open(const std::string& path) const override {
    // O_NONBLOCK: opening a pipe without a writer must not hang; it has no effect
    // on regular files.
    TRY_ASSIGN(Descriptor handle, reach(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    return open_posix_file(join_path(name_, path), std::move(handle));
  }

  Result<Seen> look(const std::string& path) const override {
    TRY_ASSIGN(const Descriptor handle, reach(path, O_PATH | O_CLOEXEC));
    struct stat info {};
    if (::fstat(handle.get(), &info) != 0) return os_error("cannot inspect", join_path(name_, path), errno);
    return Seen{kind_of(info), stamp_of(info)};
  }

  Result<std::vector<DirEntry>> list(const std::string& path) const override {
    const std::string shown = join_path(name_, path);
    TRY_ASSIGN(Descriptor handle, reach(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    TRY_ASSIGN(const std::vector<std::string> names, names_in(std::move(handle), shown));
    std::vector<DirEntry> entries;
    for (const std::string& name : names) {
      const auto seen = look(join_path(path, name));
      if (!seen.ok() && seen.error().code == ErrorCode::kNotFound) continue;  // removed just now
      entries.push_back({name, seen.ok() && seen->kind == PathKind::kDirectory});
    }
    return entries;
  }

 private:
  Result<Descriptor> reach(const std::string& path, int flags) const {
    if (path.find('\0') != std::string::npos) return invalid_argument("a path holds a zero byte; name a file");
    if (walk_ == FolderWalk::kSystem) {
      open_how how{};
      how.flags = static_cast<uint64_t>(flags);
      how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
      const std::string& below = path.empty() ? "." : path;
      const auto found = ::syscall(SYS_openat2, root_.get(), below.c_str(), &how, sizeof how);
      if (found >= 0) return Descriptor(static_cast<int>(found));
    }
    return Steps(root_, real_path_, name_, path).open(flags);
  }

  const Descriptor root_;
  const std::string real_path_, name_;
  const FolderWalk walk_;
};

}  // namespace

Result<std::unique_ptr<UntrustedFolder>> open_posix_folder(const std::string& real_path, const std::string& name,
                                                           FolderWalk walk) {
  Descriptor root(::open(real_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.is_open()) return os_error("cannot open the folder", name, errno);
  return std::unique_ptr<UntrustedFolder>(std::make_unique<PosixFolder>(std::move(root), real_path, name, walk));
}

Error link_leads_out(const std::string& link, const std::string& target, const std::string& folder) {
  return {ErrorCode::kForbidden, "'" + link + "' is a link to '" + target + "', which leads out of '" + folder +
                                     "'; put a copy of the file in its place, or give a folder that holds both as "
                                     "--adapter-dir"};
}

Error link_leads_nowhere(const std::string& link) {
  return invalid_argument("'" + link + "' is a link to what is not there; put the file in its place, or remove it");
}

Error path_leads_out(const std::string& path, const std::string& folder) {
  return {ErrorCode::kForbidden, "'" + path + "' leads out of '" + folder + "'; name something below it"};
}

Error not_a_regular_file(const std::string& path, PathKind kind) {
  return invalid_argument("'" + path + "' is not a regular file" +
                          (kind == PathKind::kDirectory ? " but a folder" : "") + "; name a file");
}

}  // namespace loralei
