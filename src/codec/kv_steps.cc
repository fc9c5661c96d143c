// SPDX-License-Identifier: Apache-2.0
#include "codec/kv_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "base/fast_hash.h"
#include "base/limits.h"
#include "base/utf8.h"
#include "codec/kv_spread.h"
#include "formats/json_util.h"

namespace loralei {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kVersion = 1;
constexpr const char* kFormat = "loralei-kv-steps";
constexpr size_t kDigits = 4, kAdaptersMost = 1 << 16;
constexpr size_t kDigestDigits = 64, kFingerprintDigits = 16;
constexpr uint64_t kSeed = 0x6b767374657073;
constexpr double kBitsMost = 64, kKlMost = 1e300;

std::string hex(uint64_t value, size_t digits) {
  std::string text(digits, '0');
  for (size_t i = 0; i < digits; ++i) text[i] = "0123456789abcdef"[value >> (4 * (digits - 1 - i)) & 15];
  return text;
}
int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}
bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) { return digit(c) >= 0; });
}

// Spaces and the order of keys do not count.
std::string checksum_of(Json json) {
  json.erase("checksum");
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return hex(fast_hash(reinterpret_cast<const std::byte*>(text.data()), text.size(), kSeed), 16);
}

std::string steps_text(std::span<const float> steps) {
  std::string text;
  text.reserve(kDigits * steps.size());
  for (const float step : steps) text += hex(std::bit_cast<uint32_t>(step) >> 16, kDigits);
  return text;
}

KvGridShape shape_of(const KvSteps& steps) {
  return {.layers = steps.layers, .kv_heads = steps.kv_heads, .head_dim = steps.head_dim, .dtype = DType::kF32};
}

// What reading and writing both ask of it; a sentence's end, or nothing.
std::string fault_of(const KvQuality& quality) {
  if (!(quality.agreement >= 0 && quality.agreement <= 1)) return "an agreement is not a share from 0 to 1";
  if (!(quality.mean_kl >= -kKlMost && quality.mean_kl <= kKlMost)) return "a mean KL is not a number";
  if (!(quality.answers_lost >= -kKlMost && quality.answers_lost <= 1)) return "what answers lose is no share";
  for (const int64_t count : {quality.answers_same, quality.answers_exact_right, quality.answers_right})
    if (count < 0 || count > quality.answers) return "more answers are the same or right than there are";
  return quality.positions < 0 ? "positions are less than none" : "";
}
std::string fault_of(const KvAdapterSteps& adapter, int32_t layers) {
  if (!is_valid_utf8(adapter.name)) return "an adapter's name is no UTF-8";
  if (!is_hex(adapter.digest, kDigestDigits)) return "the digest of adapter '" + adapter.name + "' is none";
  if (!(adapter.bits >= 0 && adapter.bits <= kBitsMost && adapter.bits_delta >= 0 && adapter.bits_delta <= kBitsMost))
    return "the bits of adapter '" + adapter.name + "' are none";
  if (adapter.borrow_layers < 0 || adapter.borrow_layers > layers)
    return "adapter '" + adapter.name + "' borrows more layers than there are";
  if (!(adapter.borrow_agreement >= 0 && adapter.borrow_agreement <= 1))
    return "an agreement is not a share from 0 to 1";
  return fault_of(adapter.quality);
}
std::string fault_of(const KvSteps& steps) {
  if (!is_valid_utf8(steps.name)) return "the model's name is no UTF-8";
  if (!is_hex(steps.fingerprint, kFingerprintDigits)) return "the model's fingerprint is none";
  if (steps.text_tokens < 0) return "the text has less than no tokens";
  if (steps.held_out_tokens < 0 || steps.held_out_tokens > steps.text_tokens)
    return "more tokens are held out than the text has";
  if (!(steps.agreement_asked >= 0 && steps.agreement_asked <= 1)) return "the agreement asked for is no share";
  if (!(steps.bits >= 0 && steps.bits <= kBitsMost)) return "the bits of a number are none";
  if (std::string fault = fault_of(steps.quality); !fault.empty()) return fault;
  if (steps.factors.size() != 2 * static_cast<size_t>(std::max(0, steps.layers)))
    return "the factors are not two a layer";
  for (const float factor : steps.factors)
    if (!(factor > 0 && factor < 1e9f)) return "a factor is not a positive number";
  for (const float step : steps.steps)
    if (step != kv_rounded_step(step)) return "a step has more than 8 significant bits";
  for (const KvAdapterSteps& adapter : steps.adapters)
    if (std::string fault = fault_of(adapter, steps.layers); !fault.empty()) return fault;
  return steps.adapters.size() > kAdaptersMost ? "there are too many adapters" : "";
}

Error refused(const std::string& place, const std::string& what) {
  return corrupt(place + ": " + what + "; run loralei calibrate-kv again, or delete the file to use safe steps");
}

// One object of the file.
class Part {
 public:
  Part(const Json& json, const std::string& place) : json_(json), place_(place) {}

  Result<Part> inner(const char* key) const {
    const Json* const value = json_find(json_, key);
    if (value == nullptr || !value->is_object()) return missing(key, "an object");
    return Part(*value, place_);
  }
  bool has(const char* key) const { return json_find(json_, key) != nullptr; }
  Result<const Json*> list(const char* key, size_t most) const {
    const Json* const value = json_find(json_, key);
    if (value == nullptr || !value->is_array() || value->size() > most) return missing(key, "a list of the right size");
    return value;
  }
  Status text(const char* key, std::string& out) const {
    TRY_ASSIGN(std::optional<std::string> value, json_string(json_, key, place_));
    if (!value) return missing(key, "a string");
    out = *std::move(value);
    return {};
  }
  template <typename Int>
  Status whole(const char* key, int64_t low, int64_t high, Int& out) const {
    TRY_ASSIGN(const std::optional<int64_t> value, json_int(json_, key, low, high, place_));
    if (!value) return missing(key, "a whole number");
    out = static_cast<Int>(*value);
    return {};
  }
  Status real(const char* key, double& out) const {
    TRY_ASSIGN(const std::optional<double> value, json_number(json_, key, place_));
    if (!value) return missing(key, "a number");
    out = *value;
    return {};
  }
  Error missing(const char* key, const std::string& wanted) const {
    return refused(place_, std::string("\"") + key + "\" must be " + wanted);
  }

 private:
  const Json& json_;
  const std::string& place_;
};

Status read_quality(const Part& part, KvQuality& quality) {
  TRY(part.real("agreement", quality.agreement));
  TRY(part.real("mean_kl", quality.mean_kl));
  TRY(part.whole("positions", 0, INT64_MAX, quality.positions));
  if (!part.has("answers")) return {};
  TRY_ASSIGN(const Part answers, part.inner("answers"));
  TRY(answers.whole("compared", 0, INT64_MAX, quality.answers));
  TRY(answers.whole("same", 0, quality.answers, quality.answers_same));
  TRY(answers.whole("right_exact", 0, quality.answers, quality.answers_exact_right));
  TRY(answers.whole("right", 0, quality.answers, quality.answers_right));
  return answers.real("lost", quality.answers_lost);
}

Status read_adapters(const Part& file, const std::string& place, KvSteps& steps) {
  TRY_ASSIGN(const Json* const list, file.list("adapters", kAdaptersMost));
  for (const Json& json : *list) {
    if (!json.is_object()) return file.missing("adapters", "a list of objects");
    const Part part(json, place);
    KvAdapterSteps& adapter = steps.adapters.emplace_back();
    TRY(part.text("name", adapter.name));
    TRY(part.text("digest", adapter.digest));
    TRY(read_quality(part, adapter.quality));
    TRY(part.real("bits", adapter.bits));
    TRY(part.real("bits_delta", adapter.bits_delta));
    TRY_ASSIGN(const Part borrow, part.inner("borrow"));
    TRY(borrow.whole("layers", 0, steps.layers, adapter.borrow_layers));
    TRY(borrow.real("agreement", adapter.borrow_agreement));
  }
  return {};
}

Status read_factors(const Part& file, KvSteps& steps) {
  const auto layers = static_cast<size_t>(steps.layers);
  TRY_ASSIGN(const Json* const list, file.list("factors", layers));
  const auto wrong = [&] { return file.missing("factors", "two positive numbers a layer"); };
  if (list->size() != layers) return wrong();
  for (const Json& pair : *list) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) return wrong();
    for (const Json& json : pair) {
      const double factor = json.get<double>();
      if (!(factor > 0 && factor < 1e9)) return wrong();
      steps.factors.push_back(static_cast<float>(factor));
    }
  }
  return {};
}

// The list's sizes are those of the shape before room is made for it.
Status read_steps(const Part& file, KvSteps& steps) {
  const auto layers = static_cast<size_t>(steps.layers);
  const size_t channels = static_cast<size_t>(steps.kv_heads) * static_cast<size_t>(steps.head_dim);
  TRY_ASSIGN(const Json* const list, file.list("steps", layers));
  const auto wrong = [&] { return file.missing("steps", "four hex digits for every channel of each layer's K and V"); };
  const auto is_row = [&](const Json& row) {
    return row.is_string() && is_hex(row.get_ref<const std::string&>(), kDigits * channels);
  };
  if (list->size() != layers) return wrong();
  for (const Json& pair : *list)
    if (!pair.is_array() || pair.size() != 2 || !is_row(pair[0]) || !is_row(pair[1])) return wrong();
  steps.steps.reserve(2 * layers * channels);
  for (const Json& pair : *list) {
    for (const Json& row : pair) {
      const std::string& text = row.get_ref<const std::string&>();
      for (size_t at = 0; at < text.size(); at += kDigits) {
        uint32_t bits = 0;
        for (size_t i = 0; i < kDigits; ++i) bits = bits << 4 | static_cast<uint32_t>(digit(text[at + i]));
        steps.steps.push_back(std::bit_cast<float>(bits << 16));
      }
    }
  }
  return {};
}

OrderedJson quality_json(const KvQuality& quality) {
  OrderedJson out = {{"agreement", quality.agreement}, {"mean_kl", quality.mean_kl}, {"positions", quality.positions}};
  out["answers"] = {{"compared", quality.answers},
                    {"same", quality.answers_same},
                    {"right_exact", quality.answers_exact_right},
                    {"right", quality.answers_right},
                    {"lost", quality.answers_lost}};
  return out;
}

OrderedJson adapter_json(const KvSteps& steps, const KvAdapterSteps& adapter) {
  OrderedJson out = {{"name", adapter.name}, {"digest", adapter.digest}};
  out.update(quality_json(adapter.quality));
  out["bits"] = adapter.bits;
  out["bits_delta"] = adapter.bits_delta;
  out["borrow"] = {{"layers", adapter.borrow_layers},
                   {"agreement", adapter.borrow_agreement},
                   {"prefill_saved", steps.prefill_saved(adapter)}};
  return out;
}

}  // namespace

Result<KvGrid> KvSteps::grid(DType dtype) const {
  KvGridShape shape = shape_of(*this);
  shape.dtype = dtype;
  return KvGrid::create(shape, has_vector_scale(dtype) ? std::span<const float>() : std::span(steps));
}

KvQuality KvSteps::farthest() const {
  KvQuality farthest = quality;
  for (const KvAdapterSteps& adapter : adapters) {
    farthest.agreement = std::min(farthest.agreement, adapter.quality.agreement);
    farthest.mean_kl = std::max(farthest.mean_kl, adapter.quality.mean_kl);
    farthest.answers_lost = std::max(farthest.answers_lost, adapter.quality.answers_lost);
  }
  return farthest;
}

Result<KvSteps> parse_kv_steps(std::string_view text, const std::string& place) {
  TRY_ASSIGN(const Json json, parse_json_object(text, place, kKvStepsBytesMost));
  const Part file(json, place);
  std::string format, checksum;
  int64_t version = 0;
  TRY(file.text("format", format));
  if (format != kFormat) return refused(place, "this is no file of loralei calibrate-kv");
  TRY(file.whole("version", 0, INT64_MAX, version));
  if (version != kVersion) {
    return refused(place, "it has version " + std::to_string(version) + ", and this program reads version " +
                              std::to_string(kVersion));
  }
  TRY(file.text("checksum", checksum));
  if (checksum != checksum_of(json)) return refused(place, "it is damaged or was changed (its checksum is wrong)");
  KvSteps steps;
  TRY_ASSIGN(const Part model, file.inner("model"));
  TRY(model.text("fingerprint", steps.fingerprint));
  TRY(model.text("name", steps.name));
  TRY(model.whole("layers", 1, kMaxLayers, steps.layers));
  TRY(model.whole("kv_heads", 1, kKvCodecMaxHeads, steps.kv_heads));
  TRY(model.whole("head_dim", 1, kKvCodecMaxHeadDim, steps.head_dim));
  TRY_ASSIGN(const Part text_part, file.inner("text"));
  TRY(text_part.whole("tokens", 0, INT64_MAX, steps.text_tokens));
  if (text_part.has("held_out_tokens"))
    TRY(text_part.whole("held_out_tokens", 0, steps.text_tokens, steps.held_out_tokens));
  TRY(text_part.real("agreement_asked", steps.agreement_asked));
  TRY_ASSIGN(const Part base, file.inner("base"));
  TRY(read_quality(base, steps.quality));
  TRY(base.real("bits", steps.bits));
  TRY(read_factors(file, steps));
  TRY(read_steps(file, steps));
  TRY(read_adapters(file, place, steps));
  if (const std::string fault = fault_of(steps); !fault.empty()) return refused(place, fault);
  if (const auto grid = steps.grid(DType::kF32); !grid.ok()) return refused(place, grid.error().message);
  return steps;
}

Result<std::string> kv_steps_text(const KvSteps& steps) {
  if (const std::string fault = fault_of(steps); !fault.empty())
    return internal_error("steps of a KV cache cannot be written, for " + fault + "; report this.");
  TRY(steps.grid(DType::kF32));  // counts them
  OrderedJson out = {{"format", kFormat}, {"version", kVersion}, {"checksum", ""}};
  out["model"] = {{"fingerprint", steps.fingerprint},
                  {"name", steps.name},
                  {"layers", steps.layers},
                  {"kv_heads", steps.kv_heads},
                  {"head_dim", steps.head_dim}};
  out["text"] = {{"tokens", steps.text_tokens},
                 {"held_out_tokens", steps.held_out_tokens},
                 {"agreement_asked", steps.agreement_asked}};
  out["base"] = quality_json(steps.quality);
  out["base"]["bits"] = steps.bits;
  out["adapters"] = OrderedJson::array();
  for (const KvAdapterSteps& adapter : steps.adapters) out["adapters"].push_back(adapter_json(steps, adapter));
  OrderedJson factors = OrderedJson::array(), rows = OrderedJson::array();
  const size_t channels = steps.steps.size() / steps.factors.size();
  for (size_t row = 0; row < steps.factors.size(); row += 2) {
    const auto of_row = [&](size_t at) { return steps_text(std::span(steps.steps).subspan(at * channels, channels)); };
    factors.push_back({steps.factors[row], steps.factors[row + 1]});
    rows.push_back({of_row(row), of_row(row + 1)});
  }
  out["factors"] = std::move(factors);
  out["steps"] = std::move(rows);
  const auto dump = [&] { return out.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n"; };
  out["checksum"] = kv_steps_checksum(dump());
  std::string text = dump();
  if (text.size() > static_cast<size_t>(kKvStepsBytesMost))
    return too_large("steps of a KV cache of this shape make a file of more than 64 MiB; they are not written.");
  return text;
}

Status check_kv_steps(const KvSteps& steps, const std::string& fingerprint, const KvGridShape& shape,
                      const std::string& place) {
  if (steps.fingerprint != fingerprint)
    return refused(place, "it was measured with another model, or another state of this one ('" + steps.name + "')");
  if (steps.layers != shape.layers || steps.kv_heads != shape.kv_heads || steps.head_dim != shape.head_dim)
    return refused(place, "its steps are of another shape than this model's K and V");
  return {};
}

std::string kv_steps_checksum(std::string_view text) {
  const Json json = json_too_deep(text) ? Json() : Json::parse(text, nullptr, false);
  return json.is_object() ? checksum_of(json) : std::string();
}

}  // namespace loralei
