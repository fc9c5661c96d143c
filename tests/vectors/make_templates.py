# SPDX-License-Identifier: Apache-2.0
"""Writes templates/cases.json: what Python's jinja2, set up as transformers does, makes of each template."""
import datetime
import json

import template_chats as chats
import template_filters as filters
import template_snippets as snippets
from vectors_common import HERE, nasty

OUT = HERE / "templates"
CLOCK = datetime.datetime(2026, 1, 2, 3, 4, 5)
GROUPS = {"loop": snippets.LOOPS, "set": snippets.SETS, "if": snippets.CONDITIONS, "expression": snippets.EXPRESSIONS,
          "space": snippets.WHITESPACE, "filter": filters.FILTERS, "method": filters.METHODS, "error": filters.ERRORS}


def render(template, context):
    """{"expected": text} or {"error": ..., "message": ...}."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        compiled = _compile_jinja_template(template)
        compiled.environment.globals["strftime_now"] = CLOCK.strftime
        return {"expected": compiled.render(**json.loads(json.dumps(context)))}
    except Exception as error:  # whatever the reference raises is the expectation
        return {"error": type(error).__name__, "message": str(error)}


def all_cases():
    for group, templates in GROUPS.items():
        for name, template in templates.items():
            result = render(template, snippets.DATA)
            assert group == "error" or "expected" in result, f"{group}/{name}: {result}"
            yield {"name": f"{group}/{name}", "template": template, "context": "data"} | result
    texts = {"texts": [item["text"] for item in nasty()]}
    for name, template in snippets.NASTY.items():
        yield {"name": f"nasty/{name}", "template": template, "context": "nasty"} | render(template, texts)
    seen = {}
    for source, chat, changes in chats.CASES:
        template = (OUT / "sources" / f"{source}.jinja").read_text()
        name = f"chat/{source}/{chat}"
        seen[name] = seen.get(name, 0) + 1
        context = chats.BASE | changes | {"messages": chats.CHATS[chat]}
        yield {"name": f"{name}/{seen[name]}", "source": f"sources/{source}.jinja", "context": context} | render(
            template, context)


def main():
    cases = list(all_cases())
    head = {"clock": CLOCK.strftime("%Y-%m-%dT%H:%M:%S"), "data": snippets.DATA}
    lines = ",\n".join(" " + json.dumps(case) for case in cases)
    (OUT / "cases.json").write_text(json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
    wrong = [case["name"] for case in cases if "error" in case]
    print(f"{len(cases)} templates, {len(wrong)} of them errors, {(OUT / 'cases.json').stat().st_size} bytes")


if __name__ == "__main__":
    main()
