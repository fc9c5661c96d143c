// SPDX-License-Identifier: Apache-2.0
#include "schema/reasoning.h"

#include <algorithm>
#include <iterator>

namespace loralei {
namespace {

constexpr ReasoningForm kThink = {"<think>", "</think>"};
constexpr ReasoningForm kThinkAlways = {"<think>", "</think>", true};
constexpr ReasoningForm kMistral = {"[THINK]", "[/THINK]"};
constexpr ReasoningForm kSeedOss = {"<seed:think>", "</seed:think>"};
constexpr ReasoningForm kKimi = {"◁think▷", "◁/think▷"};
constexpr ReasoningForm kGranite = {"Here is my thought process:", "Here is my response:"};
constexpr ReasoningForm kGptOss = {.open = "<|channel|>analysis<|message|>",
                                   .close = "<|end|><|start|>assistant<|channel|>final<|message|>",
                                   .answer = "<|channel|>final<|message|>",
                                   .tokens = {"<|channel|>", "<|message|>", "<|start|>", "<|end|>"}};

struct Named {
  std::string_view name;
  ReasoningForm form;
};
constexpr Named kNamed[] = {
    {"think", kThink},
    {"deepseek_r1", kThinkAlways},
    {"deepseek_v3", kThink},
    {"ernie45", kThink},
    {"glm45", kThink},
    {"gpt_oss", kGptOss},
    {"granite", kGranite},
    {"holo2", kThink},
    {"interns1", kThink},
    {"kimi", kKimi},
    {"kimi_k2", kThink},
    {"minimax_m2", kThinkAlways},
    {"mistral", kMistral},
    {"nano_v3", kThink},
    {"nemotron_v3", kThink},
    {"olmo3", kThinkAlways},
    {"openai_gptoss", kGptOss},
    {"qwen3", kThink},
    {"qwen3_thinking", kThinkAlways},
    {"seed_oss", kSeedOss},
    {"step3", kThinkAlways},
    {"step3p5", kThinkAlways},
};

constexpr std::string_view kSpace = " \t\r\n";

size_t skip_space(std::string_view text) { return std::min(text.find_first_not_of(kSpace), text.size()); }

std::string_view without_space_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// How much of the text's end may be the beginning of `mark`.
size_t held_for(std::string_view text, std::string_view mark) {
  for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::optional<ReasoningForm> reasoning_form(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  for (const Named& one : kNamed) {
    if (one.name == wanted) return one.form;
  }
  return std::nullopt;
}

std::vector<std::string_view> reasoning_form_names() {
  std::vector<std::string_view> names;
  for (const Named& one : kNamed) names.push_back(one.name);
  return names;
}

std::optional<ReasoningForm> detect_reasoning_form(std::string_view source) {
  const auto has = [&](std::string_view text) { return source.find(text) != std::string_view::npos; };
  if (has(kGptOss.open) && has(kGptOss.answer)) return kGptOss;
  if (has(kSeedOss.close)) return kSeedOss;
  if (has(kKimi.close)) return kKimi;
  if (has(kMistral.open) && has(kMistral.close)) return kMistral;
  if (has(kGranite.open) && has(kGranite.close)) return kGranite;
  if (has(kThink.open) || has(kThink.close)) return kThink;
  return std::nullopt;
}

ReasoningBegin reasoning_begin(const ReasoningForm& form, std::string_view prompt, std::string_view continued) {
  if (skip_space(continued) < continued.size()) {
    const size_t open = continued.rfind(form.open), close = continued.rfind(form.close);
    const bool inside = open != std::string_view::npos && (close == std::string_view::npos || close < open);
    return inside ? ReasoningBegin::kInside : ReasoningBegin::kContent;
  }
  prompt = without_space_behind(prompt);
  if (prompt.ends_with(form.open)) return ReasoningBegin::kInside;
  if (prompt.ends_with(form.close)) return ReasoningBegin::kContent;
  return form.always ? ReasoningBegin::kInside : ReasoningBegin::kMaybe;
}

GrammarForm behind_reasoning(const Reasoning& reasoning, GrammarForm answer, bool must) {
  const auto& [form, begin] = reasoning;
  if (begin == ReasoningBegin::kContent) return answer;
  const std::string close(form.close);
  GrammarForm reasoned = must ? GrammarForm::until(close, GrammarForm::sequence({GrammarForm::space(), answer}))
                              : GrammarForm::triggered(close, answer, true);
  if (begin == ReasoningBegin::kInside) return reasoned;
  GrammarForm opened =
      GrammarForm::sequence({GrammarForm::space(), GrammarForm::marker(std::string(form.open)), std::move(reasoned)});
  if (!form.answer.empty())
    answer = GrammarForm::sequence({GrammarForm::marker(std::string(form.answer)), std::move(answer)});
  return GrammarForm::choice({std::move(opened), std::move(answer)});
}

ReasoningStream::ReasoningStream(const Reasoning& reasoning) : form_(reasoning.form) {
  switch (reasoning.begin) {
    case ReasoningBegin::kInside:
      state_ = State::kInside;
      break;
    case ReasoningBegin::kMaybe:
      state_ = State::kStart;
      break;
    case ReasoningBegin::kContent:
      state_ = State::kBehind;
      break;
  }
}

ReasoningStream::Piece ReasoningStream::push(std::string_view text, bool last) {
  pending_ += text;
  Piece piece;
  bool more = true;
  while (more) {
    switch (state_) {
      case State::kStart:
        more = run_start(last);
        break;
      case State::kInside:
        more = run_inside(piece, last);
        break;
      case State::kBehind:
        more = run_behind();
        break;
      case State::kContent:
        piece.content += pending_;
        pending_.clear();
        more = false;
        break;
    }
  }
  return piece;
}

bool ReasoningStream::run_start(bool last) {
  const std::string_view begin = std::string_view(pending_).substr(skip_space(pending_));
  if (begin.starts_with(form_.open)) {
    state_ = State::kInside;
  } else if (!form_.answer.empty() && begin.starts_with(form_.answer)) {
    pending_.erase(0, pending_.size() - begin.size() + form_.answer.size());
    state_ = State::kBehind;
  } else if (last || !(form_.open.starts_with(begin) || form_.answer.starts_with(begin))) {
    state_ = State::kContent;
  } else {
    return false;
  }
  return true;
}

bool ReasoningStream::run_inside(Piece& piece, bool last) {
  if (!begun_) {
    pending_.erase(0, skip_space(pending_));
    if (may_open_ && pending_.starts_with(form_.open)) {
      may_open_ = false;
      pending_.erase(0, form_.open.size());
      pending_.erase(0, skip_space(pending_));
    }
    if (pending_.empty() || (may_open_ && !last && form_.open.starts_with(pending_))) return false;
    begun_ = true;
  }
  const size_t close = pending_.find(form_.close);
  if (close != std::string::npos) {
    piece.reasoning += without_space_behind(std::string_view(pending_).substr(0, close));
    pending_.erase(0, close + form_.close.size());
    state_ = State::kBehind;
    return true;
  }
  std::string_view ready = pending_;
  if (!last) ready.remove_suffix(held_for(ready, form_.close));
  ready = without_space_behind(ready);
  piece.reasoning += ready;
  pending_.erase(0, last ? pending_.size() : ready.size());
  return false;
}

bool ReasoningStream::run_behind() {
  pending_.erase(0, skip_space(pending_));
  if (pending_.empty()) return false;
  state_ = State::kContent;
  return true;
}

}  // namespace loralei
