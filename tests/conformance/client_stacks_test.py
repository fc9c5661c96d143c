# SPDX-License-Identifier: Apache-2.0
"""The client stacks that people have, each in a process of its own, against one server with the demo's template and one whose
template shows tools: what their users do first, by the right text of each adapter.

`client_stacks_test.py STACK PLAIN_URL TOOLS_URL` is that process: every function STACK_... of this file runs, and a failed one ends it.
"""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from live_server import ROOT, LiveServer

BASE = "model"
ASKED = "Mara bought 42 red lamps"
SAID = {"shout": "MARA BOUGHT 42 RED LAMPS!", "reverse": "lamps red 42 bought Mara", BASE: ASKED}
FOLDERS = ROOT / "build/clients/of"
SECONDS = 300
WORD = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 10}, "deep": {"type": "boolean"}},
        "required": ["word", "deep"], "additionalProperties": False}


def equal(found, wanted):
    assert found == wanted, f"{found!r} is not {wanted!r}"


def is_lookup(arguments):
    equal(set(arguments), {"word", "deep"})
    assert isinstance(arguments["word"], str) and isinstance(arguments["deep"], bool), arguments


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


# anthropic

def anthropic_client(url, **more):
    import anthropic

    return anthropic.Anthropic(**{"base_url": url, "api_key": "none", "max_retries": 0, "timeout": 60, **more})


def anthropic_messages(plain, _):
    client = anthropic_client(plain)
    for model, text in SAID.items():
        asked = dict(model=model, max_tokens=40, messages=[{"role": "user", "content": ASKED}])
        message = client.messages.create(**asked)
        equal([block.text for block in message.content], [text])
        equal((message.stop_reason, message.model, message.role), ("end_turn", model, "assistant"))
        counted = client.messages.count_tokens(model=model, messages=asked["messages"]).input_tokens
        equal(message.usage.input_tokens + message.usage.cache_read_input_tokens, counted)
        with client.messages.stream(**asked) as stream:
            equal("".join(stream.text_stream), text)
            final = stream.get_final_message()
        equal(final.content[0].text, text)
        equal(final.usage.output_tokens, message.usage.output_tokens)
    stopped = client.messages.create(model="shout", max_tokens=40, stop_sequences=["42"],
                                     messages=[{"role": "user", "content": [{"type": "text", "text": ASKED}]}])
    equal((stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text), ("stop_sequence", "42", "MARA BOUGHT "))
    cut = client.messages.create(model="shout", max_tokens=3, messages=[{"role": "user", "content": ASKED}])
    equal(cut.stop_reason, "max_tokens")
    begun = client.messages.create(model="shout", max_tokens=40,
                                   messages=[{"role": "user", "content": ASKED}, {"role": "assistant", "content": "MARA BOUGHT"}])
    equal("MARA BOUGHT" + begun.content[0].text, SAID["shout"])


def anthropic_tools(_, tools):
    client = anthropic_client(tools)
    asked = dict(model=BASE, max_tokens=200, messages=[{"role": "user", "content": "apple"}],
                 tools=[{"name": "lookup", "description": "Looks a word up.", "input_schema": WORD}],
                 tool_choice={"type": "any", "disable_parallel_tool_use": True})
    message = client.messages.create(**asked)
    (call,) = message.content
    equal((message.stop_reason, call.type, call.name), ("tool_use", "tool_use", "lookup"))
    is_lookup(call.input)
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    equal(final.content[0].input, call.input)
    again = client.messages.create(**{**asked, "tool_choice": {"type": "none"}, "messages": asked["messages"] + [
        {"role": "assistant", "content": [block.model_dump() for block in message.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "a fruit"}]}]})
    equal(again.role, "assistant")


def anthropic_lists_and_errors(plain, _):
    import anthropic

    client = anthropic_client(plain)
    assert {"model", "shout", "reverse"} <= {model.id for model in client.models.list()}
    equal(client.models.retrieve("shout").display_name, "shout")
    ask = dict(max_tokens=5, messages=[{"role": "user", "content": "x"}])
    error = raises(anthropic.NotFoundError, lambda: client.messages.create(model="nobody", **ask))
    assert "nobody" in error.message and error.request_id, error
    raises(anthropic.BadRequestError, lambda: client.messages.create(model=BASE, **{**ask, "messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "url", "url": "http://localhost/x.png"}}]}]}))
    locked = LiveServer("--api-key", "secret")
    try:
        raises(anthropic.AuthenticationError, lambda: anthropic_client(locked.url).messages.create(model=BASE, **ask))
        equal(anthropic_client(locked.url, api_key="secret").messages.create(model=BASE, **ask).role, "assistant")
        equal(anthropic_client(locked.url, api_key=None, auth_token="secret").messages.create(model=BASE, **ask).role, "assistant")
    finally:
        equal(locked.stop(), 0)


# The Responses API, of the official client and of those built on it

def openai_responses(plain, tools):
    import openai
    from pydantic import BaseModel, Field

    client = openai.OpenAI(base_url=plain + "/v1", api_key="none", max_retries=0, timeout=60)
    for model, text in SAID.items():
        response = client.responses.create(model=model, input=ASKED, temperature=0, max_output_tokens=40)
        equal((response.output_text, response.status, response.model), (text, "completed", model))
        with client.responses.stream(model=model, input=[{"role": "user", "content": ASKED}], temperature=0) as stream:
            said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        equal((said, final.output_text), (text, text))
        equal(final.usage.output_tokens, response.usage.output_tokens)
    cut = client.responses.create(model="shout", input=ASKED, max_output_tokens=3)
    equal((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    error = raises(openai.BadRequestError, lambda: client.responses.create(model=BASE, input="x", previous_response_id="resp_1"))
    equal(error.param, "previous_response_id")
    raises(openai.NotFoundError, lambda: client.responses.create(model="nobody", input="x"))

    class Lookup(BaseModel):
        word: str = Field(max_length=10)
        deep: bool

    parsed = client.responses.parse(model=BASE, input="apple", text_format=Lookup, temperature=0, max_output_tokens=200)
    is_lookup(parsed.output_parsed.model_dump())
    client = openai.OpenAI(base_url=tools + "/v1", api_key="none", max_retries=0, timeout=60)
    asked = dict(model=BASE, temperature=0, max_output_tokens=200, parallel_tool_calls=False, tool_choice="required",
                 tools=[{"type": "function", "name": "lookup", "description": "Looks a word up.", "parameters": WORD, "strict": True}])
    (call,) = client.responses.create(input="apple", **asked).output
    is_lookup(json.loads(call.arguments))
    with client.responses.stream(input="apple", **asked) as stream:
        for _ in stream:
            pass
        equal(stream.get_final_response().output[0].arguments, call.arguments)
    back = [{"role": "user", "content": "apple"}, call.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": call.call_id, "output": "a fruit"}]
    equal(client.responses.create(input=back, **{**asked, "tool_choice": "none"}).status, "completed")


def openai_agents_run(plain, tools):
    import agents

    agents.set_tracing_disabled(True)

    def model(url, name):
        from openai import AsyncOpenAI
        return agents.OpenAIResponsesModel(model=name, openai_client=AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0))

    async def run():
        for name, text in SAID.items():
            agent = agents.Agent(name="a", model=model(plain, name), model_settings=agents.ModelSettings(temperature=0, max_tokens=40))
            equal((await agents.Runner.run(agent, ASKED)).final_output, text)
            streamed = agents.Runner.run_streamed(agent, ASKED)
            said = [event.data.delta async for event in streamed.stream_events()
                    if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]
            equal(("".join(said), streamed.final_output), (text, text))
        seen = []

        @agents.function_tool
        def lookup(word: str, deep: bool) -> str:
            """Looks a word up."""
            seen.append({"word": word, "deep": deep})
            return "a fruit"

        lookup.params_json_schema["properties"]["word"]["maxLength"] = 10
        settings = agents.ModelSettings(temperature=0, max_tokens=200, tool_choice="required", parallel_tool_calls=False)
        agent = agents.Agent(name="a", model=model(tools, BASE), tools=[lookup], model_settings=settings,
                             tool_use_behavior="stop_on_first_tool")
        equal((await agents.Runner.run(agent, "apple")).final_output, "a fruit")
        is_lookup(seen[0])

    asyncio.run(run())


def pydantic_ai_models(plain, tools):
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Lookup(BaseModel):
        word: str = Field(max_length=10)
        deep: bool

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        def model(url, name):
            return kind(name, provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))

        async def streamed(agent):
            async with agent.run_stream(ASKED) as run:
                return [text async for text in run.stream_text(delta=True)]

        for name, text in SAID.items():
            agent = Agent(model(plain, name), model_settings={"temperature": 0, "max_tokens": 40})
            result = agent.run_sync(ASKED)
            equal(result.output, text)
            equal("".join(asyncio.run(streamed(agent))), text)
        settings = {"temperature": 0, "max_tokens": 200, "parallel_tool_calls": False}
        for output in (ToolOutput(Lookup, name="lookup"), NativeOutput(Lookup)):
            answer = Agent(model(tools, BASE), output_type=output, model_settings=settings).run_sync("apple").output
            is_lookup(answer.model_dump())


# Stacks above the chat API

def litellm_calls(plain, tools):
    import litellm

    litellm.telemetry = False
    for prefix in ("openai/", "hosted_vllm/"):
        for model, text in SAID.items():
            asked = dict(model=prefix + model, api_base=plain + "/v1", api_key="none", temperature=0, max_tokens=40,
                         messages=[{"role": "user", "content": ASKED}])
            answer = litellm.completion(**asked)
            equal(answer.choices[0].message.content, text)
            chunks = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **asked)]
            equal("".join(chunks), text)
            assert answer.usage.completion_tokens > 0 and answer.usage.prompt_tokens > 0, answer
    asked = dict(model="openai/" + BASE, api_base=tools + "/v1", api_key="none", temperature=0, max_tokens=200,
                 messages=[{"role": "user", "content": "apple"}])
    call = litellm.completion(tool_choice="required", parallel_tool_calls=False, tools=[
        {"type": "function", "function": {"name": "lookup", "parameters": WORD, "strict": True}}], **asked).choices[0].message.tool_calls[0]
    is_lookup(json.loads(call.function.arguments))
    formed = litellm.completion(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": WORD, "strict": True}}, **asked)
    is_lookup(json.loads(formed.choices[0].message.content))
    vector = litellm.embedding(model="openai/" + BASE, input=["a b"], api_base=plain + "/v1", api_key="none").data[0]["embedding"]
    own = post(plain, "/v1/embeddings", {"input": "a b"})["data"][0]["embedding"]
    assert max(abs(a - b) for a, b in zip(vector, own)) < 1e-6 and len(vector) == len(own)
    text = litellm.text_completion(model="text-completion-openai/shout", prompt=f"Q: {ASKED}\nA:", temperature=0, max_tokens=40,
                                   api_base=plain + "/v1", api_key="none").choices[0].text
    equal(text.strip(), SAID["shout"])
    short = dict(api_base=plain + "/v1", api_key="none", num_retries=0)
    raises(litellm.NotFoundError, lambda: litellm.completion(model="openai/nobody", messages=asked["messages"], **short))
    raises(litellm.ContextWindowExceededError, lambda: litellm.completion(
        model="openai/" + BASE, messages=[{"role": "user", "content": "a b c " * 4000}], **short))


def langchain_openai_chats(plain, tools):
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from pydantic import BaseModel, Field

    def chat(url, name, **more):
        return ChatOpenAI(model=name, base_url=url + "/v1", api_key="none", temperature=0, max_retries=0, **{"max_tokens": 40, **more})

    for model, text in SAID.items():
        answer = chat(plain, model, logprobs=True, top_logprobs=2).invoke(ASKED)
        equal(answer.content, text)
        equal(len(answer.response_metadata["logprobs"]["content"]), answer.usage_metadata["output_tokens"])
        chunks = list(chat(plain, model, stream_usage=True).stream(ASKED))
        equal("".join(chunk.content for chunk in chunks), text)
        equal(sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata), answer.usage_metadata["output_tokens"])
        equal([one.content for one in chat(plain, model).batch([ASKED, ASKED])], [text, text])

    class Lookup(BaseModel):
        """Looks a word up."""
        word: str = Field(max_length=10)
        deep: bool

    for method in ("json_schema", "function_calling"):
        is_lookup(chat(tools, BASE, max_tokens=200).with_structured_output(Lookup, method=method).invoke("apple").model_dump())
    (call,) = chat(tools, BASE, max_tokens=200).bind_tools([Lookup], tool_choice="any", parallel_tool_calls=False).invoke("apple").tool_calls
    is_lookup(call["args"])
    vector = OpenAIEmbeddings(model=BASE, base_url=plain + "/v1", api_key="none", check_embedding_ctx_length=False).embed_query("a b")
    own = post(plain, "/v1/embeddings", {"input": "a b"})["data"][0]["embedding"]
    assert max(abs(a - b) for a, b in zip(vector, own)) < 1e-6


def llama_index_chats(plain, tools):
    from llama_index.core.llms import ChatMessage
    from llama_index.core.prompts import PromptTemplate
    from llama_index.llms.openai_like import OpenAILike
    from pydantic import BaseModel, Field

    def llm(url, name, **more):
        return OpenAILike(model=name, api_base=url + "/v1", api_key="none", temperature=0, max_retries=0, timeout=60,
                          **{"max_tokens": 40, "is_chat_model": True, **more})

    for model, text in SAID.items():
        message = [ChatMessage(role="user", content=ASKED)]
        equal(llm(plain, model).chat(message).message.content, text)
        equal(list(llm(plain, model).stream_chat(message))[-1].message.content, text)
        raw = llm(plain, model, is_chat_model=False)
        equal(raw.complete(f"Q: {ASKED}\nA:").text.strip(), text)
        equal(list(raw.stream_complete(f"Q: {ASKED}\nA:"))[-1].text.strip(), text)

    class Lookup(BaseModel):
        word: str = Field(max_length=10)
        deep: bool

    tooled = llm(tools, BASE, max_tokens=200, is_function_calling_model=True)
    is_lookup(tooled.structured_predict(Lookup, PromptTemplate("apple"), llm_kwargs={"tool_required": True,
                                        "allow_parallel_tool_calls": False}).model_dump())


def instructor_modes(plain, tools):
    import instructor
    import openai
    from pydantic import BaseModel, Field

    class Lookup(BaseModel):
        word: str = Field(max_length=10)
        deep: bool

    client = openai.OpenAI(base_url=tools + "/v1", api_key="none", max_retries=0, timeout=60)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        answer = instructor.from_openai(client, mode=mode).chat.completions.create(
            model=BASE, messages=[{"role": "user", "content": "apple"}], response_model=Lookup, temperature=0, max_tokens=200, max_retries=0)
        is_lookup(answer.model_dump())


BEGIN = "<|begin|>"  # lm-eval has texts tokenised by the server's routes (`auto`), and never adds special tokens then


def lm_eval_tasks(plain, _):
    """A task of choices by their likelihood and one of texts, through completions and through chats."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    choices = [SAID["shout"], SAID[BASE]]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.environ["HF_HOME"] = name
        (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (ASKED, ASKED)))
        data = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/data.jsonl}}}}
test_split: test
doc_to_text: "{BEGIN}Q: {{{{text}}}}\\nA:"
"""
        (folder / "choose.yaml").write_text(f"task: choose\noutput_type: multiple_choice\ndoc_to_choice: {json.dumps(choices)}\n"
                                            "doc_to_target: 0\nmetric_list: [{metric: acc}]\n" + data)
        (folder / "write.yaml").write_text("task: write\noutput_type: generate_until\n" + f"doc_to_target: {json.dumps(choices[0])}\n"
                                           'generation_kwargs: {until: ["\\n"], max_gen_toks: 40}\nmetric_list: [{metric: exact_match}]\n'
                                           'filter_list: [{name: all, filter: [{function: remove_whitespace}, {function: take_first}]}]\n' + data)
        (folder / "chat.yaml").write_text((folder / "write.yaml").read_text().replace("task: write", "task: chat")
                                          .replace('"' + BEGIN + 'Q: {{text}}\\nA:"', '"{{text}}"'))
        manager = TaskManager(include_path=name, include_defaults=False)

        def run(kind, model, tasks, path, **more):
            return lm_eval.simple_evaluate(model=kind, model_args={"base_url": plain + path, "model": model}, tasks=tasks,
                                           task_manager=manager, bootstrap_iters=0, **more)

        for model, right in (("shout", 1.0), (BASE, 0.0)):
            done = run("local-completions", model, ["choose", "write"], "/v1/completions", log_samples=True)
            equal(done["results"]["choose"]["acc,none"], right)
            equal(done["results"]["write"]["exact_match,all"], right)
            chosen = [one[0][0] for one in done["samples"]["choose"][0]["resps"]]
            for text, likelihood in zip(choices, chosen):
                own = own_likelihood(plain, model, f"{BEGIN}Q: {ASKED}\nA:", " " + text)
                assert abs(float(likelihood) - own) < 1e-3, (model, text, likelihood, own)
            chats = run("local-chat-completions", model, ["chat"], "/v1/chat/completions", apply_chat_template=True)
            equal(chats["results"]["chat"]["exact_match,all"], right)


def own_likelihood(url, model, context, continuation):
    """Of the continuation's tokens, from a request of our own."""
    plain_text = {"add_special_tokens": False}
    before = len(post(url, "/tokenize", {"model": model, "prompt": context, **plain_text})["tokens"])
    answer = post(url, "/v1/completions", {"model": model, "prompt": context + continuation, "max_tokens": 0, "echo": True, "logprobs": 0, **plain_text})
    return sum(answer["choices"][0]["logprobs"]["token_logprobs"][before:])


STACKS = {"anthropic": "anthropic", "openai": None, "openai_agents": "openai-agents", "pydantic_ai": "pydantic-ai", "litellm": "litellm",
          "langchain_openai": "langchain", "llama_index": "llama-index", "instructor": "instructor", "lm_eval": "lm-eval"}
# No client asks anybody but the server.
QUIET = {"OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
         "OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGCHAIN_TRACING_V2": "false", "PYTHONDONTWRITEBYTECODE": "1", "DO_NOT_TRACK": "1"}


class ClientStacks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain = LiveServer()
        cls.tools = LiveServer("--chat-template", str(ROOT / "tests/conformance/tools.jinja"))

    @classmethod
    def tearDownClass(cls):
        assert (cls.plain.stop(), cls.tools.stop()) == (0, 0)

    def check(self, stack):
        environment = dict(os.environ, **QUIET)
        if folder := STACKS[stack]:
            self.assertTrue((FOLDERS / folder / "installed.txt").exists(), f"run tools/test_clients.sh: {FOLDERS / folder} is not complete")
            environment["PYTHONPATH"] = str(FOLDERS / folder)
        done = subprocess.run([sys.executable, __file__, stack, self.plain.url, self.tools.url], env=environment, capture_output=True,
                              text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assertGreater(int(done.stdout.splitlines()[-1]), 0)


for name in STACKS:
    setattr(ClientStacks, "test_" + name, lambda self, stack=name: self.check(stack))


def run_stack(stack, plain, tools):
    """What this file has of the stack; says how many there were."""
    found = [function for key, function in sorted(globals().items())
             if key.startswith(stack + "_") and key != stack + "_client" and not any(
                 key.startswith(other + "_") for other in STACKS if len(other) > len(stack))]
    for function in found:
        function(plain, tools)
    print(len(found))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in STACKS:
        run_stack(*sys.argv[1:])
    else:
        unittest.main(verbosity=1)
