// SPDX-License-Identifier: Apache-2.0
// loralei pack MODEL: lays a model out for streaming, once, so that the first start under
// a small memory budget need not.
#include <cstdio>
#include <memory>

#include "apps/console_log.h"
#include "apps/hub_flags.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "base/printable.h"
#include "base/units.h"
#include "formats/base_model.h"
#include "sys/cpu.h"
#include "sys/file.h"
#include "sys/write_file.h"
#include "weights/pack.h"

namespace loralei {
namespace {

struct PackFlags {
  std::string model, quant, output, cache_dir;
  std::string stream_shrink = "auto";
  int threads = 0;
  HubFlags hub;
};

Status pack(const PackFlags& flags) {
  ConsoleLog log(ConsoleLog::Options{});
  std::string model_path = flags.model;
  TRY(resolve_path(model_path, HubKind::kModel, flags.hub, log));
  TRY_ASSIGN(const BaseModelFile model, open_base_model(model_path));
  WeightOptions options;
  options.threads = flags.threads > 0 ? flags.threads : std::max(1, usable_cpus());
  TRY(parse_weight_quant(flags.quant, options.quantise));
  TRY_ASSIGN(options.shrink, parse_stream_shrink(flags.stream_shrink));
  ProgressPrinter progress("packing", log);
  options.progress = [&progress](int64_t done, int64_t total) { progress.update(done, total); };
  const std::string path = flags.output.empty() ? packed_paths(model, options, flags.cache_dir).back() : flags.output;
  if (const std::string folder = parent_path(path); !flags.cache_dir.empty()) TRY(make_folders(folder));
  if (auto index = open_packed(path, model, options); index.ok()) {
    std::printf("%s is up to date\n", printable(path).c_str());
    return {};
  }
  TRY(pack_model(model, options, path, log));
  TRY_ASSIGN(const PackedIndex index, open_packed(path, model, options));
  int64_t held = 0, stored = 0;
  for (const PackedMatrix& matrix : index.matrices) {
    held += matrix.tiles() * matrix.held_tile_bytes();
    stored += matrix.bytes();
  }
  std::printf("%s, %s", printable(path).c_str(), format_bytes(index.file_bytes).c_str());
  if (index.shrink) std::printf(", shrunk %.2f times", static_cast<double>(held) / static_cast<double>(stored));
  std::printf("\n");
  return {};
}

}  // namespace

void add_pack_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("pack", "Lay a model out for streaming (models larger than memory).");
  auto flags = std::make_shared<PackFlags>();
  command->add_option("model,-m,--model", flags->model, "Hugging Face directory or GGUF file")->required();
  command->add_option("--quant", flags->quant, "as serve --quant: re-encode weights as q8_0 or q4_0");
  command->add_option("-o,--output", flags->output,
                      "a file to be copied to where serve will look for it (default: there, beside the model)");
  command->add_option("--cache-dir", flags->cache_dir, "lay it out in this folder, as serve --cache-dir");
  add_stream_shrink_option(*command, flags->stream_shrink);
  add_hub_options(*command, flags->hub);
  command->add_option("-t,--threads", flags->threads, "threads (default: the cores of this process)")
      ->check(CLI::Range(0, 1024));
  command->callback([flags, &exit_code] {
    const Status status = pack(*flags);
    if (status.ok()) return;
    print_error("pack", status.error());
    exit_code = 1;
  });
}

}  // namespace loralei
