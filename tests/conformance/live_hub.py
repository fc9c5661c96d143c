# SPDX-License-Identifier: Apache-2.0
"""A hub of models on loopback, over TLS with an authority made for the test: its API, small files, and a second server on another host
where large files lie. It records what it was asked, and misbehaves where a test says so."""
import hashlib
import http.server
import json
import pathlib
import re
import socket
import ssl
import subprocess
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 64 * 1024  # files from here on are "LFS"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_digest(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Authority:
    """Certificates for `names`, by the openssl command."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.file = self.folder / "ca.pem"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
                     "-subj", "/CN=authority of a test", "-days", "2")

    def openssl(self, *words):
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def certificate(self, name, alternatives, days=2):
        """(certificate, key), valid for so many days; expired with a negative number."""
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternatives}\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                     "-subj", f"/CN={name}")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(days),
                     "-extfile", f"{name}.ext", "-out", f"{name}.pem")
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.answer(self)

    do_HEAD = do_GET

    def reply(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def cut(self):
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer, certificate=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer_with = answer
        self.asked = []
        self.context = None
        if certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*certificate)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, request, address):
        if self.context:
            request.settimeout(30)
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, address)

    def handle_error(self, *_):
        pass

    def answer(self, handler):
        self.asked.append((handler.command, handler.path, dict(handler.headers)))
        self.answer_with(handler)

    def stop(self):
        self.shutdown()
        self.server_close()


class Hub:
    """repositories: name to {path: bytes}. `fault(handler)` and `far_fault(handler, data, begin, end)` answer in its place when they say True."""

    def __init__(self, authority, names="DNS:localhost", **more):
        certificate = authority.certificate("hub", names, **more)
        self.hub = Server(self.answer, certificate)
        self.far = Server(self.far_answer, authority.certificate("far", "IP:127.0.0.1"))
        self.url = f"https://localhost:{self.hub.server_port}"
        self.far_url = f"https://127.0.0.1:{self.far.server_port}"
        self.repositories = {}
        self.fault = self.far_fault = None
        self.commit = COMMIT
        self.sent = 0  # bytes of large files
        self.lock = threading.Lock()

    def stop(self):
        self.hub.stop()
        self.far.stop()

    def answer(self, handler):
        if self.fault and self.fault(handler):
            return
        path = urllib.parse.unquote(urllib.parse.urlsplit(handler.path).path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self.answer_list(handler, *match.groups())
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.answer_file(handler, *match.groups())
        handler.reply(404)

    def answer_list(self, handler, name, revision):
        if name not in self.repositories:
            return handler.reply(401, {"X-Error-Code": "RepoNotFound"})
        if revision not in (None, "main", "v1", self.commit):
            return handler.reply(404, {"X-Error-Code": "RevisionNotFound"})
        siblings = [{"rfilename": path, "size": len(data)} for path, data in self.repositories[name].items()]
        answer = {"id": name, "modelId": name, "sha": self.commit, "siblings": siblings, "tags": [], "private": False, "downloads": 0}
        handler.reply(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def answer_file(self, handler, name, revision, path):
        data = self.repositories.get(name, {}).get(path)
        if data is None:
            return handler.reply(404, {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": self.commit}
        if len(data) < LARGE:
            return handler.reply(200, {**headers, "ETag": f'"{git_digest(data)}"'}, data)
        headers |= {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data)), "Location": f"{self.far_url}/{name}/{path}?signed"}
        handler.reply(302, headers)

    def far_answer(self, handler):
        owner, name, path = urllib.parse.urlsplit(handler.path).path[1:].split("/", 2)
        data = self.repositories[f"{owner}/{name}"][path]
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        begin, end = (int(match.group(1)), int(match.group(2) or len(data) - 1) + 1) if match else (0, len(data))
        if self.far_fault and self.far_fault(handler, data, begin, end):
            return
        self.begin_part(handler, data, begin, end)
        self.send(handler, data[begin:end])

    def begin_part(self, handler, data, begin, end):
        handler.send_response(206 if "Range" in handler.headers else 200)
        handler.send_header("ETag", '"an etag of another kind"')
        handler.send_header("Content-Length", str(end - begin))
        if "Range" in handler.headers:
            handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        handler.end_headers()

    def send(self, handler, data):
        if handler.command == "HEAD":
            return
        for at in range(0, len(data), 1 << 18):
            part = data[at:at + (1 << 18)]
            handler.wfile.write(part)
            with self.lock:
                self.sent += len(part)
