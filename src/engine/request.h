// SPDX-License-Identifier: Apache-2.0
// Request and Sequence: what the engine keeps of a Submit. A request has `choices`
// sequences that share prompt, adapters and KV key.
//
//   request    cold      its adapters are not all in memory: it cannot be computed yet
//              ready     its KV identity is known; cold again when they have left memory
//   sequence   held      its request is cold, its leader still computes their prompt, or
//                        nobody takes what it says
//              forming   the first mask of its grammar is being made
//              waiting   for its turn in admission
//              running   has KV and, with the others of its request, adapters; preempted
//                        it waits, forms or is held again
//              ended
//
// Thread: the engine's alone. Ownership: the loop owns requests, a request its sequences;
// dropping a sequence releases its KV, dropping a request its adapters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapters/registry.h"
#include "base/byte_budget.h"
#include "base/result.h"
#include "engine/api.h"
#include "engine/device_tier.h"
#include "kv/kv_cache.h"
#include "sampling/grammar.h"
#include "sched/admission.h"
#include "sched/prompt_lookup.h"
#include "sched/scheduling.h"
#include "sched/seq_state.h"
#include "sched/wait_times.h"

namespace loralei {

struct Request;

enum class SeqPhase : uint8_t { kHeld, kForming, kWaiting, kRunning, kEnded };

struct Sequence {
  SeqId id;
  Request* request = nullptr;
  int32_t choice = 0;
  uint64_t order = 0;  // age among all sequences
  SeqPhase phase = SeqPhase::kHeld;
  Waiting waiting;          // what admission knows of it, as it arrived there last
  Standing standing;        // by which that was said; while it runs, what it takes of its queue's quota
  int64_t admitted_ns = 0;  // last
  int64_t first_token_ns = 0, last_token_ns = 0;  // where its request wants something of time
  // It passed one that waits for its adapter's place, because it was to end by then.
  // 0: it did not.
  int64_t passes_until_ns = 0;
  bool squashed = false;        // it ran longer then: it passes nobody any more
  std::vector<TokenId> tokens;  // prompt, then output; empty until first admitted, so that a queue holds prompts once
  int32_t computed = 0;         // positions with valid KV
  KvLease lease;
  int32_t borrowed = 0;  // positions before it are computed from Request::lower on
  PromptLookup lookup;
  bool chilled = false;         // held because its adapters have left memory: goes on when they are back
  bool parked = false;          // held because the request is: takes its turn when that is let go
  bool announced = false;       // its first event went out
  bool admitted = false;        // has run at least once
  int32_t cached_tokens = 0;    // of the prompt, at first admission
  int32_t borrowed_tokens = 0;  // beside them
  int64_t queue_ns = 0;
  std::vector<double> pooled;  // [hidden], sum of hidden states (mean pooling)
  // After the output so far; survives preemption, as the output does. Null until its
  // first mask is being made.
  std::unique_ptr<GrammarState> grammar;
  int64_t mask_work = 0, mask_slice = 0;  // what the next mask has taken so far, and in the last slice (MaskWork)
  uint64_t mask_since = 0;                // order among those of its class
  ByteShare grammar_memory;               // of the grammar's state
  std::optional<Error> mask_refusal;      // there is no memory for its mask, which was given up

  std::span<const TokenId> text() const;  // the same, before it is admitted too
};

struct Request {
  RequestId id;
  Submit submit;
  uint64_t order = 0;
  uint64_t since = 0;  // the registry's serial at arrival
  int64_t arrived_ns = 0;
  bool ready = false;     // what it computes with is known, and was in memory then
  bool started = false;   // its choices have begun to wait
  bool used = false;      // its adapters' uses are counted
  bool counted = false;   // among those that wait with its adapters
  bool held = false;      // Engine::hold
  bool lacks = false;     // its turn came, but its adapters have no place yet
  bool arriving = false;  // what `hold` holds is on its way to the device
  // It runs all the same; in steps of such requests alone; not, since a layer was late.
  bool early = false, alone = false, late = false;
  bool assisted = false;  // it begins, or began, with helpers
  // An adapter of it is still being read, so that nobody knows its digest: `key` stands
  // for that until then, nothing is found by it, and nothing published.
  bool provisional = false;
  uint64_t held_as_is = 0;  // EngineLoop::plans_ when `hold` was taken of what was on the device; 0: it is in use
  bool was_cold = false, cold_counted = false;  // when its turn came
  int64_t early_ns = 0;                         // when it began so
  int64_t looks_since_ns = 0;                   // first asked whether it may begin before its adapters are there
  int64_t layers_waited_ns = 0;                 // in its steps since
  int32_t running = 0;                          // of its choices: those that have pins and hold
  bool counted_in = false;                      // its size is counted among those that arrived
  bool queued = true;                           // counts against max_queued: nothing of it was admitted yet
  WaitClock wait;                               // while it is queued
  std::vector<AdapterSourceId> sources;         // of the adapters, in the request's order
  std::vector<std::string> labels;              // beside sources, for sentences
  std::vector<AdapterClaim> claims;             // beside sources: the versions it was made ready for
  std::vector<AdapterPin> pins;                 // beside sources; only while choices run, or `hold` arrives
  AdapterHold hold;                             // of those that are applied, on the device
  std::vector<SeqAdapter> segments;  // what is applied, by first position: scale 0 and never activated ones left out
  std::optional<AdapterVersionId> saved;  // the version whose full tensors are read; alone: those are never summed
  int32_t saved_first_position = 0;
  KvKey key;
  // Positions before `until` are the base's below layer `layers`; kWholeStream: all of
  // it. And whether that was lent is asked for.
  struct LowerLayers {
    int32_t layers = 0, until = 0;
    bool may_borrow = false;
  } lower;
  std::vector<KvDiskKey> disk_keys;          // of its prompt's blocks, while it waits for some of them to be read
  int32_t disk_first = 0;                    // of these: the first that was asked for last
  std::string version;                       // for events
  int32_t vocab = 0;                         // ids that may be sampled: below this
  int32_t embed_vocab = 0;                   // ids that may be read
  int32_t max_output = 0;                    // max_tokens, clipped to the room that max_model_len leaves
  LearnedLengths::Features length_features;  // of its prompt, where that is learned from
  std::vector<TokenId> forbidden;            // until min_tokens are out
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  int32_t prompt_logprobs_next = 1;  // first entry not yet filled
  int32_t unfinished = 0;
  std::vector<std::unique_ptr<Sequence>> choices;

  bool charged = false;                          // its prompt, to its client
  bool answered = false;                         // its first token is out
  bool tpot_known = false, tpot_missed = false;  // of the choices that have ended
  bool was_held = false;                         // its reader was slow: how its tokens came says nothing

  int32_t prompt_size() const { return static_cast<int32_t>(submit.prompt.size()); }
  bool wants_prompt_logprobs() const { return submit.prompt_logprobs && prompt_logprobs_next < prompt_size(); }
  bool samples() const { return submit.pooling == Pooling::kNone && max_output > 0; }
};

inline std::span<const TokenId> Sequence::text() const {
  return admitted ? std::span<const TokenId>(tokens) : request->submit.prompt;
}

}  // namespace loralei
