// SPDX-License-Identifier: Apache-2.0
#include "apps/command_words.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "apps/foreign_options.h"
#include "formats/json_util.h"

namespace loralei {
namespace {

using Names = std::map<std::string_view, std::string_view>;

// Short options of llama.cpp and vLLM; the parser knows those of one letter that are
// this server's own.
const Names& short_names() {
  static const Names names = {
      {"-C", "--cpu-mask"},
      {"-Cb", "--cpu-mask-batch"},
      {"-Cbd", "--spec-draft-cpu-mask-batch"},
      {"-Cd", "--spec-draft-cpu-mask"},
      {"-Cr", "--cpu-range"},
      {"-Crb", "--cpu-range-batch"},
      {"-Crd", "--spec-draft-cpu-range"},
      {"-ac", "--attention-config"},
      {"-ag", "--agent"},
      {"-asc", "--api-server-count"},
      {"-bf", "--binary-file"},
      {"-bs", "--backend-sampling"},
      {"-cb", "--cont-batching"},
      {"-cc", "--compilation-config"},
      {"-cl", "--cache-list"},
      {"-cmoe", "--cpu-moe"},
      {"-cmoed", "--spec-draft-cpu-moe"},
      {"-cms", "--checkpoint-min-step"},
      {"-cram", "--cache-ram"},
      {"-ctk", "--cache-type-k"},
      {"-ctkd", "--spec-draft-type-k"},
      {"-ctv", "--cache-type-v"},
      {"-ctvd", "--spec-draft-type-v"},
      {"-ctxcp", "--ctx-checkpoints"},
      {"-dc", "--diffusion-config"},
      {"-dcp", "--decode-context-parallel-size"},
      {"-dev", "--device"},
      {"-devd", "--spec-draft-device"},
      {"-dp", "--data-parallel-size"},
      {"-dpa", "--data-parallel-address"},
      {"-dpb", "--data-parallel-backend"},
      {"-dpe", "--data-parallel-external-lb"},
      {"-dph", "--data-parallel-hybrid-lb"},
      {"-dpl", "--data-parallel-size-local"},
      {"-dpm", "--data-parallel-multi-port-external-lb"},
      {"-dpn", "--data-parallel-rank"},
      {"-dpp", "--data-parallel-rpc-port"},
      {"-dpr", "--data-parallel-start-rank"},
      {"-dr", "--docker-repo"},
      {"-dt", "--defrag-thold"},
      {"-e", "--escape"},
      {"-ep", "--enable-expert-parallel"},
      {"-f", "--file"},
      {"-fa", "--flash-attn"},
      {"-fit", "--fit"},
      {"-fitc", "--fit-ctx"},
      {"-fitt", "--fit-target"},
      {"-gan", "--grp-attn-n"},
      {"-hf", "--model"},
      {"-hfd", "--spec-draft-hf"},
      {"-hff", "--hf-file"},
      {"-hfr", "--model"},
      {"-hfrd", "--spec-draft-hf"},
      {"-hft", "--hf-token"},
      {"-j", "--json-schema"},
      {"-jf", "--json-schema-file"},
      {"-kvo", "--kv-offload"},
      {"-kvu", "--kv-unified"},
      {"-l", "--logit-bias"},
      {"-lcd", "--lookup-cache-dynamic"},
      {"-lcs", "--lookup-cache-static"},
      {"-lm", "--load-mode"},
      {"-lv", "--verbosity"},
      {"-lzm", "--lazy-mode"},
      {"-md", "--spec-draft-model"},
      {"-mg", "--main-gpu"},
      {"-mm", "--mmproj"},
      {"-mmu", "--mmproj-url"},
      {"-mu", "--model-url"},
      {"-n", "--n-predict"},
      {"-ncffn", "--n-cpu-ffn"},
      {"-ncmoe", "--n-cpu-moe"},
      {"-ncmoed", "--spec-draft-n-cpu-moe"},
      {"-ngl", "--gpu-layers"},
      {"-ngld", "--spec-draft-ngl"},
      {"-nkvo", "--no-kv-offload"},
      {"-no-ag", "--no-agent"},
      {"-no-kvu", "--no-kv-unified"},
      {"-nocb", "--no-cont-batching"},
      {"-np", "--parallel"},
      {"-nr", "--no-repack"},
      {"-ot", "--override-tensor"},
      {"-otd", "--spec-draft-override-tensor"},
      {"-pcp", "--prefill-context-parallel-size"},
      {"-pp", "--pipeline-parallel-size"},
      {"-q", "--quantization"},
      {"-r", "--reverse-prompt"},
      {"-rea", "--reasoning"},
      {"-s", "--seed"},
      {"-sc", "--speculative-config"},
      {"-sm", "--split-mode"},
      {"-sp", "--special"},
      {"-sps", "--slot-prompt-similarity"},
      {"-tb", "--threads-batch"},
      {"-tbd", "--spec-draft-threads-batch"},
      {"-td", "--spec-draft-threads"},
      {"-to", "--timeout"},
      {"-tp", "--tensor-parallel-size"},
      {"-ts", "--tensor-split"},
      {"-ub", "--ubatch-size"},
      {"-v", "--verbose"},
  };
  return names;
}

// What other servers call options of this one.
const Names& other_names() {
  static const Names names = {
      {"--adapter-id", "--lora-modules"},
      {"--admin-api-key", "--admin-key"},
      {"--chat-template-file", "--chat-template"},
      {"--chat-template-kwargs", "--default-chat-template-kwargs"},
      {"--chunked-prefill-size", "--max-num-batched-tokens"},
      {"--context-length", "--max-model-len"},
      {"--cors-allow-origin", "--cors-origin"},
      {"--cors-origins", "--cors-origin"},
      {"--cuda-memory-fraction", "--gpu-memory-utilization"},
      {"--device-memory-utilization", "--gpu-memory-utilization"},
      {"--disable-radix-cache", "--no-prefix-cache"},
      {"--hf-repo", "--model"},
      {"--hostname", "--host"},
      {"--huggingface-hub-cache", "--download-dir"},
      {"--json-output", "--log-format=json"},
      {"--kv-cache-memory-bytes", "--kv-cache-memory"},
      {"--log-jsonl", "--log-format=json"},
      {"--lora-paths", "--lora-modules"},
      {"--max-num-active-seqs", "--max-num-seqs"},
      {"--max-num-queued-reqs", "--max-queued"},
      {"--max-num-scheduled-tokens", "--max-num-batched-tokens"},
      {"--max-queued-requests", "--max-queued"},
      {"--max-running-requests", "--max-num-seqs"},
      {"--mem-fraction-static", "--gpu-memory-utilization"},
      {"--model-id", "--model"},
      {"--model-path", "--model"},
      {"--no-cache-prompt", "--no-prefix-cache"},
      {"--preloaded-adapter-ids", "--lora-modules"},
      {"--tensor-parallel-size", "--tensor-parallel"},
      {"--tp-size", "--tensor-parallel"},
  };
  return names;
}

class Reader {
 public:
  Reader(const std::vector<std::string>& words, const std::vector<std::string>& own)
      : in_(words), own_(own.begin(), own.end()) {}

  Result<CommandWords> run() {
    has_model_ = in_.size() > 1 && !in_[1].starts_with('-');
    for (const std::string& word : in_) {
      const std::string_view name = std::string_view(word).substr(0, word.find('='));
      has_model_ |= name == "-m" || renamed(name) == "--model";
    }
    while (next_ < in_.size()) TRY(read_one());
    TRY(finish_cache_types());
    return std::move(out_);
  }

 private:
  std::string renamed(std::string_view name) const {
    std::string text(name);
    if (own_.count(text) > 0) return text;
    if (const auto found = short_names().find(name); found != short_names().end()) text = found->second;
    if (text.starts_with("--")) std::replace(text.begin(), text.end(), '_', '-');
    if (own_.count(text) > 0) return text;
    if (const auto found = other_names().find(text); found != other_names().end()) text = found->second;
    return text;
  }

  Status read_one() {
    const std::string& word = in_[next_++];
    if (word.size() < 2 || word[0] != '-') {
      out_.words.push_back(word);
      return {};
    }
    if (is_optimization(word)) return {};
    const size_t equals = word.find('=');
    const std::string name = renamed(std::string_view(word).substr(0, equals));
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const bool has_value = equals != std::string::npos;
    if (name == "--served-model-name" && own_.count(name) > 0) return read_names(has_value, value);
    if (name == "--allowed-origins") return read_origins(has_value ? value : next_value());
    if (name == "--cache-type-k" || name == "--cache-type-v") {
      (name.back() == 'k' ? keys_ : values_) = has_value ? value : next_value();
      return {};
    }
    if (name == "--sampling-defaults") {
      out_.words.push_back(std::string("--generation-config=") +
                           ((has_value ? value : next_value()) == "openai" ? "vllm" : "auto"));
      return {};
    }
    const auto foreign = own_.count(name) > 0 ? std::nullopt : find_foreign_option(name);
    if (foreign) return read_foreign(*foreign, name, has_value, value);
    out_.words.push_back(has_value ? name + "=" + value : name);
    return {};
  }

  // vLLM's -O3.
  bool is_optimization(const std::string& word) {
    if (!word.starts_with("-O") || word.find_first_not_of("0123456789", 2) != std::string::npos) return false;
    out_.notes.push_back(word +
                         " changes nothing here: how a step is computed is chosen by itself, for this processor.");
    return true;
  }

  std::string next_value() { return next_ < in_.size() ? in_[next_++] : std::string(); }

  Status read_foreign(const ForeignOption& option, const std::string& name, bool has_value, std::string value) {
    if (option.takes_value && !has_value) {
      // llama.cpp's --flash-attn stood without a value once.
      const bool optional = name == "--flash-attn" && (next_ == in_.size() || !is_switch(in_[next_]));
      if (!optional) value = next_value();
    }
    TRY_ASSIGN(std::string note, judge_foreign_option(option, name, value));
    out_.notes.push_back(std::move(note));
    return {};
  }
  static bool is_switch(const std::string& word) {
    return word == "on" || word == "off" || word == "auto" || word == "0" || word == "1";
  }

  // vLLM takes several names behind one flag; the first word that could be the MODEL is
  // one only where there is one already.
  Status read_names(bool has_value, const std::string& value) {
    out_.words.push_back("--served-model-name=" + (has_value ? value : next_value()));
    while (has_model_ && next_ < in_.size() && !in_[next_].starts_with('-'))
      out_.words.push_back("--served-model-name=" + next_value());
    return {};
  }

  // ["https://a", "https://b"]
  Status read_origins(const std::string& value) {
    const Json list = Json::parse(value, nullptr, false);
    if (!list.is_array()) {
      out_.words.push_back("--cors-origin=" + value);
      return {};
    }
    for (const Json& origin : list) {
      if (!origin.is_string())
        return invalid_argument("--allowed-origins is a list of texts; write --cors-origin ORIGIN for each.");
      out_.words.push_back("--cors-origin=" + origin.get<std::string>());
    }
    return {};
  }

  // llama.cpp keeps keys and values in formats of their own.
  Status finish_cache_types() {
    if (!keys_ && !values_) return {};
    const std::string keys = keys_.value_or("f16"), values = values_.value_or("f16");
    const std::string what = "--cache-type-k " + keys + " --cache-type-v " + values;
    if (keys != values) {
      return invalid_argument(what +
                              " cannot be had: keys and values are kept in one format here; write "
                              "--kv-cache-dtype f16, bf16, f32, int8 or fp8.");
    }
    static const Names formats = {{"f32", "f32"}, {"f16", "f16"}, {"bf16", "bf16"}, {"q8_0", "int8"}};
    const auto found = formats.find(keys);
    if (found == formats.end()) {
      return invalid_argument(what + " cannot be had: write --kv-cache-dtype f16, bf16, f32, int8 or fp8.");
    }
    out_.words.push_back("--kv-cache-dtype=" + std::string(found->second));
    if (keys == "q8_0")
      out_.notes.push_back(what + " is --kv-cache-dtype int8 here: a byte a number, one scale a vector.");
    return {};
  }

  const std::vector<std::string>& in_;
  const std::set<std::string> own_;
  size_t next_ = 0;
  bool has_model_ = false;
  std::optional<std::string> keys_, values_;
  CommandWords out_;
};

size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j + 1] + 1, row[j] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

Result<CommandWords> read_command_words(const std::vector<std::string>& words, const std::vector<std::string>& own) {
  return Reader(words, own).run();
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  name = name.substr(0, 64);
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  std::string nearest;
  for (const std::string& one : known) {
    // What was typed short of its end is near, however much is missing.
    const size_t far = one.starts_with(name) && name.size() > 4 ? 1 : distance(name, one);
    if (far < least) least = far, nearest = one;
  }
  return nearest;
}

}  // namespace loralei
