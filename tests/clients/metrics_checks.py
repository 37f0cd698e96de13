"""/metrics by Prometheus' rules, against what the official client counts."""
import collections

import openai

from harness import ask, expect, expect_equal, raises, wait_until
from openai_suite import OpenAISuite
from prometheus import Metrics as Samples

COUNTERS = ("prompt_tokens", "prompt_tokens_cached", "generation_tokens")


class Metrics(OpenAISuite):
    flags = ("--max-seqs", "4")

    def open(self):
        super().open()
        self.counts = collections.Counter()
        self.reasons = collections.Counter()
        self.statuses = collections.Counter()

    def note(self, usage, reasons):
        """What an answer says about itself."""
        self.counts["prompt_tokens"] += usage.prompt_tokens
        self.counts["prompt_tokens_cached"] += usage.prompt_tokens_details.cached_tokens
        self.counts["generation_tokens"] += usage.completion_tokens
        self.reasons.update(reasons)

    def noted(self, handler, answer):
        self.statuses[handler, "200"] += 1
        self.note(answer.usage, [choice.finish_reason for choice in answer.choices])

    def failed(self, handler, status, call):
        raises(openai.APIStatusError, call)
        self.statuses[handler, status] += 1

    def load(self):
        for i in range(10):
            self.noted("/v1/completions", self.complete([5 + j for j in range(70 + 10 * i)]))
            self.noted("/v1/completions", self.complete(["a", "b", "c"], max_tokens=3 + i))
            self.noted("/v1/chat/completions", self.chat(f"x{i}", max_completion_tokens=2 + i))
        self.noted("/v1/completions", self.complete(logit_bias=self.bias(**{"<|endoftext|>": 100})))
        for i in range(5):
            options = {"include_usage": True}
            with self.complete(stream=True, stream_options=options, max_tokens=5 + i) as stream:
                chunks = list(stream)
            self.statuses["/v1/completions", "200"] += 1
            self.note(chunks[-1].usage, ["length"])
        for _ in range(3):
            self.failed("/v1/completions", "400", lambda: self.complete(temperature=7))
        self.failed("/v1/chat/completions", "404", lambda: self.chat(model="other"))
        self.failed("none", "404", lambda: self.client.files.list())

    def check_counts(self):
        """counters are what the client has counted"""
        self.load()
        now = wait_until("the last answer counts", self.settled)
        for name in COUNTERS:
            expect_equal(now.value(f"bevatron:{name}_total"), self.counts[name], name)
        for reason in ("stop", "length"):
            expect_equal(now.value("bevatron:request_success_total", finished_reason=reason),
                         self.reasons[reason], reason)
        for (handler, status), count in self.statuses.items():
            expect_equal(now.value("bevatron:http_requests_total", handler=handler, status=status),
                         count, f"{handler} {status}")
        expect(self.counts["prompt_tokens_cached"] > 0 and self.reasons["stop"] == 1, "idle test")

    def settled(self):
        """The metrics, once they know of all answers."""
        now = self.metrics()
        ended = now.value("bevatron:request_success_total")
        return now if ended >= sum(self.reasons.values()) else None

    def check_histograms(self):
        """histograms have one entry for each request, and the sums of the counters"""
        now = self.metrics()
        requests = sum(self.reasons.values())
        for name in ("e2e_request_latency_seconds", "request_queue_time_seconds",
                     "time_to_first_token_seconds", "request_prompt_tokens",
                     "request_generation_tokens", "request_inference_time_seconds",
                     "request_prefill_time_seconds", "request_decode_time_seconds",
                     "request_params_n", "request_params_max_tokens"):
            expect_equal(now.value(f"bevatron:{name}_count"), requests, name)
        for name, counter in (("request_prompt_tokens", "prompt_tokens"),
                              ("request_generation_tokens", "generation_tokens")):
            expect_equal(now.value(f"bevatron:{name}_sum"), self.counts[counter], name)
        later = now.value("bevatron:inter_token_latency_seconds_count")
        expect_equal(later, self.counts["generation_tokens"] - requests, "times between tokens")

    def check_gauges(self):
        """nothing runs, waits or holds blocks between requests"""
        now = self.metrics()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used",
                     "kv_cache_usage_perc", "engine_sleep_state"):
            expect_equal(now.value(f"bevatron:{name}"), 0, name)
        expect(now.value("bevatron:kv_cache_blocks_cached") > 0, "no cached blocks")

    def check_monotonic(self):
        """counters only grow"""
        before = self.metrics()
        self.complete()
        after = self.metrics()
        for (name, labels), value in before.samples.items():
            if before.kinds[before.family_of(name)] != "gauge":
                expect(after.samples[name, labels] >= value, f"{name} {dict(labels)}")

    def check_format(self):
        """the text has the type of its format, and labels with odd characters are escaped"""
        _, headers, _ = ask(self.url + "/metrics")
        expect(headers["Content-Type"].startswith("text/plain; version=0.0.4"), f"{headers}")
        odd = 'a "quoted" \\ name\nof two lines'
        server = self.start("--served-model-name", odd)
        expect_equal(Samples(ask(server.url + "/metrics")[2]).labels(
            "bevatron:num_requests_running", "model_name"), {odd})
