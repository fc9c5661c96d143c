# SPDX-License-Identifier: Apache-2.0
"""The official OpenAI Python client against the running server, on the demo model with its adapters."""
import base64
import json
import struct
import unittest

import openai
from live_server import ROOT, LiveServer

server = None
client = None
BASE = "model"  # the last component of demo/model


def setUpModule():
    global server, client
    server = LiveServer()
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def tearDownModule():
    code = server.stop()
    if code != 0:
        raise AssertionError(f"the server ended with {code}:\n" + "\n".join(server.lines[-40:]))


def ask(text, **options):
    options.setdefault("model", BASE)
    options.setdefault("max_tokens", 24)
    options.setdefault("temperature", 0)
    return client.chat.completions.create(messages=[{"role": "user", "content": text}], **options)


class Models(unittest.TestCase):
    def test_base_and_adapters_are_models(self):
        cards = {card.id: card for card in client.models.list()}
        self.assertIn(BASE, cards)
        self.assertGreaterEqual(len(cards), 7)
        for name, card in cards.items():
            if name != BASE:
                self.assertEqual(card.parent, BASE)
        self.assertEqual(client.models.retrieve(BASE).id, BASE)
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("nobody")


class Chat(unittest.TestCase):
    def test_answer_names_the_adapter_asked_for(self):
        for card in client.models.list():
            answer = ask("apple river stone", model=card.id)
            self.assertEqual(answer.model, card.id)
            self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
            self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_streaming_is_the_same_text(self):
        whole = ask("apple river stone").choices[0].message.content
        chunks = list(ask("apple river stone", stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole)
        self.assertEqual(chunks[-1].choices, [])
        self.assertGreater(chunks[-1].usage.completion_tokens, 0)
        self.assertEqual(len([c for c in chunks if c.choices and c.choices[0].finish_reason]), 1)

    def test_seed_makes_sampling_repeatable_whatever_runs_beside_it(self):
        alone = ask("one two three", temperature=1.0, seed=7, n=3)
        texts = [choice.message.content for choice in alone.choices]
        streams = [ask(f"something else {i}", temperature=1.0, stream=True, max_tokens=64) for i in range(8)]
        again = ask("one two three", temperature=1.0, seed=7, n=3)
        self.assertEqual(texts, [choice.message.content for choice in again.choices])
        for stream in streams:
            stream.close()

    def test_logprobs(self):
        answer = ask("apple river stone", logprobs=True, top_logprobs=3)
        entries = answer.choices[0].logprobs.content
        self.assertEqual(len(entries), answer.usage.completion_tokens)
        for entry in entries:
            self.assertLessEqual(entry.logprob, 0)
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertAlmostEqual(entry.top_logprobs[0].logprob, entry.logprob, places=4)  # greedy takes the most likely
            self.assertIsInstance(entry.bytes, list)

    def test_stop_string_is_not_part_of_the_answer(self):
        text = ask("apple river stone", max_tokens=48).choices[0].message.content
        if len(text) < 6:
            self.skipTest("the base answers too shortly to stop inside its answer")
        stop = text[3:5]
        answer = ask("apple river stone", max_tokens=48, stop=[stop])
        self.assertEqual(answer.choices[0].message.content, text[: text.index(stop)])
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_content_parts_and_roles(self):
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "apple"}, {"type": "text", "text": "river"}]},
        ]
        answer = client.chat.completions.create(model=BASE, messages=messages, max_completion_tokens=4, temperature=0)
        self.assertLessEqual(answer.usage.completion_tokens, 4)
        messages[1]["content"] = [{"type": "image_url", "image_url": {"url": "data:,"}}]
        with self.assertRaises(openai.BadRequestError):
            client.chat.completions.create(model=BASE, messages=messages)


class Constrained(unittest.TestCase):
    def test_json_schema_holds(self):
        schema = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "count": {"type": "integer", "minimum": 0, "maximum": 99},
                "kind": {"enum": ["fruit", "stone"]},
            },
            "required": ["name", "count", "kind"],
            "additionalProperties": False,
        }
        for temperature in (0, 1.0):
            answer = ask("apple river stone", temperature=temperature, seed=3, max_tokens=200,
                         response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}})
            self.assertEqual(answer.choices[0].finish_reason, "stop", answer)
            value = json.loads(answer.choices[0].message.content)
            self.assertEqual(set(value), {"name", "count", "kind"})
            self.assertIn(value["kind"], ("fruit", "stone"))
            self.assertTrue(0 <= value["count"] <= 99)

    def test_unsupported_schema_is_refused_by_name(self):
        form = {"name": "t", "schema": {"not": {"type": "string"}}}
        with self.assertRaises(openai.BadRequestError) as caught:
            ask("x", response_format={"type": "json_schema", "json_schema": {**form, "strict": True}})
        self.assertIn("not", str(caught.exception))
        json.loads(ask("x", max_tokens=200, response_format={"type": "json_schema", "json_schema": form}).choices[0].message.content)


TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 10}, "deep": {"type": "boolean"}},
            "required": ["word", "deep"],
            "additionalProperties": False,
        },
    },
}


class Tools(unittest.TestCase):
    """The demo model's own template knows no tools, so this server gets one that does."""

    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer("--chat-template", str(ROOT / "tests/conformance/tools.jinja"))
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=60)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, **options):
        options.setdefault("messages", [{"role": "user", "content": "apple"}])
        return self.client.chat.completions.create(model=BASE, tools=[TOOL], temperature=0, max_tokens=200, **options)

    def check_arguments(self, text):
        value = json.loads(text)
        self.assertEqual(set(value), {"word", "deep"})
        self.assertIsInstance(value["deep"], bool)
        self.assertLessEqual(len(value["word"]), 10)

    def test_required_call_holds_to_its_schema(self):
        for choice in ("required", {"type": "function", "function": {"name": "lookup"}}):
            answer = self.ask(tool_choice=choice, parallel_tool_calls=False).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            self.assertEqual(len(answer.message.tool_calls), 1)
            call = answer.message.tool_calls[0]
            self.assertEqual((call.type, call.function.name), ("function", "lookup"))
            self.assertTrue(call.id)
            self.check_arguments(call.function.arguments)

    def test_streamed_call_is_the_same(self):
        whole = self.ask(tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls[0].function
        name, arguments, reason, content = "", "", None, ""
        for chunk in self.ask(tool_choice="required", parallel_tool_calls=False, stream=True):
            for choice in chunk.choices:
                reason = choice.finish_reason or reason
                content += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
        self.assertEqual((name, arguments, reason, content), (whole.name, whole.arguments, "tool_calls", ""))

    def test_history_with_calls_and_results(self):
        messages = [
            {"role": "user", "content": "apple"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"word": "apple", "deep": false}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "a fruit"},
        ]
        answer = self.ask(messages=messages, tool_choice="none").choices[0]
        self.assertIn(answer.finish_reason, ("stop", "length"))
        self.assertFalse(answer.message.tool_calls)

    def test_model_without_tools_says_so(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            ask("apple", tools=[TOOL])
        self.assertIn("template", str(caught.exception))


class Completions(unittest.TestCase):
    def test_text_tokens_and_lists(self):
        one = client.completions.create(model=BASE, prompt="apple river", max_tokens=8, temperature=0)
        many = client.completions.create(model=BASE, prompt=["apple river", "stone"], max_tokens=8, temperature=0)
        self.assertEqual([choice.index for choice in many.choices], [0, 1])
        self.assertEqual(many.choices[0].text, one.choices[0].text)
        ids = server.request("POST", "/tokenize", {"model": BASE, "prompt": "apple river"})[2]["tokens"]
        self.assertEqual(client.completions.create(model=BASE, prompt=ids, max_tokens=8, temperature=0).choices[0].text, one.choices[0].text)

    def test_echo_with_logprobs_scores_the_prompt(self):
        answer = client.completions.create(model=BASE, prompt="apple river", max_tokens=0, echo=True, logprobs=2, temperature=0)
        self.assertEqual(answer.choices[0].text, "apple river")
        logprobs = answer.choices[0].logprobs
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in logprobs.token_logprobs[1:]))
        self.assertTrue("".join(logprobs.tokens).endswith("apple river"))  # a begin-of-text token comes first

    def test_echo_is_followed_by_the_token_that_ends_it(self):
        """lm-eval scores a continuation by all but the last of the log-probabilities behind its context."""
        answer = client.completions.create(model=BASE, prompt="apple river", max_tokens=1, echo=True, logprobs=1, temperature=0,
                                           logit_bias={"1": 100})
        choice = answer.choices[0]
        self.assertEqual((choice.text, choice.finish_reason), ("apple river", "stop"))
        self.assertEqual(choice.logprobs.tokens[-1], "<|end|>")
        self.assertEqual(len(choice.logprobs.token_logprobs), answer.usage.total_tokens)

    def test_second_time_the_prefix_is_cached(self):
        prompt = "apple river stone " * 16
        client.completions.create(model=BASE, prompt=prompt, max_tokens=1)
        usage = client.completions.create(model=BASE, prompt=prompt, max_tokens=1).usage
        self.assertGreater(usage.prompt_tokens_details.cached_tokens, 0)


class Embeddings(unittest.TestCase):
    def test_float_and_base64_are_the_same_unit_vector(self):
        floats = client.embeddings.create(model=BASE, input=["apple", "river"], encoding_format="float")
        self.assertEqual([item.index for item in floats.data], [0, 1])
        self.assertAlmostEqual(sum(x * x for x in floats.data[0].embedding), 1.0, places=4)
        default = client.embeddings.create(model=BASE, input="apple")  # the client asks for base64 and decodes it
        for a, b in zip(floats.data[0].embedding, default.data[0].embedding):
            self.assertAlmostEqual(a, b, places=6)
        raw = server.request("POST", "/v1/embeddings", {"model": BASE, "input": "apple", "encoding_format": "base64"})[2]
        data = base64.b64decode(raw["data"][0]["embedding"])
        self.assertEqual(len(struct.unpack(f"<{len(data) // 4}f", data)), len(floats.data[0].embedding))


class Errors(unittest.TestCase):
    def test_unknown_model_is_404(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            ask("x", model="nobody")
        self.assertEqual(caught.exception.body["param"], "model")

    def test_too_long_prompt_is_400_with_the_numbers(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            ask("apple " * 20000)
        self.assertRegex(str(caught.exception), r"\d+")

    def test_bad_values_are_400(self):
        for options in ({"temperature": -1}, {"n": 0}, {"top_p": 2}, {"max_tokens": -5}):
            with self.assertRaises(openai.BadRequestError, msg=str(options)):
                ask("x", **options)
        for body in (b"", b"{", b"[]", b'{"model": "model", "messages": 5}', b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
                     b'{"messages": [{"role": "user", "content": "\xff"}]}'):
            status, _, answer = server.request("POST", "/v1/chat/completions", body)
            self.assertEqual(status, 400, body)
            self.assertIn("message", answer["error"])


class Cancellation(unittest.TestCase):
    def test_closing_a_stream_frees_everything(self):
        streams = [ask(f"word {i}", stream=True, max_tokens=400, temperature=1.0, extra_body={"ignore_eos": True}) for i in range(6)]
        for stream in streams:
            next(iter(stream))
        for stream in streams:
            stream.close()
        server.wait_metric("vllm:num_requests_running", 0)
        server.wait_metric("vllm:num_requests_waiting", 0)


if __name__ == "__main__":
    unittest.main(verbosity=1)
