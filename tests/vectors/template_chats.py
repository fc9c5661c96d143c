# SPDX-License-Identifier: Apache-2.0
"""Whole chat templates (templates/sources) and the conversations they are rendered with."""

BASE = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "add_generation_prompt": True}


def turn(role, content, **more):
    return {"role": role, "content": content} | more


def call(name, arguments, wrapped=True):
    inner = {"name": name, "arguments": arguments}
    return {"type": "function", "id": "c1", "function": inner} if wrapped else inner


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a place \u2014 <now> & \"later\".", "parameters": {
        "type": "object", "properties": {
            "place": {"type": "string", "description": "a town"},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"type": "integer", "default": 1}},
        "required": ["place"]}}}
SORT = {"type": "function", "function": {
    "name": "sort_items", "description": None, "parameters": {
        "type": "object", "properties": {
            "items": {"type": "array", "items": {"type": "object", "properties": {
                "key": {"type": ["string", "integer"]}, "size": {"type": "number"}}}},
            "reverse": {"type": "boolean"}}, "required": ["items"]},
    "return": {"type": "array", "items": {"type": "string"}}}}

SYSTEM = turn("system", "  You count things.\n")
HELLO = turn("user", "Hello \u4eca\u5929 \U0001f600!")
ANSWER = turn("assistant", " Five.\n")
MUSED = turn("assistant", "<muse>\nfirst\nthen\n</muse>\n\nIt is six.")

CHATS = {
    "one": [HELLO],
    "system": [SYSTEM, HELLO],
    "turns": [SYSTEM, HELLO, ANSWER, turn("user", "And  now?\n")],
    "answered": [HELLO, ANSWER],
    "two-users": [HELLO, turn("user", "Still there?")],
    "mused": [HELLO, MUSED, turn("user", "Why?"), MUSED],
    "parts": [turn("user", [{"type": "text", "text": "two"}, {"type": "image"}, {"type": "text", "text": "parts"}])],
    "calls": [SYSTEM, turn("user", "Weather in Ulm?"),
              turn("assistant", None, tool_calls=[call("weather", {"place": "Ulm", "unit": "C", "days": 2}),
                                                  call("weather", "{\"place\": \"\u00c5bo\"}", wrapped=False)]),
              turn("tool", "12 degrees"), turn("tool", "{\"t\": 3}"), turn("assistant", "Mild and cold."),
              turn("user", "<result>not one")],
    "call-with-text": [turn("user", "Sort."), turn("assistant", "At once.", tool_calls=[
        call("sort_items", {"reverse": False, "items": [{"key": 1}], "B": None})]), turn("tool", {"sorted": [1, 2.5]})],
    "user-results": [turn("user", "Go"), turn("assistant", "", thoughts="hm"), turn("user", "<result>7</result>")],
    "developer": [turn("developer", "be brief"), HELLO],
}

# (source, chat, changes of BASE)
CASES = [
    *(("plain_turns", chat, {}) for chat in ("one", "system", "turns")),
    ("plain_turns", "answered", {"add_generation_prompt": False}),
    *(("strict_turns", chat, {}) for chat in ("one", "system", "turns", "two-users", "developer")),
    *(("tools_as_json", chat, {}) for chat in (
        "one", "system", "turns", "mused", "parts", "calls", "call-with-text", "user-results")),
    ("tools_as_json", "calls", {"tools": [WEATHER, SORT]}),
    ("tools_as_json", "one", {"tools": [WEATHER], "think": False}),
    ("tools_as_json", "one", {"tools": [], "add_generation_prompt": False}),
    *(("tools_as_signatures", chat, {}) for chat in ("one", "turns", "developer", "call-with-text")),
    ("tools_as_signatures", "one", {"tools": [WEATHER]}),
    ("tools_as_signatures", "turns", {"tools": [WEATHER, SORT], "date": "a Monday", "wrap": True}),
]
