// SPDX-License-Identifier: Apache-2.0
// KvSteps: what `loralei calibrate-kv` has measured of a base model, and what a server
// reads: the step of every channel of its K and V, and how much of the base's K and V
// each adapter may read. A JSON file:
//
//   {"format": "loralei-kv-steps", "version": 1,
//    "checksum": 16 hex digits, of all the rest,
//    "model": {"fingerprint", "name", "layers", "kv_heads", "head_dim"},
//    "text": {"tokens", "held_out_tokens", "agreement_asked"},
//    "base": {"agreement", "mean_kl", "positions", "answers": {...}, "bits"},
//    "adapters": [{"name", "digest", "agreement", "mean_kl", "positions", "answers",
//                  "bits", "bits_delta",
//                  "borrow": {"layers", "agreement", "prefill_saved"}}],
//    "factors": [[K, V], ...],        of each layer
//    "steps": [["...", "..."], ...]}  of each layer's K and V; a channel's are 4 digits
//
// A step has 8 significant bits (kv_grid.h), so it is the upper half of an f32: four hex
// digits. They are of no one format: an f32, f16 or bf16 cache can have them.
//
// "answers" is {"compared", "same", "right_exact", "right", "lost"}. A file without it
// and "held_out_tokens" is older: no answers were compared, nothing held out.
//
// Thread: a value; pure functions. Ownership: owns what it holds.
// Invariants: parse_kv_steps(kv_steps_text(x)) is x, bit for bit, where x can be written.
// Failure: what is cut, changed, of another version or not sound is refused with a
// sentence that says what to do; so is what cannot be written. Sizes are looked at before
// they are believed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/kv_grid.h"

namespace loralei {

inline constexpr int64_t kKvStepsBytesMost = 64 << 20;  // of a file

// How near the answers with K and V from integers are to those without, on a text.
struct KvQuality {
  double agreement = 1;   // share of positions with the same most likely token
  double mean_kl = 0;     // KL(exact || lossy) in nats
  int64_t positions = 0;  // compared
  // Whole answers, where the text has some: how many of them keep all their tokens, are
  // right (the greedy answer is the text's) with an exact cache, and with integers. Lost
  // is the share of the probability that they are given with; below 0 where it is more.
  int64_t answers = 0, answers_same = 0, answers_exact_right = 0, answers_right = 0;
  double answers_lost = 0;
  friend bool operator==(const KvQuality&, const KvQuality&) = default;
};

struct KvAdapterSteps {
  std::string name;    // for people
  std::string digest;  // of its version (digest_hex)
  KvQuality quality;
  double bits = 0;        // of a number, alone
  double bits_delta = 0;  // and as the difference from the base's
  // So many layers from the bottom it may read the base's K and V of; 0: none.
  int32_t borrow_layers = 0;
  double borrow_agreement = 1;  // then, with its own
  friend bool operator==(const KvAdapterSteps&, const KvAdapterSteps&) = default;
};

struct KvSteps {
  std::string fingerprint;  // of the base model (WeightStore::fingerprint)
  std::string name;         // for people
  int32_t layers = 0, kv_heads = 0, head_dim = 0;
  int64_t text_tokens = 0;
  // Of these, whose answers the search for steps has not seen: qualities are theirs. 0:
  // steps were searched with what they were measured on.
  int64_t held_out_tokens = 0;
  double agreement_asked = 0;  // share
  KvQuality quality;           // of the base
  double bits = 0;             // of a number, alone
  std::vector<KvAdapterSteps> adapters;
  std::vector<float> factors;  // [layers][2]
  std::vector<float> steps;    // [layers][2][kv_heads * head_dim], of 8 significant bits

  Result<KvGrid> grid(DType dtype) const;
  // The least agreement, largest KL and most that answers lose, of the base and all
  // adapters. Counts are the base's.
  KvQuality farthest() const;
  double prefill_saved(const KvAdapterSteps& adapter) const {
    return static_cast<double>(adapter.borrow_layers) / layers;
  }
  friend bool operator==(const KvSteps&, const KvSteps&) = default;
};

// `place` names the file in messages.
Result<KvSteps> parse_kv_steps(std::string_view text, const std::string& place);
Result<std::string> kv_steps_text(const KvSteps& steps);
// Whether they are of this base model, of this shape (its format does not matter).
Status check_kv_steps(const KvSteps& steps, const std::string& fingerprint, const KvGridShape& shape,
                      const std::string& place);
// What "checksum" must say in this text; empty where it is no JSON object. For tests.
std::string kv_steps_checksum(std::string_view text);

}  // namespace loralei
