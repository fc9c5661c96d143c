# SPDX-License-Identifier: Apache-2.0
"""A running `loralei serve` for tests: started on a free port, stopped at the end, its log shown when something failed."""
import json
import os
import pathlib
import queue
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("SERVER_BINARY", ROOT / "build" / "loralei"))
START_SECONDS = 120


class LiveServer:
    LAUNCH = [str(BINARY)]
    ENVIRONMENT = None  # the test's own
    CONTEXT = None  # of ssl, for servers that speak https

    def __init__(self, *flags, model="demo/model", adapters="demo/adapters", before=None, port=0):
        command = ["serve", *([str(ROOT / model)] if model else []), "--port", str(port)]  # None: a flag names it
        if adapters:
            command += ["--adapter-dir", str(ROOT / adapters)]
        self.start(command + list(flags), before)
        self.wait_ready()

    def start(self, command, before=None):
        """Until it says where it listens."""
        self.process = subprocess.Popen([*self.LAUNCH, *command], env=self.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        preexec_fn=before)
        self.lines = []
        found = queue.Queue()

        def read():
            with self.process.stdout as output:
                for line in output:
                    self.lines.append(line.rstrip())
                    match = re.search(r"(https?)://127\.0\.0\.1:(\d+)", line)
                    if match:
                        found.put((match.group(1), int(match.group(2))))
            found.put(None)

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        where = found.get(timeout=START_SECONDS)
        if where is None:
            self.process.wait(timeout=START_SECONDS)
            raise RuntimeError("the server did not start:\n" + "\n".join(self.lines))
        scheme, self.port = where
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    def wait_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while self.request("GET", "/ready")[0] != 200:
            if time.monotonic() > deadline:
                raise RuntimeError("the server did not become ready:\n" + "\n".join(self.lines))
            time.sleep(0.05)

    def request(self, method, path, body=None, headers=None, raw=False):
        """(status, headers, parsed JSON or text, or the bytes where `raw`)."""
        data = None
        all_headers = dict(headers or {})
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            all_headers.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=all_headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.CONTEXT) as answer:
                return answer.status, answer.headers, answer.read() if raw else parse(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.headers, parse(error.read())
        except urllib.error.URLError as error:
            return 0, {}, str(error)

    def metric(self, name):
        """Sum of all series of a metric, or one series: name{label="value"}. One that is not there is an error."""
        lines = [line for line in self.request("GET", "/metrics")[2].splitlines() if re.match(re.escape(name) + "[ {]", line)]
        if not lines:
            raise AssertionError(f"/metrics shows no {name}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def wait_metric(self, name, value, seconds=20):
        deadline = time.monotonic() + seconds
        while self.metric(name) != value:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} is {self.metric(name)}, not {value}")
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.reader.join(timeout=5)
        return code


class LiveRouter(LiveServer):
    """A running `loralei route` in front of such servers."""

    def __init__(self, replicas, *flags):
        named = [word for replica in replicas for word in ("--replica", replica.url)]
        self.start(["route", "--port", "0", *named, *flags])

    def replicas(self, headers=None):
        return self.request("GET", "/v1/replicas", headers=headers)[2]["data"]

    def wait_up(self, count, seconds=60, headers=None):
        """Seconds until so many replicas are up."""
        begin = time.monotonic()
        while sum(row["state"] in ("up", "returning") for row in self.replicas(headers)) != count:
            if time.monotonic() > begin + seconds:
                raise AssertionError(f"not {count} replicas are up: {self.replicas(headers)}")
            time.sleep(0.02)
        return time.monotonic() - begin


def parse(data):
    text = data.decode("utf-8")
    try:
        return json.loads(text)
    except ValueError:
        return text
