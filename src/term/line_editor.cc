// SPDX-License-Identifier: Apache-2.0
#include "term/line_editor.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "term/terminal_text.h"

namespace loralei {
namespace {

constexpr size_t kEscapeMax = 32;  // longer ones are none
constexpr char kEscapeByte = '\x1b';
constexpr std::string_view kLineEnd = "\xE2\x86\xB5";  // how a line end within the text is shown

// What stands for a character on the terminal.
std::string_view shown(std::string_view character) {
  if (character == "\n") return kLineEnd;
  return character == "\t" ? " " : character;
}

struct Place {
  int row = 0, column = 0;
};

// Where writing goes on behind a character: a wide one that has no room goes to the next
// row, and behind the last column the cursor is taken to stand at the next row's begin.
void advance(Place& place, int width, int columns) {
  if (place.column + width > columns) ++place.row, place.column = 0;
  place.column += width;
  if (place.column >= columns) ++place.row, place.column = 0;
}

bool is_word(char byte) {
  return (byte & 0x80) != 0 || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
         (byte >= 'A' && byte <= 'Z');
}

}  // namespace

LineEditor::LineEditor(std::string prompt, int prompt_columns)
    : prompt_(std::move(prompt)), prompt_columns_(prompt_columns) {}

std::string LineEditor::begin(int columns) {
  columns_ = std::max(columns, 4);
  text_.clear();
  cursor_ = 0;
  row_ = 0;
  browsed_ = history_.size();
  typed_.clear();
  return draw();
}

LineEditor::Step LineEditor::keys(std::string_view bytes, int columns) {
  Step step;
  columns_ = std::max(columns, 4);
  changed_ = false;
  bell_.clear();
  while (step.used < bytes.size() && step.event == Event::kNone) take(bytes[step.used++], step);
  if (step.event == Event::kNone && (changed_ || !bell_.empty())) step.output = draw() + bell_;
  return step;
}

void LineEditor::take(char byte, Step& step) {
  // One that begins within another ends that.
  if (escape_ != Escape::kNone && byte != kEscapeByte) {
    escape_bytes_ += byte;
    if (escape_ == Escape::kEscape) {
      if (byte == '[')
        escape_ = Escape::kControl;
      else if (byte == 'O')
        escape_ = Escape::kLetter;
      else
        finish_escape(byte);
    } else if (escape_ == Escape::kLetter || (byte >= 0x40 && byte <= 0x7E) || escape_bytes_.size() > kEscapeMax) {
      finish_escape(byte);
    }
    return;
  }
  if (byte == kEscapeByte) {
    escape_ = Escape::kEscape;
    escape_bytes_.clear();
    return;
  }
  if (pasting_ && (byte == '\r' || byte == '\n')) {
    // A terminal sends a line end as one or as two.
    if (!(byte == '\n' && after_return_)) insert("\n");
    after_return_ = byte == '\r';
    return;
  }
  after_return_ = false;
  const auto value = static_cast<unsigned char>(byte);
  if (pasting_ && byte == '\t') return insert("\t");
  if (value < 0x20 || value == 0x7F) {
    unfinished_.clear();
    if (!pasting_) take_control(byte, step);
    return;
  }
  unfinished_ += byte;
  const Utf8Step read = utf8_step(unfinished_, 0);
  if (read.truncated) return;
  // What is no character is left out; what came behind it is looked at anew.
  std::string rest = unfinished_.substr(static_cast<size_t>(read.length));
  if (read.valid) insert(std::string_view(unfinished_).substr(0, static_cast<size_t>(read.length)));
  unfinished_.clear();
  for (const char one : rest) take(one, step);
}

void LineEditor::take_control(char byte, Step& step) {
  const auto control = [](char letter) { return static_cast<char>(letter & 0x1F); };
  if (byte == '\r' || byte == '\n') return end_line(step, Event::kLine);
  if (byte == control('C')) return end_line(step, Event::kInterrupt);
  if (byte == control('D')) {
    if (text_.empty()) return end_line(step, Event::kEnd);
    return erase(cursor_, behind(cursor_));
  }
  changed_ = true;
  if (byte == '\x7F' || byte == '\b') erase(before(cursor_), cursor_);
  if (byte == control('A')) cursor_ = 0;
  if (byte == control('E')) cursor_ = text_.size();
  if (byte == control('B')) cursor_ = before(cursor_);
  if (byte == control('F')) cursor_ = behind(cursor_);
  if (byte == control('U')) erase(0, cursor_);
  if (byte == control('K')) erase(cursor_, text_.size());
  if (byte == control('W')) erase(word_before(), cursor_);
  if (byte == control('P')) browse(-1);
  if (byte == control('N')) browse(1);
  if (byte == control('L')) {
    step.output += "\x1b[H\x1b[2J";
    row_ = 0;
  }
}

void LineEditor::finish_escape(char last) {
  const std::string bytes = std::exchange(escape_bytes_, "");
  const bool alone = escape_ == Escape::kEscape;
  escape_ = Escape::kNone;
  if (bytes == "[200~" || bytes == "[201~") {
    pasting_ = bytes == "[200~";
    return;
  }
  if (pasting_) return;
  changed_ = true;
  if (alone) {
    if (last == 'b') cursor_ = word_before();
    if (last == 'f') cursor_ = word_behind();
    if (last == '\x7F') erase(word_before(), cursor_);
    return;
  }
  const bool by_word = bytes.find(";5") != bytes.npos || bytes.find(";3") != bytes.npos;
  switch (last) {
    case 'A':
      return browse(-1);
    case 'B':
      return browse(1);
    case 'C':
      cursor_ = by_word ? word_behind() : behind(cursor_);
      return;
    case 'D':
      cursor_ = by_word ? word_before() : before(cursor_);
      return;
    case 'H':
      cursor_ = 0;
      return;
    case 'F':
      cursor_ = text_.size();
      return;
    default:
      break;
  }
  if (bytes == "[1~" || bytes == "[7~") cursor_ = 0;
  if (bytes == "[4~" || bytes == "[8~") cursor_ = text_.size();
  if (bytes == "[3~") erase(cursor_, behind(cursor_));
}

void LineEditor::insert(std::string_view bytes) {
  if (text_.size() + bytes.size() > kBytesMax) {
    bell_ = "\a";
    return;
  }
  text_.insert(cursor_, bytes);
  cursor_ += bytes.size();
  changed_ = true;
}

void LineEditor::erase(size_t from, size_t to) {
  text_.erase(from, to - from);
  if (cursor_ > from) cursor_ = from;
  changed_ = true;
}

size_t LineEditor::before(size_t at) const {
  while (at > 0) {
    do --at;
    while (at > 0 && (text_[at] & 0xC0) == 0x80);
    if (text_[at] == '\n' || text_[at] == '\t' || terminal_columns(utf8_step(text_, at).code_point) > 0) break;
  }
  return at;
}

size_t LineEditor::behind(size_t at) const {
  if (at < text_.size()) at += static_cast<size_t>(utf8_step(text_, at).length);
  while (at < text_.size() && text_[at] != '\n' && text_[at] != '\t') {
    const Utf8Step step = utf8_step(text_, at);
    if (terminal_columns(step.code_point) > 0) break;
    at += static_cast<size_t>(step.length);
  }
  return at;
}

size_t LineEditor::word_before() const {
  size_t at = cursor_;
  while (at > 0 && !is_word(text_[at - 1])) --at;
  while (at > 0 && is_word(text_[at - 1])) --at;
  return at;
}

size_t LineEditor::word_behind() const {
  size_t at = cursor_;
  while (at < text_.size() && !is_word(text_[at])) ++at;
  while (at < text_.size() && is_word(text_[at])) ++at;
  return at;
}

void LineEditor::browse(int by) {
  if ((by < 0 && browsed_ == 0) || (by > 0 && browsed_ == history_.size())) return;
  if (browsed_ == history_.size()) typed_ = text_;
  browsed_ = by < 0 ? browsed_ - 1 : browsed_ + 1;
  text_ = browsed_ == history_.size() ? typed_ : history_[browsed_];
  cursor_ = text_.size();
}

void LineEditor::remember(const std::string& line) {
  if (line.empty() || (!history_.empty() && history_.back() == line)) return;
  if (history_.size() == kHistoryMax) history_.erase(history_.begin());
  history_.push_back(line);
}

std::string LineEditor::draw() {
  std::string out;
  if (row_ > 0) out += "\x1b[" + std::to_string(row_) + "A";
  out += "\r\x1b[J" + prompt_;
  Place place, cursor;
  advance(place, prompt_columns_, columns_);
  cursor = place;
  bool row_is_full = false;
  for (size_t at = 0; at < text_.size();) {
    const auto length = static_cast<size_t>(utf8_step(text_, at).length);
    const std::string_view one = shown(std::string_view(text_).substr(at, length));
    const int width = terminal_columns(one);
    // Row ends are said, not left to the terminal: they differ in what the last column
    // does. Not before something takes a place behind it: what joins the last character
    // is still to come.
    if (width > 0 && (row_is_full || place.column + width > columns_)) out += "\r\n";
    if (width > 0) row_is_full = false;
    out += one;
    const int row = place.row;
    advance(place, width, columns_);
    if (width > 0 && place.column == 0 && place.row > row) row_is_full = true;
    at += length;
    if (at <= cursor_) cursor = place;
  }
  if (row_is_full) out += "\r\n";
  if (place.row > cursor.row) out += "\x1b[" + std::to_string(place.row - cursor.row) + "A";
  out += "\r";
  if (cursor.column > 0) out += "\x1b[" + std::to_string(cursor.column) + "C";
  row_ = cursor.row;
  return out;
}

void LineEditor::end_line(Step& step, Event event) {
  cursor_ = text_.size();
  step.output += draw() + "\r\n";
  step.event = event;
  if (event == Event::kLine) step.line = text_;
  text_.clear();
  cursor_ = 0;
  row_ = 0;
  browsed_ = history_.size();
}

}  // namespace loralei
