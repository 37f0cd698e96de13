"""Reads Prometheus' text format by its rules, and complains about what breaks them."""
import math
import re

from harness import expect, expect_equal

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*),?\}})? (\S+)")
SUFFIXES = ("_bucket", "_sum", "_count")
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def read_labels(text):
    pairs = re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"', text or "")
    names = [name for name, _ in pairs]
    expect_equal(len(set(names)), len(names), f"labels of {text}")
    return {name: re.sub(r"\\.", lambda m: ESCAPED[m[0]], value) for name, value in pairs}


class Metrics:
    """Samples by name and labels, kinds and helps by family."""

    def __init__(self, text):
        self.kinds, self.helps, self.samples = {}, {}, {}
        self.closed = set()  # families that others have followed
        self.family = None
        expect(text.endswith("\n"), "the last line does not end")
        for line in text[:-1].split("\n"):
            self.read_line(line)
        for family, kind in self.kinds.items():
            if kind == "histogram":
                self.check_histogram(family)

    def read_line(self, line):
        words = line.split(" ", 3)
        if words[0] == "#" and words[1] in ("HELP", "TYPE"):
            self.enter(words[2])
            into = self.helps if words[1] == "HELP" else self.kinds
            expect(words[2] not in into, f"{words[1]} of {words[2]} comes twice")
            expect(not any(self.family_of(name) == words[2] for name, _ in self.samples),
                   f"{line}: after samples")
            into[words[2]] = words[3]
        elif not line.startswith("#") and line:
            match = SAMPLE.fullmatch(line)
            expect(match, f"no sample: {line}")
            family = self.family_of(match[1])
            self.enter(family)
            expect(family in self.kinds and family in self.helps, f"{line}: without HELP or TYPE")
            key = (match[1], frozenset(read_labels(match[2]).items()))
            expect(key not in self.samples, f"{line}: comes twice")
            self.samples[key] = float(match[3])

    def enter(self, family):
        """All lines of a family come together."""
        if family == self.family:
            return
        expect(family not in self.closed, f"lines of {family} are apart")
        self.closed.add(self.family)
        self.family = family

    def family_of(self, name):
        for suffix in SUFFIXES:
            base = name.removesuffix(suffix)
            if base != name and self.kinds.get(base) == "histogram":
                return base
        return name

    def check_histogram(self, family):
        series = {}
        for (name, labels), value in self.samples.items():
            if self.family_of(name) == family:
                rest = frozenset(pair for pair in labels if pair[0] != "le")
                series.setdefault(rest, []).append((name, dict(labels).get("le"), value))
        expect(series, f"{family}: no samples")
        for rows in series.values():
            buckets = [(float(le), value) for name, le, value in rows if name.endswith("_bucket")]
            counts = [value for _, value in buckets]
            expect_equal(buckets, sorted(buckets), f"order of the buckets of {family}")
            expect_equal(counts, sorted(counts), f"cumulative buckets of {family}")
            count = [value for name, _, value in rows if name == f"{family}_count"]
            expect_equal(buckets[-1][0], math.inf, f"last bucket of {family}")
            expect_equal([buckets[-1][1]], count, f"{family}_count")
            expect_equal(sum(name == f"{family}_sum" for name, _, _ in rows), 1, f"{family}_sum")

    def value(self, name, **labels):
        """The sum of the samples that have these labels."""
        found = [value for (each, have), value in self.samples.items()
                 if each == name and labels.items() <= dict(have).items()]
        expect(found, f"no sample {name} {labels}")
        return sum(found)

    def labels(self, name, label):
        return {dict(have)[label] for each, have in self.samples if each == name}
