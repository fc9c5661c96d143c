// SPDX-License-Identifier: Apache-2.0
// GET /v1/apps and PUT /v1/apps/{name}: the applications that requests name, and how they
// stand, as whoever manages applications says (MobiLoRA, §3.3). One that is stated with
// the number of its process is killed when that ends.
//
// Thread: any; answers are made on the dispatcher's thread, when the engine has said how
// it stands between two steps.
// Ownership: borrows what the context has; owns the watch, made for the first process.
// Invariants: a process is watched once the engine knows the application; one that is
// killed is not watched.
// Failure: answered to the client.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/api.h"
#include "serve/context.h"
#include "serve/reply.h"
#include "sys/process_watch.h"

namespace loralei {

class AppService {
 public:
  explicit AppService(const ServeContext& context) : context_(context) {}

  void list(std::shared_ptr<Reply> reply);
  void state(std::shared_ptr<Reply> reply, const std::string& id, std::string_view body);
  // Tells nothing of processes any more.
  void stop();

 private:
  Status watch(const std::string& id, int pid);
  void forget(const std::string& id);
  void ended(const std::string& id, int pid);
  void not_told(const std::string& id, const Error& error);
  std::map<std::string, int> watched() const;

  const ServeContext context_;
  mutable std::mutex mutex_;
  bool stopped_ = false;
  std::shared_ptr<ProcessWatch> watch_;
};

// Applications as a body; pids: of processes that are watched.
std::string apps_body(const KvState& state, const std::map<std::string, int>& pids);

}  // namespace loralei
