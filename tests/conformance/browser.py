# SPDX-License-Identifier: Apache-2.0
"""Browsers for tests, without a window: Chromium by its DevTools protocol, Firefox by WebDriver BiDi."""
import base64
import collections
import contextlib
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import tempfile
import threading
import time

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
START_SECONDS = 60
WAIT_SECONDS = 60


class Browser:
    """A process that says where it listens, and a connection that answers commands by their id."""

    def launch(self, command, pattern):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="loralei-browser-"))
        env = {**os.environ, "HOME": str(self.folder)}
        self.process = subprocess.Popen([part.format(self.folder) for part in command], env=env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.lines = collections.deque(maxlen=200)
        found = queue.Queue()

        def read():
            for line in self.process.stdout:
                self.lines.append(line.rstrip())
                match = re.search(pattern, line)
                if match:
                    found.put(match.group(1))
            found.put(None)

        threading.Thread(target=read, daemon=True).start()
        address = found.get(timeout=START_SECONDS)
        if address is None:
            raise RuntimeError("the browser did not start:\n" + "\n".join(self.lines))
        return address

    def open_socket(self, url):
        self.open = contextlib.ExitStack()
        self.socket = self.open.enter_context(connect(url, max_size=None, ping_interval=None))
        self.last = 0
        self.answers = {}
        self.events = collections.deque(maxlen=100_000)

    def send(self, method, params=None, **more):
        self.last += 1
        mine = self.last
        self.socket.send(json.dumps({"id": mine, "method": method, "params": params or {}, **more}))
        deadline = time.monotonic() + WAIT_SECONDS
        while mine not in self.answers:
            self.receive(deadline)
        return self.answers.pop(mine)

    def receive(self, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the browser does not answer:\n" + "\n".join(list(self.lines)[-20:]))
        message = json.loads(self.socket.recv(timeout=left))
        if message.get("id") is not None:
            self.answers[message["id"]] = message
        elif "method" in message:
            self.events.append(message)

    def close(self):
        self.open.close()
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Chromium(Browser):
    def __init__(self):
        address = self.launch(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
             "--remote-debugging-port=0", "--user-data-dir={}", "about:blank"], r"DevTools listening on (ws://\S+)")
        self.open_socket(address)

    def page(self):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        return Page(self, session)

    def call(self, method, params=None, session=None):
        answer = self.send(method, params, **({"sessionId": session} if session else {}))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]


class Page:
    """A tab, and what it complained of and asked for."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        return self.browser.call(method, params, self.session)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href.startsWith(" + json.dumps(url) + ")")

    def run(self, script):
        """The value of an expression, awaited where it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(f"{script[:200]}: {details.get('exception', {}).get('description') or details['text']}")
        return answer["result"].get("value")

    def wait(self, script, seconds=WAIT_SECONDS):
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = self.run(script)
            except RuntimeError as error:  # between two documents
                value, problem = None, error
            else:
                problem = value
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"did not come: {script} (now: {problem}); {self.complaints()}")
            time.sleep(0.05)

    def text(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent).join('\\n')")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector, value):
        self.run(f"""(() => {{ const node = document.querySelector({json.dumps(selector)});
          node.value = {json.dumps(value)}; node.dispatchEvent(new Event('input', {{bubbles: true}})); }})()""")

    def press(self, key, code, **more):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def media(self, **features):
        self.call("Emulation.setEmulatedMedia", features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def shot(self, path):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                          clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        pathlib.Path(path).write_bytes(base64.b64decode(image["data"]))

    def mine(self, *methods):
        return [event["params"] for event in self.browser.events if event.get("sessionId") == self.session and event["method"] in methods]

    def complaints(self):
        """Errors in the console: exceptions, what scripts call errors, and what the browser refused."""
        found = [str(one["exceptionDetails"].get("exception", {}).get("description", one["exceptionDetails"]["text"]))
                 for one in self.mine("Runtime.exceptionThrown")]
        found += [" ".join(str(part.get("value", part.get("description"))) for part in one["args"])
                  for one in self.mine("Runtime.consoleAPICalled") if one["type"] in ("error", "warning", "assert")]
        found += [one["entry"]["text"] + " " + one["entry"].get("url", "") for one in self.mine("Log.entryAdded")
                  if one["entry"]["level"] in ("error", "warning")]
        return found

    def asked(self):
        """Addresses that anything of the page was fetched from."""
        return [one["request"]["url"] for one in self.mine("Network.requestWillBeSent")]


class Firefox(Browser):
    def __init__(self):
        address = self.launch([FIREFOX, "--headless", "--no-remote", "--profile", "{}", "--remote-debugging-port=0", "about:blank"],
                              r"WebDriver BiDi listening on (ws://\S+)")
        self.open_socket(address + "/session")
        self.call("session.new", {"capabilities": {}})
        self.call("session.subscribe", {"events": ["log.entryAdded"]})
        self.context = self.call("browsingContext.getTree", {})["contexts"][0]["context"]

    def call(self, method, params):
        answer = self.send(method, params)
        if answer.get("type") == "error":
            raise RuntimeError(f"{method}: {answer.get('message')}")
        return answer["result"]

    def go(self, url):
        self.call("browsingContext.navigate", {"context": self.context, "url": url, "wait": "complete"})

    def run(self, script):
        answer = self.call("script.evaluate", {"expression": script, "target": {"context": self.context}, "awaitPromise": True})
        if answer["type"] == "exception":
            raise RuntimeError(f"{script[:200]}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def wait(self, script, seconds=WAIT_SECONDS):
        deadline = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > deadline:
                raise AssertionError(f"did not come: {script}; {self.complaints()}")
            time.sleep(0.1)

    def complaints(self):
        return [event["params"]["text"] for event in self.events
                if event["method"] == "log.entryAdded" and event["params"]["level"] in ("error", "warn")]
