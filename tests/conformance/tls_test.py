# SPDX-License-Identifier: Apache-2.0
"""https with certificates of an authority made here: clients, versions, certificates read again under load, certificates
that are wrong, handshakes that never end, and a router with TLS in front of servers without."""
import http.client
import json
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import openai

from live_server import BINARY, ROOT, LiveRouter, LiveServer

SLOW_HANDSHAKES = 200
CHAT = {"model": "json", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


class Authority:
    def __init__(self, folder):
        self.folder, self.certificate, self.key, self.count = folder, folder / "ca.pem", folder / "ca.key", 0
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key, "-out",
                self.certificate, "-days", "2", "-subj", "/CN=test authority")
        self.extensions = folder / "extensions"
        self.extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")

    def issue(self, name, days=1):
        """A certificate and its key, as texts; with days < 0 it has expired."""
        self.count += 1
        key, request, made = (self.folder / f"{self.count}.{end}" for end in ("key", "req", "pem"))
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request, "-subj",
                f"/CN={name}")
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-set_serial", self.count, "-days", days, "-out",
                made, "-extfile", self.extensions)
        return made.read_text(), key.read_text()


class Secure(LiveServer):
    pass


class SecureRouter(LiveRouter):
    pass


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.authority = Authority(cls.folder)
        cls.certificate, cls.key = cls.folder / "server.pem", cls.folder / "server.key"
        cls.write(*cls.authority.issue("first"))
        cls.context = ssl.create_default_context(cafile=cls.authority.certificate)
        Secure.CONTEXT = SecureRouter.CONTEXT = cls.context
        cls.server = cls.start()

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"the server ended with {code}: {cls.server.lines[-20:]}")

    @classmethod
    def write(cls, certificate, key):
        cls.certificate.write_text(certificate)
        cls.key.write_text(key)
        cls.key.chmod(0o600)

    @classmethod
    def start(cls, *flags):
        return Secure("-c", "256", "--ssl-certfile", str(cls.certificate), "--ssl-keyfile", str(cls.key), *flags)

    def wait_line(self, part, server=None, since=0):
        server = server or self.server
        deadline = time.monotonic() + 30
        while not any(part in line for line in server.lines[since:]):
            self.assertLess(time.monotonic(), deadline, f"the log never said {part!r}: {server.lines[since:]}")
            time.sleep(0.02)

    def reload(self, part):
        since = len(self.server.lines)
        self.server.process.send_signal(signal.SIGHUP)
        self.wait_line(part, since=since)

    def served(self):
        """Serial number of the certificate that a new connection gets."""
        with socket.create_connection(("127.0.0.1", self.server.port), 30) as plain:
            with self.context.wrap_socket(plain, server_hostname="localhost") as secure:
                return int(secure.getpeercert()["serialNumber"], 16)

    def test_python_and_openai(self):
        self.assertEqual(self.server.url.split(":")[0], "https")
        status, _, body = self.server.request("POST", "/v1/chat/completions", CHAT)
        self.assertEqual(status, 200, body)
        with self.assertRaises(urllib.error.URLError, msg="an authority that nobody named is not trusted"):
            urllib.request.urlopen(self.server.url + "/health", timeout=30)
        with openai.DefaultHttpxClient(verify=self.context) as transport:
            client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", http_client=transport)
            self.assertIn("json", [model.id for model in client.models.list()])
            stream = client.chat.completions.create(**CHAT, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            self.assertEqual(text, body["choices"][0]["message"]["content"])

    def test_large_bodies_each_way(self):
        many = {"prompt": ["hi"] * 40, "n": 4, "max_tokens": 4, "model": "json", "logprobs": 5}
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=120, context=self.context)
        for _ in range(2):  # on one connection
            connection.request("POST", "/v1/completions", json.dumps(many) + " " * 1_000_000, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            self.assertEqual(len(json.loads(answer.read())["choices"]), 160)
        connection.close()

    def curl(self, *words):
        done = subprocess.run(["curl", "-sS", "--cacert", str(self.authority.certificate), "-w", "%{http_code} %{http_version}", "-o",
                               "/dev/null", *words, f"https://localhost:{self.server.port}/health", "--resolve",
                               f"localhost:{self.server.port}:127.0.0.1"], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def test_curl_and_versions(self):
        self.assertEqual(self.curl()[:2], (0, "200 1.1"))
        self.assertEqual(self.curl("--http2")[:2], (0, "200 1.1"), "HTTP/1.1 is agreed on")
        self.assertEqual(self.curl("--tlsv1.2", "--tls-max", "1.2")[:2], (0, "200 1.1"))
        self.assertEqual(self.curl("--tlsv1.3")[:2], (0, "200 1.1"))
        code, _, error = self.curl("--tlsv1.1", "--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0")
        self.assertEqual(code, 35, error)
        self.assertIn("alert protocol version", error)

    def test_plain_http_is_told_so(self):
        plain = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        plain.request("GET", "/health")
        answer = plain.getresponse()
        self.assertEqual(answer.status, 400)
        self.assertIn("speaks https", json.loads(answer.read())["error"]["message"])

    def test_slow_handshakes_stop_nobody(self):
        slow = [socket.create_connection(("127.0.0.1", self.server.port), 30) for _ in range(SLOW_HANDSHAKES)]
        for one in slow[::2]:
            one.sendall(b"\x16\x03\x01\x02\x00\x01")
        try:
            for _ in range(10):
                self.assertEqual(self.server.request("GET", "/health")[0], 200)
        finally:
            for one in slow:
                one.close()

    def test_new_certificates_under_load(self):
        stop, failed, done = threading.Event(), [], [0] * 4

        def ask(index):
            while not stop.is_set():
                status, _, body = self.server.request("POST", "/v1/chat/completions", CHAT)
                if status != 200:
                    failed.append((status, body))
                done[index] += 1

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(done))]
        for thread in threads:
            thread.start()
        try:
            for round_ in range(8):
                self.write(*self.authority.issue(f"round-{round_}"))
                self.reload(f"round-{round_}")
                self.assertEqual(self.served(), self.authority.count)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failed, [])
        self.assertTrue(all(done), done)

    def test_a_wrong_pair_is_not_taken(self):
        before, texts = self.served(), (self.certificate.read_text(), self.key.read_text())
        other = self.authority.issue("other")
        running = http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=30, context=self.context)
        running.request("GET", "/health")
        self.assertEqual(running.getresponse().read(), b'{"status":"ok"}')
        for certificate, key, part in ((other[0], texts[1], "the key is not the certificate's"), ("", texts[1], "holds no certificate"),
                                       (texts[0], "rubbish", "holds no private key")):
            self.write(certificate, key)
            self.reload("The certificate in use stays: ")
            self.wait_line(part)
            self.assertEqual(self.served(), before)
        self.certificate.unlink()
        self.reload("The certificate in use stays: ")
        running.request("GET", "/health")
        self.assertEqual(running.getresponse().status, 200, "what runs goes on")
        self.write(*texts)
        self.reload("new connections get the certificate of")
        self.assertNotIn(texts[1].splitlines()[1], "\n".join(self.server.lines), "no log shows a key")

    def test_an_expired_one_is_told(self):
        old = self.authority.issue("old", days=-1)
        (self.folder / "old.pem").write_text(old[0] + old[1])  # one file for both
        server = Secure.__new__(Secure)
        server.CONTEXT = ssl._create_unverified_context()
        server.start(["serve", str(ROOT / "demo/model"), "--port", "0", "-c", "256", "--ssl-certfile", str(self.folder / "old.pem")])
        try:
            server.wait_ready()
            self.wait_line("has expired", server)
            self.wait_line("chmod 600", server)
            with self.assertRaises(ssl.SSLCertVerificationError):
                with socket.create_connection(("127.0.0.1", server.port), 30) as plain:
                    self.context.wrap_socket(plain, server_hostname="localhost")
        finally:
            server.stop()

    def refused(self, *words):
        done = subprocess.run([str(BINARY), *words], capture_output=True, text=True, timeout=120)
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("loading", done.stdout, "before the model is loaded")
        return done.stderr

    def test_the_start_says_what_is_wrong(self):
        certificate, key = self.authority.issue("start")
        good, its, locked = self.folder / "good.pem", self.folder / "good.key", self.folder / "locked.key"
        good.write_text(certificate)
        its.write_text(key)
        openssl("pkey", "-in", its, "-out", locked, "-aes128", "-passout", "pass:secret")
        other = self.folder / "another.key"
        other.write_text(self.authority.issue("another")[1])
        model = ["serve", str(ROOT / "demo/model"), "--port", "0"]
        route = ["route", "--port", "0", "--replica", "127.0.0.1:1"]
        for command in (model, route):
            for flags, part in ((["--ssl-certfile", "/nowhere.pem"], "/nowhere.pem"),
                                (["--ssl-certfile", str(good), "--ssl-keyfile", "/nowhere.key"], "/nowhere.key"),
                                (["--ssl-keyfile", str(its)], "give its certificate with --ssl-certfile"),
                                (["--ssl-certfile", str(good)], "holds no private key"),
                                (["--ssl-certfile", str(good), "--ssl-keyfile", str(other)], "not the certificate's"),
                                (["--ssl-certfile", str(good), "--ssl-keyfile", str(locked)], "openssl pkey -in")):
                self.assertIn(part, self.refused(*command, *flags))
        flags = ["--ssl-certfile", str(good), "--ssl-keyfile", str(its)]
        self.assertIn("do not go together", self.refused(*model, *flags, "--etcd", "127.0.0.1:1"))

    def test_a_router_in_front(self):
        self.assertIn("a router speaks plain HTTP", self.refused("route", "--port", "0", "--replica", self.server.url))
        plain = LiveServer("-c", "256")
        try:
            router = SecureRouter([plain], "--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.key))
            try:
                self.assertTrue(router.url.startswith("https://"))
                router.wait_up(1)
                status, _, body = router.request("POST", "/v1/chat/completions", CHAT)
                self.assertEqual(status, 200, body)
                since = len(router.lines)
                router.process.send_signal(signal.SIGHUP)
                self.wait_line("new connections get the certificate of", router, since)
                self.assertEqual(router.request("GET", "/ready")[0], 200)
            finally:
                self.assertEqual(router.stop(), 0)
        finally:
            plain.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
