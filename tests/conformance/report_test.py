# SPDX-License-Identifier: Apache-2.0
"""Pages of reports (--report, loralei report) as a browser and a careful reader have them: well-formed, in need of nothing
else, and with the numbers of the same run's JSON and table."""
import html.parser
import json
import math
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as tree

from browser import CHROMIUM, Chromium
from doc_pages import blocks_of
from live_server import BINARY, ROOT

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</script><script>alert("1")</script><img src=x onerror=alert(1)>'


def run(*words, status=0):
    done = subprocess.run([str(BINARY), *map(str, words)], capture_output=True, text=True, timeout=300)
    if done.returncode != status:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


class Page(html.parser.HTMLParser):
    """What a browser makes of it, and what an XML parser does."""

    def __init__(self, path):
        super().__init__()
        self.text = path.read_text()
        self.elements, self.open = [], []
        self.feed(self.text)
        self.close()
        assert not self.open, self.open
        first, _, rest = self.text.partition("\n")
        assert first == "<!DOCTYPE html>", first
        self.root = tree.fromstring(rest)

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open and self.open[-1] == name, (name, self.open[-3:])
        self.open.pop()

    def table(self, element):
        return [["".join(cell.itertext()) for cell in row] for row in element.iter("tr")]

    def charts(self):
        return {section.find("h2").text: section for section in self.root.iter("section") if section.get("class") == "chart"}

    def figures(self):
        """Each row's name: its numbers, with all digits."""
        (section,) = [one for one in self.root.iter("section") if one.get("class") == "figures"]
        return {row[0].text: [float(data.get("value")) for data in row.iter("data")] for row in section.find(".//tbody")}

    def facts(self):
        (section,) = [one for one in self.root.iter("section") if one.get("class") == "run"]
        parts = list(section.find("dl"))
        return {name.text: "".join(value.itertext()) for name, value in zip(parts[::2], parts[1::2])}


class Reports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.workload = cls.folder / "load.jsonl"
        run("workload", "--arrivals", "poisson:6", "--lengths", "fixed:300:30", "--adapters", "powerlaw:40", "--prefixes",
            "documents:5:200:1", "--count", 300, "--seed", 3, "-o", cls.workload)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def simulate(self, name, *words, workload=None):
        page, out = self.folder / f"{name}.html", self.folder / f"{name}.json"
        done = run("simulate", "--profile", "a40-llama2-7b", "--workload", workload or self.workload, "--json", out, "--report", page, *words)
        return Page(page), json.loads(out.read_text()), done

    def check(self, page):
        """In need of nothing else, and every picture drawn."""
        for name, attributes in page.elements:
            self.assertNotIn(name, ("script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image", "foreignobject"))
            for attribute in attributes:
                self.assertFalse(attribute.startswith("on") or attribute in ("src", "href", "xlink:href", "action"), (name, attribute))
        self.assertNotRegex(page.text, r"url\(|@import|nan\b|[^a-z]inf\b")
        charts = page.charts()
        self.assertEqual(len(charts), len([one for one in page.root.iter(SVG + "svg")]))
        for title, section in charts.items():
            (svg,) = section.findall(SVG + "svg")
            self.assertLess(len(tree.tostring(svg)), 400_000, title)
            _, _, width, height = map(float, svg.get("viewBox").split())
            for shape in svg.iter():
                for key in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy"):
                    if shape.get(key) is not None and shape.get("transform") is None:
                        self.assertTrue(0 <= float(shape.get(key)) <= (height if "y" in key else width), (title, tree.tostring(shape)))
            self.assertTrue(any(section.iter("table")), title)
            self.assertNotIn("no values", "".join(svg.itertext()), title)

    def same_numbers(self, page, report, text):
        figures = page.figures()
        self.assertEqual(list(figures), [row["name"] for row in report["rows"]])
        for row in report["rows"]:
            wanted = [row[key] for key in ("value", "min", "max", "n", "bound", "fraction", "peer", "ratio") if key in row]
            self.assertEqual(figures[row["name"]], wanted, row["name"])
            shown = f"{row['value']:.4f}" if abs(row["value"]) < 1 else f"{row['value']:.2f}" if abs(row["value"]) < 100 else ""
            if shown:
                self.assertRegex(text, re.escape(row["name"]) + r" +" + re.escape(shown) + " ")

    def test_a_simulation_has_its_charts_and_its_numbers(self):
        page, report, done = self.simulate("one", "--slo-ttft", 500, "--slo-tpot", 100)
        self.check(page)
        self.same_numbers(page, report, done.stdout)
        charts = page.charts()
        for title in ("Time to the first token", "Time to the first token, by rank", "Time between tokens", "Time to the first token, over time",
                      "Share within the objectives, over time", "Requests a second, over time", "Tokens a second of answers that end, over time",
                      "Prompts found in the cache, over time", "Time to the first token, by adapter", "Memory by use, over time", "Requests, over time",
                      "Time to the first token, by class", "Waiting, by cause"):
            self.assertIn(title, charts)
        rows = {row["name"]: row["value"] for row in report["rows"]}
        head, curve = page.table(charts["Time to the first token"])
        for share in ("P50", "P90", "P99"):  # of the curve and of the row: one number
            self.assertAlmostEqual(float(curve[head.index(share)]) * 1000, rows[f"simulate.all.first_token.{share.lower()}_ms"], delta=0.6)
        drawn = {chart["title"]: chart for chart in report["charts"]}
        self.assertEqual(set(drawn) - set(charts), set())
        last = drawn["Time to the first token"]["series"][0]["points"][-1]
        self.assertEqual(last[1], 1)
        self.assertEqual(f"{last[0]:.4g}", curve[head.index("most")])
        facts = page.facts()
        self.assertIn("simulate --profile a40-llama2-7b", facts["command"])
        for name in ("version", "date", "cpu", "cores", "memory", "seed"):
            self.assertTrue(facts[name], name)
        self.assertIn("objective", "".join(charts["Time to the first token"].itertext()))
        self.assertNotIn("Share within the objectives, over time", self.simulate("none")[0].charts())

    def test_names_of_adapters_are_text(self):
        path = self.folder / "hostile.jsonl"
        lines = [json.dumps({"t": i / 10, "adapter": HOSTILE if i % 2 else "x&amp;'y", "rank": 8, "prompt_tokens": 50, "output_tokens": 5}) for i in range(40)]
        path.write_text("\n".join(lines) + "\n")
        run("simulate", "--profile", "a40-llama2-7b", "--workload", path, "--report", self.folder / "hostile.html", "--json", self.folder / "hostile.json")
        page = Page(self.folder / "hostile.html")
        self.check(page)
        names = [row[0] for row in page.table(page.charts()["Time to the first token, by adapter"])]
        self.assertIn(HOSTILE + " (20)", names)
        self.assertIn("x&amp;'y (20)", names)
        run("report", self.folder / "hostile.json", "-o", self.folder / "again.html", "--title", HOSTILE)
        again = Page(self.folder / "again.html")
        self.check(again)
        self.assertEqual(again.root.find(".//h1").text, HOSTILE)

    def test_runs_stand_beside_each_other(self):
        files = []
        for rate in (3, 6, 12):
            workload = self.folder / f"rate{rate}.jsonl"
            run("workload", "--arrivals", f"poisson:{rate}", "--lengths", "fixed:300:30", "--count", 200, "--seed", 1, "-o", workload)
            for policy in ("fifo", "wrs"):
                self.simulate(f"{policy}{rate}", "--schedule-policy", policy, "--slo-ttft", 500, "--slo-tpot", 100, workload=workload)
                files.append(self.folder / f"{policy}{rate}.json")
        out = self.folder / "all.html"
        run("report", *files, "-o", out)
        page = Page(out)
        self.check(page)
        reports = [json.loads(path.read_text()) for path in files]
        table = page.table(page.charts()["Share within the objectives, against the rate"])
        self.assertEqual(table[0][1:], ["schedule-policy fifo", "schedule-policy wrs"])
        self.assertEqual(len(table), 4)
        figures = page.figures()
        names = {row["name"] for report in reports for row in report["rows"]}
        self.assertEqual(set(figures), names)
        for name in names:
            values = [row["value"] for report in reports for row in report["rows"] if row["name"] == name]
            self.assertEqual(figures[name], values, name)
        for row, rate in zip(table[1:], sorted({row["value"] for report in reports for row in report["rows"] if row["name"] == "simulate.offered_per_s"})):
            self.assertTrue(math.isclose(float(row[0]), rate, rel_tol=1e-3))

    def test_a_bench_draws_its_rows(self):
        page, out = self.folder / "decode.html", self.folder / "decode.json"
        done = run("bench", "decode", ROOT / "demo/model", "--batch", "1,2,4", "--gen", 8, "--rounds", 2, "--foreign-cpu", 1000, "--json", out, "--html", page)
        report = json.loads(out.read_text())
        drawn = Page(page)
        self.check(drawn)
        self.same_numbers(drawn, report, done.stdout)
        section = drawn.charts()["Tokens a second"]
        self.assertEqual([row[0] for row in drawn.table(section)], ["sequences together", "1", "2", "4"])
        rows = {row["name"]: row for row in report["rows"]}
        for line in list(section.iter("tr"))[1:]:
            batch, rate, *bound = (float(data.get("value")) for data in line.iter("data"))
            (row,) = [row for name, row in rows.items() if f".b{batch:.0f}." in name and name.endswith(".tok_s")]
            self.assertEqual((rate, *bound), (row["value"], *([row["bound"]] if "bound" in row else [])))
        self.assertIn("bench decode", report["command"])

    def test_files_are_whole_or_as_they_were(self):
        page = self.folder / "kept.html"
        page.write_text("old")
        run("simulate", "--profile", "none", "--workload", self.workload, "--report", page, status=1)
        self.assertEqual(page.read_text(), "old")
        run("simulate", "--profile", "a40-llama2-7b", "--workload", self.workload, "--report", page)
        Page(page)
        self.assertEqual([path.name for path in self.folder.glob("kept.html*")], ["kept.html"])
        said = run("simulate", "--profile", "a40-llama2-7b", "--workload", self.workload, "--report", self.folder / "none/x.html", status=1).stderr
        self.assertIn("none/x.html", said)
        self.assertEqual(run("simulate", "--profile", "a40-llama2-7b", "--workload", self.workload, "--json", "/dev/stdout").stdout.count('"scenario": "simulate"'), 1)

    @unittest.skipUnless(CHROMIUM, "chromium is not installed: tools/setup.sh test brings it")
    def test_a_browser_shows_it_from_a_disk(self):
        """It asks for nothing else, complains of nothing, is not wider than the window, and all words lie within their picture."""
        self.simulate("shown", "--slo-ttft", 500, "--slo-tpot", 100)
        run("report", self.folder / "shown.json", self.folder / "shown.json", "-o", self.folder / "shown2.html")
        browser = Chromium()
        self.addCleanup(browser.close)
        paper = set()
        for name, width, scheme in (("shown", 1100, "light"), ("shown", 1100, "dark"), ("shown2", 800, "light"), ("shown", 390, "dark")):
            page = browser.page()
            page.size(width, 900)
            page.media(prefers_color_scheme=scheme)
            url = (self.folder / f"{name}.html").as_uri()
            page.go(url)
            self.assertEqual(page.complaints(), [])
            self.assertEqual(page.asked(), [url])
            paper.add((scheme, page.run("getComputedStyle(document.body).backgroundColor")))
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
            self.assertGreater(page.run("document.querySelectorAll('svg path').length"), 10)
            outside = page.run("""[...document.querySelectorAll('svg text')].filter((text) => {
                const inner = text.getBoundingClientRect(), outer = text.ownerSVGElement.getBoundingClientRect();
                return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
              }).map((text) => text.textContent)""")
            self.assertEqual(outside, [], (name, width))
            page.call("Page.close")
        self.assertEqual(len(paper), 2, "light and dark differ")

    def test_the_page_on_sizing_shows_these_very_numbers(self):
        """docs_test runs its commands; what the simulator says there is the same to the digit, wherever it runs."""
        box = self.folder / "box"
        (box / "build").mkdir(parents=True)
        (box / "build/loralei").symlink_to(BINARY.resolve())
        blocks = blocks_of(ROOT / "docs/sizing.md")
        compared = 0
        for block, after in zip(blocks, blocks[1:]):
            if block.language != "sh" or "simulate " not in block.text or block.not_run:
                continue
            done = subprocess.run(["bash", "-c", block.text], cwd=box, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.strip(), after.text.strip(), block.where)
            compared += 1
        self.assertEqual(compared, 3)

    def test_what_is_no_report_is_refused(self):
        for name, text in (("empty", ""), ("list", "[]"), ("other", '{"a": 1}'), ("deep", "[" * 100_000), ("row", '{"scenario": "x", "rows": [1]}')):
            path = self.folder / f"{name}.json"
            path.write_text(text)
            said = run("report", path, "-o", self.folder / "never.html", status=1).stderr
            self.assertIn(f"{name}.json", said)
            self.assertFalse((self.folder / "never.html").exists())
        self.assertIn("cannot open", run("report", self.folder / "nobody.json", "-o", self.folder / "never.html", status=1).stderr)


if __name__ == "__main__":
    unittest.main()
