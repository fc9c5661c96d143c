# SPDX-License-Identifier: Apache-2.0
"""What services, containers and Kubernetes are told to do is what the program does: the unit's restrictions leave it what it needs,
manifests are valid and name options that exist, and probes answer as probes need from start to end."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

import kubernetes_validate
import yaml
from held_answers import HeldAnswers

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ["SERVER_BINARY"]
UNIT = ROOT / "packaging/systemd/loralei.service"
DEFAULT = ROOT / "packaging/systemd/default"
MANIFESTS = sorted((ROOT / "packaging/kubernetes").glob("*.yaml"))
START_SECONDS = 60
KUBERNETES = "1.31"
# systemd-analyze counts 0 (nothing is allowed) to 10; of what is left the network and AF_UNIX are needed.
EXPOSURE_MOST = 2.0
# MemoryDenyWriteExecute, where the kernel has it for a process of its own (6.3 and later): the words that follow are run under it.
DENY_WRITE_EXECUTE = "import ctypes, os, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
CAN_DENY = subprocess.run([sys.executable, "-c", "import ctypes, sys; sys.exit(ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0)"]).returncode == 0


def run(*command, **more):
    # systemd's programs would show pages and ask.
    env = {**os.environ, "SYSTEMD_PAGER": "cat", "SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8"}
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=120, **more)


def status(url):
    try:
        return urllib.request.urlopen(url, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait(condition, what):
    deadline = time.monotonic() + START_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come: {what}")
        time.sleep(0.02)
    return value


class Process:
    """A server started by words and variables alone, as services are."""

    def __init__(self, test, words, env, before=()):
        clean = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", **env}
        # A group of its own: what `before` has started goes with it.
        self.process = subprocess.Popen([*before, BINARY, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean, cwd=ROOT,
                                        start_new_session=True)
        self.lines = []
        self.url = None
        test.addCleanup(self.process.wait)
        test.addCleanup(self.end)
        self.found = threading.Event()
        threading.Thread(target=self.read, daemon=True).start()

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def read(self):
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip())
                if self.url is None and (match := re.search(r"(http://\S+:\d+)$", line.strip())):
                    self.url = match.group(1).replace("0.0.0.0", "127.0.0.1")
                    self.found.set()
        self.found.set()

    def ready(self):
        self.found.wait(START_SECONDS)
        if self.url is None:
            raise AssertionError("the server did not start:\n" + "\n".join(self.lines))
        wait(lambda: status(self.url + "/ready") == 200, "readiness")
        return self


def options_of(command):
    """{variable: option} of a command."""
    return {match.group(2): match.group(1) for match in re.finditer(r"--([\w-]+)[^\n]*\(Env:(LORALEI_\w+)\)", run(BINARY, command, "--help-all" if command == "serve" else "--help").stdout)}


class Service(unittest.TestCase):
    def setUp(self):
        self.unit = UNIT.read_text()

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_understands_it(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / UNIT.name
            unit.write_text(self.unit.replace("/usr/bin/loralei", "/bin/true"))
            done = run("systemd-analyze", "--no-pager", "verify", "--man=no", unit)
            self.assertEqual((done.returncode, done.stdout), (0, ""))
            done = run("systemd-analyze", "--no-pager", "security", "--offline=yes", unit)
            exposure = float(re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout).group(1))
            print(f"systemd's exposure level: {exposure}")
            self.assertLess(exposure, EXPOSURE_MOST)

    def test_its_settings_are_options(self):
        variables = options_of("serve")
        named = re.findall(r"^#?(LORALEI_\w+)=", DEFAULT.read_text(), re.M) + re.findall(r"(LORALEI_\w+)=", re.search(r"^Environment=(.*)$", self.unit, re.M).group(1))
        self.assertIn("LORALEI_MODEL", named)
        for name in named:
            if name != "LORALEI_MODEL":  # a word, no option
                self.assertIn(name, variables)

    def allowed(self):
        """The system calls that the unit's filter leaves."""
        listed = run("systemd-analyze", "--no-pager", "syscall-filter").stdout
        sets, current = {}, None
        for line in listed.splitlines():
            if line.startswith(("@", "#")) or not line.startswith(" "):
                current = line.strip().lstrip("# ")
                sets.setdefault(current, set())
            elif not line.strip().startswith("#") and current:
                sets[current].add(line.strip())

        def expand(name):
            return {call for one in sets[name] for call in (expand(one) if one.startswith("@") else {one})}

        allowed = set()
        for line in re.findall(r"^SystemCallFilter=(.*)$", self.unit, re.M):
            calls = {call for name in line.lstrip("~").split() for call in (expand(name) if name.startswith("@") else {name})}
            allowed = allowed - calls if line.startswith("~") else allowed | calls
        return allowed

    @unittest.skipUnless(shutil.which("strace") and shutil.which("systemd-analyze"), "strace or systemd-analyze is not installed: tools/setup.sh test brings them")
    def test_its_restrictions_leave_what_the_server_does(self):
        allowed = self.allowed()
        self.assertIn("read", allowed)
        self.assertNotIn("mount", allowed)
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace"
            env = {"LORALEI_MODEL": "demo/model", "LORALEI_ADAPTER_DIR": "demo/adapters", "LORALEI_PORT": "0", "LORALEI_STATE_DIR": folder}
            server = Process(self, ["serve"], env, [sys.executable, "-c", DENY_WRITE_EXECUTE, "strace", "-f", "-qq", "-o", str(trace)]).ready()
            body = json.dumps({"model": "shout", "temperature": 0, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}).encode()
            request = urllib.request.Request(server.url + "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"})
            self.assertEqual(urllib.request.urlopen(request, timeout=60).status, 200)
            tracee, = map(int, pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split())
            maps = pathlib.Path(f"/proc/{tracee}/maps").read_text()
            if CAN_DENY:
                self.assertEqual([line for line in maps.splitlines() if re.match(r"\S+ .wx", line)], [])
            else:
                print("this kernel cannot deny a process memory that is written and executed: not looked at")
            os.kill(tracee, signal.SIGHUP)
            wait(lambda: any("rescan" in line for line in server.lines), "the reload")
            os.kill(tracee, signal.SIGTERM)
            self.assertEqual(server.process.wait(START_SECONDS), 0)
            lines = trace.read_text().splitlines()
        called = {match.group(1) for line in lines if (match := re.match(r"\d+\s+(\w+)\(", line))}
        families = {match.group(1) for line in lines if (match := re.search(r"\bsocket\((AF_\w+)", line))}
        self.assertIn("futex", called)
        self.assertEqual(called - allowed - {"execve"}, set(), "calls that the unit forbids")
        self.assertEqual(families - set(re.search(r"^RestrictAddressFamilies=(.*)$", self.unit, re.M).group(1).split()), set())
        writable = [match.group(1) for line in lines if "O_WRONLY" in line or "O_RDWR" in line if (match := re.search(r'openat?\(.*?"([^"]+)"', line)) and " = -1 " not in line]
        self.assertEqual([path for path in writable if not path.startswith((folder, "/dev/null", "/dev/shm/", "/memfd"))], [], "ProtectSystem=strict")

    def test_it_is_told_when_the_server_is_ready_reloads_and_ends(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
            where = folder + "/notify"
            manager.bind(where)
            manager.settimeout(START_SECONDS)
            server = Process(self, ["serve"], {"LORALEI_MODEL": "demo/model", "LORALEI_ADAPTER_DIR": "demo/adapters", "LORALEI_PORT": "0", "NOTIFY_SOCKET": where})
            said = manager.recv(4096).decode()
            self.assertRegex(said, r"^READY=1\nSTATUS=serves 8 adapters on port \d+$")
            server.ready()
            self.assertEqual(said.rsplit(" ", 1)[1], server.url.rsplit(":", 1)[1])
            server.process.send_signal(signal.SIGHUP)
            self.assertRegex(manager.recv(4096).decode(), r"^RELOADING=1\nMONOTONIC_USEC=\d+$")
            self.assertEqual(manager.recv(4096).decode(), said)
            server.process.terminate()
            self.assertEqual(manager.recv(4096).decode(), "STOPPING=1")
            self.assertEqual(server.process.wait(START_SECONDS), 0)
            router = Process(self, ["route", "--replica", "http://127.0.0.1:9", "--port", "0"], {"NOTIFY_SOCKET": where})
            self.assertRegex(manager.recv(4096).decode(), r"^READY=1\nSTATUS=routes to 1 replicas on port \d+$")
            router.process.terminate()
            self.assertEqual(manager.recv(4096).decode(), "STOPPING=1")

    def test_settings_that_are_wrong_end_with_the_status_that_is_not_tried_again(self):
        prevented = re.search(r"^RestartPreventExitStatus=(\d+)$", self.unit, re.M).group(1)
        for env in ({}, {"LORALEI_MODEL": "demo/model", "LORALEI_PORT": "no port"}):
            self.assertEqual(str(Process(self, ["serve"], env).process.wait(START_SECONDS)), prevented)

    def test_the_grace_is_longer_than_the_drain(self):
        drain = int(re.search(r"--shutdown-timeout[^\n]*?\]=(\d+)", run(BINARY, "serve", "--help-all").stdout).group(1))
        self.assertGreater(int(re.search(r"^TimeoutStopSec=(\d+)$", self.unit, re.M).group(1)), drain)
        for one in manifests():
            if one["kind"] in ("StatefulSet", "Deployment"):
                self.assertGreaterEqual(one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], drain + 5)


class Container(unittest.TestCase):
    def test_as_the_first_process_it_drains_and_ends(self):
        server = Process(self, ["serve"], {"LORALEI_MODEL": "demo/model", "LORALEI_PORT": "0"}, ["unshare", "--pid", "--fork", "--kill-child"])
        try:
            server.ready()
        except AssertionError as error:
            if "unshare" in str(error):
                self.skipTest("this machine lets nobody make namespaces")
            raise
        first, = map(int, pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split())
        os.kill(first, signal.SIGTERM)
        self.assertEqual(server.process.wait(START_SECONDS), 0)
        self.assertTrue(any("draining" in line for line in server.lines))

    def test_the_file_names_what_there_is(self):
        text = (ROOT / "packaging/container/Containerfile").read_text()
        variables = options_of("serve")
        for name in re.findall(r"(LORALEI_\w+)=", text):
            self.assertIn(name, variables)
        self.assertIn(re.search(r"project\(loralei VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1), text)
        self.assertRegex(text, r"(?m)^USER \d+:\d+$")

    @unittest.skipUnless(shutil.which("docker") and run("docker", "info").returncode == 0, "no container engine answers here")
    def test_it_builds_and_serves(self):
        self.assertEqual(run("docker", "build", "-q", "-f", ROOT / "packaging/container/Containerfile", "-t", "loralei:test", ROOT).returncode, 0)
        done = run("docker", "run", "--rm", "--read-only", "-v", f"{ROOT}/demo:/demo:ro", "loralei:test", "run", "/demo/model", "--adapter", "/demo/adapters/shout", "Mara bought 42 red lamps")
        self.assertIn("MARA BOUGHT 42 RED LAMPS!", done.stdout)


@unittest.skipUnless(shutil.which("nginx", path="/usr/sbin:/usr/bin"), "nginx is not installed: tools/setup.sh test brings it")
class Proxy(unittest.TestCase):
    def keeps_admin_routes(self, server, proxy):
        """Whatever host a client says that it asks; without an admin key they are for local clients."""
        listed = urllib.request.urlopen(server + "/", timeout=10).read().decode()
        routes = re.findall(r"^(\w+) +(\S+) +\(admin\)$", listed, re.M)
        self.assertGreater(len(routes), 15)
        for method, path in routes:
            for host in ("localhost", "127.0.0.1:8080", "example.org"):
                request = urllib.request.Request(proxy + path.replace("{name}", "nobody"), method=method, headers={"Host": host}, data=None if method == "GET" else b"{}")
                with self.subTest(f"{method} {path} {host}"), self.assertRaises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(request, timeout=10)
                self.assertEqual(refused.exception.code, 403)
        self.assertEqual(status(server + "/v1/queues"), 200, "straight from here they answer")

    def test_nginx_passes_each_part_on_at_once(self):
        server = Process(self, ["serve"], {"LORALEI_MODEL": "demo/model", "LORALEI_PORT": "0", "LORALEI_ALLOWED_HOST": "loralei.proxied"}).ready()
        held = HeldAnswers(server.url, events=4)
        self.addCleanup(held.close)
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
            free.close()
            included = (ROOT / "packaging/nginx/loralei.conf").read_text()
            self.assertIn("http://127.0.0.1:8080", included)
            (pathlib.Path(folder) / "loralei.conf").write_text(included.replace("http://127.0.0.1:8080", held.url))
            (pathlib.Path(folder) / "nginx.conf").write_text(f"""daemon off; pid {folder}/pid; error_log stderr; events {{}}
                http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
                  scgi_temp_path {folder}/s; server {{ listen 127.0.0.1:{port}; include {folder}/loralei.conf; }} }}""")
            nginx = subprocess.Popen(["/usr/sbin/nginx", "-p", folder, "-c", f"{folder}/nginx.conf"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                url = f"http://127.0.0.1:{port}"
                wait(lambda: status(url + "/ready") == 200, "nginx")
                body = json.dumps({"model": "model", "stream": True, "temperature": 0, "max_tokens": 32, "messages": [{"role": "user", "content": "Hello"}]}).encode()
                request = urllib.request.Request(url + "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"})
                self.keeps_admin_routes(server.url, url)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    # The rest of it has not left the server's side.
                    self.assertEqual([answer.readline()[:6] for _ in range(6)], [b"data: ", b"\n"] * 3)
                    held.release()
                    self.assertTrue(answer.read().rstrip().endswith(b"data: [DONE]"))
            finally:
                nginx.terminate()
                nginx.wait(START_SECONDS)


def manifests():
    return [one for path in MANIFESTS if path.name != "kustomization.yaml" for one in yaml.safe_load_all(path.read_text())]


def pods():
    return [(one, one["spec"]["template"]["spec"]) for one in manifests() if one["kind"] in ("StatefulSet", "Deployment")]


class Kubernetes(unittest.TestCase):
    def test_every_manifest_is_valid(self):
        kinds = [one["kind"] for one in manifests()]
        self.assertEqual(sorted(set(kinds)), ["Deployment", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget", "Secret", "Service", "StatefulSet"])
        for one in manifests():
            with self.subTest(one["kind"] + " " + one["metadata"]["name"]):
                kubernetes_validate.validate(one, KUBERNETES, strict=True)
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**pods()[0][0], "spec": {"replicas": "two"}}, KUBERNETES, strict=True)

    def test_the_kustomization_names_every_file(self):
        named = yaml.safe_load((ROOT / "packaging/kubernetes/kustomization.yaml").read_text())["resources"]
        self.assertEqual(sorted(named), sorted(path.name for path in MANIFESTS if path.name != "kustomization.yaml"))

    def test_pods_keep_to_the_restricted_standard(self):
        for one, pod in pods():
            with self.subTest(one["metadata"]["name"]):
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertEqual(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
                self.assertFalse(pod["automountServiceAccountToken"])
                for container in pod["containers"]:
                    context = container["securityContext"]
                    self.assertEqual((context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"], context["capabilities"]["drop"]), (False, True, ["ALL"]))
                    self.assertIn("memory", container["resources"]["limits"])

    def test_names_fit_together(self):
        by_kind = {(one["kind"], one["metadata"]["name"]): one for one in manifests()}
        secret = by_kind["Secret", "loralei-keys"]["stringData"]
        servers = by_kind["StatefulSet", "loralei"]
        for one, pod in pods():
            labels = one["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(one["spec"]["selector"]["matchLabels"], labels)
            self.assertIn(labels, [service["spec"]["selector"] for (kind, _), service in by_kind.items() if kind == "Service"])
            for container in pod["containers"]:
                mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
                self.assertEqual(mounts, {volume["name"] for volume in pod.get("volumes", [])} | {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])})
                for variable in container["env"]:
                    if "valueFrom" in variable:
                        self.assertIn(variable["valueFrom"]["secretKeyRef"]["key"], secret)
        # Every server that there is, and no other, is named to the router.
        router, = [pod["containers"][0] for one, pod in pods() if one["metadata"]["name"] == "loralei-router"]
        wanted = {f"--replica=http://loralei-{number}.{servers['spec']['serviceName']}:8080" for number in range(servers["spec"]["replicas"])}
        self.assertEqual({word for word in router["args"] if word.startswith("--replica=")}, wanted)

    def test_the_budget_is_below_the_limit(self):
        container = dict((one["metadata"]["name"], pod["containers"][0]) for one, pod in pods())["loralei"]
        budget = next(variable["value"] for variable in container["env"] if variable["name"] == "LORALEI_MEMORY_BUDGET")
        self.assertLess(int(budget.removesuffix("GiB")), int(container["resources"]["limits"]["memory"].removesuffix("Gi")))

    def test_the_program_takes_these_words_and_answers_these_probes(self):
        for one, pod in pods():
            container = pod["containers"][0]
            command = container["args"][0]
            variables = options_of(command)
            env = {}
            for variable in container["env"]:
                name = variable["name"]
                if name.startswith("LORALEI_") and name != "LORALEI_MODEL":
                    self.assertIn(name, variables)
                env[name] = variable.get("value", "secret")
            # Here it is another model, and a port that is free.
            changed = {"LORALEI_MODEL": "demo/model", "LORALEI_ADAPTER_DIR": "demo/adapters", "HF_HUB_CACHE": tempfile.gettempdir(), "LORALEI_PORT": "0", "LORALEI_MEMORY_BUDGET": "1GiB"}
            env = {name: changed.get(name, value) for name, value in env.items()}
            words = [re.sub(r"--port=\d+|http://loralei-\d\.loralei:8080", lambda found: "--port=0" if "port" in found.group() else "http://127.0.0.1:4" + found.group()[len("http://loralei-")], word) for word in container["args"]]
            server = Process(self, words, env)
            server.found.wait(START_SECONDS)
            self.assertIsNotNone(server.url, "\n".join(server.lines))
            live, ready = container["livenessProbe"]["httpGet"]["path"], container["readinessProbe"]["httpGet"]["path"]
            # Probes have no key.
            wait(lambda: status(server.url + live) == 200, "liveness")
            if command == "serve":
                wait(lambda: status(server.url + ready) == 200, "readiness")
                self.assertEqual(status(server.url + container["startupProbe"]["httpGet"]["path"]), 200)
                self.drains(server, live, ready)
            else:
                self.assertEqual(status(server.url + ready), 503, "no server is up")
                server.process.terminate()
            self.assertEqual(server.process.wait(START_SECONDS), 0)

    def drains(self, server, live, ready):
        """An answer runs to its end while nothing new is sent there; it lives, and is not ready."""
        body = json.dumps({"model": "demo", "prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True, "temperature": 0}).encode()
        models = json.load(urllib.request.urlopen(urllib.request.Request(server.url + "/v1/models", headers={"Authorization": "Bearer secret"}), timeout=10))
        body = body.replace(b'"demo"', json.dumps(models["data"][0]["id"]).encode())
        request = urllib.request.Request(server.url + "/v1/completions", data=body, headers={"Content-Type": "application/json", "Authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
            server.process.terminate()
            seen = set()
            wait(lambda: seen.add((status(server.url + live), status(server.url + ready))) or (200, 503) in seen or server.process.poll() is not None, "draining")
            self.assertTrue(answer.read().rstrip().endswith(b"data: [DONE]"))
        self.assertIn((200, 503), seen)


if __name__ == "__main__":
    unittest.main()
