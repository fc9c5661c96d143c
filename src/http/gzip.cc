// SPDX-License-Identifier: Apache-2.0
#include "http/gzip.h"

#include <boost/beast/zlib/deflate_stream.hpp>
#include <boost/crc.hpp>
#include <cstdint>
#include <cstdlib>

#include "base/check.h"
#include "http/message.h"

namespace loralei {
namespace {

void append_little_endian(std::string& out, uint32_t value) {
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string gzip(std::string_view text) {
  namespace zlib = boost::beast::zlib;
  zlib::deflate_stream stream;
  stream.reset(6, 15, 8, zlib::Strategy::normal);
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);  // deflate, no name, no time, system not known
  const size_t head = out.size();
  out.resize(head + stream.upper_bound(text.size()) + 64);
  zlib::z_params params;
  params.next_in = text.data();
  params.avail_in = text.size();
  params.next_out = out.data() + head;
  params.avail_out = out.size() - head;
  boost::beast::error_code ec;
  stream.write(params, zlib::Flush::finish, ec);
  CHECK(ec == zlib::error::end_of_stream && params.avail_in == 0);
  out.resize(head + params.total_out);
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  append_little_endian(out, crc.checksum());
  append_little_endian(out, static_cast<uint32_t>(text.size()));
  return out;
}

bool accepts_gzip(std::string_view accept_encoding) {
  bool any = false;
  while (!accept_encoding.empty()) {
    const size_t end = std::min(accept_encoding.find(','), accept_encoding.size());
    const std::string_view one = trimmed(accept_encoding.substr(0, end));
    accept_encoding.remove_prefix(std::min(end + 1, accept_encoding.size()));
    const size_t semicolon = std::min(one.find(';'), one.size());
    const std::string_view coding = trimmed(one.substr(0, semicolon));
    const size_t quality = one.find("q=", semicolon);
    const bool wanted =
        quality == std::string_view::npos || std::atof(std::string(one.substr(quality + 2)).c_str()) > 0;
    if (equals_ignoring_case(coding, "gzip") || equals_ignoring_case(coding, "x-gzip")) return wanted;
    if (coding == "*") any = wanted;
  }
  return any;
}

}  // namespace loralei
