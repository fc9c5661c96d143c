// SPDX-License-Identifier: Apache-2.0
#include "apps/foreign_options.h"

#include <string_view>

namespace loralei {
namespace {

enum class Takes : unsigned char { kNothing, kValue };
constexpr const char* kAnyValue = "*";
constexpr const char* kNone = nullptr;

struct ForeignOption {
  const char* names;
  Takes takes;
  const char* accepted;  // the value that asks for what is so anyway; kAnyValue; kNone: always refused
  const char* sentence;  // how it is here, or what to type instead
};

constexpr ForeignOption kForeignOptions[] = {
    // vLLM
    {"--enable-lora", Takes::kNothing, kAnyValue, "adapters are always served"},
    {"--max-loras", Takes::kValue, kAnyValue, "any number of adapters share a batch"},
    {"--max-cpu-loras", Takes::kValue, kAnyValue, "loaded adapters are limited in bytes (--adapter-memory)"},
    {"--lora-extra-vocab-size", Takes::kValue, kAnyValue, "tokens that an adapter adds are not limited"},
    {"--lora-dtype", Takes::kValue, "auto",
     "adapters are kept as their files hold them; --adapter-quant int8 makes them smaller"},
    {"--enable-prefix-caching", Takes::kNothing, kAnyValue, "prefixes are kept unless --no-prefix-cache is given"},
    {"--enable-chunked-prefill", Takes::kNothing, kAnyValue,
     "prompts are always computed in parts (--max-num-batched-tokens)"},
    {"--trust-remote-code", Takes::kNothing, kAnyValue, "no code that comes with a model is ever run"},
    {"--dtype", Takes::kValue, "auto", "weights keep their file's format; --quant q8_0 or q4_0 makes them smaller"},
    {"--load-format", Takes::kValue, "auto", "the format is seen from the file"},
    {"--tensor-parallel-size,--tp", Takes::kValue, "1",
     "a model is computed by the cores or by one GPU (--device cuda:N)"},
    {"--pipeline-parallel-size,--pp", Takes::kValue, "1",
     "a model is computed by the cores or by one GPU (--device cuda:N)"},
    // SGLang
    {"--lora-paths", Takes::kValue, kNone, "name each adapter with --adapter NAME=PATH"},
    {"--max-loras-per-batch", Takes::kValue, kAnyValue, "any number of adapters share a batch"},
    {"--max-loaded-loras", Takes::kValue, kAnyValue, "loaded adapters are limited in bytes (--adapter-memory)"},
    // llama.cpp
    {"--lora-scaled", Takes::kValue, kNone,
     "name the adapter with --adapter NAME=PATH and give the scale in the request: \"lora\": [{\"id\": NAME, "
     "\"scale\": "
     "0.5}]"},
    {"--lora-init-without-apply", Takes::kNothing, kAnyValue,
     "adapters serve the requests that name them, and no other"},
    {"--n-gpu-layers,--gpu-layers,--ngl", Takes::kValue, "0",
     "--device cuda:N computes all layers on that GPU, --device cpu none"},
    {"--ubatch-size", Takes::kValue, kNone, "--max-num-batched-tokens is the most token rows of one step"},
    {"--cont-batching", Takes::kNothing, kAnyValue, "requests always join the batch as they come"},
    {"--no-mmap", Takes::kNothing, kAnyValue, "weights are read into memory, not mapped"},
    {"--metrics", Takes::kNothing, kAnyValue, "GET /metrics is always served"},
    {"--jinja", Takes::kNothing, kAnyValue, "a model's own chat template is always used"},
};

// The sentence for the log, or throws with the one for the user.
std::string judge(const ForeignOption& option, const std::string& value) {
  const std::string name(option.names, 0, std::string_view(option.names).find(','));
  const bool accepted = option.accepted == kAnyValue || (option.accepted != kNone && option.accepted == value);
  if (accepted) return name + " changes nothing here: " + option.sentence + ".";
  throw CLI::ValidationError(name, "cannot be had as asked for; " + std::string(option.sentence) + ".");
}

}  // namespace

void add_foreign_options(CLI::App& command, std::vector<std::string>& notes) {
  for (const ForeignOption& option : kForeignOptions) {
    const auto given = [&option, &notes](const std::string& value) { notes.push_back(judge(option, value)); };
    CLI::Option* const added = option.takes == Takes::kValue
                                   ? command.add_option_function<std::string>(option.names, given)
                                   : command.add_flag_callback(option.names, [given] { given(""); });
    added->group("");
  }
}

}  // namespace loralei
