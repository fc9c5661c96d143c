// SPDX-License-Identifier: Apache-2.0
// HelperProcess: one life of one helper, from its start to its end, as the server has it:
// process, channel and control socket.
//
// Thread: start() and what the keeper does on the keeper's thread, which the process ends
// with. From take-over on the pool's caller writes requests and control messages; before,
// the keeper does. `gone` goes from the keeper to the caller.
// Ownership: all of it; the last owner's destructor ends the process if it still runs.
// Invariant: a life that is over is never taken for the next one: that has a channel of
// its own.
// Failure: start() says what was missing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "assist/assist_channel.h"
#include "assist/assist_control.h"
#include "base/result.h"
#include "sys/child_process.h"

namespace loralei {

struct HelperProcess {
  AssistChannel channel;
  Descriptor control;
  ChildProcess child;
  std::atomic<bool> gone{false};  // it has ended; then its `done` is raised once more

  // Of whoever writes to it at the time:
  uint32_t asked = 0;       // SharedSignal `asks` as last posted
  uint32_t controls = 0;    // control messages sent
  uint32_t generation = 0;  // of the last request
  bool condemned = false;   // it was killed, and gets nothing more

  HelperProcess(AssistChannel its_channel, Descriptor its_control, ChildProcess its_child)
      : channel(std::move(its_channel)), control(std::move(its_control)), child(std::move(its_child)) {}

  static Result<std::shared_ptr<HelperProcess>> start(const std::string& program, const std::vector<std::string>& args,
                                                      const std::string& name,
                                                      const AssistChannel::Settings& settings) {
    TRY_ASSIGN(AssistChannel channel, AssistChannel::create(name, settings));
    TRY_ASSIGN(auto ends, message_socket_pair());
    TRY_ASSIGN(ChildProcess child, ChildProcess::start({program, args, {channel.descriptor(), ends.second.get()}}));
    return std::make_shared<HelperProcess>(std::move(channel), std::move(ends.first), std::move(child));
  }

  void nudge() { channel.header().asks.post(++asked); }  // it looks at its control socket
  void condemn() {
    condemned = true;
    child.kill();
  }
  bool answered() const { return channel.header().done.value() == generation; }
};

}  // namespace loralei
