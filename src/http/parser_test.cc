// SPDX-License-Identifier: Apache-2.0
#include "http/parser.h"

#include <gtest/gtest.h>

#include "http/client.h"

namespace loralei {
namespace {

// Feeds in pieces of `step` bytes; returns what was left over.
std::string feed(RequestParser& parser, std::string_view bytes, size_t step) {
  std::string pending;
  size_t at = 0;
  while (at < bytes.size() && !parser.failed() && !parser.complete()) {
    const size_t n = std::min(step, bytes.size() - at);
    pending.append(bytes.substr(at, n));
    at += n;
    pending.erase(0, parser.feed(pending));
  }
  return pending + std::string(bytes.substr(at));
}

int status_of(std::string_view bytes, HttpLimits limits = {}) {
  RequestParser parser(limits);
  feed(parser, bytes, 7);
  return parser.failed() ? parser.error_status() : parser.complete() ? 200 : 0;
}

TEST(RequestParser, SplitsTargetAndHeadersInPiecesOfAnySize) {
  const std::string bytes =
      "POST /v1/models/a%2Fb?x=1&y HTTP/1.1\r\nHost: h\r\nX-One:  two \r\nContent-Length: 5\r\n\r\nhelloGET / "
      "HTTP/1.1\r\n";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    RequestParser parser(HttpLimits{});
    const std::string rest = feed(parser, bytes, step);
    ASSERT_TRUE(parser.complete()) << parser.error_message();
    const HttpRequest request = parser.take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/models/a%2Fb");
    EXPECT_EQ(request.query, "x=1&y");
    EXPECT_EQ(request.header("x-one"), "two");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(request.has_body);
    EXPECT_TRUE(request.keep_alive);
    EXPECT_EQ(rest, "GET / HTTP/1.1\r\n");
  }
}

TEST(RequestParser, ReadsChunkedBodies) {
  for (const size_t step : {1, 3, 1000}) {
    RequestParser parser(HttpLimits{});
    feed(parser,
         "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: "
         "x\r\n\r\n",
         step);
    ASSERT_TRUE(parser.complete()) << parser.error_message();
    const HttpRequest request = parser.take();
    EXPECT_EQ(request.body, "abcde");
    EXPECT_TRUE(request.has_body);
    EXPECT_FALSE(has_header(request.headers, "trailer"));
  }
}

TEST(RequestParser, AbsoluteFormAndVersions) {
  RequestParser parser(HttpLimits{});
  feed(parser, "GET http://example:80/a?b HTTP/1.0\r\n\r\n", 5);
  ASSERT_TRUE(parser.complete()) << parser.error_message();
  const HttpRequest request = parser.take();
  EXPECT_EQ(request.path, "/a");
  EXPECT_EQ(request.query, "b");
  EXPECT_EQ(request.version, 10);
  EXPECT_FALSE(request.has_body);
  EXPECT_FALSE(request.keep_alive);
}

TEST(RequestParser, KnowsTheHeadBeforeTheBody) {
  RequestParser parser(HttpLimits{});
  feed(parser, "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhe", 9);
  ASSERT_TRUE(parser.header_complete());
  EXPECT_FALSE(parser.complete());
  EXPECT_EQ(parser.head().path, "/a");
  EXPECT_TRUE(parser.head().has_body);
  EXPECT_EQ(parser.body_bytes(), 2u);
}

TEST(RequestParser, RefusesWithTheRightStatus) {
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);                        // no Host
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);  // two
  EXPECT_EQ(status_of("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(status_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(status_of("GET x HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), 400);  // TLS to a plain port
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"), 501);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"), 415);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nExpect: cookies\r\nContent-Length: 1\r\n\r\nx"), 417);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
}

TEST(RequestParser, JudgesSizes) {
  const HttpLimits limits{.max_header_bytes = 256, .max_headers = 4, .max_body_bytes = 10};
  EXPECT_EQ(status_of("GET /" + std::string(400, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", limits), 431);
  EXPECT_EQ(status_of(std::string(400, 'a'), limits), 431);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\na: b\r\nc: d\r\ne: f\r\ng: h\r\n\r\n", limits), 431);
  // Before a byte of the body is there.
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", limits), 413);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789", limits), 200);
  EXPECT_EQ(
      status_of(
          "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n6\r\nabcdef\r\n0\r\n\r\n",
          limits),
      413);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", limits), 413);
}

TEST(RequestParser, SaysWhenAContinueIsExpected) {
  RequestParser parser(HttpLimits{});
  feed(parser, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n", 9);
  EXPECT_TRUE(parser.header_complete());
  EXPECT_TRUE(parser.expects_continue());
  EXPECT_FALSE(parser.complete());
  parser.feed("abc");
  EXPECT_TRUE(parser.complete());
}

TEST(ResponseParser, BodiesByLengthChunksAndEnd) {
  for (const char* bytes : {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 OK\r\n\r\nhello",
                            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"}) {
    std::string body;
    ResponseParser parser(HttpLimits{}, false, [&](std::string_view piece) {
      body += piece;
      return true;
    });
    std::string pending;
    for (const char c : std::string_view(bytes)) {
      pending += c;
      pending.erase(0, parser.feed(pending));
    }
    parser.feed_eof();
    EXPECT_TRUE(parser.complete()) << parser.error_message();
    EXPECT_EQ(body, "hello");
    EXPECT_EQ(parser.head().status, 200);
  }
}

TEST(ResponseParser, ATruncatedAnswerFails) {
  ResponseParser parser(HttpLimits{}, false, nullptr);
  parser.feed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel");
  parser.feed_eof();
  EXPECT_TRUE(parser.failed());
}

TEST(ResponseParser, APauseStopsBehindEveryPiece) {
  for (const char* head : {"Content-Length: 5\r\n\r\nhello", "\r\nhello",
                           "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"}) {
    const std::string bytes = "HTTP/1.1 200 OK\r\n" + std::string(head);
    for (size_t step = 1; step <= bytes.size(); ++step) {
      std::string body;
      int pieces = 0;
      std::unique_ptr<ResponseParser> parser;
      parser = std::make_unique<ResponseParser>(HttpLimits{}, false, [&](std::string_view piece) {
        body += piece;
        ++pieces;
        parser->pause();
        return true;
      });
      std::string pending;
      for (size_t at = 0; at < bytes.size(); at += step) {
        pending += bytes.substr(at, step);
        for (int before = pieces - 1; before != pieces && !pending.empty();) {
          before = pieces;
          pending.erase(0, parser->feed(pending));
          ASSERT_LE(pieces, before + 1);
        }
      }
      parser->feed_eof();
      EXPECT_TRUE(parser->complete()) << parser->error_message();
      EXPECT_EQ(body, "hello");
    }
  }
}

TEST(ResponseParser, JudgesHeads) {
  const HttpLimits limits{.max_header_bytes = 256, .max_headers = 4};
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  for (const auto& [bytes, fails] : std::vector<std::pair<std::string, bool>>{
           {ok + "a: b\r\na: b\r\na: b\r\nContent-Length: 0\r\n\r\n", false},
           {ok + "a: b\r\na: b\r\na: b\r\na: b\r\nContent-Length: 0\r\n\r\n", true},
           {ok + "a: " + std::string(300, 'b') + "\r\nContent-Length: 0\r\n\r\n", true},
           {ok + "a: " + std::string(600, 'b'), true}}) {
    ResponseParser parser(limits, false, nullptr);
    parser.feed(bytes);
    EXPECT_EQ(parser.failed(), fails) << bytes;
    EXPECT_EQ(parser.complete(), !fails) << bytes;
  }
}

TEST(SseParser, JoinsLinesAndSkipsComments) {
  SseParser parser(100);
  std::vector<std::string> events;
  for (const char c : std::string_view(": ping\n\ndata: a\r\ndata:b\r\nid: 7\r\n\r\ndata: [DONE]\n\ndata: cut")) {
    EXPECT_TRUE(parser.feed(std::string_view(&c, 1), [&](std::string_view event) {
      events.emplace_back(event);
      return true;
    }));
  }
  EXPECT_EQ(events, (std::vector<std::string>{"a\nb", "[DONE]"}));
  EXPECT_FALSE(parser.feed(std::string(200, 'x'), [](std::string_view) { return true; }));
}

TEST(Message, PercentDecodeAndHeaderValues) {
  EXPECT_EQ(percent_decode("a%2Fb%20c"), "a/b c");
  EXPECT_FALSE(percent_decode("a%2"));
  EXPECT_FALSE(percent_decode("%zz"));
  EXPECT_EQ(percent_encode("aZ9-._~"), "aZ9-._~");
  EXPECT_EQ(percent_encode("a/b c?%\xff"), "a%2Fb%20c%3F%25%FF");
  EXPECT_EQ(clean_header_value("a\r\nSet-Cookie: x"), "a  Set-Cookie: x");
}

TEST(Message, HeadersThatConcernOneConnection) {
  const HttpHeaders headers = {{"Connection", " a ,,CLOSE,b"},
                               {"A", "1"},
                               {"bb", "2"},
                               {"B", "3"},
                               {"connection", "c"},
                               {"C", "4"},
                               {"TE", "t"},
                               {"Trailer", "t"},
                               {"Transfer-encoding", "t"},
                               {"Upgrade", "t"},
                               {"Close", "5"},
                               {"Keep-Alive", "t"},
                               {"PROXY-Anything", "t"},
                               {"Proxy", "6"},
                               {"D", "7"}};
  EXPECT_EQ(end_to_end_headers(headers), (HttpHeaders{{"bb", "2"}, {"Proxy", "6"}, {"D", "7"}}));
}

TEST(Message, Tokens) {
  for (const char* text : {"GET", "x-a", "!#$%&'*+-.^_`|~09azAZ"}) EXPECT_TRUE(is_token(text)) << text;
  for (const char* text : {"", "a b", "a:", "a\r\n", "\"a\"", "a/b", "\xc3\xa4"}) EXPECT_FALSE(is_token(text)) << text;
}

}  // namespace
}  // namespace loralei
