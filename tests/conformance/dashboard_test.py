# SPDX-License-Identifier: Apache-2.0
"""The page for browsers, driven as a person would: what it shows, asks for and keeps. With DASHBOARD_SHOTS=DIR pictures of it are
left there, to look at."""
import json
import os
import pathlib
import shutil
import tempfile
import time
import unittest
from urllib.parse import urlsplit

from browser import CHROMIUM, FIREFOX, Chromium, Firefox
from held_answers import HeldAnswers
from live_server import ROOT, LiveRouter, LiveServer

HOSTILE = "<img src=x onerror=\"window.hit=1\">"
SHOTS = os.environ.get("DASHBOARD_SHOTS")
LIVE = "document.getElementById('dot').dataset.state === 'live'"
# Everything that a keyboard has to reach.
FOCUSABLE = """[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
  .filter((one) => !one.disabled && one.checkVisibility() && (!one.closest('details') || one.closest('details').open || one.matches('summary')))"""


@unittest.skipUnless(CHROMIUM, "chromium is not installed: tools/setup.sh test brings it")
class Dashboard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Chromium()
        cls.addClassCleanup(cls.browser.close)

    def server(self, *flags, **more):
        server = LiveServer(*flags, **more)
        self.addCleanup(self.end, server)
        return server

    def end(self, server):
        if server.process.poll() is None:
            self.assertEqual(server.stop(), 0, "\n".join(server.lines[-40:]))

    def open(self, server, path="/", width=1280, height=900):
        page = self.browser.page()
        self.addCleanup(page.call, "Page.close")
        page.size(width, height)
        page.call("Page.addScriptToEvaluateOnNewDocument",
                  source="window.violations = []; addEventListener('securitypolicyviolation', (event) => violations.push(event.violatedDirective + ' ' + event.blockedURI))")
        page.go(server.url + path)
        return page

    def live(self, server, path="/", **more):
        page = self.open(server, path, **more)
        page.wait(LIVE)
        return page

    def check(self, page, server, excuse=()):
        """It complained of nothing, and asked nobody else."""
        complaints = [one for one in page.complaints() if not any(part in one for part in excuse)]
        self.assertEqual(complaints, [])
        self.assertEqual(page.run("window.violations"), [])
        hosts = {urlsplit(url).netloc for url in page.asked() if not url.startswith(("data:", "about:"))}
        self.assertEqual(hosts, {urlsplit(server.url).netloc})

    def shot(self, page, name):
        if SHOTS:
            pathlib.Path(SHOTS).mkdir(parents=True, exist_ok=True)
            page.shot(f"{SHOTS}/{name}.png")

    # --- what it shows

    def test_monitor_shows_a_server_that_works(self):
        server = self.server("--max-num-seqs", "4")
        page = self.live(server)
        # What is drawn is there, and has a text beside it.
        page.wait("document.querySelectorAll('#charts canvas').length === 5")
        for _ in range(3):
            server.request("POST", "/v1/chat/completions", {"model": "shout", "temperature": 0, "max_tokens": 16, "app_id": "mail",
                                                            "messages": [{"role": "user", "content": "Mara bought 42 red lamps"}]})
        page.wait("document.querySelectorAll('#adapters-table tbody tr').length >= 8")
        page.wait("/first token.*P50 [0-9.]+ m?s/i.test([...document.querySelectorAll('#charts canvas')][2].getAttribute('aria-label'))")
        labels = page.run("[...document.querySelectorAll('#charts canvas')].map((one) => one.getAttribute('aria-label'))")
        self.assertIn("budget", labels[0])
        page.wait("""[...document.querySelectorAll('#charts canvas')].every((canvas) =>
          canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0))""")
        page.wait("document.querySelector('#adapters-table').textContent.includes('host')")
        tiles = page.text("#tiles dd")
        self.assertIn("of 8", tiles)
        page.wait("document.getElementById('apps-table').textContent.includes('mail')")
        page.wait("document.getElementById('kv-table').textContent.includes('shout')")
        self.assertIn("nothing of the weights is read", page.text("#residency-note"))
        self.assertIn("Nobody waits", page.text("#waiting-table"))
        # Sorted by a head, filtered by a word.
        page.click("#adapters-table th button")
        self.assertEqual(page.run("document.querySelector('#adapters-table th').getAttribute('aria-sort')"), "ascending")
        names = page.run("[...document.querySelectorAll('#adapters-table td.name')].map((one) => one.textContent)")
        self.assertEqual(names, sorted(names))
        page.fill("#adapters-filter", "shou")
        self.assertEqual(page.run("document.querySelectorAll('#adapters-table tbody tr').length"), 1)
        # The latest values, as a table.
        page.run("document.querySelector('#charts details').open = true")
        page.wait("document.querySelectorAll('#charts details[open] tbody tr').length >= 2")
        for label in ("2 h", "24 h", "10 min"):
            page.run(f"[...document.querySelectorAll('#ranges button')].find((one) => one.textContent === '{label}').click()")
        self.check(page, server)

    def test_a_streamed_model_shows_its_plan(self):
        model = pathlib.Path(tempfile.mkdtemp()) / "model"  # beside which a packed file will lie
        self.addCleanup(shutil.rmtree, model.parent)
        shutil.copytree(ROOT / "demo/model", model)
        # The least of these budgets with which it starts: what the process itself takes differs from build to build.
        for budget in range(48, 120, 3):
            try:
                server = self.server("--memory-budget", f"{budget}MiB", "-c", "128", "--max-num-seqs", "1", model=model, adapters=None)
                break
            except RuntimeError as error:
                self.assertIn("raise --memory-budget", str(error))
        self.assertGreater(server.request("GET", "/v1/admin/memory")[2]["streamed_bytes_per_pass"], 0)
        page = self.live(server)
        page.wait("document.getElementById('residency-note').textContent.includes('streamed')")
        self.check(page, server)

    def test_a_router_shows_its_replicas(self):
        servers = [self.server("-c", "256") for _ in range(2)]
        router = LiveRouter(servers)
        self.addCleanup(self.end, router)
        router.wait_up(2)
        page = self.live(router)
        page.wait("document.querySelectorAll('#replicas-table tbody tr').length === 2")
        self.assertEqual(page.run("[...document.querySelectorAll('.server-only')].filter((one) => one.checkVisibility()).length"), 0)
        for server in servers:
            self.assertIn(f"127.0.0.1:{server.port}", page.text("#replicas-table"))
        page.wait("document.querySelector('#adapters-count').textContent.startsWith('8 ')")
        page.run("location.hash = '#playground'")
        self.ask(page, ["shout"])
        self.assertIn("MARA BOUGHT 42 RED LAMPS", page.text("#answers pre"))
        self.shot(page, "router-playground")
        page.run("location.hash = '#monitor'")
        self.shot(page, "router")
        self.end(servers[1])
        page.wait("[...document.querySelectorAll('#replicas-table .pill')].some((one) => one.textContent === 'out' || one.textContent === 'not ready')")
        self.check(page, router)

    def test_what_a_server_cannot_is_said_and_its_end_is(self):
        server = self.server()
        page = self.live(server)
        server.process.terminate()
        page.wait("document.getElementById('dot').dataset.state === 'waits'")
        self.assertRegex(page.text("#state"), "again in|shutting down")
        server.process.wait(timeout=60)
        page.wait("/does not answer; again in/.test(document.getElementById('state').textContent)")

    # --- the playground

    def begin(self, page, models, **fields):
        page.wait("document.querySelectorAll('#models input').length > 1")
        page.run(f"""(() => {{ const wanted = {json.dumps(models)};
          for (const row of document.querySelectorAll('#models label'))
            if (row.firstChild.checked !== wanted.includes(row.textContent)) row.firstChild.click(); }})()""")
        for name, value in {"#temperature": "0", "#max-tokens": "32", **fields}.items():
            page.fill(name, value)
        page.click("#ask")

    def wait_for_answers(self, page):
        page.wait("!document.getElementById('ask').disabled")

    def ask(self, page, models, **fields):
        self.begin(page, models, **fields)
        self.wait_for_answers(page)

    def test_playground_streams_answers_side_by_side(self):
        server = self.server()
        held = HeldAnswers(server.url, events=4)
        self.addCleanup(held.close)
        page = self.live(held, "/#playground")
        page.wait("document.querySelectorAll('#models input:checked').length === 2")
        self.begin(page, ["shout", "reverse"])
        # Both have begun and neither has ended: the rest of them has not left the server's side.
        page.wait("[...document.querySelectorAll('.answer pre')].filter((one) => one.textContent.length > 0).length === 2")
        shown = "[...document.querySelectorAll('.answer')].map((one) => [one.querySelector('h2').textContent, one.querySelector('pre').textContent])"
        begun = dict(page.run(shown))
        self.assertTrue(page.run("document.getElementById('ask').disabled"))
        held.release()
        self.wait_for_answers(page)
        answers = dict(page.run(shown))
        self.assertEqual(set(answers), {"shout", "reverse"})
        for model, text in answers.items():
            body = {"model": model, "temperature": 0, "max_tokens": 32, "messages": [{"role": "user", "content": "Mara bought 42 red lamps"}]}
            said = server.request("POST", "/v1/chat/completions", body)[2]["choices"][0]["message"]["content"]
            self.assertEqual(text, said)
            self.assertLess(len(begun[model]), len(text))
            self.assertTrue(text.startswith(begun[model]), (text, begun[model]))
        for figures in page.run("[...document.querySelectorAll('.figures')].map((one) => one.textContent)"):
            self.assertRegex(figures, r"first token [\d.]+ m?s .* [\d.,]+ tokens/s .* \d+ tokens")
        self.shot(page, "playground")
        self.check(page, held)

    def test_playground_takes_a_schema_and_stops(self):
        server = self.server()
        page = self.live(server, "/#playground")
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
        self.ask(page, ["json"], **{"#schema": json.dumps(schema), "#max-tokens": "64"})
        self.assertEqual(list(json.loads(page.text("#answers pre"))), ["n"])
        page.fill("#schema", "{")
        page.click("#ask")
        page.wait("document.getElementById('ask-error').textContent.startsWith('The JSON schema cannot be read')")
        page.fill("#schema", "")
        page.run("document.getElementById('ask').click(); document.getElementById('stop').click()")
        page.wait("document.querySelector('.figures').textContent.includes('stopped')")
        # Names that are not in the list, and what the server says of one that is nobody's.
        page.fill("#models-other", "nobody")
        page.click("#models-add")
        self.ask(page, ["nobody"])
        self.assertIn("nobody", page.text(".answer .error"))
        self.check(page, server, excuse=("404",))

    # --- changing things

    def test_adapters_come_and_go_and_a_name_is_text(self):
        root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, root)
        shutil.copytree(ROOT / "demo/adapters/shout", root / "shout")
        server = self.server("--adapter-dir", str(root), adapters=None)
        page = self.live(server)
        page.fill("#load-name", HOSTILE)
        page.fill("#load-path", str(root / "shout"))
        page.click("#load-form button")
        page.wait("document.getElementById('admin-said').textContent.startsWith('Success')")
        page.wait(f"[...document.querySelectorAll('#adapters-table td.name')].some((one) => one.textContent === {json.dumps(HOSTILE)})")
        row = f"[...document.querySelectorAll('#adapters-table tbody tr')].find((one) => one.cells[0].textContent === {json.dumps(HOSTILE)})"
        page.run(row + ".querySelector('button').click()")
        page.wait("document.getElementById('admin-said').textContent.startsWith('Pinned')")
        page.wait(f"[...{row}.querySelectorAll('button')].some((one) => one.checkVisibility() && one.textContent === 'Unpin')")
        page.run("location.hash = '#playground'")
        self.ask(page, [HOSTILE])
        self.assertIn("MARA BOUGHT", page.text("#answers pre"))
        self.assertEqual(page.text(".answer h2"), HOSTILE)
        page.run("location.hash = '#monitor'")
        page.wait("document.getElementById('kv-table').textContent.includes('onerror')")
        unload = f"[...{row}.querySelectorAll('button')].find((one) => /unload/i.test(one.textContent))"
        page.run(unload + ".click()")
        self.assertEqual(page.run(unload + ".textContent"), "Really unload?")
        self.assertIn(HOSTILE, [one["name"] for one in server.request("GET", "/v1/adapters")[2]["data"]], "the first press only asks")
        page.run(unload + ".click()")
        page.wait("document.getElementById('admin-said').textContent.includes('removed successfully')")
        page.wait(f"!{row}")
        page.fill("#load-name", "x")
        page.fill("#load-path", "/etc")
        page.click("#load-form button")
        page.wait("document.getElementById('admin-said').classList.contains('bad')")
        self.assertIsNone(page.run("window.hit ?? null"))
        self.assertEqual(page.run("document.querySelectorAll('img').length"), 0)
        self.check(page, server, excuse=("403",))

    def test_a_wrong_key_is_said_and_asked_for_again(self):
        server = self.server("--api-key", "user-secret", "--admin-key", "boss-secret")
        page = self.open(server)
        page.wait("document.getElementById('keys-error').textContent.startsWith('An API key is needed') || document.getElementById('keys-error').textContent.startsWith('This route needs the admin key')")
        self.assertEqual(page.run("document.activeElement.id"), "admin-key")
        page.fill("#admin-key", "wrong-secret")
        page.click("#keys-form button")
        page.wait("document.getElementById('keys-error').textContent === 'The admin key is not valid.'")
        self.assertTrue(page.run("document.getElementById('keys-panel').checkVisibility() && document.activeElement.id === 'admin-key'"))
        # The key of /v1 shows nothing of the server, and answers.
        page.fill("#admin-key", "")
        page.fill("#api-key", "user-secret")
        page.click("#keys-form button")
        page.wait("document.getElementById('keys-error').textContent.includes('admin key')")
        page.run("location.hash = '#playground'")
        self.ask(page, ["shout"])
        self.assertIn("MARA BOUGHT", page.text("#answers pre"))
        self.shot(page, "keys")
        page.fill("#admin-key", "boss-secret")
        page.click("#keys-form button")
        page.wait(LIVE)
        self.assertFalse(page.run("document.getElementById('keys-panel').checkVisibility()"))
        # Nowhere but in memory and headers.
        kept = page.run("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, document.documentElement.outerHTML, "
                        "[...document.querySelectorAll('input')].map((one) => one.value)])")
        self.assertNotIn("secret", kept + json.dumps(page.asked()))
        page.go(server.url + "/?again")
        page.wait("document.getElementById('dot').dataset.state === 'refused'")
        self.check(page, server, excuse=("401", "403"))

    # --- how it can be used

    def test_themes(self):
        server = self.server()
        page = self.live(server)
        colour = "getComputedStyle(document.body).backgroundColor"
        page.media(prefers_color_scheme="light")
        light = page.run(colour)
        page.media(prefers_color_scheme="dark")
        dark = page.run(colour)
        self.assertNotEqual(light, dark)
        for wanted, named in ((light, "light"), (dark, "dark")):
            page.click("#theme-button")
            self.assertEqual(page.text("#theme-button"), "Theme: " + named)
            self.assertEqual(page.run(colour), wanted)
            time.sleep(1.2 if SHOTS else 0)
            self.shot(page, named)
        page.go(server.url + "/?again")
        self.assertEqual(page.text("#theme-button"), "Theme: dark", "the choice is kept")
        self.assertEqual(page.run("Object.keys(localStorage)"), ["theme"])
        page.media(prefers_reduced_motion="reduce")
        self.assertEqual(page.run("document.getAnimations().length"), 0)
        self.check(page, server)

    def test_everything_is_reached_by_the_keyboard(self):
        server = self.server()
        for path in ("/", "/#playground"):
            page = self.live(server, path)
            page.wait("document.querySelectorAll('#adapters-table tbody tr').length >= 8 || location.hash === '#playground'")
            page.wait("document.querySelectorAll('#models input').length > 1 || location.hash !== '#playground'")
            page.run("document.getElementById('keys-button').click(); document.activeElement.blur()")
            page.run("window.reached = new Set(); window.bare = []; document.body.focus()")
            count = page.run(FOCUSABLE + ".length")
            self.assertGreater(count, 15)
            for _ in range(count + 5):
                page.press("Tab", 9)
                page.run("""reached.add(document.activeElement);
                  if (document.activeElement !== document.body && getComputedStyle(document.activeElement).outlineStyle === 'none')
                    bare.push(document.activeElement.outerHTML.slice(0, 100))""")
            missed = page.run(FOCUSABLE + ".filter((one) => !reached.has(one)).map((one) => one.outerHTML.slice(0, 120))")
            self.assertEqual(missed, [])
            self.assertEqual(page.run("bare"), [], "the focus is seen")
            unnamed = page.run("""[...document.querySelectorAll('input, select, textarea, button')].filter((one) =>
              !(one.labels && one.labels.length) && !one.getAttribute('aria-label') && !one.textContent.trim()).map((one) => one.outerHTML.slice(0, 120))""")
            self.assertEqual(unnamed, [], "everything has a name")
            self.check(page, server)

    def test_it_fits_a_telephone(self):
        server = self.server()
        for path in ("/", "/#playground"):
            page = self.live(server, path, width=360, height=740)
            page.wait("document.querySelectorAll('#tiles .tile').length >= 6 || location.hash === '#playground'")
            page.click("#keys-button")
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 360)
            self.shot(page, "telephone" + path.strip("/#"))

    def test_a_day_of_events_leaves_the_page_as_large_as_it_was(self):
        server = self.server()
        page = self.live(server)
        page.run("""(async () => {
          window.app = await import(new URL('dashboard/app.js', document.baseURI));
          app.feed.stop();
          const text = await (await fetch('v1/admin/events?count=1')).text();
          const base = JSON.parse(text.slice(text.indexOf('{')));
          const sequence = (i) => ({id: 'r' + i, choice: 0, adapter: 'a' + i % 5000, input_tokens: i, output_tokens: 0, waited_s: 1, cause: 'tokens'});
          window.at = 0;
          window.hours = (count) => {
            for (const end = at + count * 3600; at < end; ++at) {
              const event = structuredClone(base);
              event.unix_ms += at * 1000;
              event.memory.kv_bytes = 1e6 * (1 + at % 97);
              event.ttft = {count: 5, window_s: 10, p50_s: 0.1 + at % 7 / 100, p90_s: 0.2, p99_s: 0.3};
              event.rates.generated_tokens_per_s = at % 1000;
              const row = base.adapters.first[0];
              event.adapters.total = 100000;
              event.adapters.first = Array.from({length: 200}, (_, i) => ({...row, name: 'a' + (at * 7 + i * 13) % 100000, uses: at}));
              event.queues.queues[0].first_waiting = Array.from({length: 25}, (_, i) => sequence(at * 25 + i));
              event.queues.queues[0].waiting = 4000;
              app.takeEvent(event);
              if (at % 600 === 0) app.render();
            }
          };
        })()""")

        def measure():
            page.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")
            for _ in range(3):
                page.call("HeapProfiler.collectGarbage")
            heap = page.call("Runtime.getHeapUsage")["usedSize"]
            return heap, page.call("Memory.getDOMCounters")["nodes"], page.run("document.querySelectorAll('*').length")

        page.call("HeapProfiler.enable")
        page.run("hours(1)")
        first = measure()
        for _ in range(24):
            page.run("hours(1)")
        last = measure()
        print(f"heap, nodes, elements behind an hour: {first}, behind 25: {last}")
        self.assertLess(last[0], first[0] + 1_000_000)
        self.assertLess(last[1], first[1] + 2000)
        self.assertLess(last[2], 12_000)
        self.assertEqual(page.run("document.querySelectorAll('#adapters-table tbody tr').length"), 200)
        self.assertEqual(page.text("#adapters-table .more-rows"), "and 99,800 more")
        self.assertEqual(page.run("document.querySelectorAll('#waiting-table tbody tr').length"), 25)
        page.run("[...document.querySelectorAll('#ranges button')].at(-1).click()")
        self.shot(page, "day")
        self.check(page, server)


@unittest.skipUnless(FIREFOX, "firefox-esr is not installed; what Chromium shows is tested all the same")
class InFirefox(unittest.TestCase):
    def test_the_page_loads_and_answers(self):
        server = LiveServer()
        browser = Firefox()
        try:
            browser.go(server.url + "/")
            browser.wait("document.getElementById('dot').dataset.state === 'live'")
            browser.wait("document.querySelectorAll('#charts canvas').length === 5")
            browser.run("location.hash = '#playground'")
            browser.wait("document.querySelectorAll('#models input:checked').length === 2")
            browser.run("document.getElementById('ask').click()")
            browser.wait("document.querySelectorAll('.answer').length === 2 && !document.getElementById('ask').disabled")
            self.assertEqual(browser.run("document.querySelector('.answer .error').textContent"), "")
            self.assertEqual(browser.complaints(), [])
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    unittest.main()
