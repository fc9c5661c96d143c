# SPDX-License-Identifier: Apache-2.0
"""Chat templates against Python's jinja2, set up as transformers does: those in templates/ and, where there is a folder of
shared data (LORALEI_SHARED_DATA, or ../shared/data), the published ones in it, over twelve conversations. LORALEI_TEMPLATES
names one folder more. Both sides get the same variables and must write the same text, or both refuse."""
import datetime
import json
import os
import pathlib
import subprocess
import unittest

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent
RENDER = os.environ.get("LORALEI_RENDER", str(HERE.parents[1] / "build/tests/render_templates"))
UNIX_TIME_S = 1752148800
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>",
           "additional_special_tokens": ["<|a|>", "<|b|>"]}

# Where the two differ, and why: {(template, conversation): reason}.
DIFFERENCES = {}


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    now = datetime.datetime.fromtimestamp(UNIX_TIME_S, datetime.timezone.utc)
    env.globals["strftime_now"] = now.strftime
    return env


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, number=1):
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Current weather\nof a city", "parameters": {
            "type": "object", "required": ["city"], "properties": {
                "city": {"type": "string", "description": "Größe, <b>&'\""}, "unit": {"type": "string", "enum": ["c", "f"]},
                "days": {"type": "array", "items": {"type": "integer", "minimum": 1}}}}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "plain", "parameters": {
        "type": "object", "properties": {"x": {"type": ["number", "null"]}, "deep": {
            "type": "object", "properties": {"y": {"type": "boolean", "default": True}}}}}}},
]
ARGUMENTS = {"city": "東京 \"x\"", "days": [1, 2.5], "flag": True, "none": None, "in": {"a": "b\n"}}

CONVERSATIONS = {
    "one question": {"messages": [says("user", "What is LoRA?")]},
    "with a system message": {"messages": [says("system", "Be brief."), says("user", "Hi")]},
    "several turns": {"messages": [says("user", "Hi"), says("assistant", "Hello!"), says("user", "  spaces \n"),
                                   says("assistant", " ok "), says("user", "Größe 東京 🙂 <b>&amp;</b> \"q\" \\n {{ x }}")]},
    "an answer, no prompt": {"messages": [says("system", "S"), says("user", "Hi"), says("assistant", "Hello!")],
                             "add_generation_prompt": False},
    "tools offered": {"messages": [says("system", "Use them."), says("user", "Weather in Oslo?")], "tools": TOOLS},
    "a call and its result": {"messages": [
        says("user", "Weather?"), says("assistant", None, tool_calls=[call("get_weather", ARGUMENTS)]),
        says("tool", "{\"t\": 3}", name="get_weather", tool_call_id="call00001")], "tools": TOOLS},
    "two calls, then on": {"messages": [
        says("system", "S"), says("user", "Both?"),
        says("assistant", "Let me see.", tool_calls=[call("now", {}), call("get_weather", ARGUMENTS, 2)]),
        says("tool", "noon", tool_call_id="call00001"), says("tool", "cold", tool_call_id="call00002"),
        says("assistant", "Noon, cold."), says("user", "Thanks")], "tools": TOOLS[:2]},
    "calls without tools": {"messages": [
        says("user", "?"), says("assistant", "", tool_calls=[call("plain", {"x": 1e22, "deep": {"y": False}})]),
        says("tool", "", tool_call_id="call00001")]},
    "thoughts": {"messages": [says("user", "1+1"), says("assistant", "2", reasoning_content="one and\none"), says("user", "+1"),
                              says("assistant", "<think>\nthree\n</think>\n\n3"), says("user", "+1")], "enable_thinking": False},
    "a developer": {"messages": [says("developer", "Rule."), says("user", "Hi")], "enable_thinking": True,
                    "reasoning_effort": "high"},
    "wrong order": {"messages": [says("assistant", "I start"), says("assistant", "again"), says("system", "late")]},
    "empty texts": {"messages": [says("system", ""), says("user", ""), says("assistant", ""), says("user", "\n")],
                    "tools": [], "documents": None, "add_generation_prompt": False},
}


def context_of(conversation):
    return {**SPECIAL, "tools": None, "documents": None, "add_generation_prompt": True, **conversation}


def shared_templates():
    """{name: source} of the shared data, or why there are none."""
    folder = pathlib.Path(os.environ.get("LORALEI_SHARED_DATA", HERE.parents[2] / "shared/data"))
    if not (folder / "chat_templates").is_dir():
        return f"no shared data at {folder}"
    found = templates_of(folder / "chat_templates")
    for path in sorted((folder / "tokenizer_configs").glob("*.json")):
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(template, str):
            found[path.name] = template
    for path in sorted((folder / "chat_templates/vectors").glob("hfjs*.json")):
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
            found[name] = entry["chat_template"]
    return found


def templates_of(folder):
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.jinja"))}


class Templates(unittest.TestCase):
    def differences(self, templates):
        """{(template, conversation): (Python's, ours)}."""
        jobs = [(name, label, source, context_of(conversation))
                for name, source in templates.items() for label, conversation in CONVERSATIONS.items()]
        lines = "".join(json.dumps({"template": source, "context": context, "unix_time_s": UNIX_TIME_S}) + "\n"
                        for _, _, source, context in jobs)
        done = subprocess.run([RENDER], input=lines.encode(), capture_output=True, check=True, timeout=300)
        ours = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(ours), len(jobs))
        env, compiled, found, same = environment(), {}, {}, 0
        for (name, label, source, context), our in zip(jobs, ours):
            try:
                if name not in compiled:
                    compiled[name] = env.from_string(source)
                wanted = {"text": compiled[name].render(**context)}
            except Exception as error:  # whatever it is, ours must be one too
                wanted = {"error": f"{type(error).__name__}: {error}"}
            raised = wanted.get("error", "").removeprefix("TemplateError: ")
            alike = our == wanted if "text" in wanted else "error" in our
            if alike and wanted.get("error", "").startswith("TemplateError: "):
                alike = raised in our["error"]
            same += alike and "text" in wanted
            if not alike:
                found[name, label] = (wanted, our)
        self.assertGreater(same, len(jobs) // 2, "so few texts prove nothing")
        return found

    def expect_same(self, templates):
        found = self.differences(templates)
        for key, (wanted, our) in found.items():
            with self.subTest(template=key[0], conversation=key[1]):
                self.assertIn(key, DIFFERENCES, f"\nPython: {wanted}\nours:   {our}")
        for key in DIFFERENCES:
            if key[0] in templates:
                with self.subTest(template=key[0], conversation=key[1]):
                    self.assertIn(key, found, "listed as a difference, but there is none")

    def test_own_templates(self):
        templates = templates_of(HERE / "templates")
        templates.update(templates_of(HERE.parent / "vectors/templates/sources"))
        self.assertGreater(len(templates), 6)
        self.expect_same(templates)

    def test_published_templates(self):
        templates = shared_templates()
        if isinstance(templates, str):
            self.skipTest(templates)
        self.assertGreater(len(templates), 40)
        self.expect_same(templates)

    def test_more_templates(self):
        folder = os.environ.get("LORALEI_TEMPLATES")
        if not folder:
            self.skipTest("LORALEI_TEMPLATES names no further folder of templates")
        self.expect_same(templates_of(pathlib.Path(folder)))


if __name__ == "__main__":
    unittest.main(verbosity=1)
