#!/usr/bin/env python3
"""run.py [--program FILE] [--only TEXT] [--screenshots FOLDER]: real clients against real servers.

Makes a small model with the program, starts servers of it, and lets the official client, curl,
lm-eval's requests, Megatron's client and a browser call them. Prints one line for each check; the
last line is "N passed, N failed". What is missing on this machine is a failure; with
BEV_CLIENTS_MAY_SKIP=1 it is skipped."""
import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from harness import Failure, Missing, Report
from server import SOURCE, TinyModel, run_program

SUITES = (("openai_completions", "Completions"), ("openai_chat", "Chat"),
          ("openai_extras", "Extras"), ("openai_errors", "Errors"),
          ("openai_streams", "Streams"), ("curl_checks", "Curl"),
          ("megatron_checks", "Megatron"), ("lm_eval_checks", "LmEval"),
          ("metrics_checks", "Metrics"), ("page_checks", "Page"))


class Place:
    """What all suites use."""

    def __init__(self, args, folder):
        self.program = str(Path(args.program).resolve())
        self.folder = Path(folder)
        self.screenshots = args.screenshots or self.folder / "screenshots"
        self.model = None

    def make_model(self):
        self.model = TinyModel(self.program, self.folder)

    def certificate(self):
        """Files of a certificate for this machine's own address, and of its key."""
        files = [str(self.folder / name) for name in ("certificate.pem", "key.pem")]
        if not Path(files[0]).exists():
            run_program("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-out", files[0], "-keyout", files[1], folder=self.folder)
        return files


def load(module, name, place, report):
    try:
        return getattr(importlib.import_module(module), name)(place, report)
    except ModuleNotFoundError as error:
        raise Missing(f"{error}; tools/test_clients.sh installs it") from error


def run_checks(suite, name, checks, report):
    try:
        suite.open()
        for each in checks:
            check = getattr(suite, each)
            report.run(f"{name}: {check.__doc__}", check)
    except Failure as failure:
        report.fail(f"{name}: cannot begin", str(failure))
    finally:
        if suite.servers:
            report.run(f"{name}: SIGTERM ends each server with exit code 0", suite.close)


def run_suite(module, name, place, only, report):
    try:
        suite = load(module, name, place, report)
        checks = [each for each in vars(type(suite))
                  if each.startswith("check_") and only in f"{name}.{each}"]
        if checks:
            run_checks(suite, name, checks, report)
    except Missing as missing:
        may_skip = os.environ.get("BEV_CLIENTS_MAY_SKIP") == "1"
        (report.skip if may_skip else report.fail)(name, str(missing))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="default: BEV_PROGRAM, else build/bevatron",
                        default=os.environ.get("BEV_PROGRAM", SOURCE / "build/bevatron"))
    parser.add_argument("--only", default="", help="checks whose SUITE.check_NAME holds this")
    parser.add_argument("--screenshots", type=Path, help="where pictures of the page go")
    args = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the servers end first
    report = Report()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bev_clients_") as folder:
        place = Place(args, folder)
        report.run("train makes the model that is served", place.make_model)
        if report.failed == 0:
            for module, name in SUITES:
                run_suite(module, name, place, args.only, report)
    print(f"{report.skipped} skipped, {time.monotonic() - begin:.1f} s")
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
