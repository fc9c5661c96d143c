# SPDX-License-Identifier: Apache-2.0
"""Writes jinja_expressions.json: small templates with what Python's jinja2 makes of them, in the environment that
transformers sets up for chat templates. Run it with jinja2 3.1 installed; jinja_test.cc replays the file."""
import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment


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


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime(2025, 7, 10, 12, 0, 0).strftime(form)
    return env


CONTEXT = {
    "s": "Hello, World", "u": "Größe 東京 🙂 ß", "e": "", "n": 7, "neg": -7, "f": 2.5, "big": 1e22, "small": 1.5e-7, "t": True,
    "no": None, "l": [3, 1, 2], "m": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": None, "n": 1},
                                      {"role": "user", "content": "  bye\n", "n": 3}],
    "d": {"b": 1, "a": [1, 2.0, None, True, "q\"'"], "items": 5, "é": {"x": {}}, "z": []}, "ws": " \t\n x y \u00a0\u2003",
    "quote": "it's", "both": "it's \"q\" \\ \n\t\x07\u200b\u00ad", "html": "<b>&amp;'\"</b>", "lines": "a\nb\r\nc\n\nd",
    "words": ["banana", "Apple", "cherry", "apple"], "nested": [[1, [2, [3]]], []], "dup": [1, 1.0, True, "1", 2, 2],
}

EXPRESSIONS = r"""
s ¦ s[0] ¦ s[-1] ¦ s[1:4] ¦ s[::-1] ¦ s[::2] ¦ s[10:2:-3] ¦ s[-3:] ¦ s[:-3] ¦ s[100] ¦ s[100:] ¦ s[-100:2] ¦ u[::-1] ¦ u[6:8] ¦ u|length
l[0] ¦ l[-1] ¦ l[5] ¦ l[::-1] ¦ l[-2:] ¦ l[:1] ¦ l[3:0:-1] ¦ l[::-2] ¦ (1,2,3)[1:] ¦ (1,) ¦ () ¦ [] ¦ {} ¦ [1,'a',None,2.0,true] ¦ {'a':1,'b':[1]}
1 + 2 ¦ 1 - 2 ¦ 2 * 3 ¦ 7 / 2 ¦ -7 // 2 ¦ 7 // -2 ¦ -7 % 3 ¦ 7 % -3 ¦ 7.5 // 2 ¦ -7.5 // 2 ¦ -7.5 % 2 ¦ 7.5 % -2 ¦ 2 ** 10 ¦ 2 ** -1 ¦ 2 ** 0.5 ¦ -2 ** 2 ¦ 2 ** 3 ** 2
1 + 2.0 ¦ 1e3 ¦ 1.0 ¦ 1e16 ¦ 1e15 ¦ 123456789.123 ¦ 0.1 + 0.2 ¦ 1/3 ¦ 1e-5 ¦ 0.0001 ¦ big ¦ small ¦ -0.0 ¦ 1_000 ¦ 0x1f ¦ 0b101 ¦ 0o17 ¦ True + 1 ¦ 4 / 2 ¦ 10 // 3.0
'a' + 'b' ¦ 'a' ~ 1 ~ None ~ true ~ 1.50 ¦ 'ab' * 3 ¦ 3 * 'ab' ¦ [1] + [2] ¦ [0] * 3 ¦ (1,) + (2,) ¦ 'a' 'b' "c" ¦ 'ab' * -1
'%s-%d' % ('a', 3) ¦ '%05.2f|%-5s|%5s|%x|%%' % (3.14159, 'a', 'b', 255) ¦ '%(a)s' % {'a': 1} ¦ '%s' % [1] ¦ '%r' % 'x' ¦ '%+d' % 5 ¦ '%e' % 12345.678 ¦ '%g' % 0.00001
1 == 1.0 ¦ 1 == True ¦ '1' == 1 ¦ none == none ¦ [1,2] == [1,2] ¦ {'a':1,'b':2} == {'b':2,'a':1} ¦ (1,2) == [1,2] ¦ missing == none ¦ missing == missing ¦ 1 != 2
1 < 2 < 3 ¦ 3 > 2 > 2 ¦ 1 < 2.5 ¦ 'a' < 'b' ¦ 'Z' < 'a' ¦ [1,2] < [1,3] ¦ 1 <= 1 ¦ 2 >= 3 ¦ 'a' in 'abc' ¦ 'x' not in 'abc' ¦ 1 in [1,2] ¦ 'a' in {'a':1} ¦ 'b' in d ¦ 2 in (1,2) ¦ '' in 'a' ¦ 1.0 in [1]
not true ¦ not '' ¦ true and 'x' ¦ '' and 'x' ¦ '' or 'y' ¦ 0 or none ¦ 1 and 2 and 3 ¦ 0 or '' or 'z' ¦ not none and 1 ¦ none or [] ¦ n if t else 2 ¦ 1 if e else 2 ¦ (1 if e) ¦ 'x' if missing is defined else 'y'
missing ¦ missing is defined ¦ missing is undefined ¦ d.nope ¦ d['nope'] ¦ d.nope is defined ¦ s.nope ¦ l.nope is defined ¦ n.nope ¦ no.nope ¦ no['x'] ¦ missing or 'd' ¦ [missing] ¦ missing ~ 'x'
no ¦ t ¦ no is none ¦ t is true ¦ t is false ¦ n is number ¦ n is integer ¦ f is float ¦ f is number ¦ t is integer ¦ t is boolean ¦ t is number ¦ s is string ¦ l is sequence ¦ l is iterable ¦ d is mapping ¦ s is iterable
s is sequence ¦ d is sequence ¦ d is iterable ¦ n is iterable ¦ missing is iterable ¦ missing is string ¦ missing is none ¦ n is odd ¦ n is even ¦ n is divisibleby 7 ¦ n is divisibleby(2) ¦ n is eq 7 ¦ n is equalto 7 ¦ n is ne 8
n is gt 3 ¦ n is lt 3 ¦ n is ge 7 ¦ n is le 6 ¦ n is in [7] ¦ 'a' is in 'abc' ¦ s is lower ¦ 'abc' is lower ¦ 'ABC' is upper ¦ n is sameas n ¦ none is sameas none ¦ range is callable ¦ s is callable ¦ 'upper' is filter ¦ 'nope' is filter ¦ 'odd' is test
n is not none ¦ not n is none ¦ s is not string ¦ missing is not defined ¦ l is not mapping ¦ no is not none
s.upper() ¦ s.lower() ¦ u.upper() ¦ u.lower() ¦ s.title() ¦ "they're bill's friends".title() ¦ u.capitalize() ¦ 'hELLO wORLD'.capitalize() ¦ s.swapcase() ¦ s.strip('Hd') ¦ ws.strip() ¦ ws.lstrip() ¦ ws.rstrip() ¦ ws.strip() == 'x y'
'a,b,,c'.split(',') ¦ 'a,b,,c'.split(',', 1) ¦ 'a,b,,c'.rsplit(',', 1) ¦ ' a  b c '.split() ¦ ' a  b c '.split(none, 1) ¦ ' a  b c '.rsplit(none, 1) ¦ lines.splitlines() ¦ lines.splitlines(true) ¦ 'abc'.split('')
s.startswith('Hello') ¦ s.endswith('World') ¦ s.startswith(('x','H')) ¦ s.startswith('World', 7) ¦ s.replace('l', 'L') ¦ s.replace('l', 'L', 2) ¦ 'aaa'.replace('', '-') ¦ s.find('o') ¦ s.rfind('o') ¦ s.find('zz') ¦ s.index('W') ¦ s.count('l') ¦ 'aaaa'.count('aa') ¦ s.find('o', 5)
'-'.join(['a','b']) ¦ '12'.isdigit() ¦ 'a1'.isalnum() ¦ 'ab'.isalpha() ¦ ' '.isspace() ¦ ''.isdigit() ¦ 'AB'.isupper() ¦ 'ab1'.islower() ¦ '5'.zfill(3) ¦ '-5'.zfill(4) ¦ 'a'.ljust(3) ~ '|' ¦ 'a'.rjust(3, '.') ¦ 'a'.center(4) ~ '|' ¦ 'ab'.center(5, '*') ¦ 'a'.center(2,'x') ¦ 'ab'.center(3,'x')
'a=b=c'.partition('=') ¦ 'a=b=c'.rpartition('=') ¦ 'abc'.partition('x') ¦ 'abc'.removeprefix('a') ¦ 'abc'.removesuffix('c') ¦ '{} {1}'.format(1) ¦ '{0}-{x}'.format(1, x=2) ¦ '{{}}'.format() ¦ '{}'.format([1])
d.items() ¦ d.keys() ¦ d.values() ¦ d['items'] ¦ d.get('b') ¦ d.get('q') ¦ d.get('q', 3) ¦ d.a ¦ d['a'] ¦ d['é'] ¦ d.copy() ¦ l.index(2) ¦ l.count(1) ¦ d.keys()|list ¦ d.items()|list
s|upper ¦ s|lower ¦ u|upper ¦ s|title ¦ 'foo-bar (baz) <q>'|title ¦ s|capitalize ¦ ws|trim ¦ 'xxaxx'|trim('x') ¦ s|replace('o','0') ¦ s|replace('l','L',1) ¦ s|length ¦ l|count ¦ s|first ¦ s|last ¦ l|first ¦ l|last ¦ []|first ¦ []|last
l|sort ¦ l|sort(reverse=true) ¦ words|sort ¦ words|sort(case_sensitive=true) ¦ m|sort(attribute='n')|map(attribute='n')|list ¦ l|reverse|list ¦ s|reverse ¦ l|join ¦ l|join(', ') ¦ m|join(',', attribute='role') ¦ l|sum ¦ m|sum(attribute='n') ¦ l|max ¦ l|min ¦ words|max ¦ words|unique|list ¦ dup|unique|list
m|selectattr('role','equalto','user')|list ¦ m|rejectattr('content')|list ¦ m|map(attribute='content')|list ¦ m|map(attribute='zz', default='-')|list ¦ l|map('string')|list ¦ l|select('odd')|list ¦ l|reject('gt', 1)|list ¦ [0,1,'',none,'a']|select|list ¦ words|map('upper')|join(' ') ¦ m|selectattr('content','none')|list|length ¦ m|map(attribute='content')|select('string')|map('trim')|list
missing|default('x') ¦ e|default('x') ¦ e|default('x', true) ¦ no|default('x') ¦ no|d('x', boolean=true) ¦ missing|default ¦ d|items|list ¦ missing|items|list ¦ d|dictsort ¦ {'b':1,'A':2}|dictsort ¦ {'b':1,'A':2}|dictsort(true) ¦ {'b':1,'a':2}|dictsort(by='value') ¦ {'b':1,'a':2}|dictsort(reverse=true)
'3'|int ¦ '3.7'|int ¦ 'x'|int ¦ 'x'|int(9) ¦ 3.9|int ¦ -3.9|int ¦ 'ff'|int(base=16) ¦ '0x1f'|int(0,16) ¦ ' 12 '|int ¦ '1_000'|int ¦ none|int ¦ true|int ¦ '1e3'|int ¦ '2.5'|float ¦ 'x'|float ¦ 3|float ¦ 'nan'|float ¦ '1e400'|float ¦ 'inf'|float
-3|abs ¦ 2.5|round ¦ 3.5|round ¦ 2.675|round(2) ¦ 2.5|round(method='ceil') ¦ 2.51|round(1,'floor') ¦ 1234.5|round(-2) ¦ 7|round ¦ 42|string ¦ 2.0|string ¦ [1,'a']|string ¦ none|string ¦ true|string ¦ missing|string ¦ 1.5|string|upper
s|list ¦ d|list ¦ l|list ¦ (1,2)|list ¦ 'abc'|batch(2)|list ¦ [1,2,3]|batch(2,'x')|list ¦ 'a b c'|wordcount ¦ 'one two three four'|truncate(12) ¦ 'one two three four'|truncate(12, true) ¦ 'one two three'|truncate(11) ¦ 'a\nb\n\nc'|indent ¦ 'a\nb'|indent(2, true) ¦ 'a\n\nb'|indent(2, blank=true) ¦ 'a\n'|indent ¦ 'a\nb'|indent('> ')
'%s %s'|format('a', 'b') ¦ '%(x)s'|format(x=1) ¦ 'a b&c/ü?'|urlencode ¦ 'x'|center(5) ~ '|' ¦ '<b>'|safe ¦ [3,1]|attr('nope') ¦ {'a':1}|attr('a')
l|tojson ¦ d|tojson ¦ u|tojson ¦ u|tojson(ensure_ascii=true) ¦ d|tojson(indent=2) ¦ d|tojson(indent=4) ¦ l|tojson(indent=0) ¦ {}|tojson(indent=2) ¦ []|tojson(indent=2) ¦ d|tojson(separators=(',',':')) ¦ {'b':1,'a':2}|tojson(sort_keys=true) ¦ both|tojson ¦ html|tojson ¦ none|tojson ¦ true|tojson ¦ 2.0|tojson ¦ big|tojson ¦ (1,2)|tojson ¦ {1:2,none:3,true:4}|tojson ¦ '\x7f\u2028'|tojson ¦ 1e-7|tojson ¦ '\x7f'|tojson(ensure_ascii=true)
quote ¦ [quote] ¦ [both] ¦ [html] ¦ ['\''] ¦ ['"\''] ¦ ['\xe9\u0301\U0001F600\x00\x7f']|d ¦ nested ¦ {'a': {'b': ('x',)}} ¦ [1.0, 1e100, -0.0] ¦ [true, none]
range(3)|list ¦ range(1,4)|list ¦ range(5,0,-2)|list ¦ range(0)|list ¦ range(3)|length ¦ range(10)[2] ¦ range(5)|join ¦ range(3)|sum ¦ dict(a=1,b=2) ¦ dict([('x',1)]) ¦ dict({'a':1}, b=2) ¦ range(3) == [0,1,2]
strftime_now('%Y-%m-%d') ¦ strftime_now('%d %b %Y %H:%M') ¦ strftime_now('%B %-d') ¦ raise_exception('no ' ~ n) ¦ namespace(a=1).a ¦ namespace(a=1).b
s.nope() ¦ missing() ¦ missing.x ¦ missing['x'] ¦ missing[1:] ¦ no[1:] ¦ n[0] ¦ n + 's' ¦ 's' + n ¦ s + none ¦ 'a' + missing ¦ missing + 1 ¦ -'a' ¦ l + 'a' ¦ 1 < 'a' ¦ none < 1 ¦ n() ¦ l.append(1) ¦ d.update({}) ¦ d.pop('a') ¦ [1] < ['a'] ¦ 1/0 ¦ 1%0 ¦ 1 in 2 ¦ 5 in 'abc' ¦ n|join ¦ n|length ¦ none|length ¦ 5|list ¦ missing|tojson ¦ d.items()|tojson ¦ m|sort ¦ (m|selectattr('role'))|length ¦ l|first('x') ¦ s|upper(1) ¦ range(200000) ¦ range('a') ¦ s.split(1) ¦ s.startswith(1) ¦ s.upper(1) ¦ [{}]|map(attribute='a')|map('upper')|list ¦ {[]:1} ¦ l[1:'a'] ¦ l[::0] ¦ 'a'.center('b') ¦ -missing ¦ not missing ¦ missing|int ¦ missing|abs ¦ '%d' % 'a' ¦ '%s %s' % 'a' ¦ '%s' % ('a','b')
'a\tb' ¦ 'a\\n' ¦ '\101\x41\u0041\q\'' ¦ "a\"b" ¦ '{{ }}' ¦ '%}' ¦ {'}':'}}'}['}'] ¦ "#}"
f|int ¦ u|first ¦ u|last ¦ u.split(' ') ¦ u.find('東') ¦ u.center(20,'é') ¦ 'ǆ'.title() ¦ 'ŉx'.upper() ¦ 'ΑΣ'.lower() ¦ 'İ'.lower() ¦ 'straße'.upper() ¦ 'ﬁ'.upper() ¦ 'ﬁx'.capitalize() ¦ 'ﬁx'.title()
m[0].role ¦ m[-1]['content'] ¦ m.0.role ¦ m[0]["role"].upper() ¦ d.a[-1] ¦ d['é'].x ¦ d.a[1:3] ¦ (m|first).content ¦ m|map(attribute='role')|unique|list|join('/')
(l|map('string')) is sequence ¦ (l|map('string')) is iterable ¦ (l|select) and 'always' ¦ d.items() is sequence ¦ range(2) is sequence ¦ (d|items)[0] ¦ d.items()[0] ¦ l|map('int')|first
"""

# The generators of map, select and their kin ask "if value" before anything else; the other filters iterate at once.
# A loop's condition is asked when an item's turn comes, or when the template asks how many there are.
CONDITIONS = [
    "{% set ns = namespace(n=0) %}{% for x in [5, 6, 7, 8, 9] if ns.n < 2 %}" + body + "{% set ns.n = ns.n + 1 %}{% else %}none{% endfor %} {{ ns.n }}"
    for body in ("{{ x }}", "{{ x }}{{ loop.index }}", "{{ x }}{{ loop.last }}", "{{ x }}{{ loop.length }}", "{{ x }}{{ loop.nextitem }};", "{{ x }}{{ loop.revindex0 }}",
                 "{{ x }}{{ loop|length }}", "{% set ns.l = loop %}{{ x }}", "{{ x }}{% if x == 6 %}{{ loop.length }}{% endif %}", "{{ loop.previtem }}{{ x }}{{ loop.first }}",
                 "{{ x }}{% if x == 5 %}{% continue %}{% endif %}{{ loop.last }}", "{% for y in [1, 2, 3] if loop.last and y > ns.n %}{{ y }}{% endfor %}", "{% break %}")
] + [
    "{% set ns = namespace(seen='') %}{% for x in words if x|lower not in ns.seen %}{{ x }}{% set ns.seen = ns.seen ~ x|lower %}{{ ',' if not loop.last }}{% endfor %}",
    "{% set ns = namespace(on=true) %}{% for x in l if ns.on %}{{ x }}{% set ns.on = false %}{% endfor %}{% for x in l if ns.on %}{{ x }}{% else %}none{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in nested recursive if x is iterable or ns.n < 2 %}{{ ns.n }}{% set ns.n = ns.n + 1 %}{% if x is iterable %}({{ loop(x) }}){% endif %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in nested if x is iterable or ns.n < 2 recursive %}{{ ns.n }}{% set ns.n = ns.n + 1 %}{% if x is iterable %}({{ loop(x) }}){% endif %}{% endfor %}",
    "{% for x in l %}{{ x }}{% continue %}{% else %}none{% endfor %}", "{% for x in l %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% else %}none{% endfor %}",
    "{% for x in l %}{{ x }}{% if x == 3 %}{% break %}{% endif %}{% else %}none{% endfor %}", "{% for x in l %}{% if x > 2 %}{% continue %}{% endif %}{{ x }}{% else %}none{% endfor %}",
    "{% for a in [1, 2] %}{{ a }}{% for b in [] %}{% else %}{% break %}{% endfor %}x{% endfor %}", "{% for a in [1, 2] %}{{ a }}{% for b in [] %}{% else %}{% continue %}{% endfor %}x{% endfor %}",
    "{% for a in [1, 2] %}{{ a }}{% for b in [1] %}{% break %}{% else %}{% break %}{% endfor %}x{% endfor %}", "{% for a in [1, 2] %}{{ a }}{% set x %}q{% break %}{% endset %}{% endfor %}",
    "{% for a in [1, 2] %}{% set x = 0 %}{% set x %}q{% continue %}{% endset %}{{ x }}{% endfor %}!", "{% for a in [1, 2] %}{{ a }}{% filter upper %}q{% break %}{% endfilter %}z{% endfor %}",
    "{% for a in [1, 2] %}{{ a }}{% with b = 2 %}q{% break %}{% endwith %}z{% endfor %}", "{% for b in [] %}{% else %}{% break %}{% endfor %}",
    "{% for x in [1, 2] if x.nope.nope %}{% endfor %}", "{% for x in [1, 'a'] if x > 0 %}{{ x }}{% endfor %}", "{% for x in [1, 'a'] if x > 0 %}{{ x }}{% break %}{% endfor %}",
    "{% for x in [1, 'a'] if x > 0 %}{{ x }}{{ loop.last }}{% break %}{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }} {{ loop.nextitem }};{% endfor %}",
]

FALSY = ["none", "false", "0", "0.0", "''", "[]", "()", "{}", "missing", "range(0)", "1", "true", "l|select('gt', 9)"]
SEQUENCE_FILTERS = [
    "map", "map('upper')", "map('nope')", "map(attribute='x')", "map(attribute='x', default=1)", "map(nope=1)", "select", "select('odd')", "select('nope')",
    "reject", "reject('odd')", "selectattr", "selectattr('x')", "selectattr('x', 'equalto', 1)", "rejectattr", "rejectattr('x')",
    "rejectattr('x', 'none')", "list", "sort", "unique", "batch(2)", "batch(2, 'f')", "slice(2)", "reverse", "items", "dictsort", "groupby('x')", "map('first')",
]
SCALAR_FILTERS = ["sum", "sum(start=2)", "sum(attribute='x')", "first", "last", "join", "join(',')", "join(',', attribute='x')", "length", "count", "min", "max",
                  "min(attribute='x')", "default('d')", "default('d', true)", "string", "tojson", "int", "float", "abs", "trim", "upper", "wordcount", "title"]
WRITE_ALL = {"default('d')", "default('d', true)", "string", "trim", "upper", "wordcount", "title"}
AS_TEXT = [value for value in FALSY if not value.startswith(("range", "l|"))]  # Python writes "range(0, 0)" and a generator's address
OVER_FALSY = [f"{{{{ {value}|{name}|list }}}}" for name in SEQUENCE_FILTERS for value in FALSY] + [
    f"{{{{ {value}|{name} }}}}" for name in SCALAR_FILTERS for value in FALSY if value in AS_TEXT or name not in WRITE_ALL] + [
    f"{{% for x in {value}|{name} %}}x{{{{ x }}}}{{% else %}}none{{% endfor %}}" for name in ("map('upper')", "select", "rejectattr('x')") for value in FALSY] + [
    f"{{{{ 'yes' if {value}|{name} else 'no' }}}}" for name in ("map('upper')", "select", "list") for value in FALSY[:10]]

TEMPLATES = [
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "  {% if t %}x{% endif %}  \n  {% if t %}  y {%- endif %} z", "  {{ s }}  \n  {{- s -}}  \n x",
    "a {#- c -#} b {# d #}\n e", "   {# c #}\n   x", "a  {%+ if t %}b{% endif +%}\nc", "{% raw %}{{ x }}{% if %}{% endraw %}\nq", " {%- raw -%} {{ x }} {%- endraw -%} y",
    "{% raw %}\n a\n {% endraw %}\nb", "x\n\n", "x\r\ny\rz\n", "", "\n", "{{ 'a' }}\n", "{% if t %}\n{% endif %}\n\n", "{%- if t -%}\n a \n{%- endif -%}\n",
    "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}}}", "{{'}}'}}", "{ { x } }", "{%if t%}1{%endif%}", "a{{ 1 }}\n  {% if t %}\nb{% endif %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in missing %}a{% else %}u{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }},{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% if t %}{% set y = 5 %}{% endif %}{{ y }}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in range(3) %}{% for j in range(3) %}{% if j > i %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in [1] %}{% for j in [1] %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{% endfor %}",
    "{% for x in nested recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, %}{{ a }}", "{% set x %}  hi {{ s }} {% endset %}[{{ x }}]", "{% set x | trim | upper %}  hi {% endset %}[{{ x }}]", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{{ ns.c is defined }}",
    "{% set d.x = 1 %}", "{% set loop = 3 %}{{ loop }}", "{{ loop is defined }}", "{% for tools in [1] %}{% set tools = 2 %}{{ tools }}{% endfor %}{{ tools is defined }}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(b=1, a=0) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(q=2) }}", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}", "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{{ y }}{% endmacro %}{% for y in [1] %}{{ m() }}{% endfor %}!", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body {{ s }}{% endcall %}", "{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m(x) %}{% set q = x %}{{ q }}{% endmacro %}{{ m(1) }}{{ q is defined }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter trim | replace('a', 'b') %} aa {% endfilter %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}",
    "{% generation %}{{ s }}{% endgeneration %}!", "{% generation %}\n  x\n{% endgeneration %}\ny", "{{ 1, 2 }}", "{% print 1, 'a' %}", "{{ s if t }}", "{{ m(*[1]) }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1], **{'b': 2}) }}",
    "{% if n == 1 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if missing %}a{% elif not missing %}b{% endif %}", "{% if n > 5 and s is string or e %}y{% endif %}", "{% if (m[0].role == 'user') != (0 % 2 == 0) %}bad{% else %}ok{% endif %}",
    "{% set g = m|selectattr('role', 'equalto', 'user') %}{{ g|list|length }}{{ g|list|length }}", "{% set g = m|map(attribute='role')|list %}{{ g }}{{ g }}", "{{ m|map(attribute='role')|list == ['user', 'assistant', 'user'] }}",
    "{% if %}{% endif %}", "{% endif %}", "{% if t %}", "{{ }}", "{{ 1 + }}", "{{ 'a }}", "{% nope %}", "{{ x|nope }}", "{{ x is nope }}", "{# open", "{% raw %}", "{{ (1 }}", "{{ 1) }}", "{% for x %}{% endfor %}", "{% for x in l %}", "{% set %}", "{% set 1 = 2 %}", "{% macro %}{% endmacro %}", "{% break %}", "{{ a b }}", "{{ [1 }}", "{{ {1} }}", "{{ a..b }}", "{{ $ }}", "{% if t %}{% endfor %}",
    "line1\nline2\n{{ raise_exception('x') }}", "{{ s }}{{ missing.foo }}", "{%- set x = [1,\n 2] -%}\n\n{{ x }}", "{{ 'é' ~ u }}", "{% set x = s %}{{ x is sameas s }}", "{{ m[0] == m|first }}", "{% for x in m[::-1] %}{{ loop.index0 }}{{ x.role }}{% endfor %}", "{{ messages[0] }}", "{% set ns = namespace() %}{% set ns.i = 0 %}{{ ns.i }}",
    "{% set m2 = m[1:] %}{% for x in m2 %}{{ x.content or '' }}{% endfor %}", "{% for x in m %}{{ x.content | default('none', true) | trim }}{{ '\n' if not loop.last }}{% endfor %}", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n", "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend", "{%- for x in l %}\n  {%- if loop.first %}\n  F\n  {%- endif %}\n{{ x }}\n{%- endfor %}",
]


def main():
    env = environment()
    templates = ["{{ " + e.strip() + " }}" for line in EXPRESSIONS.strip("\n").split("\n") for e in line.split("¦")]
    cases = []
    for text in templates + TEMPLATES + CONDITIONS + OVER_FALSY:
        case = {"template": text}
        try:
            case["text"] = env.from_string(text).render(**CONTEXT)
        except Exception as error:  # what kind of error it is does not matter: ours must be one too
            case["error"] = f"{type(error).__name__}: {error}"
        cases.append(case)
    out = {"context": CONTEXT, "unix_time_s": 1752148800, "cases": cases}
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
