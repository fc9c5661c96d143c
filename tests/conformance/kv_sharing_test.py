# SPDX-License-Identifier: Apache-2.0
"""Prefixes that rest encoded, through the server: what is exact stays exact beside what is not, and lossless is lossless."""
import concurrent.futures
import random
import time
import unittest

from live_server import LiveServer

SKILLS = ["count", "numbers", "acronym", "rotate", "json", "shout", "reverse", "cipher"]
MODELS = len(SKILLS) + 1
WORDS = "apple river stone lamp garden window letter music winter silver paper field".split()
SMALL = ["--kv-cache-memory", "5MiB", "--max-model-len", "512"]  # a third of what all texts hold


def texts():
    generator = random.Random(42)
    return ["Q: " + " ".join(generator.choice(WORDS) for _ in range(60)) + "\nA:" for _ in range(8)]


def requests_of(rounds):
    """Every text to every model, a text at a time, so that it comes back long after it went."""
    return [(model, text) for _ in range(rounds) for text in texts() for model in ["model", *SKILLS]]


class Sharing:
    def __init__(self, *flags):
        self.server = LiveServer(*SMALL, *flags)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()

    def ask(self, one, **more):
        model, text = one
        body = {"model": model, "prompt": text, "temperature": 0, "max_tokens": 12, "logprobs": 1, **more}
        status, _, answer = self.server.request("POST", "/v1/completions", body)
        assert status == 200, answer
        choice = answer["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def ask_all(self, requests, width=4):
        """All of them, a text at a time, `width` of its requests at once; then what nobody uses has time to be encoded.
        A request is (model, text) or (model, text, more)."""
        answers = []
        with concurrent.futures.ThreadPoolExecutor(width) as pool:
            for begin in range(0, len(requests), MODELS):
                group = requests[begin:begin + MODELS]
                answers += pool.map(lambda one: self.ask(one[:2], **(one[2] if len(one) > 2 else {})), group)
                self.wait_for_rest()
        return answers

    def crowd(self, count):
        """Long texts of an application that is killed then: what else is encoded loses its blocks to them."""
        generator = random.Random(count)
        long = [("model", " ".join(generator.choice(WORDS) for _ in range(250)), {"app_id": "crowd"}) for _ in range(count)]
        self.ask_all(long, width=count)
        status, _, answer = self.server.request("PUT", "/v1/apps/crowd", {"state": "killed"})
        assert status == 200 and answer["bytes_freed"] > 0, answer

    def wait_for_rest(self):
        before = -1
        while before != (before := self.server.metric("loralei_kv_encodes_total")):
            time.sleep(0.02)


class KvSharingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Sharing() as exact:
            cls.exact = dict(zip(requests_of(1), exact.ask_all(requests_of(1))))
            cls.exact_encodes = exact.server.metric("loralei_kv_encodes_total")
        with Sharing("--kv-cache-dtype", "int8") as exact:
            cls.exact_int8 = dict(zip(requests_of(1), exact.ask_all(requests_of(1))))

    def test_exact_encodes_nothing(self):
        self.assertEqual(self.exact_encodes, 0)

    def test_lossless_changes_no_bit_of_an_answer(self):
        with Sharing("--kv-cache-dtype", "int8", "--kv-sharing", "lossless") as lossless:
            few = requests_of(1)[:3 * MODELS]  # that fit twice: in blocks, and encoded
            for _ in range(6):
                for one, answer in zip(few, lossless.ask_all(few)):
                    self.assertEqual(answer, self.exact_int8[one], one)
                lossless.crowd(5)
            self.assertGreater(lossless.server.metric("loralei_kv_decodes_total"), 100)
            self.assertEqual(lossless.server.metric("loralei_kv_damaged_total"), 0)

    def test_exact_requests_beside_bounded_ones_are_answered_as_if_alone(self):
        generator = random.Random(7)
        with Sharing("--kv-sharing", "bounded") as bounded:
            requests = [(*one, {"kv_sharing": "exact"} if generator.random() < 0.4 else {}) for one in requests_of(4)]
            answers = bounded.ask_all(requests, width=6)
            exact = 0
            for request, answer in zip(requests, answers):
                if not request[2]:
                    continue
                exact += 1
                self.assertEqual(answer, self.exact[request[:2]], request)
            self.assertGreater(exact, 80)
            self.assertGreater(bounded.server.metric("loralei_kv_decodes_total"), 100)
            self.assertEqual(bounded.server.metric("loralei_kv_damaged_total"), 0)
            encoded = bounded.server.request("GET", "/v1/kv")[2]
            self.assertEqual(encoded["encoded"]["sharing"], "bounded")
            self.assertGreater(sum(holder["delta_tokens"] for holder in encoded["first"]), 0)
            held = sum(holder["stored_bytes"] for holder in encoded["first"])
            self.assertLessEqual(held, encoded["total_tokens"] // encoded["block_tokens"] * encoded["block_bytes"])

    def test_a_request_may_not_be_looser_than_the_server(self):
        with Sharing("--kv-sharing", "bounded") as bounded:
            for wanted, status in [("exact", 200), ("lossless", 200), ("bounded", 200), ("borrow", 400), ("some", 400)]:
                body = {"model": "model", "prompt": "Q: a\nA:", "max_tokens": 1, "kv_sharing": wanted}
                self.assertEqual(bounded.server.request("POST", "/v1/completions", body)[0], status, wanted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
