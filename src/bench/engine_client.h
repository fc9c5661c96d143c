// SPDX-License-Identifier: Apache-2.0
// EngineClient: requests that are asked one by one of a running engine, each with the
// times of its tokens, and commands about adapters.
//
// Thread: one; it is the engine's only consumer of output while it lives. Ownership:
// borrows engine and clock. Failure: a request that ends with an error, or a command that
// fails, is the answer of the call that learns of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "base/result.h"
#include "engine/adapter_board.h"
#include "engine/api.h"

namespace loralei {

// Of a vocabulary: those below are special or bytes.
int first_plain_token(int vocab);

class EngineClient {
 public:
  struct Asked {
    int64_t begin_ns = 0;
    std::vector<int64_t> token_ns;
    int32_t cached_tokens = 0, borrowed_tokens = 0;  // of the prompt, once there is a token
    bool ended = false;
    double first_token_s() const { return static_cast<double>(token_ns.front() - begin_ns) * 1e-9; }
  };

  EngineClient(Engine& engine, const Clock& clock, int vocab, uint64_t seed)
      : engine_(engine), clock_(clock), vocab_(vocab), random_(seed) {}

  // As it is; its id is chosen here.
  Result<RequestId> ask(Submit request);
  // A prompt of random plain tokens, which no other request has.
  Result<RequestId> ask(int prompt_tokens, int new_tokens, std::optional<AdapterSourceId> adapter);
  void cancel(RequestId id) { engine_.cancel(id); }
  void cancel_all();
  // Seconds from the command to its reply.
  Result<double> command(AdapterAction action, const AdapterSourceSpec& source);
  // Any command; its ticket is chosen here.
  template <typename Command>
  Result<CommandReply> command(Command command) {
    const uint64_t ticket = command.ticket = next_id_++;
    TRY(engine_.command(std::move(command)));
    return reply(ticket);
  }

  // Takes what comes, until `done` says so.
  Status follow(const std::function<bool()>& done);
  Status follow_until(int64_t at_ns);
  Status follow_for(int64_t ns);
  Status follow_to_the_end();  // of all
  // So many under way at any time, for so long: `ask` is called for each.
  Status keep_asking(int32_t together, double seconds, const std::function<Status()>& ask);

  const Asked& asked(RequestId id) const { return asked_.at(id); }
  size_t tokens(RequestId id) const { return asked_.at(id).token_ns.size(); }
  int32_t under_way() const { return under_way_; }     // requests that have not ended
  void forget_ended();                                 // asked() knows them no more
  AdapterStatus status(AdapterSourceId source) const;  // by the news so far

 private:
  Status take(int64_t wait_ns);
  Result<CommandReply> reply(uint64_t ticket);

  static inline uint64_t next_id_ = 1'000'000;  // beside those of the rig's own runner
  Engine& engine_;
  const Clock& clock_;
  const int vocab_;
  Prng random_;
  std::map<RequestId, Asked> asked_;
  std::map<uint64_t, CommandReply> replies_;
  AdapterBoard board_;
  int32_t under_way_ = 0;
};

}  // namespace loralei
