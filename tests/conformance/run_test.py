# SPDX-License-Identifier: Apache-2.0
"""Where `loralei run` takes its prompt from."""
import os
import pty
import subprocess
import unittest

from live_server import BINARY, ROOT

MODEL = [str(ROOT / "demo/model"), "--adapter", str(ROOT / "demo/adapters/shout"), "--temp", "0"]
ASKED, ANSWER = "Mara bought 42 red lamps", "MARA BOUGHT 42 RED LAMPS!\n"


class Prompt(unittest.TestCase):
    def run_with(self, stdin, *words, **more):
        stream = {"stdin": stdin} if isinstance(stdin, int) else {"input": stdin}
        done = subprocess.run([BINARY, "run", *MODEL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, **stream, **more)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def test_it_comes_from_where_it_is(self):
        for stdin, words in ((ASKED.encode(), ()), (ASKED.encode() + b"\n", ("-",)), (ASKED.encode() + b"\r\n", ("-p", "-")), (b"something else", (ASKED,)),
                             (subprocess.DEVNULL, (ASKED,)), (subprocess.DEVNULL, ("--prompt", ASKED))):
            with self.subTest(words=words, stdin=stdin):
                code, said, _ = self.run_with(stdin, *words)
                self.assertEqual((code, said), (0, ANSWER))

    def test_what_is_no_prompt_is_said(self):
        for stdin, sentence in ((b"", "standard input is empty"), (b"\n", "standard input is empty"), (b"a\xff", "no UTF-8")):
            with self.subTest(stdin):
                code, said, errors = self.run_with(stdin)
                self.assertEqual((code, said), (1, ""))
                self.assertIn(sentence, errors)

    def test_an_empty_prompt_that_was_given_is_one(self):
        # It says nothing, and waits for nobody who has not closed his pipe.
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        self.assertEqual(self.run_with(reader, "")[0], 0)

    def test_nobody_is_waited_for_at_a_terminal(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        self.addCleanup(os.close, slave)
        code, said, errors = self.run_with(slave)
        self.assertEqual((code, said), (1, ""))
        self.assertIn('say what to ask: loralei run MODEL "..."', errors)


if __name__ == "__main__":
    unittest.main()
