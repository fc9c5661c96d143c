// SPDX-License-Identifier: Apache-2.0
#include "sys/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/units.h"
#include "sys/os_error.h"

namespace loralei {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Memory that nobody can run as a program: kernels from 6.3 on know that, and some are
// set to give no other.
constexpr unsigned kNoExec = 8;  // MFD_NOEXEC_SEAL
int make_memory(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int descriptor = ::memfd_create(name, kFlags | kNoExec);
  return descriptor < 0 && errno == EINVAL ? ::memfd_create(name, kFlags) : descriptor;
}

// The system hands pages out until there are none left and then ends processes: what can
// never be there is not asked for.
int64_t machine_bytes() { return int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE); }

Error no_room(const std::string& name, int64_t bytes, int error) {
  return {error == EFBIG ? ErrorCode::kTooLarge : ErrorCode::kOverloaded,
          "the system does not give " + format_bytes(bytes) + " of memory to share (" + name +
              "): " + errno_text(error) + "; free memory, or raise the limit of this process"};
}

int allocate(int descriptor, int64_t bytes) {
  if (::ftruncate(descriptor, bytes) != 0) return errno;
  int error = 0;
  do error = ::fallocate(descriptor, 0, 0, bytes) == 0 ? 0 : errno;
  while (error == EINTR);
  return error;
}

}  // namespace

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(size_bytes_));
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Status SharedMemory::map(Access access) {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  // Populated: the pages are there, and nobody waits for them one by one later.
  void* const mapped =
      ::mmap(nullptr, static_cast<size_t>(size_bytes_), protection, MAP_SHARED | MAP_POPULATE, descriptor_.get(), 0);
  if (mapped == MAP_FAILED) return os_error("cannot map", format_bytes(size_bytes_) + " of shared memory", errno);
  data_ = static_cast<std::byte*>(mapped);
  return {};
}

Result<SharedMemory> SharedMemory::create(const std::string& name, int64_t bytes) {
  if (bytes <= 0) return invalid_argument("memory to share has at least a byte, not " + std::to_string(bytes));
  if (bytes > machine_bytes())
    return too_large("shared memory of " + format_bytes(bytes) + " (" + name + ") is asked for, but this machine has " +
                     format_bytes(machine_bytes()));
  SharedMemory memory;
  memory.descriptor_ = Descriptor(make_memory(name.c_str()));
  const int descriptor = memory.descriptor_.get();
  if (descriptor < 0) return os_error("cannot make", "shared memory " + name, errno);
  if (const int error = allocate(descriptor, bytes); error != 0) return no_room(name, bytes, error);
  if (::fcntl(descriptor, F_ADD_SEALS, kSeals) != 0) return os_error("cannot seal", "shared memory " + name, errno);
  memory.size_bytes_ = bytes;
  TRY(memory.map(Access::kReadWrite));
  return memory;
}

Result<SharedMemory> SharedMemory::open(Descriptor descriptor, int64_t bytes_min, Access access) {
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return corrupt("a descriptor that should be shared memory is not, or could be cut short by others");
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0) return os_error("cannot look at", "shared memory", errno);
  if (info.st_size <= 0 || info.st_size < bytes_min)
    return corrupt("shared memory has " + std::to_string(info.st_size) + " bytes, but " + std::to_string(bytes_min) +
                   " are expected");
  SharedMemory memory;
  memory.descriptor_ = std::move(descriptor);
  memory.size_bytes_ = info.st_size;
  TRY(memory.map(access));
  return memory;
}

Result<Descriptor> SharedMemory::read_only_descriptor() const {
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor_.get());
  Descriptor read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only.is_open()) return os_error("cannot open for reading alone", path, errno);
  return read_only;
}

}  // namespace loralei
