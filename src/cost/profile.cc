// SPDX-License-Identifier: Apache-2.0
#include "cost/profile.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/units.h"
#include "formats/json_util.h"

namespace loralei {
namespace {

constexpr int64_t kProfileBytesMax = kMiB;
constexpr int64_t kVersion = 1;
constexpr int32_t kRowsMost = 1 << 24, kTokensMost = 1 << 30, kAtOnceMost = 1024, kLayersMost = 1024;
constexpr size_t kPointsMost = 4096;

// One object of the file: every key is asked for once, and done() names one that was not.
class Section {
 public:
  // `begin`: where the object is in `text`, for lines.
  Section(std::string_view text, const std::string& place, const Json& object, size_t begin)
      : text_(text), place_(place), object_(object), begin_(begin) {}

  Result<Section> inner(const char* key) {
    const Json* const value = find(key);
    if (value == nullptr) return missing(key);
    if (!value->is_object()) return wrong(key, "an object ({...})");
    return Section(text_, place_, *value, at(key));
  }
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  Status text(const char* key, std::string& out) {
    const Json* const value = find(key);
    if (value == nullptr) return missing(key);
    if (!value->is_string()) return wrong(key, "a string");
    out = value->get<std::string>();
    return {};
  }
  // A whole number within [low, high]; `otherwise` where the key is absent, which is an
  // error where that is below `low`.
  template <typename Int>
  Status number(const char* key, Int low, Int high, Int otherwise, Int& out) {
    const Json* const value = find(key);
    out = otherwise;
    if (value == nullptr) return otherwise < low ? Status(missing(key)) : Status();
    const std::string wanted = "a whole number between " + std::to_string(low) + " and " + std::to_string(high);
    if (!value->is_number()) return wrong(key, wanted);
    const double real = value->get<double>();
    if (!(real >= static_cast<double>(low) && real <= static_cast<double>(high)) || real != std::floor(real))
      return wrong(key, wanted);
    out = static_cast<Int>(real);
    return {};
  }
  Status real(const char* key, double low, double& out, bool needed = true) {
    const Json* const value = find(key);
    if (value == nullptr) return needed ? Status(missing(key)) : Status();
    if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < low)
      return wrong(key, low > -1e300 ? "a number of at least " + Json(low).dump() : "a number");
    out = value->get<double>();
    return {};
  }
  const Json* find(const char* key) {
    asked_.insert(key);
    return json_find(object_, key);
  }
  Error wrong(const std::string& key, const std::string& wanted) const {
    return corrupt(line(at(key)) + ": \"" + key + "\" must be " + wanted);
  }
  Status done() const {
    for (const auto& [key, value] : object_.items()) {
      if (asked_.count(key) == 0)
        return corrupt(line(at(key)) + ": there is no \"" + key + "\" in a profile; take it out, or correct its name");
    }
    return {};
  }

 private:
  Error missing(const std::string& key) const { return corrupt(line(begin_) + ": \"" + key + "\" is missing"); }
  size_t at(const std::string& key) const {
    const size_t found = text_.find("\"" + key + "\"", begin_);
    return found == std::string_view::npos ? begin_ : found;
  }
  std::string line(size_t offset) const {
    return place_ + ":" +
           std::to_string(1 + std::count(text_.begin(), text_.begin() + static_cast<int64_t>(offset), '\n'));
  }

  std::string_view text_;
  const std::string& place_;
  const Json& object_;
  size_t begin_;
  std::set<std::string> asked_;
};

Status read_model(Section& file, ProfiledModel& model) {
  TRY_ASSIGN(Section section, file.inner("model"));
  TRY(section.text("name", model.name));
  TRY(section.number("max_tokens", 0, kTokensMost, 0, model.max_tokens));
  TRY(section.number("kv_bytes_per_token", int64_t{1}, int64_t{kGiB}, int64_t{0}, model.kv_bytes_per_token));
  TRY(section.number("adapter_bytes_per_rank", int64_t{0}, int64_t{kGiB}, int64_t{0}, model.adapter_bytes_per_rank));
  TRY(section.number("layers", 0, kLayersMost, 0, model.layers));
  return section.done();
}

Status read_memory(Section& file, ProfiledMemory& memory) {
  constexpr int64_t kMost = int64_t{1} << 50;
  TRY_ASSIGN(Section section, file.inner("memory"));
  TRY(section.number("kv_bytes", int64_t{1}, kMost, int64_t{0}, memory.kv_bytes));
  TRY(section.number("adapter_bytes", int64_t{0}, kMost, int64_t{0}, memory.adapter_bytes));
  TRY(section.number("host_adapter_bytes", int64_t{0}, kMost, int64_t{0}, memory.host_adapter_bytes));
  return section.done();
}

Status read_step(Section& file, StepModel& step) {
  TRY_ASSIGN(Section section, file.inner("step"));
  const Json* const linear = section.find("linear");
  const std::string wanted = "a list of at most " + std::to_string(kPointsMost) + " points, each [rows, seconds]";
  if (linear == nullptr || !linear->is_array() || linear->size() > kPointsMost) return section.wrong("linear", wanted);
  for (const Json& point : *linear) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number_unsigned() || !point[1].is_number())
      return section.wrong("linear", wanted);
    if (point[0].get<uint64_t>() > static_cast<uint64_t>(kRowsMost))
      return section.wrong("linear", "of points with at most " + std::to_string(kRowsMost) + " rows");
    step.linear.push_back({static_cast<int32_t>(point[0].get<uint64_t>()), point[1].get<double>()});
  }
  for (size_t term = 0; term < kCostTerms; ++term)
    TRY(section.real(cost_term_name(static_cast<CostTerm>(term)), 0, step.seconds[term], false));
  if (const std::string unsound = check_step_model(step); !unsound.empty())
    return section.wrong("linear", "sound: " + unsound);
  return section.done();
}

Status read_transfer(Section& file, const char* key, TransferCost& cost) {
  TRY_ASSIGN(Section section, file.inner(key));
  TRY(section.real("seconds", 0, cost.seconds));
  TRY(section.real("bytes_per_second", 1, cost.bytes_per_second));
  TRY(section.number("at_once", 1, kAtOnceMost, 1, cost.at_once));
  return section.done();
}

Status read_assist_points(Section& section, AssistCost& cost) {
  const char* const kKey = "rows_per_second";
  const std::string wanted = "a list of points, each [rank, rows], with ranks that rise and rows above 0";
  const Json* const points = section.find(kKey);
  if (!points->is_array() || points->empty() || points->size() > kPointsMost) return section.wrong(kKey, wanted);
  int32_t rank_before = 0;
  for (const Json& point : *points) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number_unsigned() || !point[1].is_number())
      return section.wrong(kKey, wanted);
    const uint64_t rank = point[0].get<uint64_t>();
    const double rows = point[1].get<double>();
    if (rank > static_cast<uint64_t>(kRowsMost) || !std::isfinite(rows) || rows <= 0)
      return section.wrong(kKey, wanted);
    cost.points.push_back({static_cast<int32_t>(rank), rows});
    if (cost.points.back().rank <= rank_before) return section.wrong(kKey, wanted);
    rank_before = cost.points.back().rank;
  }
  return {};
}

Status read_assist(Section& file, AssistCost& cost) {
  constexpr double kLeastSeconds = 1e-12;
  TRY_ASSIGN(Section section, file.inner("assist"));
  TRY(section.real("message_seconds", 0, cost.message_seconds));
  TRY(section.real("row_seconds_per_rank", kLeastSeconds, cost.row_seconds_per_rank));
  if (section.has("hidden")) TRY(section.number("hidden", 1, kRowsMost, 0, cost.hidden));
  if (section.has("rows_per_second")) TRY(read_assist_points(section, cost));
  return section.done();
}

Status read_fit(Section& file, FitQuality& fit) {
  TRY_ASSIGN(Section section, file.inner("fit"));
  TRY(section.number("steps", int64_t{0}, int64_t{1} << 50, int64_t{0}, fit.steps));
  TRY(section.real("r2", -1e308, fit.r2));
  TRY(section.real("mean_error", 0, fit.mean_error));
  TRY(section.real("p90_error", 0, fit.p90_error));
  TRY(section.real("mean_bias", -1e308, fit.mean_bias));
  return section.done();
}

nlohmann::ordered_json transfer_json(const TransferCost& cost) {
  return {{"seconds", cost.seconds}, {"bytes_per_second", cost.bytes_per_second}, {"at_once", cost.at_once}};
}

}  // namespace

Result<Profile> parse_profile(std::string_view text, const std::string& place) {
  TRY_ASSIGN(const Json json, parse_json_object(text, place, kProfileBytesMax));
  Section file(text, place, json, 0);
  Profile profile;
  std::string format;
  int64_t version = 0;
  TRY(file.text("format", format));
  if (format != "loralei-profile") return file.wrong("format", "\"loralei-profile\"; is this another file?");
  TRY(file.number("version", int64_t{1}, kVersion, int64_t{0}, version));
  TRY(file.text("name", profile.name));
  if (file.has("source")) TRY(file.text("source", profile.source));
  TRY(read_model(file, profile.model));
  TRY(read_memory(file, profile.memory));
  TRY(read_step(file, profile.step));
  if (file.has("disk")) TRY(read_transfer(file, "disk", profile.disk.emplace()));
  if (file.has("link")) TRY(read_transfer(file, "link", profile.link.emplace()));
  if (file.has("assist")) TRY(read_assist(file, profile.assist.emplace()));
  if (file.has("fit")) TRY(read_fit(file, profile.fit.emplace()));
  TRY(file.done());
  return profile;
}

std::string profile_text(const Profile& profile) {
  nlohmann::ordered_json out = {{"format", "loralei-profile"}, {"version", kVersion}, {"name", profile.name}};
  if (!profile.source.empty()) out["source"] = profile.source;
  const ProfiledModel& model = profile.model;
  out["model"] = {{"name", model.name},
                  {"max_tokens", model.max_tokens},
                  {"kv_bytes_per_token", model.kv_bytes_per_token},
                  {"adapter_bytes_per_rank", model.adapter_bytes_per_rank}};
  if (model.layers > 0) out["model"]["layers"] = model.layers;
  const ProfiledMemory& memory = profile.memory;
  out["memory"] = {{"kv_bytes", memory.kv_bytes},
                   {"adapter_bytes", memory.adapter_bytes},
                   {"host_adapter_bytes", memory.host_adapter_bytes}};
  nlohmann::ordered_json& step = out["step"];
  step["linear"] = nlohmann::ordered_json::array();
  for (const LinearPoint& point : profile.step.linear) step["linear"].push_back({point.rows, point.seconds});
  for (size_t term = 0; term < kCostTerms; ++term)
    step[cost_term_name(static_cast<CostTerm>(term))] = profile.step.seconds[term];
  if (profile.disk) out["disk"] = transfer_json(*profile.disk);
  if (profile.link) out["link"] = transfer_json(*profile.link);
  if (profile.assist) {
    nlohmann::ordered_json& assist = out["assist"];
    assist = {{"message_seconds", profile.assist->message_seconds},
              {"row_seconds_per_rank", profile.assist->row_seconds_per_rank}};
    if (profile.assist->hidden > 0) assist["hidden"] = profile.assist->hidden;
    for (const AssistCost::Point& point : profile.assist->points)
      assist["rows_per_second"].push_back({point.rank, point.rows_per_second});
  }
  if (profile.fit) {
    const FitQuality& fit = *profile.fit;
    out["fit"] = {{"steps", fit.steps},
                  {"r2", fit.r2},
                  {"mean_error", fit.mean_error},
                  {"p90_error", fit.p90_error},
                  {"mean_bias", fit.mean_bias}};
  }
  return out.dump(1) + "\n";
}

}  // namespace loralei
