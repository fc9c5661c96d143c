// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/limits.h"
#include "base/units.h"
#include "formats/foreign_files.h"

namespace loralei {

namespace {

constexpr int64_t kFirstReadBytes = 4 * kMiB;
constexpr int64_t kMaxAlignment = 1 << 20;

// Value types of the metadata.
enum : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32Type, kBoolType, kStringType, kArrayType, kU64, kI64, kF64 };

int scalar_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBoolType:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32Type:
      return 4;
    case kU64:
    case kI64:
    case kF64:
      return 8;
    default:
      return 0;
  }
}

// ggml's type numbers.
struct GgmlType {
  uint32_t number;
  const char* name;
  std::optional<DType> dtype;
};
const GgmlType kGgmlTypes[] = {{0, "F32", DType::kF32},
                               {1, "F16", DType::kF16},
                               {2, "Q4_0", DType::kQ4_0},
                               {3, "Q4_1", DType::kQ4_1},
                               {6, "Q5_0", DType::kQ5_0},
                               {7, "Q5_1", DType::kQ5_1},
                               {8, "Q8_0", DType::kQ8_0},
                               {9, "Q8_1", {}},
                               {10, "Q2_K", DType::kQ2_K},
                               {11, "Q3_K", DType::kQ3_K},
                               {12, "Q4_K", DType::kQ4_K},
                               {13, "Q5_K", DType::kQ5_K},
                               {14, "Q6_K", DType::kQ6_K},
                               {15, "Q8_K", {}},
                               {16, "IQ2_XXS", {}},
                               {17, "IQ2_XS", {}},
                               {18, "IQ3_XXS", {}},
                               {19, "IQ1_S", {}},
                               {20, "IQ4_NL", DType::kIQ4_NL},
                               {21, "IQ3_S", {}},
                               {22, "IQ2_S", {}},
                               {23, "IQ4_XS", DType::kIQ4_XS},
                               {24, "I8", {}},
                               {25, "I16", {}},
                               {26, "I32", {}},
                               {27, "I64", {}},
                               {28, "F64", {}},
                               {29, "IQ1_M", {}},
                               {30, "BF16", DType::kBF16},
                               {34, "TQ1_0", {}},
                               {35, "TQ2_0", {}},
                               {39, "MXFP4", DType::kMXFP4}};
// "F32, F16 and Q4_0"
std::string supported_types() {
  std::vector<std::string> names;
  for (const GgmlType& type : kGgmlTypes) {
    if (type.dtype) names.push_back(type.name);
  }
  std::string text = names.front();
  for (size_t i = 1; i < names.size(); ++i) text += (i + 1 < names.size() ? ", " : " and ") + names[i];
  return text;
}

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> head, int64_t file_bytes, const std::string& path, const GgufLimits& limits)
      : head_(head), file_bytes_(file_bytes), path_(path), limits_(limits) {
    file_.path = path;
  }

  // `short_read_` tells, after an error, that the bytes at hand ended (and not the file).
  Result<std::optional<GgufFile>> parse() {
    Status status = parse_all();
    if (status.ok()) return std::optional<GgufFile>(std::move(file_));
    if (short_read_ && static_cast<int64_t>(head_.size()) < file_bytes_) return std::optional<GgufFile>();
    return std::move(status).error();
  }

 private:
  Error bad(const std::string& what) const { return corrupt(path_ + ": " + what); }

  // Room for `count` items of at least `item_bytes` each in what is left of
  // the bytes at hand.
  Status need(uint64_t count, uint64_t item_bytes, const char* what) {
    const uint64_t left = head_.size() - position_;
    if (count <= left / item_bytes) return {};
    const uint64_t left_in_file = static_cast<uint64_t>(file_bytes_) - position_;
    if (count > left_in_file / item_bytes)
      return bad(std::string("is cut off or damaged: ") + what + " do not fit into the file; download it again");
    short_read_ = true;
    return bad("is cut off");
  }

  // `count` things of `item_bytes` each are about to be held.
  Status hold(uint64_t count, size_t item_bytes) {
    if (count > (static_cast<uint64_t>(limits_.metadata_bytes) - held_bytes_) / item_bytes)
      return too_large(path_ + ": its metadata takes more than " + format_bytes(limits_.metadata_bytes) +
                       " of memory; convert the model or adapter again");
    held_bytes_ += count * item_bytes;
    return {};
  }
  Status check_count(uint64_t count, int64_t most, const char* what) const {
    if (count <= static_cast<uint64_t>(most)) return {};
    return too_large(path_ + ": claims " + std::to_string(count) + " " + what + ", but at most " +
                     std::to_string(most) + " are read");
  }

  template <typename T>
  Result<T> scalar(const char* what) {
    TRY(need(1, sizeof(T), what));
    T value;
    std::memcpy(&value, head_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Result<std::string> string(const char* what) {
    TRY_ASSIGN(const uint64_t length, scalar<uint64_t>(what));
    TRY(need(length, 1, what));
    std::string text(reinterpret_cast<const char*>(head_.data()) + position_, static_cast<size_t>(length));
    position_ += static_cast<size_t>(length);
    return text;
  }

  template <typename T>
  Result<int64_t> whole(const std::string& key) {
    TRY_ASSIGN(const T value, scalar<T>("a value"));
    if constexpr (sizeof(T) == 8 && std::is_unsigned_v<T>) {
      if (value > static_cast<uint64_t>(INT64_MAX)) return bad("the value of \"" + key + "\" is too large");
    }
    return static_cast<int64_t>(value);
  }

  Result<int64_t> integer(uint32_t type, const std::string& key) {
    switch (type) {
      case kU8:
        return whole<uint8_t>(key);
      case kI8:
        return whole<int8_t>(key);
      case kU16:
        return whole<uint16_t>(key);
      case kI16:
        return whole<int16_t>(key);
      case kU32:
        return whole<uint32_t>(key);
      case kI32:
        return whole<int32_t>(key);
      case kU64:
        return whole<uint64_t>(key);
      case kI64:
        return whole<int64_t>(key);
      default:
        break;
    }
    TRY_ASSIGN(const uint8_t flag, scalar<uint8_t>("a value"));
    if (flag > 1) return bad("the value of \"" + key + "\" is neither true nor false");
    return static_cast<int64_t>(flag);
  }

  Result<double> floating(uint32_t type) {
    if (type == kF64) return scalar<double>("a value");
    TRY_ASSIGN(const float value, scalar<float>("a value"));
    return static_cast<double>(value);
  }

  Status array(const std::string& key, GgufValue& value) {
    TRY_ASSIGN(const uint32_t type, scalar<uint32_t>("a value"));
    TRY_ASSIGN(const uint64_t count, scalar<uint64_t>("a value"));
    const bool strings = type == kStringType;
    const uint64_t item = strings ? 8 : static_cast<uint64_t>(scalar_bytes(type));
    if (item == 0)
      return bad("\"" + key + "\" is a list of values of the unknown or nested type " + std::to_string(type));
    TRY(need(count, item, "the values of a list"));
    TRY(hold(count, strings                            ? sizeof(std::string)
                    : type == kF32Type || type == kF64 ? sizeof(float)
                                                       : sizeof(int64_t)));
    const size_t size = static_cast<size_t>(count);
    if (strings) {
      value.type = GgufType::kStringArray;
      value.texts.reserve(size);
      for (size_t i = 0; i < size; ++i) {
        TRY_ASSIGN(std::string text, string("the strings of a list"));
        TRY(hold(text.size(), 1));
        value.texts.push_back(std::move(text));
      }
    } else if (type == kF32Type || type == kF64) {
      value.type = GgufType::kFloatArray;
      value.reals.reserve(size);
      for (size_t i = 0; i < size; ++i) {
        TRY_ASSIGN(const double number, floating(type));
        value.reals.push_back(static_cast<float>(number));
      }
    } else {
      value.type = type == kBoolType ? GgufType::kBoolArray : GgufType::kIntArray;
      value.numbers.reserve(size);
      for (size_t i = 0; i < size; ++i) {
        TRY_ASSIGN(const int64_t number, integer(type, key));
        value.numbers.push_back(number);
      }
    }
    return {};
  }

  Status pair() {
    TRY_ASSIGN(std::string key, string("the metadata keys"));
    if (key.empty() || key.size() > 65535) return bad("has a metadata key of " + std::to_string(key.size()) + " bytes");
    TRY(hold(key.size() + sizeof(GgufValue), 1));
    TRY_ASSIGN(const uint32_t type, scalar<uint32_t>("the metadata"));
    GgufValue value;
    if (type == kStringType) {
      value.type = GgufType::kString;
      TRY_ASSIGN(value.text, string("a string"));
      TRY(hold(value.text.size(), 1));
    } else if (type == kArrayType) {
      TRY(array(key, value));
    } else if (type == kF32Type || type == kF64) {
      value.type = GgufType::kFloat;
      TRY_ASSIGN(value.real, floating(type));
    } else if (scalar_bytes(type) > 0) {
      value.type = type == kBoolType ? GgufType::kBool : GgufType::kInt;
      TRY_ASSIGN(value.number, integer(type, key));
    } else {
      return bad("\"" + key.substr(0, 100) + "\" has the unknown value type " + std::to_string(type));
    }
    const std::string shown = key.substr(0, 100);
    if (!file_.metadata.emplace(std::move(key), std::move(value)).second) return bad("says \"" + shown + "\" twice");
    return {};
  }

  Status tensor() {
    TensorInfo info;
    TRY_ASSIGN(info.name, string("the tensor names"));
    const std::string what = "tensor \"" + info.name.substr(0, 200) + "\" ";
    TRY_ASSIGN(const uint32_t dims, scalar<uint32_t>("the tensor table"));
    if (dims < 1 || dims > 4) return bad(what + "has " + std::to_string(dims) + " dimensions");
    int64_t count = 1;
    for (uint32_t i = 0; i < dims; ++i) {
      TRY_ASSIGN(const uint64_t dim, scalar<uint64_t>("the tensor table"));
      if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX) ||
          __builtin_mul_overflow(count, static_cast<int64_t>(dim), &count)) {
        return bad(what + "has an impossible shape");
      }
      info.shape.insert(info.shape.begin(), static_cast<int64_t>(dim));
    }
    TRY_ASSIGN(const uint32_t number, scalar<uint32_t>("the tensor table"));
    TRY_ASSIGN(const uint64_t offset, scalar<uint64_t>("the tensor table"));
    const auto type = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                                   [&](const GgmlType& item) { return item.number == number; });
    if (type == std::end(kGgmlTypes) || !type->dtype) {
      const std::string name = type == std::end(kGgmlTypes) ? "number " + std::to_string(number) : type->name;
      return unsupported(path_ + ": " + what + "is stored in ggml's type " + name + ", which is not supported; " +
                         supported_types() + " are");
    }
    info.dtype = *type->dtype;
    const DTypeInfo geometry = dtype_info(info.dtype);
    if (info.shape.back() % geometry.block_elems != 0) {
      return bad(what + "has rows of " + std::to_string(info.shape.back()) +
                 " numbers, which are not whole blocks of " + geometry.name);
    }
    if (__builtin_mul_overflow(count / geometry.block_elems, geometry.block_bytes, &info.bytes))
      return bad(what + "has an impossible shape");
    if (offset > static_cast<uint64_t>(INT64_MAX) / 2) return bad(what + "has an impossible offset");
    info.offset = static_cast<int64_t>(offset);
    if (!file_.index.by_name.emplace(info.name, file_.index.tensors.size()).second)
      return bad(what + "stands in the table twice");
    file_.index.tensors.push_back(std::move(info));
    return {};
  }

  // Offsets in the table count from the aligned end of the table.
  Status place_tensors() {
    TRY_ASSIGN(const auto stated, file_.integer("general.alignment", 1, kMaxAlignment));
    const int64_t alignment = stated.value_or(32);
    if (alignment % 8 != 0) return bad("general.alignment " + std::to_string(alignment) + " is not a multiple of 8");
    const int64_t data_begin = (static_cast<int64_t>(position_) + alignment - 1) / alignment * alignment;
    for (TensorInfo& info : file_.index.tensors) {
      if (info.offset % alignment != 0)
        return bad("tensor \"" + info.name + "\" is not aligned to " + std::to_string(alignment) + " bytes");
      info.offset += data_begin;
      if (info.bytes > file_bytes_ || info.offset > file_bytes_ - info.bytes) {
        return bad("is cut off: tensor \"" + info.name + "\" ends at byte " + std::to_string(info.offset + info.bytes) +
                   ", the file has " + std::to_string(file_bytes_) + " bytes; download it again");
      }
    }
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& info : file_.index.tensors) order.push_back(&info);
    std::sort(order.begin(), order.end(),
              [](const TensorInfo* x, const TensorInfo* y) { return x->offset < y->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes) {
        return bad("tensors \"" + order[i - 1]->name + "\" and \"" + order[i]->name + "\" overlap");
      }
    }
    return {};
  }

  Status parse_all() {
    TRY_ASSIGN(const uint32_t magic, scalar<uint32_t>("the first bytes"));
    if (is_lfs_pointer(head_)) return lfs_pointer_error(path_);
    if (magic != 0x46554747u) return bad("is not a GGUF file (its first four bytes are not \"GGUF\")");
    TRY_ASSIGN(file_.version, scalar<uint32_t>("the first bytes"));
    if (file_.version != 2 && file_.version != 3) {
      if ((file_.version & 0xffffu) == 0)
        return unsupported(path_ + ": is a big-endian GGUF file, which is not supported");
      return unsupported(path_ + ": is GGUF version " + std::to_string(file_.version) +
                         "; versions 2 and 3 are supported (convert it again)");
    }
    TRY_ASSIGN(const uint64_t tensors, scalar<uint64_t>("the first bytes"));
    TRY_ASSIGN(const uint64_t pairs, scalar<uint64_t>("the first bytes"));
    TRY(check_count(pairs, limits_.pairs, "metadata values"));
    TRY(check_count(tensors, limits_.tensors, "tensors"));
    TRY(need(pairs, 13, "the metadata"));  // a key's length and one byte, a type
    for (uint64_t i = 0; i < pairs; ++i) TRY(pair());
    TRY(need(tensors, 33, "the tensor table"));
    for (uint64_t i = 0; i < tensors; ++i) TRY(tensor());
    file_.index.files = {path_};
    return place_tensors();
  }

  std::span<const std::byte> head_;
  int64_t file_bytes_;
  const std::string& path_;
  const GgufLimits& limits_;
  uint64_t held_bytes_ = 0;  // of metadata
  size_t position_ = 0;
  bool short_read_ = false;
  GgufFile file_;
};

Error wrong_type(const GgufFile& file, const std::string& key, const char* wanted) {
  return corrupt(file.path + ": the metadata value \"" + key + "\" must be " + wanted);
}

}  // namespace

const GgufValue* GgufFile::find(const std::string& key) const {
  const auto it = metadata.find(key);
  return it == metadata.end() ? nullptr : &it->second;
}

Result<std::optional<int64_t>> GgufFile::integer(const std::string& key, int64_t low, int64_t high) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<int64_t>();
  if (value->type != GgufType::kInt || value->number < low || value->number > high) {
    return wrong_type(*this, key,
                      ("a whole number between " + std::to_string(low) + " and " + std::to_string(high)).c_str());
  }
  return std::optional<int64_t>(value->number);
}

Result<std::optional<double>> GgufFile::real(const std::string& key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<double>();
  if (value->type == GgufType::kInt) return std::optional<double>(static_cast<double>(value->number));
  if (value->type != GgufType::kFloat || !std::isfinite(value->real)) return wrong_type(*this, key, "a number");
  return std::optional<double>(value->real);
}

Result<std::optional<bool>> GgufFile::boolean(const std::string& key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<bool>();
  if (value->type != GgufType::kBool) return wrong_type(*this, key, "true or false");
  return std::optional<bool>(value->number != 0);
}

Result<std::optional<std::string>> GgufFile::text(const std::string& key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<std::string>();
  if (value->type != GgufType::kString) return wrong_type(*this, key, "a string");
  return std::optional<std::string>(value->text);
}

Result<std::optional<GgufFile>> parse_gguf(std::span<const std::byte> head, int64_t file_bytes, const std::string& path,
                                           const GgufLimits& limits) {
  return GgufParser(head, file_bytes, path, limits).parse();
}

Result<GgufFile> read_gguf(const File& file, const GgufLimits& limits) {
  const int64_t file_bytes = file.size_bytes();
  std::vector<std::byte> head;
  // The length of the head is not stated: read more until the table is complete.
  const int64_t most = std::min(file_bytes, limits.head_bytes);
  for (int64_t size = std::min(most, kFirstReadBytes);; size = std::min(most, size * 4)) {
    const size_t before = head.size();
    head.resize(static_cast<size_t>(size));
    TRY(file.read_exact(static_cast<int64_t>(before), std::span(head).subspan(before)));
    TRY_ASSIGN(std::optional<GgufFile> parsed, parse_gguf(head, file_bytes, file.path(), limits));
    if (parsed) {
      parsed->index.stamps = {file.stamp()};
      return std::move(*parsed);
    }
    if (size >= limits.head_bytes)
      return too_large(file.path() + ": its metadata and tensor table take more than " +
                       format_bytes(limits.head_bytes));
  }
}

Result<GgufFile> read_gguf(const FileSystem& files, const std::string& path) {
  TRY_ASSIGN(const std::unique_ptr<File> file, files.open(path));
  return read_gguf(*file);
}

}  // namespace loralei
