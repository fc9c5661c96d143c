// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies of every scaling kind, as the reference implementation of the field
// computes them (transformers, modeling_rope_utils): sources are the NTK-by-parts paper
// (YaRN, arXiv 2309.00071) and the Llama 3.1 release notes.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/model.h"

namespace loralei {
namespace {

void scale_llama3(const RopeScaling& scaling, double original_length, std::vector<double>& inv_freq) {
  const double low_wavelength = original_length / scaling.low_freq_factor;
  const double high_wavelength = original_length / scaling.high_freq_factor;
  for (double& frequency : inv_freq) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      frequency /= scaling.factor;
      continue;
    }
    const double smooth =
        (original_length / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    frequency = (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
  }
}

double yarn_mscale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

double yarn_attention_scale(const RopeScaling& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  if (scaling.mscale.value_or(0) != 0 && scaling.mscale_all_dim.value_or(0) != 0) {
    return yarn_mscale(scaling.factor, *scaling.mscale) / yarn_mscale(scaling.factor, *scaling.mscale_all_dim);
  }
  return yarn_mscale(scaling.factor, 1.0);
}

void scale_yarn(const RopeScaling& scaling, double theta, int dim, double original_length,
                std::vector<double>& inv_freq) {
  // The dimension whose wave turns `rotations` times within the original length.
  const auto correction_dim = [&](double rotations) {
    return dim * std::log(original_length / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
  };
  double low = correction_dim(scaling.beta_fast);
  double high = correction_dim(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / scaling.factor * ramp + inv_freq[i] * (1.0 - ramp);
  }
}

// The factors are one choice for all texts, since keys stay in the cache: those for long
// texts where texts may be longer than the model was trained with.
void scale_long(const ModelConfig& config, int64_t max_model_len, std::vector<double>& inv_freq) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto& factors = uses_long_factors(config, max_model_len) ? scaling.long_factors : scaling.short_factors;
  for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] /= static_cast<double>(factors[i]);
}

double long_attention_scale(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.attention_factor) return *scaling.attention_factor;
  const auto original = static_cast<double>(original_position_of(config));
  const double factor = scaling.factor > 0 ? scaling.factor : static_cast<double>(config.max_position) / original;
  return factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original));
}

}  // namespace

bool uses_long_factors(const ModelConfig& config, int64_t max_model_len) {
  return (max_model_len > 0 ? max_model_len : config.max_position) > original_position_of(config);
}

RopeTable make_rope_table(const ModelConfig& config, int64_t max_model_len) {
  const RopeScaling& scaling = config.rope_scaling;
  const int dim = rotary_dim_of(config);
  const auto original_length = static_cast<double>(original_position_of(config));
  double theta = config.rope_theta;
  if (scaling.kind == RopeScalingKind::kDynamic) {
    // The reference recomputes theta as the sequence grows; cached keys need one fixed
    // value, that of the longest sequence served.
    const double length = static_cast<double>(std::max(max_model_len, config.max_position));
    const double stretch = scaling.factor * length / static_cast<double>(config.max_position) - (scaling.factor - 1.0);
    theta *= std::pow(stretch, static_cast<double>(dim) / (dim - 2));
  }
  std::vector<double> inv_freq(static_cast<size_t>(dim) / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = std::pow(theta, -2.0 * static_cast<double>(i) / dim);

  RopeTable table;
  switch (scaling.kind) {
    case RopeScalingKind::kNone:
    case RopeScalingKind::kDynamic:
      break;
    case RopeScalingKind::kLinear:
      for (double& frequency : inv_freq) frequency /= scaling.factor;
      break;
    case RopeScalingKind::kLlama3:
      scale_llama3(scaling, original_length, inv_freq);
      break;
    case RopeScalingKind::kYarn:
      scale_yarn(scaling, theta, dim, original_length, inv_freq);
      table.attention_scale = static_cast<float>(yarn_attention_scale(scaling));
      break;
    case RopeScalingKind::kLongRope:
      scale_long(config, max_model_len, inv_freq);
      table.attention_scale = static_cast<float>(long_attention_scale(config));
      break;
  }
  // GGUF ships the divisors of Llama 3's scaling ready-made; formats/ checked
  // their number.
  for (size_t i = 0; i < scaling.freq_factors.size(); ++i) inv_freq[i] /= scaling.freq_factors[i];
  table.inv_freq.assign(inv_freq.begin(), inv_freq.end());
  return table;
}

}  // namespace loralei
