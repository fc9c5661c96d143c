# SPDX-License-Identifier: Apache-2.0
"""What clients of llama.cpp, vLLM and SGLang ask a server for beside the API, and broken adapters told at start."""
import json
import pathlib
import shutil
import tempfile
import time
import unittest

from live_server import ROOT, LiveServer

TEXT = "apple river stone"


def answer(server, **fields):
    """Text and log-probabilities of a greedy completion, or the status and the sentence."""
    body = {"messages": [{"role": "user", "content": TEXT}], "temperature": 0, "max_tokens": 24, "logprobs": True,
            "top_logprobs": 3, **fields}
    status, _, reply = server.request("POST", "/v1/chat/completions", body)
    if status != 200:
        return status, reply["error"]["message"]
    choice = reply["choices"][0]
    return choice["message"]["content"], choice["logprobs"]


class DefaultAdapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "\n".join(cls.server.lines[-40:])

    def scales(self):
        return {entry["name"]: entry["scale"] for entry in self.server.request("GET", "/lora-adapters")[2]}

    def post(self, entries):
        return self.server.request("POST", "/lora-adapters", entries)

    def test_scales_for_all_are_the_explicit_ones_and_go_again(self):
        listed = self.server.request("GET", "/lora-adapters")[2]
        ids = {entry["name"]: entry["id"] for entry in listed}
        self.assertEqual([entry["id"] for entry in listed], list(range(len(listed))))
        self.assertEqual(set(self.scales().values()), {0.0})
        base = answer(self.server)
        for wanted in ([("shout", 1.0)], [("cipher", 0.5)], [("reverse", 0.75), ("shout", 0.5)]):
            explicit = [{"id": ids[name], "scale": scale} for name, scale in wanted]
            expected = answer(self.server, lora=explicit)
            self.assertNotEqual(expected, base)
            self.assertEqual(self.post(explicit)[::2], (200, {"success": True}))
            self.assertEqual({name: scale for name, scale in self.scales().items() if scale}, dict(wanted))
            # Again, so that the second finds the prefix of the first, and in turns with the others'.
            for _ in range(2):
                self.assertEqual(answer(self.server), expected)
                self.assertEqual(answer(self.server, model="model"), expected)
                self.assertEqual(answer(self.server, lora=[]), base)
                self.assertEqual(answer(self.server, lora=[{"id": ids["json"], "scale": 1}]),
                                 answer(self.server, model="json"))
            self.assertEqual(self.post([])[0], 200)
            self.assertEqual(answer(self.server), base)
        self.assertEqual(set(self.scales().values()), {0.0})
        self.assertGreaterEqual(self.server.metric("loralei_default_adapters_set_total"), 6)

    def test_what_cannot_be_set_changes_nothing(self):
        before = self.scales()
        status, _, reply = self.post([{"id": 0, "scale": 1}, {"id": 99, "scale": 1}])
        self.assertEqual(status, 400)
        self.assertIn("No adapter has the id 99", reply["error"]["message"])
        self.assertEqual(self.post({"id": 0, "scale": 1})[0], 400)
        self.assertEqual(self.scales(), before)


class Facts(unittest.TestCase):
    def test_what_is_told_is_what_is_so(self):
        server = LiveServer("-c", "512", "--max-num-seqs", "3", "--served-model-name", "m", "--api-key", "k")
        key = {"Authorization": "Bearer k"}
        try:
            got = {}
            for path in ("/props", "/tokenizer_info", "/server_info", "/get_server_info", "/model_info", "/get_model_info",
                         "/lora-adapters"):
                status, _, refused = server.request("GET", path)
                self.assertEqual(status, 401, path)
                self.assertNotIn(str(ROOT), json.dumps(refused))
                status, _, got[path] = server.request("GET", path, headers=key)
                self.assertEqual(status, 200, path)
            self.assertEqual(server.request("POST", "/props", {}, headers=key)[0], 405)
            cards = server.request("GET", "/v1/models", headers=key)[2]["data"]
            props = got["/props"]
            self.assertEqual(props["default_generation_settings"]["n_ctx"], 512)
            self.assertEqual(props["total_slots"], 3)
            self.assertEqual((props["model_alias"], props["model_path"]), ("m", cards[0]["root"]))
            info = got["/tokenizer_info"]
            self.assertEqual(info["chat_template"], props["chat_template"])
            self.assertEqual(info["eos_token"], props["eos_token"])
            config = json.loads((ROOT / "demo/model/tokenizer_config.json").read_text())
            self.assertEqual(info["eos_token"], config["eos_token"])
            if "tokenizer_class" in config:
                self.assertEqual(info["tokenizer_class"], config["tokenizer_class"])
            sglang = got["/server_info"]
            self.assertEqual(sglang["max_running_requests"], 3)
            self.assertGreaterEqual(sglang["max_total_num_tokens"], 512)
            self.assertEqual({(entry["lora_name"], entry["lora_path"]) for entry in sglang["lora_paths"]},
                             {(card["id"], card["root"]) for card in cards if card["parent"]})
            self.assertEqual(got["/get_model_info"], got["/model_info"])
            # What is told as the default of a field may be sent.
            params = props["default_generation_settings"]["params"]
            body = {"messages": [{"role": "user", "content": TEXT}], **params, "max_tokens": 4, "n_predict": 4}
            status, _, reply = server.request("POST", "/v1/chat/completions", body, headers=key)
            self.assertEqual(status, 200, reply)
        finally:
            self.assertEqual(server.stop(), 0)


class BrokenAdapters(unittest.TestCase):
    def test_they_are_told_at_start_and_mended_later(self):
        root = pathlib.Path(tempfile.mkdtemp())
        for name in ("good", "cut", "bare", "mine"):
            shutil.copytree(ROOT / "demo/adapters/shout", root / name)
        weights = (root / "cut/adapter_model.safetensors").read_bytes()
        (root / "cut/adapter_model.safetensors").write_bytes(weights[:-100])
        (root / "bare/adapter_model.safetensors").unlink()
        config = json.loads((root / "mine/adapter_config.json").read_text())
        (root / "mine/adapter_config.json").write_text(json.dumps({**config, "target_modules": ["no_such_proj"]}))
        server = LiveServer("--adapter-dir", str(root), adapters=None)
        try:
            banner = [line for line in server.lines if line.startswith("broken: ")]
            self.assertEqual(len(banner), 3, banner)
            self.assertTrue(any('"cut"' in line and "cut off" in line for line in banner), banner)
            self.assertTrue(any('"bare"' in line and "has no adapter_model.safetensors" in line for line in banner), banner)
            self.assertTrue(any('"mine"' in line for line in banner), banner)
            self.assertTrue(any("adapters checked adapters=4 broken=3" in line for line in server.lines), server.lines)
            self.assertTrue(any(line.startswith("try: ") and '"model": "good"' in line for line in server.lines))
            self.wait_states(server, {"good": "registered", "cut": "failed", "bare": "failed", "mine": "failed"})
            states = self.states(server)
            for name in ("cut", "bare", "mine"):
                self.assertTrue(any(line == "broken: " + states[name][1] for line in banner), states[name])
                status, sentence = answer(server, model=name)
                self.assertGreaterEqual(status, 400)
                self.assertEqual(sentence, states[name][1])
            good = answer(server, model="good")
            self.assertIsInstance(good[0], str)
            # The next request finds one that was mended, a rescan the other without a request.
            (root / "cut/adapter_model.safetensors").write_bytes(weights)
            self.assertEqual(answer(server, model="cut"), good)
            (root / "bare/adapter_model.safetensors").write_bytes(weights)
            shutil.copytree(root / "mine", root / "later")
            status, _, found = server.request("POST", "/v1/adapters/rescan", {})
            self.assertEqual((status, found["added"]), (200, ["later"]))
            self.wait_states(server, {"good": "ready", "cut": "ready", "bare": "registered", "mine": "failed",
                                      "later": "failed"})
            self.assertEqual(answer(server, model="bare"), good)
        finally:
            self.assertEqual(server.stop(), 0, "\n".join(server.lines[-40:]))
            shutil.rmtree(root)

    def wait_states(self, server, wanted):
        """The list follows what was found by a tenth of a second."""
        until = time.monotonic() + 20
        while {name: state for name, (state, _) in self.states(server).items()} != wanted:
            self.assertLess(time.monotonic(), until, self.states(server))
            time.sleep(0.05)

    @staticmethod
    def states(server):
        return {row["name"]: (row["state"], row["error"]) for row in server.request("GET", "/v1/adapters")[2]["data"]}


if __name__ == "__main__":
    unittest.main()
