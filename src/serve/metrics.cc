// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <tuple>

#include "base/limits.h"

namespace loralei {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;
using Labels = std::vector<ClientMetric::Label>;

// vLLM's buckets.
const Buckets kTtftBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                              1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kTokenTimeBuckets = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const Buckets kLatencyBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kChoiceBuckets = {1, 2, 5, 10, 20};

constexpr size_t kAdaptersListed = 1024;  // in each list of lora_requests_info, which is one label

Buckets one_two_five(int64_t max) {
  Buckets buckets;
  for (double decade = 1; decade <= static_cast<double>(max); decade *= 10) {
    for (const double mantissa : {1., 2., 5.}) {
      if (mantissa * decade <= static_cast<double>(max)) buckets.push_back(mantissa * decade);
    }
  }
  if (buckets.empty()) buckets.push_back(1);
  return buckets;
}

struct AdapterCounts {
  int64_t requests = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  void operator+=(const AdapterCounts& other) {
    requests += other.requests;
    prompt_tokens += other.prompt_tokens;
    cached_tokens += other.cached_tokens;
    output_tokens += other.output_tokens;
  }
};

// Where an adapter is, the place nearest to the steps.
constexpr std::array<const char*, 5> kAdapterPlaces = {"disk", "failed", "loading", "memory", "device"};
size_t place_of(const AdapterStatus& adapter) {
  switch (adapter.tier) {
    case AdapterTier::kSource:
      return 0;
    case AdapterTier::kFailed:
      return 1;
    case AdapterTier::kLoading:
      return 2;
    case AdapterTier::kResident:
      return adapter.on_device ? 4 : 3;
  }
  return 0;
}

std::string join(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ",") + name;
  return out;
}

// Builds one page: families in order, each with an alias where vLLM has a name for it.
class Page {
 public:
  Page(bool vllm_names, Labels vllm_labels) : vllm_names_(vllm_names), vllm_labels_(std::move(vllm_labels)) {}

  void value(MetricType type, const char* name, const char* help, double value, Labels labels = {},
             const char* alias = nullptr) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (type == MetricType::Counter)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
    add(type, name, help, metric);
    if (alias && vllm_names_) {
      metric.label.insert(metric.label.begin(), vllm_labels_.begin(), vllm_labels_.end());
      add(type, alias, help, metric);
    }
  }
  void alias_only(MetricType type, const char* name, const char* help, double value, Labels labels = {}) {
    if (!vllm_names_) return;
    labels.insert(labels.begin(), vllm_labels_.begin(), vllm_labels_.end());
    this->value(type, name, help, value, std::move(labels));
  }
  void family(MetricFamily family, const std::vector<const char*>& aliases) {
    for (const char* alias : aliases) {
      if (!vllm_names_) break;
      MetricFamily copy = family;
      copy.name = alias;
      for (ClientMetric& metric : copy.metric)
        metric.label.insert(metric.label.begin(), vllm_labels_.begin(), vllm_labels_.end());
      families_.push_back(std::move(copy));
    }
    families_.push_back(std::move(family));
  }
  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return out.str();
  }

 private:
  void add(MetricType type, const char* name, const char* help, const ClientMetric& metric) {
    const auto known =
        std::find_if(families_.begin(), families_.end(), [&](const MetricFamily& f) { return f.name == name; });
    if (known != families_.end()) {
      known->metric.push_back(metric);
      return;
    }
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    family.metric = {metric};
    families_.push_back(std::move(family));
  }
  const bool vllm_names_;
  const Labels vllm_labels_;
  std::vector<MetricFamily> families_;
};

// Of what the engine has counted: counts [limits + 1], the last above all limits.
ClientMetric::Histogram histogram_of(std::span<const uint64_t> counts, const auto& limits, double sum) {
  ClientMetric::Histogram histogram;
  histogram.sample_sum = sum;
  for (size_t i = 0; i < counts.size(); ++i) {
    histogram.sample_count += counts[i];
    const double limit = i < limits.size() ? limits[i] : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back({histogram.sample_count, limit});
  }
  return histogram;
}

void put_histogram(Page& page, const char* name, const char* help, const char* alias, std::span<const uint64_t> counts,
                   const auto& limits, double sum) {
  ClientMetric metric;
  metric.histogram = histogram_of(counts, limits, sum);
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = MetricType::Histogram;
  family.metric = {metric};
  if (alias == nullptr) return page.family(std::move(family), {});
  page.family(std::move(family), {alias});
}

void put_block_times(Page& page, const BlockTimes& times) {
  const auto put = [&](const char* name, const char* help, const char* alias, const TimeCounts& t) {
    put_histogram(page, name, help, alias, t.counts, kBlockTimeLimits, t.sum_s);
  };
  put("loralei_kv_block_lifetime_seconds", "How long a block was in the prefix cache before it was evicted.",
      "vllm:kv_block_lifetime_seconds", times.lifetime);
  put("loralei_kv_block_idle_before_evict_seconds", "From the last use of a cached block until it was evicted.",
      "vllm:kv_block_idle_before_evict_seconds", times.idle_before_evict);
  put("loralei_kv_block_reuse_gap_seconds", "From the last use of a cached block until a request found it again.",
      "vllm:kv_block_reuse_gap_seconds", times.reuse_gap);
}

void put_length_errors(Page& page, const EngineStats& s) {
  MetricFamily family;
  family.name = "loralei_output_length_error_octaves";
  family.help = "Binary logarithm of predicted to true length, without its sign, of answers that ended by themselves.";
  family.type = MetricType::Histogram;
  for (size_t i = 0; i < kLengthPredictions; ++i) {
    const LengthErrors& errors = s.length_errors[i];
    ClientMetric metric;
    metric.label = {{"predictor", kLengthPredictionNames[i]}};
    metric.histogram = histogram_of(errors.counts, LengthErrors::kLimits, errors.sum);
    family.metric.push_back(std::move(metric));
  }
  page.family(std::move(family), {});
}

void put_memory(Page& page, const char* name, const char* help, const MemoryShares& shares, const Labels& labels) {
  const auto put = [&](const char* use, int64_t bytes) {
    Labels all = labels;
    all.push_back({"use", use});
    page.value(MetricType::Gauge, name, help, static_cast<double>(bytes), all);
  };
  put("budget", shares.memory_budget_bytes);
  put("weights", shares.weights_bytes);
  put("adapters", shares.adapter_bytes);
  put("adapters_max", shares.adapter_bytes_max);
  put("kv_cache", shares.kv_bytes);
  put("scratch", shares.scratch_bytes);
  put("requests", shares.request_bytes);
  put("other", shares.other_bytes);
}

// Beside the shares: what is theirs for sure, and who gave to whom.
void put_sharing(Page& page, const EngineStats& stats) {
  const auto floor = [&](const char* use, int64_t bytes) {
    page.value(MetricType::Gauge, "loralei_memory_floor_bytes",
               "Of host memory, what a use keeps whatever others want.", static_cast<double>(bytes), {{"use", use}});
  };
  floor("adapters", stats.adapter_floor_bytes);
  floor("kv_cache", stats.kv_floor_bytes);
  const auto given = [&](const char* from, const char* to, int64_t bytes) {
    page.value(MetricType::Counter, "loralei_memory_given_bytes_total", "Memory that one use gave up for another.",
               static_cast<double>(bytes), {{"from", from}, {"to", to}});
  };
  given("kv_cache", "adapters", stats.given.kv_to_adapters);
  given("adapters", "kv_cache", stats.given.adapters_to_kv);
  given("kv_cache", "other", stats.given.kv_to_others);
  given("adapters", "other", stats.given.adapters_to_others);
}

void put_engine_counts(Page& page, const EngineStats& s) {
  constexpr auto kCounter = MetricType::Counter;
  const auto number = [](auto value) { return static_cast<double>(value); };
  page.value(kCounter, "loralei_steps_total", "Forward passes.", number(s.steps));
  page.value(kCounter, "loralei_prompt_tokens_total", "Prompt tokens of admitted requests.", number(s.prompt_tokens),
             {}, "vllm:prompt_tokens_total");
  page.value(kCounter, "loralei_cached_prompt_tokens_total", "Prompt tokens that came from the prefix cache.",
             number(s.cached_tokens));
  page.value(kCounter, "loralei_borrowed_prompt_tokens_total",
             "Prompt tokens beside them of which only the layers above those of the base were computed.",
             number(s.borrowed_tokens));
  page.value(kCounter, "loralei_generation_tokens_total", "Generated tokens.", number(s.generated_tokens), {},
             "vllm:generation_tokens_total");
  page.value(kCounter, "loralei_preemptions_total", "Sequences preempted for want of KV blocks.", number(s.preemptions),
             {}, "vllm:num_preemptions_total");
  page.value(kCounter, "loralei_squashes_total",
             "Of these: had passed others that wait for their adapter's place, and ran longer than predicted.",
             number(s.squashes));
  for (size_t i = 0; i < kWaitCauses; ++i) {
    page.value(kCounter, "loralei_request_wait_seconds_total", "Waiting before anything was computed, by its cause.",
               s.waited_s[i], {{"cause", kWaitCauseNames[i]}});
  }
  for (size_t kind = 0; kind < kSloNames.size(); ++kind) {
    for (const bool met : {false, true})
      page.value(kCounter, "loralei_slo_requests_total",
                 "Requests that wanted something of time, by what and whether it was met.",
                 number(s.slo_requests[kind][met ? 1 : 0]), {{"slo", kSloNames[kind]}, {"met", met ? "yes" : "no"}});
  }
  page.value(kCounter, "loralei_prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
             number(s.prefix_queries), {}, "vllm:prefix_cache_queries_total");
  page.value(kCounter, "loralei_prefix_cache_hits_total", "Tokens found in the prefix cache.", number(s.prefix_hits),
             {}, "vllm:prefix_cache_hits_total");
  page.value(kCounter, "loralei_speculation_drafted_tokens_total", "Tokens guessed ahead.", number(s.drafted_tokens));
  page.value(kCounter, "loralei_speculation_accepted_tokens_total", "Guessed tokens that were right.",
             number(s.accepted_tokens));
  page.value(kCounter, "loralei_adapter_loads_total", "Adapters loaded into memory.", number(s.adapter_loads));
  page.value(kCounter, "loralei_adapter_load_bytes_total", "Bytes of adapters loaded, as they lie in memory.",
             number(s.adapter_load_bytes));
  page.value(kCounter, "loralei_adapter_load_failures_total", "Adapter loads that failed.",
             number(s.adapter_load_failures));
  page.value(kCounter, "loralei_adapter_evictions_total", "Adapters dropped to make room.",
             number(s.adapter_evictions));
  page.value(kCounter, "loralei_adapter_predicted_loads_total", "Adapters loaded before anybody asked for them.",
             number(s.adapter_loads_ahead));
  page.value(kCounter, "loralei_adapter_predicted_loads_used_total", "Of these, used before they left memory.",
             number(s.adapter_loads_ahead_used));
  page.value(kCounter, "loralei_adapter_uploads_total", "Adapters copied from host memory to the GPU.",
             number(s.adapter_uploads));
  page.value(kCounter, "loralei_adapter_upload_bytes_total", "Bytes of adapters copied to the GPU.",
             number(s.adapter_upload_bytes));
  page.value(kCounter, "loralei_adapter_upload_seconds_total", "Time that copies of adapters to the GPU took.",
             s.adapter_upload_s);
}

// Requests whose adapters were not where steps compute (sched/cold_start.h).
void put_cold_starts(Page& page, const ColdStarts& cold) {
  constexpr auto kCounter = MetricType::Counter;
  const auto count = [&](const char* name, const char* help, auto value) {
    page.value(kCounter, name, help, static_cast<double>(value));
  };
  for (const ColdStart way : {ColdStart::kLayered, ColdStart::kAssisted, ColdStart::kOndemand}) {
    const auto index = static_cast<size_t>(way);
    page.value(kCounter, "loralei_cold_requests_total",
               "Requests whose adapters were not where steps compute when their turn came, by what they did.",
               static_cast<double>(cold.requests[index]), {{"way", kColdStartNames[index]}});
  }
  count("loralei_cold_layer_waits_total", "Layers of adapters on their way that a step waited for.",
        cold.layers_waited);
  count("loralei_cold_layer_wait_seconds_total", "The time of that.", cold.waited_s);
  count("loralei_cold_steps_given_up_total", "Steps that ended with a layer that was late.", cold.given_up);
  count("loralei_cold_hidden_seconds_total",
        "Time for which adapters were on their way while their requests were computed.", cold.hidden_s);
  count("loralei_assisted_layers_total", "Layers of steps that helpers computed.", cold.assisted_layers);
  put_histogram(page, "loralei_cold_handover_layer",
                "The layer from which steps went on without the helpers that they had.", nullptr, cold.handovers,
                kHandoverLimits, static_cast<double>(cold.handover_layers));
  page.value(MetricType::Gauge, "loralei_assist_helpers", "Helper processes.", cold.helpers);
  count("loralei_assist_helper_restarts_total", "Helper processes that ended or were late, and were replaced.",
        cold.helper_restarts);
}

void put_steps(Page& page, const EngineStats& s) {
  constexpr auto kGauge = MetricType::Gauge;
  constexpr auto kCounter = MetricType::Counter;
  const auto number = [](auto value) { return static_cast<double>(value); };
  page.value(kGauge, "loralei_step_seconds", "Duration of the last step.", s.step_ms_last / 1000);
  page.value(kGauge, "loralei_step_rows", "Rows of the last step.", s.rows_last);
  put_histogram(page, "loralei_rows_per_step", "Rows (tokens) of a step.", "vllm:iteration_tokens_total",
                s.steps_by_rows, kStepRowsLimits, number(s.rows));
  put_block_times(page, s.kv_block_times);
  put_length_errors(page, s);
  const char* const kWork = "Time of all steps, by what it went into.";
  page.value(kCounter, "loralei_work_seconds_total", kWork, s.products_s, {{"part", "products"}});
  page.value(kCounter, "loralei_work_seconds_total", kWork, s.attention_s, {{"part", "attention"}});
  page.value(kCounter, "loralei_work_seconds_total", kWork, s.lora_s, {{"part", "lora"}});
  page.value(kCounter, "loralei_work_seconds_total", kWork, s.disk_s, {{"part", "disk"}});
  page.value(kCounter, "loralei_work_seconds_total", kWork, s.collective_s, {{"part", "collectives"}});
  page.value(kCounter, "loralei_work_seconds_total", kWork,
             std::max(0.0, s.step_s - s.products_s - s.attention_s - s.lora_s - s.disk_s - s.collective_s),
             {{"part", "rest"}});
  page.value(kCounter, "loralei_collective_bytes_total", "Bytes that other ranks sent to the one that answers.",
             number(s.collective_bytes));
  page.value(kCounter, "loralei_stream_read_bytes_total", "Bytes of weights read from disk while streaming.",
             number(s.disk_read_bytes));
  const char* const kExperts = "Experts that the rows of a layer chose, by where they were.";
  page.value(kCounter, "loralei_expert_uses_total", kExperts, number(s.expert_hits), {{"found", "memory"}});
  page.value(kCounter, "loralei_expert_uses_total", kExperts, number(s.expert_misses), {{"found", "disk"}});
  page.value(kGauge, "loralei_paced", "1 where steps take the time of another machine (--pace).",
             s.paced_as.empty() ? 0 : 1);
  page.value(kCounter, "loralei_paced_steps_late_total", "Steps that took longer than --pace says.",
             number(s.paced_late_steps));
  page.value(kCounter, "loralei_paced_late_seconds_total", "By how much, all of them.", s.paced_late_s);
}

void put_queues(Page& page, const EngineStats& s) {
  for (int32_t queue = 0; queue < s.queue_count; ++queue) {
    const QueueGauges& gauges = s.queues[static_cast<size_t>(queue)];
    const auto put = [&](const char* name, const char* help, int64_t value) {
      page.value(MetricType::Gauge, name, help, static_cast<double>(value), {{"queue", std::to_string(queue + 1)}});
    };
    put("loralei_queue_waiting", "Sequences that wait in a queue of the scheduler.", gauges.waiting);
    put("loralei_queue_quota_tokens", "Tokens that a queue's requests may take together; 0: no quota.",
        gauges.quota_tokens);
    put("loralei_queue_taken_tokens", "Tokens of the quotas that a queue's requests have taken.", gauges.taken_tokens);
  }
}

// Nothing where prefixes are not kept on disk: then all stay 0.
void put_kv_disk(Page& page, const KvDiskStats& disk, int64_t restored_blocks) {
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    page.value(MetricType::Gauge, name, help, static_cast<double>(value));
  };
  const auto counter = [&](const char* name, const char* help, double value) {
    page.value(MetricType::Counter, name, help, value);
  };
  gauge("loralei_kv_disk_blocks", "Blocks of prefixes that lie on disk.", disk.records);
  gauge("loralei_kv_disk_bytes", "Bytes of the files in --kv-dir.", disk.bytes);
  counter("loralei_kv_disk_written_bytes_total", "Bytes of prefixes written to disk.",
          static_cast<double>(disk.written_bytes));
  counter("loralei_kv_disk_restored_total", "Blocks of prefixes that came back from disk.",
          static_cast<double>(restored_blocks));
  counter("loralei_kv_disk_read_bytes_total", "Bytes of prefixes read from disk.",
          static_cast<double>(disk.read_bytes));
  counter("loralei_kv_disk_read_encoded_total", "Blocks of prefixes that were read from disk encoded.",
          static_cast<double>(disk.read_coded));
  counter("loralei_kv_disk_read_seconds_total", "Time that reading them took.", disk.read_s);
  counter("loralei_kv_disk_refused_total", "Blocks that were not written: the disk was behind, full or failing.",
          static_cast<double>(disk.refused_puts + disk.failed_writes));
  counter("loralei_kv_disk_lost_total", "Blocks on disk that could not be read, or were damaged.",
          static_cast<double>(disk.lost_records));
}

// Nothing where nobody is told: then all stay 0.
void put_kv_events(Page& page, const KvEventCounts& counts) {
  const auto counter = [&](const char* name, const char* help, uint64_t value, Labels labels = {}) {
    page.value(MetricType::Counter, name, help, static_cast<double>(value), std::move(labels));
  };
  counter("loralei_kv_events_total", "Blocks that --kv-events told of.", counts.stored, {{"kind", "stored"}});
  counter("loralei_kv_events_total", "", counts.removed, {{"kind", "removed"}});
  counter("loralei_kv_event_messages_total", "Messages that told of them.", counts.batches);
  counter("loralei_kv_events_dropped_total", "Events without room, behind which all was told anew.", counts.lost);
  counter("loralei_kv_event_pictures_total", "How often all that the KV cache holds was told anew.", counts.pictures);
  counter("loralei_kv_event_replays_total", "Requests for messages to be said again.", counts.replays);
}

// Nothing where the model keeps none: then all stay 0.
void put_kv_states(Page& page, const KvStates& states) {
  const auto slots = [&](const char* of, const char* help, int32_t value) {
    page.value(MetricType::Gauge, "loralei_kv_states", help, value, {{"state", of}});
  };
  const auto copies = [&](const char* event, const char* help, uint64_t value) {
    page.value(MetricType::Counter, "loralei_kv_state_copies_total", help, static_cast<double>(value),
               {{"event", event}});
  };
  slots("total", "Slots for states of linear layers: all, of running requests, of prefixes.", states.slots);
  slots("running", "", states.running);
  slots("kept", "", states.snapshots);
  page.value(MetricType::Gauge, "loralei_kv_state_bytes", "Bytes of these slots.", static_cast<double>(states.bytes));
  copies("kept", "Copies of states that were kept for prefixes, dropped, and found by a request.", states.kept);
  copies("dropped", "", states.dropped);
  copies("found", "", states.found);
}

void put_kv_coded(Page& page, const KvCoded& coded) {
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    page.value(MetricType::Gauge, name, help, static_cast<double>(value));
  };
  const auto counter = [&](const char* name, const char* help, double value) {
    page.value(MetricType::Counter, name, help, value);
  };
  const auto seconds = [](int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  page.value(MetricType::Gauge, "loralei_kv_sharing_info", "How prefixes that nobody uses are kept.", 1,
             {{"mode", kKvSharingNames[static_cast<size_t>(coded.sharing)]}});
  page.value(MetricType::Gauge, "loralei_kv_sharing_agreement_ratio",
             "Share of next tokens that are those of an exact cache, as calibrate-kv measured it; 0: nobody did.",
             coded.agreement);
  gauge("loralei_kv_encoded_blocks", "Blocks of prefixes that are kept encoded.", coded.blobs);
  gauge("loralei_kv_encoded_bytes", "Bytes of prefixes that are kept encoded.", coded.bytes);
  gauge("loralei_kv_encoded_page_bytes", "Bytes of the KV cache in which encoded prefixes lie.", coded.page_bytes);
  counter("loralei_kv_encodes_total", "Blocks of prefixes that were encoded.",
          static_cast<double>(coded.times.encoded_blocks));
  counter("loralei_kv_decodes_total", "Encoded blocks that a request found, and that were decoded.",
          static_cast<double>(coded.times.decoded_blocks));
  counter("loralei_kv_damaged_total", "Encoded blocks that were found damaged, and dropped.",
          static_cast<double>(coded.times.damaged_blocks));
  counter("loralei_kv_encode_seconds_total", "Time that encoding prefixes took.", seconds(coded.times.encode_ns));
  counter("loralei_kv_decode_seconds_total", "Time that decoding prefixes took.", seconds(coded.times.decode_ns));
}

void put_store(Page& page, const AdapterStoreFigures& store) {
  page.value(MetricType::Gauge, "loralei_adapter_store_adapters", "Adapters in the adapter store.",
             static_cast<double>(store.adapters));
  page.value(MetricType::Gauge, "loralei_adapter_store_bytes", "What the adapter store takes of the disk.",
             static_cast<double>(store.bytes));
  for (const auto& [end, count] : {std::pair("fetched", store.fetched), std::pair("failed", store.failed)}) {
    page.value(MetricType::Counter, "loralei_adapter_fetches_total", "Adapters that were asked of peers.",
               static_cast<double>(count), {{"end", end}});
  }
  page.value(MetricType::Counter, "loralei_adapter_fetched_bytes_total", "Bytes of adapters that peers sent.",
             static_cast<double>(store.fetched_bytes));
}

void put_engine(Page& page, const EngineStats& s) {
  constexpr auto kGauge = MetricType::Gauge;
  const auto number = [](auto value) { return static_cast<double>(value); };
  page.value(kGauge, "loralei_requests_running", "Requests in the batch.", s.running, {}, "vllm:num_requests_running");
  page.value(kGauge, "loralei_requests_waiting", "Requests in the queue.", s.waiting);
  put_queues(page, s);
  page.value(kGauge, "loralei_sequences_held", "Sequences that rest because nobody takes what they say.", s.held);
  page.value(kGauge, "loralei_requests_waiting_for_adapter",
             "Requests whose adapter is being loaded or copied to the GPU.", s.waiting_for_adapter);
  page.alias_only(kGauge, "vllm:num_requests_waiting", "Requests in the queue or waiting for an adapter.",
                  s.waiting + s.waiting_for_adapter);
  page.value(kGauge, "loralei_kv_blocks", "Blocks of the KV cache by state.", number(s.kv_blocks_total),
             {{"state", "total"}});
  page.value(kGauge, "loralei_kv_blocks", "", number(s.kv_blocks_used), {{"state", "used"}});
  page.value(kGauge, "loralei_kv_blocks", "", number(s.kv_blocks_cached), {{"state", "cached"}});
  put_kv_states(page, s.kv_states);
  put_kv_coded(page, s.kv_coded);
  put_kv_disk(page, s.kv_disk.value_or(KvDiskStats{}), s.kv_restored_blocks);
  put_kv_events(page, s.kv_events.value_or(KvEventCounts{}));
  const double usage = s.kv_blocks_total > 0 ? number(s.kv_blocks_used) / number(s.kv_blocks_total) : 0;
  page.value(kGauge, "loralei_kv_cache_usage_ratio", "Share of the KV cache that running requests hold.", usage, {},
             "vllm:kv_cache_usage_perc");
  page.alias_only(kGauge, "vllm:gpu_cache_usage_perc", "Older name of vllm:kv_cache_usage_perc.", usage);
  page.alias_only(
      kGauge, "vllm:cache_config_info", "Size of the KV cache.", 1,
      {{"block_size", std::to_string(kKvBlockTokens)}, {"num_gpu_blocks", std::to_string(s.kv_blocks_total)}});
  put_memory(page, "loralei_memory_bytes", "Bytes of memory by use.", s, {});
  put_sharing(page, s);
  page.value(kGauge, "loralei_adapters_idle_bytes", "Bytes of adapters in memory that no request uses.",
             number(s.idle_adapter_bytes));
  if (!s.device.empty()) {
    put_memory(page, "loralei_device_memory_bytes", "Bytes of a device's memory by use.", s.device_memory,
               {{"device", s.device}});
    const auto beside = [&](const char* by, int64_t bytes) {
      page.value(
          kGauge, "loralei_device_memory_beside_bytes",
          "Bytes of a device's memory that were not asked for: context (with other programs) when the budget was "
          "made, driver since.",
          number(bytes), {{"device", s.device}, {"by", by}});
    };
    beside("context", s.device_before_bytes);
    beside("driver", s.device_driver_bytes);
  }
  page.value(kGauge, "loralei_stream_pass_bytes", "Weights read from disk in every pass; 0: everything is resident.",
             number(s.streamed_bytes));
  put_engine_counts(page, s);
  put_cold_starts(page, s.cold_starts);
  put_steps(page, s);
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const MetricsOptions& options)
      : options(options),
        ttft(histogram("loralei_time_to_first_token_seconds", "From arrival to the first token.", kTtftBuckets)),
        token_time(
            histogram("loralei_inter_token_latency_seconds", "Between two tokens of a choice.", kTokenTimeBuckets)),
        latency(histogram("loralei_request_latency_seconds", "From arrival to the end.", kLatencyBuckets)),
        queue(histogram("loralei_request_queue_seconds", "From arrival to admission.", kLatencyBuckets)),
        prefill(histogram("loralei_request_prefill_seconds", "From admission to the first token.", kLatencyBuckets)),
        decode(histogram("loralei_request_decode_seconds", "From the first token to the last.", kLatencyBuckets)),
        inference(histogram("loralei_request_inference_seconds", "From admission to the end.", kLatencyBuckets)),
        prompt_tokens(histogram("loralei_request_prompt_tokens", "Prompt tokens of a request.",
                                one_two_five(options.max_model_len))),
        output_tokens(histogram("loralei_request_generation_tokens", "Generated tokens of a request.",
                                one_two_five(options.max_model_len))),
        longest_output(histogram("loralei_request_longest_generation_tokens",
                                 "Generated tokens of a request's longest choice.",
                                 one_two_five(options.max_model_len))),
        choices(histogram("loralei_request_params_n", "Choices asked for.", kChoiceBuckets)),
        max_tokens(histogram("loralei_request_params_max_tokens", "Token limit asked for.",
                             one_two_five(options.max_model_len))) {}

  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  // Where a request counts. What a label has once counted never moves to another:
  // counters must not fall.
  AdapterCounts& counts_of(const RequestRecord& r) {
    const std::string label = r.adapter.empty() ? "base" : r.adapters > 1 ? "sum" : r.adapter;
    if (const auto fixed = totals.find(label); fixed != totals.end()) return fixed->second;
    if (const auto known = adapters.find(label); known != adapters.end()) return known->second;
    const bool has_room = adapters.size() < static_cast<size_t>(options.adapters_max);
    return has_room && options.registered(label) ? adapters[label] : totals.at("other");
  }

  void put_adapters(Page& page) const {
    const auto put_one = [&page](const std::string& name, const AdapterCounts& counts) {
      const Labels labels = {{"adapter", name}};
      const auto put = [&](const char* metric, const char* help, int64_t value) {
        page.value(MetricType::Counter, metric, help, static_cast<double>(value), labels);
      };
      put("loralei_adapter_requests_total", "Finished requests by adapter.", counts.requests);
      put("loralei_adapter_prompt_tokens_total", "Prompt tokens by adapter.", counts.prompt_tokens);
      put("loralei_adapter_cached_tokens_total", "Prompt tokens from the prefix cache by adapter.",
          counts.cached_tokens);
      put("loralei_adapter_generation_tokens_total", "Generated tokens by adapter.", counts.output_tokens);
    };
    for (const auto& [name, counts] : totals) put_one(name, counts);
    for (const auto& [name, counts] : adapters) put_one(name, counts);
  }

  // What is truly where steps read it, as the inference gateways' protocol means it.
  void put_residency(Page& page, const EngineStats& stats, const AdapterList& adapters, double unix_time_s) const {
    std::vector<const AdapterStatus*> order;
    for (const auto& adapter : adapters) order.push_back(adapter.get());
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->uses > b->uses; });
    const bool device = !stats.device.empty();
    std::vector<std::string> running, waiting, loading;
    const auto list = [](std::vector<std::string>& names, const AdapterStatus& adapter) {
      if (names.size() < kAdaptersListed) names.push_back(adapter.source.label);
    };
    std::array<size_t, kAdapterPlaces.size()> counts{};
    size_t resident = 0;
    for (const AdapterStatus* adapter : order) {
      ++counts[place_of(*adapter)];
      const bool is_resident = adapter->tier == AdapterTier::kResident;
      if (is_resident && resident++ < static_cast<size_t>(options.adapters_max)) put_resident(page, *adapter);
      if (is_resident && (adapter->on_device || !device)) {
        list(running, *adapter);
      } else if (adapter->waiting > 0) {
        list(waiting, *adapter);
      } else if (adapter->tier == AdapterTier::kLoading) {
        list(loading, *adapter);
      }
    }
    for (const std::string& name : loading) {
      if (waiting.size() < kAdaptersListed) waiting.push_back(name);
    }
    page.value(MetricType::Gauge, "loralei_adapters_registered", "Adapters known by name.",
               static_cast<double>(adapters.size()));
    page.value(MetricType::Gauge, "loralei_adapters_resident", "Adapters in memory.", static_cast<double>(resident), {},
               "vllm:num_cpu_loaded_lora_adapters");
    const size_t places = device ? counts.size() : counts.size() - 1;  // the last is the device
    for (size_t place = 0; place < places; ++place) {
      page.value(MetricType::Gauge, "loralei_adapters", "Adapters by where they are: each counts once.",
                 static_cast<double>(counts[place]), {{"tier", kAdapterPlaces[place]}});
    }
    const size_t on_device = counts[place_of({.tier = AdapterTier::kResident, .on_device = true})];
    if (device) {
      page.alias_only(MetricType::Gauge, "vllm:num_gpu_loaded_lora_adapters", "Adapters in the GPU's memory.",
                      static_cast<double>(on_device));
    }
    const int64_t room = device ? room_for(on_device, stats.device_memory) : room_for(resident, stats);
    page.alias_only(MetricType::Gauge, "vllm:lora_requests_info",
                    "Adapters where steps read them (running) and waited for; the value is the time.", unix_time_s,
                    {{"max_lora", std::to_string(room)},
                     {"running_lora_adapters", join(running)},
                     {"waiting_lora_adapters", join(waiting)}});
  }

  static void put_resident(Page& page, const AdapterStatus& adapter) {
    const char* pinned = adapter.pinned ? "true" : "false";
    page.value(MetricType::Gauge, "loralei_adapter_bytes", "Memory of a resident adapter.",
               static_cast<double>(adapter.bytes), {{"adapter", adapter.source.label}, {"pinned", pinned}});
    page.alias_only(
        MetricType::Gauge, "vllm:lora_adapter_loaded", "Resident adapters.", 1,
        {{"adapter_name", adapter.source.label}, {"level", adapter.on_device ? "gpu" : "cpu"}, {"pinned", pinned}});
  }

  // Room is a number of bytes here; as a number of adapters it is what fits of the size
  // seen so far.
  static int64_t room_for(size_t adapters, const MemoryShares& memory) {
    if (adapters == 0 || memory.adapter_bytes <= 0) return kDefaultMaxSequences;
    const double room = static_cast<double>(adapters) * static_cast<double>(memory.adapter_bytes_max) /
                        static_cast<double>(memory.adapter_bytes);
    return static_cast<int64_t>(std::max(room, static_cast<double>(adapters)));
  }

  const MetricsOptions options;
  prometheus::Registry registry;
  prometheus::Histogram &ttft, &token_time, &latency, &queue, &prefill, &decode, &inference, &prompt_tokens,
      &output_tokens, &longest_output, &choices, &max_tokens;

  mutable std::mutex mutex;
  std::map<std::tuple<std::string, std::string, int>, int64_t> http_requests;  // handler, method, status: fixed sets
  std::map<std::string, int64_t> ends, refusals;
  // Sums of several adapters have too many names.
  std::map<std::string, AdapterCounts> totals = {{"base", {}}, {"sum", {}}, {"other", {}}};
  std::map<std::string, AdapterCounts> adapters;  // at most options.adapters_max, the first that were used
  int64_t unknown = 0, default_adapters = 0;
  std::optional<AdapterStoreFigures> store;
};

Metrics::Metrics(const MetricsOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Metrics::~Metrics() = default;

void Metrics::http_request(const char* handler, std::string_view method, int status) {
  std::lock_guard lock(impl_->mutex);
  ++impl_->http_requests[{handler, std::string(known_method(method)), status}];
}

void Metrics::request_done(const RequestRecord& r) {
  {
    std::lock_guard lock(impl_->mutex);
    ++impl_->ends[r.end];
    if (r.admitted) impl_->counts_of(r) += {1, r.prompt_tokens, r.cached_tokens, r.output_tokens};
  }
  if (!r.admitted) return;
  if (r.ttft_s >= 0) {
    impl_->ttft.Observe(r.ttft_s);
    impl_->queue.Observe(r.queue_s);
    impl_->prefill.Observe(std::max(0.0, r.ttft_s - r.queue_s));
    impl_->decode.Observe(std::max(0.0, r.total_s - r.ttft_s));
    impl_->inference.Observe(std::max(0.0, r.total_s - r.queue_s));
  }
  impl_->latency.Observe(r.total_s);
  impl_->prompt_tokens.Observe(static_cast<double>(r.prompt_tokens));
  if (!r.generates) return;
  impl_->output_tokens.Observe(static_cast<double>(r.output_tokens));
  impl_->longest_output.Observe(static_cast<double>(r.longest_output));
  impl_->choices.Observe(r.choices);
  impl_->max_tokens.Observe(static_cast<double>(r.max_tokens));
}

void Metrics::adapter_gone(const std::string& name) {
  std::lock_guard lock(impl_->mutex);
  impl_->adapters.erase(name);
}

void Metrics::inter_token(double seconds) { impl_->token_time.Observe(seconds); }

void Metrics::unknown_fields(size_t count) {
  std::lock_guard lock(impl_->mutex);
  impl_->unknown += static_cast<int64_t>(count);
}

void Metrics::refused(const char* reason) {
  std::lock_guard lock(impl_->mutex);
  ++impl_->refusals[reason];
}

void Metrics::default_adapters_set() {
  std::lock_guard lock(impl_->mutex);
  ++impl_->default_adapters;
}

void Metrics::adapter_store(const AdapterStoreFigures& figures) {
  std::lock_guard lock(impl_->mutex);
  impl_->store = figures;
}

std::string Metrics::render(const EngineStats& engine, const AdapterList& adapters, const HttpServerStats& http,
                            double unix_time_s, const LogState& log, bool ready) const {
  const Impl& m = *impl_;
  Page page(m.options.vllm_names, {{"model_name", m.options.model_name}, {"engine", "0"}});
  put_engine(page, engine);
  m.put_residency(page, engine, adapters, unix_time_s);
  {
    std::lock_guard lock(m.mutex);
    m.put_adapters(page);
    if (m.store) put_store(page, *m.store);
    for (const auto& [key, count] : m.http_requests) {
      page.value(
          MetricType::Counter, "http_requests_total", "Answered HTTP requests.", static_cast<double>(count),
          {{"handler", std::get<0>(key)}, {"method", std::get<1>(key)}, {"status", std::to_string(std::get<2>(key))}});
    }
    for (const auto& [end, count] : m.ends) {
      page.value(MetricType::Counter, "loralei_requests_total", "Finished requests by how they ended.",
                 static_cast<double>(count), {{"end", end}});
      if (end != "error") {
        page.alias_only(MetricType::Counter, "vllm:request_success_total", "Finished requests.",
                        static_cast<double>(count), {{"finished_reason", end}});
      }
    }
    for (const auto& [reason, count] : m.refusals) {
      page.value(MetricType::Counter, "loralei_requests_refused_total", "Requests not taken in.",
                 static_cast<double>(count), {{"reason", reason}});
    }
    page.value(MetricType::Counter, "loralei_unknown_request_fields_total", "Request fields that nobody knows.",
               static_cast<double>(m.unknown));
    page.value(MetricType::Counter, "loralei_default_adapters_set_total",
               "How often the adapters of requests that name none were set.", static_cast<double>(m.default_adapters));
  }
  page.value(MetricType::Gauge, "loralei_http_connections", "Open connections.", static_cast<double>(http.connections));
  page.value(MetricType::Counter, "loralei_http_connections_total", "Accepted connections.",
             static_cast<double>(http.connections_total));
  page.value(MetricType::Counter, "loralei_http_connections_refused_total", "Connections refused at the limit.",
             static_cast<double>(http.connections_refused));
  page.value(MetricType::Counter, "loralei_http_errors_total", "Requests that were not valid HTTP.",
             static_cast<double>(http.errors_total));
  page.value(MetricType::Gauge, "loralei_ready", "What /ready says: 1, or 0 for 503.", ready ? 1 : 0);
  page.value(MetricType::Counter, "loralei_log_lines_dropped_total",
             "Lines of the log that nobody read as fast as they came.", static_cast<double>(log.dropped_lines));
  page.value(MetricType::Gauge, "loralei_log_stuck_seconds",
             "For how long the log's reader has taken nothing; 0: nothing waits.",
             static_cast<double>(log.stuck_ms) * 1e-3);
  static const std::map<std::string, std::vector<const char*>> kAliases = {
      {"loralei_time_to_first_token_seconds", {"vllm:time_to_first_token_seconds"}},
      {"loralei_inter_token_latency_seconds",
       {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"}},
      {"loralei_request_latency_seconds", {"vllm:e2e_request_latency_seconds"}},
      {"loralei_request_queue_seconds", {"vllm:request_queue_time_seconds"}},
      {"loralei_request_prefill_seconds", {"vllm:request_prefill_time_seconds"}},
      {"loralei_request_decode_seconds", {"vllm:request_decode_time_seconds"}},
      {"loralei_request_inference_seconds", {"vllm:request_inference_time_seconds"}},
      {"loralei_request_prompt_tokens", {"vllm:request_prompt_tokens"}},
      {"loralei_request_generation_tokens", {"vllm:request_generation_tokens"}},
      {"loralei_request_longest_generation_tokens", {"vllm:request_max_num_generation_tokens"}},
      {"loralei_request_params_n", {"vllm:request_params_n"}},
      {"loralei_request_params_max_tokens", {"vllm:request_params_max_tokens"}},
  };
  for (MetricFamily& family : m.registry.Collect()) {
    const auto aliases = kAliases.find(family.name);
    page.family(std::move(family), aliases == kAliases.end() ? std::vector<const char*>{} : aliases->second);
  }
  return page.text();
}

}  // namespace loralei
