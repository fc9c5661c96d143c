// SPDX-License-Identifier: Apache-2.0
// bench blocking: who waits for whom? The first token of a short prompt alone, behind one
// long prompt and behind four of half that length, on the base and on an adapter; and the
// time between the tokens of running streams while a long prompt is computed.
#include <algorithm>
#include <optional>

#include "bench/engine_client.h"
#include "bench/rig.h"
#include "workload/served.h"

namespace loralei {
namespace {

constexpr int kShortPrompt = 20, kFour = 4, kStreams = 8, kStreamPrompt = 32;
constexpr int kStreamTokens = 1000;  // more than come while a long prompt is computed; then cancelled
constexpr double kMs = 1e-6;
// The short prompt comes so long behind the long ones, in the middle of their steps, and
// not always at the same place of one.
constexpr int64_t kBehindNs = 250'000'000, kBehindSpreadNs = 37'000'000;

double first_token_ms(const EngineClient& client, RequestId id) { return client.asked(id).first_token_s() * 1e3; }

// Times between two tokens of a request, of those that came in this span.
void add_gaps_ms(const EngineClient& client, RequestId id, int64_t begin_ns, int64_t end_ns,
                 std::vector<double>& gaps) {
  const std::vector<int64_t>& times = client.asked(id).token_ns;
  for (size_t i = 1; i < times.size(); ++i) {
    if (times[i] > begin_ns && times[i] <= end_ns) gaps.push_back(static_cast<double>(times[i] - times[i - 1]) * kMs);
  }
}

// What was measured on the base or on an adapter, by round; milliseconds.
struct Waits {
  std::vector<double> alone, behind_one, one, behind_four, four, ratio_one, ratio_four;
  std::vector<double> gap_p50, gap_p99, gap_most, beside_streams;
};

// The first token of a short prompt, asked while `longs` prompts of `tokens` tokens are
// computed, and that of the last of these.
struct Behind {
  double short_ms = 0, long_ms = 0;
};
Result<Behind> run_behind(EngineClient& client, int longs, int tokens, std::optional<AdapterSourceId> adapter,
                          int64_t behind_ns) {
  std::vector<RequestId> ids;
  for (int i = 0; i < longs; ++i) {
    TRY_ASSIGN(const RequestId id, client.ask(tokens, 1, adapter));
    ids.push_back(id);
  }
  TRY(client.follow_for(behind_ns));
  TRY_ASSIGN(const RequestId short_id, client.ask(kShortPrompt, 1, adapter));
  TRY(client.follow_to_the_end());
  Behind behind{.short_ms = first_token_ms(client, short_id)};
  for (const RequestId id : ids) behind.long_ms = std::max(behind.long_ms, first_token_ms(client, id));
  return behind;
}

Status run_streams(EngineClient& client, int tokens, std::optional<AdapterSourceId> adapter, Waits& waits) {
  std::vector<RequestId> streams;
  for (int i = 0; i < kStreams; ++i) {
    TRY_ASSIGN(const RequestId id, client.ask(kStreamPrompt, kStreamTokens, adapter));
    streams.push_back(id);
  }
  constexpr size_t kWarm = 4;
  TRY(client.follow([&] {
    return std::all_of(streams.begin(), streams.end(), [&](RequestId id) { return client.tokens(id) >= kWarm; });
  }));
  const int64_t begin_ns = SteadyClock().now_ns();
  TRY_ASSIGN(const RequestId long_id, client.ask(tokens, 1, adapter));
  TRY(client.follow([&] { return client.tokens(long_id) > 0; }));
  std::vector<double> gaps;
  for (const RequestId id : streams) {
    add_gaps_ms(client, id, begin_ns, client.asked(long_id).token_ns.front(), gaps);
    client.cancel(id);
  }
  TRY(client.follow_to_the_end());
  if (gaps.empty()) return internal_error("no stream got a token while the long prompt was computed");
  waits.gap_p50.push_back(percentile(gaps, 0.5));
  waits.gap_p99.push_back(percentile(gaps, 0.99));
  waits.gap_most.push_back(percentile(gaps, 1));
  waits.beside_streams.push_back(first_token_ms(client, long_id));
  return {};
}

Result<Waits> run_round(const BenchOptions& options, Rig& rig, std::optional<AdapterSourceId> adapter, int round) {
  EngineClient client(rig.host->engine(), rig.clock, rig.vocab, static_cast<uint64_t>(round) * 2 + (adapter ? 1 : 0));
  const int64_t behind_ns = kBehindNs + round % 7 * kBehindSpreadNs;
  Waits measured;
  TRY_ASSIGN(const RequestId alone, client.ask(kShortPrompt, 1, adapter));
  TRY(client.follow_to_the_end());
  const double alone_ms = first_token_ms(client, alone);
  TRY_ASSIGN(const Behind one, run_behind(client, 1, options.long_prompt, adapter, behind_ns));
  TRY_ASSIGN(const Behind four, run_behind(client, kFour, options.long_prompt / 2, adapter, behind_ns));
  TRY(run_streams(client, options.long_prompt, adapter, measured));
  measured.alone.push_back(alone_ms);
  measured.behind_one.push_back(one.short_ms);
  measured.one.push_back(one.long_ms);
  measured.behind_four.push_back(four.short_ms);
  measured.four.push_back(four.long_ms);
  measured.ratio_one.push_back(one.short_ms / alone_ms);
  measured.ratio_four.push_back(four.short_ms / alone_ms);
  return measured;
}

void append(const Waits& from, Waits& to) {
  for (const auto member :
       {&Waits::alone, &Waits::behind_one, &Waits::one, &Waits::behind_four, &Waits::four, &Waits::ratio_one,
        &Waits::ratio_four, &Waits::gap_p50, &Waits::gap_p99, &Waits::gap_most, &Waits::beside_streams}) {
    (to.*member).insert((to.*member).end(), (from.*member).begin(), (from.*member).end());
  }
}

void add_rows(const Waits& waits, const std::string& prefix, int long_prompt, BenchReport& report) {
  const std::string one = std::to_string(long_prompt), four = "4x" + std::to_string(long_prompt / 2);
  const auto row = [&](const std::string& name, const char* unit, const std::vector<double>& values) {
    report.rows.push_back(summarise(prefix + name, unit, values));
  };
  row("short_alone.first_token_ms", "ms", waits.alone);
  row("short_behind_" + one + ".first_token_ms", "ms", waits.behind_one);
  row("short_behind_" + one + ".ratio", "ratio", waits.ratio_one);
  report.targets.push_back({report.rows.back().name, "<=", 3.0, report.rows.back().value});
  row("long_" + one + ".first_token_ms", "ms", waits.one);
  row("short_behind_" + four + ".first_token_ms", "ms", waits.behind_four);
  row("short_behind_" + four + ".ratio", "ratio", waits.ratio_four);
  report.targets.push_back({report.rows.back().name, "<=", 3.0, report.rows.back().value});
  row("long_" + four + ".last_first_token_ms", "ms", waits.four);
  row("streams8_beside_" + one + ".gap_p50_ms", "ms", waits.gap_p50);
  row("streams8_beside_" + one + ".gap_p99_ms", "ms", waits.gap_p99);
  report.targets.push_back({report.rows.back().name, "<=", 150.0, report.rows.back().value});
  row("streams8_beside_" + one + ".gap_most_ms", "ms", waits.gap_most);
  row("long_" + one + "_beside_streams8.first_token_ms", "ms", waits.beside_streams);
}

}  // namespace

Status bench_blocking(const BenchOptions& options, LogSink& log, BenchReport& report) {
  BenchOptions sized = options;
  sized.bounded_steps = true;
  sized.batches = {2 * kStreams};
  sized.adapters = 1;
  sized.new_tokens = kStreamTokens;
  Rig rig;
  TRY(open_rig(sized, options.long_prompt, log, rig));
  TRY_ASSIGN(const BenchAdapters adapters, load_adapters(sized, 1, 1, rig));
  Waits base, adapted;
  QuietRounds rounds(options.rounds, options.foreign_max);
  while (rounds.next()) {
    TRY_ASSIGN(const Waits on_base, run_round(options, rig, std::nullopt, rounds.number()));
    TRY_ASSIGN(const Waits on_adapter, run_round(options, rig, rig.runner->source(adapters.names[0]), rounds.number()));
    if (!rounds.keep()) continue;
    append(on_base, base);
    append(on_adapter, adapted);
  }
  const size_t first_row = report.rows.size();
  add_rows(base, "blocking." + rig.label + ".base.", options.long_prompt, report);
  add_rows(adapted, "blocking." + rig.label + ".adapter.", options.long_prompt, report);
  rounds.describe(report, first_row);
  return {};
}

}  // namespace loralei
