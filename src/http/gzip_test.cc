// SPDX-License-Identifier: Apache-2.0
#include "http/gzip.h"

#include <gtest/gtest.h>

#include <boost/beast/zlib/inflate_stream.hpp>

#include "base/prng.h"

namespace loralei {
namespace {

// Between gzip's head and its sums; the sums are those of zlib's own tools
// (tests/conformance/server_test.py).
std::string inflated(const std::string& packed, size_t size) {
  namespace zlib = boost::beast::zlib;
  EXPECT_GE(packed.size(), 18u);
  std::string out(size + 1, '\0');
  zlib::inflate_stream stream;
  zlib::z_params params;
  params.next_in = packed.data() + 10;
  params.avail_in = packed.size() - 18;
  params.next_out = out.data();
  params.avail_out = out.size();
  boost::beast::error_code ec;
  stream.write(params, zlib::Flush::finish, ec);
  EXPECT_EQ(ec, zlib::error::end_of_stream) << ec.message();
  out.resize(params.total_out);
  return out;
}

TEST(Gzip, ComesBackAsItWas) {
  Prng random(7);
  const std::string line = "loralei_requests_total{end=\"stop\"} 5\n";
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100}, size_t{70'000}, size_t{1'000'000}}) {
    std::string same, noise;
    for (size_t i = 0; i < size; ++i) {
      same += line[i % line.size()];
      noise += static_cast<char>(random());
    }
    EXPECT_EQ(inflated(gzip(same), size), same) << size;
    EXPECT_EQ(inflated(gzip(noise), size), noise) << size;
    EXPECT_LE(gzip(noise).size(), size + size / 500 + 100);
    if (size > 1000) {
      EXPECT_LT(gzip(same).size(), size / 50);
    }
  }
}

TEST(Gzip, IsGivenToWhoTakesIt) {
  for (const char* yes : {"gzip", "deflate, gzip;q=1.0, *;q=0.5", "GZip", "*", "br;q=1, gzip ; q=0.2", "x-gzip"})
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  for (const char* no : {"", "identity", "gzip;q=0", "*;q=0", "gzip;q=0.0, *", "gzipped", "br"})
    EXPECT_FALSE(accepts_gzip(no)) << no;
}

}  // namespace
}  // namespace loralei
