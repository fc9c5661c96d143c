# SPDX-License-Identifier: Apache-2.0
"""A server as a child of this process, that never outlives it."""
import atexit
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.request
import weakref
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Union

Value = Union[None, bool, int, float, str, "os.PathLike[str]", Sequence[Union[int, float, str, "os.PathLike[str]"]]]
_LISTENS = re.compile(r"^Loralei \S+ serves .* at (https?)://(\S+):(\d+)$")
_KEPT_LINES = 200
# The server waits at the other end of a pipe for its parent's end: this stands between both, so that no thread of the parent
# matters (what the kernel offers for it, PR_SET_PDEATHSIG, ends a child when the *thread* that made it ends).
_GUARD = """
import ctypes, os, signal, subprocess, sys, threading
NUMBERS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
prctl = ctypes.CDLL(None).prctl
# Signals of this moment wait until there is somebody to be told.
signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
def begin():
    prctl(1, signal.SIGKILL, 0, 0, 0)  # with this process, whose first thread lives as long as it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=begin)
def forward(number, _):
    child.send_signal(number)
for number in NUMBERS:
    signal.signal(number, forward)
signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
def watch():
    while os.read(0, 1):
        pass
    child.terminate()
threading.Thread(target=watch, daemon=True).start()
while True:
    try:
        code = child.wait()
        break
    except InterruptedError:
        pass
os._exit(code if code >= 0 else 128 - code)
"""
_alive: "weakref.WeakSet[Server]" = weakref.WeakSet()


class LoraleiError(RuntimeError):
    """What a server said when it would not start or answer. `log` has its last lines."""

    def __init__(self, message: str, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log: List[str] = list(log)


def binary() -> str:
    """The path of the program: LORALEI_BINARY, or the one beside this Python, or the one on PATH."""
    named = os.environ.get("LORALEI_BINARY")
    if named:
        if not os.access(named, os.X_OK):
            raise LoraleiError(f"LORALEI_BINARY names {named}, which is no program that can be run.")
        return named
    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    try:
        places.append(sysconfig.get_path("scripts", f"{os.name}_user"))
    except KeyError:
        pass
    found = shutil.which("loralei", path=os.pathsep.join(place for place in places if place)) or shutil.which("loralei")
    if found is None:
        raise LoraleiError("There is no program `loralei`: install this package with pip, or name the program in LORALEI_BINARY.")
    return found


def _words(options: Mapping[str, Value]) -> List[str]:
    """max_num_seqs=8 is --max-num-seqs 8, True is the option alone, a list repeats it; None and False leave it out."""
    words: List[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            # One word, so that a value that begins with a dash is a value.
            words.append(f"{option}={os.fspath(one) if isinstance(one, os.PathLike) else one}")
    return words


class Server:
    """A running server. Thread-safe; ends with `stop()`, at the end of a `with` block, and at the latest with this process.

    model     a folder, a .gguf file or a name on a hub
    adapters  {name: path or name on a hub}
    port      0 chooses a free one
    options   every option of `loralei serve`, with underscores for dashes
    """

    def __init__(self, model: "Union[str, os.PathLike[str]]", adapters: "Optional[Mapping[str, Union[str, os.PathLike[str]]]]" = None, *,
                 host: str = "127.0.0.1", port: int = 0, start_timeout: float = 600.0, env: Optional[Mapping[str, str]] = None,
                 **options: Value) -> None:
        self.model = os.fspath(model)
        self._lines: Deque[str] = collections.deque(maxlen=_KEPT_LINES)
        key = options.get("admin_key") or options.get("api_key")
        self._key = key[0] if isinstance(key, (list, tuple)) else key
        self._listens = threading.Event()
        self._url: Optional[str] = None
        self._stopping = threading.Lock()
        self._owner = os.getpid()
        named = [f"--adapter={name}={os.fspath(path)}" for name, path in (adapters or {}).items()]
        command = [binary(), "serve", self.model, *named, f"--host={host}", f"--port={port}", *_words(options)]
        # A group of its own: a Ctrl-C in a notebook is this process's affair.
        self._process = subprocess.Popen([sys.executable, "-S", "-E", "-c", _GUARD, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, env=None if env is None else {**os.environ, **env}, start_new_session=True)
        self._reader = threading.Thread(target=self._read, name="loralei-log", daemon=True)
        self._reader.start()
        _alive.add(self)
        try:
            self._wait_ready(time.monotonic() + start_timeout, start_timeout)
        except BaseException:
            self.stop(timeout=10)
            raise

    # --- what it is

    @property
    def url(self) -> str:
        """http://HOST:PORT"""
        assert self._url is not None
        return self._url

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> List[str]:
        """The last lines that it said."""
        return list(self._lines)

    def __repr__(self) -> str:
        return f"<loralei.Server {self.model!r} at {self._url}{'' if self.running else ', ended'}>"

    def _repr_html_(self) -> str:
        return f'<code>loralei</code> at <a href="{self._url}">{self._url}</a>' if self.running else "<code>loralei</code>, ended"

    # --- what it does

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON, or its text. What is refused raises LoraleiError with the server's sentence."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return _parsed(answer.read(), answer.headers.get("Content-Type", ""))
        except urllib.error.HTTPError as error:
            said = _parsed(error.read(), error.headers.get("Content-Type", ""))
            message = said.get("error", {}).get("message") if isinstance(said, dict) else None
            raise LoraleiError(message or f"{method} {path}: {error.code} {error.reason}", self.log) from None
        except urllib.error.URLError as error:
            raise LoraleiError(f"{method} {path}: {error.reason}" + ("" if self.running else "; the server has ended: " + self._last()), self.log) from None

    def ask(self, model: str, prompt: str, **fields: Any) -> str:
        """The answer of an adapter (or the base) to one message; fields as of /v1/chat/completions."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], **fields}
        return self.request("POST", "/v1/chat/completions", body)["choices"][0]["message"]["content"]

    def models(self) -> List[str]:
        """The names that can be asked: the base's and the adapters'."""
        return [one["id"] for one in self.request("GET", "/v1/models")["data"]]

    def load_adapter(self, name: str, path: "Union[str, os.PathLike[str]]", replace: bool = False) -> None:
        """Registers an adapter at run time. Paths are the server's, which `adapter_dir` may confine."""
        self.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": os.path.abspath(path), "load_inplace": replace})

    def unload_adapter(self, name: str) -> None:
        self.request("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def metrics(self) -> Dict[str, float]:
        """Every series by its name with labels, as /metrics says it."""
        found: Dict[str, float] = {}
        for line in self.request("GET", "/metrics").splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def stop(self, timeout: float = 60.0) -> Optional[int]:
        """Lets running answers end, for so long, and gives the exit status."""
        with self._stopping:
            process = self._process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout)
                except subprocess.TimeoutExpired:
                    self._kill()
            self._reader.join(10)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            _alive.discard(self)
            return process.returncode

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- within

    def _kill(self) -> None:
        # The guard and the server are one group.
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace").rstrip()
            self._lines.append(text)
            match = _LISTENS.search(text) if self._url is None else None
            if match:
                host = "127.0.0.1" if match.group(2) in ("0.0.0.0", "[::]") else match.group(2)
                self._url = f"{match.group(1)}://{host}:{match.group(3)}"
                self._listens.set()
        self._listens.set()

    def _last(self) -> str:
        return next((line for line in reversed(self._lines) if line), "it said nothing")

    def _wait_ready(self, deadline: float, patience: float) -> None:
        while not self._listens.wait(0.2):
            if time.monotonic() > deadline:
                raise LoraleiError(f"The server does not listen after {patience:g} s; the last that it said: {self._last()}", self.log)
        while self._url is not None and self.running:
            try:
                with urllib.request.urlopen(self._url + "/ready", timeout=10):
                    return
            except urllib.error.HTTPError:
                pass  # not yet
            except OSError as error:
                if self._url.startswith("https") and "CERTIFICATE" in str(error):
                    return  # it answers; whom to trust is the client's affair
            if time.monotonic() > deadline:
                raise LoraleiError(f"The server is not ready after {patience:g} s; the last that it said: {self._last()}", self.log)
            time.sleep(0.02)
        self._process.wait()
        self._reader.join(10)
        raise LoraleiError(self._last(), self.log)


def _parsed(data: bytes, kind: str) -> Any:
    text = data.decode("utf-8", "replace")
    return json.loads(text) if kind.startswith("application/json") and text else text


@atexit.register
def _stop_all() -> None:
    for server in list(_alive):
        if server._owner == os.getpid():  # a fork of this process does not own it
            server.stop(timeout=10)
