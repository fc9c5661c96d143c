// SPDX-License-Identifier: Apache-2.0
#include "text/stream_decoder.h"

#include <algorithm>

#include "text/tokenizer_core.h"

namespace loralei {

StreamDecoder::StreamDecoder(Tokenizer::Ptr tokenizer, Mode mode, DecodeOptions options)
    : tokenizer_(std::move(tokenizer)), options_(options) {
  const TokenDecoder& decoder = tokenizer_->core().decoder;
  first_ = mode == Mode::kTextStart && decoder.first_differs();
  at_front_ = mode == Mode::kTextStart;
  for (const StripDecoder& strip : decoder.strips()) front_left_.push_back(strip.start);
}

std::string StreamDecoder::push(TokenId id) {
  if ((tokenizer_->is_special(id) && options_.skips(id)) || tokenizer_->is_hole(id)) return {};
  std::string out;
  if (first_) {
    const std::string bytes = tokenizer_->first_token_bytes(id);
    first_ = bytes.empty() && tokenizer_->core().decoder.first_until_text();
    assembler_.push(bytes, out);
  } else {
    assembler_.push(tokenizer_->token_bytes(id), out);
  }
  return strip(std::move(out));
}

std::string StreamDecoder::flush() {
  std::string out;
  assembler_.flush(out);
  out = strip(std::move(out));
  held_back_.clear();
  return out;
}

std::string StreamDecoder::strip(std::string text) {
  const std::vector<StripDecoder>& strips = tokenizer_->core().decoder.strips();
  if (strips.empty() || text.empty()) return text;
  for (size_t i = 0; at_front_ && i < strips.size(); ++i) {
    StripDecoder front = strips[i];
    front.start = front_left_[i];
    front.stop = 0;
    const size_t before = text.size();
    std::string content;
    utf8_append(content, strips[i].content);
    text = strip_text(text, front);
    front_left_[i] -= (before - text.size()) / content.size();
  }
  if (!text.empty()) at_front_ = false;
  // What the strips would take at the end waits until more text follows.
  text = held_back_ + text;
  std::string kept = text;
  for (const StripDecoder& step : strips) {
    StripDecoder back = step;
    back.start = 0;
    kept = strip_text(kept, back);
  }
  held_back_ = text.substr(kept.size());
  return kept;
}

}  // namespace loralei
