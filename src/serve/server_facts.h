// SPDX-License-Identifier: Apache-2.0
// What clients of llama.cpp, vLLM and SGLang ask their server about itself: bodies of GET
// /props, /tokenizer_info, /server_info and /model_info, in those servers' words.
//
// Thread: pure functions of thread-safe things.
// Ownership: borrows, for the call.
// Invariants: only what is true here: a field whose meaning this server does not have is
// left out, never made up; no path but those that /v1/models shows.
// Failure: none.
#pragma once

#include <string>
#include <vector>

#include "engine/api.h"
#include "serve/options.h"
#include "serve/text_model.h"
#include "store/catalogue.h"
#include "wire/requests.h"

namespace loralei {

struct ServerFacts {
  const ServeOptions& options;
  const Engine& engine;
  const TextModel& text;  // the base's
  const Catalogue& catalogue;
  std::vector<AdapterRef> defaults;  // DefaultAdapters::now()
};

std::string props_body(const ServerFacts& facts);           // llama.cpp's
std::string tokenizer_info_body(const ServerFacts& facts);  // vLLM's
std::string server_info_body(const ServerFacts& facts);     // SGLang's, with vLLM's configuration inside
std::string model_info_body(const ServerFacts& facts);      // SGLang's
// llama.cpp's GET /lora-adapters.
std::string lora_adapters_body(const ServerFacts& facts);

}  // namespace loralei
