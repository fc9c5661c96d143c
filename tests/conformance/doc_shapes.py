# SPDX-License-Identifier: Apache-2.0
"""Whether an answer is what a page shows of it. A page may leave out: `...` stands for more members, more entries, the end
of a text, or any lines. Beside that every key shown must be there with a value of the same type, and the value itself is
compared where it is not one that differs from run to run (VARIES)."""
import json
import math
import re

# What differs between runs and machines: the type counts.
VARIES = {"id", "created", "created_at", "system_fingerprint", "commit", "build", "isa", "version", "root", "path", "model_path", "tokenizer_path", "lora_path", "since_s", "uses",
          "change_norm", "recent_uses", "load_s", "embedding"}
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?: ?(?:[KMG]i?B|B)\b)?")


class More:
    """`...` in an object or a list."""


MORE = More()


def read_shown(text):
    """JSON with `...` in it."""
    value, end = _value(text, _space(text, 0))
    if _space(text, end) != len(text):
        raise ValueError("something stands behind the JSON: " + text[end:end + 40])
    return value


def _space(text, at):
    while at < len(text) and text[at] in " \n\t\r":
        at += 1
    return at


def _value(text, at):
    if text.startswith("...", at):
        return MORE, at + 3
    if text[at] == "{":
        members, at = {}, _space(text, at + 1)
        while text[at] != "}":
            if text.startswith("...", at):
                members[MORE] = MORE
                at += 3
            else:
                key, at = json.decoder.scanstring(text, at + 1)
                at = _space(text, at)
                if text[at] != ":":
                    raise ValueError("a colon is missing behind " + key)
                members[key], at = _value(text, _space(text, at + 1))
            at = _comma(text, at, "}")
        return members, at + 1
    if text[at] == "[":
        entries, at = [], _space(text, at + 1)
        while text[at] != "]":
            entry, at = _value(text, at)
            entries.append(entry)
            at = _comma(text, at, "]")
        return entries, at + 1
    return json.JSONDecoder().raw_decode(text, at)


def _comma(text, at, close):
    at = _space(text, at)
    if text[at] == ",":
        return _space(text, at + 1)
    if text[at] != close:
        raise ValueError("neither a comma nor '" + close + "' at: " + text[at:at + 40])
    return at


def _type(value):
    if isinstance(value, bool):
        return "boolean"
    for kinds, name in (((int, float), "number"), (str, "text"), (dict, "object"), (list, "list")):
        if isinstance(value, kinds):
            return name
    return "null"


def differences(shown, actual, key="", place="$"):
    """Sentences; none: it is as shown."""
    if shown is MORE:
        return []
    if _type(shown) != _type(actual):
        return [f"{place} is shown as {_type(shown)}, but it is {_type(actual)}: {json.dumps(actual)[:80]}"]
    if isinstance(shown, dict):
        found = []
        for name, value in shown.items():
            if name is MORE:
                continue
            if name not in actual:
                found.append(f"{place}.{name} is shown, but the answer has {', '.join(actual) or 'nothing'}")
            else:
                found += differences(value, actual[name], name, f"{place}.{name}")
        return found
    if isinstance(shown, list):
        return _list_differences(shown, actual, key, place)
    if key in VARIES or "bytes" in key:
        return []
    if isinstance(shown, str) and shown.endswith("..."):
        same = actual.startswith(shown[:-3])
    elif isinstance(shown, float):
        same = math.isclose(shown, actual, rel_tol=0.05, abs_tol=0.05)
    else:
        same = shown == actual
    return [] if same else [f"{place} is shown as {json.dumps(shown)}, but it is {json.dumps(actual)}"]


def _list_differences(shown, actual, key, place):
    entries = [entry for entry in shown if entry is not MORE]
    if key in VARIES:
        return [d for s, a in zip(entries, actual) for d in differences(s, a, key, f"{place}[]")]
    if len(entries) == len(shown) and len(entries) != len(actual):
        return [f"{place} is shown with {len(entries)} entries, but it has {len(actual)}"]
    if all(isinstance(entry, dict) for entry in entries) and len(entries) < len(shown):
        # Some of a longer list: each entry shown is one of it.
        found = []
        for i, entry in enumerate(entries):
            tries = [differences(entry, one, "", f"{place}[{i}]") for one in actual]
            if not tries:
                found.append(f"{place}[{i}] is shown, but the list is empty")
            elif all(tries):
                found += min(tries, key=len)
        return found
    return [d for i, (s, a) in enumerate(zip(entries, actual)) for d in differences(s, a, key, f"{place}[{i}]")]


def text_differences(shown, actual):
    """Lines in order; numbers and sizes are not compared, `...` is any text, alone on a line any lines."""
    def plain(line):
        return " ".join(NUMBER.sub("#", line).split())

    left = [plain(line) for line in actual.splitlines()]
    skipping = True  # what a program says before
    for line in shown.splitlines():
        if line.strip() == "...":
            skipping = True
            continue
        if not line.strip():
            continue
        pattern = ".*".join(re.escape(part) for part in plain(line).split("..."))
        at = next((i for i, one in enumerate(left) if re.fullmatch(pattern, one)), None)
        if at is None or (not skipping and any(left[:at])):
            return [f"the line is shown, but not printed{'' if at is None else ' there'}: {line}"]
        left, skipping = left[at + 1:], False
    return []


def event_differences(shown, actual):
    """Server-sent events: each one shown comes, in this order."""
    def events(text):
        return [line[len("data: "):] for line in text.splitlines() if line.startswith("data: ")]

    left = events(actual)
    for event in events(shown):
        if event == "[DONE]":
            if left[-1:] != ["[DONE]"]:
                return ["the stream does not end with [DONE]"]
            continue
        value, best = read_shown(event), None
        for i, one in enumerate(left):
            found = differences(value, json.loads(one)) if one != "[DONE]" else ["the stream has ended"]
            if not found:
                left, best = left[i + 1:], []
                break
            best = found if best is None or len(found) < len(best) else best
        if best != []:
            return best or ["an event is shown, but the stream has ended: " + event]
    return []


def output_differences(shown, actual):
    shown = shown.strip()
    if shown.startswith("data: "):
        return event_differences(shown, actual)
    if shown[:1] in ("{", "["):
        try:
            value = json.loads(actual)
        except ValueError:
            return ["JSON is shown, but this came: " + actual.strip()[:300]]
        return differences(read_shown(shown), value)
    return text_differences(shown, actual)
