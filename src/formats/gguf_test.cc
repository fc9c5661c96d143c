// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/prng.h"
#include "formats/base_model.h"
#include "formats/gguf_model.h"
#include "formats/model_tensors.h"
#include "sys/memory_file_system.h"

namespace loralei {
namespace {

// Writes GGUF as docs/gguf.md says.
class Writer {
 public:
  explicit Writer(uint32_t version = 3) : version_(version) {}
  template <typename T>
  static std::string raw(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  static std::string text(const std::string& value) { return raw<uint64_t>(value.size()) + value; }

  Writer& value(const std::string& key, uint32_t type, const std::string& bytes) {
    pairs_ += text(key) + raw(type) + bytes;
    ++pair_count_;
    return *this;
  }
  Writer& number(const std::string& key, uint32_t number) { return value(key, 4, raw(number)); }
  Writer& real(const std::string& key, float number) { return value(key, 6, raw(number)); }
  Writer& flag(const std::string& key, bool on) { return value(key, 7, raw<uint8_t>(on)); }
  Writer& string(const std::string& key, const std::string& s) { return value(key, 8, text(s)); }
  Writer& strings(const std::string& key, const std::vector<std::string>& list) {
    std::string bytes = raw<uint32_t>(8) + raw<uint64_t>(list.size());
    for (const std::string& item : list) bytes += text(item);
    return value(key, 9, bytes);
  }
  Writer& integers(const std::string& key, const std::vector<int32_t>& list) {
    std::string bytes = raw<uint32_t>(5) + raw<uint64_t>(list.size());
    for (const int32_t item : list) bytes += raw(item);
    return value(key, 9, bytes);
  }
  Writer& tensor(const std::string& name, const std::vector<uint64_t>& reversed_shape, uint32_t type, size_t bytes) {
    return tensor(name, reversed_shape, type, std::string(bytes, '\0'));
  }
  Writer& tensor(const std::string& name, const std::vector<uint64_t>& reversed_shape, uint32_t type,
                 const std::string& bytes) {
    table_ += text(name) + raw<uint32_t>(static_cast<uint32_t>(reversed_shape.size()));
    for (const uint64_t dim : reversed_shape) table_ += raw(dim);
    table_ += raw(type) + raw<uint64_t>(data_.size());
    data_ += bytes;
    data_.resize((data_.size() + 31) / 32 * 32);
    ++tensor_count_;
    return *this;
  }
  std::string done() const {
    std::string head = "GGUF" + raw(version_) + raw(tensor_count_) + raw(pair_count_) + pairs_ + table_;
    head.resize((head.size() + 31) / 32 * 32);
    return head + data_;
  }

 private:
  uint32_t version_;
  uint64_t tensor_count_ = 0, pair_count_ = 0;
  std::string pairs_, table_, data_;
};

Writer model_metadata(const std::vector<std::string>& tokens = {"<unk>", "<s>", "</s>", "a"}) {
  Writer writer;
  writer.string("general.architecture", "llama").number("llama.embedding_length", 8).number("llama.block_count", 1);
  writer.number("llama.attention.head_count", 2)
      .number("llama.attention.head_count_kv", 1)
      .number("llama.feed_forward_length", 16);
  writer.real("llama.attention.layer_norm_rms_epsilon", 1e-5f).number("llama.context_length", 64);
  writer.string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", tokens);
  return writer;
}

Writer& add_tensors(Writer& writer) {
  writer.tensor("token_embd.weight", {8, 4}, 0, 128).tensor("output_norm.weight", {8}, 0, 32);
  writer.tensor("blk.0.attn_norm.weight", {8}, 0, 32).tensor("blk.0.ffn_norm.weight", {8}, 0, 32);
  writer.tensor("blk.0.attn_q.weight", {8, 8}, 1, 128)
      .tensor("blk.0.attn_k.weight", {8, 4}, 1, 64)
      .tensor("blk.0.attn_v.weight", {8, 4}, 1, 64);
  writer.tensor("blk.0.attn_output.weight", {8, 8}, 1, 128).tensor("blk.0.ffn_gate.weight", {8, 16}, 30, 256);
  return writer.tensor("blk.0.ffn_up.weight", {8, 16}, 30, 256).tensor("blk.0.ffn_down.weight", {16, 8}, 30, 256);
}

Result<GgufFile> parse(const std::string& bytes) {
  auto parsed = parse_gguf(std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()), "f.gguf");
  if (!parsed.ok()) return std::move(parsed).error();
  EXPECT_TRUE(parsed->has_value());
  return std::move(**parsed);
}

Result<BaseModelFile> open(const Writer& writer) {
  MemoryFileSystem files;
  files.put("/m.gguf", writer.done());
  return open_base_model(files, "/m.gguf");
}

TEST(Gguf, ReadsEveryValueType) {
  Writer writer(2);
  writer.value("u8", 0, Writer::raw<uint8_t>(200))
      .value("i8", 1, Writer::raw<int8_t>(-3))
      .value("u16", 2, Writer::raw<uint16_t>(60000));
  writer.value("i16", 3, Writer::raw<int16_t>(-300))
      .number("u32", 4000000000u)
      .value("i32", 5, Writer::raw<int32_t>(-5))
      .real("f32", 0.5f);
  writer.flag("yes", true)
      .string("text", "h\xc3\xa9")
      .value("u64", 10, Writer::raw<uint64_t>(1ull << 40))
      .value("i64", 11, Writer::raw<int64_t>(-7));
  writer.value("f64", 12, Writer::raw(2.25)).strings("list", {"a", "", "b"});
  writer.value("ints", 9, Writer::raw<uint32_t>(1) + Writer::raw<uint64_t>(2) + std::string("\x01\xff", 2));
  writer.value("reals", 9, Writer::raw<uint32_t>(6) + Writer::raw<uint64_t>(1) + Writer::raw(1.5f));
  writer.tensor("t", {32, 2}, 8, 68);
  auto file = parse(writer.done());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->version, 2u);
  EXPECT_EQ(**file->integer("u8", 0, 255), 200);
  EXPECT_EQ(**file->integer("i16", -1000, 0), -300);
  EXPECT_EQ(**file->integer("u32", 0, UINT32_MAX), 4000000000);
  EXPECT_EQ(**file->integer("u64", 0, INT64_MAX), int64_t{1} << 40);
  EXPECT_EQ(**file->real("f64"), 2.25);
  EXPECT_EQ(**file->real("i8"), -3.0);
  EXPECT_EQ(**file->boolean("yes"), true);
  EXPECT_EQ(**file->text("text"), "h\xc3\xa9");
  EXPECT_EQ(file->find("list")->texts, (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(file->find("ints")->numbers, (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(file->find("reals")->reals, std::vector<float>{1.5f});
  EXPECT_FALSE(file->integer("u8", 0, 100).ok());
  EXPECT_FALSE(file->text("u8").ok());
  EXPECT_FALSE((*file->integer("absent", 0, 1)).has_value());
  const TensorInfo* tensor = file->index.find("t");
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{2, 32}));  // slowest first
  EXPECT_EQ(tensor->dtype, DType::kQ8_0);
  EXPECT_EQ(tensor->bytes, 68);
  EXPECT_EQ(tensor->offset % 32, 0);
}

TEST(Gguf, EveryTruncationIsAnError) {
  Writer writer = model_metadata();
  const std::string good = add_tensors(writer).done();
  ASSERT_TRUE(parse(good).ok());
  for (size_t size = 0; size < good.size() - 32; ++size) EXPECT_FALSE(parse(good.substr(0, size)).ok()) << size;
  // The same bytes of a longer file: more is asked for, until the table is complete.
  size_t complete = 0;
  for (size_t size = 0; size <= good.size(); ++size) {
    auto parsed = parse_gguf(std::as_bytes(std::span(good).first(size)), static_cast<int64_t>(good.size()), "f");
    ASSERT_TRUE(parsed.ok()) << size << parsed.error().message;
    if (parsed->has_value() && complete == 0) complete = size;
    EXPECT_EQ(parsed->has_value(), complete != 0) << size;
  }
  EXPECT_GT(complete, 300u);
}

TEST(Gguf, RandomDamage) {
  Writer writer = model_metadata();
  const std::string good = add_tensors(writer).done();
  Prng random(11);
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = good;
    const uint64_t changes = 1 + random.below(4);
    for (uint64_t i = 0; i < changes; ++i) bytes[random.below(1200)] = static_cast<char>(random());
    auto parsed = parse_gguf(std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()), "f");
    if (!parsed.ok()) continue;
    for (const TensorInfo& tensor : (*parsed)->index.tensors) {
      ASSERT_GE(tensor.offset, 0) << "round " << round;
      ASSERT_LE(tensor.offset + tensor.bytes, static_cast<int64_t>(bytes.size())) << "round " << round;
    }
    std::vector<std::string> notes;
    (void)gguf_model_config(**parsed, notes).ok();
    (void)gguf_vocab(**parsed, notes).ok();
  }
}

TEST(Gguf, RefusesByName) {
  const auto error = [](const Writer& writer) {
    auto file = parse(writer.done());
    EXPECT_FALSE(file.ok());
    return file.ok() ? "" : file.error().message;
  };
  EXPECT_NE(error(Writer(1)).find("version 1"), std::string::npos);
  EXPECT_NE(error(Writer(0x03000000)).find("big-endian"), std::string::npos);
  const std::string unknown = error(Writer().tensor("x.y", {256}, 16, 66));
  EXPECT_NE(unknown.find("IQ2_XXS"), std::string::npos);
  for (const char* name : {"F32", "Q8_0", "Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS", "BF16 and MXFP4 are"})
    EXPECT_NE(unknown.find(name), std::string::npos) << unknown;
  EXPECT_NE(error(Writer().tensor("x.y", {256}, 77, 84)).find("x.y"), std::string::npos);
  EXPECT_NE(error(Writer().tensor("x.y", {33}, 8, 68)).find("blocks"), std::string::npos);
  EXPECT_NE(error(Writer().number("k", 1).number("k", 1)).find("twice"), std::string::npos);
  EXPECT_NE(error(Writer().tensor("t", {8}, 0, 32).tensor("t", {8}, 0, 32)).find("twice"), std::string::npos);
  error(Writer().tensor("t", {uint64_t{1} << 63, 4}, 0, 32));
  error(Writer().tensor("t", {uint64_t{1} << 62, 8}, 0, 32));
  error(Writer().tensor("t", {0}, 0, 32));
  error(Writer().tensor("t", {1, 1, 1, 1, 1}, 0, 32));
  error(Writer().number("general.alignment", 0));
  error(Writer().number("general.alignment", 12));
  error(Writer().flag("f", true).value("g", 7, "\x02"));
  error(Writer().value("g", 13, "x"));
  error(Writer().value("a", 9, Writer::raw<uint32_t>(9) + Writer::raw<uint64_t>(0)));  // lists of lists
  // A count beyond the file.
  error(Writer().value("a", 9, Writer::raw<uint32_t>(8) + Writer::raw<uint64_t>(1ull << 60)));
  error(Writer().value("a", 8, Writer::raw<uint64_t>(UINT64_MAX)));
}

TEST(Gguf, ModelOpens) {
  Writer writer = model_metadata();
  writer.number("tokenizer.ggml.bos_token_id", 1)
      .number("tokenizer.ggml.eos_token_id", 2)
      .flag("tokenizer.ggml.add_bos_token", true);
  writer.number("tokenizer.ggml.padding_token_id", 99).string("tokenizer.chat_template", "{{x}}");
  writer.string("tokenizer.chat_template.tool_use", "{{tools}}");
  auto model = open(add_tensors(writer));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_TRUE(model->is_gguf && model->permuted_qk && model->config.tied_head);
  EXPECT_EQ(model->config.head_dim, 4);
  EXPECT_EQ(model->config.vocab, 4);
  EXPECT_EQ(model->config.eos, std::vector<TokenId>{2});
  EXPECT_EQ(model->config.dtype, DType::kF16);
  EXPECT_TRUE(model->index.find("model.layers.0.mlp.down_proj.weight"));
  ASSERT_TRUE(model->vocab);
  EXPECT_EQ(model->vocab->add_bos, 1);
  EXPECT_EQ(model->vocab->add_eos, -1);
  EXPECT_EQ(model->vocab->pad, -1);  // outside the vocabulary
  EXPECT_EQ(model->vocab->chat_template, "{{x}}");
  EXPECT_EQ(model->vocab->tool_template, "{{tools}}");
  EXPECT_FALSE(model->notes.empty());
}

// Where an answer may have several messages, what ends one of them does not end it.
TEST(Gguf, AMessageOfSeveralDoesNotEndTheAnswer) {
  for (const bool several : {false, true}) {
    Writer writer = model_metadata({"<|return|>", several ? "<|call|>" : "<|calls|>", "<|end|>", "x"});
    writer.integers("tokenizer.ggml.token_type", {3, 3, 3, 1});
    writer.number("tokenizer.ggml.eos_token_id", 0);
    auto model = open(add_tensors(writer));
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model->config.eos, several ? (std::vector<TokenId>{0, 1}) : (std::vector<TokenId>{0, 2}));
  }
}

// Keys name some of the tokens that end a generation, their texts the others: not where
// they are plain text.
TEST(Gguf, EndsAreNamedByKeysAndByText) {
  Writer writer = model_metadata({"<eom>", "<|end_of_text|>", "<|im_end|>", "<|end|>"});
  writer.integers("tokenizer.ggml.token_type", {3, 3, 4, 1});
  writer.number("tokenizer.ggml.bos_token_id", 0)
      .number("tokenizer.ggml.eos_token_id", 1)
      .number("tokenizer.ggml.eom_token_id", 0);
  auto model = open(add_tensors(writer));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->config.eos, (std::vector<TokenId>{1, 0, 2}));
  EXPECT_EQ(model->vocab->ends, model->config.eos);
  EXPECT_EQ(model->vocab->types, (std::vector<int32_t>{3, 3, 3, 1}));
  EXPECT_EQ(model->vocab->bos, 0);
  // The kind's own defaults count for the engine as well.
  Writer silent = model_metadata();
  model = open(add_tensors(silent));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->vocab->bos, 1);
  EXPECT_EQ(model->config.eos, std::vector<TokenId>{2});
}

TEST(Gguf, RopeScaling) {
  Writer yarn = model_metadata();
  yarn.string("llama.rope.scaling.type", "yarn")
      .real("llama.rope.scaling.factor", 4)
      .number("llama.rope.scaling.original_context_length", 32);
  auto model = open(add_tensors(yarn));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->config.rope_scaling.kind, RopeScalingKind::kYarn);
  EXPECT_EQ(model->config.rope_scaling.original_max_position, 32);
  Writer longrope = model_metadata();
  longrope.string("llama.rope.scaling.type", "longrope");
  EXPECT_FALSE(open(add_tensors(longrope)).ok());
  Writer partial = model_metadata();
  partial.number("llama.rope.dimension_count", 2);
  EXPECT_FALSE(open(add_tensors(partial)).ok());
  // Zeros are no factors; their number must be half a head.
  Writer factors = model_metadata();
  EXPECT_FALSE(open(add_tensors(factors).tensor("rope_freqs.weight", {2}, 0, 8)).ok());
  Writer wrong = model_metadata();
  EXPECT_FALSE(open(add_tensors(wrong).tensor("rope_freqs.weight", {3}, 0, 12)).ok());
}

TEST(Gguf, FactorsForShortAndForLongTextsAreBothThereAndFit) {
  const std::string good = Writer::raw(2.0f) + Writer::raw(4.0f), zero = Writer::raw(0.0f) + Writer::raw(4.0f);
  const auto with = [](const std::string& of_short, const std::string& of_long) {
    Writer writer = model_metadata();
    writer.number("llama.rope.scaling.original_context_length", 32);
    add_tensors(writer);
    if (!of_short.empty()) writer.tensor("rope_factors_short.weight", {of_short.size() / 4}, 0, of_short);
    if (!of_long.empty()) writer.tensor("rope_factors_long.weight", {of_long.size() / 4}, 0, of_long);
    return open(writer);
  };
  const auto model = with(good, good);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->config.rope_scaling.kind, RopeScalingKind::kLongRope);
  EXPECT_EQ(model->config.rope_scaling.long_factors, (std::vector<float>{2, 4}));
  EXPECT_FALSE(with(good, "").ok());
  EXPECT_FALSE(with("", good).ok());
  EXPECT_FALSE(with(good, zero).ok());
  EXPECT_FALSE(with(good, good + Writer::raw(1.0f)).ok());
}

TEST(Gguf, RefusesOtherModels) {
  const auto error = [](const Writer& writer) {
    auto model = open(writer);
    EXPECT_FALSE(model.ok());
    return model.ok() ? "" : model.error().message;
  };
  EXPECT_NE(error(Writer().string("general.architecture", "falcon")).find("falcon"), std::string::npos);
  EXPECT_NE(error(Writer().string("general.type", "adapter").string("general.architecture", "llama")).find("--adapter"),
            std::string::npos);
  Writer extra = model_metadata();
  EXPECT_NE(error(add_tensors(extra).tensor("blk.0.gadget.weight", {8}, 0, 32)).find("gadget"), std::string::npos);
  Writer missing = model_metadata();
  EXPECT_NE(error(missing.tensor("token_embd.weight", {8, 4}, 0, 128)).find("lacks"), std::string::npos);
  Writer shape = model_metadata();
  EXPECT_NE(error(add_tensors(shape).tensor("output.weight", {8, 5}, 0, 160)).find("[5, 8]"), std::string::npos);
}

TEST(Gguf, ExpertsThatCannotBeAreRefused) {
  const auto error = [](uint32_t count, uint32_t used, const Writer& more) {
    Writer writer = more;
    add_tensors(writer).number("llama.expert_count", count).number("llama.expert_used_count", used);
    auto model = open(writer);
    EXPECT_FALSE(model.ok());
    return model.ok() ? "" : model.error().message;
  };
  Writer routed = model_metadata();
  routed.tensor("blk.0.ffn_gate_inp.weight", {8, 2}, 0, 64);
  EXPECT_NE(error(2, 3, routed).find("3 of 2 experts"), std::string::npos);
  EXPECT_NE(error(2, 0, routed).find("0 of 2 experts"), std::string::npos);
  EXPECT_NE(error(2000000000, 2, routed).find("possible"), std::string::npos);
  EXPECT_NE(error(2, 1, model_metadata()).find("no layer"), std::string::npos);
  EXPECT_NE(error(2, 1, routed).find("does not have"), std::string::npos);  // its MLP is that of no expert
  Writer scaled = routed, gated = routed, stacked = routed;
  EXPECT_NE(error(2, 1, scaled.real("llama.expert_weights_scale", 2.5f)).find("expert_weights_scale"),
            std::string::npos);
  EXPECT_NE(error(2, 1, gated.number("llama.expert_gating_func", 2)).find("softmax"), std::string::npos);
  EXPECT_NE(error(2, 1, stacked.tensor("blk.0.ffn_up_exps.weight", {8, 16, 3}, 0, 1536)).find("[3, 16, 8]"),
            std::string::npos);
}

Writer& add_split(Writer& writer, uint16_t part, uint16_t parts, int32_t tensors) {
  writer.value("split.no", 2, Writer::raw(part)).value("split.count", 2, Writer::raw(parts));
  return writer.value("split.tensors.count", 5, Writer::raw(tensors));
}

// A model whose factors of the rope lie in a second part and its output
// matrix in a third.
struct Parts {
  MemoryFileSystem files;
  Parts() {
    Writer first = model_metadata();
    put(1, add_split(add_tensors(first), 0, 3, 13));
    Writer second;
    put(2, add_split(second.tensor("rope_freqs.weight", {2}, 0, Writer::raw(2.0f) + Writer::raw(4.0f)), 1, 3, 13));
    Writer third;
    put(3, add_split(third.tensor("output.weight", {8, 4}, 0, 128), 2, 3, 13));
  }
  static std::string path(int part) { return "/m-0000" + std::to_string(part) + "-of-00003.gguf"; }
  void put(int part, const Writer& writer) { files.put(path(part), writer.done()); }
  std::string error(const std::string& path) {
    auto model = open_base_model(files, path);
    EXPECT_FALSE(model.ok());
    return model.ok() ? "" : model.error().message;
  }
};

TEST(Gguf, PartsAreReadAsOneModel) {
  Parts parts;
  auto model = open_base_model(parts.files, Parts::path(1));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->index.files, (std::vector<std::string>{Parts::path(1), Parts::path(2), Parts::path(3)}));
  EXPECT_EQ(model->index.stamps.size(), 3u);
  EXPECT_EQ(model->index.tensors.size(), 12u);
  const TensorInfo* head = model->index.find("lm_head.weight");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->file, 2u);
  EXPECT_FALSE(model->config.tied_head);
  EXPECT_EQ(model->config.rope_scaling.freq_factors, (std::vector<float>{2, 4}));
}

TEST(Gguf, PartsMustBelongTogether) {
  Parts other;
  EXPECT_NE(other.error(Parts::path(2)).find("name the first part, " + Parts::path(1)), std::string::npos);
  Writer renamed = model_metadata();
  other.files.put("/m.gguf", add_split(add_tensors(renamed), 0, 3, 13).done());
  EXPECT_NE(other.error("/m.gguf").find("-00001-of-00003.gguf"), std::string::npos);
  other.files.remove(Parts::path(3));
  EXPECT_NE(other.error(Parts::path(1)).find(Parts::path(3) + ": is not there"), std::string::npos);
  Writer wrong;
  other.put(3, add_split(wrong.tensor("output.weight", {8, 4}, 0, 128), 1, 3, 13));
  EXPECT_NE(other.error(Parts::path(1)).find("says that it is part 2 of 3"), std::string::npos);
  Writer whole;
  other.put(3, whole.tensor("output.weight", {8, 4}, 0, 128));
  EXPECT_NE(other.error(Parts::path(1)).find("says that it is part 1 of 1"), std::string::npos);
  Writer twice;
  other.put(3, add_split(twice.tensor("token_embd.weight", {8, 4}, 0, 128), 2, 3, 13));
  EXPECT_NE(other.error(Parts::path(1)).find("also in another part"), std::string::npos);
  Writer none;
  other.put(3, add_split(none, 2, 3, 13));
  EXPECT_NE(other.error(Parts::path(1)).find("they hold 12"), std::string::npos);
  Writer many = model_metadata();
  other.put(1, add_split(add_tensors(many), 0, 65535, 13));
  EXPECT_NE(other.error(Parts::path(1)).find("split.count"), std::string::npos);
  Writer silent = model_metadata();
  other.put(1, add_tensors(silent).value("split.count", 2, Writer::raw<uint16_t>(3)));
  EXPECT_NE(other.error(Parts::path(1)).find("split.no"), std::string::npos);
}

TEST(Gguf, PermutationRoundTrip) {
  // head_dim 4: file rows 0,1,2,3 of a head are ours 0,2,1,3.
  EXPECT_EQ(qk_row(0, 4, 4), 0);
  EXPECT_EQ(qk_row(1, 4, 4), 2);
  EXPECT_EQ(qk_row(2, 4, 4), 1);
  EXPECT_EQ(qk_row(7, 4, 4), 7);
  for (int64_t dim : {2, 4, 6, 64, 128}) {
    std::vector<bool> seen(static_cast<size_t>(3 * dim));
    for (int64_t row = 0; row < 3 * dim; ++row) seen[static_cast<size_t>(qk_row(row, dim, dim))] = true;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 3 * dim);
  }
}

// Files that other programs wrote: llama.cpp's vocabularies.
TEST(Gguf, RealVocabularies) {
  const char* shared = std::getenv("LORALEI_SHARED_DATA");
  const std::string folder =
      (shared ? std::string(shared) : std::string(LORALEI_SOURCE_DIR) + "/../shared/data") + "/tokenizers/gguf";
  const PosixFileSystem files;
  auto entries = files.list(folder);
  if (!entries.ok()) GTEST_SKIP() << "no shared data: " << entries.error().message;
  int count = 0;
  for (const DirEntry& entry : *entries) {
    if (!entry.name.ends_with(".gguf")) continue;
    auto file = read_gguf(files, folder + "/" + entry.name);
    ASSERT_TRUE(file.ok()) << file.error().message;
    std::vector<std::string> notes;
    auto vocab = gguf_vocab(*file, notes);
    ASSERT_TRUE(vocab.ok()) << vocab.error().message;
    EXPECT_GT(vocab->tokens.size(), 30000u) << entry.name;
    ++count;
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace loralei
