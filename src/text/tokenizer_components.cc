// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_components.h"

#include <optional>

#include "base/limits.h"
#include "base/utf8.h"
#include "text/char_classes.h"

namespace loralei {

namespace {

constexpr size_t kMaxSteps = 64;          // of one kind; real files have up to ten
constexpr size_t kMaxReplacement = 4096;  // bytes put in place of a match

std::optional<std::string> decode_base64(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    int value = -1;
    if (c >= 'A' && c <= 'Z') value = c - 'A';
    if (c >= 'a' && c <= 'z') value = c - 'a' + 26;
    if (c >= '0' && c <= '9') value = c - '0' + 52;
    if (c == '+') value = 62;
    if (c == '/') value = 63;
    if (value < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>((bits >> count) & 0xFF);
    }
  }
  return out;
}

// {"String": ...} or {"Regex": ...}
Result<std::variant<std::string, Regex>> parse_pattern(const Json& component, const char* what) {
  using Pattern = std::variant<std::string, Regex>;
  const Json* pattern = json_find(component, "pattern");
  if (pattern == nullptr) return corrupt(std::string("a ") + what + " of the tokenizer has no pattern");
  if (json_find(*pattern, "String") != nullptr) {
    TRY_ASSIGN(std::string text, field_string(*pattern, "String", ""));
    return Pattern(std::move(text));
  }
  if (json_find(*pattern, "Regex") != nullptr) {
    TRY_ASSIGN(const std::string text, field_string(*pattern, "Regex", ""));
    TRY_ASSIGN(Regex regex, Regex::compile(text));
    return Pattern(std::move(regex));
  }
  return corrupt(std::string("the pattern of a ") + what + " of the tokenizer is neither String nor Regex");
}

std::string escape_regex(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && is_unicode_punctuation(byte)) out += '\\';
    out += c;
  }
  return out;
}

Result<ReplaceStep> parse_replace(const Json& component) {
  ReplaceStep step;
  TRY_ASSIGN(step.pattern, parse_pattern(component, "Replace"));
  TRY_ASSIGN(step.content, field_string(component, "content", ""));
  if (step.content.size() > kMaxReplacement) return too_large("the content of a Replace of the tokenizer is too long");
  return step;
}

// Calls visit(component) for `value` or, for a Sequence, for each of its members,
// nested ones too.
template <typename Visit>
Status for_each_step(const Json& value, const char* what, const char* list, size_t& count, Visit&& visit) {
  if (value.is_null()) return {};
  TRY_ASSIGN(const std::string type, field_type(value, what));
  if (type != "Sequence") {
    if (++count > kMaxSteps) return too_large(std::string("the tokenizer has too many ") + list);
    return visit(value, type);
  }
  const Json* members = json_find(value, list);
  if (members == nullptr || !members->is_array())
    return corrupt(std::string("a Sequence of the tokenizer has no ") + list);
  for (const Json& member : *members) TRY(for_each_step(member, what, list, count, visit));
  return {};
}

Result<NormalizeStep> parse_normalize_step(const Json& step, const std::string& type) {
  if (type == "NFC") return NormalizeStep(UnicodeStep{UnicodeForm::kNfc});
  if (type == "NFD") return NormalizeStep(UnicodeStep{UnicodeForm::kNfd});
  if (type == "NFKC") return NormalizeStep(UnicodeStep{UnicodeForm::kNfkc});
  if (type == "NFKD") return NormalizeStep(UnicodeStep{UnicodeForm::kNfkd});
  if (type == "Lowercase") return NormalizeStep(CharRewriteStep{CharRewrite::kLowercase});
  if (type == "StripAccents") return NormalizeStep(CharRewriteStep{CharRewrite::kStripAccents});
  if (type == "Nmt") return NormalizeStep(CharRewriteStep{CharRewrite::kNmt});
  if (type == "ByteLevel") return NormalizeStep(CharRewriteStep{CharRewrite::kByteLevel});
  if (type == "Strip") {
    StripStep strip;
    TRY_ASSIGN(strip.left, field_bool(step, "strip_left", true));
    TRY_ASSIGN(strip.right, field_bool(step, "strip_right", true));
    return NormalizeStep(strip);
  }
  if (type == "Prepend") {
    PrependStep prepend;
    TRY_ASSIGN(prepend.text, field_string(step, "prepend", ""));
    if (prepend.text.size() > kMaxReplacement) return too_large("the text of a Prepend of the tokenizer is too long");
    return NormalizeStep(std::move(prepend));
  }
  if (type == "Replace") {
    TRY_ASSIGN(ReplaceStep replace, parse_replace(step));
    return NormalizeStep(std::move(replace));
  }
  if (type == "Precompiled") {
    TRY_ASSIGN(const std::string encoded, field_string(step, "precompiled_charsmap", ""));
    const auto blob = decode_base64(encoded);
    if (!blob) return corrupt("the precompiled charsmap of the tokenizer is not base64");
    TRY_ASSIGN(CharsMap map, CharsMap::parse(*blob));
    return NormalizeStep(PrecompiledStep{std::make_shared<const CharsMap>(std::move(map))});
  }
  return refuse_component("normalizer", type);
}

Result<SplitBehavior> parse_behavior(const Json& step) {
  TRY_ASSIGN(const std::string name, field_string(step, "behavior", "Isolated"));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return refuse_component("split behavior", name);
}

// Metaspace of both ages: prepend_scheme, or add_prefix_space alone.
Result<PrependScheme> parse_prepend_scheme(const Json& step) {
  TRY_ASSIGN(const bool prefix, field_bool(step, "add_prefix_space", true));
  if (json_find(step, "prepend_scheme") == nullptr) return prefix ? PrependScheme::kAlways : PrependScheme::kNever;
  TRY_ASSIGN(const std::string name, field_string(step, "prepend_scheme", ""));
  if (!prefix && name != "never")
    return corrupt("a Metaspace of the tokenizer has add_prefix_space false and prepend_scheme '" + name + "'");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  return refuse_component("prepend_scheme", name);
}

Result<SplitStep> parse_split(const Json& step) {
  TRY_ASSIGN(const SplitBehavior behavior, parse_behavior(step));
  TRY_ASSIGN(const bool invert, field_bool(step, "invert", false));
  TRY_ASSIGN(auto pattern, parse_pattern(step, "Split"));
  if (auto* regex = std::get_if<Regex>(&pattern)) return SplitStep{std::move(*regex), behavior, invert};
  TRY_ASSIGN(Regex regex, Regex::compile(escape_regex(std::get<std::string>(pattern))));
  return SplitStep{std::move(regex), behavior, invert};
}

Status add_pre_tokenize_steps(const Json& step, const std::string& type, PreTokenizer& out) {
  if (type == "ByteLevel") {
    ByteLevelStep bytes;
    TRY_ASSIGN(bytes.add_prefix_space, field_bool(step, "add_prefix_space", true));
    TRY_ASSIGN(const bool use_regex, field_bool(step, "use_regex", true));
    if (use_regex) {
      TRY_ASSIGN(Regex regex, gpt2_regex());
      bytes.regex = std::move(regex);
    }
    out.add(std::move(bytes));
  } else if (type == "Split") {
    TRY_ASSIGN(SplitStep split, parse_split(step));
    out.add(std::move(split));
  } else if (type == "Metaspace") {
    MetaspaceStep metaspace;
    TRY_ASSIGN(const char32_t replacement, field_char(step, "replacement", 0x2581));
    metaspace.replacement.clear();
    utf8_append(metaspace.replacement, replacement);
    TRY_ASSIGN(metaspace.scheme, parse_prepend_scheme(step));
    TRY_ASSIGN(metaspace.split, field_bool(step, "split", true));
    out.add(std::move(metaspace));
  } else if (type == "Whitespace") {
    out.add(WhitespaceStep{});
  } else if (type == "WhitespaceSplit") {
    out.add(CharClassStep{CharClass::kSpace, SplitBehavior::kRemoved});
  } else if (type == "Digits") {
    TRY_ASSIGN(const bool each, field_bool(step, "individual_digits", false));
    out.add(CharClassStep{CharClass::kNumber, each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (type == "Punctuation") {
    TRY_ASSIGN(const SplitBehavior behavior, parse_behavior(step));
    out.add(CharClassStep{CharClass::kPunctuation, behavior});
  } else if (type == "BertPreTokenizer") {
    out.add(CharClassStep{CharClass::kSpace, SplitBehavior::kRemoved});
    out.add(CharClassStep{CharClass::kPunctuation, SplitBehavior::kIsolated});
  } else if (type == "CharDelimiterSplit") {
    TRY_ASSIGN(const char32_t delimiter, field_char(step, "delimiter", U' '));
    out.add(CharClassStep{CharClass::kDelimiter, SplitBehavior::kRemoved, delimiter});
  } else {
    return refuse_component("pre_tokenizer", type);
  }
  return {};
}

Result<StripDecoder> parse_strip_decoder(const Json& step) {
  StripDecoder strip;
  TRY_ASSIGN(strip.content, field_char(step, "content", U' '));
  TRY_ASSIGN(const int64_t start, field_int(step, "start", 0));
  TRY_ASSIGN(const int64_t stop, field_int(step, "stop", 0));
  constexpr int64_t kMaxStrip = 1 << 20;
  if (start < 0 || stop < 0 || start > kMaxStrip || stop > kMaxStrip)
    return corrupt("a Strip decoder of the tokenizer has counts out of range");
  strip.start = static_cast<size_t>(start);
  strip.stop = static_cast<size_t>(stop);
  return strip;
}

// Where in the form of tokenizer_decoder.h the chain has arrived.
enum class DecoderStage : unsigned char { kPieces, kBytes, kFused, kByteLevel };

Status add_decoder(const Json& step, const std::string& type, DecoderPlan& plan, DecoderStage& stage) {
  const auto out_of_order = [&] {
    return unsupported("the decoder '" + type +
                       "' of the tokenizer stands at a place in its Sequence that is not supported");
  };
  std::vector<PieceRewrite>& rewrites = stage == DecoderStage::kBytes ? plan.late_rewrites : plan.rewrites;
  if (type == "Fuse") {
    if (stage != DecoderStage::kByteLevel) stage = DecoderStage::kFused;
    return {};
  }
  if (type == "ByteLevel") {
    if (stage != DecoderStage::kPieces || !plan.rewrites.empty()) return out_of_order();
    plan.byte_level = true;
    stage = DecoderStage::kByteLevel;
    return {};
  }
  if (type == "ByteFallback") {
    if (stage != DecoderStage::kPieces) return out_of_order();
    plan.byte_runs = ByteRuns::kAllOrNothing;
    stage = DecoderStage::kBytes;
    return {};
  }
  if (type == "Strip") {
    TRY_ASSIGN(const StripDecoder strip, parse_strip_decoder(step));
    if (stage == DecoderStage::kByteLevel) return out_of_order();
    if (stage == DecoderStage::kFused) {
      plan.strips.push_back(strip);
    } else {
      rewrites.emplace_back(strip);
    }
    return {};
  }
  if (type != "Replace" && type != "Metaspace") return refuse_component("decoder", type);
  if (stage != DecoderStage::kPieces && stage != DecoderStage::kBytes) return out_of_order();
  if (type == "Replace") {
    TRY_ASSIGN(ReplaceStep replace, parse_replace(step));
    rewrites.emplace_back(std::move(replace));
    return {};
  }
  MetaspaceDecoder metaspace;
  TRY_ASSIGN(metaspace.replacement, field_char(step, "replacement", 0x2581));
  TRY_ASSIGN(const PrependScheme scheme, parse_prepend_scheme(step));
  metaspace.drop_first = scheme != PrependScheme::kNever;
  rewrites.emplace_back(metaspace);
  return {};
}

Result<TokenId> checked_id(const Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocab)) {
    return corrupt("the post_processor of the tokenizer names an id that is not in 0.." +
                   std::to_string(kMaxVocab - 1));
  }
  return static_cast<TokenId>(value.get<uint64_t>());
}

Status add_template(const Json& processor, SpecialFrame& frame) {
  constexpr size_t kMaxTemplate = 256;
  const Json* single = json_find(processor, "single");
  const Json* specials = json_find(processor, "special_tokens");
  if (single == nullptr || !single->is_array())
    return corrupt("the TemplateProcessing of the tokenizer has no list 'single'");
  if (single->size() > kMaxTemplate) return too_large("the TemplateProcessing of the tokenizer is too long");
  SpecialFrame own;
  bool seen_text = false;
  for (const Json& piece : *single) {
    if (const Json* sequence = json_find(piece, "Sequence")) {
      TRY_ASSIGN(const std::string id, field_string(*sequence, "id", ""));
      if (id != "A" || seen_text)
        return unsupported("the TemplateProcessing of the tokenizer does not use its text exactly once");
      seen_text = true;
      continue;
    }
    const Json* special = json_find(piece, "SpecialToken");
    if (special == nullptr)
      return corrupt("the TemplateProcessing of the tokenizer has a piece that is neither text nor a special token");
    TRY_ASSIGN(const std::string name, field_string(*special, "id", ""));
    const Json* entry = specials == nullptr ? nullptr : json_find(*specials, name.c_str());
    const Json* ids = entry == nullptr ? nullptr : json_find(*entry, "ids");
    if (ids == nullptr || !ids->is_array() || ids->size() > kMaxTemplate) {
      return corrupt("the TemplateProcessing of the tokenizer uses '" + name.substr(0, 100) +
                     "' without saying its ids");
    }
    for (const Json& value : *ids) {
      TRY_ASSIGN(const TokenId id, checked_id(value));
      (seen_text ? own.suffix : own.prefix).push_back(id);
    }
  }
  if (!seen_text) return unsupported("the TemplateProcessing of the tokenizer does not use its text exactly once");
  frame.prefix.insert(frame.prefix.begin(), own.prefix.begin(), own.prefix.end());
  frame.suffix.insert(frame.suffix.end(), own.suffix.begin(), own.suffix.end());
  return {};
}

// BertProcessing and RobertaProcessing: {"cls": [text, id], "sep": [text, id]}.
Status add_cls_sep(const Json& processor, SpecialFrame& frame) {
  const auto id_of = [&](const char* key) -> Result<TokenId> {
    const Json* pair = json_find(processor, key);
    if (pair == nullptr || !pair->is_array() || pair->size() != 2) {
      return corrupt(std::string("the post_processor of the tokenizer has no pair '") + key + "'");
    }
    return checked_id((*pair)[1]);
  };
  TRY_ASSIGN(const TokenId cls, id_of("cls"));
  TRY_ASSIGN(const TokenId sep, id_of("sep"));
  frame.prefix.insert(frame.prefix.begin(), cls);
  frame.suffix.push_back(sep);
  return {};
}

}  // namespace

Result<Normalizer> parse_normalizer(const Json& value) {
  Normalizer normalizer;
  size_t count = 0;
  TRY(for_each_step(value, "normalizer", "normalizers", count,
                    [&](const Json& step, const std::string& type) -> Status {
                      TRY_ASSIGN(NormalizeStep parsed, parse_normalize_step(step, type));
                      normalizer.add(std::move(parsed));
                      return {};
                    }));
  return normalizer;
}

Result<PreTokenizer> parse_pre_tokenizer(const Json& value) {
  PreTokenizer pre_tokenizer;
  size_t count = 0;
  TRY(for_each_step(value, "pre_tokenizer", "pretokenizers", count, [&](const Json& step, const std::string& type) {
    return add_pre_tokenize_steps(step, type, pre_tokenizer);
  }));
  return pre_tokenizer;
}

Result<TokenDecoder> parse_decoder(const Json& value) {
  DecoderPlan plan;
  if (value.is_null()) plan.separator = " ";
  DecoderStage stage = DecoderStage::kPieces;
  size_t count = 0;
  TRY(for_each_step(value, "decoder", "decoders", count,
                    [&](const Json& step, const std::string& type) { return add_decoder(step, type, plan, stage); }));
  return TokenDecoder(std::move(plan));
}

Result<SpecialFrame> parse_post_processor(const Json& value) {
  SpecialFrame frame;
  size_t count = 0;
  TRY(for_each_step(value, "post_processor", "processors", count,
                    [&](const Json& step, const std::string& type) -> Status {
                      if (type == "ByteLevel") return {};  // it only moves offsets
                      if (type == "TemplateProcessing") return add_template(step, frame);
                      if (type == "BertProcessing" || type == "RobertaProcessing") return add_cls_sep(step, frame);
                      return refuse_component("post_processor", type);
                    }));
  return frame;
}

}  // namespace loralei
