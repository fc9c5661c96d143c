# SPDX-License-Identifier: Apache-2.0
"""Short templates, one construct each, over the context DATA. Groups are only for reading."""

DATA = {
    "words": ["pear", "Apple", "fig", "apple", "Banana"], "numbers": [3, -1, 4, 1, -5, 9, 2, 6], "floats": [1.5, 2.0, -0.25],
    "empty": [], "nothing": None, "yes": True, "no": False, "zero": 0, "n": 7, "f": 2.5, "text": "  Hello, World  ",
    "name": "ada lovelace", "multi": "one\ntwo\n\nthree", "html": "<a href=\"x\">&'</a>", "unicode": "\u00e9\u4eca\U0001f600\u00df",
    "d": {"b": 2, "a": 1, "c": {"x": [10, 20]}}, "rows": [
        {"k": "a", "v": 3, "on": True}, {"k": "b", "v": 1, "on": False}, {"k": "c", "v": 2}, {"k": "a", "v": 5, "on": True}],
    "pairs": [["x", 1], ["y", 2]], "mixed": [1, "1", None, True, 2.5, [1, 2], {"a": None}], "quote": "it's \"x\"",
}

LOOPS = {
    "for": '{% for w in words %}[{{ w }}]{% endfor %}',
    "for-else-empty": '{% for w in empty %}x{% else %}none{% endfor %}',
    "for-else-full": '{% for w in words %}{{ w[0] }}{% else %}none{% endfor %}',
    "for-filter": '{% for x in numbers if x > 2 %}{{ loop.index }}:{{ x }} {% endfor %}',
    "for-filter-else": '{% for x in numbers if x > 99 %}{{ x }}{% else %}nothing above{% endfor %}',
    "for-unpack": '{% for a, b in pairs %}{{ a }}={{ b }};{% endfor %}',
    "for-items": '{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}',
    "for-dict-keys": '{% for k in d %}{{ k }}{% endfor %}',
    "for-string": "{% for c in 'h\xe9!' %}<{{ c }}>{% endfor %}",
    "for-range": (
        '{% for i in range(5) %}{{ i }}{% endfor %} {% for i in range(2, 11, 3) %}{{ i }},{% endfor %}'
        ' {% for i in range(5, 0, -2) %}{{ i }}{% endfor %}'
    ),
    "loop-all": (
        '{% for w in words %}{{ loop.index }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }}'
        ' {{ loop.first }} {{ loop.last }} {{ loop.length }} {{ loop.depth }} {{ loop.depth0 }}'
        '|{% endfor %}'
    ),
    "loop-neighbours": '{% for w in words %}{{ loop.previtem }}<{{ w }}>{{ loop.nextitem }} {% endfor %}',
    "loop-neighbours-defined": '{% for w in words %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}',
    "loop-cycle": "{% for w in words %}{{ loop.cycle('odd', 'even') }} {% endfor %}",
    "loop-changed": '{% for x in [1,1,2,2,1] %}{{ loop.changed(x) }} {% endfor %}',
    "loop-nested": (
        "{% for a in [1,2] %}{% set outer = loop %}{% for b in 'xy' %}{{ outer.index }}{{ b }}"
        '{{ loop.depth }} {% endfor %}{% endfor %}'
    ),
    "loop-recursive": (
        "{% for r in [{'n': 1, 'c': [{'n': 2, 'c': []}, {'n': 3}]}] recursive %}({{ r.n }}"
        '{{ loop(r.c) if r.c }}){% endfor %}'
    ),
    "loop-break": '{% for x in numbers %}{% if x == 1 %}{% break %}{% endif %}{{ x }} {% endfor %}',
    "loop-continue": '{% for x in numbers %}{% if x < 0 %}{% continue %}{% endif %}{{ x }} {% endfor %}',
    "loop-break-nested": (
        "{% for a in 'ab' %}{% for x in numbers %}{% if x == 4 %}{% break %}{% endif %}{{ a }}"
        '{{ x }} {% endfor %}{% endfor %}'
    ),
    "loop-scope": '{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}',
    "loop-variable-after": '{% for i in [1, 2] %}{% endfor %}{{ i is defined }}',
    "loop-slice": '{% for w in words[1:-1] %}{{ w }} {% endfor %}{% for w in words[::-1] %}{{ w }} {% endfor %}',
}

SETS = {
    "set": '{% set a = 3 %}{% set b = a * 2 %}{{ a }}{{ b }}',
    "set-several": "{% set a, b = 1, 'two' %}{{ b }}{{ a }}",
    "set-block": '{% set a %}  x{{ n }}\n y {% endset %}[{{ a }}]',
    "set-block-filter": '{% set a | trim | upper %}  x{{ n }}y {% endset %}[{{ a }}]',
    "set-in-if": '{% if yes %}{% set a = 1 %}{% else %}{% set a = 2 %}{% endif %}{{ a }}',
    "namespace": (
        '{% set ns = namespace(found=false, n=0) %}{% for x in numbers %}{% if x == 9 %}{% set ns.found = true %}'
        '{% endif %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.found }} {{ ns.n }}'
    ),
    "namespace-new-key": (
        '{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}'
        ' {{ ns.b is defined }}'
    ),
    "namespace-from-dict": "{% set ns = namespace({'p': 1}, q=2) %}{{ ns.p + ns.q }}",
    "with": '{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}',
    "macro": (
        "{% macro hi(who, mark='!') %}Hi {{ who }}{{ mark }}{% endmacro %}{{ hi('a') }} {{ hi('b', '?') }}"
        " {{ hi(mark='.', who='c') }}"
    ),
    "macro-missing": '{% macro m(a, b) %}[{{ a }}{{ b is defined }}]{% endmacro %}{{ m(1) }}',
    "macro-varargs": '{% macro m(a) %}{{ a }} {{ varargs }} {{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}',
    "macro-kwargs-items": (
        '{% macro m() %}{% for k, v in kwargs.items() %}{{ k }}={{ v }} {% endfor %}{% endmacro %}'
        "{{ m(p=1, q='z') }}"
    ),
    "macro-recursive": (
        '{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * fact(n - 1) | int }}{% endif %}'
        '{% endmacro %}{{ fact(5) }}'
    ),
    "macro-result-filter": '{% macro m() %} x {% endmacro %}[{{ m() | trim }}][{{ m() ~ 1 }}][{{ m() | length }}]',
    "macro-attributes": '{% macro m(a, b=1) %}{% endmacro %}{{ m.name }} {{ m.arguments }} {{ m.caller }}',
    "macro-sees-global": '{% set g = 5 %}{% macro m() %}{{ g }}{{ n }}{% endmacro %}{{ m() }}',
    "macro-default-expression": "{% macro m(a=[1, 2], b={'k': 'v'}, c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m() }}",
    "call-caller": (
        "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}"
        'in {{ n }}{% endcall %}'
    ),
    "call-caller-args": (
        '{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}'
        '{% call(v, i) each(words[:2]) %}{{ i }}{{ v }} {% endcall %}'
    ),
    "filter-block": '{% filter upper %}abc {{ name }}{% endfilter %}',
    "filter-block-chain": "{% filter replace('a', 'o') | title %}abc {{ name }}{% endfilter %}",
}

CONDITIONS = {
    "if": '{% if n > 9 %}a{% elif n > 6 %}b{% elif n > 3 %}c{% else %}d{% endif %}',
    "if-inline": "{{ 'a' if n == 7 else 'b' }}{{ 'x' if no }}|{{ 'p' if no else 'q' if yes else 'r' }}",
    "truth": (
        "{% for x in [0, 1, '', ' ', [], [0], {}, {'a': 1}, none, true, false, 0.0, undefined_one] %}"
        "{{ 'T' if x else 'F' }}{% endfor %}"
    ),
    "and-or-not": (
        "{{ yes and no }} {{ yes or no }} {{ not yes }} {{ not no and yes }} {{ n and 'x' }}"
        " {{ zero or 'y' }} {{ nothing and n }}"
    ),
    "not-precedence": "{{ not n == 7 }} {{ not (n == 8) and yes }} {{ not 'a' in 'abc' }}",
    "compare": (
        "{{ 1 < 2 }} {{ 2 <= 2 }} {{ 3 > 4 }} {{ 3 >= 3 }} {{ 1 == 1.0 }} {{ 1 != '1' }} {{ 'a' < 'b' }}"
        ' {{ [1, 2] < [1, 3] }}'
    ),
    "compare-chain": '{{ 1 < n < 9 }} {{ 1 < n > 9 }} {{ 1 < 2 < 3 <= 3 }} {{ 0 == zero == no }}',
    "in": (
        "{{ 'fig' in words }} {{ 'x' not in words }} {{ 'a' in d }} {{ 2 in [1, 2] }} {{ 'ell' in text }}"
        " {{ '' in 'a' }}"
    ),
    "is-not": '{{ n is not none }} {{ nothing is not none }} {{ missing is not defined }}',
    "tests-defined": (
        '{{ n is defined }}{{ missing is defined }}{{ missing is undefined }}{{ d.zz is defined }}'
        "{{ d.a is defined }}{{ nothing is defined }}{{ d['zz'] is defined }}{{ words[99] is defined }}"
    ),
    "tests-types": (
        "{% for x in [1, 1.5, 'a', none, true, [1], {'a': 1}] %}{{ x is string }} {{ x is number }}"
        ' {{ x is integer }} {{ x is float }} {{ x is boolean }} {{ x is none }} {{ x is mapping }}'
        ' {{ x is sequence }} {{ x is iterable }}|{% endfor %}'
    ),
    "tests-undefined-types": (
        '{{ missing is string }} {{ missing is mapping }} {{ missing is iterable }} {{ missing is none }}'
        ' {{ missing is number }}'
    ),
    "tests-callable": '{{ range is callable }} {{ n is callable }}',
    "tests-values": (
        '{{ yes is true }}{{ no is false }}{{ 1 is true }}{{ n is odd }}{{ n is even }}{{ 9 is divisibleby 3 }}'
        '{{ 9 is divisibleby(4) }}'
    ),
    "tests-compare": (
        '{{ n is equalto 7 }}{{ n is eq 7 }}{{ n is ne 7 }}{{ n is lt 8 }}{{ n is le 7 }}{{ n is gt 7 }}'
        '{{ n is ge 7 }}{{ n is sameas n }}{{ n is greaterthan 3 }}{{ n is lessthan 3 }}'
    ),
    "tests-in": "{{ n is in [6, 7] }}{{ 'x' is in 'xyz' }}{{ n is not in [1] }}",
    "tests-case": "{{ 'ABC' is upper }}{{ 'abc' is lower }}{{ 'aBc' is upper }}",
    "tests-filter-name": "{{ 'upper' is filter }}{{ 'nosuch' is filter }}{{ 'defined' is test }}",
    "tests-precedence": '{{ n is defined and n > 5 }} {{ words is sequence and not words is string }} {{ n + 1 is even }}',
}

EXPRESSIONS = {
    "arithmetic": (
        '{{ 7 + 2 }} {{ 7 - 9 }} {{ 7 * 3 }} {{ 7 / 2 }} {{ 8 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }}'
        ' {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}'
    ),
    "arithmetic-float": (
        '{{ 0.1 + 0.2 }} {{ 1.0 * 3 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }} {{ 1e3 }} {{ 1.5e-7 }}'
        ' {{ 1e16 }} {{ 123456789.0 }} {{ 1 / 3 }}'
    ),
    "precedence": (
        '{{ 2 + 3 * 4 }} {{ (2 + 3) * 4 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ 10 - 4 - 3 }}'
        ' {{ 2 * 3 % 4 }} {{ not 1 + 1 }}'
    ),
    "unary": '{{ -n }} {{ +n }} {{ - -n }} {{ -f }}',
    "big-integer": '{{ 99999999999 * 10 }} {{ 2 ** 40 }}',
    "literals": (
        '{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ \'a\\n\\\'b\\t\\u00e9\' }} {{ "q" }} {{ True }} {{ False }}'
        ' {{ None }} {{ true }} {{ none }}'
    ),
    "concatenate": (
        "{{ 'a' ~ 1 ~ none ~ true ~ 2.0 ~ [1] }} {{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ [1] + [2] }}"
        " {{ [0] * 3 }} {{ 'a' 'b' }}"
    ),
    "concatenate-undefined": "[{{ missing }}][{{ missing ~ 'x' }}][{{ nothing ~ '' }}]",
    "tuples": "{{ (1, 2) }} {{ (1,) }} {{ () }} {{ (1, 2)[1] }} {{ (1, 'a') == (1, 'a') }}",
    "attributes": (
        "{{ d.a }}{{ d['b'] }}{{ d.c.x[1] }}{{ d['c']['x'][0] }}{{ rows[0].k }}{{ rows[-1]['v'] }}"
        "{{ d.get('a') }}{{ d.zz }}"
    ),
    "attribute-or-method": (
        "{{ {'items': 5, 'get': 6}['items'] }} {{ {'count': 1}.count is callable }} {{ {'role': 'x'}.role }}"
    ),
    "index": (
        "{{ words[0] }} {{ words[-1] }} {{ 'hello'[1] }} {{ '\xe9\u4eca\U0001f600'[-1] }} {{ words[n - 6] }}"
    ),
    "slices": (
        '{{ words[1:3] }} {{ words[:2] }} {{ words[-2:] }} {{ words[::2] }} {{ words[::-1] }}'
        ' {{ words[3:0:-1] }} {{ words[9:] }} {{ words[:-9] }} {{ words[:] }}'
    ),
    "slices-string": (
        "{{ 'abcdef'[1:4] }} {{ 'abcdef'[:-2] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-3:] }} {{ 'abcdef'[4:1:-2] }}"
        ' {{ unicode[1:3] }}'
    ),
    "slices-variable": '{% set a = 1 %}{% set b = 3 %}{{ words[a:b] }} {{ words[a:] }} {{ words[none:b] }}',
    "lists-nested": "{{ [[1, 2], [3]][0][1] }} {{ {'a': [1, {'b': 2}]}.a[1].b }} {{ [1, 2,] }}",
    "inline-in-call": '{{ range(3 if yes else 5) | list }} {{ (words if no else numbers)[0] }}',
    "output-types": "{{ 1 }} {{ 1.0 }} {{ none }} {{ true }} {{ 'x' }} {{ [] }} {{ {} }}",
    "repr-list": '{{ mixed }}',
    "repr-dict": "{{ d }} {{ {'k': 'it\\'s', 1: none} }}",
    "repr-strings": '{{ [quote, "it\'s", \'say "x"\', multi, html, unicode, \'a\\\\b\\t\'] }}',
    "repr-controls": "{{ ['\\x00\\x1b\\x7f', '\xa0\u200b\u2028', '\\ud83d\\ude00'[:0]] }}",
    "repr-floats": '{{ [0.1, 1e22, 1e-5, 0.0001, 100000000000000000.0, -0.0, 1.0] }}',
    "missing-attribute": "[{{ d.nope }}][{{ words[99] }}][{{ n.nope }}][{{ 'abc'.nope }}]",
    "dict-call": "{{ dict(a=1, b='x') }} {{ dict({'z': 1}, y=2).y }}",
    "cycler-joiner": (
        "{% set j = joiner(', ') %}{% for w in words %}{{ j() }}{{ w }}{% endfor %} {% set c = cycler('a', 'b') %}"
        '{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}'
    ),
    "strftime": (
        "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%A, %B %d, %y, %I %p, %j, %a %%') }}"
    ),
    "comments": 'a{# x {{ y }} {% z %} #}b{#- c -#} d {# multi\nline #}e',
    "raw": '{% raw %}{{ not }} {% parsed %} {# at all #}{% endraw %}!',
    "raw-trim": 'a \n{%- raw -%}  {{ x }}  {%- endraw -%} \n b',
    "braces-in-text": "{ a } {a} }} %} #} { { n } } {{ '{{' }} {{ '}}' }}",
    "generation": 'a{% generation %}b{{ n }}{% endgeneration %}c',
    "generation-loop": '{% for r in rows %}{% generation %}{{ r.k }}{% endgeneration %}\n{% endfor %}',
    "do-less": '{% set _ = d.update is defined %}{{ _ }}',
    "escape-sequences": (
        "{{ 'tab\\there' }}|{{ 'back\\\\slash' }}|{{ 'nl\\nx' }}|{{ '\\x41\\u4eca\\101' }}|{{ 'unknown \\q' }}"
    ),
}

WHITESPACE = {
    "trim-blocks": '{% if yes %}\nA\n{% endif %}\nB\n{{ n }}\nC\n',
    "lstrip-blocks": 'x\n    {% if yes %}\n    A\n    {% endif %}\n  {{ n }}\n\t{# c #}\nend',
    "minus": 'a  \n {%- if yes -%} \n b \n {%- endif -%} \n c  {{- n -}}  d',
    "plus": 'a\n  {%+ if yes +%}\n  b\n  {%+ endif %}\nc',
    "minus-variable": "x   {{- ' y ' -}}   z",
    "minus-comment": 'a \n {#- c -#} \n b',
    "block-in-line": 'a {% if yes %} b {% endif %} c\n d {% set q = 1 %} e',
    "final-newline": 'abc\n',
    "final-newlines": 'abc\n\n\n',
    "crlf": 'a\r\n{% if yes %}\r\nb\r\n{% endif %}\r\nc\r\n',
    "tabs": '\t\t{% if yes %}\n\t\tx\n\t\t{% endif %}\n',
    "lstrip-after-text": 'a  {% if yes %}b{% endif %}  {% if no %}c{% endif %}\n   {% if yes %}d{% endif %}',
    "empty-template": '',
    "only-newline": '\n',
    "only-block": '{% if no %}x{% endif %}\n',
    "for-lines": '{% for w in words %}\n- {{ w }}\n{% endfor %}\ndone',
    "nested-indent": (
        '{% for r in rows %}\n    {% if r.on %}\n        {{ r.k }}\n    {%- else %}\n  -\n    {% endif %}'
        '\n{% endfor %}\n'
    ),
}

# Over {"texts": [...]}, every text of nasty_strings.json.
NASTY = {
    "tojson": "{% for s in texts %}{{ s | tojson }}\n{% endfor %}",
    "output": "{% for s in texts %}[{{ s }}]\n{% endfor %}",
    "trim": "{% for s in texts %}[{{ s | trim }}{{ s.lstrip() | length }} {{ s.rstrip() | length }}]\n{% endfor %}",
    "length": "{% for s in texts %}{{ s | length }} {{ s[::-1] | length }} {{ s[2:-1] | tojson }}\n{% endfor %}",
    "case": "{% for s in texts %}{{ s | upper | tojson }} {{ s | lower | tojson }}\n{% endfor %}",
    "title": "{% for s in texts %}{{ s | title | tojson }} {{ s | capitalize | tojson }}\n{% endfor %}",
    "split": "{% for s in texts %}{{ s.split() | tojson }} {{ s.split(' ') | length }}\n{% endfor %}",
    "splitlines": "{% for s in texts %}{{ s.splitlines() | tojson }}\n{% endfor %}",
    "tests": "{% for s in texts %}{{ s is upper }} {{ s is lower }} {{ 'true' if s else 'false' }}\n{% endfor %}",
}
