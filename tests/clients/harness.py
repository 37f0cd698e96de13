"""What the checks share: suites of checks, their output, and requests without any client."""
import json
import time
import traceback
import urllib.error
import urllib.request


class Failure(Exception):
    """A check that does not hold, and why."""


class Missing(Exception):
    """Something that the checks need is not on this machine."""


def expect(condition, message="it does not hold"):
    if not condition:
        raise Failure(message)


def expect_equal(found, wanted, what=""):
    if found != wanted:
        raise Failure(f"{what + ': ' if what else ''}{found!r} instead of {wanted!r}")


def raises(kind, call):
    """The error of this kind that the call ends with."""
    try:
        result = call()
    except kind as error:
        return error
    raise Failure(f"no {kind.__name__} but {str(result)[:200]}")


def wait_until(what, condition, seconds=10):
    """The first true value of the condition."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        expect(time.monotonic() < deadline, f"{what}: not within {seconds} s")
        time.sleep(0.02)


def ask(url, body=None, method=None, headers=None):
    """Status, headers and text of an answer. A body goes as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {}, method=method)
    if data is not None and "Content-type" not in request.headers:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


class Report:
    """Counts checks and prints a line for each."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def run(self, what, call):
        begin = time.monotonic()
        try:
            call()
        except Failure as failure:
            self.fail(what, str(failure))
        except Exception:
            self.fail(what, traceback.format_exc().rstrip())
        else:
            self.passed += 1
            print(f"ok    {what} ({time.monotonic() - begin:.2f} s)", flush=True)

    def fail(self, what, why):
        self.failed += 1
        print(f"FAIL  {what}: {why}", flush=True)

    def skip(self, what, why):
        self.skipped += 1
        print(f"skip  {what}: {why}", flush=True)

    def count(self, line):
        """Counts a line that another test has printed in this form, and prints it."""
        print(line, flush=True)
        self.passed += line.startswith("ok    ")
        self.failed += line.startswith("FAIL  ")
