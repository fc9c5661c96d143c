# SPDX-License-Identifier: Apache-2.0
"""Stands between a client and a server and holds streamed answers back in their middle: what a client does with the first part of an
answer is then seen for certain, however fast the server was."""
import re
import socket
import threading
from urllib.parse import urlsplit

STREAMED = b"POST /v1/chat/completions "
EVENT_END = re.compile(rb"data: .*\n\n")


class HeldAnswers:
    """`events` of each answer to a chat pass, the rest waits for release()."""

    def __init__(self, url, events):
        self.events = events
        self.released = threading.Event()
        self.upstream = ("127.0.0.1", urlsplit(url).port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def carry(self, client):
        with client, socket.create_connection(self.upstream) as server:
            streamed = threading.Event()
            passed = b""

            def notice(part):
                if STREAMED in part:
                    streamed.set()

            def hold(part):
                nonlocal passed
                if not streamed.is_set() or self.released.is_set():
                    return None
                passed += part
                ends = [found.end() for found in EVENT_END.finditer(passed)]
                # Up to the end of the last event that may pass.
                return None if len(ends) < self.events else len(part) - (len(passed) - ends[self.events - 1])

            threading.Thread(target=self.forward, args=(client, server, notice), daemon=True).start()
            self.forward(server, client, hold)

    def forward(self, source, target, look):
        """Until one of both goes. Of a part that `look` gives a length for, the rest waits."""
        try:
            while part := source.recv(65536):
                cut = look(part)
                if cut is not None:
                    target.sendall(part[:cut])
                    self.released.wait()
                    part = part[cut:]
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # one of both has gone
            return

    def release(self):
        self.released.set()

    def close(self):
        self.release()
        self.listener.close()
