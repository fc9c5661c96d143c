// SPDX-License-Identifier: Apache-2.0
#include "workload/app_walk.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/check.h"
#include "base/printable.h"
#include "sys/file.h"
#include "workload/csv.h"

namespace loralei {
namespace {

constexpr int64_t kBytesMost = 1 << 28;
constexpr double kWeightMost = 1e9;

// One that is used after `from`, of all.
size_t followed(const AppChances& chances, size_t from, Prng& random) {
  std::vector<double> weights(chances.apps());
  for (size_t to = 0; to < weights.size(); ++to) weights[to] = chances.weight(from, to);
  return WeightedDraw(weights).draw(random);
}

}  // namespace

Status AppChances::add_line(std::string_view line, const std::string& place) {
  double sum = 0;
  size_t count = 0;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1, ++count) {
    end = line.find(',', begin);
    const std::string_view cell = line.substr(begin, end == std::string_view::npos ? end : end - begin);
    const auto weight = parse_number(cell);
    if (!weight || *weight < 0 || *weight > kWeightMost)
      return corrupt(place + ": '" + printable(cell, 80) + "' is not a number from 0 to " + number_text(kWeightMost) +
                     ". A line holds how likely each application follows one, separated by commas.");
    if (count == kAppsMost)
      return corrupt(place + ": more than " + std::to_string(kAppsMost) + " applications are not read.");
    sum += *weight;
    weights_.push_back(*weight);
  }
  if (apps_ == 0) apps_ = count;
  if (count != apps_)
    return corrupt(place + ": the line has " + std::to_string(count) + " numbers, and the first one " +
                   std::to_string(apps_) + ".");
  if (sum > 0) return {};
  return corrupt(place + ": the line holds nothing but zeros. One application at least must follow each.");
}

Result<AppChances> AppChances::read(const std::string& path) {
  TRY_ASSIGN(const std::string text, PosixFileSystem().read_all(path, kBytesMost));
  AppChances chances(0);
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) TRY(chances.add_line(line, path + ":" + std::to_string(number)));
  }
  const size_t lines = chances.apps_ == 0 ? 0 : chances.weights_.size() / chances.apps_;
  if (lines == 0) return corrupt(path + ": the file holds no lines of numbers.");
  if (lines == chances.apps_) return chances;
  return corrupt(path + ": " + std::to_string(lines) + " lines of " + std::to_string(chances.apps_) +
                 " numbers are not a table of chances. It has as many lines as numbers in each.");
}

AppChances AppChances::drawn(uint64_t seed) {
  constexpr size_t kApps = 181, kOften = 14, kNear = 40;  // of as many others are those that often follow
  constexpr double kSame = 0.36, kAny = 0.1;              // of all that follows
  AppChances chances(kApps);
  chances.weights_.assign(kApps * kApps, kAny / kApps);
  Prng random(stream_seed(seed, "applications"));
  for (size_t from = 0; from < kApps; ++from) {
    double* const row = &chances.weights_[from * kApps];
    row[from] += kSame;
    for (size_t i = 0; i < kOften; ++i)
      row[(from + kApps - kNear / 2 + 1 + below_draw(random, kNear)) % kApps] += (1 - kSame - kAny) / kOften;
  }
  return chances;
}

AppWalk::AppWalk(const AppChances& chances, size_t owned, uint64_t seed) : random_(stream_seed(seed, "walk")) {
  CHECK(owned > 0 && chances.apps() > 0);
  constexpr size_t kStepsMost = 100'000;  // where some are hardly ever met: then those of the lowest numbers
  owned = std::min(owned, chances.apps());
  std::vector<size_t> apps = {static_cast<size_t>(below_draw(random_, chances.apps()))};
  const auto meet = [&](size_t app) {
    if (apps.size() < owned && std::find(apps.begin(), apps.end(), app) == apps.end()) apps.push_back(app);
  };
  size_t app = apps.front();
  for (size_t step = 0; apps.size() < owned && step < kStepsMost; ++step) meet(app = followed(chances, app, random_));
  for (size_t any = 0; apps.size() < owned; ++any) meet(any);
  for (const size_t from : apps) {
    std::vector<double> weights;
    for (const size_t to : apps) weights.push_back(chances.weight(from, to));
    // Whatever follows it is not among these: any of them.
    if (std::accumulate(weights.begin(), weights.end(), 0.0) <= 0) std::fill(weights.begin(), weights.end(), 1.0);
    next_.emplace_back(weights);
  }
}

size_t AppWalk::next() {
  now_ = next_[now_].draw(random_);
  return now_;
}

}  // namespace loralei
