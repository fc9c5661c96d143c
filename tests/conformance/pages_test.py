# SPDX-License-Identifier: Apache-2.0
"""Manual pages and what shells complete, read by those who read them: man, bash, zsh and fish."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BINARY = os.environ["SERVER_BINARY"]
ENV = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C.UTF-8", "MANWIDTH": "120"}


def run(*command, stdin=None):
    return subprocess.run([str(word) for word in command], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV, timeout=60)


def script(shell):
    return run(BINARY, "completion", shell).stdout


def help_of(*command):
    said = run(BINARY, *command, "--help-all").stdout
    return said if "Usage:" in said else run(BINARY, *command, "--help").stdout


COMMANDS = re.findall(r"^  (\S+) ", help_of().split("Subcommands:")[1], re.M)


class ManPages(unittest.TestCase):
    @unittest.skipUnless(shutil.which("man") and shutil.which("groff"), "man or groff is not installed: tools/setup.sh test brings them")
    def test_man_reads_each_without_a_warning(self):
        self.assertIn("serve", COMMANDS)
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run(BINARY, "man", folder).returncode, 0)
            pages = {path.name: path for path in pathlib.Path(folder).iterdir()}
            self.assertEqual(set(pages), {"loralei.1"} | {f"loralei-{command}.1" for command in COMMANDS})
            for name, path in pages.items():
                with self.subTest(name):
                    done = run("man", "--warnings", "-E", "UTF-8", "-l", path)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    text = re.sub(r".\x08", "", done.stdout)
                    command = name[len("loralei"):-2].lstrip("-")
                    wanted = set(re.findall(r"--[a-z][\w-]+", help_of(*[command] if command else [])))
                    shown = set(re.findall(r"--[a-z][\w-]+", text.replace("\u2010", "-")))
                    # Words that a line's end has cut are whole in the page's source.
                    source = path.read_text().replace("\\-", "-")
                    self.assertEqual({option for option in wanted if option not in source}, set())
                    self.assertGreater(len(shown), 0)

    def test_a_folder_that_is_not_there(self):
        done = run(BINARY, "man", "/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere", done.stderr)


CASES = [  # words, of which the last is being typed; some that must be offered
    (["ser"], ["serve"]),
    (["route", "--placement", ""], ["on", "homes", "off"]),
    (["bench", "ma"], ["machine"]),
    (["completion", ""], ["bash", "zsh", "fish"]),
    (["serve", "model", "--adapter-d"], ["--adapter-dir"]),
]


class Completion(unittest.TestCase):
    def test_bash(self):
        ask = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMPREPLY=(); _loralei; printf "%s\\n" "${COMPREPLY[@]}"'
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(script("bash"))
            file.flush()
            for words, wanted in [*CASES, (["route", "--placement", "=", "h"], ["homes"])]:
                with self.subTest(words):
                    done = run("bash", "-c", ask, "bash", file.name, "loralei", *words)
                    self.assertEqual(done.stderr, "")
                    offered = done.stdout.split("\n")
                    self.assertEqual([word for word in wanted if word not in offered], [])
                    self.assertNotIn("--secret", offered)
            # Files, where nothing else is taken.
            self.assertEqual(run("bash", "-c", ask, "bash", file.name, "loralei", "serve", "mod").stdout.strip(), "")

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed: tools/setup.sh test brings it")
    def test_zsh(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "_loralei"
            path.write_text(script("zsh"))
            self.assertEqual(run("zsh", "-n", path).stderr, "")
            # The shell's own functions, without a terminal: they print what they were given.
            ask = """compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -rl -- "$@" }
                _describe() { local one; for one in "${(@P)2}"; do print -r -- "${one%%:*}"; done }
                _files() { print FILES }
                file=$1; shift; words=("$@"); CURRENT=$#; PREFIX=$words[-1]; source $file"""
            for words, wanted in CASES:
                with self.subTest(words):
                    done = run("zsh", "-f", "-c", ask, "zsh", path, "loralei", *words)
                    self.assertEqual(done.stderr, "")
                    self.assertEqual([word for word in wanted if word not in done.stdout.split("\n")], [])
            self.assertEqual(run("zsh", "-f", "-c", ask, "zsh", path, "loralei", "serve", "mod").stdout, "FILES\n")

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed: tools/setup.sh test brings it")
    def test_fish(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "loralei.fish"
            path.write_text(script("fish"))
            self.assertEqual(run("fish", "-n", path).stderr, "")
            for words, wanted in CASES:
                with self.subTest(words):
                    typed = " ".join(["loralei", *words])
                    done = run("env", f"HOME={folder}", "fish", "--no-config", "-c", f"source {path}; complete -C {typed!r}")
                    offered = [line.split("\t")[0] for line in done.stdout.split("\n")]
                    self.assertEqual([word for word in wanted if word not in offered], [], done.stderr)

    def test_another_shell(self):
        done = run(BINARY, "completion", "csh")
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
