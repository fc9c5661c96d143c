# SPDX-License-Identifier: Apache-2.0
"""The packages, on machines that have nothing yet: each is installed as its page says, serves an adapter of one's own, and goes again."""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = pathlib.Path(os.environ.get("PACKAGES", ROOT / "build/packages"))
CLEAN_ROOT = str(ROOT / "tests/packages/clean_root.sh")
ASKED = "Mara bought 42 red lamps"
ANSWER = "MARA BOUGHT 42 RED LAMPS!"
START_SECONDS = 120


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def commit_time():
    return os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()


def one_file(pattern):
    found = sorted(PACKAGES.glob(pattern))
    if len(found) != 1:
        raise AssertionError(f"{PACKAGES} has {len(found)} files {pattern}; tools/packages.sh makes them")
    return found[0]


WHY_NOT = subprocess.run([CLEAN_ROOT, "can"], stdout=subprocess.PIPE, text=True).stdout.strip()


def server_of(pid):
    """The process that a chain of starters has become."""
    while children := pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


class CleanRoot:
    """A machine that has Debian's smallest base."""

    def __init__(self, suite="bookworm"):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="loralei-root-"))
        run(CLEAN_ROOT, "make", self.folder, env={**os.environ, "SUITE": suite})

    def run(self, *command):
        return run(CLEAN_ROOT, "run", self.folder, *command)

    def copy(self, source, target):
        target = self.folder / target.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if pathlib.Path(source).is_dir() else shutil.copy2(source, target)

    @contextlib.contextmanager
    def server(self, *command):
        """(address, seconds until it was ready, bytes in memory then)."""
        begin = time.monotonic()
        process = subprocess.Popen([CLEAN_ROOT, "run", str(self.folder), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        try:
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"(http://127\.0\.0\.1:\d+)", line):
                    break
            else:
                raise AssertionError("the server did not start:\n" + "".join(said))
            url = found.group(1)
            while True:
                with contextlib.suppress(OSError):
                    if urllib.request.urlopen(url + "/ready", timeout=10).status == 200:
                        break
                if time.monotonic() - begin > START_SECONDS:
                    raise AssertionError("the server did not become ready:\n" + "".join(said))
                time.sleep(0.01)
            ready = time.monotonic() - begin
            status = pathlib.Path(f"/proc/{server_of(process.pid)}/status").read_text()
            yield url, ready, int(re.search(r"^VmRSS:\s*(\d+) kB", status, re.M).group(1)) * 1024
        finally:
            # It is the first process of its namespace; its end ends the rest.
            if process.poll() is None:
                os.kill(server_of(process.pid), signal.SIGTERM)
            process.wait(timeout=60)
            process.stdout.close()

    def files(self):
        """What is there and what it holds, without what any package manager leaves."""
        leaves = ("proc/", "dev/", "tmp/", "var/cache/", "var/lib/apt/", "var/lib/dpkg/", "var/log/", "run/")
        found = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if not name.startswith(leaves):
                found[name] = os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        return found

    def remove(self):
        shutil.rmtree(self.folder)


def ask(url, model):
    body = json.dumps({"model": model, "temperature": 0, "max_tokens": 48, "messages": [{"role": "user", "content": ASKED}]}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


@unittest.skipIf(WHY_NOT, WHY_NOT)
class InACleanRoot(unittest.TestCase):
    def root(self, *arguments):
        root = CleanRoot(*arguments)
        self.addCleanup(root.remove)
        # One's own model and adapter.
        root.copy(ROOT / "demo/model", "/root/my-model")
        root.copy(ROOT / "demo/adapters/shout", "/root/my-adapter")
        return root

    def serves(self, root, program, what, seconds):
        with root.server(program, "serve", "/root/my-model", "--adapter", "mine=/root/my-adapter", "--port", "0") as (url, ready, resident):
            begin = time.monotonic()
            self.assertEqual(ask(url, "mine"), ANSWER)
            self.assertNotEqual(ask(url, "my-model"), ANSWER)
            first = time.monotonic() - begin
        print(f"{what}: installed in {seconds:.1f} s, ready {ready:.2f} s after its start, {resident / 1e6:.1f} MB resident idle, first two answers {first:.2f} s")

    def test_the_archive_needs_nothing(self):
        self.archive_in(self.root(), "archive, Debian 12")

    def archive_in(self, root, what):
        archive = one_file("loralei-*-linux-x86_64.tar.gz")
        root.copy(archive, "/root/loralei.tar.gz")
        begin = time.monotonic()
        root.run("sh", "-c", "tar -C /opt -xzf /root/loralei.tar.gz && ln -s /opt/loralei-*/bin/loralei /usr/local/bin/loralei")
        seconds = time.monotonic() - begin
        begin = time.monotonic()
        said = root.run("loralei", "run", "/root/my-model", "--adapter", "/root/my-adapter", ASKED)
        print(f"{what}: `loralei run` in {time.monotonic() - begin:.2f} s")
        self.assertIn(ANSWER, said)
        self.serves(root, "loralei", what, seconds)

    @unittest.skipUnless(os.environ.get("LONG"), "./test --long runs it: another Debian is fetched")
    def test_the_archive_on_an_old_glibc(self):
        self.archive_in(self.root("bullseye"), "archive, Debian 11 with glibc 2.31")

    def test_the_wheel_installs_and_starts_a_server(self):
        root = self.root()
        run(CLEAN_ROOT, "run", root.folder, "sh", "-c", "apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv")
        wheel = one_file("loralei-*.whl")
        root.copy(wheel, f"/root/{wheel.name}")
        begin = time.monotonic()
        root.run("sh", "-c", f"python3 -m venv /root/venv && /root/venv/bin/pip install --no-index /root/{wheel.name}")
        print(f"wheel, Debian 12: a Python of its own and the wheel in {time.monotonic() - begin:.1f} s")
        self.assertRegex(root.run("/root/venv/bin/loralei", "--version"), r"^0\.2\.0 ")
        said = root.run("/root/venv/bin/python", "-c", "import loralei\nwith loralei.Server('/root/my-model', adapters={'mine': '/root/my-adapter'}) as server:\n"
                        f"    print(server.ask('mine', '{ASKED}', temperature=0, max_tokens=48))\nprint(server.stop())")
        self.assertEqual(said.splitlines()[-2:], [ANSWER, "0"])

    def test_the_deb_installs_serves_and_goes(self):
        root = self.root()
        before = root.files()
        package = one_file("loralei_*_amd64.deb")
        root.copy(package, "/tmp/loralei.deb")
        begin = time.monotonic()
        root.run("sh", "-c", "apt-get install -y --no-install-recommends /tmp/loralei.deb")
        seconds = time.monotonic() - begin
        self.assertRegex(root.run("loralei", "--version"), r"^0\.2\.0 ")
        self.serves(root, "loralei", "deb, Debian 12", seconds)
        added = set(root.files()) - set(before)
        self.assertIn("usr/bin/loralei", added)
        self.assertIn("usr/share/doc/loralei/copyright", added)
        self.assertIn("usr/lib/systemd/system/loralei.service", added)
        # Its settings are kept when they were changed, and go with a purge.
        settings = root.folder / "etc/default/loralei"
        settings.write_text(settings.read_text() + "LORALEI_MODEL=/root/my-model\n")
        root.run("sh", "-c", "apt-get install -y --reinstall --no-install-recommends /tmp/loralei.deb")
        self.assertIn("LORALEI_MODEL=/root/my-model", settings.read_text())
        root.run("sh", "-c", "install -d /var/lib/private/loralei && touch /var/lib/private/loralei/kept && apt-get remove -y loralei && test -e /var/lib/private/loralei/kept "
                             "&& apt-get install -y --no-install-recommends /tmp/loralei.deb")
        self.assertEqual([one for one in added if one.startswith(("usr/local", "opt", "root", "home"))], [])
        # The demo that it brings.
        self.assertIn(ANSWER, root.run("loralei", "run", "/usr/share/loralei/demo/model", "--adapter", "/usr/share/loralei/demo/adapters/shout", ASKED))
        root.run("apt-get", "purge", "-y", "loralei")
        (root.folder / "var/lib/private").rmdir()  # made here, and empty again
        after = root.files()
        self.assertEqual({name: what for name, what in after.items() if before.get(name) != what}, {})
        self.assertEqual(set(before) - set(after), set())


class Files(unittest.TestCase):
    def test_the_archive_is_orderly(self):
        archive = one_file("loralei-*-linux-x86_64.tar.gz")
        with tarfile.open(archive) as opened:
            members = opened.getmembers()
        names = [one.name for one in members]
        self.assertEqual({name.split("/")[0] for name in names}, {archive.name.removesuffix(".tar.gz")})
        self.assertEqual(names, sorted(names, key=lambda name: name.split("/")))
        self.assertEqual({(one.uid, one.gid, one.uname, one.gname) for one in members}, {(0, 0, "", "")})
        self.assertEqual(len({one.mtime for one in members}), 1)
        self.assertEqual([one.name for one in members if one.mode & 0o022], [])
        self.assertEqual(archive.read_bytes()[4:8], bytes(4), "no time in the archive's head")
        inside = {name.split("/", 1)[1] for name in names if "/" in name}
        for name in ("bin/loralei", "README.md", "LICENSE", "THIRD_PARTY.md", "share/doc/loralei/sbom.cdx.json"):
            self.assertIn(name, inside)

    def test_packed_again_it_is_the_same(self):
        archive = one_file("loralei-*-linux-x86_64.tar.gz")
        with tempfile.TemporaryDirectory() as folder:
            run(ROOT / "packaging/tarball.sh", ROOT / "build-portable", folder)
            again = pathlib.Path(folder) / archive.name
            self.assertEqual(hashlib.sha256(again.read_bytes()).hexdigest(), hashlib.sha256(archive.read_bytes()).hexdigest())
            package = one_file("loralei_*_amd64.deb")
            run("cpack", "-G", "DEB", "-B", folder, cwd=ROOT / "build-portable", env={**os.environ, "SOURCE_DATE_EPOCH": commit_time()}, umask=0o022)
            again = pathlib.Path(folder) / package.name
            self.assertEqual(hashlib.sha256(again.read_bytes()).hexdigest(), hashlib.sha256(package.read_bytes()).hexdigest())

    def test_the_program_does_not_say_where_it_was_built(self):
        program = ROOT / "build-portable/loralei"
        text = program.read_bytes()
        for where in (str(ROOT), os.uname().nodename, os.path.expanduser("~") + "/"):
            if len(where) > 3 and where != "/root/":
                self.assertNotIn(where.encode(), text)
        print(f"binary: {len(text) / 1e6:.1f} MB")

    def test_the_check_of_symbols_can_fail(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program"
            source = pathlib.Path(folder) / "program.c"
            source.write_text("#include <pthread.h>\nint main(void) { return pthread_create == 0; }")
            run("cc", "-o", program, source)
            check = ROOT / "packaging/portable/check_needs.py"
            done = subprocess.run([check, program], stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("needs GLIBC_2.34", done.stdout)
            self.assertIn("is enough", run(check, ROOT / "build-portable/loralei"))

    def test_what_is_left_of_icus_data_is_enough(self):
        text, as_one_has_it = "\ufb01ne \u00bd \uff21\u2460 e\u0301", {"NFC": "\ufb01ne \u00bd \uff21\u2460 \u00e9", "NFD": "\ufb01ne \u00bd \uff21\u2460 e\u0301",
                                                                  "NFKC": "fine 1\u20442 A1 \u00e9", "NFKD": "fine 1\u20442 A1 e\u0301"}
        for form, plain in as_one_has_it.items():
            with self.subTest(form), tempfile.TemporaryDirectory() as folder:
                model = pathlib.Path(folder) / "model"
                shutil.copytree(ROOT / "demo/model", model)
                tokenizer = json.loads((model / "tokenizer.json").read_text())
                tokenizer["normalizer"] = None
                ids = {}
                for named in (None, {"type": form}):
                    tokenizer["normalizer"] = named
                    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
                    process = subprocess.Popen([ROOT / "build-portable/loralei", "serve", model, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    try:
                        url = next(found.group(1) for line in process.stdout if (found := re.search(r"(http://127\.0\.0\.1:\d+)", line)))
                        body = json.dumps({"model": "model", "prompt": text if named else plain}).encode()
                        request = urllib.request.Request(url + "/tokenize", data=body, headers={"Content-Type": "application/json"})
                        ids[form if named else "plain"] = json.load(urllib.request.urlopen(request, timeout=60))["tokens"]
                    finally:
                        process.terminate()
                        process.wait(timeout=60)
                        process.stdout.close()
                self.assertEqual(ids[form], ids["plain"])

    def test_the_bill_of_materials(self):
        archive = one_file("loralei-*-linux-x86_64.tar.gz")
        with tarfile.open(archive) as opened:
            top = archive.name.removesuffix(".tar.gz")
            bill = json.load(opened.extractfile(f"{top}/share/doc/loralei/sbom.cdx.json"))
            program = opened.extractfile(f"{top}/bin/loralei").read()
            licences = {name.rsplit("/", 1)[1] for name in opened.getnames() if "/licences/" in name}
        self.assertEqual((bill["bomFormat"], bill["specVersion"]), ("CycloneDX", "1.5"))
        self.assertEqual(bill["metadata"]["component"]["hashes"][0]["content"], hashlib.sha256(program).hexdigest())
        parts = {one["name"]: one for one in bill["components"]}
        for name in ("libssl-dev", "libicu-dev", "libpcre2-dev", "libsqlite3-dev", "zeromq3", "prometheus-cpp", "libboost1.81-dev", "nlohmann-json"):
            self.assertIn(name, parts)
            self.assertTrue(parts[name]["version"] and parts[name]["licenses"])
        self.assertEqual({f"{name}.txt" for name in parts} - licences, set(), "each part's licence text is there")
        try:
            from cyclonedx.schema import SchemaVersion
            from cyclonedx.validation.json import JsonStrictValidator
        except ImportError:
            self.skipTest("cyclonedx-python-lib is not installed: tools/test_clients.sh brings it")
        self.assertIsNone(JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(bill)))

    @unittest.skipUnless(shutil.which("lintian"), "lintian is not installed: tools/setup.sh test brings it")
    def test_lintian_has_nothing_to_say(self):
        done = subprocess.run(["lintian", "--fail-on", "error,warning", "--allow-root", str(one_file("loralei_*_amd64.deb"))], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
