# SPDX-License-Identifier: Apache-2.0
"""Models and adapters by their names on a hub: fetched over TLS from one that redirects, cuts, lies and refuses; found in Hugging Face's
cache, and by its own library there."""
import json
import os
import pathlib
import pty
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from live_hub import COMMIT, LARGE, Authority, Hub, Server, git_digest, sha256
from live_server import BINARY, ROOT, LiveServer

LIBRARY = ROOT / "build/clients/of/huggingface-hub"
PIECE = 64 << 20  # of the program
SEED = int(os.environ.get("HUB_SEED", "20261201"))
PATIENCE = 120


def folder_files(folder):
    return {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir()) if path.is_file()}


class HubTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        cls.authority = Authority(cls.shared)
        cls.model = folder_files(ROOT / "demo/model")
        cls.adapter = folder_files(ROOT / "demo/adapters/shout")
        cls.large = random.Random(SEED).randbytes(2 * PIECE + (PIECE >> 1))

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.hub = Hub(self.authority)
        self.addCleanup(self.hub.stop)
        self.hub.repositories = {
            "me/model": {**self.model, "README.md": b"#", "modeling.py": b"import os", "pytorch_model.bin": b"pickle"},
            "me/shout": {**self.adapter, "optimizer.pt": b"pickle"},
            "me/large": {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": self.large},
        }
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "LORALEI_")) and "proxy" not in name.lower()}
        self.environment |= {"HF_HOME": str(self.folder / "home"), "HF_ENDPOINT": self.hub.url, "SSL_CERT_FILE": str(self.authority.file)}
        self.cache = self.folder / "home/hub"

    def run_program(self, *words, **more):
        return subprocess.run([BINARY, *words], env={**self.environment, **more}, capture_output=True, text=True, timeout=PATIENCE)

    def pull(self, *words, **more):
        done = self.run_program("pull", *words, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def refused(self, *words, **more):
        """The sentence, without the line end."""
        done = self.run_program("pull", *words, **more)
        self.assertIn(done.returncode, (1, 2), done.stdout + done.stderr)
        return done.stderr.strip().splitlines()[-1]

    def snapshot(self, name):
        return self.cache / ("models--" + name.replace("/", "--")) / "snapshots" / self.hub.commit

    def blobs(self, name):
        return sorted(path.name for path in (self.snapshot(name).parents[1] / "blobs").iterdir())

    def expect_whole(self, name):
        for path, data in self.hub.repositories[name].items():
            if path.endswith((".json", ".safetensors")):
                self.assertEqual((self.snapshot(name) / path).read_bytes(), data, path)
        self.assertFalse([one for one in self.blobs(name) if "." in one], "nothing is left beside blobs")

    # --- what is fetched, and where it lies

    def test_pull_lays_files_out_as_the_library_does(self):
        said = self.pull("me/model")
        self.assertIn("5 of 5 files", said)
        self.assertEqual(said.strip().splitlines()[-1], str(self.snapshot("me/model")))
        self.expect_whole("me/model")
        self.assertEqual(sorted(path.name for path in self.snapshot("me/model").iterdir()), sorted(self.model))
        self.assertEqual((self.snapshot("me/model").parents[1] / "refs/main").read_text(), COMMIT)
        for path, data in self.model.items():
            digest = sha256(data) if len(data) >= LARGE else git_digest(data)
            self.assertEqual(os.readlink(self.snapshot("me/model") / path), f"../../blobs/{digest}")
        self.assertIn("is up to date", self.pull("me/model"))
        rows = json.loads(self.run_program("list", "--json").stdout)
        self.assertEqual([(row["name"], row["kind"], row["revisions"], row["whole"], row["bytes"]) for row in rows],
                         [("me/model", "model", ["main"], True, sum(map(len, self.model.values())))])

    def library(self, script, **more):
        done = subprocess.run([ROOT / "build/clients/bin/python3", "-c", script], capture_output=True, text=True, timeout=PATIENCE,
                              env={**self.environment, "PYTHONPATH": str(LIBRARY), "REQUESTS_CA_BUNDLE": str(self.authority.file), **more})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.strip()

    @unittest.skipUnless(LIBRARY.exists(), "tools/test_clients.sh installs huggingface_hub")
    def test_the_library_finds_what_was_fetched(self):
        self.pull("me/model", "me/shout")
        found = self.library("from huggingface_hub import snapshot_download, scan_cache_dir\n"
                             "print(snapshot_download('me/model', local_files_only=True))\n"
                             "info = scan_cache_dir()\n"
                             "print(sorted((one.repo_id, one.nb_files, one.size_on_disk) for one in info.repos), info.warnings)", HF_HUB_OFFLINE="1")
        sizes = {name: (len(files), sum(map(len, files.values()))) for name, files in (("me/model", self.model), ("me/shout", self.adapter))}
        self.assertEqual(found.splitlines(), [str(self.snapshot("me/model")), f"{sorted((name, *size) for name, size in sizes.items())} []"])

    @unittest.skipUnless(LIBRARY.exists(), "tools/test_clients.sh installs huggingface_hub")
    def test_what_the_library_has_fetched_is_found(self):
        self.library("from huggingface_hub import hf_hub_download\n"
                     + "".join(f"hf_hub_download('me/model', {path!r})\n" for path in self.model), HF_HUB_DISABLE_XET="1")
        asked = len(self.hub.far.asked)
        self.assertIn("is up to date", self.pull("me/model"))
        self.assertEqual(len(self.hub.far.asked), asked)
        self.hub.stop()
        self.assertIn("architecture", self.run_program("inspect", "me/model").stdout)

    def test_adapters_revisions_and_files(self):
        self.assertIn("2 of 2 files", self.pull("me/shout@v1"))
        self.assertEqual((self.snapshot("me/shout").parents[1] / "refs/v1").read_text(), COMMIT)
        self.assertIn("is up to date", self.pull("me/shout", "--revision", COMMIT))
        row = json.loads(self.run_program("list", "--json").stdout)[0]
        self.assertEqual((row["name"], row["kind"], row["revisions"]), ("me/shout", "adapter", ["v1"]))
        self.assertIn("me/shout", self.run_program("list").stdout)
        self.hub.repositories["me/gguf"] = {"n-Q4_K_M.gguf": b"GGUF" * 20000, "n-Q8_0.gguf": b"GGUF" * 30000}
        self.assertIn("holds several GGUF files that may be meant; write me/gguf:FORMAT", self.refused("me/gguf"))
        self.assertTrue(self.pull("me/gguf:q8_0").strip().endswith("/n-Q8_0.gguf"))
        self.assertEqual([path.name for path in self.snapshot("me/gguf").iterdir()], ["n-Q8_0.gguf"])
        self.assertIn("is no name on a hub", self.refused("just-a-word"))
        self.assertIn(str(self.folder / "other/models--me--shout"), self.pull("me/shout", "--download-dir", str(self.folder / "other")))
        self.assertEqual(len(json.loads(self.run_program("list", "--json", "--download-dir", str(self.folder / "other")).stdout)), 1)

    # --- ranges, cuts, kills

    def test_large_files_come_in_pieces(self):
        self.pull("me/large")
        self.expect_whole("me/large")
        ranges = sorted((headers["Range"] for _, _, headers in self.hub.far.asked), key=lambda one: int(one[6:].split("-")[0]))
        self.assertEqual(ranges, [f"bytes={begin}-{min(begin + PIECE, len(self.large)) - 1}" for begin in range(0, len(self.large), PIECE)])

    def test_connections_that_are_cut_at_random_bytes(self):
        print(f"HUB_SEED={SEED}", flush=True)
        chance, cuts = random.Random(SEED), []

        def cut(handler, data, begin, end):
            if chance.random() < 0.3:
                return False
            self.hub.begin_part(handler, data, begin, end)
            cuts.append(chance.randrange(1, end - begin + 1))
            self.hub.send(handler, data[begin:begin + cuts[-1]])
            handler.cut()
            return True

        self.hub.far_fault = cut
        self.pull("me/model")
        self.expect_whole("me/model")
        self.pull("me/large")
        self.expect_whole("me/large")
        self.assertTrue(cuts)

    def test_a_pull_that_is_killed_is_gone_on_with(self):
        """The servers stop sending when half of it is there; the next run does not ask for that half."""
        stopped = threading.Event()

        def stall(handler, data, begin, end):
            self.hub.begin_part(handler, data, begin, end)
            half = begin + (end - begin) // 2
            self.hub.send(handler, data[begin:half])
            stopped.wait(PATIENCE)
            handler.cut()
            return True

        self.hub.far_fault = stall
        process = subprocess.Popen([BINARY, "pull", "me/large"], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while self.hub.sent < len(self.large) // 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        part = self.snapshot("me/large").parents[1] / "blobs" / (sha256(self.large) + ".loralei-map")
        while sum(part.read_bytes()[64:]) == 0 and time.monotonic() < deadline:  # some of it is on disk
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        stopped.set()
        self.assertFalse((self.snapshot("me/large") / "model.safetensors").exists())
        self.hub.far_fault, before = None, self.hub.sent
        self.assertIn("are here already", self.pull("me/large"))
        self.expect_whole("me/large")
        self.assertLess(self.hub.sent - before, len(self.large) - (8 << 20) + 1)

    def test_two_pulls_at_once_fetch_once(self):
        processes = [subprocess.Popen([BINARY, "pull", "me/large"], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                     for _ in range(2)]
        for process in processes:
            self.assertEqual(process.wait(PATIENCE), 0, process.stdout.read())
            process.stdout.close()
        self.expect_whole("me/large")
        self.assertEqual(self.hub.sent, len(self.large))

    # --- a hub that lies

    def test_bytes_that_are_not_those(self):
        def other(handler, data, begin, end):
            if data != self.model["model.safetensors"]:
                return False
            self.hub.begin_part(handler, data, begin, end)
            self.hub.send(handler, bytes([data[begin] ^ 1]) + data[begin + 1:end])
            return True

        self.hub.far_fault = other
        self.assertIn("what came is not what the hub has announced", self.refused("me/model"))
        self.assertFalse((self.snapshot("me/model") / "model.safetensors").exists())
        self.assertFalse([one for one in self.blobs("me/model") if one.startswith(sha256(self.model["model.safetensors"]))])
        self.hub.far_fault = None
        self.pull("me/model")
        self.expect_whole("me/model")

    def test_a_file_without_end(self):
        def endless(handler, data, begin, end):
            if data != self.model["model.safetensors"]:
                return False
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            try:
                while True:
                    self.hub.send(handler, b"10000\r\n" + bytes(0x10000) + b"\r\n")
            except OSError:
                return True

        self.hub.far_fault = endless
        size = len(self.model["model.safetensors"])
        self.assertIn(f"sends more than the {size} bytes that it has", self.refused("me/model"))
        blobs = self.snapshot("me/model").parents[1] / "blobs"
        self.assertLessEqual(max(path.stat().st_size for path in blobs.iterdir()), size)

    def test_a_list_without_end(self):
        def endless(handler):
            if not handler.path.startswith("/api/"):
                return False
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            try:
                while True:
                    handler.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
            except OSError:
                return True

        self.hub.fault = endless
        self.assertIn("is longer than 32", self.refused("me/model"))

    def test_names_that_lead_elsewhere(self):
        outside = self.folder / "outside.json"
        for name in ("../../../../outside.json", str(outside), "..\\outside.json", "a/../../outside.json", "x\ny.json", "config.json\0"):
            self.hub.repositories["me/bad"] = {**self.model, name: b"{}"}
            self.assertIn("nothing was fetched", self.refused("me/bad"), name)
        self.hub.repositories["me/bad"] = {str(index): b"" for index in range(10_001)}
        self.assertIn("lists 10001 files", self.refused("me/bad"))
        self.assertFalse(outside.exists())
        self.assertFalse(self.snapshot("me/bad").exists())

    def redirect(self, to):
        def answer(handler):
            if "/resolve/" not in handler.path or not handler.path.endswith("config.json"):
                return False
            handler.reply(302, {"Location": to(handler)})
            return True

        self.hub.fault = answer

    def test_redirects_that_are_not_followed(self):
        plain = Server(lambda handler: handler.reply(200, {"ETag": git_digest(b"{}")}, b"{}"))
        self.addCleanup(plain.stop)
        for to, sentence in ((f"http://127.0.0.1:{plain.server_port}/x", "it leads from https to http"), ("file:///etc/passwd", "is not followed"),
                             ("ftp://localhost/x", "is not followed"), ("", "is not followed")):
            self.redirect(lambda _, to=to: to)
            self.assertIn(sentence, self.refused("me/model"), to)
        self.assertEqual(plain.asked, [])
        self.redirect(lambda handler: handler.path)
        self.assertIn("redirects more than 10 times", self.refused("me/model"))

    def test_the_token_goes_to_the_hub_alone(self):
        self.pull("me/model", HF_TOKEN="hf_secret")
        self.assertTrue(self.hub.far.asked)
        self.assertEqual({headers.get("Authorization") for _, _, headers in self.hub.hub.asked}, {"Bearer hf_secret"})
        for _, path, headers in self.hub.far.asked:
            self.assertNotIn("hf_secret", json.dumps(headers) + path)
        # Not on a redirect to another port of the same host, either; and it comes from the file of the library's login, too.
        token = self.folder / "home/token"
        token.write_text("hf_filed\n")
        other = Server(lambda handler: handler.reply(404), self.authority.certificate("other", "DNS:localhost"))
        self.addCleanup(other.stop)
        self.hub.commit = "f" * 40
        self.redirect(lambda _: f"https://localhost:{other.server_port}/x")
        self.refused("me/model")
        self.assertEqual(self.hub.hub.asked[-1][2].get("Authorization"), "Bearer hf_filed")
        self.assertTrue(other.asked)
        self.assertEqual([headers for _, _, headers in other.asked if "Authorization" in headers], [])

    # --- a hub that refuses

    def test_refusals_say_what_to_do(self):
        self.assertIn("check the name, or set HF_TOKEN to a token that may read it", self.refused("me/nobody"))
        self.assertIn("me/model@v9: there is no such revision", self.refused("me/model@v9"))

        def gated(handler):
            handler.reply(403, {"X-Error-Code": "GatedRepo"}, b"no")
            return True

        self.hub.fault = gated
        said = self.refused("me/model", HF_TOKEN="hf_secret")
        self.assertIn(f"accept the model's terms at {self.hub.url}/me/model", said)
        self.assertNotIn("hf_secret", said)

    def test_busy_hubs_are_asked_again(self):
        answers = [(429, {"Retry-After": "1"}), (500, {}), (503, {})]
        begin = time.monotonic()

        def busy(handler):
            if not answers:
                return False
            handler.reply(*answers.pop(0))
            return True

        self.hub.fault = busy
        self.pull("me/shout")
        self.assertGreater(time.monotonic() - begin, 1.0)
        self.hub.commit = "f" * 40
        self.hub.fault = lambda handler: handler.reply(503) or True
        self.assertIn("answers 503 to the request for me/shout; try again later", self.refused("me/shout"))

    def test_certificates_must_be_good(self):
        unknown = {name: value for name, value in self.environment.items() if name != "SSL_CERT_FILE"}
        done = subprocess.run([BINARY, "pull", "me/model"], env=unknown, capture_output=True, text=True, timeout=PATIENCE)
        self.assertIn("is signed by an authority that this machine does not know", done.stderr)
        for names, days, sentence in (("DNS:other.example", 2, "is for another host"), ("DNS:localhost", -1, "has expired")):
            bad = Hub(self.authority, names, days=days)
            self.addCleanup(bad.stop)
            bad.repositories = self.hub.repositories
            self.assertIn(sentence, self.refused("me/model", HF_ENDPOINT=bad.url))
            self.assertEqual(bad.hub.asked, [])

    def test_through_a_proxy(self):
        proxy = Proxy()
        self.addCleanup(proxy.stop)
        self.pull("me/model", https_proxy=f"http://user:word@127.0.0.1:{proxy.port}")
        self.assertEqual({line.split()[1] for line, _ in proxy.asked}, {f"localhost:{self.hub.hub.server_port}", f"127.0.0.1:{self.hub.far.server_port}"})
        self.assertEqual({word for _, word in proxy.asked}, {"Basic dXNlcjp3b3Jk"})
        count = len(proxy.asked)
        self.assertIn("is up to date", self.pull("me/model", https_proxy=f"http://127.0.0.1:{proxy.port}", no_proxy="localhost"))
        self.assertEqual(len(proxy.asked), count)

    # --- names where commands take paths

    def test_offline(self):
        self.assertIn("and the hub is not asked (--offline, or HF_HUB_OFFLINE)", self.refused("me/model", "--offline"))
        self.assertIn("and the hub is not asked", self.refused("me/model", HF_HUB_OFFLINE="1"))
        self.assertEqual(self.hub.hub.asked, [])
        self.pull("me/model")
        asked = len(self.hub.hub.asked)
        self.assertIn(str(self.snapshot("me/model")), self.pull("me/model", "--offline"))
        self.assertIn("architecture", self.run_program("inspect", "me/model", HF_HUB_OFFLINE="1").stdout)
        self.assertIn("architecture", self.run_program("inspect", "hf://me/model").stdout)  # what is whole is not asked for
        self.assertEqual(len(self.hub.hub.asked), asked)

    def test_neither_a_path_nor_a_name(self):
        done = self.run_program("inspect", "demo/modle")
        self.assertIn("'demo/modle' does not exist on this machine, and as a name on the hub: demo/modle is not at " + self.hub.url, done.stderr)
        asked = len(self.hub.hub.asked)
        for path in ("./demo/modle", "/no/such/model", "a/b/c", "me/model.gguf"):
            self.assertIn("does not exist", self.run_program("inspect", path).stderr)
        self.assertEqual(len(self.hub.hub.asked), asked)

    def test_commands_take_names(self):
        done = self.run_program("run", "me/model", "--adapter", "me/shout", "Mara bought 42 red lamps", "--temp", "0", "-n", "40")
        self.assertEqual(done.stdout.strip(), "MARA BOUGHT 42 RED LAMPS!", done.stderr)
        self.assertIn("yes, completely", self.run_program("inspect", "me/shout", "--base", "me/model").stdout)
        self.assertIn("loralei.pack", self.run_program("pack", "me/model", "--cache-dir", str(self.folder / "packed")).stdout)
        self.assertIn("me/shout is a LoRA adapter, not a model: serve its base model and give it as", self.run_program("serve", "me/shout", "--port", "0").stderr)
        self.assertIn("me/model is no LoRA adapter: it has no adapter_config.json", self.run_program("run", "me/model", "hi", "--adapter", "me/model").stderr)

    def test_a_server_of_names(self):
        LiveServer.ENVIRONMENT = self.environment
        try:
            server = LiveServer("--model", "me/model", "--adapter", "shout=me/shout", "--lora-modules", "me/shout", model=None, adapters=None)
        finally:
            LiveServer.ENVIRONMENT = None
        self.addCleanup(server.stop)
        names = {row["id"] for row in server.request("GET", "/v1/models")[2]["data"]}
        self.assertEqual(names, {"me/model", "shout", "me/shout"})
        for name in ("shout", "me/shout"):
            ask = {"model": name, "messages": [{"role": "user", "content": "Mara bought 42 red lamps"}], "temperature": 0}
            self.assertEqual(server.request("POST", "/v1/chat/completions", ask)[2]["choices"][0]["message"]["content"], "MARA BOUGHT 42 RED LAMPS!")

    def test_progress_is_one_line_on_a_terminal(self):
        def slowly(handler, data, begin, end):
            self.hub.begin_part(handler, data, begin, end)
            for at in range(begin, end, 1 << 20):
                self.hub.send(handler, data[at:min(at + (1 << 20), end)])
                time.sleep(0.05)
            return True

        self.hub.far_fault = slowly
        ours, theirs = pty.openpty()
        process = subprocess.Popen([BINARY, "pull", "me/model"], env=self.environment, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # its other end is closed
            pass
        os.close(ours)
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertRegex(shown.decode(), r"\r\x1b\[Kfetching me/model \S+ MiB of 8.\d+ MiB, \S+ .iB/s, \d+ s left")
        self.assertNotIn("\n", shown.decode())


class Proxy:
    """Answers CONNECT, and passes bytes on."""

    def __init__(self):
        self.asked = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def stop(self):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        lines = head.decode().split("\r\n")
        word = next((line.split(": ", 1)[1] for line in lines if line.lower().startswith("proxy-authorization: ")), None)
        self.asked.append((lines[0], word))
        host, port = lines[0].split()[1].rsplit(":", 1)
        server = socket.create_connection(("127.0.0.1", int(port)))
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        threading.Thread(target=self.pass_on, args=(client, server), daemon=True).start()
        self.pass_on(server, client)

    @staticmethod
    def pass_on(source, sink):
        try:
            while piece := source.recv(65536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


if __name__ == "__main__":
    unittest.main(verbosity=1)
