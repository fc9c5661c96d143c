# SPDX-License-Identifier: Apache-2.0
"""KV cache events as their readers see them: pyzmq and msgpack, and nothing of ours but the server."""
import random
import time
import unittest

import msgpack
import zmq
from live_server import LiveServer

WORDS = "apple river stone lamp garden window letter music winter silver paper field".split()
END = 2**64 - 1
BLOCK = 16
TOPIC = "kv@10.0.0.7:8080@model"
LONG_MS = 20_000


def text(seed, words=80):
    generator = random.Random(seed)
    return "Q: " + " ".join(generator.choice(WORDS) for _ in range(words)) + "\nA:"


class Picture:
    """What a reader knows: {hash: (parent, tokens, lora_name)} by medium."""

    def __init__(self):
        self.blocks, self.cleared, self.removed, self.next = {}, 0, 0, None

    def take(self, topic, number, message):
        assert topic.decode() == TOPIC, topic
        number = int.from_bytes(number, "big")
        assert self.next in (None, number), (self.next, number)
        self.next = number + 1
        seconds, events, rank = msgpack.unpackb(message)
        assert abs(seconds - time.time()) < 600 and rank == 0, (seconds, rank)
        for tag, *fields in events:
            if tag == "AllBlocksCleared":
                assert not fields
                self.blocks.clear()
                self.cleared += 1
            elif tag == "BlockStored":
                self.store(*fields)
            else:
                assert tag == "BlockRemoved", tag
                hashes, medium = fields
                for one in hashes:
                    del self.blocks[medium, one]
                    self.removed += 1

    def store(self, hashes, parent, tokens, size, lora_id, medium, lora_name, extra_keys=None):
        assert size == BLOCK and lora_id is None
        if medium == "STORAGE":
            assert parent is None and tokens == []
            self.blocks.update({(medium, one): None for one in hashes})
            return
        assert medium == "GPU" and len(tokens) == BLOCK * len(hashes), (medium, len(tokens))
        for index, one in enumerate(hashes):
            assert parent is None or (medium, parent) in self.blocks, "parents come first"
            assert (medium, one) not in self.blocks
            salt = extra_keys[index][0] if extra_keys else None
            self.blocks[medium, one] = parent, tuple(tokens[index * BLOCK:(index + 1) * BLOCK]), lora_name, salt
            parent = one

    def chains(self, tokens, lora_name, salt=None):
        """How many blocks of these tokens are known as this one's."""
        parent, count = None, 0
        for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
            wanted = parent, tuple(tokens[begin:begin + BLOCK]), lora_name, salt
            found = [one for (medium, one), block in self.blocks.items() if block == wanted]
            assert len(found) <= 1
            if not found:
                break
            parent, count = found[0], count + 1
        return count


class Reader:
    def __init__(self, server):
        words = [line for line in server.lines if "what the KV cache holds is published" in line][0].replace(",", " ").replace(";", " ").split()
        self.endpoint, self.replay_endpoint = [word for word in words if word.startswith("tcp://")]
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.RCVTIMEO, LONG_MS)
        self.live.subscribe(b"kv@")
        self.live.connect(self.endpoint)

    def replay(self, start=0):
        """The kept messages from `start` on, each as (topic, number, message)."""
        asks = self.context.socket(zmq.DEALER)
        asks.setsockopt(zmq.RCVTIMEO, LONG_MS)
        asks.setsockopt(zmq.RCVHWM, 0)
        asks.connect(self.replay_endpoint)
        asks.send_multipart([b"", start.to_bytes(8, "big")])
        messages = []
        while True:
            empty, topic, number, message = asks.recv_multipart()
            assert empty == b""
            if not message:
                assert topic == b"" and int.from_bytes(number, "big") == END
                asks.close(0)
                return messages
            messages.append((topic, number, message))

    def picture(self):
        picture = Picture()
        for one in self.replay():
            picture.take(*one)
        return picture

    def close(self):
        self.live.close(0)
        self.context.term()


class KvEventsTest(unittest.TestCase):
    FLAGS = ["--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*", "--kv-events-topic", TOPIC]

    def start(self, *flags):
        server = LiveServer(*self.FLAGS, *flags)
        reader = Reader(server)
        self.addCleanup(server.stop)
        self.addCleanup(reader.close)
        return server, reader

    def ask(self, server, model, prompt, **more):
        body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 4, **more}
        status, _, answer = server.request("POST", "/v1/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def tokens(self, server, prompt):
        return server.request("POST", "/tokenize", {"prompt": prompt})[2]["tokens"]

    def wait_for(self, reader, condition):
        """The picture that a reader has as soon as it is as it should be."""
        deadline = time.monotonic() + LONG_MS / 1000
        while not condition(picture := reader.picture()):
            self.assertLess(time.monotonic(), deadline, picture.blocks)
            time.sleep(0.02)
        return picture

    def test_stored_blocks_of_the_base_and_of_adapters_chain_and_are_found(self):
        server, reader = self.start()
        prompt = text(1)
        tokens = self.tokens(server, prompt)
        full = len(tokens) // BLOCK
        self.assertGreater(full, 3)
        self.ask(server, "model", prompt)
        self.ask(server, "json", prompt)
        self.ask(server, "model", prompt, cache_salt="pepper")
        salted = lambda now: [block[3] for block in now.blocks.values() if block[3]]
        picture = self.wait_for(reader, lambda now: len(salted(now)) >= full)
        self.assertEqual(picture.cleared, 1)
        for name in (None, "json"):
            self.assertGreaterEqual(picture.chains(tokens, name), full)
        self.assertEqual(picture.chains(tokens, "cipher"), 0)
        salts = set(salted(picture))
        self.assertEqual(len(salts), 1)
        self.assertNotIn("pepper", str(salts))
        self.assertGreaterEqual(picture.chains(tokens, None, salts.pop()), full)
        # What is said is what a request finds.
        self.assertGreaterEqual(self.ask(server, "json", prompt), BLOCK * (full - 1))
        self.assertEqual(self.ask(server, "cipher", prompt), 0)
        picture = self.wait_for(reader, lambda now: now.chains(tokens, "cipher") >= full)
        picture = self.wait_for(reader, lambda now: len(now.blocks) == server.metric('loralei_kv_events_total{kind="stored"}'))
        self.assertEqual(server.metric("loralei_kv_event_messages_total"), picture.next)
        self.assertGreater(server.metric("loralei_kv_event_replays_total"), 0)
        self.assertEqual(server.metric("loralei_kv_events_dropped_total"), 0)

    def test_who_subscribes_gets_what_comes_and_asks_for_what_he_missed(self):
        server, reader = self.start()
        self.ask(server, "model", text(2))
        number = 0
        for seed in range(3, 9):
            self.ask(server, "model", text(seed))
            topic, now, message = reader.live.recv_multipart()
            number = int.from_bytes(now, "big")
        again = reader.replay(number)
        self.assertEqual(again[0], (topic, now, message))
        self.assertEqual(int.from_bytes(reader.replay()[0][1], "big"), 0)
        self.assertEqual(reader.replay(1 << 40), [])

    def test_evictions_are_said_and_what_is_left_is_what_is_there(self):
        server, reader = self.start("--kv-cache-memory", "4MiB", "--max-model-len", "512", "--max-num-seqs", "4")
        for seed in range(60):
            self.ask(server, ("model", "json", "cipher")[seed % 3], text(100 + seed, 100))
        cached = server.metric('loralei_kv_blocks{state="cached"}')
        picture = self.wait_for(reader, lambda now: len(now.blocks) == cached)
        self.assertGreater(picture.removed, 0)
        newest = self.tokens(server, text(159, 100))
        self.assertGreaterEqual(picture.chains(newest, "cipher"), len(newest) // BLOCK)
        oldest = self.tokens(server, text(100, 100))
        self.assertEqual(picture.chains(oldest, None) > 0, self.ask(server, "model", text(100, 100)) > 0)

    def test_where_the_queue_is_too_small_all_is_told_anew(self):
        server, reader = self.start("--kv-events-max-queue-size", "16")
        prompts = [text(200 + seed, 300) for seed in range(6)]
        for prompt in prompts:
            self.ask(server, "json", prompt)
        counts = [len(self.tokens(server, prompt)) // BLOCK for prompt in prompts]
        cached = server.metric('loralei_kv_blocks{state="cached"}')
        picture = self.wait_for(reader, lambda now: len(now.blocks) == cached)
        for prompt, count in zip(prompts, counts):
            self.assertGreaterEqual(picture.chains(self.tokens(server, prompt), "json"), count)
        self.assertEqual(picture.cleared, 1 + server.metric("loralei_kv_event_pictures_total"))

    def test_a_reader_that_never_reads_harms_nobody(self):
        server, reader = self.start("--kv-events-hwm", "1")
        sleeper = reader.context.socket(zmq.SUB)
        sleeper.setsockopt(zmq.RCVHWM, 1)
        sleeper.subscribe(b"")
        sleeper.connect(reader.endpoint)
        asker = reader.context.socket(zmq.DEALER)
        asker.setsockopt(zmq.RCVHWM, 1)
        asker.connect(reader.replay_endpoint)
        for seed in range(300, 340):
            self.ask(server, "model", text(seed))
            asker.send_multipart([b"", bytes(8)])
        cached = server.metric('loralei_kv_blocks{state="cached"}')
        picture = self.wait_for(reader, lambda now: len(now.blocks) == cached)
        self.assertEqual(picture.cleared, 1)
        self.assertEqual(server.metric("loralei_kv_events_dropped_total"), 0)
        sleeper.close(0)
        asker.close(0)

    def test_what_is_on_disk_is_said_too_and_again_after_a_restart(self):
        import tempfile
        prompt = text(4)
        with tempfile.TemporaryDirectory() as folder:
            server, reader = self.start("--kv-dir", folder)
            self.ask(server, "json", prompt)
            on_disk = lambda now: {one for medium, one in now.blocks if medium == "STORAGE"}
            in_memory = lambda now: {one for medium, one in now.blocks if medium == "GPU"}
            picture = self.wait_for(reader, lambda now: in_memory(now) and on_disk(now) == in_memory(now))
            server.stop()
            server, reader = self.start("--kv-dir", folder)
            self.assertEqual(self.wait_for(reader, lambda now: now.cleared).blocks, {})
            self.assertGreater(self.ask(server, "json", prompt), 0)
            again = self.wait_for(reader, lambda now: len(on_disk(now)) > 2)
            self.assertTrue(on_disk(again) <= in_memory(again))
            self.assertTrue(in_memory(again) & in_memory(picture), "the same blocks have the same hashes")

    def test_it_connects_where_an_address_has_no_star(self):
        with zmq.Context() as context, context.socket(zmq.SUB) as listens:
            listens.setsockopt(zmq.RCVTIMEO, LONG_MS)
            listens.subscribe(b"")
            port = listens.bind_to_random_port("tcp://127.0.0.1")
            server = LiveServer("--kv-events", f"tcp://127.0.0.1:{port}")
            self.addCleanup(server.stop)
            seed = 400
            while not listens.poll(200):  # who listens has to look, to be connected to
                self.ask(server, "model", text(seed := seed + 1))
                self.assertLess(seed, 450)
            topic, _, message = listens.recv_multipart()
            self.assertEqual(topic, b"")
            self.assertEqual(len(msgpack.unpackb(message)), 3)
            listens.close(0)

    def test_what_cannot_be_is_refused_with_a_sentence(self):
        for flags, words in ((["--kv-events", "5557"], "--kv-events '5557' is no address"),
                             (["--kv-events", "tcp://*:99999"], "is no address"),
                             (["--kv-events", "tcp://203.0.113.77:*"], "cannot be listened at"),
                             (["--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "x"], "--kv-events-replay 'x' is no address"),
                             (["--kv-events-replay", "tcp://*:5558"], "--kv-events tcp://*:5557"),
                             (["--kv-events", "tcp://127.0.0.1:*", "--no-prefix-cache"], "--no-prefix-cache"),
                             (["--kv-events-config", "{}"], "--kv-events tcp://*:5557")):
            with self.assertRaises(RuntimeError) as refused:
                LiveServer(*flags)
            self.assertIn(words, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
