# SPDX-License-Identifier: Apache-2.0
"""Every option of every command can be given as a variable (LORALEI_...), and a variable that is none is told: asked of
the programs themselves, whatever commands they have."""
import os
import pathlib
import re
import subprocess
import unittest

from live_server import BINARY, ROOT, LiveServer

PICKER = BINARY.parent / "loralei-epp"
NO_VARIABLE = {"--help", "--help-all", "--version"}
SECRET = "sk-of-the-environment-4711"


def say(*words, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LORALEI_")}
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, env={**environment, **variables})


def commands():
    text = say(BINARY, "--help").stdout
    found = re.findall(r"^  ([a-z][a-z-]*) ", text[text.index("Subcommands:"):], re.MULTILINE)
    return [[BINARY, name] for name in found] + ([[PICKER]] if PICKER.exists() else [])


def options(command):
    """Long names and variables, as --help-all or --help shows them: [({names}, variable or None)]."""
    text = say(*command, "--help-all").stdout
    if "--help-all" not in text or "Env:" not in text:
        text = say(*command, "--help").stdout
    found = []
    for line in text.splitlines():
        if not re.match(r"^  -", line):
            continue
        names = set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", re.split(r" {2,}|\(Env:", line.strip())[0]))
        variable = re.search(r"\(Env:(LORALEI_[A-Z0-9_]+)\)", line)
        found.append((names, variable.group(1) if variable else None))
    return found


class Environment(unittest.TestCase):
    def test_every_option_of_every_command(self):
        self.assertGreaterEqual(len(commands()), 10)
        for command in commands():
            found = options(command)
            self.assertTrue(found, command)
            for names, variable in found:
                if names and not names & NO_VARIABLE:
                    self.assertIsNotNone(variable, f"{command}: {names}")
                    self.assertIn("--" + variable.removeprefix("LORALEI_").lower().replace("_", "-"), names, command)

    def test_they_are_read(self):
        for command in commands():
            for names, variable in options(command):
                if "--port" in names:
                    done = say(*command, *(["model"] if command[-1] == "serve" else []), LORALEI_PORT="99999999")
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn("port", (done.stdout + done.stderr).lower(), command)
        done = say(BINARY, "inspect", ROOT / "demo/model", LORALEI_MEMORY_BUDGET="nothing")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--memory-budget", done.stderr)

    def test_only_what_no_command_knows_is_told(self):
        every = {variable: "" for command in commands() for _, variable in options(command) if variable}  # empty: as if it were not set
        for name in ("LORALEI_ANSWER_TOKENS", "LORALEI_PORT", "LORALEI_SSL_CERTFILE", "LORALEI_REPLICA"):
            self.assertIn(name, every)
        done = say(BINARY, "inspect", ROOT / "demo/model", LORALEI_MEMROY_BUDGET="2GiB", **every)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(re.findall("The variable (\\w+) is no option", done.stderr), ["LORALEI_MEMROY_BUDGET"])

    def test_keys_given_so_are_not_shown(self):
        class Server(LiveServer):
            ENVIRONMENT = {**os.environ, "LORALEI_API_KEY": SECRET, "LORALEI_ADMIN_KEY": "admin-" + SECRET}
            LAUNCH = [str(BINARY)]

            def wait_ready(self):
                pass

        server = Server("-c", "256")
        try:
            self.assertEqual(server.request("GET", "/v1/models")[0], 401)
            self.assertEqual(server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {SECRET}"})[0], 200)
            self.assertEqual(server.request("GET", "/v1/queues", headers={"Authorization": f"Bearer {SECRET}"})[0], 403)
            command_line = pathlib.Path(f"/proc/{server.process.pid}/cmdline").read_bytes().decode()
            self.assertNotIn(SECRET, command_line)
            self.assertNotIn(SECRET, "\n".join(server.lines))
            self.assertNotIn(SECRET, server.request("GET", "/metrics")[2])
        finally:
            server.stop()
        refused = say(BINARY, "serve", ROOT / "demo/model", LORALEI_API_KEY=" " + SECRET)
        self.assertNotEqual(refused.returncode, 0)
        self.assertNotIn(SECRET, refused.stdout + refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
