// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <cstdio>

#include "report/markup.h"

namespace loralei {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1f2430;--quiet:#5a6270;--edge:#6b7280;--grid:#e1e4ea;
--good:#1d7f55;--bad:#b92f3c;--c0:#2f6fde;--c1:#d9722e;--c2:#23936b;--c3:#9a4bd0;--c4:#cc3f4c;--c5:#0e8fa3;--c6:#8a6d1a;--c7:#6b7280}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14171d;--card:#1d2129;--ink:#e8eaef;--quiet:#a3abb9;--edge:#8b94a5;
--grid:#2e3440;--good:#5cc79a;--bad:#f2808a;--c0:#6ea2ff;--c1:#f19a5c;--c2:#4fc396;--c3:#c58bf0;--c4:#f27782;--c5:#4cc4d6;
--c6:#d1b24f;--c7:#a3abb9}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:58rem;padding:2.2rem 1.5rem 4rem;font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;
background:var(--paper);color:var(--ink)}
h1{font-size:1.7rem;line-height:1.2;margin:0}h2{font-size:1.1rem;margin:0 0 .6rem}
.subtitle{color:var(--quiet);margin:.3rem 0 1.4rem}
.tiles{display:flex;flex-wrap:wrap;gap:.7rem;margin:1.2rem 0}
.tile{flex:1 1 8rem;background:var(--card);border-radius:.5rem;padding:.7rem .9rem}
.tile b{font-size:1.45rem;line-height:1.25;display:block;font-variant-numeric:tabular-nums;white-space:nowrap}
.tile b small{font-size:.8rem;font-weight:400;color:var(--quiet)}
.tile span{color:var(--quiet);font-size:.85rem;overflow-wrap:anywhere}
section{margin:2.2rem 0;break-inside:avoid}
svg{display:block;width:100%;height:auto}svg text{fill:var(--ink)}svg .quiet{fill:var(--quiet)}
.grid{stroke:var(--grid)}.edge{stroke:var(--edge)}.rule{stroke:var(--ink)}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}
.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}
.f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums;margin:.5rem 0}
th,td{padding:.22rem .7rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--quiet);font-weight:600}th:first-child,td:first-child{text-align:left;padding-left:0}
td.word,td.words{text-align:left}td.words{white-space:normal;min-width:10rem}
p.note{color:var(--quiet);font-size:.85rem;margin:.3rem 0}
ul.claims{list-style:none;padding:0;margin:0}ul.claims li{margin:.2rem 0}
.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;font-size:.9rem;margin:0}
dt{color:var(--quiet)}dd{margin:0;overflow-wrap:anywhere}
code{font:13px/1.5 ui-monospace,"DejaVu Sans Mono",monospace}
dd code{background:var(--card);border-radius:.3rem;padding:.1rem .35rem;box-decoration-break:clone}
@media print{body{padding:0;max-width:none;font-size:11pt}.tile{border:1px solid var(--grid);flex-basis:6rem;padding:.5rem .6rem}.tile b{font-size:1.2rem}section.figures{break-inside:auto}
tr{break-inside:avoid}.wide{overflow:visible}th,td{white-space:normal;padding:.15rem .35rem}table{font-size:8.5pt}}
)";

std::string exact(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string cell_markup(const ReportTable::Cell& cell, size_t column) {
  if (cell.is_number) return "<td><data value=\"" + exact(cell.value) + "\">" + markup_text(cell.text) + "</data></td>";
  constexpr size_t kShort = 12;
  const bool is_words = column > 0 && !cell.text.empty();
  return (!is_words                   ? "<td>"
          : cell.text.size() > kShort ? "<td class=\"words\">"
                                      : "<td class=\"word\">") +
         markup_text(cell.text) + "</td>";
}

std::string table_markup(const ReportTable& table) {
  std::string out = "<div class=\"wide\"><table><thead><tr>";
  for (const std::string& name : table.head) out += "<th scope=\"col\">" + markup_text(name) + "</th>";
  out += "</tr></thead><tbody>\n";
  for (const std::vector<ReportTable::Cell>& row : table.rows) {
    out += "<tr>";
    for (size_t column = 0; column < row.size(); ++column) out += cell_markup(row[column], column);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string chart_markup(const Chart& chart) {
  std::string out = "<section class=\"chart\"><h2>" + markup_text(chart.title) + "</h2>" + chart_svg(chart) + "\n";
  if (!chart.note.empty()) out += "<p class=\"note\">" + markup_text(chart.note) + "</p>\n";
  return out + table_markup(chart_table(chart)) + "</section>\n";
}

std::string head_markup(const ReportPage& page) {
  std::string out = "<header><h1>" + markup_text(page.title) + "</h1><p class=\"subtitle\">" +
                    markup_text(page.subtitle) + "</p></header>\n";
  if (!page.tiles.empty()) out += "<div class=\"tiles\">";
  for (const ReportTile& tile : page.tiles)
    out += "<div class=\"tile\"><b>" + markup_text(tile.value) + " <small>" + markup_text(tile.unit) +
           "</small></b><span>" + markup_text(tile.name) + "</span></div>";
  if (!page.tiles.empty()) out += "</div>\n";
  if (page.claims.empty()) return out;
  out += "<section class=\"targets\"><h2>Targets</h2><ul class=\"claims\">";
  for (const ReportClaim& claim : page.claims)
    out += std::string("<li><span class=\"") + (claim.ok ? "met\">met" : "missed\">missed") + "</span> " +
           markup_text(claim.words) + "</li>";
  return out + "</ul></section>\n";
}

std::string facts_markup(const ReportPage& page) {
  std::string out = "<section class=\"run\"><h2>How this was measured</h2><dl>";
  if (!page.command.empty()) out += "<dt>command</dt><dd><code>" + markup_text(page.command) + "</code></dd>";
  for (const auto& [name, value] : page.facts)
    out += "<dt>" + markup_text(name) + "</dt><dd>" + markup_text(value) + "</dd>";
  return out + "</dl></section>\n";
}

}  // namespace

std::string report_page(const ReportPage& page) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"/><title>" +
      markup_text(page.title) + "</title><style>" + kStyle + "</style></head>\n<body>\n";
  out += head_markup(page);
  for (const Chart& chart : page.charts) out += chart_markup(chart);
  if (!page.figures.rows.empty())
    out += "<section class=\"figures\"><h2>All figures</h2>" + table_markup(page.figures) + "</section>\n";
  return out + facts_markup(page) + "</body></html>\n";
}

}  // namespace loralei
