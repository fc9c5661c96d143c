// SPDX-License-Identifier: Apache-2.0
// Adapters that are handed out before their last layer is there: what counts as there is
// as it stays, whatever order the file is in, and what is whole is right.
#include <cmath>
#include <functional>
#include <thread>

#include "adapters/layers_test_util.h"
#include "adapters/load_pool.h"
#include "adapters/load_test_util.h"
#include "base/prng.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int kLayers = 12;  // as text "10" stands before "2"
constexpr int64_t kLongNs = 60'000'000'000;

// As safetensors(), in another order than that of the names.
std::string shuffled_safetensors(const Tensors& tensors, uint64_t seed) {
  std::vector<std::string> names;
  for (const auto& [name, matrix] : tensors) names.push_back(name);
  Prng random(seed);
  for (size_t i = names.size(); i > 1; --i) std::swap(names[i - 1], names[random.below(i)]);
  Json header = Json::object();
  std::string data;
  for (const std::string& name : names) {
    const Matrix& source = tensors.at(name);
    const std::string bytes = bytes_of(source);
    header[name] = {
        {"dtype", source.dtype}, {"shape", source.shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  const std::string text = header.dump();
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  return file + text + data;
}

class LayersTest : public LoadTest {
 protected:
  LayersTest() {
    base.config.layers = kLayers;
    config.erase("layers_to_transform");
    tensors.clear();
    linear("self_attn.q_proj", 8, 8, "F16");
  }
  // In every layer, or one.
  void linear(const std::string& module, int64_t out, int64_t in, const char* dtype = "F32", int only = -1) {
    for (int layer = 0; layer < kLayers; ++layer) {
      if (only >= 0 && layer != only) continue;
      const std::string name = kLayer + std::to_string(layer) + "." + module + ".";
      tensors[name + "lora_A.weight"] = matrix({2, in}, next(), dtype);
      tensors[name + "lora_B.weight"] = matrix({out, 2}, next(), dtype);
      if (config.value("lora_bias", false)) tensors[name + "lora_B.bias"] = matrix({out}, next());
    }
  }
  void put_files(const std::string& weights) {
    files.put("/a/adapter_config.json", config.dump());
    files.put("/a/adapter_model.safetensors", weights);
  }
  // Written in the order of names and in others, plain and as int8.
  void expect_arrives_layer_by_layer() {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      put_files(seed == 0 ? safetensors(tensors) : shuffled_safetensors(tensors, seed));
      for (const bool int8 : {false, true}) {
        SCOPED_TRACE(testing::Message() << "order " << seed << ", int8 " << int8);
        ArrivalCheck check(files, "/a", base, {.int8 = int8});
        check.run();
        EXPECT_GT(check.looks_within(), kLayers);
      }
    }
  }
  AdapterSource source(const FileSystem& from) {
    return {[&from](const std::string& path) { return adapter_stamp(from, path); },
            [this, &from](const std::string& path, const AdapterLoadOptions& options, AdapterVersionId version) {
              return load_adapter(from, path, base, options, version);
            }};
  }
  float next() { return 1 + 0.5f * static_cast<float>(made_++ % 64); }

 private:
  int made_ = 0;
};

TEST_F(LayersTest, PlainPairsWithBiasesAndNorms) {
  config["lora_bias"] = true;
  config["bias"] = "all";
  config["target_modules"] = {"q_proj", "down_proj", "lm_head"};
  config["modules_to_save"] = {"norm", "input_layernorm"};
  give_biases();
  full_bias(Module::kQ);
  tensors.clear();
  linear("self_attn.q_proj", 8, 8, "F16");
  linear("mlp.down_proj", 8, 12, "BF16");
  tensors["base_model.model.lm_head.lora_A.weight"] = matrix({2, 8}, 3);
  tensors["base_model.model.lm_head.lora_B.weight"] = matrix({6, 2}, 7, "F16");
  tensors["base_model.model.lm_head.lora_B.bias"] = matrix({6}, 1);
  tensors["base_model.model.model.norm.weight"] = matrix({8}, 1, "BF16");
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string name = kLayer + std::to_string(layer) + ".";
    tensors[name + "input_layernorm.weight"] = matrix({8}, next());
    tensors[name + "post_attention_layernorm.weight"] = matrix({8}, next());
    tensors[name + "self_attn.q_proj.base_layer.bias"] = matrix({8}, next());
  }
  expect_arrives_layer_by_layer();
}

TEST_F(LayersTest, FusedProjectionsAndTokenRows) {
  config["lora_bias"] = true;
  config["target_modules"] = {"qkv_proj", "gate_up_proj"};
  config["trainable_token_indices"] = {{"embed_tokens", {5, 0, 3}}, {"lm_head", {1}}};
  tensors.clear();
  linear("self_attn.qkv_proj", 16, 8);
  linear("mlp.gate_up_proj", 24, 8, "F16");
  tensors["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"] = matrix({3, 8}, 10);
  tensors["base_model.model.lm_head.token_adapter.trainable_tokens_delta"] = matrix({1, 8}, 70);
  expect_arrives_layer_by_layer();
}

TEST_F(LayersTest, SavedEmbeddingAndHead) {
  config["modules_to_save"] = {"lm_head", "embed_tokens"};
  tensors["base_model.model.lm_head.weight"] = matrix({9, 8}, 4, "F16");
  tensors["base_model.model.model.embed_tokens.weight"] = matrix({9, 8}, 40, "F64");
  expect_arrives_layer_by_layer();
  base.config.tied_head = true;  // the head is the embedding
  config["ensure_weight_tying"] = true;
  tensors.erase("base_model.model.lm_head.weight");
  expect_arrives_layer_by_layer();
}

TEST_F(LayersTest, TheHeadsPairOfATiedEmbedding) {
  base.config.tied_head = true;
  config["ensure_weight_tying"] = true;
  config["target_modules"] = {"embed_tokens", "q_proj"};
  tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = matrix({2, 6}, 1);
  tensors["base_model.model.model.embed_tokens.lora_embedding_B"] = matrix({8, 2}, 50);
  expect_arrives_layer_by_layer();
}

// A layer without tensors is there with those before it.
TEST_F(LayersTest, LayersThatHaveNothing) {
  config["layers_to_transform"] = {5};
  tensors.clear();
  linear("self_attn.q_proj", 8, 8, "F32", 5);
  put_files(safetensors(tensors));
  ArrivalCheck check(files, "/a", base, {});
  check.run();
  EXPECT_EQ(check.looks_within(), 2 + 1) << "both factors of layer 5, and the header";
}

TEST_F(LayersTest, ANumberThatIsNotFiniteComesBehindTheLayersBeforeIt) {
  tensors[kLayer + "9.self_attn.q_proj.lora_B.weight"].values[3] = std::nanf("");
  put_files(safetensors(tensors));
  std::optional<LoadBegun> begun;
  const LoadDone done = run_load_job(source(files), {.id = 4, .path = "/a", .read = true, .early = true},
                                     [&](LoadBegun&& value) { begun = std::move(value); });
  ASSERT_TRUE(begun && !done.load.ok());
  EXPECT_EQ(begun->id, 4u);
  const Arrivals& arrivals = *begun->arriving.arrivals;
  EXPECT_EQ(arrivals.there(), 9);
  ASSERT_FALSE(arrivals.status().ok());
  EXPECT_EQ(arrivals.status().error().message, done.load.error().message);
  EXPECT_NE(done.load.error().message.find("layers.9"), std::string::npos) << done.load.error().message;
  // The tensors before it are as they were in the file.
  expect_pair(begun->arriving.adapter->pair(8, Module::kQ), tensors[kLayer + "8.self_attn.q_proj.lora_A.weight"],
              tensors[kLayer + "8.self_attn.q_proj.lora_B.weight"]);
}

// Behind whichever read the file changes, even the last one: what has begun fails, and
// was never whole.
TEST_F(LayersTest, AFileThatChangesWhileItIsReadIsNeverWhole) {
  put_files(safetensors(tensors));
  int reads = 0, change_at = 0;
  const auto job = [&](const FileSystem& from) {
    reads = 0;
    std::optional<LoadBegun> begun;
    const LoadDone done = run_load_job(source(from), {.id = 1, .path = "/a", .read = true, .early = true},
                                       [&](LoadBegun&& value) { begun = std::move(value); });
    if (begun && begun->arriving.arrivals->failed()) {
      EXPECT_EQ(begun->arriving.arrivals->status().error().message, done.load.error().message);
      EXPECT_LE(begun->arriving.arrivals->there(), kLayers);
    }
    EXPECT_EQ(done.load.ok(), begun && begun->arriving.arrivals->whole());
    EXPECT_EQ(done.load.ok(), change_at == 0 || change_at > reads);
    return done;
  };
  WatchedFileSystem watched(files);
  watched.watch.read = [&](const std::string& path, int64_t, int64_t) -> Status {
    if (++reads == change_at) files.put(path, path.ends_with(".json") ? config.dump() : safetensors(tensors));
    return {};
  };
  EXPECT_TRUE(job(watched).load.ok());
  const int all = reads;
  ASSERT_GT(all, 2 * kLayers);
  for (change_at = 1; change_at <= all; ++change_at) {
    const LoadDone done = job(watched);
    ASSERT_FALSE(done.load.ok()) << "read " << change_at;
    EXPECT_EQ(done.load.error().code, ErrorCode::kUnavailable);
  }
}

// Who has begun with the first layers computes nothing with the last one.
TEST_F(LayersTest, FilesOfAnotherDigestThanExpectedAreNeverWhole) {
  put_files(safetensors(tensors));
  const auto job = [&](const std::string& expected, bool early, std::optional<LoadBegun>& begun) {
    LoadJob load{.id = 1, .path = "/a", .read = true, .early = early};
    load.options.expected_digest = expected;
    return run_load_job(source(files), load, [&](LoadBegun&& value) { begun = std::move(value); });
  };
  std::optional<LoadBegun> begun;
  const LoadDone any = job("", true, begun);
  ASSERT_TRUE(any.load.ok()) << any.load.error().message;
  const std::string digest = digest_hex(any.load->adapter->digest);
  for (const bool early : {false, true}) {
    SCOPED_TRACE(early);
    begun.reset();
    EXPECT_TRUE(job(digest, early, begun).load.ok());
    EXPECT_EQ(begun.has_value() && begun->arriving.arrivals->whole(), early);
    begun.reset();
    const LoadDone other = job(std::string(64, '0'), early, begun);
    ASSERT_FALSE(other.load.ok());
    EXPECT_EQ(other.load.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(other.load.error().message.find("the files at /a are others"), std::string::npos);
    EXPECT_NE(other.load.error().message.find("now " + digest.substr(0, 12) + ", then 000000000000"), std::string::npos)
        << other.load.error().message;
    if (!early) continue;
    ASSERT_TRUE(begun);
    EXPECT_TRUE(begun->arriving.arrivals->failed());
    EXPECT_LE(begun->arriving.arrivals->there(), kLayers);
    EXPECT_EQ(begun->arriving.arrivals->status().error().message, other.load.error().message);
  }
}

TEST_F(LayersTest, AFileThatEndsEarlyFailsWithTheSentenceOfTheRead) {
  put_files(safetensors(tensors));
  const std::string weights = "/a/adapter_model.safetensors";
  files.set_faults(weights, {.end_at_byte = files.stamp(weights)->size_bytes - 4});
  std::optional<LoadBegun> begun;
  const LoadDone done = run_load_job(source(files), {.id = 1, .path = "/a", .read = true, .early = true},
                                     [&](LoadBegun&& value) { begun = std::move(value); });
  ASSERT_TRUE(begun && !done.load.ok());
  EXPECT_TRUE(begun->arriving.arrivals->failed() && !begun->arriving.arrivals->whole());
  EXPECT_EQ(begun->arriving.arrivals->there(), 9) << "layer 9 stands last in the file";
  EXPECT_EQ(begun->arriving.arrivals->status().error().message, done.load.error().message);
  EXPECT_NE(done.load.error().message.find(weights), std::string::npos);
}

TEST_F(LayersTest, NothingIsHandedOutWithoutRoomOrUnasked) {
  put_files(safetensors(tensors));
  int begun = 0;
  const auto job = [&](AdapterLoadOptions options, bool early) {
    LoadJob one{.id = 1, .path = "/a", .read = true, .options = options, .early = early};
    return run_load_job(source(files), one, [&](LoadBegun&&) { ++begun; });
  };
  const LoadDone asked = job({.bytes_max = 10}, true);
  ASSERT_TRUE(asked.load.ok());
  EXPECT_EQ(asked.load->adapter, nullptr);
  EXPECT_TRUE(job({}, false).load->adapter != nullptr);
  EXPECT_EQ(begun, 0);
  EXPECT_TRUE(job({}, true).load->adapter != nullptr);
  EXPECT_EQ(begun, 1);
  const LoadJob nobody{.id = 1, .path = "/a", .read = true, .early = true};
  EXPECT_TRUE(run_load_job(source(files), nobody).load->adapter != nullptr);
}

TEST_F(LayersTest, TheNormOfTheChangeIsMadeBehindTheLastLayer) {
  put_files(safetensors(tensors));
  std::optional<AdapterArriving> shown;
  const AdapterEarly early{.begun = [&](AdapterArriving&& arriving) { shown = std::move(arriving); },
                           .judge =
                               [&](const FileStamp&, Status read) {
                                 EXPECT_EQ(shown->adapter->change_norm, 0) << "the last layer waits for it";
                                 EXPECT_NE(shown->adapter->digest, Digest{});
                                 return read;
                               }};
  const auto loaded = load_adapter(files, "/a", base, {.early = &early}, AdapterVersionId{1});
  ASSERT_TRUE(loaded.ok() && shown && shown->arrivals->whole());
  EXPECT_GT(loaded->adapter->change_norm, 0);
}

// A reader on another thread is done with each layer before the next one is read.
TEST_F(LayersTest, AReaderComputesWithWhatIsThere) {
  config["target_modules"] = {"q_proj", "down_proj"};
  config["bias"] = "all";  // their differences to the base's are made when a layer is read
  give_biases();
  full_bias(Module::kQ);
  linear("mlp.down_proj", 8, 12);
  for (int layer = 0; layer < kLayers; ++layer)
    tensors[kLayer + std::to_string(layer) + ".self_attn.q_proj.base_layer.bias"] = matrix({8}, next());
  put_files(shuffled_safetensors(tensors, 1));
  const auto sum_of = [](const std::vector<Array>& arrays) {
    uint64_t sum = 0;
    for (const Array array : arrays)
      for (const std::byte byte : array) sum = sum * 31 + static_cast<uint64_t>(byte);
    return sum;
  };
  const auto whole = load_adapter(files, "/a", base, {}, AdapterVersionId{1});
  ASSERT_TRUE(whole.ok());
  std::vector<uint64_t> expected;
  for (const auto& arrays : arrays_by_layer(*whole->adapter, base.config)) expected.push_back(sum_of(arrays));

  WatchedFileSystem watched(files);
  Arrivals summed(kLayers + 1);
  std::optional<AdapterArriving> shown;
  std::thread reader;
  std::vector<uint64_t> sums;
  watched.watch.read = [&](const std::string&, int64_t, int64_t) -> Status {
    EXPECT_TRUE(!shown || summed.wait(shown->arrivals->there(), kLongNs));
    return {};
  };
  BoundedQueue<LoadDone> done(1);
  LoadPool pool(
      1, source(watched), [&](LoadDone&& value) { (void)done.try_push(std::move(value)); }, nullptr,
      [&](LoadBegun&& begun) {
        shown = std::move(begun.arriving);
        reader = std::thread([&, arriving = *shown] {
          for (int32_t layer = 0; layer <= kLayers; ++layer) {
            if (!arriving.arrivals->wait(layer + 1, kLongNs)) return;
            sums.push_back(sum_of(arrays_by_layer(*arriving.adapter, base.config)[static_cast<size_t>(layer)]));
            summed.advance();
          }
          if (arriving.adapter->digest == Digest{}) sums.clear();  // it is whole, and so is this
        });
      });
  ASSERT_TRUE(pool.start({.id = 1, .path = "/a", .read = true, .early = true}));
  const auto ended = done.pop();
  ASSERT_TRUE(ended && ended->load.ok());
  reader.join();
  EXPECT_EQ(ended->load->adapter, shown->adapter);
  EXPECT_EQ(sums, expected);
}

}  // namespace
}  // namespace loralei
