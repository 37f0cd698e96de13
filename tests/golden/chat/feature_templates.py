"""Small templates, one or a few for each feature, with the variables they see."""

CONTEXT = {
    "s": "Hello, wörld!  ",
    "e": "",
    "n": None,
    "t": True,
    "i": 7,
    "f": 2.5,
    "l": [3, 1, 2],
    "d": {"b": 1, "a": "x", "items": [1], "C": None},
    "users": [
        {"name": "Zoë", "age": 31, "on": True, "tag": {"id": 1}},
        {"name": "bob", "age": 7, "on": False, "tag": {"id": 2}},
        {"name": "Ann", "age": 31, "tag": {"id": 3}},
    ],
    "u": "Straße ΑΣ ǆ ﬁn İ 日本語 é",
    "q": "it's \"quoted\"\n\ttab\\ \u200b \x7f \U0001f600",
    "nested": {"k": [1, {"x": [True, None, 1.5, "ü\u2028<&>'"]}], "empty": {}, "none": []},
}

EXPRESSIONS = """
1 + 2 * 3 - 4
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3, 7.5 // 2, -7.5 % 2, 2 ** 10, 2 ** -1, -2 ** 2, 2 ** 3 ** 2
1 / 2, 4 / 2, 1e16, 1e15, 123456789.123, 1e-5, 0.0001, 1.0, 1_000, 0x1f, 0o17, 0b101, -0.0, 1e300 * 1e10
1 == 1.0, true == 1, "1" == 1, none == false, [1] == (1,), [1, [2]] == [1, [2]], {"a": 1} == {"a": 1.0}
1 < 2 < 3, 3 > 2 > 2, 1 < 2 == true, "a" < "b", [1, 2] < [1, 3], (1,) < (1, 0)
"a" ~ 1 ~ none ~ true ~ 1.5 ~ undefined_name ~ [1, "x"]
"ab" * 3, 2 * [1, 2], "ab" * 0, [0] * -1
not t, not n, t and i, n or "x", e or n or 0, t and n, 1 and 2 or 3
"x" if t else "y", "x" if n else "y", ("x" if n) is undefined, "a" if n else "b" if n else "c"
i in l, 3 in l, "ell" in s, "zz" not in s, "a" in d, 1 in d, 1 in undefined_name
l[0], l[-1], l[5], l[1:], l[:-1], l[::-1], l[::2], l[5:], l[-2:], l[2:0:-1], l[10:0:-1], l[:0], l[-9:9]
s[0], s[-1], s[7], s[1:4], s[::-1], s[-3:], u[3:9], u[::-2]
(1, 2)[0], (1, 2)[::-1], (1,), ()
d.b, d["b"], d.missing, d["missing"], d["items"], d.get("a"), d.get("zz"), d.get("zz", 5), d.get("C", 1)
users[0].name, users[0]["tag"].id, users.0.name, users[1].tag["id"], users[9] is defined
missing is defined, missing is undefined, n is none, n is defined, t is true, t is false, 1 is true, 0 is false
"x" is string, 1 is string, 1 is number, 1.5 is number, true is number, true is integer, 1 is integer, 1.0 is float
d is mapping, l is mapping, l is iterable, 5 is iterable, "x" is iterable, n is iterable, l is sequence, "x" is sequence, d is sequence, 5 is sequence
2 is even, 3 is odd, 9 is divisibleby 3, 9 is divisibleby(2), 1 is eq 1, 1 is ne(2), 1 is lt 2, 3 is gt 2, 3 is ge 3, 3 is le 2, 1 is in [1], 4 is not in [1]
1 is sameas 1, "aB" is lower, "AB" is upper, "trim" is filter, "zip" is filter, "defined" is test, range is callable, d.get is callable, s is callable
"%s-%d" % ("a", 3), "%05.1f|%-5s|%5s|%x|%%" % (3.14159, "a", "b", 255), "%s" % 5, "%r" % "x"
"{} {} {0}".format is defined, "{}-{}".format(1, "a"), "{1}{0}".format("a", "b"), "{x}{{}}".format(x=3)
"a" "b" 'c', 'it''s', "\\n\\t\\\\\\"\\'", "\\u00e9\\x41\\101\\q", '{{ "}}" }}'
[1, 2.0, "x", none, true, [], {}, ()], {"a": [1], 2: "b", none: 1.5, true: "t"}
q, [q], {"k": q}, ["it's"], ['"'], ["'\\""]
u, [u], u.upper(), u.lower(), u.title(), u.capitalize(), u.swapcase(), "ΑΣ ΑΣΑ Σ".lower(), "ŉ ǰ ﬀ".upper()
s|length, u|length, l|length, d|length, e|length, missing|length, s|count
s.strip(), s.rstrip(), s.lstrip("He"), s.strip("! "), "xxaxx".strip("x"), " a ".strip(none), "\\u3000a\\u2003".strip()
"a,b,,c".split(","), "a b  c ".split(), "a b c".split(none, 1), "a,b,c".split(",", 1), "a,b,c".rsplit(",", 1), " a b c ".rsplit(none, 1), "".split(), "".split(","), "a\\nb\\r\\nc\\n".splitlines(), "a\\n\\nb".splitlines(true)
"abcabc".find("c"), "abc".find("z"), "abcabc".rfind("a"), "ünü".find("n"), "abcabc".index("b"), "aXbX".count("X"), "abc".find("c", 1), "abc".find("a", 1), "abc".find("c", 0, 2), "abc".find("", 3), "abc".count("")
"abc".startswith("ab"), "abc".startswith(("x", "a")), "abc".endswith("bc"), "abc".endswith(()), "".startswith("")
"aaa".replace("a", "b"), "aaa".replace("a", "b", 2), "abc".replace("", "-"), "aé".replace("", "."), "abc".replace("b", "")
"5".zfill(3), "-5".zfill(4), "a".center(4) ~ "|", "ab".center(5, "*"), "a".ljust(3, ".") ~ "a".rjust(3), "abc".center(2)
"a-b-c".partition("-"), "a-b-c".rpartition("-"), "abc".partition("x"), "abc".rpartition("x"), "abc".removeprefix("a"), "abc".removesuffix("bc")
"12".isdigit(), "1²".isdigit(), "x1".isalnum(), "x".isalpha(), " ".isspace(), "Ab".isupper(), "AB1".isupper(), "ab".islower(), "".isdigit(), "½".isnumeric(), "Ab Cd".istitle()
", ".join(["a", "b"]), "".join("abc"), "-".join(d)
d.keys()|list, d.values()|list, d.items()|list, d|list, d|items|list, d|dictsort, d|dictsort(true), {"b": 2, "a": 3}|dictsort(by="value"), {"b": 2, "a": 3}|dictsort(reverse=true)
s|trim, s|upper, s|lower, s|title, s|capitalize, "foo-bar (baz) it's [x] {y}z<w"|title, "  x "|trim, "xxaxx"|trim("x"), n|trim, 5|trim ~ 1
l|sort, l|sort(reverse=true), ["b", "A", "c"]|sort, ["b", "A", "c"]|sort(case_sensitive=true), users|sort(attribute="age,name")|map(attribute="name")|list, users|sort(attribute="age", reverse=true)|map(attribute="name")|join(",")
l|first, l|last, []|first is defined, "abc"|first, "abc"|last, d|first, missing|first is defined
l|min, l|max, ["b", "A"]|min, []|max is defined, users|max(attribute="age"), l|sum, users|sum(attribute="age"), [1.5, 2]|sum, []|sum, [[1], [2]]|sum(start=[])
l|join, l|join("-"), users|join(", ", attribute="name"), [n, t, 1.5]|join("|"), missing|join
l|reverse|list, "abc"|reverse, l|list, "abc"|list, [1, 1, 2, "a", "A"]|unique|list, users|unique(attribute="age")|map(attribute="name")|list
users|map(attribute="name")|list, users|map(attribute="on")|list, users|map(attribute="on", default="?")|list, users|map(attribute="tag.id")|list, ["a", "b"]|map("upper")|list, [" a "]|map("trim")|join, [["a", 1]]|map(attribute=1)|list
users|selectattr("on")|list|length, users|selectattr("on", "defined")|list|length, users|selectattr("age", "equalto", 31)|map(attribute="name")|list, users|rejectattr("age", ">", 10)|map(attribute="name")|list, users|selectattr("age", "==", 7)|list, users|rejectattr("on", "undefined")|list|length
[1, 2, 3, 4]|select("even")|list, [1, 0, none, "x"]|select|list, [1, 2, 3]|reject("odd")|list, [1, 5, 9]|select("gt", 4)|list, [1, 2]|select("in", [2])|list
missing|default("x"), n|default("x"), e|default("x", true), n|default("x", boolean=true), 0|d(5), missing|default, missing.foo is undefined if false else "ok"
"3"|int, "3.9"|int, "x"|int, "x"|int(7), 3.9|int, -3.9|int, n|int, "0x1f"|int(0, 16), " 42 "|int, true|int, "1e3"|int, "1_0"|int
"3.5"|float, "x"|float, 3|float, n|float(1.5), "1e3"|float
2.5|round, 3.5|round, 2.675|round(2), 42.55|round(1, "floor"), 42.51|round(1, "ceil"), 7|round, 7|round(2), -2.5|round, 1234.5678|round(-2), 15|round(-1), 0.5|round
-5|abs, 2.5|abs, true|abs
"a\\nb\\n\\nc"|indent, "a\\nb\\n\\nc"|indent(2, true), "a\\n\\nb"|indent(1, blank=true), "a\\nb"|indent("> "), ""|indent(2, true)
"the quick brown fox jumps"|truncate(12), "the quick brown fox jumps"|truncate(12, true), "short"|truncate(3), "the quick brown fox"|truncate(10, false, "…", 0)
"a b-c d_e 5"|wordcount, 5|string ~ "x", "a"|center(5) ~ "|", "%s=%s"|format("a", 1), "%(x)s"|format(x=5)
nested|tojson, nested|tojson(indent=2), nested|tojson(ensure_ascii=true), nested|tojson(separators=(",", ":")), d|tojson(sort_keys=true), q|tojson, u|tojson(true), nested|tojson(indent=0)
1.0|tojson, 1e16|tojson, 1e-7|tojson, none|tojson, true|tojson, (1, 2)|tojson, {1: 2, true: 3, none: 4, 1.5: 5}|tojson, [[], {}]|tojson(indent=4), "\\u00e9\\u2028/</script>"|tojson, [1]|tojson(indent="--"), "\\U0001f600"|tojson(ensure_ascii=True)
range(3)|list, range(1, 4)|list, range(5, 0, -2)|list, range(0)|list, range(3)[1], range(3)|length, 2 in range(3)
dict(a=1, b=2), dict([("x", 1)]), dict({"a": 1}, b=2), dict()
[1, 2, 3, 4, 5]|batch(2)|list, [1, 2, 3]|batch(2, "x")|list
namespace(a=1).a, namespace({"b": 2}).b, namespace() is defined
missing, [missing], missing|list, missing|string, missing ~ "x", missing == missing, missing == none, missing|upper
l is eq [3, 1, 2], not 1 == 2, not (1 == 2) and true, 1 if 2 > 1 else 0, (1 if false) is defined, -1|abs, -(1)|abs, - 3 + 5, +3
users[0].name.upper()[0], (users|first).name, users[0]["name"][0:2], "abc"[1]|upper, ("a" ~ "b")|upper, "a" ~ "b"|upper, 1 + 2|string|length
1 if t is defined and t is not none else 2, s is defined and s is string and s|length > 3, "x" is not string, n is not none, l is not mapping
""" + r'''
"\u3042\U0001f600", "tab\there", 'new
line', "a\
b"
'''

TEMPLATES = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ x }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.previtem is defined }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}|{% for x in missing %}a{% else %}none{% endfor %}|{% for c in 'añb' %}[{{ c }}]{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in range(10) if x is odd %}{{ x }}{{ loop.index }}{{ loop.last }},{% endfor %}{% for x in l if x > 9 %}{% else %}filtered{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}]}] recursive %}{{ n.v }}@{{ loop.depth }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{{ loop.changed(x > 1) }}{% endfor %}{% for x in d|dictsort %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = y %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(found=false, n=0) %}{% for y in l %}{% set ns.n = ns.n + y %}{% if y == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.found }}{{ ns.missing is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = (a, b) %}{{ c }}{% set x = [1] + [2] %}{{ x }}{% set (p, q) = [3, 4] %}{{ p }}{{ q }}",
    "{% set x %}  text {{ i }} {% endset %}[{{ x }}]{% set y | trim | upper %}  abc {% endset %}[{{ y }}]{% set ns = namespace() %}{% set ns.v %}in{% endset %}{{ ns.v }}",
    "{% if n %}a{% elif t %}b{% else %}c{% endif %}{% if e %}x{% endif %}{% if not e and l %}y{% endif %}",
    "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(c=5, a=0) }}{{ m(1, 2, 3, 4, 5) }}{{ m(1, z=9) }}{{ m() }}",
    "{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}body {{ i }}{% endcall %}{% macro each(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) each(l) %}({{ x }}){% endcall %}",
    "{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * fact(n - 1)|int }}{% endif %}{% endmacro %}{{ fact(5) }}{{ fact.name }}",
    "{% set g = 5 %}{% macro m() %}{{ g }}{% endmacro %}{{ m() }}{% set g = 6 %}{{ m() }}{% for x in [1] %}{% set g = 7 %}{{ m() }}{% endfor %}",
    "{% macro m(x) %}{% set y = x * 2 %}{{ y }}{% endmacro %}{{ m(4) }}{{ y is defined }}{{ m(4)|length }}{{ (m(3) ~ 'z')|upper }}",
    "{% filter upper %}a{{ s }}b{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}{% with %}{% set zz = 1 %}{{ zz }}{% endwith %}{{ zz is defined }}",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if t -%}\n  b  \n  {%- endif -%}\n  c\n\n",
    "  {% set x = 1 %}\n  {{ x }}\n  {# note #}\n  x {% if t %} y {% endif %}\n z",
    "a {{- 1 -}} b {{ 2 -}}\n c {%+ if t %} d{% endif +%}\n e {%- if t +%}\nf{% endif %}",
    "a {#- comment -#} b\n{# one #}\n\n{#+ two +#}\nc {# {{ x }} {% if %} #}d",
    "{% raw %}{{ x }} {% if %}{% endraw %} {%- raw -%}  y  {%- endraw -%}  z\n{% raw %}\n a\n  {% endraw %}\nb",
    "line one\r\nline {{ i }}\rline three\n\n",
    "{{ '\n' }}{{ \"a\\nb\" }}\n\n{{ i }}\n",
    "{% if t %}\n\n  x\n{% endif %}{% for x in l %}\n{{ x }}{% endfor %}\n\n",
    "{{ {'a': {'b': 1}}['a'].b }}{{ {'a': 1}.a }}{{ [{'x': [1, 2]}][0].x[-1] }}{{ {} }}{{ {'a': 1,} }}{{ [1,] }}",
    "{% generation %}abc{{ i }}{% endgeneration %}é{% generation %}{{ s }}{% endgeneration %}",
    "{% for x in l %}日{% generation %}{{ x }}é{% endgeneration %}\n{% endfor %}",
    "{% macro m() %}ab{% generation %}inner{% endgeneration %}{% endmacro %}123{{ m() }}{% set x %}{% generation %}set{% endgeneration %}{% endset %}{{ x }}",
    "x {%- generation -%}  spaced  {%- endgeneration -%} y{% generation %}{% generation %}nested{% endgeneration %}!{% endgeneration %}",
    "{% print i %}{% print 1, 2 %}{{ 1, 2 }}{{ (1) }}{{ () }}",
    "{%set x=1%}{%if x==1%}ok{%endif%}{{x}}{{'a'if x else'b'}}",
    "{{ joiner('|')() }}{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set x = l|select('odd') %}{{ x|list }}{{ x|list }}{% if [] |select %}yes{% endif %}",
    "{% for u in users|sort(attribute='name') %}{{ u.name }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for x in users if x.on %}{{ x.name }}{% endfor %}{% for x in users|selectattr('on') %}{{ loop.length }}{% endfor %}",
    "{{ '<a href=\"x\">' |e }}{{ \"'&'\"|escape }}{{ 'x<'|safe }}{{ 'inf'|float }}{{ 'nan'|float }}{{ 'x'|e|length }}",
    "{{ missing.attr }}",
    "{{ n.attr }}|{{ n['x'] }}|{{ 5 .x }}",
    "{{ missing + 1 }}",
    "{{ 'a' + 1 }}",
    "{{ 1 / 0 }}",
    "{{ l.append(1) }}",
    "{{ d.update({'x': 1}) }}",
    "{{ raise_exception('No ' ~ i) }}",
    "{{ none + 'x' }}",
    "{{ missing() }}",
    "{{ s() }}",
    "{{ [1] < ['a'] }}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{{ l|map('nosuch')|list }}",
    "{{ missing|tojson }}",
    "{{ 'a'|int + none }}",
    "{{ d[l] }}|{{ l['x'] }}|{{ l['0'] }}",
    "{{ none|length }}",
    "{% for x in 5 %}{% endfor %}",
    "{{ x.y.z }}",
    "{% if x.y is defined %}{% endif %}",
    "{{ '%d' % 'x' }}",
    "{{ 'x'.index('y') }}",
    "{{ {[1]: 2} }}",
    "{{ l|last.x }}",
    "{% set d.x = 1 %}",
    "{{ 1 is nosuchtest }}",
    "{% if false %}{{ 1|nosuchfilter }}{% endif %}ok",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% nosuchtag %}",
    "{% if x %}",
    "{{ x",
    "{% for x in l %}{% endif %}",
    "{{ (1 }}",
    "{{ 'abc }}",
    "{# never",
    "{% endfor %}",
    "{{ 1 + }}",
    "{{ }}",
    "{% do x %}",
    "{% break %}",
    "{{ a b }}",
    "{{ 1 ! 2 }}",
    "{% set %}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{{ f(a=1, 2) }}",
]


def templates():
    expressions = [line for line in EXPRESSIONS.split("\n") if line.strip()]
    joined, i = [], 0
    while i < len(expressions):  # a line that ends inside a string goes on
        line = expressions[i]
        while i + 1 < len(expressions) and (line.count("'") % 2 and line.endswith(("new", "\\")) or line.endswith("\\")
                                            or line.endswith("'new")):
            i += 1
            line += "\n" + expressions[i]
        joined.append(line)
        i += 1
    return ["{{ [" + e + "] }}" for e in joined] + split_expressions(joined) + TEMPLATES


def split_expressions(lines):
    """Every top-level part of a line by itself: its own text, not that of a list."""
    out = []
    for line in lines:
        depth, quote, part, escaped = 0, None, "", False
        for c in line + ",":
            if quote:
                part += c
                if escaped:
                    escaped = False
                elif c == "\\":
                    escaped = True
                elif c == quote:
                    quote = None
                continue
            if c in "'\"":
                quote = c
            depth += (c in "([{") - (c in ")]}")
            if c == "," and depth == 0:
                out.append("{{ " + part.strip() + " }}")
                part = ""
            else:
                part += c
    return out
