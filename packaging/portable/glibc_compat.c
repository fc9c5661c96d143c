// SPDX-License-Identifier: Apache-2.0
// What the compiler's libraries take from a glibc newer than 2.28, by means that 2.28 has. Linked into the portable binary alone.
// Hidden, so that no library that is opened at run time meets these.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// What glibc has, and its headers no longer say.
extern int __cxa_atexit(void (*)(void*), void*, void*);
extern int __xstat(int, const char*, struct stat*);
extern int __lxstat(int, const char*, struct stat*);
extern int __fxstat(int, int, struct stat*);
extern int __fxstatat(int, int, const char*, struct stat*, int);
int __real___libc_start_main(int (*)(int, char**, char**), int, char**, void (*)(int, char**, char**), void (*)(void), void (*)(void), void*);

#pragma GCC visibility push(hidden)

// --- the start. A glibc before 2.34 leaves it to the program to run its own constructors.

extern void (*__init_array_start[])(int, char**, char**);
extern void (*__init_array_end[])(int, char**, char**);
extern void _init(void);

static void construct(int count, char** arguments, char** environment) {
  _init();
  for (void (**one)(int, char**, char**) = __init_array_start; one != __init_array_end; ++one) (*one)(count, arguments, environment);
}

// Destructors are run by the dynamic linker's `end`, as of every library.
int __wrap___libc_start_main(int (*main)(int, char**, char**), int count, char** arguments, void (*init)(int, char**, char**),
                             void (*fini)(void), void (*end)(void), void* stack_end) {
  return __real___libc_start_main(main, count, arguments, construct, NULL, end, stack_end);
}

extern void* __dso_handle;
int atexit(void (*function)(void)) { return __cxa_atexit((void (*)(void*))function, NULL, &__dso_handle); }

// --- files (2.33)

#ifdef __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif
int stat(const char* path, struct stat* into) { return __xstat(STAT_VERSION, path, into); }
int lstat(const char* path, struct stat* into) { return __lxstat(STAT_VERSION, path, into); }
int fstat(int file, struct stat* into) { return __fxstat(STAT_VERSION, file, into); }
int fstatat(int folder, const char* path, struct stat* into, int flags) { return __fxstatat(STAT_VERSION, folder, path, into, flags); }
// The same on machines of 64 bits.
int stat64(const char* path, struct stat64* into) { return __xstat(STAT_VERSION, path, (struct stat*)into); }
int lstat64(const char* path, struct stat64* into) { return __lxstat(STAT_VERSION, path, (struct stat*)into); }
int fstat64(int file, struct stat64* into) { return __fxstat(STAT_VERSION, file, (struct stat*)into); }
int fstatat64(int folder, const char* path, struct stat64* into, int flags) { return __fxstatat(STAT_VERSION, folder, path, (struct stat*)into, flags); }

// --- threads (2.30, 2.32)

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// libstdc++ leaves locks out where this says that there is one thread: there never is.
char __libc_single_threaded = 0;

// A deadline of one clock as one of CLOCK_REALTIME, the only one that waits knew before.
static struct timespec on_real_time(clockid_t clock, const struct timespec* deadline) {
  if (clock == CLOCK_REALTIME) return *deadline;
  struct timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  struct timespec then = {real.tv_sec + (deadline->tv_sec - now.tv_sec), real.tv_nsec + (deadline->tv_nsec - now.tv_nsec)};
  if (then.tv_nsec >= 1000000000) ++then.tv_sec, then.tv_nsec -= 1000000000;
  if (then.tv_nsec < 0) --then.tv_sec, then.tv_nsec += 1000000000;
  if (then.tv_sec < 0) then.tv_sec = 0, then.tv_nsec = 0;
  return then;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* deadline) {
  const struct timespec then = on_real_time(clock, deadline);
  return pthread_cond_timedwait(condition, mutex, &then);
}
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const struct timespec* deadline) {
  const struct timespec then = on_real_time(clock, deadline);
  return pthread_mutex_timedlock(mutex, &then);
}

// --- random numbers (2.36)

uint32_t arc4random(void) {
  uint32_t number;
  unsigned char* at = (unsigned char*)&number;
  for (size_t have = 0; have < sizeof number;) {
    const ssize_t got = getrandom(at + have, sizeof number - have, 0);
    if (got > 0) have += (size_t)got;
    else if (errno != EINTR) abort();
  }
  return number;
}

// --- exceptions (2.35): where the unwinder's table of the code at an address is. Part of libgcc's contract with glibc.

#ifdef DLFO_STRUCT_HAS_EH_DBASE
struct search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int look(struct dl_phdr_info* info, size_t size, void* argument) {
  struct search* search = argument;
  const ElfW(Phdr)* table = NULL;
  uintptr_t first = UINTPTR_MAX, last = 0;
  int inside = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* one = &info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + one->p_vaddr, end = begin + one->p_memsz;
    if (one->p_type == PT_GNU_EH_FRAME) table = one;
    if (one->p_type != PT_LOAD) continue;
    if (begin < first) first = begin;
    if (end > last) last = end;
    if (search->address >= begin && search->address < end) inside = 1;
  }
  if (!inside || table == NULL) return 0;
  memset(search->found, 0, sizeof *search->found);
  search->found->dlfo_map_start = (void*)first;
  search->found->dlfo_map_end = (void*)last;
  search->found->dlfo_eh_frame = (void*)(info->dlpi_addr + table->p_vaddr);
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* into) {
  struct search search = {(uintptr_t)address, into};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
#endif

#pragma GCC visibility pop
