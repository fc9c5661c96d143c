// SPDX-License-Identifier: Apache-2.0
#include "term/line_reader.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/utf8.h"

namespace loralei {
namespace {

constexpr size_t kPieceBytes = 4096;
constexpr char kPasteOn[] = "\x1b[?2004h", kPasteOff[] = "\x1b[?2004l";

// What a signal's handler restores. Written while no handler can run.
struct Saved {
  int input = -1, output = -1;
  termios before = {};
};
Saved g_saved;
constexpr int kSignals[] = {SIGTERM, SIGHUP, SIGQUIT};

void restore_terminal() {
  if (g_saved.input < 0) return;
  ::tcsetattr(g_saved.input, TCSADRAIN, &g_saved.before);
  [[maybe_unused]] const ssize_t written = ::write(g_saved.output, kPasteOff, sizeof kPasteOff - 1);
}

void end_by_signal(int number) {
  restore_terminal();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

bool write_all(int descriptor, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(descriptor, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

// Keys come as they are typed, while it lives.
class RawMode {
 public:
  RawMode(int input, int output) {
    if (::tcgetattr(input, &g_saved.before) != 0) return;
    g_saved.input = input, g_saved.output = output;
    struct sigaction action = {};
    action.sa_handler = end_by_signal;
    for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
    termios raw = g_saved.before;
    raw.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
    raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(input, TCSADRAIN, &raw);
    write_all(output, kPasteOn);
    on_ = true;
  }
  ~RawMode() {
    if (!on_) return;
    restore_terminal();
    for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
    g_saved.input = -1;
  }
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

 private:
  bool on_ = false;
  struct sigaction before_[std::size(kSignals)] = {};
};

// What there is, at least a byte; empty: the end.
std::string read_piece(int descriptor) {
  std::string piece(kPieceBytes, '\0');
  for (;;) {
    const ssize_t got = ::read(descriptor, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    piece.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return piece;
  }
}

}  // namespace

int terminal_width(int descriptor) {
  winsize size = {};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

LineReader::LineReader(int input, int output)
    : input_(input), output_(output), terminal_(::isatty(input) == 1 && ::isatty(output) == 1) {}

LineReader::~LineReader() = default;

LineReader::Read LineReader::read(const std::string& prompt, int columns) {
  return terminal_ ? read_typed(prompt, columns) : read_plain();
}

LineReader::Read LineReader::read_typed(const std::string& prompt, int columns) {
  const RawMode raw(input_, output_);
  LineEditor editor(prompt, columns);
  for (const std::string& line : history_) editor.remember(line);
  if (!write_all(output_, editor.begin(terminal_width(output_)))) return {};
  for (;;) {
    if (pending_.empty()) pending_ = read_piece(input_);
    if (pending_.empty()) return {};
    LineEditor::Step step = editor.keys(pending_, terminal_width(output_));
    pending_.erase(0, step.used);
    if (!write_all(output_, step.output)) return {};
    if (step.event == Event::kNone) continue;
    if (step.event == Event::kLine && !step.line.empty() && (history_.empty() || history_.back() != step.line)) {
      if (history_.size() == LineEditor::kHistoryMax) history_.erase(history_.begin());
      history_.push_back(step.line);
    }
    return {step.event, std::move(step.line)};
  }
}

LineReader::Read LineReader::read_plain() {
  for (;;) {
    const size_t end = pending_.find('\n');
    if (end != pending_.npos) {
      Read read{Event::kLine, utf8_repair(std::string_view(pending_).substr(0, end))};
      pending_.erase(0, end + 1);
      return read;
    }
    std::string piece = pending_.size() < LineEditor::kBytesMax ? read_piece(input_) : "";
    if (piece.empty()) {
      if (pending_.empty()) return {};
      return {Event::kLine, utf8_repair(std::exchange(pending_, ""))};
    }
    pending_ += piece;
  }
}

}  // namespace loralei
