// SPDX-License-Identifier: Apache-2.0
#include "parallel/process_group.h"

#include <charconv>
#include <optional>
#include <string>

#include "sys/env.h"

namespace loralei {

int started_processes() {
  const std::optional<std::string> text = env_string("OMPI_COMM_WORLD_SIZE");
  int count = 0;
  if (!text) return 1;
  std::from_chars(text->data(), text->data() + text->size(), count);
  return count > 1 ? count : 1;
}

#ifdef LORALEI_WITH_MPI
bool has_process_groups() { return true; }
#else
bool has_process_groups() { return false; }
Result<std::unique_ptr<ProcessGroup> > ProcessGroup::join(const ProcessGroupOptions&) {
  return unsupported(
      "This build has no MPI, so mpirun can start nothing but copies of it; build it where Open MPI is installed, or "
      "start it without mpirun: the ranks are threads then.");
}
#endif

}  // namespace loralei
