// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <gtest/gtest.h>

#include "report/markup.h"

namespace loralei {
namespace {

TEST(Markup, NothingOpensOrCloses) {
  EXPECT_EQ(markup_text("<a href=\"x\">'&"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
  EXPECT_EQ(markup_text(std::string_view("a\0b\n\xff", 5)), "a\\x00b\\n\\xff");
  EXPECT_EQ(shortened("abcdef", 4), "abc\xe2\x80\xa6");
  EXPECT_EQ(shortened("\xc3\xa4\xc3\xb6\xc3\xbc", 3), "\xc3\xa4\xc3\xb6\xc3\xbc") << "characters, not bytes";
}

TEST(ReportPage, HoldsWhatItIsGivenAsTextAlone) {
  const std::string evil = "</script><script>alert(1)</script>\"'&\x01";
  ReportPage page{.title = evil,
                  .subtitle = evil,
                  .facts = {{evil, evil}},
                  .command = evil,
                  .tiles = {{evil, evil, evil}},
                  .claims = {{evil, true}, {evil, false}},
                  .charts = {},
                  .figures = {}};
  Chart chart{.title = evil, .x = evil, .y = evil};
  chart.series.push_back({.name = evil, .points = {{0, 1}, {1, 2}}, .ranges = {}});
  chart.rules.push_back({.at = 1, .name = evil});
  chart.note = evil;
  page.charts.push_back(chart);
  chart.categories = {evil, evil};
  page.charts.push_back(chart);
  page.figures = {{evil}, {{{evil}, {"0.1", true, 0.1}}}};
  const std::string html = report_page(page);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  for (const char* outside : {"src=", "href=", "url(", "@import", "http-equiv"})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside << ": the page needs nothing else";
  EXPECT_NE(html.find("<data value=\"0.10000000000000001\">0.1</data>"), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(html.find("@media print"), std::string::npos);
}

}  // namespace
}  // namespace loralei
