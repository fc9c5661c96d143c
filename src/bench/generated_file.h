// SPDX-License-Identifier: Apache-2.0
// What the makers of generated files share: a writer of little-endian values, the head of
// a GGUF file, and numbers that look like weights.
//
// One thread; plain values. Failure: the writer remembers the first failed write and says
// so in ok() and close().
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace loralei {

// Writes little-endian values and remembers the first failure.
class Writer {
 public:
  explicit Writer(const std::string& path) : file_(std::fopen(path.c_str(), "wb"), &std::fclose) {}
  bool ok() const { return ok_ && file_ != nullptr; }
  void bytes(const void* data, size_t size) {
    if (ok() && std::fwrite(data, 1, size, file_.get()) != size) ok_ = false;
    position_ += size;
  }
  template <typename T>
  void value(T number) {
    bytes(&number, sizeof number);
  }
  void text(const std::string& string) {
    value<uint64_t>(string.size());
    bytes(string.data(), string.size());
  }
  void pad_to(size_t alignment) {
    static constexpr char kZeros[64] = {};
    bytes(kZeros, (alignment - position_ % alignment) % alignment);
  }
  bool close() { return ok() && std::fclose(file_.release()) == 0; }
  size_t position() const { return position_; }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  bool ok_ = true;
  size_t position_ = 0;
};

// Makes the file or folder `path` unless it exists: `make` writes it under another name,
// beside it, and only what is whole gets the name; after a failure nothing is left.
Result<std::string> make_once(const std::string& path,
                              const std::function<Status(const std::string& unfinished)>& make);

inline constexpr uint32_t kGgufAlignment = 32;

// Keys and values of a GGUF file; counted, because the count stands before them.
class GgufMetadata {
 public:
  void u32(const char* key, uint32_t value);
  void f32(const char* key, float value);
  void text(const char* key, const std::string& value);
  void texts(const char* key, const std::vector<std::string>& values);
  void f32s(const char* key, const std::vector<float>& values);
  void i32s(const char* key, const std::vector<int32_t>& values);
  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  void append(T number);
  void append_text(const std::string& value);
  void begin(const char* key, uint32_t type);
  void begin_array(const char* key, uint32_t item_type, size_t count);

  uint64_t count_ = 0;
  std::string bytes_;
};

struct OutTensor {
  std::string name;
  DType dtype;
  int64_t rows, cols;   // cols is the fast dimension; one row: a vector
  int64_t stacked = 1;  // matrices of as many rows each, of which these are
  int64_t bytes() const { return rows * row_bytes(dtype, cols); }
};

// Writes everything before the tensors' data, and answers the size of that data; each
// tensor is to be padded to kGgufAlignment.
int64_t write_gguf_head(Writer& out, const GgufMetadata& metadata, const std::vector<OutTensor>& tensors);

// Fills bytes with numbers of about the spread of trained weights (uniform, sd 0.02),
// valid in every format. Blocks of quantised formats hold random numbers with a tame
// scale. With `f16_of_bf16` f16 numbers are numbers of bf16 too.
class WeightSource {
 public:
  explicit WeightSource(uint64_t seed, bool f16_of_bf16 = false);
  void fill(DType dtype, std::byte* out, size_t bytes);

 private:
  uint64_t next() {  // xorshift64*: fast, and only speed figures depend on it
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1DULL;
  }
  template <typename T>
  void table(const std::vector<T>& values, std::byte* out, size_t bytes);
  void random_bytes(std::byte* out, size_t bytes);

  uint64_t state_;
  std::vector<uint16_t> bf16_ = std::vector<uint16_t>(65536), f16_ = std::vector<uint16_t>(65536);
  std::vector<float> f32_ = std::vector<float>(65536);
};

}  // namespace loralei
