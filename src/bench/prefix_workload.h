// SPDX-License-Identifier: Apache-2.0
// What the owner of a phone asks of the model on it (MobiLoRA, section 4.1): the setups
// of the paper's Table 1, its two tasks, and requests for them, made of a seed. Prompts
// are named by the texts they are made of; PrefixTexts has their tokens.
//
// The owner walks from application to application (workload/app_walk.h); each of its
// uses is a request. The application in use is in the foreground, the others in the
// background. A fifth of those that he leaves he closes, and of more than twenty the
// phone closes the one unused for longest. What was asked in an application that was
// closed is mostly over: a quarter goes on where it was.
// All prompts begin with the same words of the assistant.
//
//   conversation  an application talks through one adapter, and adapters have their
//                 applications by a power law; each prompt is all that was said before
//                 and something new, until the next would be too long
//   writing       a document that grows now and then is read by several adapters: half of
//                 the uses by the one before once more, the others by one drawn by the
//                 same law; in half of the applications the base reads it first
//
// Thread: pure functions; PrefixTexts is immutable.
// Ownership: PrefixTexts borrows the text it was given.
// Invariants: the same options are the same requests. No prompt is longer than the
// setup's most, no answer than kPrefixAnswerMost; scaled, every length is at least 1.
// Failure: none.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kv/apps.h"
#include "workload/app_walk.h"

namespace loralei {

// A row of Table 1. The paper states gigabytes: of Llama-2-7B's KV, 0.5 MiB a token.
struct PrefixSetup {
  const char* name;
  int32_t adapters, kv_tokens, prompt_max;
};
inline constexpr std::array<PrefixSetup, 5> kPrefixSetups = {{{"S1", 5, 4096, 1024},
                                                              {"S2", 5, 8192, 1024},
                                                              {"S3", 5, 8192, 2048},
                                                              {"S4", 10, 4096, 1024},
                                                              {"S5", 10, 8192, 2048}}};

inline constexpr int32_t kPrefixAnswerMost = 512;  // tokens of an answer

enum class PrefixTask : uint8_t { kConversation, kWriting };
inline constexpr std::array<const char*, 2> kPrefixTaskNames = {"conversation", "writing"};

// The first tokens of a text.
struct TextPart {
  uint64_t text = 0;
  int32_t tokens = 0;
};

struct PrefixRequest {
  static constexpr int32_t kBase = -1;

  int32_t app = 0;
  int32_t adapter = kBase;
  std::vector<TextPart> prompt;
  int32_t answer_tokens = 0;  // that stand behind it: they go on telling the last text
  double think = 1;           // since the last answer, in means
  // Said before.
  struct Told {
    int32_t app = 0;
    AppState state = AppState::kForeground;
  };
  std::vector<Told> told = {};

  int32_t prompt_tokens() const;
};

struct PrefixWorkloadOptions {
  PrefixSetup setup = kPrefixSetups[0];
  PrefixTask task = PrefixTask::kConversation;
  double scale = 1;  // of all lengths
  size_t requests = 100;
  uint64_t seed = 1;
};
int32_t scaled_length(double tokens, double scale);
std::vector<PrefixRequest> prefix_requests(const AppChances& chances, const PrefixWorkloadOptions& options);

class PrefixTexts {
 public:
  // Texts are cut from `text`, or drawn from all plain tokens where that is empty.
  PrefixTexts(int vocab, std::span<const TokenId> text, uint64_t seed) : vocab_(vocab), text_(text), seed_(seed) {}
  void tell(const TextPart& part, std::vector<TokenId>& tokens) const;  // behind what is there

 private:
  int vocab_;
  std::span<const TokenId> text_;
  uint64_t seed_;
};

// Of the prompts' tokens: those that a cache of each adapter's own prefixes would find if
// nothing ever left it.
double findable_share(std::span<const PrefixRequest> requests, const PrefixTexts& texts);

}  // namespace loralei
