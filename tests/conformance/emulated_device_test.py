# SPDX-License-Identifier: Apache-2.0
"""The server on an emulated device: adapters come over its link, answers are those of the cores, and what is shown is a device's."""
import subprocess
import unittest

from live_server import BINARY, ROOT, LiveServer

MODELS = ["model", "json", "cipher", "json"]


class EmulatedDeviceTest(unittest.TestCase):
    def ask_all(self, server):
        answers = []
        for model in MODELS:
            body = {"model": model, "prompt": "Q: apple river stone\nA:", "temperature": 0, "max_tokens": 8, "logprobs": 1}
            status, _, answer = server.request("POST", "/v1/completions", body)
            self.assertEqual(status, 200, answer)
            choice = answer["choices"][0]
            answers.append((choice["text"], choice["logprobs"]["token_logprobs"]))
        return answers

    def test_two_adapters_answer_as_on_the_cores(self):
        server = LiveServer()
        want = self.ask_all(server)
        server.stop()
        server = LiveServer("--device", "emulated:4", "--threads", "1", "--kv-cache-memory", "64MiB", "--adapter-memory", "64MiB")
        self.assertEqual(self.ask_all(server), want)
        self.assertEqual(server.metric("vllm:num_gpu_loaded_lora_adapters"), 2)
        self.assertEqual(server.metric("loralei_adapter_uploads_total"), 2)
        self.assertGreater(server.metric('loralei_device_memory_bytes{device="emulated:4",use="weights"}'), 0)
        memory = server.request("GET", "/v1/admin/memory")[2]
        self.assertEqual(memory["device"]["name"], "emulated:4")
        self.assertEqual(memory["weights_bytes"], 0, "weights count on the device alone")
        status, _, refused = server.request("PUT", "/v1/admin/memory", {"budget_bytes": 1 << 28})
        self.assertEqual(status, 400, refused)
        self.assertIn("while an emulated device computes", refused["error"]["message"])
        self.assertEqual(server.stop(), 0)
        told = "\n".join(server.lines)
        self.assertIn("over a link of 4 GB/s and 10 us a copy", told)

    def test_what_is_no_link_is_refused_with_a_sentence(self):
        for device in ["emulated:0", "emulated:fast", "emulated:4,"]:
            run = subprocess.run([BINARY, "serve", ROOT / "demo/model", "--device", device], capture_output=True, text=True)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn("--device emulated:GB_S[,US] says how fast", run.stdout + run.stderr)

    def test_bench_coldstart_names_its_ways_by_a_flag_of_its_own(self):
        for flags, sentence in [(["--cold-start", "auto"], "leave --cold-start out"), (["--device", "emulated:4"], "leave --device out")]:
            run = subprocess.run([BINARY, "bench", "coldstart", *flags], capture_output=True, text=True)
            self.assertEqual(run.returncode, 3)
            self.assertIn(sentence, run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main()
