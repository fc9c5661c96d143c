// SPDX-License-Identifier: Apache-2.0
// load_bench FOLDER [rank] [rounds]: what the parts of loading an adapter take on one
// core, and a whole load, its file in the page cache: bf16 factors of q, k and v of a
// 1.1B Llama, written into FOLDER and removed. Built with LORALEI_BENCHES=ON.
//
// Medians of the rounds, in which the parts take turns, of processor time: other programs
// do not count. Each part goes over all numbers as the load does, but by itself, so that
// their sum is no load. Who begins early does not wait for `change`.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/change.h"
#include "adapters/load_plan.h"
#include "adapters/placing.h"
#include "base/digest.h"
#include "base/page_hash.h"
#include "base/prng.h"
#include "base/result.h"
#include "device/host/arena.h"
#include "formats/json_util.h"
#include "formats/safetensors.h"
#include "sys/file.h"
#include "sys/process.h"
#include "sys/write_file.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20, kPageBytes = 4096;

ModelConfig llama_1b() {
  return {.architecture = "llama",
          .hidden = 2048,
          .layers = 22,
          .heads = 32,
          .kv_heads = 4,
          .head_dim = 64,
          .ffn = 5632,
          .vocab = 32000};
}

Status write_text(const std::string& path, const std::string& text) {
  TRY_ASSIGN(WriteFile file, WriteFile::open(path));
  TRY(file.resize(0));
  TRY(file.write(0, std::as_bytes(std::span(text))));
  return file.sync();
}

// Small random numbers: which ones does not matter.
std::string random_bf16(int64_t count) {
  Prng random(1);
  std::string bytes(static_cast<size_t>(count) * 2, '\0');
  for (size_t i = 0; i < bytes.size(); i += 2) {
    const uint16_t bits = f32_to_bf16(static_cast<float>(random.uniform() - 0.5) * 0.1f);
    bytes[i] = static_cast<char>(bits & 0xff);
    bytes[i + 1] = static_cast<char>(bits >> 8);
  }
  return bytes;
}

Status write_adapter(const std::string& folder, const ModelConfig& model, int rank) {
  const Json config = {
      {"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", rank}, {"target_modules", {"q_proj", "k_proj", "v_proj"}}};
  TRY(make_folders(folder));
  TRY(write_text(folder + "/adapter_config.json", config.dump()));
  Json header = Json::object();
  int64_t at = 0;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    header[name] = {{"dtype", "BF16"}, {"shape", {rows, cols}}, {"data_offsets", {at, at + rows * cols * 2}}};
    at += rows * cols * 2;
  };
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const char* module : {"q", "k", "v"}) {
      const std::string name =
          "base_model.model.model.layers." + std::to_string(layer) + ".self_attn." + module + "_proj.lora_";
      add(name + "A.weight", rank, model.hidden);
      add(name + "B.weight", (*module == 'q' ? model.heads : model.kv_heads) * model.head_dim, rank);
    }
  }
  const std::string text = header.dump();
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>(text.size() >> (8 * i));
  return write_text(folder + "/adapter_model.safetensors", file + text + random_bf16(at / 2));
}

// One part's times.
struct Part {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median_s() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

class LoadBench {
 public:
  static Result<std::unique_ptr<LoadBench>> open(const std::string& folder, int rank) {
    auto bench = std::make_unique<LoadBench>();
    bench->folder_ = folder;
    bench->base_.config = llama_1b();
    TRY(write_adapter(folder, bench->base_.config, rank));
    TRY_ASSIGN(bench->file_, PosixFileSystem().open(folder + "/adapter_model.safetensors"));
    TRY_ASSIGN(bench->header_, read_safetensors(*bench->file_, bench->file_->size_bytes()));
    TRY_ASSIGN(bench->bytes_, read_all(*bench->file_, bench->file_->size_bytes()));
    TRY_ASSIGN(const AdapterLoad load, bench->load());
    bench->adapter_ = load.adapter;
    return bench;
  }
  ~LoadBench() {
    for (const char* name : {"/adapter_config.json", "/adapter_model.safetensors"}) (void)remove_file(folder_ + name);
  }

  void run(int rounds) {
    std::vector<Part> parts = {{"read", [this] { read(); }},      {"hash", [this] { hash(); }},
                               {"look", [this] { look(); }},      {"memory", [this] { touch(); }},
                               {"place", [this] { place(); }},    {"change", [this] { change(); }},
                               {"load", [this] { (void)load(); }}};
    for (int round = 0; round < rounds; ++round) {
      for (Part& part : parts) {
        const double begin_s = process_cpu_s();
        part.run();
        part.seconds.push_back(process_cpu_s() - begin_s);
      }
    }
    const auto bytes = static_cast<double>(bytes_.size());
    std::printf("%.1f MB, medians of %d rounds\n", bytes * 1e-6, rounds);
    for (Part& part : parts) {
      const double seconds = part.median_s();
      std::printf("  %-8s %7.2f ms %8.0f MB/s, at best %6.2f ms\n", part.name.c_str(), seconds * 1e3,
                  bytes / seconds * 1e-6, part.seconds.front() * 1e3);
    }
    std::printf("(%d)\n", sink_);
  }

 private:
  Result<AdapterLoad> load() const { return load_adapter(folder_, base_, {}, AdapterVersionId{1}); }
  const std::byte* bytes_of(const TensorInfo& tensor) const {
    return reinterpret_cast<const std::byte*>(bytes_.data()) + tensor.offset;
  }

  void read() {
    std::vector<std::byte> chunk(kChunkBytes);
    for (int64_t at = 0; at < file_->size_bytes(); at += kChunkBytes) {
      const auto count = static_cast<size_t>(std::min(kChunkBytes, file_->size_bytes() - at));
      if (!file_->read_exact(at, std::span(chunk).first(count)).ok()) std::abort();
    }
    sink_ += static_cast<int>(chunk[0]);
  }
  void hash() {
    for (const TensorInfo& tensor : header_.tensors) {
      PageHash hash;
      hash.update({bytes_of(tensor), static_cast<size_t>(tensor.bytes)});
      sink_ += hash.finish()[0];
    }
  }
  void look() {
    for (const TensorInfo& tensor : header_.tensors)
      sink_ += static_cast<int>(first_not_finite(tensor.dtype, bytes_of(tensor), tensor.bytes / 2));
  }
  // The pages of the storage, as the system gives them: zeroed at the first touch.
  void touch() {
    storage_ = std::move(HostBuffer::allocate(std::ssize(bytes_))).value();
    for (int64_t at = 0; at < storage_.size_bytes(); at += kPageBytes) storage_.data()[at] = std::byte{1};
  }
  void place() {
    for (const TensorInfo& tensor : header_.tensors) {
      const Placement placement{.tensor = &tensor,
                                .row_count = tensor.shape[0],
                                .cols = tensor.shape[1],
                                .transpose = tensor.name.ends_with("B.weight"),
                                .to = tensor.dtype};
      place_rows(placement, tensor.dtype, 0, tensor.shape[0], bytes_of(tensor), storage_.data() + tensor.offset);
    }
  }
  void change() { sink_ += change_norm(*adapter_) > 0; }

  std::string folder_;
  AdapterBase base_;
  std::unique_ptr<File> file_;
  SafetensorsHeader header_;
  std::string bytes_;
  std::shared_ptr<const Adapter> adapter_;
  HostBuffer storage_;
  int sink_ = 0;  // so that nothing is left out
};

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: load_bench FOLDER [rank] [rounds]\n");
    return 1;
  }
  const int rank = argc > 2 ? std::atoi(argv[2]) : 64, rounds = argc > 3 ? std::atoi(argv[3]) : 21;
  auto bench = loralei::LoadBench::open(argv[1], std::max(1, rank));
  if (!bench.ok()) {
    std::fprintf(stderr, "%s\n", bench.error().message.c_str());
    return 1;
  }
  (*bench)->run(std::max(1, rounds));
  return 0;
}
