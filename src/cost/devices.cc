// SPDX-License-Identifier: Apache-2.0
// Profiles that come with the program: Llama-2-7B in 16 bits on four GPUs.
//
// Where the numbers are from:
//  - linear: medians measured by Vidur (microsoft/vidur, MIT, data/profiling/compute/GPU/
//    meta-llama/Llama-2-7b-hf/mlp.csv, one GPU): all products, norms, activations and
//    sums of a layer, 32 times, and the embedding. The points here are those of its 259
//    numbers of tokens between which straight lines miss none by more than 4 %.
//    The head is not in it: its products are the logits' rows, at the units' rate; its
//    reading (262 MB a step) is left out.
//  - attention is not in that table. A row that decodes reads 524,288 bytes of KV for a
//    position (2 x 32 layers x 4,096 x 2 bytes), a row of a prompt computes as many
//    operations (4 x 4,096 x 32); at 80 % of the memory's and 40 % of the units' rate
//    of the maker's data sheets (A40: 696 GB/s, 149.7 TFLOP/s; A100: 2,039 and 312;
//    H100: 3,350 and 989).
//  - LoRA on q, k, v, o: 2,097,152 bytes for a rank, read once a step at the same rate.
//    Its arithmetic on an A40: Chameleon (2411.17741), figure 2: with rank 128 adapter
//    computing takes 42.5 % of the first token's time (60 % less 17.5 % for loading), the
//    model 40 %. With 512 tokens, which the table computes in 71 ms, that is 76 ms for
//    65,536 rows times ranks. On the other two in the ratio of the units' rates.
//  - link: the same figure's loading takes 31 ms for the 268 MB of rank 128, 8.6 GB/s of
//    the A40's PCIe 4.0 x16. The A100 has the same, the H100's is twice as fast.
//  - disk: not in any of these; 2 GB/s and a millisecond are a data centre's SSD.
//  - the A10 is the A40's chip with fewer of its units (600 GB/s, 125 TFLOP/s): its table
//    is that of the A40, 1.2 times as long. It stands for CaraServe's machine
//    (2401.11240). Adapters come in 32 layers, and a core that helps computes 50 Gflop a
//    second of the 65,536 of a row and rank in a layer; 50 microseconds pass rows on. The
//    others have no such numbers: adapters come to a GPU as a whole today.
//  - "-bgmv" and "-mbgmv" are an A10 with the two kernels whose models CaraServe fits
//    (§5, figure 9; both with R^2 = 0.96): every row reads its adapter, padded to the
//    largest rank of the step or as it is. They read at 70 % of the memory's rate, as
//    measured there, and adapters of q, k and v: 1,572,864 bytes for a rank.
//  - memory: the card's, less 13.5 GB of weights and a tenth; a quarter for adapters.
#include <span>

#include "cost/profile.h"

namespace loralei {
namespace {

constexpr LinearPoint kA40Linear[] = {
    {1, 0.023938},    {48, 0.029348},   {128, 0.030279},  {136, 0.038120},  {144, 0.034792},  {192, 0.034892},
    {200, 0.041052},  {248, 0.043950},  {272, 0.051184},  {384, 0.054997},  {392, 0.067270},  {512, 0.071132},
    {520, 0.081085},  {576, 0.079375},  {584, 0.089712},  {760, 0.099945},  {856, 0.118716},  {952, 0.123249},
    {976, 0.133746},  {1216, 0.152270}, {1280, 0.158275}, {1296, 0.178785}, {1552, 0.192463}, {3552, 0.455106},
    {3840, 0.460143}, {3872, 0.466242}, {4000, 0.535242}, {4096, 0.523082}};
constexpr LinearPoint kA100Linear[] = {
    {1, 0.009283},    {64, 0.009702},   {72, 0.011366},   {128, 0.012249},  {136, 0.017593},  {160, 0.017835},
    {184, 0.015820},  {208, 0.017932},  {256, 0.017823},  {264, 0.022431},  {384, 0.023590},  {392, 0.030038},
    {504, 0.032715},  {528, 0.038174},  {552, 0.037167},  {616, 0.040675},  {640, 0.041331},  {664, 0.046246},
    {768, 0.046075},  {776, 0.054956},  {864, 0.059220},  {960, 0.061401},  {976, 0.068890},  {1136, 0.072053},
    {1200, 0.080040}, {1280, 0.077196}, {1312, 0.089007}, {1408, 0.087252}, {1424, 0.094852}, {1792, 0.117162},
    {2176, 0.144671}, {4096, 0.258619}};
constexpr LinearPoint kH100Linear[] = {
    {1, 0.005602},    {64, 0.005860},   {72, 0.007205},   {96, 0.007301},   {104, 0.006357},  {128, 0.006374},
    {136, 0.008486},  {144, 0.007574},  {192, 0.007415},  {200, 0.009112},  {256, 0.009161},  {320, 0.009771},
    {328, 0.010987},  {368, 0.010956},  {376, 0.011596},  {384, 0.011052},  {392, 0.012557},  {512, 0.012000},
    {520, 0.015408},  {640, 0.015731},  {648, 0.019251},  {752, 0.019238},  {824, 0.020440},  {952, 0.020972},
    {1024, 0.021054}, {1040, 0.025134}, {1120, 0.025664}, {1136, 0.027873}, {1152, 0.025473}, {1280, 0.026501},
    {1296, 0.030582}, {1520, 0.031661}, {1552, 0.035390}, {1600, 0.035535}, {2032, 0.040314}, {2048, 0.040379},
    {2080, 0.046140}, {2784, 0.058515}, {3680, 0.079985}, {4096, 0.083591}};

// What a step reads of its adapters: each once; each row its own; each row the largest.
enum class LoraKernel : uint8_t { kSegmented, kGathered, kPadded };

struct Gpu {
  const char* name;
  std::span<const LinearPoint> linear;
  double memory_bytes, read_bytes_per_s, flop_per_s, link_bytes_per_s;
  double linear_scale = 1;
  bool helped = false;
  LoraKernel kernel = LoraKernel::kSegmented;
};
constexpr Gpu kGpus[] = {
    {"a40-llama2-7b", kA40Linear, 48e9, 0.8 * 696e9, 0.4 * 149.7e12, 8.6e9},
    {"a100-llama2-7b", kA100Linear, 80e9, 0.8 * 2039e9, 0.4 * 312e12, 8.6e9},
    {"h100-llama2-7b", kH100Linear, 80e9, 0.8 * 3350e9, 0.4 * 989e12, 17.2e9},
    {"a10-llama2-7b", kA40Linear, 24e9, 0.8 * 600e9, 0.4 * 125e12, 8.6e9, 1.2, true},
    {"a10-llama2-7b-bgmv", kA40Linear, 24e9, 0.8 * 600e9, 0.4 * 125e12, 8.6e9, 1.2, true, LoraKernel::kPadded},
    {"a10-llama2-7b-mbgmv", kA40Linear, 24e9, 0.8 * 600e9, 0.4 * 125e12, 8.6e9, 1.2, true, LoraKernel::kGathered}};

constexpr double kWeightBytes = 13.5e9;
constexpr int64_t kKvBytesPerToken = 524288, kAdapterBytesPerRank = 2097152;
constexpr int64_t kGatheredBytesPerRank = 1572864;
constexpr double kGatheredRate = 0.7 / 0.8;  // of what attention reads at
constexpr double kFlopPerPosition = 524288, kFlopPerLogitsRow = 2.0 * 32000 * 4096;
constexpr int32_t kLayers = 32;
constexpr double kFlopPerRowRankLayer = 65536;
constexpr double kA40LoraRowRankS = 76e-3 / (512 * 128);

Profile profile_of(const Gpu& gpu) {
  Profile profile;
  profile.name = gpu.name;
  profile.source = "made by hand from published measurements: src/cost/devices.cc";
  profile.model = {.name = "Llama-2-7B",
                   .max_tokens = 4096,
                   .kv_bytes_per_token = kKvBytesPerToken,
                   .adapter_bytes_per_rank = kAdapterBytesPerRank};
  const auto free_bytes = static_cast<int64_t>(0.9 * gpu.memory_bytes - kWeightBytes);
  profile.memory = {
      .kv_bytes = free_bytes / 4 * 3, .adapter_bytes = free_bytes / 4, .host_adapter_bytes = int64_t{64} << 30};
  for (const LinearPoint& point : gpu.linear)
    profile.step.linear.push_back({point.rows, point.seconds * gpu.linear_scale});
  const auto set = [&](CostTerm term, double seconds) { profile.step.seconds[static_cast<size_t>(term)] = seconds; };
  set(CostTerm::kPrefillAttended, kFlopPerPosition / gpu.flop_per_s);
  set(CostTerm::kDecodeAttended, static_cast<double>(kKvBytesPerToken) / gpu.read_bytes_per_s);
  set(CostTerm::kLogitsRow, kFlopPerLogitsRow / gpu.flop_per_s);
  if (gpu.kernel == LoraKernel::kSegmented) {
    set(CostTerm::kRankSum, static_cast<double>(kAdapterBytesPerRank) / gpu.read_bytes_per_s);
    set(CostTerm::kLoraRowRank, kA40LoraRowRankS * kGpus[0].flop_per_s / gpu.flop_per_s);
  } else {
    profile.model.adapter_bytes_per_rank = kGatheredBytesPerRank;
    set(gpu.kernel == LoraKernel::kPadded ? CostTerm::kRankMaxRow : CostTerm::kLoraRowRank,
        static_cast<double>(kGatheredBytesPerRank) / (kGatheredRate * gpu.read_bytes_per_s));
  }
  profile.disk = TransferCost{.seconds = 1e-3, .bytes_per_second = 2e9, .at_once = 2};
  if (gpu.helped) {
    profile.model.layers = kLayers;
    profile.assist = AssistCost{.message_seconds = 50e-6, .row_seconds_per_rank = kFlopPerRowRankLayer / 50e9};
  }
  profile.link = {.seconds = 0, .bytes_per_second = gpu.link_bytes_per_s, .at_once = 1};
  return profile;
}

}  // namespace

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const Gpu& gpu : kGpus) names.emplace_back(gpu.name);
  return names;
}

std::optional<Profile> device_profile(std::string_view name) {
  for (const Gpu& gpu : kGpus)
    if (name == gpu.name) return profile_of(gpu);
  return std::nullopt;
}

}  // namespace loralei
