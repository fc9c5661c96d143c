// SPDX-License-Identifier: Apache-2.0
// Reads SentencePiece's protocol buffer: only the fields that change ids or text; unknown
// fields are skipped, as the format asks.
#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>

#include "base/limits.h"
#include "base/utf8.h"
#include "text/spm.h"

namespace loralei {

namespace {

// One field of a message: its number and either a number or a run of bytes.
struct Field {
  uint32_t number = 0;
  uint32_t wire = 0;
  uint64_t value = 0;      // varint, or the bits of a fixed field
  std::string_view bytes;  // length-delimited
};

class FieldReader {
 public:
  FieldReader(std::string_view bytes, const char* message) : bytes_(bytes), message_(message) {}
  bool done() const { return at_ >= bytes_.size(); }

  Result<Field> next() {
    Field field;
    TRY_ASSIGN(const uint64_t key, varint());
    field.number = static_cast<uint32_t>(key >> 3);
    field.wire = static_cast<uint32_t>(key & 7);
    if (field.number == 0 || (key >> 3) > 0x1FFFFFFF) return broken("has a field without a number");
    switch (field.wire) {
      case 0: {
        TRY_ASSIGN(field.value, varint());
        return field;
      }
      case 1:
      case 5: {
        TRY_ASSIGN(field.value, fixed(field.wire == 1 ? 8 : 4));
        return field;
      }
      case 2: {
        TRY_ASSIGN(const uint64_t length, varint());
        if (length > bytes_.size() - at_) return broken("states a field longer than the file");
        field.bytes = bytes_.substr(at_, length);
        at_ += length;
        return field;
      }
      default:
        return broken("has a field of an unknown wire type");
    }
  }

 private:
  Error broken(const char* what) const {
    return corrupt(std::string("the SentencePiece model ") + what + " (in " + message_ + ", at byte " +
                   std::to_string(at_) + ")");
  }
  Result<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) return broken("ends in the middle of a number");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return broken("has a number of more than 64 bits");
  }
  Result<uint64_t> fixed(size_t width) {
    if (bytes_.size() - at_ < width) return broken("ends in the middle of a number");
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(bytes_[at_ + i]);
    at_ += width;
    return value;
  }

  std::string_view bytes_;
  const char* message_;
  size_t at_ = 0;
};

Error wrong_type(const char* what) {
  return corrupt(std::string("the field '") + what + "' of the SentencePiece model has the wrong type");
}

Result<SpmPiece> parse_piece(std::string_view bytes, size_t index) {
  SpmPiece piece;
  FieldReader reader(bytes, "a piece");
  while (!reader.done()) {
    TRY_ASSIGN(const Field field, reader.next());
    if (field.number == 1) {
      if (field.wire != 2) return wrong_type("piece");
      piece.text.assign(field.bytes);
    } else if (field.number == 2) {
      if (field.wire != 5) return wrong_type("score");
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    } else if (field.number == 3) {
      if (field.wire != 0 || field.value < 1 || field.value > 6) return wrong_type("type");
      piece.type = static_cast<SpmPieceType>(field.value);
    }
  }
  const std::string name = "piece " + std::to_string(index) + " of the SentencePiece model ";
  if (piece.text.empty()) return corrupt(name + "is empty");
  if (!is_valid_utf8(piece.text)) return corrupt(name + "is not valid UTF-8");
  if (!std::isfinite(piece.score)) return corrupt(name + "has a score that is not finite");
  return piece;
}

Status parse_trainer(std::string_view bytes, SpmModel& model) {
  FieldReader reader(bytes, "trainer_spec");
  while (!reader.done()) {
    TRY_ASSIGN(const Field field, reader.next());
    const auto as_int = [&] { return static_cast<int32_t>(field.value); };
    const bool is_text = field.wire == 2;
    switch (field.number) {
      case 3:
        if (field.value != 1 && field.value != 2) {
          return unsupported(std::string("the SentencePiece model is of the kind ") +
                             (field.value == 3   ? "WORD"
                              : field.value == 4 ? "CHAR"
                                                 : std::to_string(field.value)) +
                             ", but only UNIGRAM and BPE are supported");
        }
        model.kind = static_cast<SpmKind>(field.value);
        break;
      case 24:
        model.space_as_suffix = field.value != 0;
        break;
      case 35:
        model.byte_fallback = field.value != 0;
        break;
      case 40:
        model.unk_id = as_int();
        break;
      case 41:
        model.bos_id = as_int();
        break;
      case 42:
        model.eos_id = as_int();
        break;
      case 43:
        model.pad_id = as_int();
        break;
      case 44:
        if (is_text) model.unk_surface.assign(field.bytes);
        break;
      case 45:
        if (is_text) model.unk_piece.assign(field.bytes);
        break;
      case 46:
        if (is_text) model.bos_piece.assign(field.bytes);
        break;
      case 47:
        if (is_text) model.eos_piece.assign(field.bytes);
        break;
      case 48:
        if (is_text) model.pad_piece.assign(field.bytes);
        break;
      default:
        break;
    }
  }
  return {};
}

Status parse_normalizer(std::string_view bytes, SpmModel& model) {
  FieldReader reader(bytes, "normalizer_spec");
  while (!reader.done()) {
    TRY_ASSIGN(const Field field, reader.next());
    switch (field.number) {
      case 2:
        if (field.wire != 2) return wrong_type("precompiled_charsmap");
        model.charsmap.assign(field.bytes);
        break;
      case 3:
        model.add_dummy_prefix = field.value != 0;
        break;
      case 4:
        model.remove_extra_whitespaces = field.value != 0;
        break;
      case 5:
        model.escape_whitespaces = field.value != 0;
        break;
      default:
        break;
    }
  }
  return {};
}

Status check_special(const SpmModel& model) {
  const auto count = static_cast<int32_t>(model.pieces.size());
  int unknowns = 0;
  for (const SpmPiece& piece : model.pieces) unknowns += piece.type == SpmPieceType::kUnknown ? 1 : 0;
  if (unknowns != 1) {
    return corrupt("the SentencePiece model has " + std::to_string(unknowns) +
                   " unknown pieces, but must have exactly one");
  }
  for (const std::string* text :
       {&model.unk_surface, &model.unk_piece, &model.bos_piece, &model.eos_piece, &model.pad_piece}) {
    if (text->size() > kMaxPieceBytes || !is_valid_utf8(*text))
      return corrupt("a special piece of the SentencePiece model is too long or not UTF-8");
  }
  for (const int32_t id : {model.bos_id, model.eos_id, model.pad_id}) {
    if (id >= count) {
      return corrupt("the SentencePiece model names the special id " + std::to_string(id) + ", but has only " +
                     std::to_string(count) + " pieces");
    }
  }
  return {};
}

// tiktoken's text form of a vocabulary ("base64 rank" lines) is published under
// the same file name.
bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min(bytes.find('\n'), size_t{256}));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size()) return false;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto c = static_cast<unsigned char>(line[i]);
    const bool base64 = std::isalnum(c) != 0 || c == '+' || c == '/' || c == '=';
    if (i < space ? !base64 : i > space && std::isdigit(c) == 0) return false;
  }
  return true;
}

}  // namespace

Result<SpmModel> parse_spm_model(std::string_view bytes) {
  if (looks_like_tiktoken(bytes)) {
    return unsupported(
        "tokenizer.model is a tiktoken vocabulary, which does not say how text is cut; use the model's tokenizer.json");
  }
  SpmModel model;
  FieldReader reader(bytes, "the model");
  while (!reader.done()) {
    TRY_ASSIGN(const Field field, reader.next());
    if (field.number > 3) continue;  // self test, denormaliser, extensions: they change nothing here
    if (field.wire != 2) return wrong_type("pieces, trainer_spec or normalizer_spec");
    if (field.number == 1) {
      if (model.pieces.size() >= static_cast<size_t>(kMaxVocab)) {
        return too_large("the SentencePiece model has more than " + std::to_string(kMaxVocab) + " pieces");
      }
      TRY_ASSIGN(auto piece, parse_piece(field.bytes, model.pieces.size()));
      model.pieces.push_back(std::move(piece));
    } else if (field.number == 2) {
      TRY(parse_trainer(field.bytes, model));
    } else {
      TRY(parse_normalizer(field.bytes, model));
    }
  }
  if (model.pieces.empty()) return corrupt("the SentencePiece model has no pieces: the file is cut or of another kind");
  TRY(check_special(model));
  return model;
}

}  // namespace loralei
