// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

namespace loralei {
namespace {

constexpr size_t kProbesMost = 20;       // of a round
constexpr int32_t kFirstRung = 6;        // of the first probes: half a spread
constexpr int32_t kNear = 2;             // rungs between two probes, at least
constexpr double kSteepUnknown = 2;      // of one point: noise grows with the square of a step
constexpr double kFlat = 1, kSteep = 8;  // and what two points may say
constexpr double kDivergenceLeast = 1e-9;

// Rows that are probed together, and what a row of them adds to the divergence:
// at * (factor / that of `rung`)^steep.
struct Group {
  std::vector<size_t> rows;
  int32_t rung = kFirstRung;
  double at = kDivergenceLeast, steep = kSteepUnknown;

  double divergence(int32_t other) const {
    return at * std::pow(static_cast<double>(kv_rung_factor(other) / kv_rung_factor(rung)), steep);
  }
};

// K, or V, of neighbouring layers.
std::vector<Group> groups_of(size_t rows) {
  const size_t layers = rows / 2, most = kProbesMost / 2;
  const size_t together = std::max<size_t>(1, (layers + most - 1) / most);
  std::vector<Group> groups;
  for (size_t v = 0; v < 2; ++v) {
    for (size_t layer = 0; layer < layers; ++layer) {
      if (layer % together == 0) groups.emplace_back();
      groups.back().rows.push_back(2 * layer + v);
    }
  }
  return groups;
}

class Search {
 public:
  Search(size_t rows, const KvTrials& trials) : rows_(rows), trials_(trials), groups_(groups_of(rows)) {}

  Result<KvSearch> run() {
    found_.rungs.assign(rows_, 0);
    ++found_.trials;
    TRY_ASSIGN(ground_, trials_.divergence(found_.rungs));
    for (Group& group : groups_) {
      TRY_ASSIGN(group.at, probe(group, kFirstRung));
    }
    TRY(bisect());
    if (!found_.holds) return found_;
    for (Group& group : groups_) TRY(probe_near(group));
    TRY(bisect());
    return found_;
  }

 private:
  // What a row of the group adds at that rung.
  Result<double> probe(const Group& group, int32_t rung) {
    KvRungs rungs(rows_, 0);
    for (const size_t row : group.rows) rungs[row] = rung;
    ++found_.trials;
    TRY_ASSIGN(const double divergence, trials_.divergence(rungs));
    return std::max(kDivergenceLeast, (divergence - ground_) / static_cast<double>(group.rows.size()));
  }

  Status probe_near(Group& group) {
    const int32_t found = found_.rungs[group.rows[0]];  // much finer ones change too little to tell
    const int32_t rung = found < group.rung ? group.rung - kNear : std::max(found, group.rung + kNear);
    TRY_ASSIGN(const double at, probe(group, rung));
    const double octaves = 0.5 * (rung - group.rung);
    group.steep = std::clamp(std::log2(at / group.at) / octaves, kFlat, kSteep);
    group.rung = rung;
    group.at = at;
    return {};
  }

  // Rows in the order in which they get a rung more.
  std::vector<size_t> path() const {
    struct Step {
      double worth = 0;
      size_t row = 0;
      int32_t rung = 0;
    };
    std::vector<Step> steps;
    for (const Group& group : groups_) {
      for (const size_t row : group.rows) {
        double worth = HUGE_VAL;  // of a row no step is before the one that it needs
        for (int32_t rung = 0; rung + 1 < kKvRungs; ++rung) {
          const double saved = std::max(0.0, trials_.bits(row, rung) - trials_.bits(row, rung + 1));
          worth = std::min(worth, saved / (group.divergence(rung + 1) - group.divergence(rung)));
          steps.push_back({worth, row, rung});
        }
      }
    }
    std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
      if (a.worth != b.worth) return a.worth > b.worth;
      return std::pair(a.rung, a.row) < std::pair(b.rung, b.row);
    });
    std::vector<size_t> rows;
    for (const Step& step : steps) rows.push_back(step.row);
    return rows;
  }

  double bits(const KvRungs& rungs) const {
    double bits = 0;
    for (size_t row = 0; row < rows_; ++row) bits += trials_.bits(row, rungs[row]);
    return bits;
  }

  // Keeps what holds and takes fewer bits than what has been kept.
  Status bisect() {
    const std::vector<size_t> path = this->path();
    const auto at = [&](size_t steps) {
      KvRungs rungs(rows_, 0);
      for (const size_t row : std::span(path).first(steps)) ++rungs[row];
      return rungs;
    };
    size_t low = 0, high = path.size() + 1;  // `low` holds, or is the finest
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      TRY_ASSIGN(const bool holds, ask(at(middle)));
      (holds ? low : high) = middle;
    }
    if (!found_.holds) {
      TRY(ask(at(0)));
    }
    return {};
  }

  Result<bool> ask(const KvRungs& rungs) {
    ++found_.trials;
    TRY_ASSIGN(const bool holds, trials_.holds(rungs));
    if (holds && (!found_.holds || bits(rungs) < bits(found_.rungs))) found_.rungs = rungs, found_.holds = true;
    return holds;
  }

  const size_t rows_;
  const KvTrials& trials_;
  std::vector<Group> groups_;
  double ground_ = 0;  // divergence of the finest of all
  KvSearch found_;
};

}  // namespace

float kv_rung_factor(int32_t rung) { return std::exp2(0.5f * static_cast<float>(rung) - 4); }

Result<KvSearch> search_kv_rungs(size_t rows, const KvTrials& trials) { return Search(rows, trials).run(); }

}  // namespace loralei
