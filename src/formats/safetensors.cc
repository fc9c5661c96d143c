// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/limits.h"
#include "base/units.h"
#include "formats/foreign_files.h"
#include "formats/json_util.h"

namespace loralei {

namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kFirstBytes = 64;  // read first: the length, and what tells other kinds of file
constexpr int64_t kMaxShardIndexBytes = 64 * kMiB;
constexpr size_t kMaxNameBytes = 4096;

struct Entry {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t begin = -1, end = -1;
};

// Bits per number of every dtype the format names; 0 for an unknown name.
int dtype_bits(const std::string& name) {
  static const std::pair<const char*, int> kNames[] = {
      {"BOOL", 8},        {"U8", 8},          {"I8", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16},
      {"U16", 16},        {"F16", 16},        {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},
      {"F64", 64},        {"I64", 64},        {"U64", 64},  {"C64", 64}};
  for (const auto& [known, bits] : kNames) {
    if (name == known) return bits;
  }
  return 0;
}

std::optional<DType> usable_dtype(const std::string& name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  return std::nullopt;
}

// Reads the header event by event, so that a hostile header cannot make a large
// tree of values and a name that stands twice is seen. Only this form is accepted:
// {"__metadata__": {string: string}, NAME: {"dtype": string, "shape": [..],
// "data_offsets": [b, e]}}.
class HeaderSax : public nlohmann::json_sax<Json> {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool null() override { return fail("holds a null"); }
  bool boolean(bool) override { return fail("holds a boolean"); }
  bool number_float(number_float_t, const string_t&) override { return fail("holds a number that is not whole"); }
  bool binary(binary_t&) override { return fail("holds binary data"); }
  bool number_integer(number_integer_t) override { return fail("holds a negative number"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (!in_list_) return fail("holds a number outside a list");
    if (number > static_cast<uint64_t>(INT64_MAX)) return fail("holds a number that is too large");
    const int64_t value = static_cast<int64_t>(number);
    Entry& entry = entries.back();
    if (field_ == "shape") {
      if (entry.shape.size() >= static_cast<size_t>(kMaxTensorDims)) return fail("has too many dimensions");
      entry.shape.push_back(value);
    } else if (entry.begin < 0) {
      entry.begin = value;
    } else if (entry.end < 0) {
      entry.end = value;
    } else {
      return fail("has more than two data_offsets");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ != 2 || in_list_) return fail("holds a string in a wrong place");
    if (in_metadata_) {
      if (!metadata.emplace(field_, value).second) return fail("says the metadata key \"" + field_ + "\" twice");
    } else if (field_ == "dtype") {
      entries.back().dtype = value;
    } else {
      return fail("holds a string where numbers belong");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (in_list_ || depth_ >= 2) return fail("is nested too deep");
    ++depth_;
    if (depth_ == 2) fields_seen_ = 0;
    return true;
  }

  bool key(string_t& name) override {
    if (name.size() > kMaxNameBytes) return fail("has a name of more than 4096 bytes");
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      if (!names_.insert(name).second) return fail("is named twice", name);
      if (!in_metadata_) {
        if (entries.size() >= static_cast<size_t>(kMaxTensors)) return fail("is one of too many tensors", name);
        entries.push_back({.name = name});
      }
      return true;
    }
    field_ = name;
    if (in_metadata_) return true;
    const unsigned bit = name == "dtype" ? 1 : name == "shape" ? 2 : name == "data_offsets" ? 4 : 0;
    if (bit == 0) return fail("has the unknown field \"" + name + "\"");
    if (fields_seen_ & bit) return fail("says \"" + name + "\" twice");
    fields_seen_ |= bit;
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata_) {
      const Entry& entry = entries.back();
      if (fields_seen_ != 7 || entry.end < 0) return fail("lacks its dtype, shape or data_offsets");
    }
    --depth_;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_list_ || in_metadata_ || field_ == "dtype") return fail("holds a list in a wrong place");
    in_list_ = true;
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (problem.empty()) problem = "its header is not valid JSON (byte " + std::to_string(position) + ")";
    return false;
  }

 private:
  bool fail(const std::string& what, const std::string& name = "") {
    if (problem.empty()) {
      const std::string subject = !name.empty()     ? name
                                  : in_metadata_    ? "__metadata__"
                                  : entries.empty() ? ""
                                                    : entries.back().name;
      problem = subject.empty() ? "its header " + what : "tensor \"" + subject.substr(0, 200) + "\" " + what;
    }
    return false;
  }

  int depth_ = 0;
  bool in_list_ = false, in_metadata_ = false;
  unsigned fields_seen_ = 0;
  std::string field_;
  std::unordered_set<std::string> names_;
};

// The header's length, checked against the file; the error names the file.
Result<int64_t> header_length(std::span<const std::byte> head, int64_t file_bytes, const std::string& path) {
  if (file_bytes < kLengthBytes + 2 || head.size() < static_cast<size_t>(kLengthBytes)) {
    return corrupt(path + ": is too short to be a safetensors file (" + std::to_string(file_bytes) + " bytes)");
  }
  if (is_lfs_pointer(head)) return lfs_pointer_error(path);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint64_t>(head[static_cast<size_t>(i)]);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return corrupt(path + ": is not a safetensors file, or its header is damaged (it claims " + std::to_string(length) +
                   " bytes; at most " + std::to_string(kMaxSafetensorsHeaderBytes) + " are allowed)");
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    return corrupt(path + ": is cut off: its header claims " + std::to_string(length) + " bytes, the file has " +
                   std::to_string(file_bytes) + "; download it again");
  }
  return static_cast<int64_t>(length);
}

// Shape, format and place of one entry; `expected` is where the previous one ended
// (offsets inside the data section).
Status check_entry(const Entry& entry, int64_t expected, int64_t data_bytes, const std::string& path) {
  const std::string what = path + ": tensor \"" + entry.name + "\" ";
  const int bits = dtype_bits(entry.dtype);
  if (bits == 0) return corrupt(what + "has the unknown number format \"" + entry.dtype.substr(0, 40) + "\"");
  int64_t total_bits = bits;
  for (const int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(total_bits, dim, &total_bits))
      return corrupt(what + "has a shape whose product overflows");
  }
  if (entry.begin != expected) {
    return corrupt(what + "starts at data offset " + std::to_string(entry.begin) + ", but the one before it ends at " +
                   std::to_string(expected) + " (gaps and overlaps are not allowed)");
  }
  if (entry.end < entry.begin || entry.end > data_bytes) {
    return corrupt(what + "ends at data offset " + std::to_string(entry.end) + ", but the file has " +
                   std::to_string(data_bytes) + " bytes of data (is the file cut off?)");
  }
  if (total_bits % 8 != 0 || total_bits / 8 != entry.end - entry.begin) {
    return corrupt(what + "takes " + std::to_string(entry.end - entry.begin) +
                   " bytes in the file, but its shape and " + entry.dtype + " need " + std::to_string(total_bits / 8));
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> head, int64_t file_bytes,
                                            const std::string& path) {
  TRY_ASSIGN(const int64_t length, header_length(head, file_bytes, path));
  if (static_cast<int64_t>(head.size()) < kLengthBytes + length)
    return corrupt(path + ": its header is cut off; download it again");
  const char* text = reinterpret_cast<const char*>(head.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{')
    return corrupt(path + ": is not a safetensors file (its header does not start with '{')");

  HeaderSax sax;
  try {
    const bool parsed = Json::sax_parse(text, text + length, &sax);
    if (!parsed) return corrupt(path + ": " + (sax.problem.empty() ? "its header is damaged" : sax.problem));
  } catch (const std::exception& failure) {
    return corrupt(path + ": its header is damaged: " + std::string(failure.what()).substr(0, 200));
  }

  std::sort(sax.entries.begin(), sax.entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const int64_t data_begin = kLengthBytes + length;
  const int64_t data_bytes = file_bytes - data_begin;
  SafetensorsHeader header;
  header.metadata = std::move(sax.metadata);
  int64_t expected = 0;
  for (Entry& entry : sax.entries) {
    TRY(check_entry(entry, expected, data_bytes, path));
    expected = entry.end;
    if (const auto dtype = usable_dtype(entry.dtype)) {
      header.tensors.push_back({.name = std::move(entry.name),
                                .dtype = *dtype,
                                .shape = std::move(entry.shape),
                                .file = 0,
                                .offset = data_begin + entry.begin,
                                .bytes = entry.end - entry.begin});
    } else {
      header.foreign.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                                data_begin + entry.begin, entry.end - entry.begin});
    }
  }
  if (expected != data_bytes) {
    return corrupt(path + ": its tensors end at data offset " + std::to_string(expected) + ", but the file has " +
                   std::to_string(data_bytes) + " bytes of data");
  }
  return header;
}

Result<SafetensorsHeader> read_safetensors(const File& file, int64_t header_bytes_max) {
  const int64_t file_bytes = file.size_bytes();
  std::vector<std::byte> head(static_cast<size_t>(std::min(file_bytes, kFirstBytes)));
  TRY(file.read_exact(0, head));
  TRY_ASSIGN(const int64_t length, header_length(head, file_bytes, file.path()));
  if (length > header_bytes_max) {
    return too_large(file.path() + ": its header takes " + format_bytes(length) + ", but at most " +
                     format_bytes(header_bytes_max) + " are read here; save the file again without its metadata");
  }
  head.resize(static_cast<size_t>(kLengthBytes + length));
  TRY(file.read_exact(kLengthBytes, std::span(head).subspan(kLengthBytes)));
  return parse_safetensors(head, file_bytes, file.path());
}

Result<SafetensorsHeader> read_safetensors(const FileSystem& files, const std::string& path) {
  TRY_ASSIGN(const std::unique_ptr<File> file, files.open(path));
  return read_safetensors(*file);
}

Result<std::map<std::string, std::string>> parse_shard_index(std::string_view json, const std::string& path) {
  TRY_ASSIGN(const Json root, parse_json_object(json, path, kMaxShardIndexBytes));
  const Json* weights = json_find(root, "weight_map");
  if (!weights || !weights->is_object()) return corrupt(path + ": lacks its \"weight_map\"");
  if (weights->size() > static_cast<size_t>(kMaxTensors)) return too_large(path + ": names too many tensors");
  std::map<std::string, std::string> shards;
  for (const auto& [name, file] : weights->items()) {
    if (!file.is_string()) return corrupt(path + ": the file of tensor \"" + name + "\" is not a string");
    const std::string text = file.get<std::string>();
    if (text.empty() || text.size() > 255 || text.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos ||
        text == "." || text == "..") {
      return corrupt(path + ": the file of tensor \"" + name + "\" is \"" + text.substr(0, 100) +
                     "\", but it must be a plain name in the same folder");
    }
    shards.emplace(name, text);
  }
  if (shards.empty()) return corrupt(path + ": its \"weight_map\" is empty");
  return shards;
}

namespace {

Status add_file(SafetensorsModel& model, const FileSystem& files, const std::string& path) {
  TRY_ASSIGN(const std::unique_ptr<File> opened, files.open(path));
  TRY_ASSIGN(SafetensorsHeader header, read_safetensors(*opened));
  const uint32_t file = static_cast<uint32_t>(model.index.files.size());
  model.index.files.push_back(path);
  model.index.stamps.push_back(opened->stamp());
  for (TensorInfo& tensor : header.tensors) {
    tensor.file = file;
    if (!model.index.by_name.emplace(tensor.name, model.index.tensors.size()).second) {
      return corrupt(path + ": tensor \"" + tensor.name + "\" is also in another file of this model");
    }
    model.index.tensors.push_back(std::move(tensor));
  }
  for (ForeignTensor& tensor : header.foreign) {
    tensor.file = file;
    model.foreign.push_back(std::move(tensor));
  }
  return {};
}

}  // namespace

Result<SafetensorsModel> read_safetensors_model(const FileSystem& files, const std::string& directory) {
  SafetensorsModel model;
  const std::string single = join_path(directory, "model.safetensors");
  const std::string index_path = join_path(directory, "model.safetensors.index.json");
  if (files.kind(single) == PathKind::kFile) {
    TRY(add_file(model, files, single));
    return model;
  }
  TRY_ASSIGN(const std::string text, files.read_all(index_path, kMaxShardIndexBytes));
  TRY_ASSIGN(const auto weight_map, parse_shard_index(text, index_path));
  std::map<std::string, uint32_t> shards;
  for (const auto& [name, file] : weight_map) shards.emplace(file, 0);
  if (shards.size() > static_cast<size_t>(kMaxShards)) return too_large(index_path + ": names too many files");
  for (auto& [name, number] : shards) {
    const std::string path = join_path(directory, name);
    if (files.kind(path) != PathKind::kFile) {
      return not_found(index_path + ": names \"" + name +
                       "\", which is not there (download the model again, or all its parts)");
    }
    number = static_cast<uint32_t>(model.index.files.size());
    TRY(add_file(model, files, path));
  }
  std::unordered_set<std::string> foreign;
  for (const ForeignTensor& tensor : model.foreign) foreign.insert(tensor.name);
  for (const auto& [name, file] : weight_map) {
    const TensorInfo* tensor = model.index.find(name);
    if (foreign.contains(name)) continue;
    if (!tensor || tensor->file != shards.at(file)) {
      return corrupt(index_path + ": says that tensor \"" + name + "\" is in " + file + ", but it is not");
    }
  }
  return model;
}

}  // namespace loralei
