# SPDX-License-Identifier: Apache-2.0
"""The wheel: installed without a network into a Python of its own, it starts and stops servers, and leaves none behind."""
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = pathlib.Path(os.environ.get("PACKAGES", ROOT / "build/packages"))
LOADABLE = ROOT / "demo"  # holds none itself
MODEL, SHOUT = ROOT / "demo/model", ROOT / "demo/adapters/shout"
ASKED, ANSWER = "Mara bought 42 red lamps", "MARA BOUGHT 42 RED LAMPS!"
END_SECONDS = 60


def wheel():
    found = sorted(PACKAGES.glob("loralei-*.whl"))
    if len(found) != 1:
        raise AssertionError(f"{PACKAGES} has {len(found)} wheels; tools/packages.sh makes one")
    return found[0]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    return [int(one) for one in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait(condition, what):
    deadline = time.monotonic() + END_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come: {what}")
        time.sleep(0.02)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.bin = pathlib.Path(cls.folder.name) / "venv/bin"
        cls.command(sys.executable, "-m", "venv", cls.bin.parent)
        cls.command(cls.bin / "pip", "install", "--no-index", "--disable-pip-version-check", wheel())

    @classmethod
    def command(cls, *words, code=0, **more):
        # Of this Python alone: no program of another place, no settings of the test's own.
        env = {"PATH": "/usr/bin:/bin", "HOME": cls.folder.name, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=cls.folder.name, **more)
        if done.returncode != code:
            raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def python(self, script, **more):
        return self.command(self.bin / "python", "-W", "error", "-c", f"import loralei, os, threading\nMODEL, SHOUT, ADAPTERS = {str(MODEL)!r}, {str(SHOUT)!r}, {str(LOADABLE)!r}\n{script}", **more)

    def test_the_program_is_on_the_path(self):
        self.assertRegex(self.command(self.bin / "loralei", "--version"), r"^0\.2\.0 ")
        self.assertRegex(self.command(self.bin / "python", "-m", "loralei", "--version"), r"^0\.2\.0 ")
        self.assertEqual(self.python("print(loralei.__version__)").strip(), "0.2.0")
        self.assertIn("No broken requirements", self.command(self.bin / "pip", "check", "--disable-pip-version-check"))

    def test_a_server_answers_and_ends(self):
        said = self.python(f"""
with loralei.Server(MODEL, adapters={{"mine": SHOUT}}, max_num_seqs=4, adapter_dir=ADAPTERS, kv_sharing=False, served_model_name=["base", "other"]) as server:
    print(server.models())
    print(server.ask("mine", {ASKED!r}, temperature=0, max_tokens=48))
    server.load_adapter("reverse", SHOUT.replace("shout", "reverse"))
    print("reverse" in server.models())
    server.unload_adapter("reverse")
    print("reverse" in server.models())
    print(server.metrics()["loralei_adapters_registered"])
    try: server.ask("nobody", "x")
    except loralei.LoraleiError as error: print("refused:", error)
    print(repr(server).count(server.url), server.url in server._repr_html_(), server.port > 0)
print(server.running, server.stop(), repr(server).endswith(", ended>"))
try: server.ask("mine", "x")
except loralei.LoraleiError as error: print("gone:", "has ended" in str(error))
""")
        lines = said.splitlines()
        self.assertEqual(lines[0], "['base', 'other', 'mine']")
        self.assertEqual(lines[1], ANSWER)
        self.assertEqual(lines[2:5], ["True", "False", "1.0"])
        self.assertRegex(lines[5], "^refused: .*nobody")
        self.assertEqual(lines[6:], ["1 True True", "False 0 True", "gone: True"])

    def test_two_at_once_and_a_key(self):
        said = self.python(f"""
with loralei.Server(MODEL, adapters={{"mine": SHOUT}}, api_key=["secret", "other"], admin_key="admin") as one, loralei.Server(MODEL, env={{"LORALEI_SERVED_MODEL_NAME": "named"}}) as two:
    print(one.port != two.port, one.models(), two.models())
    print(one.ask("mine", {ASKED!r}, temperature=0, max_tokens=48))
""")
        self.assertEqual(said.splitlines(), ["True ['model', 'mine'] ['named']", ANSWER])

    def test_what_does_not_start_says_why(self):
        said = self.python("""
for make in (lambda: loralei.Server("/nowhere"), lambda: loralei.Server(MODEL, max_num_sequences=3), lambda: loralei.Server(MODEL, adapters={"x": "/nowhere"})):
    try: make()
    except loralei.LoraleiError as error: print(error)
""")
        lines = said.splitlines()
        self.assertRegex(lines[0], "/nowhere: does not exist")
        self.assertRegex(lines[1], "there is no option --max-num-sequences")
        self.assertRegex(lines[2], "/nowhere")
        self.assertEqual(len(lines), 3)

    def test_a_binary_that_is_none(self):
        said = self.python("""
os.environ["LORALEI_BINARY"] = "/nowhere"
try: loralei.Server(MODEL)
except loralei.LoraleiError as error: print(error)
with open("silent", "w") as file: file.write("#!/bin/sh\\necho I think; exec sleep 1000")
os.chmod("silent", 0o755)
os.environ["LORALEI_BINARY"] = os.path.abspath("silent")
try: loralei.Server(MODEL, start_timeout=0.5)
except loralei.LoraleiError as error: print(error)
""")
        self.assertIn("LORALEI_BINARY names /nowhere", said)
        self.assertIn("The server does not listen after 0.5 s; the last that it said: I think", said)

    def start_and_wait(self, script):
        """(the process that owns a server, its guard, the server)"""
        env = {"PATH": "/usr/bin:/bin", "HOME": self.folder.name, "PYTHONDONTWRITEBYTECODE": "1"}
        owner = subprocess.Popen([self.bin / "python", "-c", f"import loralei, sys, time, threading, os\nserver = loralei.Server({str(MODEL)!r}, adapters={{'mine': {str(SHOUT)!r}}})\n"
                                  f"print('up', flush=True)\n{script}"], stdout=subprocess.PIPE, text=True, env=env)
        self.addCleanup(owner.stdout.close)
        self.addCleanup(owner.wait)
        self.addCleanup(owner.kill)
        self.assertEqual(owner.stdout.readline(), "up\n")
        guard, = children(owner.pid)
        server, = children(guard)
        self.assertIn("serve", pathlib.Path(f"/proc/{server}/cmdline").read_text())
        return owner, guard, server

    def test_it_ends_when_its_owner_is_killed(self):
        owner, guard, server = self.start_and_wait("time.sleep(1000)")
        owner.send_signal(signal.SIGKILL)
        wait(lambda: not alive(server) and not alive(guard), "the end of both")

    def test_it_ends_when_what_stands_between_is_killed(self):
        owner, guard, server = self.start_and_wait("time.sleep(1000)")
        os.kill(guard, signal.SIGKILL)
        wait(lambda: not alive(server), "the server's end")

    def test_it_ends_with_its_owner(self):
        owner, guard, server = self.start_and_wait("sys.exit(3)")
        self.assertEqual(owner.wait(END_SECONDS), 3)
        self.assertFalse(alive(server) or alive(guard))

    def test_a_thread_that_made_it_may_end_and_a_fork_does_not_own_it(self):
        said = self.python(f"""
made = []
thread = threading.Thread(target=lambda: made.append(loralei.Server(MODEL, adapters={{"mine": SHOUT}})))
thread.start(); thread.join()
child = os.fork()
if child == 0:
    raise SystemExit(0)
os.waitpid(child, 0)
print(made[0].ask("mine", {ASKED!r}, temperature=0, max_tokens=48))
print(made[0].stop())
""")
        self.assertEqual(said.splitlines(), [ANSWER, "0"])

    def test_its_log_never_stands_in_its_way(self):
        said = self.python("""
with loralei.Server(MODEL) as server:
    for turn in range(300):
        try: server.request("POST", "/v1/chat/completions", {"model": "nobody%d" % turn})
        except loralei.LoraleiError: pass
    print(len(server.log) <= 200, server.running)
""")
        self.assertEqual(said.split(), ["True", "True"])

    def test_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([ROOT / "packaging/python/build_wheel.py", "-o", folder, "--sbom", PACKAGES / "loralei.sbom.cdx.json"], check=True, stdout=subprocess.DEVNULL)
            again, = pathlib.Path(folder).iterdir()
            self.assertEqual(again.name, wheel().name)
            self.assertEqual(hashlib.sha256(again.read_bytes()).hexdigest(), hashlib.sha256(wheel().read_bytes()).hexdigest())
            # A program that needs more of a machine is told apart by its tag.
            program = pathlib.Path(folder) / "program"
            subprocess.run(["cc", "-x", "c", "-", "-o", program], input=b"#include <pthread.h>\nint main(void) { return pthread_create == 0; }", check=True)
            said = subprocess.run([ROOT / "packaging/python/build_wheel.py", "-o", folder, "--binary", program], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertRegex(said, r"py3-none-linux_\w+\.whl$")
        with zipfile.ZipFile(wheel()) as opened:
            self.assertEqual(opened.testzip(), None)
            names = opened.namelist()
        self.assertIn("loralei/py.typed", names)
        self.assertIn("loralei-0.2.0.dist-info/sboms/loralei.cdx.json", names)

    def test_zz_it_goes_without_a_trace(self):
        self.command(self.bin / "pip", "uninstall", "-y", "--disable-pip-version-check", "loralei")
        left = [str(path) for path in self.bin.parent.rglob("*loralei*")]
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
