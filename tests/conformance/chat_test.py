# SPDX-License-Identifier: Apache-2.0
"""`loralei chat` as somebody uses it: on a terminal (a pseudo one) and in a pipe, with a server of its own and with one that runs."""
import fcntl
import http.server
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
import unittest

from held_answers import HeldAnswers
from live_server import BINARY, ROOT, LiveServer

SECONDS = 60
ASKED, SHOUT, REVERSE = "Mara bought 42 red lamps", "MARA BOUGHT 42 RED LAMPS!", "lamps red 42 bought Mara"
OWN = [str(ROOT / "demo/model"), "--adapter", f"shout={ROOT}/demo/adapters/shout", "--adapter", f"reverse={ROOT}/demo/adapters/reverse", "--temp", "0"]
ENV = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TERM": "xterm"}


def seen(text):
    """What of it a reader sees, without colours and moves."""
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)", "", text).replace("\r", "")


class Typed:
    """A chat on a terminal of its own."""

    def __init__(self, test, *words, columns=80, **more):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen([BINARY, "chat", *words], stdin=slave, stdout=slave, stderr=slave, env={**ENV, **more}, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.text = ""
        test.addCleanup(os.close, self.master)
        test.addCleanup(os.close, slave)
        test.addCleanup(self.process.wait)
        test.addCleanup(self.process.kill)

    def keys(self, text):
        os.write(self.master, text.encode())

    def wait(self, pattern):
        """The text up to there is taken."""
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(pattern, seen(self.text))):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise AssertionError(f"did not come: {pattern}\n{seen(self.text)}")
            try:
                self.text += os.read(self.master, 65536).decode("utf-8", "replace")
            except OSError:
                raise AssertionError(f"it ended before {pattern}\n{seen(self.text)}") from None
        taken, self.text = seen(self.text)[:found.end()], seen(self.text)[found.end():]
        return taken

    def end(self):
        code = self.process.wait(SECONDS)
        while select.select([self.master], [], [], 0)[0]:
            self.text += os.read(self.master, 65536).decode("utf-8", "replace")
        return code

    def is_as_before(self):
        return termios.tcgetattr(self.slave) == self.before


class OnATerminal(unittest.TestCase):
    def test_a_conversation_with_a_server_of_its_own(self):
        chat = Typed(self, *OWN)
        chat.wait("shout> ")
        server, = map(int, pathlib.Path(f"/proc/{chat.process.pid}/task/{chat.process.pid}/children").read_text().split())
        chat.keys(ASKED + "\r")
        chat.wait(re.escape(SHOUT) + r"\s+\[\d+ tokens, first after [\d.]+ s, [\d.]+ tokens/s\]\s+shout> ")
        chat.keys("/adapter reverse\r")
        chat.wait("reverse> ")
        chat.keys("\x1b[A\x1b[A\r")  # the question, from the history
        chat.wait(re.escape(REVERSE))
        chat.wait("reverse> ")
        chat.keys("/adapter\r")
        listed = chat.wait(r"\* reverse\s+reverse> ")
        self.assertIn("  model (the base)\n  shout\n* reverse", listed)
        chat.keys("/adapter none\r")
        chat.wait("model> ")
        chat.keys("\x03")
        chat.wait("Ctrl-D or /quit ends.")
        chat.wait("model> ")
        chat.keys("\x04")
        self.assertEqual(chat.end(), 0)
        self.assertTrue(chat.is_as_before())
        self.assertFalse(pathlib.Path(f"/proc/{server}").exists(), "its server ended before it")

    def test_an_interrupt_ends_an_answer_and_not_the_conversation(self):
        server = LiveServer()
        self.addCleanup(server.stop)
        held = HeldAnswers(server.url, events=6)
        self.addCleanup(held.close)
        chat = Typed(self, held.url, "--adapter", "shout", "--temp", "0")
        chat.wait("shout> ")
        chat.keys(ASKED + "\r")
        chat.wait("MARA|MAR|M")  # the rest has not left the server's side
        chat.keys("\x03")
        chat.wait(r"\[stopped\]\s+shout> ")
        held.release()
        chat.keys("/undo\r")
        chat.wait("shout> ")
        chat.keys(ASKED + "\r")
        chat.wait(re.escape(SHOUT))
        chat.wait("shout> ")
        chat.keys("/quit\r")
        self.assertEqual(chat.end(), 0)

    def test_a_signal_leaves_the_terminal_as_it_was(self):
        server = LiveServer()
        self.addCleanup(server.stop)
        for number in (signal.SIGTERM, signal.SIGHUP):
            chat = Typed(self, server.url)
            chat.wait("model> ")
            self.assertFalse(chat.is_as_before())
            chat.process.send_signal(number)
            self.assertEqual(chat.end(), -number)
            self.assertTrue(chat.is_as_before())

    def test_keys_while_the_model_is_loaded(self):
        chat = Typed(self, *OWN)
        chat.keys(ASKED + "\r")
        chat.wait(re.escape(SHOUT))

    def test_a_server_that_goes_is_told(self):
        server = LiveServer()
        chat = Typed(self, server.url)
        chat.wait("model> ")
        server.stop()
        chat.keys("Hello\r")
        chat.wait("loralei chat: .*(refused|closed)")
        chat.wait("model> ")
        chat.keys("\x04")
        self.assertEqual(chat.end(), 0)

    def test_without_colours(self):
        server = LiveServer()
        self.addCleanup(server.stop)
        chat = Typed(self, server.url, NO_COLOR="1")
        chat.wait("model> ")
        self.assertNotIn("\x1b[1m", chat.text)


class InAPipe(unittest.TestCase):
    def chat(self, said, *words, **more):
        done = subprocess.run([BINARY, "chat", *words], input=said, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**ENV, **more}, timeout=SECONDS)
        return done.returncode, done.stdout, done.stderr

    def test_each_line_is_a_turn(self):
        with tempfile.TemporaryDirectory() as folder:
            code, said, errors = self.chat(f"{ASKED}\n\n/adapter reverse\n{ASKED}\n/save {folder}/said.json\n/clear\n", *OWN)
            self.assertEqual((code, said, errors), (0, f"{SHOUT}\n{REVERSE}\n", ""))
            saved = json.loads(pathlib.Path(folder, "said.json").read_text())
        self.assertEqual([one["content"] for one in saved], [ASKED, SHOUT, ASKED, REVERSE])

    def test_the_first_adapter_answers_whatever_else_has_names(self):
        names = ["--served-model-name", "one", "--served-model-name", "two", "--adapter-dir", str(ROOT / "demo/adapters")]
        for adapter in (f"mine={ROOT}/demo/adapters/reverse", str(ROOT / "demo/adapters/reverse"), json.dumps({"name": "mine", "path": str(ROOT / "demo/adapters/reverse")})):
            with self.subTest(adapter):
                self.assertEqual(self.chat(ASKED, str(ROOT / "demo/model"), *names, "--adapter", adapter, "--temp", "0"), (0, REVERSE + "\n", ""))

    def test_variables_of_a_server_are_not_this_commands(self):
        server = LiveServer()
        self.addCleanup(server.stop)
        more = {"LORALEI_MEMORY_BUDGET": "2GiB", "LORALEI_MAX_NUM_SEQS": "3"}
        self.assertEqual(self.chat(ASKED, server.url, "--adapter", "shout", "--temp", "0", **more), (0, SHOUT + "\n", ""))
        # The one that is started has them.
        self.assertIn("no number", self.chat(ASKED, *OWN, LORALEI_MAX_NUM_SEQS="no number")[2])

    def test_what_fails_is_said_and_the_rest_goes_on(self):
        code, said, errors = self.chat(f"/adapter nobody\n/dance\n/set heat 3\n/save\n{ASKED}", *OWN)
        self.assertEqual((code, said), (1, SHOUT + "\n"))
        self.assertEqual(errors.splitlines(), [
            "loralei chat: there is no 'nobody' here; there are model, shout, reverse",
            "loralei chat: there is no order /dance; /help shows them",
            "loralei chat: there is no setting 'heat'; temperature, top_p, max_tokens and seed can be set",
            "loralei chat: say where: /save FILE"])

    def test_what_cannot_begin_says_why(self):
        for words, sentence in (
                (["/nowhere"], "/nowhere: does not exist"),
                ([str(ROOT / "demo/model"), "--adapter", "x=/nowhere"], "/nowhere: does not exist"),
                ([str(ROOT / "demo/model"), "--max-num-seqs", "0"], "--max-num-seqs"),
                (["http://127.0.0.1:9"], "Connection refused"),
                (["http://127.0.0.1:9", "--memory-budget", "2GiB"], "--memory-budget is for a server that is started here"),
                ([str(ROOT / "demo/model"), "--temp", "hot"], "temperature is a number from 0 to 100")):
            with self.subTest(words):
                code, said, errors = self.chat("", *words)
                self.assertEqual((code, said), (1, ""))
                self.assertIn(sentence, errors)

    def test_a_key_is_asked_for(self):
        server = LiveServer("--api-key", "secret")
        self.addCleanup(server.stop)
        code, _, errors = self.chat("", server.url)
        self.assertEqual(code, 1)
        self.assertRegex(errors, "key")
        code, said, _ = self.chat(ASKED, server.url + "/v1/", "--adapter", "shout", "--temp", "0", "--api-key", "secret")
        self.assertEqual((code, said), (0, SHOUT + "\n"))

    def hostile(self, models, *events):
        """The URL of a server that says this, whatever it is asked."""
        class Hostile(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.answer("application/json", models)

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer("text/event-stream", "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]))

            def answer(self, kind, body):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def test_an_answer_cannot_drive_the_terminal(self):
        url = self.hostile(json.dumps({"data": [{"id": "evil\x1b[2J"}]}), json.dumps({"choices": [{"delta": {"content": "\x1b]0;title\x07\x1b[2Jx\u202ey"}}]}))
        code, said, errors = self.chat("Hello\n/adapter\n", url)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(said, "\ufffd]0;title\ufffd\ufffd[2Jx\ufffdy\n* evil\\x1b[2J (the base)\n")

    def test_whatever_a_server_says_is_no_crash(self):
        names, deep = '{"data": [{"id": "a"}]}', "[" * 200_000
        good = json.dumps({"choices": [{"delta": {"content": "x"}}]})
        for event in ('{"usage": {"completion_tokens": "5"}}', '{"usage": {"completion_tokens": [1]}}', '{"usage": 3}', '{"choices": 3}', '{"choices": [3]}', '{"choices": [{"delta": [1]}]}',
                      '{"choices": [{"delta": {"content": 7}}]}', '{"usage": {"completion_tokens": 1e300}}', "no JSON", "[]", '{"x": ' + deep):
            with self.subTest(event[:60]):
                self.assertEqual(self.chat("Hello", self.hostile(names, event, good)), (0, "x\n", ""))
        for event, sentence in (('{"error": {"message": "so it is"}}', "so it is"), ('{"error": "so it is"}', "so it is"), ('{"error": [1]}', "ended the answer with an error")):
            with self.subTest(event):
                code, _, errors = self.chat("Hello", self.hostile(names, good, event))
                self.assertEqual(code, 1)
                self.assertIn(sentence, errors)
        for models in ("no JSON", "[]", "{}", '{"data": [3, {"id": 3}]}', deep):
            with self.subTest(models[:60]):
                code, _, errors = self.chat("Hello", self.hostile(models))
                self.assertEqual(code, 1)
                self.assertIn("lists no model", errors)


if __name__ == "__main__":
    unittest.main()
