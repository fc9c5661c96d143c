// SPDX-License-Identifier: Apache-2.0
// What `loralei calibrate-kv` measures: steps of the base's K and V with which answers
// of a text, and its next tokens, stay what they are, for the base and for each adapter;
// what blocks then take; and for how many layers each adapter may read the base's K and
// V (tokens in, figures out; the command reads files and prints).
//
// Steps are searched with one half of the text (KvHalf). What stands in the result was
// measured once, on the other.
//
// Borrowing: below a layer the prefix is computed without the adapter. Depths are tried
// from all layers down; the first is taken with which the text and the answers to the
// adapter's prompts agree as asked. At depth 0 nothing is borrowed and all is the same.
//
// Thread: one. Ownership: borrows the host. Progress goes to the log, a line a trial.
// Failure: what the model or memory refuse, in a sentence. An agreement that even the
// finest steps miss is an answer (`holds` false).
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "bench/kv_trial.h"
#include "codec/kv_steps.h"
#include "engine/model_host.h"

namespace loralei {

struct CalibratedAdapter {
  std::string name;
  std::shared_ptr<const Adapter> adapter;
  std::vector<std::vector<TokenId>> prompts;  // in its own tokens
  std::vector<TokenId> ends;                  // where its answers end
};

struct KvCalibrationOptions {
  std::string model_name;
  std::vector<KvDocument> text;  // without special tokens, but for those of prompts
  std::vector<TokenId> begin;    // what stands before each piece of one without a prompt
  int64_t tokens = 8192;         // of the text, at most
  double agreement = 0.995;      // asked for, a share (answers_hold, and of positions)
  int32_t answer_tokens = 32;
  std::vector<CalibratedAdapter> adapters;
};

struct KvCalibration {
  KvSteps steps;
  bool holds = false;
  int32_t trials = 0;
  size_t pieces = 0, pieces_wanted = 0;
  std::vector<double> row_bits;  // [layers][2], KvTrial::entropies
  // Of each adapter.
  struct Borrow {
    double text = 1, answers = 1;  // agreement at its depth
    size_t prompts = 0;            // that have blocks to borrow
  };
  std::vector<Borrow> borrow;
};

Result<KvCalibration> calibrate_kv(ModelHost& host, const KvCalibrationOptions& options, LogSink& log);
// For people.
std::string kv_calibration_table(const KvCalibration& found);

}  // namespace loralei
