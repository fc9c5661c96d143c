# SPDX-License-Identifier: Apache-2.0
"""A streamed tool call as several clients put it together, each in a process of its own: name and arguments are those of its unstreamed answer.

`tool_calls_clients_test.py CLIENT URL` is that process: it prints [streamed, whole], each as {"name", "arguments"} with the arguments parsed.
"""
import json
import os
import subprocess
import sys
import unittest

from live_server import ROOT, LiveServer

BASE = "model"
FOLDERS = ROOT / "build/clients/of"
MESSAGES = [{"role": "user", "content": "apple"}]
PARAMETERS = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 10}, "deep": {"type": "boolean"}},
    "required": ["word", "deep"],
    "additionalProperties": False,
}
TOOL = {"type": "function",
        "function": {"name": "lookup", "description": "Looks a word up.", "strict": True, "parameters": PARAMETERS}}


def openai_client(url):
    import openai

    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)


def call_of(message):
    (call,) = message.tool_calls
    assert call.id and call.type == "function", call
    return {"name": call.function.name, "arguments": json.loads(call.function.arguments)}


def run_openai(url):
    """Through the client's own helper for streams, which merges deltas."""
    client = openai_client(url)
    asked = dict(model=BASE, messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=200)
    completions = client.chat.completions
    with (completions if hasattr(completions, "stream") else client.beta.chat.completions).stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls", streamed
    return call_of(streamed.message), call_of(client.chat.completions.create(**asked).choices[0].message)


def run_llama_index(url):
    from llama_index.core.tools import FunctionTool, ToolMetadata
    from llama_index.llms.openai_like import OpenAILike
    from pydantic import BaseModel, Field

    class Lookup(BaseModel):
        word: str = Field(max_length=10)
        deep: bool

    llm = OpenAILike(model=BASE, api_base=url + "/v1", api_key="none", is_chat_model=True, is_function_calling_model=True, temperature=0,
                     max_tokens=200, max_retries=0, timeout=60)
    tool = FunctionTool(lambda word, deep: word, ToolMetadata(name="lookup", description="Looks a word up.", fn_schema=Lookup))
    asked = dict(tools=[tool], user_msg="apple", tool_required=True, allow_parallel_tool_calls=False)

    def selected(answer):
        (call,) = llm.get_tool_calls_from_response(answer)
        assert call.tool_id, call
        return {"name": call.tool_name, "arguments": call.tool_kwargs}

    return selected(list(llm.stream_chat_with_tools(**asked))[-1]), selected(llm.chat_with_tools(**asked))


def run_instructor(url):
    import instructor
    from pydantic import BaseModel, Field

    class Lookup(BaseModel):
        word: str = Field(max_length=10)
        deep: bool

    client = instructor.from_openai(openai_client(url), mode=instructor.Mode.TOOLS)
    # The schema of a partial model is another one, so the unstreamed answer has to be asked for with it as well.
    asked = dict(model=BASE, messages=MESSAGES, response_model=instructor.Partial[Lookup], temperature=0, max_tokens=200, max_retries=0)
    streamed = list(client.chat.completions.create(**asked, stream=True))[-1]
    return tuple({"name": "Lookup", "arguments": answer.model_dump()} for answer in (streamed, client.chat.completions.create(**asked)))


# The folder of each, or none for the client of the environment itself.
CLIENTS = {"openai": (run_openai, None), "openai-1": (run_openai, "openai-1"), "openai-2": (run_openai, "openai-2"),
           "openai-3.3": (run_openai, "openai-3.3"), "llama-index": (run_llama_index, "llama-index"), "instructor": (run_instructor, "instructor")}


class ToolCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer("--chat-template", str(ROOT / "tests/conformance/tools.jinja"))

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def check(self, client):
        folder = CLIENTS[client][1]
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", OPENAI_API_KEY="none")
        if folder:
            self.assertTrue((FOLDERS / folder / "installed.txt").exists(), f"run tools/test_clients.sh: {FOLDERS / folder} is not complete")
            environment["PYTHONPATH"] = str(FOLDERS / folder)
        done = subprocess.run([sys.executable, __file__, client, self.server.url], env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        streamed, whole = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(streamed, whole)
        self.assertIn(streamed["name"], ("lookup", "Lookup"))
        self.assertEqual(set(streamed["arguments"]), {"word", "deep"})


for name in CLIENTS:
    setattr(ToolCalls, "test_" + name.replace("-", "_").replace(".", "_"), lambda self, client=name: self.check(client))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in CLIENTS:
        print(json.dumps(CLIENTS[sys.argv[1]][0](sys.argv[2])))
    else:
        unittest.main(verbosity=1)
