// SPDX-License-Identifier: Apache-2.0
// group_check SEED OPERATIONS: for tests, started by mpirun: random operations of the
// processes against the naive twin, each rank for itself; a rank that finds something
// wrong says what and ends all. With OPERATIONS 0 rank 0 waits for the others, which end
// without a word, and must be told so.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/prng.h"
#include "parallel/collective_twin.h"
#include "parallel/process_group.h"

namespace loralei {
namespace {

int check(uint64_t seed, uint32_t operations) {
  const auto group = ProcessGroup::join();
  if (!group.ok()) {
    std::fprintf(stderr, "%s\n", group.error().message.c_str());
    return 2;
  }
  Collective& ranks = (*group)->collective();
  if (operations == 0) {
    if (ranks.rank() > 0) std::_Exit(0);
    const Status told = ranks.barrier();
    std::printf("told: %s\n", told.ok() ? "nothing" : told.error().message.c_str());
    std::fflush(stdout);
    (*group)->end_process(told.ok() ? 1 : 0);
  }
  for (uint32_t operation = 0; operation < operations; ++operation) {
    const std::string wrong = run_one_operation(ranks, seed, operation, operation % 16 == 0 ? 60000 : 3000);
    if (wrong.empty()) continue;
    std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), wrong.c_str());
    (*group)->end_process(1);
  }
  std::printf("rank %d of %d: %u operations\n", ranks.rank(), ranks.size(), operations);
  return 0;
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return loralei::check(std::strtoull(argv[1], nullptr, 10), static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)));
}
