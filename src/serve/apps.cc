// SPDX-License-Identifier: Apache-2.0
#include "serve/apps.h"

#include <utility>

#include "base/printable.h"
#include "wire/errors.h"
#include "wire/json_out.h"
#include "wire/requests.h"

namespace loralei {
namespace {

const char* name_of(AppState state) { return kAppStateNames[static_cast<size_t>(state)]; }

AppState state_of(AppStateKind word) {
  switch (word) {
    case AppStateKind::kForeground:
      return AppState::kForeground;
    case AppStateKind::kBackground:
      return AppState::kBackground;
    case AppStateKind::kKilled:
      return AppState::kKilled;
  }
  return AppState::kForeground;
}

}  // namespace

std::string apps_body(const KvState& state, const std::map<std::string, int>& pids) {
  JsonOut out;
  out.begin_object().key("apps").begin_array();
  for (const KvAppState& app : state.apps) {
    out.begin_object().key("id").string(app.id).key("state").string(name_of(app.state)).key("pid");
    const auto pid = pids.find(app.id);
    pid == pids.end() ? out.null() : out.number(pid->second);
    out.key("tokens").number(app.tokens).key("alone_tokens").number(app.alone_tokens).end_object();
  }
  return out.end_array().end_object().take();
}

void AppService::list(std::shared_ptr<Reply> reply) {
  const auto answer = [this, reply](const CommandReply& answered) {
    if (!answered.status.ok()) return reply->refuse(to_api_error(answered.status.error()));
    reply->json(200, apps_body(*answered.kv, watched()));
  };
  const Status status = context_.dispatcher.command(KvCommand{.listed_max = 0}, answer);
  if (!status.ok()) reply->refuse(to_api_error(status.error()));
}

void AppService::state(std::shared_ptr<Reply> reply, const std::string& id, std::string_view body) {
  auto request = parse_app_state_request(body);
  if (!request.ok()) return reply->refuse(request.error());
  if (id.empty() || id.size() > kAppIdBytesMost || !is_printable(id, kAppIdBytesMost))
    return reply->refuse(api_error_of_status(
        400, "An application's id has 1 to " + std::to_string(kAppIdBytesMost) + " bytes and no control characters."));
  const AppState state = state_of(request->state);
  // Answers come in the order of the commands: of two at once the later one stands, of
  // states and of processes alike.
  const auto answer = [this, reply, id, state, pid = request->pid](const CommandReply& answered) {
    if (!answered.status.ok()) return reply->refuse(to_api_error(answered.status.error()));
    if (state == AppState::kKilled) forget(id);
    if (pid) {
      // Its state stands; a process that is not there any more is the client's to say.
      if (const Status watched = watch(id, static_cast<int>(*pid)); !watched.ok())
        return reply->refuse(to_api_error(watched.error(), "pid"));
    }
    JsonOut out;
    out.begin_object().key("id").string(id).key("state").string(name_of(state)).key("pid");
    pid ? out.number(*pid) : out.null();
    reply->json(200, out.key("bytes_freed").number(answered.bytes_freed).end_object().take());
  };
  const Status status = context_.dispatcher.command(AppCommand{.id = id, .state = state}, answer);
  if (!status.ok()) reply->refuse(to_api_error(status.error()));
}

Status AppService::watch(const std::string& id, int pid) {
  std::shared_ptr<ProcessWatch> watch;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return Error{ErrorCode::kUnavailable, "The server is shutting down."};
    if (watch_ == nullptr) {
      TRY_ASSIGN(watch_, ProcessWatch::create([this](const std::string& name, int number) { ended(name, number); }));
    }
    watch = watch_;
  }
  return watch->watch(id, pid);
}

void AppService::forget(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (watch_ != nullptr) watch_->forget(id);
}

void AppService::ended(const std::string& id, int pid) {
  context_.log.log(LogLevel::kInfo,
                   "application '" + printable(id) + "' is killed: its process " + std::to_string(pid) + " has ended");
  const auto answer = [this, id](const CommandReply& answered) {
    if (!answered.status.ok()) not_told(id, answered.status.error());
  };
  const Status told = context_.dispatcher.command(AppCommand{.id = id, .state = AppState::kKilled}, answer);
  if (!told.ok()) not_told(id, told.error());
}

void AppService::not_told(const std::string& id, const Error& error) {
  context_.log.log(LogLevel::kWarning, "what application '" + printable(id) +
                                           "' left in the KV cache stays until it "
                                           "is evicted: " +
                                           error.message);
}

std::map<std::string, int> AppService::watched() const {
  const std::lock_guard lock(mutex_);
  return watch_ == nullptr ? std::map<std::string, int>() : watch_->watched();
}

void AppService::stop() {
  std::shared_ptr<ProcessWatch> watch;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    watch = std::move(watch_);
  }
  watch.reset();  // joins the watch's thread, which may be in ended()
}

}  // namespace loralei
