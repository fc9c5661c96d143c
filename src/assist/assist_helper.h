// SPDX-License-Identifier: Apache-2.0
// The helper process: computes the sums of low-rank products for rows that a server sends
// it, from adapters in memory that it may only read. An AssistPool starts it.
//
// Thread: one, the process's main one.
// Ownership: its channel, its control socket and the mappings of adapters. It closes
// every descriptor but the first two's.
// Invariants: numbers of a message are read once and checked; one that is wrong is
// answered with kRefused. No adapter is read before its table was checked.
// It ends when its control socket is closed, and with its parent.
// Failure: a channel that it cannot use is told over the socket and on stderr; then it
// exits with kAssistHelperUsage.
#pragma once

namespace loralei {

inline constexpr int kAssistChannelDescriptor = 3, kAssistControlDescriptor = 4;
inline constexpr int kAssistHelperUsage = 2;
// The word behind the program's name that makes the server's own program a helper.
inline constexpr const char* kAssistHelperWord = "assist-helper";

// All of a helper's life; the exit status of the process.
int run_assist_helper();

}  // namespace loralei
