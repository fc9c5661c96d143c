// SPDX-License-Identifier: Apache-2.0
#include "formats/stored_tensors.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "formats/words.h"
#include "tensor/dtype.h"

namespace loralei {
namespace {

constexpr int64_t kReadMax = int64_t{1} << 26;  // of a small tensor: more than any row has numbers

using Shape = std::vector<int64_t>;

// A tensor of the files, whatever its format.
struct Part {
  std::string dtype;
  Shape shape;
  uint32_t file = 0;
  int64_t offset = 0, bytes = 0;
};

std::string upper_name(DType dtype) { return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16"; }

std::optional<DType> float_of(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (upper_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// Scales of inputs, outputs and the cache, which are not rounded here.
bool is_activation_scale(const std::string& name) {
  static constexpr std::array<const char*, 7> kEnds = {
      ".input_scale", ".output_scale", ".input_zero_point", ".k_scale", ".v_scale", ".input_scale_ub", ".q_scale"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return name.ends_with(end); });
}

constexpr int64_t kBlock = 32;  // of MXFP4

// "model.layers.3.mlp.experts.", 7, "up_proj"
struct ExpertName {
  std::string block;
  int64_t expert = 0;
  std::string part;
};
std::optional<ExpertName> expert_name(const std::string& matrix) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const size_t at = matrix.find(kExperts);
  if (at == std::string::npos) return std::nullopt;
  const size_t number = at + kExperts.size(), dot = matrix.find('.', number);
  if (dot == std::string::npos) return std::nullopt;
  return ExpertName{matrix.substr(0, number), std::atoi(matrix.c_str() + number), matrix.substr(dot + 1)};
}

int64_t experts_of(const std::vector<ExpectedTensor>& expected) {
  int64_t count = 0;
  for (const ExpectedTensor& tensor : expected) {
    if (const auto name = expert_name(tensor.name); name && name->part.ends_with(".weight"))
      count = std::max(count, name->expert + 1);
  }
  return count;
}

class Joiner {
 public:
  // `experts`: of a layer.
  Joiner(const FileSystem& files, const QuantConfig& quant, int64_t experts, SafetensorsModel& model,
         const std::string& place)
      : files_(files), quant_(quant), experts_(experts), model_(model), place_(place) {
    for (const TensorInfo& tensor : model.index.tensors)
      parts_.emplace(tensor.name,
                     Part{upper_name(tensor.dtype), tensor.shape, tensor.file, tensor.offset, tensor.bytes});
    for (const ForeignTensor& tensor : model.foreign)
      parts_.emplace(tensor.name, Part{tensor.dtype, tensor.shape, tensor.file, tensor.offset, tensor.bytes});
  }

  // `name`.weight, [rows, cols]; nothing is done where it is stored as plain numbers.
  Status add_matrix(const std::string& name, int64_t rows, int64_t cols);
  // A bias of zeros where the model has none, as GPTQ's tools store.
  Status drop_bias(const std::string& name);
  // What was used leaves the model, and the matrices join it.
  void finish(std::vector<std::string>& notes);
  int joined() const { return static_cast<int>(matrices_.size()); }

 private:
  struct Wanted {
    std::string name;  // of the matrix, without ".weight"
    int64_t rows = 0, cols = 0;
  };

  const Part* find(const std::string& name) const {
    const auto it = parts_.find(name);
    return it == parts_.end() ? nullptr : &it->second;
  }
  Result<const Part*> take(const Wanted& matrix, const char* end, const std::string& dtype, const Shape& shape);
  Result<DType> take_scales(const Wanted& matrix, const char* end, StoredForm& form, Shape& shape);
  Status read(const Part& part, std::span<std::byte> out) const;
  Status check_group_order(const Wanted& matrix, const char* end, int64_t group);
  Status check_shape_tensor(const Wanted& matrix);
  Status fit_scales(const Wanted& matrix, const Shape& shape, StoredForm& form) const;
  Status check_form(const Wanted& matrix, DType dtype, const StoredForm& form) const;
  Error refused(const Wanted& matrix, const std::string& why) const {
    return unsupported(place_ + ": the matrix \"" + matrix.name + "\" " + why);
  }

  Status add_by_columns(const Wanted& matrix);
  Status add_packed(const Wanted& matrix);
  Status add_bytes(const Wanted& matrix, const Part& weight);
  Status add_expert(const Wanted& matrix);
  void add(const Wanted& matrix, DType dtype, const StoredForm& form, const Part& quants);

  const FileSystem& files_;
  const QuantConfig& quant_;
  const int64_t experts_;
  SafetensorsModel& model_;
  const std::string& place_;
  std::unordered_map<std::string, Part> parts_;
  std::unordered_set<std::string> used_;
  std::vector<TensorInfo> matrices_;
  mutable std::unique_ptr<File> open_;  // the file that was read last
  mutable uint32_t open_number_ = 0;
  int zero_biases_ = 0;
};

Result<const Part*> Joiner::take(const Wanted& matrix, const char* end, const std::string& dtype, const Shape& shape) {
  const std::string name = matrix.name + end;
  const Part* part = find(name);
  if (part == nullptr) return corrupt(place_ + ": lacks tensor \"" + name + "\" of a quantised matrix");
  if (part->dtype != dtype || part->shape != shape) {
    return corrupt(place_ + ": tensor \"" + name + "\" is " + part->dtype + " of shape " + shape_text(part->shape) +
                   ", but the config needs " + dtype + " of shape " + shape_text(shape));
  }
  used_.insert(name);
  return part;
}

// Any of the formats of floats; answers which, and the shape, which the caller checks.
Result<DType> Joiner::take_scales(const Wanted& matrix, const char* end, StoredForm& form, Shape& shape) {
  const std::string name = matrix.name + end;
  const Part* part = find(name);
  if (part == nullptr) return corrupt(place_ + ": lacks tensor \"" + name + "\" of a quantised matrix");
  const auto dtype = float_of(part->dtype);
  if (!dtype)
    return unsupported(place_ + ": tensor \"" + name + "\" holds scales as " + part->dtype +
                       ", which cannot be read; F16, BF16 and F32 can");
  used_.insert(name);
  form.scale_dtype = *dtype;
  form.scales = {part->file, part->offset};
  shape = part->shape;
  return *dtype;
}

Status Joiner::read(const Part& part, std::span<std::byte> out) const {
  if (open_ == nullptr || open_number_ != part.file) {
    TRY_ASSIGN(open_, files_.open(model_.index.files[part.file]));
    open_number_ = part.file;
  }
  return open_->read_exact(part.offset, out);
}

// Groups are runs of inputs: input i is of group i / group. Another order, which
// "desc_act" (act-order) makes, would not fit blocks of neighbours.
Status Joiner::check_group_order(const Wanted& matrix, const char* end, int64_t group) {
  if (find(matrix.name + end) == nullptr && !quant_.own_order) return {};
  TRY_ASSIGN(const Part* part, take(matrix, end, "I32", {matrix.cols}));
  if (part->bytes > kReadMax) return refused(matrix, "is too wide");
  std::vector<int32_t> groups(static_cast<size_t>(matrix.cols));
  TRY(read(*part, std::as_writable_bytes(std::span(groups))));
  for (int64_t i = 0; i < matrix.cols; ++i) {
    if (groups[static_cast<size_t>(i)] == i / group) continue;
    return refused(matrix,
                   "has groups of inputs in an order of their own (act-order, \"desc_act\": true), which "
                   "cannot be read; use a checkpoint quantised with desc_act false, or a GGUF file");
  }
  return {};
}

// Packed numbers say their shape again.
Status Joiner::check_shape_tensor(const Wanted& matrix) {
  const Part* part = find(matrix.name + ".weight_shape");
  if (part == nullptr) return {};
  TRY(take(matrix, ".weight_shape", part->dtype == "I32" ? "I32" : "I64", {2}));
  std::array<int64_t, 2> shape{};
  if (part->dtype == "I32") {
    std::array<int32_t, 2> narrow{};
    TRY(read(*part, std::as_writable_bytes(std::span(narrow))));
    shape = {narrow[0], narrow[1]};
  } else {
    TRY(read(*part, std::as_writable_bytes(std::span(shape))));
  }
  if (shape == std::array{matrix.rows, matrix.cols}) return {};
  return corrupt(place_ + ": tensor \"" + matrix.name + ".weight_shape\" says " + shape_text({shape[0], shape[1]}) +
                 ", but the config needs " + shape_text({matrix.rows, matrix.cols}));
}

// Which weights share a scale, from the shape of the scales of a matrix stored by rows.
Status Joiner::fit_scales(const Wanted& matrix, const Shape& shape, StoredForm& form) const {
  const auto up = [](int64_t count, int64_t size) { return (count + size - 1) / size; };
  const int64_t count = shape.empty() ? 1 : shape.size() > 2 ? 0 : shape[0] * (shape.size() == 2 ? shape[1] : 1);
  form.group = matrix.cols;
  form.groups = 1;
  if (const int64_t rows = quant_.block_rows, cols = quant_.block_cols;
      rows > 0 && shape == Shape{up(matrix.rows, rows), up(matrix.cols, cols)}) {
    form.group_rows = rows;
    form.group = cols;
    form.groups = shape[1];
  } else if (count == 1) {
    form.group_rows = matrix.rows;
  } else if (count == matrix.rows && shape[0] == matrix.rows) {
    form.group_rows = 1;
  } else if (shape.size() == 2 && shape[0] == matrix.rows && shape[1] > 0 && matrix.cols % shape[1] == 0) {
    form.groups = shape[1];
    form.group = matrix.cols / shape[1];
  } else {
    return corrupt(place_ + ": the matrix \"" + matrix.name + "\" of shape " + shape_text({matrix.rows, matrix.cols}) +
                   " has scales of shape " + shape_text(shape) + ", which do not fit it");
  }
  return {};
}

Status Joiner::check_form(const Wanted& matrix, DType dtype, const StoredForm& form) const {
  const int block = dtype_info(dtype).block_elems;
  if (fits_blocks(dtype, matrix.cols) && (form.group == matrix.cols || form.group % block == 0)) return {};
  return refused(matrix, "has " + std::to_string(matrix.cols) + " inputs in groups of " + std::to_string(form.group) +
                             ", but both must be multiples of " + std::to_string(block) + " to be held as " +
                             dtype_info(dtype).name + "; use the original weights or a GGUF file");
}

void Joiner::add(const Wanted& matrix, DType dtype, const StoredForm& form, const Part& quants) {
  StoredForm stored = form;
  stored.quants = {quants.file, quants.offset};
  stored.rows = matrix.rows;
  matrices_.push_back({.name = matrix.name + ".weight",
                       .dtype = dtype,
                       .shape = {matrix.rows, matrix.cols},
                       .file = quants.file,
                       .offset = quants.offset,
                       .bytes = matrix.rows * row_bytes(dtype, matrix.cols),
                       .stored = std::make_shared<const StoredForm>(stored)});
}

// GPTQ and AWQ: inputs lie one after the other, outputs beside each other.
Status Joiner::add_by_columns(const Wanted& matrix) {
  const bool awq = quant_.method == QuantMethod::kAwq;
  StoredForm form{.kind = awq ? StoredKind::kAwq : StoredKind::kGptq, .bits = quant_.bits};
  form.group = quant_.group == 0 ? matrix.cols : quant_.group;
  form.groups = (matrix.cols + form.group - 1) / form.group;
  form.has_zeros = true;
  form.zero_offset = quant_.zero_offset;
  form.zeros_are_middle = quant_.symmetric;
  const int64_t each = 32 / quant_.bits;  // numbers of a word
  if (matrix.rows % each != 0 || matrix.cols % each != 0)
    return refused(matrix, "of shape " + shape_text({matrix.rows, matrix.cols}) + " does not fill words of " +
                               std::to_string(each) + " numbers");
  const DType dtype = !quant_.symmetric ? DType::kInt4G : quant_.bits == 8 ? DType::kQ8_0 : DType::kQ4_0;
  TRY(check_form(matrix, dtype, form));
  const Shape words = awq ? Shape{matrix.cols, matrix.rows / each} : Shape{matrix.cols / each, matrix.rows};
  TRY_ASSIGN(const Part* quants, take(matrix, ".qweight", "I32", words));
  TRY_ASSIGN(const Part* zeros, take(matrix, ".qzeros", "I32", {form.groups, matrix.rows / each}));
  form.zeros = {zeros->file, zeros->offset};
  Shape shape;
  TRY(take_scales(matrix, ".scales", form, shape));
  if (shape != Shape{form.groups, matrix.rows}) {
    return corrupt(place_ + ": tensor \"" + matrix.name + ".scales\" has shape " + shape_text(shape) +
                   ", but the config needs " + shape_text({form.groups, matrix.rows}));
  }
  TRY(check_group_order(matrix, ".g_idx", form.group));
  add(matrix, dtype, form, *quants);
  return {};
}

// compressed-tensors: words of 4 or 8 bits, rows one after the other.
Status Joiner::add_packed(const Wanted& matrix) {
  const Part& packed = *find(matrix.name + ".weight_packed");
  StoredForm form{.kind = StoredKind::kPacked, .bits = 4};
  if (packed.shape.size() == 2 && packed.shape[1] * 4 == matrix.cols) form.bits = 8;
  Shape shape;
  TRY(take_scales(matrix, ".weight_scale", form, shape));
  TRY(fit_scales(matrix, shape, form));
  form.has_zeros = find(matrix.name + ".weight_zero_point") != nullptr;
  if (form.has_zeros && form.bits == 8)
    return refused(matrix,
                   "has weights of 8 bits with zero points, which cannot be read; use the original weights or a "
                   "GGUF file");
  const DType dtype = form.bits == 8 ? DType::kQ8_0 : form.has_zeros ? DType::kInt4G : DType::kQ4_0;
  TRY(check_form(matrix, dtype, form));
  TRY_ASSIGN(const Part* quants, take(matrix, ".weight_packed", "I32", {matrix.rows, matrix.cols * form.bits / 32}));
  if (form.has_zeros) {
    if (form.group_rows != 1) return refused(matrix, "has zero points, but not for each of its rows");
    TRY_ASSIGN(const Part* zeros, take(matrix, ".weight_zero_point", "I32", {(matrix.rows + 7) / 8, form.groups}));
    form.zeros = {zeros->file, zeros->offset};
  }
  TRY(check_shape_tensor(matrix));
  TRY(check_group_order(matrix, ".weight_g_idx", form.group));
  add(matrix, dtype, form, *quants);
  return {};
}

// A weight of int8 or e4m3 with its scales beside it.
Status Joiner::add_bytes(const Wanted& matrix, const Part& weight) {
  const bool floats = weight.dtype == "F8_E4M3";
  StoredForm form{.kind = StoredKind::kBytes, .bits = 8};
  Shape shape;
  const char* scales = find(matrix.name + ".weight_scale_inv") != nullptr ? ".weight_scale_inv" : ".weight_scale";
  TRY(take_scales(matrix, scales, form, shape));
  TRY(fit_scales(matrix, shape, form));
  if (find(matrix.name + ".weight_zero_point") != nullptr)
    return refused(matrix,
                   "has weights of 8 bits with zero points, which cannot be read; use the original weights or a "
                   "GGUF file");
  const DType dtype = floats ? DType::kF8G : DType::kQ8_0;
  TRY(check_form(matrix, dtype, form));
  TRY_ASSIGN(const Part* quants, take(matrix, ".weight", weight.dtype, {matrix.rows, matrix.cols}));
  TRY(check_group_order(matrix, ".weight_g_idx", form.group));
  add(matrix, dtype, form, *quants);
  return {};
}

// MXFP4: a matrix of one of a layer's experts, whose tensors hold all of them.
Status Joiner::add_expert(const Wanted& matrix) {
  const std::optional<ExpertName> name = expert_name(matrix.name);
  if (!name) return {};
  const bool down = name->part == "down_proj";
  const Wanted stack{name->block + (down ? "down_proj" : "gate_up_proj"), matrix.rows, matrix.cols};
  if (find(stack.name + "_blocks") == nullptr && find(stack.name + "_scales") == nullptr) return {};
  StoredForm form{.kind = StoredKind::kMxfp4, .bits = 4};
  form.row_step = down ? 1 : 2;
  form.row_first = name->part == "up_proj" ? 1 : 0;
  form.group = kBlock;
  form.groups = matrix.cols / kBlock;
  TRY(check_form(matrix, DType::kMXFP4, form));
  const int64_t stored_rows = matrix.rows * form.row_step;
  TRY_ASSIGN(const Part* blocks, take(stack, "_blocks", "U8", {experts_, stored_rows, form.groups, kBlock / 2}));
  TRY_ASSIGN(const Part* scales, take(stack, "_scales", "U8", {experts_, stored_rows, form.groups}));
  Part own = *blocks;
  own.offset += name->expert * stored_rows * form.groups * (kBlock / 2);
  form.scales = {scales->file, scales->offset + name->expert * stored_rows * form.groups};
  add(matrix, DType::kMXFP4, form, own);
  return {};
}

Status Joiner::add_matrix(const std::string& name, int64_t rows, int64_t cols) {
  const Wanted matrix{name, rows, cols};
  if (quant_.method == QuantMethod::kMxfp4) return add_expert(matrix);
  if (is_held_as_f32(name + ".weight")) {
    const Part* plain = find(name + ".weight");
    const bool parts = find(name + ".qweight") != nullptr || find(name + ".weight_packed") != nullptr;
    if (plain != nullptr ? float_of(plain->dtype).has_value() : !parts) return {};
    return refused(matrix, "is one of few rows that much depends on, and quantised, which cannot be read");
  }
  const bool columns = quant_.method == QuantMethod::kGptq || quant_.method == QuantMethod::kAwq;
  if (columns && find(name + ".qweight") != nullptr) return add_by_columns(matrix);
  if (quant_.method == QuantMethod::kCompressed && find(name + ".weight_packed") != nullptr) return add_packed(matrix);
  const Part* weight = find(name + ".weight");
  if (columns || weight == nullptr) return {};
  const bool fp8 = weight->dtype == "F8_E4M3";
  if (fp8 || (weight->dtype == "I8" && quant_.method == QuantMethod::kCompressed)) return add_bytes(matrix, *weight);
  return {};
}

Status Joiner::drop_bias(const std::string& name) {
  const Part* part = find(name);
  if (part == nullptr || !float_of(part->dtype) || part->bytes > kReadMax) return {};
  std::vector<std::byte> bytes(static_cast<size_t>(part->bytes));
  TRY(read(*part, bytes));
  if (!std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; })) return {};
  used_.insert(name);
  ++zero_biases_;
  return {};
}

void Joiner::finish(std::vector<std::string>& notes) {
  int scales = 0;
  const auto leaves = [&](const std::string& name) {
    if (used_.contains(name)) return true;
    if (!is_activation_scale(name)) return false;
    ++scales;
    return true;
  };
  std::erase_if(model_.foreign, [&](const ForeignTensor& tensor) { return leaves(tensor.name); });
  std::erase_if(model_.index.tensors, [&](const TensorInfo& tensor) { return leaves(tensor.name); });
  for (TensorInfo& matrix : matrices_) model_.index.tensors.push_back(std::move(matrix));
  model_.index.by_name.clear();
  for (size_t i = 0; i < model_.index.tensors.size(); ++i)
    model_.index.by_name.emplace(model_.index.tensors[i].name, i);
  if (scales > 0)
    notes.push_back("Ignored " + std::to_string(scales) +
                    " scales of inputs, outputs and the KV cache: those keep their numbers.");
  if (zero_biases_ > 0)
    notes.push_back("Ignored " + std::to_string(zero_biases_) + " biases of zeros, which the model does not have.");
}

}  // namespace

Result<int> join_stored_tensors(const FileSystem& files, const QuantConfig& quant,
                                const std::vector<ExpectedTensor>& expected, SafetensorsModel& model,
                                std::vector<std::string>& notes, const std::string& place) {
  if (quant.method == QuantMethod::kNone) return 0;
  Joiner joiner(files, quant, experts_of(expected), model, place);
  std::unordered_set<std::string> names;
  for (const ExpectedTensor& tensor : expected) names.insert(tensor.name);
  constexpr std::string_view kWeight = ".weight";
  for (const ExpectedTensor& tensor : expected) {
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(kWeight)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    TRY(joiner.add_matrix(name, tensor.shape[0], tensor.shape[1]));
    if (!names.contains(name + ".bias")) TRY(joiner.drop_bias(name + ".bias"));
  }
  const int joined = joiner.joined();
  joiner.finish(notes);
  if (joined == 0)
    notes.push_back("The config says that the checkpoint is quantised (" + quant.name +
                    "), but none of its matrices is.");
  return joined;
}

}  // namespace loralei
