// SPDX-License-Identifier: Apache-2.0
#include "wire/multipart.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/prng.h"

namespace loralei {
namespace {

// What a parser tells, as text.
class Told final : public MultipartListener {
 public:
  Status on_part(const MultipartPart& part) override {
    text += "[" + part.name + (part.is_file ? "=" + part.filename : "") + "|";
    return refuse == part.name ? Status(Error{ErrorCode::kForbidden, "not this one"}) : Status();
  }
  Status on_data(std::string_view bytes) override {
    EXPECT_FALSE(bytes.empty());
    text += bytes;
    return {};
  }
  Status on_part_end() override {
    text += "]";
    return {};
  }
  std::string text, refuse = "-";
};

struct Parsed {
  std::string text;
  Status status;
};
Parsed parse(const std::string& body, size_t piece = SIZE_MAX, const std::string& boundary = "XX") {
  Told told;
  MultipartParser parser(boundary, told);
  Status status;
  for (size_t at = 0; at < body.size() && status.ok(); at += std::min(piece, body.size() - at))
    status = parser.feed(std::string_view(body).substr(at, piece));
  if (status.ok()) status = parser.finish();
  return {told.text, status};
}

const char* const kHeader = "Content-Disposition: form-data; name=\"a\"\r\n";

TEST(Multipart, WhatClientsSend) {
  // curl -F, Python's requests and httpx, browsers.
  const std::string body =
      "--XX\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nmy adapter\r\n"
      "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"adapter_config.json\"\r\n"
      "Content-Type: application/json\r\n\r\n{\"r\": 8}\r\n"
      "--XX\r\ncontent-disposition:form-data;filename=a.bin;name=file\r\n\r\n\r\n\r\n--X\r\n--\r\n"
      "--XX--\r\n";
  const Parsed whole = parse(body);
  EXPECT_TRUE(whole.status.ok()) << whole.status.error().message;
  EXPECT_EQ(whole.text, "[name|my adapter][file=adapter_config.json|{\"r\": 8}][file=a.bin|\r\n\r\n--X\r\n--]");
}

TEST(Multipart, WhatRfc2046Allows) {
  const std::string part = std::string(kHeader) + "\r\n1";
  EXPECT_EQ(parse("before\r\n--XX\r\n" + part + "\r\n--XX--").text, "[a|1]");
  EXPECT_EQ(parse("--XX \t \r\n" + part + "\r\n--XX-- \r\nbehind\r\n--XX\r\n").text, "[a|1]");
  EXPECT_EQ(parse("--XX\r\n" + std::string(kHeader) + "\r\n--XX--").text, "[a|]");      // no body
  EXPECT_EQ(parse("--XX\r\n" + std::string(kHeader) + "\r\n\r\n--XX--").text, "[a|]");  // an empty one
  EXPECT_EQ(parse("--XX\r\n" + std::string(kHeader) + "\r\n\n--XX\r\n--XX--").text, "[a|\n--XX]");
  EXPECT_EQ(parse("--XX--\r\n").text, "");
  EXPECT_TRUE(parse("--XX--\r\n").status.ok());
  EXPECT_EQ(
      parse("--XX\r\nContent-Disposition: form-data; name=\"a\\\"b\"; x=y; filename=\"\"\r\n\r\n1\r\n--XX--").text,
      "[a\"b=|1]");
}

TEST(Multipart, WrongOnesAreToldWhatIsWrong) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "ends before its last boundary"},
      {"--XX\r\n" + std::string(kHeader) + "\r\n1\r\n--XX", "ends before"},
      {"--XX\r\n" + std::string(kHeader) + "\r\n1\r\n--XY--", "ends before"},
      {"--XX\r\n\r\n1\r\n--XX--", "no 'Content-Disposition"},
      {"--XX\r\nContent-Disposition: form-data\r\n\r\n1\r\n--XX--", "no 'Content-Disposition"},
      {"--XX\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\n1\r\n--XX--", "no 'Content-Disposition"},
      {"--XX\r\nContent-Disposition: form-data; name=\"a\r\n\r\n1\r\n--XX--", "no 'Content-Disposition"},
      {"--XX\r\nnothing\r\n\r\n1\r\n--XX--", "without a colon"},
      {"--XX\r\n" + std::string(kHeader) + "Content-Transfer-Encoding: base64\r\n\r\n1\r\n--XX--", "as they are"},
      {"--XXX\r\n" + std::string(kHeader) + "\r\n1\r\n--XX--", "other text behind"},
      {"--XX" + std::string(200, ' ') + "x", "no line end"},
      {"--XX\r\n" + std::string(kHeader) + "X: " + std::string(9000, 'x') + "\r\n\r\n1\r\n--XX--", "longer than 8192"},
  };
  for (const auto& [body, want] : cases) {
    for (const size_t piece : {size_t{1}, size_t{7}, SIZE_MAX}) {
      const Parsed got = parse(body, piece);
      ASSERT_FALSE(got.status.ok()) << body;
      EXPECT_NE(got.status.error().message.find(want), std::string::npos) << got.status.error().message;
    }
  }
  std::string many;
  for (size_t i = 0; i <= MultipartParser::kPartsMost; ++i) many += "--XX\r\n" + std::string(kHeader) + "\r\n1\r\n";
  EXPECT_NE(parse(many + "--XX--").status.error().message.find("more than 64 parts"), std::string::npos);
}

TEST(Multipart, AnErrorOfTheListenerEndsIt) {
  Told told;
  told.refuse = "b";
  MultipartParser parser("XX", told);
  const Status status = parser.feed("--XX\r\n" + std::string(kHeader) +
                                    "\r\n1\r\n--XX\r\nContent-Disposition: form-data; name=b\r\n\r\n2\r\n--XX--");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kForbidden);
  EXPECT_FALSE(parser.feed("x").ok());
  EXPECT_FALSE(parser.finish().ok());
  EXPECT_EQ(told.text, "[a|1][b|");
}

TEST(Multipart, Boundaries) {
  const auto boundary = [](std::string_view type) {
    const auto found = MultipartParser::boundary_of(type);
    return found.ok() ? *found : "error: " + found.error().message;
  };
  EXPECT_EQ(boundary("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(boundary("Multipart/Form-Data;charset=utf-8;BOUNDARY=\"a b;c\""), "a b;c");
  for (const char* wrong : {"", "application/json", "multipart/mixed; boundary=a", "multipart/form-data",
                            "multipart/form-data; boundary=", "multipart/form-data; boundary=\"a"})
    EXPECT_TRUE(boundary(wrong).starts_with("error: ")) << wrong;
  EXPECT_TRUE(boundary("multipart/form-data; boundary=" + std::string(71, 'x')).starts_with("error: "));
  EXPECT_TRUE(boundary("multipart/form-data; boundary=\"a\nb\"").starts_with("error: "));
}

// However a body is cut, it says the same; and it is made of what looks like delimiters.
TEST(Multipart, DoesNotDependOnHowItIsCut) {
  Prng random(2026);
  std::printf("seed 2026\n");
  const char* const pieces[] = {"\r\n", "--", "XX", "\r", "\n", "-", "X", "a", "\r\n--XX", "\r\n--X", "\0"};
  for (int round = 0; round < 2000; ++round) {
    std::string body, want;
    const auto parts = random.below(4);
    for (uint64_t part = 0; part < parts; ++part) {
      std::string data;
      for (uint64_t left = random.below(12); left > 0; --left) data += pieces[random.below(std::size(pieces))];
      for (size_t at; (at = ("\r\n" + data).find("\r\n--XX")) != std::string::npos;)
        data.erase(at, 1 + data.size() / 2);
      body += "--XX\r\n" + std::string(kHeader) + "\r\n" + data + "\r\n";
      want += "[a|" + data + "]";
    }
    body += "--XX--";
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, 1 + static_cast<size_t>(random.below(30)), SIZE_MAX}) {
      const Parsed got = parse(body, piece);
      ASSERT_TRUE(got.status.ok()) << got.status.error().message << "\n" << body;
      ASSERT_EQ(got.text, want) << "cut by " << piece;
    }
  }
}

}  // namespace
}  // namespace loralei
