# SPDX-License-Identifier: Apache-2.0
"""What a client sees of the life of adapters and of the process: loading and unloading under traffic, keys, limits, drain."""
import concurrent.futures
import gzip
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from live_server import BINARY, ROOT, LiveServer

ADAPTERS = sorted(path.name for path in (ROOT / "demo/adapters").iterdir() if path.is_dir())


def chat(server, model, text="apple river stone", **options):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24, **options}
    if model is not None:
        body["model"] = model
    return server.request("POST", "/v1/chat/completions", body)


class AdapterLife(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.server = LiveServer("--adapter-dir", str(self.root), adapters=None)

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0, "\n".join(self.server.lines[-40:]))
        shutil.rmtree(self.root)

    def put(self, name, source):
        shutil.copytree(ROOT / "demo/adapters" / source, self.root / name)
        return str(self.root / name)

    def test_what_a_killed_application_alone_uses_goes(self):
        texts = {"mail": "apple river stone " * 20, "notes": "north paper silver " * 20}
        for app, text in texts.items():
            self.assertEqual(chat(self.server, None, text, app_id=app)[0], 200)
        before = {app["id"]: app for app in self.server.request("GET", "/v1/apps")[2]["apps"]}
        self.assertEqual(set(before), {"mail", "notes"})
        self.assertGreater(before["mail"]["alone_tokens"], 0)
        process = subprocess.Popen(["sleep", "600"])
        status, _, answer = self.server.request("PUT", "/v1/apps/mail", {"state": "background", "pid": process.pid})
        self.assertEqual((status, answer["bytes_freed"]), (200, 0))
        process.kill()
        process.wait()
        for _ in range(200):
            after = {app["id"]: app for app in self.server.request("GET", "/v1/apps")[2]["apps"]}
            if after.get("mail", {}).get("alone_tokens", 0) == 0:
                break
            time.sleep(0.05)
        self.assertEqual(after.get("mail", {}).get("alone_tokens", 0), 0)
        self.assertEqual(after["notes"]["alone_tokens"], before["notes"]["alone_tokens"])
        kv = self.server.request("GET", "/v1/kv")[2]
        status, _, answer = self.server.request("PUT", "/v1/apps/notes", {"state": "killed"})
        self.assertEqual(status, 200)
        self.assertEqual(answer["bytes_freed"], before["notes"]["alone_tokens"] // kv["block_tokens"] * kv["block_bytes"])

    def test_kv_names_who_holds_what(self):
        for name, source in (("one", ADAPTERS[0]), ("same", ADAPTERS[0]), ("other", ADAPTERS[1])):
            body = {"lora_name": name, "lora_path": self.put(name, source)}
            self.assertEqual(self.server.request("POST", "/v1/load_lora_adapter", body)[0], 200)
        for model in ("one", "same", "other"):
            self.assertEqual(chat(self.server, model, "apple river stone " * 20)[0], 200)
        status, _, kv = self.server.request("GET", "/v1/kv")
        self.assertEqual(status, 200, kv)
        self.assertEqual(kv["holders"], 2, "two names of one file are one holder")
        holders = {holder["adapters"][0]["name"]: holder for holder in kv["first"]}
        self.assertEqual(set(holders), {"one", "other"})
        self.assertGreater(holders["one"]["hit_tokens"], 0)
        self.assertGreater(holders["one"]["saved_s"], 0)
        self.assertEqual(holders["other"]["hit_tokens"], 0)
        self.assertEqual(sum(holder["tokens"] for holder in kv["first"]), kv["held_tokens"])
        self.assertLess(kv["text_tokens"], kv["held_tokens"], "both computed on the same text")
        self.assertEqual(kv["cached_tokens"], kv["held_tokens"])
        self.assertEqual(kv["free_tokens"] + kv["cached_tokens"], kv["total_tokens"])
        self.assertEqual(self.server.request("DELETE", "/v1/adapters/other")[0], 200)
        kv = self.server.request("GET", "/v1/kv")[2]
        self.assertEqual({holder["adapters"][0]["name"] for holder in kv["first"]}, {"one", None})

    def test_load_replace_unload(self):
        path = self.put("one", ADAPTERS[0])
        status, _, text = self.server.request("POST", "/v1/load_lora_adapter", {"lora_name": "one", "lora_path": path})
        self.assertEqual((status, text), (200, "Success: LoRA adapter 'one' added successfully."))
        status, _, _ = self.server.request("POST", "/v1/load_lora_adapter", {"lora_name": "one", "lora_path": path})
        self.assertEqual(status, 400)
        first = chat(self.server, "one")[2]["choices"][0]["message"]["content"]
        shutil.rmtree(path)
        self.put("one", ADAPTERS[1])
        status, _, _ = self.server.request("POST", "/v1/load_lora_adapter",
                                           {"lora_name": "one", "lora_path": path, "load_inplace": True})
        self.assertEqual(status, 200)
        second = chat(self.server, "one")[2]["choices"][0]["message"]["content"]
        self.assertNotEqual(first, second)
        status, _, text = self.server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "one"})
        self.assertEqual((status, text), (200, "Success: LoRA adapter 'one' removed successfully."))
        self.assertEqual(chat(self.server, "one")[0], 404)
        self.assertEqual(self.server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "one"})[0], 404)

    def test_order_of_refusals(self):
        load = lambda path: self.server.request("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path})[0]
        self.assertEqual(load("/etc"), 403)
        self.assertEqual(load("/no/such/folder"), 403)
        self.assertEqual(load(str(self.root / "absent")), 404)
        (self.root / "link").symlink_to("/etc")
        self.assertEqual(load(str(self.root / "link")), 403)
        self.assertEqual(load(str(self.root) + "/../" + self.root.name + "/absent"), 404)
        (self.root / "broken").mkdir()
        (self.root / "broken/adapter_config.json").write_text("{")
        (self.root / "broken/adapter_model.safetensors").write_bytes(b"")
        self.assertEqual(load(str(self.root / "broken")), 400)
        self.assertEqual(self.server.request("POST", "/v1/load_lora_adapter", {"lora_path": "x"})[0], 400)

    def test_churn_under_traffic_loses_nothing(self):
        path = self.put("one", ADAPTERS[0])
        self.put("two", ADAPTERS[1])
        self.assertEqual(self.server.request("POST", "/v1/adapters/rescan", {})[0], 200)
        expected = chat(self.server, "two")[2]["choices"][0]["message"]["content"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(chat, self.server, "two") for _ in range(40)]
            for _ in range(10):
                status, _, body = self.server.request(
                    "POST", "/v1/load_lora_adapter", {"lora_name": "one", "lora_path": path, "load_inplace": True})
                self.assertEqual(status, 200, body)
                self.assertEqual(chat(self.server, "one")[0], 200)
                self.assertEqual(self.server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "one"})[0], 200)
            for job in jobs:
                status, _, body = job.result()
                self.assertEqual(status, 200, body)
                self.assertEqual(body["choices"][0]["message"]["content"], expected)


class Memory(unittest.TestCase):
    """The budget changes under traffic: weights go to disk and come back, and every answer is the same."""

    def test_budget_changes_under_traffic(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        shutil.copytree(ROOT / "demo/model", folder / "model")
        server = LiveServer("-c", "512", "--max-num-seqs", "8", "--kv-cache-memory", "16MiB", "--adapter-memory", "32MiB",
                            model=folder / "model")
        try:
            status, _, before = server.request("GET", "/v1/admin/memory")
            self.assertEqual(status, 200)
            self.assertEqual(before["streamed_bytes_per_pass"], 0)
            fixed = sum(before[use] for use in ("kv_bytes", "scratch_bytes", "requests_bytes", "other_bytes")) + (32 << 20)
            names = ADAPTERS[:4]
            expected = {name: chat(server, name)[2]["choices"][0]["message"]["content"] for name in names}
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                jobs = [(name, pool.submit(chat, server, name)) for _ in range(15) for name in names]
                for share in (0.6, 0.4, 0.8, 2.0, 0.5):
                    budget = fixed + int(before["weights_bytes"] * share)
                    status, _, body = server.request("PUT", "/v1/admin/memory", {"budget_bytes": budget})
                    self.assertEqual(status, 200, body)
                    self.assertEqual(body["budget_bytes"], budget)
                    self.assertLessEqual(body["weights_bytes"], budget - fixed)
                    self.assertEqual(body["streamed_bytes_per_pass"] > 0, share < 1)
                    for name in names:
                        answer = chat(server, name)
                        self.assertEqual(answer[0], 200, answer[2])
                        self.assertEqual(answer[2]["choices"][0]["message"]["content"], expected[name])
                for name, job in jobs:
                    self.assertEqual(job.result()[0], 200, job.result()[2])
                    self.assertEqual(job.result()[2]["choices"][0]["message"]["content"], expected[name])
            self.assertGreater(server.metric("loralei_stream_read_bytes_total"), 0)
            status, _, body = server.request("PUT", "/v1/admin/memory", {"budget_bytes": "1MiB"})
            self.assertEqual(status, 413, body)
            self.assertIn("raise --memory-budget by", body["error"]["message"])
            # With the least it names the KV cache holds one text of the longest length, and answers stay the same.
            least = int(re.search(r"The least this server can do with is .*?\((\d+) bytes\)", body["error"]["message"])[1])
            status, _, body = server.request("PUT", "/v1/admin/memory", {"budget_bytes": least})
            self.assertEqual(status, 200, body)
            self.assertLess(body["kv_bytes"], before["kv_bytes"])
            for name in names:
                self.assertEqual(chat(server, name)[2]["choices"][0]["message"]["content"], expected[name])
            status, _, body = server.request("PUT", "/v1/admin/memory", {"budget_bytes": before["budget_bytes"]})
            self.assertEqual((status, body["kv_bytes"], body["streamed_bytes_per_pass"]), (200, before["kv_bytes"], 0))
            self.assertEqual(server.request("PUT", "/v1/admin/memory", {"budget": 5})[0], 400)
        finally:
            self.assertEqual(server.stop(), 0, "\n".join(server.lines[-40:]))
            shutil.rmtree(folder)

    def test_a_damaged_file_is_told_and_made_again_without_requests(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        shutil.copytree(ROOT / "demo/model", folder / "model")
        server = LiveServer("-c", "512", "--kv-cache-memory", "16MiB", "--adapter-memory", "32MiB", adapters=None,
                            model=folder / "model")
        try:
            before = server.request("GET", "/v1/admin/memory")[2]
            expected = chat(server, "model")[2]["choices"][0]["message"]["content"]
            budget = sum(before[use] for use in ("kv_bytes", "scratch_bytes", "requests_bytes", "other_bytes")) + (32 << 20)
            budget += before["weights_bytes"] // 2
            status, _, body = server.request("PUT", "/v1/admin/memory", {"budget_bytes": budget})
            self.assertEqual(status, 200, body)
            self.assertGreater(body["streamed_bytes_per_pass"], 0)
            packed = folder / "model" / "loralei.pack"
            times = packed.stat()
            with packed.open("r+b") as file:
                file.seek(times.st_size // 8)
                file.write(bytes(times.st_size - times.st_size // 8))
            os.utime(packed, ns=(times.st_atime_ns, times.st_mtime_ns))
            status, _, body = chat(server, "model")
            self.assertEqual(status, 500, body)
            status, _, body = server.request("GET", "/ready")
            self.assertEqual((status, body["status"], body["cannot"][0]["what"]), (503, "not ready", "requests"))
            self.assertIn("is being made again", body["cannot"][0]["why"])
            self.assertEqual(server.metric("loralei_ready"), 0)
            self.assertEqual(server.request("GET", "/health")[0], 200)
            server.wait_ready()  # which sends none
            self.assertEqual(server.metric("loralei_ready"), 1)
            status, _, body = chat(server, "model")
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["message"]["content"], expected)
        finally:
            self.assertEqual(server.stop(), 0, "\n".join(server.lines[-40:]))
            shutil.rmtree(folder)


class Metrics(unittest.TestCase):
    """Every metric that /metrics announces is filled by what it names."""

    MOMENTARY = {"loralei_requests_running", "loralei_requests_waiting", "loralei_requests_waiting_for_adapter", "loralei_queue_waiting",
                 "loralei_sequences_held", "loralei_kv_cache_usage_ratio", "loralei_adapters_idle_bytes", "vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "loralei_log_stuck_seconds"}
    OF_A_GPU = {"loralei_adapter_uploads_total", "loralei_adapter_upload_bytes_total", "loralei_adapter_upload_seconds_total"}
    # --kv-sharing, --kv-dir and --kv-events: kv_sharing_test.py, kv_dir_test.py, kv_events_test.py and metrics_test.cc have what counts.
    OF_RANKS = {"loralei_collective_bytes_total"}
    OF_EXPERTS = {"loralei_expert_uses_total"}  # streamed_experts_test.cc
    OF_STATES = {"loralei_kv_states", "loralei_kv_state_bytes", "loralei_kv_state_copies_total"}  # metrics_test.cc
    OF_A_PACE = {"loralei_paced", "loralei_paced_steps_late_total", "loralei_paced_late_seconds_total"}  # paced_test.py
    OF_ENCODING = {f"loralei_kv_{name}" for name in (
        "encoded_blocks", "encoded_bytes", "encoded_page_bytes", "encodes_total", "decodes_total", "damaged_total",
        "encode_seconds_total", "decode_seconds_total", "sharing_agreement_ratio", "disk_blocks", "disk_bytes",
        "disk_written_bytes_total", "disk_restored_total", "disk_read_bytes_total", "disk_read_encoded_total", "disk_read_seconds_total",
        "disk_refused_total", "disk_lost_total",
        "events_total", "event_messages_total", "event_replays_total", "events_dropped_total", "event_pictures_total")} | {"loralei_borrowed_prompt_tokens_total"}
    OF_COLD_STARTS = {"loralei_cold_layer_waits_total", "loralei_cold_layer_wait_seconds_total", "loralei_cold_steps_given_up_total",
                      "loralei_cold_hidden_seconds_total", "loralei_assisted_layers_total", "loralei_cold_handover_layer",
                      "loralei_assist_helpers", "loralei_assist_helper_restarts_total"}  # cold_start_test.py
    BEYOND_THIS_TEST = {"loralei_http_connections_refused_total",  # takes thousands of connections
                        "loralei_adapter_predicted_loads_total", "loralei_adapter_predicted_loads_used_total",  # take many minutes
                        "loralei_queue_quota_tokens", "loralei_queue_taken_tokens", "loralei_squashes_total",  # another policy, and predictions that are wrong
                        "loralei_output_length_error_octaves",  # another policy
                        "loralei_memory_given_bytes_total",  # --memory-sharing joint
                        "loralei_log_lines_dropped_total"}  # and a reader that does not read

    def families(self, server):
        sums, name = {}, None
        for line in server.request("GET", "/metrics")[2].splitlines():
            if line.startswith("# TYPE "):
                name = line.split()[2]
                sums[name] = 0.0
            elif not line.startswith("#"):
                sums[name] += float(line.rsplit(" ", 1)[1])
        return sums

    def test_as_openmetrics_and_packed(self):
        server = LiveServer()
        try:
            self.assertEqual(chat(server, ADAPTERS[0])[0], 200)
            deadline = time.monotonic() + 20  # requests are counted after their answer has left
            while "loralei_requests_total{" not in server.request("GET", "/metrics")[2] and time.monotonic() < deadline:
                time.sleep(0.05)
            families = {family.name: family for family in
                        openmetrics(server.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})[2])}
            self.assertEqual(families["loralei_requests"].type, "counter")
            self.assertGreater(sum(sample.value for sample in families["loralei_requests"].samples), 0)
            _, headers, packed = server.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"}, raw=True)
            self.assertEqual(headers["Content-Encoding"], "gzip")
            self.assertIn("loralei_requests_total", gzip.decompress(packed).decode())
        finally:
            self.assertEqual(server.stop(), 0)

    def test_nothing_is_announced_in_vain(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        shutil.copytree(ROOT / "demo/model", folder / "model")
        shutil.copytree(ROOT / "demo/adapters", folder / "adapters")
        (folder / "adapters/broken").mkdir()
        (folder / "adapters/broken/adapter_config.json").write_text("{")
        (folder / "adapters/broken/adapter_model.safetensors").write_bytes(b"")
        server = LiveServer("--adapter-dir", str(folder / "adapters"), "-c", "256", "--max-num-seqs", "4",
                            "--max-queued", "4", "--kv-cache-memory", "768KiB", "--adapter-memory", "4MiB",
                            "--speculate", "lookup", model=folder / "model", adapters=None)
        try:
            memory = server.request("GET", "/v1/admin/memory")[2]
            budget = sum(memory[f"{use}_bytes"] for use in ("kv", "scratch", "requests", "other")) + (4 << 20) + memory["weights_bytes"] // 2
            self.assertEqual(server.request("PUT", "/v1/admin/memory", {"budget_bytes": budget})[0], 200)
            for name in ADAPTERS * 2:  # more than there is room for
                self.assertEqual(chat(server, name, unheard_of=1)[0], 200)
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "apple", "max_tokens": 4},
                                            {"x-llm-d-slo-ttft-ms": "60000"})[0], 200)
            self.assertNotEqual(chat(server, "broken")[0], 200)
            status, _, _ = server.request("POST", "/v1/load_lora_adapter", {
                "lora_name": "broken", "lora_path": str(folder / "adapters/broken"), "load_inplace": True})
            self.assertNotEqual(status, 200)
            self.assertEqual(server.request("POST", "/lora-adapters", [])[0], 200)
            text = "apple river stone " * 8
            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                jobs = [pool.submit(chat, server, "model", f"{i} {text}", max_tokens=100, ignore_eos=True) for i in range(48)]
                self.assertEqual({job.result()[0] for job in jobs}, {200, 429})
            for _ in range(2):
                self.assertEqual(chat(server, ADAPTERS[0], text)[0], 200)
            with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as raw:
                raw.sendall(b"no such protocol\r\n\r\n")
                raw.recv(100)
            server.wait_metric("vllm:num_requests_running", 0)
            deadline = time.monotonic() + 20  # requests are counted after their answer has left
            while True:
                families = self.families(server)
                empty = {name for name, total in families.items() if total == 0} - self.MOMENTARY - self.BEYOND_THIS_TEST - self.OF_COLD_STARTS
                if empty == self.OF_A_GPU | self.OF_ENCODING | self.OF_RANKS | self.OF_EXPERTS | self.OF_STATES | self.OF_A_PACE or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            self.assertEqual(empty, self.OF_A_GPU | self.OF_ENCODING | self.OF_RANKS | self.OF_EXPERTS | self.OF_STATES | self.OF_A_PACE)
            self.assertGreater(len(families), 80)
        finally:
            self.assertEqual(server.stop(), 0, "\n".join(server.lines[-40:]))
            shutil.rmtree(folder)


class LearnedLengths(unittest.TestCase):
    """--predict-length learned, and --state-dir from start to start."""

    def live(self, folder, said):
        server = LiveServer("--schedule-policy", "sjf", "--predict-length", "learned", "--state-dir", str(folder))
        try:
            for name in ADAPTERS[:2] * 3:
                self.assertEqual(chat(server, name)[0], 200)
            text = " ".join(server.lines)
            for sentence, expected in said.items():
                self.assertEqual(sentence in text, expected, text)
            for predictor in ("history", "learned"):
                self.assertEqual(server.metric('loralei_output_length_error_octaves_count{predictor="%s"}' % predictor), 6)
        finally:
            self.assertEqual(server.stop(), 0, "\n".join(server.lines[-40:]))

    def test_what_was_learned_outlives_the_server(self):
        folder = pathlib.Path(tempfile.mkdtemp()) / "state"
        try:
            recalled, damaged = "lengths of answers as learned before", "is not used"
            self.live(folder, {recalled: False, damaged: False})
            files = list(folder.iterdir())
            self.assertEqual(len(files), 1)
            whole = files[0].read_bytes()
            self.live(folder, {recalled + ", of 2 adapters": True, damaged: False})
            files[0].write_bytes(whole[:-1000])
            self.live(folder, {recalled: False, damaged: True})
            self.live(folder, {recalled: True, damaged: False})
        finally:
            shutil.rmtree(folder.parent)


class Run(unittest.TestCase):
    def test_a_model_larger_than_memory_says_that_it_is_laid_out(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        shutil.copytree(ROOT / "demo/model", folder / "model")
        try:
            server = LiveServer("-c", "256", "--max-num-seqs", "1", model=folder / "model")
            memory = server.request("GET", "/v1/admin/memory")[2]
            server.stop()
            budget = sum(memory[f"{use}_bytes"] for use in ("kv", "scratch", "other")) + memory["weights_bytes"] // 2
            command = [str(BINARY), "run", str(folder / "model"), "-c", "256", "--memory-budget", str(budget), "-n", "8",
                       "--temp", "0", "apple river stone"]
            answers = [subprocess.run(command, capture_output=True, text=True, timeout=120) for _ in range(2)]
            for answer in answers:
                self.assertEqual(answer.returncode, 0, answer.stderr)
                self.assertNotEqual(answer.stdout.strip(), "")
            self.assertIn("The model is laid out for streaming, once: '", answers[0].stderr)
            self.assertNotIn("laid out", answers[1].stderr)
        finally:
            shutil.rmtree(folder)


class Mixed(unittest.TestCase):
    def test_200_streams_and_half_of_them_leave(self):
        server = LiveServer()
        try:
            def stream(index):
                leave = index % 2 == 1
                connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
                body = {"model": ADAPTERS[index % len(ADAPTERS)], "prompt": f"Q: word {index}\nA:", "stream": True,
                        "max_tokens": 100, "temperature": 1.0, "ignore_eos": True}
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                self.assertEqual(answer.status, 200)
                events = 0
                end = "broken"
                for line in answer:
                    if line.startswith(b"data: "):
                        events += 1
                        self.assertNotIn(b'"error"', line)
                        if leave and events == 5:
                            end = "left"
                            break
                        if line.strip() == b"data: [DONE]":
                            end = "done"
                answer.close()
                connection.close()
                return end

            with concurrent.futures.ThreadPoolExecutor(200) as pool:
                ends = list(pool.map(stream, range(200)))
            self.assertEqual(ends.count("left"), 100)
            self.assertEqual(ends.count("done"), 100)
            server.wait_metric("vllm:num_requests_running", 0)
            server.wait_metric('loralei_kv_blocks{state="used"}', 0)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_full_queue_is_429(self):
        server = LiveServer("--max-num-seqs", "1", "--max-queued", "2")
        try:
            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                jobs = [pool.submit(chat, server, "model", f"word {i}", max_tokens=200, ignore_eos=True) for i in range(24)]
                answers = [job.result() for job in jobs]
            statuses = [answer[0] for answer in answers]
            self.assertIn(429, statuses)
            self.assertIn(200, statuses)
            self.assertEqual(set(statuses), {200, 429})
            refused = next(answer for answer in answers if answer[0] == 429)
            self.assertTrue(int(refused[1]["Retry-After"]) >= 1)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_queues_say_who_waits_and_why(self):
        for policy in ("fifo", "wrs"):
            server = LiveServer("--max-num-seqs", "1", "--schedule-policy", policy)
            try:
                def ask(number):
                    body = {"prompt": f"{number} apple river", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
                    status, headers, answer = server.request("POST", "/v1/completions", body, {"X-Request-Id": f"mine-{number}"})
                    self.assertEqual(status, 200, answer)
                    return headers["X-Request-Id"]

                seen = {}  # cause by request
                running = set()
                with concurrent.futures.ThreadPoolExecutor(8) as pool:
                    jobs = [pool.submit(ask, number) for number in range(8)]
                    while not all(job.done() for job in jobs):
                        status, _, state = server.request("GET", "/v1/queues")
                        self.assertEqual(status, 200)
                        self.assertEqual(state["policy"], policy)
                        queue = state["queues"][0]
                        self.assertEqual(queue["quota_tokens"] is None, policy == "fifo")
                        self.assertLessEqual(queue["running"], 1)
                        self.assertEqual(len(queue["first_waiting"]), queue["waiting"])
                        self.assertEqual(len(queue["first_running"]), queue["running"])
                        seen.update((one["id"], one["cause"]) for one in queue["first_waiting"])
                        running.update(one["id"] for one in queue["first_running"])
                    ids = {job.result() for job in jobs}
                self.assertLessEqual(set(seen) | running, ids)
                self.assertGreater(len(seen), 2)
                self.assertLessEqual(set(seen.values()), {"turn", "rows", "slots", "quota"})
                self.assertIn("slots", seen.values())
            finally:
                self.assertEqual(server.stop(), 0)


class Keys(unittest.TestCase):
    def test_keys_and_admin(self):
        server = LiveServer("--api-key", "user-key", "--admin-key", "admin-key")
        try:
            user = {"Authorization": "Bearer user-key"}
            admin = {"Authorization": "Bearer admin-key"}
            self.assertEqual(server.request("GET", "/v1/models")[0], 401)
            self.assertEqual(server.request("GET", "/v1/models", headers=user)[0], 200)
            self.assertEqual(server.request("GET", "/health")[0], 200)
            body = {"lora_name": "x", "lora_path": "/etc"}
            self.assertEqual(server.request("POST", "/v1/load_lora_adapter", body)[0], 401)
            self.assertIn(server.request("POST", "/v1/load_lora_adapter", body, user)[0], (401, 403))
            self.assertEqual(server.request("POST", "/v1/load_lora_adapter", body, admin)[0], 403)
            self.assertEqual(server.request("POST", "/v1/load_lora_adapter", b"{}", {**admin, "Content-Type": "text/plain"})[0], 415)
        finally:
            server.stop()

    def test_keys_share_a_prefix_cache_only_where_asked(self):
        for flags, shared in ((), False), (("--prefix-cache-scope", "server"), True):
            server = LiveServer("--api-key", "one", "--api-key", "two", *flags)
            try:
                def cached(key, **more):
                    body = {"prompt": "The quick brown fox jumps over the lazy dog. " * 8, "max_tokens": 1, **more}
                    answer = server.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
                    self.assertEqual(answer[0], 200)
                    return answer[2]["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached("one"), 0)
                self.assertGreater(cached("one"), 0)
                self.assertEqual(cached("two") > 0, shared)
                self.assertEqual(cached("two", cache_salt="1:"), 0)
            finally:
                server.stop()

    def test_with_turns_one_key_does_not_starve_another(self):
        server = LiveServer("--api-key", "one", "--api-key", "two", "--fairness", "vtc", "--max-num-seqs", "1")
        try:
            ended = []

            def ask(key, number):
                body = {"prompt": f"{number} apple river", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
                status, _, answer = server.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
                self.assertEqual(status, 200, answer)
                ended.append(key)

            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                jobs = [pool.submit(ask, "one", number) for number in range(30)]
                while server.metric("loralei_requests_waiting") < 20:
                    time.sleep(0.01)
                jobs += [pool.submit(ask, "two", number) for number in range(2)]
                for job in jobs:
                    job.result()
            behind = len(ended) - 1 - max(place for place, key in enumerate(ended) if key == "two")
            self.assertGreater(behind, 5, ended)  # of 30 that had come before them
        finally:
            self.assertEqual(server.stop(), 0)

    def test_what_is_wanted_of_time_is_counted_and_checked(self):
        server = LiveServer()
        try:
            body = {"prompt": "apple river", "max_tokens": 8, "ignore_eos": True}
            times = {"x-llm-d-slo-ttft-ms": "3600000", "X-LLM-D-SLO-TPOT-MS": "0.000001"}
            self.assertEqual(server.request("POST", "/v1/completions", body, times)[0], 200)
            count = lambda slo, met: server.metric(f'loralei_slo_requests_total{{slo="{slo}",met="{met}"}}')
            self.assertEqual([count(slo, met) for slo in ("ttft", "tpot") for met in ("yes", "no")], [1, 0, 0, 1])
            embed = {"input": "apple"}
            self.assertEqual(server.request("POST", "/v1/embeddings", embed, {"x-llm-d-slo-ttft-ms": "0.000001"})[0], 200)
            self.assertEqual(count("ttft", "no"), 1)
            turns = {"model": "model", "max_tokens": 4, "messages": [{"role": "user", "content": "apple"}]}
            for path, asked in (("/v1/completions", body), ("/v1/chat/completions", turns), ("/v1/messages", turns),
                                ("/v1/responses", {"model": "model", "input": "apple"}), ("/v1/embeddings", embed)):
                for value in ("0", "-1", "soon", "3600001", ""):
                    status, _, answer = server.request("POST", path, asked, {"x-llm-d-slo-tpot-ms": value})
                    self.assertEqual(status, 400, (path, value, answer))
                    self.assertIn("x-llm-d-slo-tpot-ms", answer["error"]["message"])
        finally:
            self.assertEqual(server.stop(), 0)

    def test_foreign_origin_may_not_administer(self):
        server = LiveServer()
        try:
            body = {"lora_name": ADAPTERS[0]}
            status, _, _ = server.request("POST", "/v1/unload_lora_adapter", body, {"Origin": "http://evil.example"})
            self.assertEqual(status, 403)
            status, _, _ = server.request("POST", "/v1/unload_lora_adapter", body, {"Host": "evil.example"})
            self.assertEqual(status, 403)
        finally:
            server.stop()


class Drain(unittest.TestCase):
    def test_sigterm_finishes_what_runs(self):
        server = LiveServer("--shutdown-timeout", "60")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(chat, server, "model", max_tokens=300, ignore_eos=True)
            while server.metric("vllm:num_requests_running") == 0 and not running.done():
                time.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(running.result()[0], 200)
        self.assertEqual(server.process.wait(timeout=60), 0)


if __name__ == "__main__":
    unittest.main(verbosity=1)
