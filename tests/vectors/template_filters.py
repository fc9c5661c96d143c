# SPDX-License-Identifier: Apache-2.0
"""Short templates: filters, methods of strings, lists and dicts, and errors. Over DATA of template_snippets.py."""

FILTERS = {
    "tojson": (
        '{{ d | tojson }} {{ mixed | tojson }} {{ html | tojson }} {{ unicode | tojson }} {{ none | tojson }}'
        ' {{ 1.0 | tojson }} {{ quote | tojson }}'
    ),
    "tojson-indent": '{{ d | tojson(indent=2) }}\n{{ rows | tojson(4) if no else rows | tojson(indent=4) }}',
    "tojson-empty": (
        "{{ [] | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ {'a': [], 'b': {}} | tojson(indent=1) }}"
    ),
    "tojson-separators": (
        "{{ d | tojson(separators=(',', ':')) }} {{ d | tojson(sort_keys=true) }} {{ unicode | tojson(ensure_ascii=true) }}"
    ),
    "tojson-controls": "{{ '\\x00\\x1f\\x7f\\n\\t\\\\/\u2028' | tojson }}",
    "tojson-floats": '{{ [0.1, 1e22, 1e-7, 100.0, 1e16, -0.0, 3] | tojson }}',
    "tojson-keys": "{{ {1: 'a', true: 'b', none: 'c', 2.5: 'd'} | tojson }}",
    "trim": "[{{ text | trim }}][{{ 'xxaxx' | trim('x') }}][{{ '\\n\\t a \\u00a0' | trim }}]",
    "case": (
        "{{ name | upper }} {{ 'ABC' | lower }} {{ name | title }} {{ name | capitalize }}"
        " {{ 'hELLO wORLD' | capitalize }} {{ '\xe9\xdf\u0130' | upper }} {{ '\xc9\u0130' | lower }}"
    ),
    "title": '{{ "it\'s o\'neil-smith the 3rd (abc) foo_bar" | title }}',
    "join": (
        "{{ words | join }} {{ words | join(', ') }} {{ numbers | join('-') }} {{ rows | join(',', attribute='k') }}"
        " {{ 'abc' | join('.') }}"
    ),
    "join-mixed": "{{ mixed | join('|') }}",
    "length": (
        "{{ words | length }} {{ d | length }} {{ 'h\xe9\U0001f600' | length }} {{ words | count }} {{ empty | length }}"
    ),
    "first-last": (
        "{{ words | first }} {{ words | last }} {{ 'abc' | first }} {{ 'abc' | last }} [{{ empty | first }}"
        ']'
    ),
    "default": (
        "{{ missing | default('x') }} {{ nothing | default('x') }} {{ '' | default('x') }}"
        " {{ '' | default('x', true) }} {{ nothing | default('y', boolean=true) }} {{ missing | d(3) }}"
        ' [{{ missing | default }}]'
    ),
    "default-nested": "{{ d.nope | default('x') }} {{ rows[0].nope | default([]) | length }}",
    "replace": "{{ 'aaa' | replace('a', 'b') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'aaa' | replace('', '-') }}",
    "map-attribute": (
        "{{ rows | map(attribute='k') | list }} {{ rows | map(attribute='on', default='?') | list }}"
        " {{ [d] | map(attribute='c.x') | list }} {{ pairs | map(attribute=1) | list }}"
    ),
    "map-filter": (
        "{{ words | map('upper') | join(' ') }} {{ words | map('replace', 'p', 'P') | list }}"
        " {{ numbers | map('string') | map('length') | list }}"
    ),
    "select": (
        "{{ numbers | select('odd') | list }} {{ numbers | select('gt', 2) | list }} {{ [0, 1, '', 'a', none] | select | list }}"
        " {{ mixed | select('string') | list }}"
    ),
    "reject": (
        "{{ numbers | reject('odd') | list }} {{ [0, 1, '', 'a', none] | reject | list }} {{ words | reject('equalto', 'fig') | list }}"
        " {{ mixed | reject('none') | list | length }}"
    ),
    "selectattr": (
        "{{ rows | selectattr('on') | map(attribute='v') | list }} {{ rows | selectattr('k', 'equalto', 'a') | list | length }}"
        " {{ rows | selectattr('v', 'ge', 2) | map(attribute='k') | join }} {{ rows | selectattr('on', 'defined') | list | length }}"
    ),
    "rejectattr": (
        "{{ rows | rejectattr('on') | map(attribute='v') | list }} {{ rows | rejectattr('k', 'in', ['a', 'c']) | map(attribute='k') | list }}"
        " {{ rows | rejectattr('on', 'undefined') | list | length }}"
    ),
    "items": '{% for k, v in d | items %}{{ k }}:{{ v }} {% endfor %}[{{ missing | items | list }}]',
    "dictsort": (
        "{{ d | dictsort }} {{ {'b': 1, 'A': 3, 'a': 2} | dictsort }} {{ {'b': 1, 'A': 3} | dictsort(true) }}"
        " {{ {'b': 1, 'A': 3} | dictsort(by='value', reverse=true) }}"
    ),
    "list": "{{ 'abc' | list }} {{ d | list }} {{ range(3) | list }}",
    "string": (
        "{{ n | string + 'x' }} {{ none | string }} {{ [1] | string | length }} {{ true | string }}"
        ' {{ 2.0 | string }}'
    ),
    "int": (
        "{{ '42' | int }} {{ '4.9' | int }} {{ 4.9 | int }} {{ 'x' | int }} {{ 'x' | int(-1) }}"
        " {{ '0x1F' | int(0, 16) }} {{ true | int }} {{ ' 7 ' | int }} {{ none | int }}"
    ),
    "float": "{{ '4.5' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 3 | float }} {{ '1e3' | float }}",
    "safe": '{{ html | safe }} {{ html }}',
    "escape": '{{ html | e }} {{ html | escape }} {{ html | forceescape }}',
    "indent": (
        '{{ multi | indent }}|{{ multi | indent(2) }}|{{ multi | indent(2, true) }}|{{ multi | indent(2, blank=true) }}'
        "|{{ multi | indent('> ', first=true) }}"
    ),
    "unique": (
        '{{ words | unique | list }} {{ words | unique(case_sensitive=true) | list }} {{ [3, 1, 3, 2, 1] | unique | list }}'
        " {{ rows | unique(attribute='k') | map(attribute='v') | list }}"
    ),
    "sort": (
        '{{ numbers | sort }} {{ numbers | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }}'
        " {{ rows | sort(attribute='v') | map(attribute='v') | list }} {{ rows | sort(attribute='k,v') | map(attribute='v') | list }}"
    ),
    "reverse": "{{ words | reverse | list }} {{ 'abc\xe9' | reverse }}",
    "sum": (
        "{{ numbers | sum }} {{ rows | sum(attribute='v') }} {{ floats | sum }} {{ empty | sum }}"
        ' {{ numbers | sum(start=100) }}'
    ),
    "min-max": (
        '{{ numbers | min }} {{ numbers | max }} {{ words | min }} {{ words | max(case_sensitive=true) }}'
        " {{ rows | max(attribute='v') }} [{{ empty | max }}]"
    ),
    "abs-round": (
        '{{ -5 | abs }} {{ (-5) | abs }} {{ -2.5 | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }}'
        " {{ 3.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.19 | round(1, 'floor') }}"
        ' {{ 7 | round }}'
    ),
    "batch-slice": '{{ numbers | batch(3) | list }} {{ numbers | batch(3, 0) | list }} {{ numbers | slice(3) | list }}',
    "groupby": (
        "{% for g in rows | groupby('k') %}{{ g.grouper }}:{{ g.list | map(attribute='v') | list }}"
        " {% endfor %}{% for k, xs in rows | groupby('k') %}{{ k }}{{ xs | length }}{% endfor %}"
    ),
    "attr": "[{{ d | attr('nope') }}]",
    "wordcount": (
        "{{ 'a bc  def' | wordcount }} {{ 'abcdefgh ijkl' | truncate(8) }} {{ 'abcdefghijklmnop' | truncate(8, true, '~', 0) }}"
        " [{{ 'ab' | center(6) }}]"
    ),
    "wordwrap": "{{ 'the old clock answers' | wordwrap(9) }}",
    "format": (
        "{{ '%s is %d, %.2f, %05d, %x, %%' | format(name, n, f, n, 255) }} {{ '%-5s|%5s' | format('a', 'b') }}"
    ),
    "striptags": "{{ '<b>a</b>  <i>c</i>' | striptags }} {{ 'a b&c/\xe9' | urlencode }}",
    "pprint": "{{ [1, 'a'] | pprint }}",
    "filesize": '{{ 123456 | filesizeformat }}',
    "filter-precedence": (
        "{{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ 1 + '2' | int }} {{ -3 | abs }}"
        ' {{ words | first | upper }} {{ n | string | length + 1 }}'
    ),
    "chain": "{{ words | map('lower') | unique | sort | join(',') | upper }}",
}

METHODS = {
    "strip": (
        "[{{ text.strip() }}][{{ text.lstrip() }}][{{ text.rstrip() }}][{{ 'xyaxy'.strip('xy') }}"
        "][{{ 'xxa'.lstrip('x') }}][{{ 'a\\n\\n'.rstrip('\\n') }}]"
    ),
    "strip-unicode": "[{{ '\\u3000\\u00a0 a \\u2003\\n'.strip() }}][{{ '\xe9\xe9a\xe9'.strip('\xe9') }}]",
    "split": (
        "{{ 'a,b,,c'.split(',') }} {{ ' a  b\\tc\\n'.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'abc'.split('x') }}"
        " {{ ''.split() }} {{ ''.split(',') }} {{ 'a--b--c'.split('--')[-1] }}"
    ),
    "rsplit": (
        "{{ 'a b c'.rsplit(' ', 1) }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'k=v=w'.partition('=') }}"
        " {{ 'k=v=w'.rpartition('=') }}"
    ),
    "starts-ends": (
        "{{ name.startswith('ada') }} {{ name.endswith('x') }} {{ name.endswith(('x', 'lace')) }}"
        " {{ 'abc'.startswith('b', 1) }}"
    ),
    "replace": "{{ 'aaa'.replace('a', 'b') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ 'ab'.replace('', '-') }}",
    "case": (
        "{{ name.upper() }} {{ 'ABC'.lower() }} {{ name.title() }} {{ name.capitalize() }}"
        " {{ 'aBc'.swapcase() }} {{ '\xdf'.casefold() }}"
    ),
    "find": (
        "{{ 'hello'.find('l') }} {{ 'hello'.find('z') }} {{ 'hello'.rfind('l') }} {{ 'hello'.index('e') }}"
        " {{ 'banana'.count('an') }} {{ '\xe9\u4ecaab'.find('a') }}"
    ),
    "is": (
        "{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }}"
        " {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ''.isdigit() }}"
    ),
    "join": "{{ ','.join(words) }} {{ ''.join(['a', 'b']) }}",
    "format": (
        "{{ '{} and {}'.format(n, name) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x:>4}|{y:.1f}'.format(x='r', y=2.55) }}"
    ),
    "percent": "{{ '%s-%d' % (name, n) }} {{ 'x%s' % n }}",
    "pad": "{{ 'a'.ljust(3, '.') }}{{ 'a'.rjust(3) }}{{ '7'.zfill(3) }}[{{ 'a'.center(5) }}]",
    "prefix": "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.json'.removesuffix('.json') }}",
    "encode-less": "{{ 'a\\tb'.expandtabs(4) }}",
    "dict": (
        "{{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }} {{ d.get('zz') }}"
        " {{ d.get('zz', 'def') }} {{ d.copy().a }}"
    ),
    "list": "{{ words.index('fig') }} {{ numbers.count(1) }} {{ words.copy() | length }}",
    "keys-in": "{% for k in d.keys() %}{{ k }}{% endfor %}{{ 'a' in d.keys() }}{{ 1 in d.values() }}",
    "integer": '{{ (255).bit_length() }}',
}

ERRORS = {
    "raise": "a{{ raise_exception('roles must alternate: ' ~ n) }}",
    "raise-in-if": "{% if messages is not defined %}{{ raise_exception('no messages') }}{% endif %}",
    "raise-not-reached": "{% if no %}{{ raise_exception('x') }}{% endif %}fine",
    "undefined-attribute": '{{ missing.attribute }}',
    "undefined-item": "{{ missing['x'] }}",
    "undefined-call": '{{ missing() }}',
    "undefined-loop": '[{% for x in missing %}x{% endfor %}]',
    "undefined-plus": '{{ missing + 1 }}',
    "undefined-length": '{{ missing | length }}',
    "none-attribute": '{{ nothing.x.y }}',
    "none-loop": '{% for x in nothing %}{% endfor %}',
    "none-plus": "{{ nothing + 'a' }}",
    "string-plus-number": "{{ 'a' + 1 }}",
    "number-length": '{{ n | length }}',
    "zero-division": '{{ 1 / zero }}',
    "modulo-zero": '{{ 1 % zero }}',
    "unknown-filter": '{{ n | nosuchfilter }}',
    "unknown-test": '{{ n is nosuchtest }}',
    "unknown-tag": '{% nosuchtag %}',
    "unclosed-if": '{% if n %}x',
    "unclosed-variable": '{{ n',
    "unclosed-comment": '{# x',
    "unclosed-string": "{{ 'x }}",
    "stray-endif": '{% endif %}',
    "empty-expression": '{{ }}',
    "bad-operator": '{{ 1 +* 2 }}',
    "unclosed-raw": '{% raw %}x',
    "call-not-callable": '{{ n() }}',
    "macro-too-many": '{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}',
    "unpack": '{% for a, b in [[1, 2, 3]] %}{% endfor %}',
    "list-append": "{% set x = words.append('z') %}{{ words }}",
    "dict-update": "{% set x = d.update({'z': 1}) %}{{ d }}",
    "list-pop": '{{ words.pop() }}',
    "underscore-attribute": "{{ ''.__class__ }}|{{ ''.__class__.__mro__ }}",
    "range-huge": '{{ range(1000000000) | list | length }}',
    "set-undeclared-namespace": '{% set nope.x = 1 %}',
    "namespace-underscore": '{% set ns = namespace() %}{% set ns._x = 1 %}',
    "tojson-undefined": '{{ missing | tojson }}',
    "int-from-list": '{{ [1] | int }}',
    "index-missing": "{{ 'abc'.index('z') }}",
    "compare-mixed": "{{ 1 < 'a' }}",
    "sort-mixed": '{{ mixed | sort }}',
    "first-key": '{{ d[0] is defined }}',
    "dict-key-list": '{{ {[1]: 2} }}',
    "break-outside": '{% break %}',
    "include": "{% include 'x' %}",
    "import": "{% import 'x' as y %}",
    "extends": "{% extends 'x' %}",
    "block": '{% block a %}in block {{ n }}{% endblock %}',
}
