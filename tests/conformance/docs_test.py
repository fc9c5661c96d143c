# SPDX-License-Identifier: Apache-2.0
"""The documentation is true: every block of commands, requests and Python on README.md and docs/*.md is run on the demo
model and its adapters, and what the page shows below it is compared with what comes (doc_shapes.py). Blocks that cannot
run here say why in a comment before them and are listed at the end; their options are checked all the same.

A block that starts `loralei serve` starts the server that the page's next blocks ask; without one they ask the demo model
with its adapters. Blocks run in a folder of their own that looks like this project after a build, with `my-model` and
`my-adapters` in it (the demo's), as docs/own-model.md has them."""
import ast
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from doc_pages import PAGES, ROOT, anchors, blocks_of, commands, links, outside_blocks, sentences_of, spans, table_rows
from doc_shapes import differences, output_differences, read_shown
from live_server import BINARY, LiveServer

ADDRESSES = ("http://127.0.0.1:8080", "http://localhost:8080", "localhost:8080", "127.0.0.1:8080")
NAMES = {"support": "shout", "sql": "json"}  # my-adapters/NAME is the demo's
COMMAND_SECONDS = 120
OUTPUT_SECONDS = 10
not_run = []


def page_named(name):
    return ROOT / "docs" / name


def make_box():
    """What a page's blocks run in."""
    box = pathlib.Path(tempfile.mkdtemp(prefix="loralei-docs-")).resolve()
    (box / "build").mkdir()
    (box / "build/loralei").symlink_to(BINARY.resolve())
    shutil.copytree(ROOT / "demo", box / "demo")
    (box / "tests").symlink_to(ROOT / "tests")
    shutil.copytree(ROOT / "demo/model", box / "my-model")
    for name, source in NAMES.items():
        shutil.copytree(ROOT / "demo/adapters" / source, box / "my-adapters" / name)
    # Each request's status, whatever the block does with the answer.
    (box / "bin").mkdir()
    curl = box / "bin/curl"
    curl.write_text(f'#!/bin/sh\nexec {shutil.which("curl")} -sS -w "%{{stderr}}%{{http_code}}\\n" "$@" 2>>"$DOCS_STATUS"\n')
    curl.chmod(0o755)
    return box


def tearDownModule():
    for line in not_run:
        print("not run:", line)


def serve_words(block):
    """The words behind `loralei serve`, where the block is that one command."""
    found = commands(block)
    if len(found) == 1 and found[0][0].endswith("loralei") and found[0][1:2] == ["serve"]:
        return found[0][2:]
    return None


class Page:
    """Runs the blocks of a page in order; `problems` are sentences."""

    def __init__(self, path):
        self.path, self.server, self.problems, self.asked = path, None, [], []
        self.box = make_box()

    def run(self):
        last = None  # (block, output) of the last block that was run
        try:
            for block in blocks_of(self.path):
                if block.language == "":
                    self.compare(block, last)
                    last = None
                    continue
                last = (block, None)  # and a function that says what it printed
                if block.file:
                    (self.box / block.file).write_text(block.text + "\n")
                elif block.not_run:
                    self.look_at(block)
                elif block.language == "json":
                    read_shown(block.text)
                elif block.language != "toml":
                    last = (block, self.run_block(block))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self.problems.append(f"{block.where}: {error}")
        finally:
            self.stop()
            shutil.rmtree(self.box)
        return self

    def look_at(self, block):
        more = ""
        if block.language == "python":
            tree = ast.parse(block.text, block.where)
            names = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            names |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            absent = sorted(name for name in names if importlib.util.find_spec(name) is None)
            more = "; syntax checked" + (", not installed here: " + ", ".join(absent) if absent else "")
        not_run.append(f"{block.where}: {block.not_run}{more}")

    def compare(self, block, last):
        if last is None:
            self.problems.append(f"{block.where}: output is shown without a block of commands before it")
        elif last[1] is not None:
            found = output_differences(block.text, last[1]())
            deadline = time.monotonic() + OUTPUT_SECONDS  # a server's lines come from a thread of its own
            while found and self.server and last[1] == self.server_lines and time.monotonic() < deadline:
                time.sleep(0.05)
                found = output_differences(block.text, last[1]())
            self.problems += [f"{block.where}: {one}" for one in found]

    def server_lines(self):
        return "\n".join(self.server.lines)

    def start(self, words):
        words = list(words)
        while "--port" in words:
            at = words.index("--port")
            del words[at:at + 2]
        self.stop()
        model = None if words[0].startswith("-") else self.box / words.pop(0)
        self.server = LiveServer(*words, model=model, adapters=None, before=lambda: os.chdir(self.box))

    def stop(self):
        if self.server:
            code = self.server.stop()
            if code != 0:
                self.problems.append(f"{self.path.name}: a server ended with {code}: " + "\n".join(self.server.lines[-20:]))
        self.server = None

    def run_block(self, block):
        words = serve_words(block) if block.language == "sh" else None
        if words is not None:
            self.start(words)
            return self.server_lines
        text = block.text
        if any(address in text for address in ADDRESSES):
            if self.server is None or self.server.request("GET", "/ready")[0] != 200:
                self.start(["demo/model", "--adapter-dir", "demo/adapters"])
            if block.language == "sh":
                self.asked += [one for one in map(request_of, commands(block)) if one]
            for address in ADDRESSES:
                url = self.server.url if address.startswith("http") else self.server.url[len("http://"):]
                text = text.replace(address, url)
        status = self.box / "status"
        status.write_text("")
        env = {**os.environ, "PATH": f"{self.box / 'bin'}:{os.environ['PATH']}", "DOCS_STATUS": str(status)}
        command = [sys.executable, "-c", text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, cwd=self.box, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=COMMAND_SECONDS, text=True)
        if done.returncode != 0:
            self.problems.append(f"{block.where}: ended with {done.returncode}: {done.stdout.strip()[-600:]}{status.read_text()}")
        for one in status.read_text().split("\n")[:-1]:
            if not one.startswith("2") and one != str(block.status):
                self.problems.append(f"{block.where}: answered {one}: {done.stdout.strip()[-400:]}")
        if block.status != 200 and str(block.status) not in status.read_text().split():
            self.problems.append(f"{block.where}: {block.status} is said, and was not answered")
        return lambda: done.stdout


def request_of(words):
    """(method, path) of a curl command to the server."""
    if words[0] != "curl":
        return None
    for word in words:
        for address in ADDRESSES:
            if word.startswith(address):
                sends = any(one in words for one in ("-d", "--data", "--json", "-F"))
                method = words[words.index("-X") + 1] if "-X" in words else "POST" if sends else "GET"
                return method, word[len(address):].split("?")[0] or "/"
    return None


class Blocks(unittest.TestCase):
    def check(self, page):
        done = Page(page).run()
        self.assertEqual(done.problems, [], "\n" + "\n".join(done.problems))
        return done

    def test_api_page_shows_every_route(self):
        done = self.check(page_named("api.md"))
        server = LiveServer()
        routes = re.findall(r"^([A-Z]+) +(/\S*)", server.request("GET", "/")[2], flags=re.M)
        server.stop()
        self.assertGreater(len(routes), 20)
        for method, pattern in routes:
            path = "[^/]+".join(re.escape(part) for part in re.split(r"\{\w+\}", pattern))
            self.assertTrue(any(m == method and re.fullmatch(path, p) for m, p in done.asked),
                            f"docs/api.md shows no request to {method} {pattern}")
        written = set()
        for _, cells in table_rows(page_named("api.md"), ["route"]):
            method = ""
            for span in spans(cells[0]):
                method, path = span.split() if " " in span else (method, span)
                written.add((method, path))
        self.assertEqual(written, set(routes), "the table of routes in docs/api.md")


def page_test(path):
    def test(self):
        self.check(path)
    return test


for path in PAGES:
    if path.name != "api.md":
        setattr(Blocks, "test_" + re.sub(r"\W", "_", path.stem.lower()), page_test(path))


class Options(unittest.TestCase):
    """Every option that a page names is one of the program's, or one of other servers' that it knows."""

    @classmethod
    def setUpClass(cls):
        cls.own = {}
        shown = subprocess.run([BINARY, "--help"], capture_output=True, text=True)
        for name in re.findall(r"^  ([\w-]+)  ", shown.stdout, flags=re.M):
            shown = subprocess.run([BINARY, name, "--help-all" if name == "serve" else "--help"], capture_output=True, text=True)
            heads = re.findall(r"^  (-\S+)", shown.stdout, flags=re.M)
            cls.own[name] = {option for head in heads for option in head.split(",")} | {"--help", "-h"}
        cls.own["serve"] |= {"--help-all"}
        # A program that is not built everywhere.
        texts = [(ROOT / "src/apps" / name).read_text() for name in ("main/epp_main.cc", "routing_flags.cc")]
        cls.own["loralei-epp"] = set(re.findall(r'"(--[a-z][\w-]*)"', "".join(texts))) | {"--help", "--version"}
        words = " ".join(sentences_of(ROOT / "src/apps/foreign_table.cc"))
        words += " " + " ".join(sentences_of(ROOT / "src/apps/command_words.cc"))
        cls.foreign = set(re.findall(r"(?<!\S)(--?[A-Za-z][\w-]*)=?(?!\S)", words))

    def test_help_was_read(self):
        self.assertLess({"--memory-budget", "-c", "--adapter-dir"}, self.own["serve"])
        self.assertLess({"--base"}, self.own["inspect"])
        self.assertLess({"--max-streams", "--replica", "--log-level"}, self.own["loralei-epp"])
        self.assertLess({"--enable-lora", "--max-loras", "-ngl", "--lora-paths"}, self.foreign)

    def test_commands(self):
        for page in PAGES:
            for block in blocks_of(page):
                if block.language != "sh":
                    continue
                for words in commands(block):
                    picker = next((i for i, word in enumerate(words) if word.split("/")[-1] == "loralei-epp"), len(words))
                    for word in words[picker + 1:]:
                        if word.startswith("--"):
                            self.assertIn(word.split("=")[0], self.own["loralei-epp"], block.where)
                    at = next((i for i, word in enumerate(words[:-1]) if word.split("/")[-1] == "loralei"), None)
                    if at is None:
                        continue
                    for word in words[at + 2:]:
                        name = word.split("=")[0]
                        if re.fullmatch(r"--?[A-Za-z][\w-]*", name):
                            self.assertIn(name, self.own[words[at + 1]], f"{block.where}: loralei {words[at + 1]}")

    def test_inline(self):
        own = set().union(*self.own.values(), self.foreign)
        scripts = set()  # of the scripts that docs/benchmarks.md and docs/testing.md tell of
        for path in [*(ROOT / "tools").iterdir(), ROOT / "test"]:
            scripts |= set(re.findall(r"--[a-z][\w-]*", path.read_text())) if path.is_file() else set()
        for page in PAGES:
            known = own | scripts if page.name in ("benchmarks.md", "testing.md") else own
            for number, line in outside_blocks(page):
                for span in spans(line):
                    words = span.split()
                    if not (words[0].startswith("--") or words[0].split("/")[-1] == "loralei"):
                        continue
                    for word in words:
                        name = word.split("=")[0].replace("_", "-").rstrip(",.;")
                        if re.fullmatch(r"--[a-z][\w-]*", name):
                            self.assertTrue(name in known or name.replace("--no-", "--") in known,
                                            f"{page.name}:{number}: no option is called {name}")

    def test_config_keys(self):
        own = {name.lstrip("-") for name in self.own["serve"]}
        for page in PAGES:
            for block in blocks_of(page):
                if block.language == "toml":
                    for key in re.findall(r"^([\w-]+) *=", block.text, flags=re.M):
                        self.assertIn(key, own, block.where)

    def test_what_users_of_other_servers_type(self):
        """The tables of docs/coming-from.md: `you type` is typed, and what happens is what `here` says."""
        page = page_named("coming-from.md")
        rows = [(number, cells) for number, cells in table_rows(page, ["you type"]) if cells[0].startswith("`-")]
        self.assertGreater(len(rows), 40)
        wrong = []
        for number, cells in rows:
            for span in spans(cells[0]):
                words = [word.strip("'\"") for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", span)]
                model = [] if "/no/such/model" in words else ["/no/such/model"]
                done = subprocess.run([BINARY, "serve", *model, *words], capture_output=True, text=True, timeout=20)
                said = done.stdout + done.stderr
                taken = "does not exist" in said  # all options were read, and now the model is looked for
                noted = "changes nothing here" in said
                if cells[1].startswith("refused"):
                    right = not taken and "cannot be had" in said
                elif cells[1].startswith("accepted"):
                    right = taken and noted
                else:
                    right = taken and not noted
                if not right:
                    wrong.append(f"{page.name}:{number}: {span} is {cells[1]}: {said.strip()[-300:]}")
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))


class Routes(unittest.TestCase):
    def test_what_clients_of_other_servers_send(self):
        """Routes in docs/coming-from.md: those that are not served are 404 with what stands beside them; others are served."""
        server, count = LiveServer(), 0
        for number, cells in table_rows(page_named("coming-from.md"), ["you send"]):
            for span in spans(cells[0]):
                route = re.fullmatch(r"(GET|POST) (/\S+)", span)
                if not route:
                    continue
                status, _, body = server.request(route.group(1), route.group(2), {} if route.group(1) == "POST" else None)
                where = f"coming-from.md:{number}: {span}: {status} {body}"
                self.assertEqual(status == 404, "404" in cells[1], where)
                if status == 404:
                    self.assertIn(spans(cells[1])[0], body["error"]["message"], where)
                count += 1
        server.stop()
        self.assertGreater(count, 5)


class Fields(unittest.TestCase):
    def test_fields_are_known(self):
        """Each field of docs/api.md is one that the server knows: a field that it does not know is counted in /metrics."""
        page = page_named("api.md")
        names = [(number, span) for number, cells in table_rows(page, ["field", "range, default"]) for span in spans(cells[0])]
        inside = False
        for number, line in outside_blocks(page):
            inside = line == "### Other fields" or (inside and not line.startswith("**Any other field**"))
            names += [(number, span) for span in spans(line) if inside and re.fullmatch(r"[a-z_]+", span)]
        names += [(number, re.match(r"\w+", spans(cells[0])[0]).group(0)) for number, cells in table_rows(page, ["field", "from"])]
        self.assertGreater(len(names), 100)
        server, unknown = LiveServer(), []
        counter = "loralei_unknown_request_fields_total"
        for number, name in [*names, (0, "no_such_field")]:
            text = name in ("prompt", "echo")
            body = {"prompt": "Mara"} if text else {"messages": [{"role": "user", "content": "Mara"}]}
            before = server.metric(counter)
            server.request("POST", "/v1/completions" if text else "/v1/chat/completions", {"max_tokens": 1, name: None, **body})
            if server.metric(counter) != before:
                unknown.append(f"api.md:{number}: {name}")
        server.stop()
        self.assertEqual(unknown, ["api.md:0: no_such_field"])


class Sentences(unittest.TestCase):
    def test_quoted_sentences_stand_in_the_sources(self):
        """Lines of docs/troubleshooting.md that begin with `>`; what differs from time to time is written `...`."""
        page = page_named("troubleshooting.md")
        files = {}
        for path in sorted((ROOT / "src").rglob("*")):
            if path.suffix in (".cc", ".h") and not re.search(r"_(test|fuzz|bench)\.|test_", path.name):
                files[path] = list(sentences_of(path))
        quoted = [(number, line[2:].strip()) for number, line in outside_blocks(page) if line.startswith("> ")]
        self.assertGreaterEqual(len(quoted), 25)
        absent = []
        for number, sentence in quoted:
            parts = [part.strip() for part in sentence.split("...") if len(part.strip()) >= 4]
            self.assertGreaterEqual(max(map(len, parts)), 12, f"{page.name}:{number}: too little of it is fixed")
            found = any(all(any(part in one for one in literals) for part in parts) for literals in files.values())
            if not found:
                absent.append(f"{page.name}:{number}: no source file says: {sentence}")
        self.assertEqual(absent, [])


class Metrics(unittest.TestCase):
    def test_table_of_families(self):
        page = page_named("api.md")
        rows = {}
        for number, cells in table_rows(page, ["family"]):
            for name in spans(cells[0]):
                rows[name] = (cells[1], set(spans(cells[2])), number)
        source = set()
        for file in ("metrics.cc", "key_ledger.cc"):
            for literal in sentences_of(ROOT / "src/serve" / file):
                if re.fullmatch(r"(loralei_|vllm:|http_requests_)\w+", literal):
                    source.add(literal)
        self.assertEqual(source - set(rows), set(), "families that docs/api.md does not list")
        self.assertEqual(set(rows) - source, set(), "families of docs/api.md that /metrics never shows")
        server = LiveServer()
        body = {"model": "shout", "prompt": "Mara", "max_tokens": 4, "no_such_field": 1}
        self.assertEqual(server.request("POST", "/v1/completions", body)[0], 200)
        self.assertEqual(server.request("POST", "/v1/completions", {"model": "nobody", "prompt": "Mara"})[0], 404)
        shown = server.request("GET", "/metrics")[2]
        server.stop()
        types = dict(re.findall(r"^# TYPE (\S+) (\w+)", shown, flags=re.M))
        self.assertGreater(len(types), 60)
        for name, kind in types.items():
            self.assertEqual(rows[name][0], kind, f"{page.name}:{rows[name][2]}: {name}")
        for name, labels in re.findall(r"^([a-z_:]+?)\{(.*)\} ", shown, flags=re.M):
            name = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
            have = set(re.findall(r'(\w+)="', labels)) - {"le"}
            if name.startswith("vllm:"):
                self.assertLessEqual({"model_name", "engine"}, have, name)
                have -= {"model_name", "engine"}
            self.assertEqual(have, rows[name][1], f"{page.name}:{rows[name][2]}: labels of {name}")


class Formats(unittest.TestCase):
    def test_page_names_what_the_sources_know(self):
        text = page_named("models.md").read_text()
        families = "".join(file.read_text() for file in sorted((ROOT / "src/formats").glob("*famil*.cc")))
        classes = re.findall(r'\.class_name = "(\w+For\w+)"', families)
        self.assertGreaterEqual(len(classes), 4)
        types = re.findall(r'\{\d+, "(\w+)", (DType|\{\})', (ROOT / "src/formats/gguf.cc").read_text())
        self.assertGreater(len(types), 20)
        templates = [one for one in sentences_of(ROOT / "src/template/chat_template.cc")
                     if re.fullmatch(r"chatml|llama\d|mistral|alpaca|vicuna|zephyr", one)]
        self.assertGreaterEqual(len(set(templates)), 7)
        for name in classes + [name for name, known in types if known == "DType"] + templates:
            self.assertIn(f"`{name}`", text)
        rows = table_rows(page_named("models.md"), ["class"])
        self.assertEqual({span for _, cells in rows for span in spans(cells[0])}, set(classes))


class GoldenTable(unittest.TestCase):
    def test_is_what_the_golden_values_prove(self):
        run = subprocess.run([sys.executable, str(ROOT / "tools/golden_table.py")], capture_output=True, text=True, check=True)
        self.assertIn(run.stdout.strip(), page_named("models.md").read_text(), "tools/golden_table.py --write makes it")
        for line in run.stdout.splitlines()[2:]:
            name, files, ggufs, changes, _ = [cell.strip() for cell in line.strip("|").split("|")]
            self.assertNotEqual("-", files, f"no golden values of {name}")
            self.assertNotEqual("-", ggufs, f"no golden values of {name} in GGUF files")
            self.assertNotEqual("-", changes, f"no golden values of adapters of {name}")


class Links(unittest.TestCase):
    def test_links_lead_somewhere(self):
        count = 0
        for page in PAGES:
            for number, target in links(page):
                path, _, anchor = target.partition("#")
                file = (page.parent / path).resolve() if path else page
                self.assertTrue(file.exists(), f"{page.name}:{number}: there is no {target}")
                if anchor:
                    self.assertIn(anchor, anchors(file), f"{page.name}:{number}: no heading for {target}")
                count += 1
        self.assertGreater(count, 10)

    def test_readme_links_to_every_page(self):
        linked = {(ROOT / target.partition("#")[0]).resolve() for _, target in links(ROOT / "README.md")}
        self.assertEqual([page.name for page in PAGES[1:] if page not in linked and page.name != "testing.md"], [])


class ThisTest(unittest.TestCase):
    """It fails where a page says what is not so."""

    def test_shapes(self):
        answer = {"a": 1, "b": {"c": "text", "d": None}, "list": [{"x": 1}, {"x": 2}], "id": "one"}
        same = ['{"a": 1, ...}', '{"b": {"c": "te..."}}', '{"b": {"d": null}, "id": "other"}', '{"list": [{"x": 2}, ...]}', '{"list": [...]}']
        other = ['{"z": ...}', '{"a": "1"}', '{"a": 2}', '{"b": {"e": 1}}', '{"id": 3}', '{"list": [{"y": 1}, ...]}',
                 '{"list": [{"x": 1}]}', '{"b": {"c": "tx..."}}', '[...]']
        for shown in same:
            self.assertEqual(differences(read_shown(shown), answer), [], shown)
        for shown in other:
            self.assertNotEqual(differences(read_shown(shown), answer), [], shown)

    def test_outputs(self):
        came = "memory, of 9 MiB:\n  kv 3 B\nserves 'model'\n"
        self.assertEqual(output_differences("memory, of 2.0 GiB:\n...\nserves 'model'", came), [])
        self.assertNotEqual(output_differences("memory:\nserves", "memory:\nkv\nserves\n"), [])
        self.assertNotEqual(output_differences("nothing of it", "memory\n"), [])
        stream = 'data: {"choices": [{"delta": {"content": "A"}}]}\n\ndata: {"choices": []}\n\ndata: [DONE]\n'
        self.assertEqual(output_differences('data: {"choices": [{"delta": {"content": "A"}}]}\n...\ndata: [DONE]', stream), [])
        self.assertNotEqual(output_differences('data: {"choices": [{"delta": {"text": "A"}}]}', stream), [])

    def test_pages(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            page = folder / "page.md"
            url = "http://127.0.0.1:8080"
            page.write_text(f'```sh\ncurl {url}/health\n```\n```\n{{"status": "ok"}}\n```\n```sh\ncurl {url}/health\n```\n'
                            f'```\n{{"state": "ok"}}\n```\n```sh\ncurl {url}/nowhere\n```\n<!-- status: 404 -->\n```sh\ncurl {url}/health\n```\n')
            self.assertEqual(len(Page(page).run().problems), 3)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    unittest.main(verbosity=1)
