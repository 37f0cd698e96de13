"""The official client's error classes, retries and time limits."""
import threading
import time

import openai
from pydantic import BaseModel

from harness import ask, expect, expect_equal, raises, wait_until
from openai_suite import OpenAISuite

KEY, CONTROL = "secret-key", "control-key"
LONG = {"max_tokens": 900, "extra_body": {"ignore_eos": True}}


class Person(BaseModel):
    name: str


class Errors(OpenAISuite):
    flags = ("--control-key", CONTROL)

    def running(self, server):
        return self.metrics(server).value("bevatron:num_requests_running")

    def check_bad_request(self):
        """BadRequestError has param, code, type, and the id of the answer's header"""
        error = self.refused("temperature", lambda: self.complete(temperature=9))
        expect_equal((error.type, error.status_code), ("invalid_request_error", 400))
        expect(error.request_id, "no request_id")
        expect_equal(error.request_id, error.response.headers["x-request-id"])
        named = raises(openai.BadRequestError, lambda: self.complete(
            temperature=9, extra_headers={"X-Request-Id": "mine"}))
        expect_equal(named.request_id, "mine")

    def check_parse(self):
        """chat.completions.parse says that response_format is not supported"""
        self.refused("response_format", lambda: self.client.chat.completions.parse(
            model="tiny", messages=[{"role": "user", "content": "x"}], response_format=Person),
            code="unsupported_parameter")

    def check_keys(self):
        """AuthenticationError without one of the keys; every route but /health needs one"""
        server = self.start("--api-key", KEY, "another")
        error = raises(openai.AuthenticationError,
                       lambda: self.chat(client=self.client_of(server, "wrong")))
        expect_equal((error.code, error.type, error.status_code),
                     ("invalid_api_key", "authentication_error", 401))
        expect_equal(error.request_id, error.response.headers["x-request-id"])
        for key in (KEY, "another"):
            expect(self.chat(client=self.client_of(server, key)).choices, "no choices")
        for path in ("/v1/models", "/v1/models/tiny", "/metrics", "/version", "/", "/v1/health"):
            expect_equal(ask(server.url + path)[0], 401, path)
        for path in ("/v1/completions", "/completions", "/v1/chat/completions", "/tokenize",
                     "/chat/completions", "/v1/embeddings", "/detokenize"):
            expect_equal(ask(server.url + path, {})[0], 401, path)
        expect_equal(ask(server.url + "/api", {}, method="PUT")[0], 401, "/api")
        expect_equal(ask(server.url + "/health")[0], 200, "/health")

    def check_control_routes(self):
        """PermissionDeniedError on control routes of a server without a control key"""
        server = self.start("--api-key", KEY)
        client = self.client_of(server, KEY).with_options(base_url=server.url)
        for path in ("/pause", "/resume", "/abort_requests", "/reset_prefix_cache"):
            error = raises(openai.PermissionDeniedError,
                           lambda: self.post(path, {}, client=client))
            expect_equal(error.type, "permission_error")
        raises(openai.AuthenticationError, lambda: self.post("/pause", {}))

    def check_not_found(self):
        """NotFoundError for a route that is not there"""
        raises(openai.NotFoundError, lambda: self.client.files.list())
        raises(openai.NotFoundError, lambda: self.client.responses.create(model="tiny", input="x"))

    def check_paused(self):
        """InternalServerError while the server is paused; a retry comes through after it"""
        control = self.client_of(self.server, CONTROL).with_options(base_url=self.url)
        expect_equal(self.post("/pause", {}, client=control)["status"], "paused")
        error = raises(openai.InternalServerError, self.complete)
        expect_equal((error.status_code, error.type), (503, "service_unavailable_error"))
        expect_equal(error.response.headers["retry-after"], "1")
        patient = self.client_of(self.server, max_retries=10)
        threading.Timer(0.5, lambda: self.post("/resume", {}, client=control)).start()
        begin = time.monotonic()
        answer = self.complete(client=patient)
        expect(answer.choices[0].text and time.monotonic() - begin >= 1, "no wait")

    def check_overload(self):
        """RateLimitError when the queue is full, at once; retries obey Retry-After"""
        server = self.start("--max-waiting", "1", "--max-seqs", "1")
        client = self.client_of(server)
        load = threading.Thread(target=lambda: self.complete(["A"] * 40, client=client, **LONG))
        load.start()
        wait_until("a request runs", lambda: self.running(server))
        error = raises(openai.RateLimitError, lambda: self.complete(client=client))
        expect(self.running(server), "429 comes late")
        expect_equal((error.code, error.type, error.response.headers["retry-after"]),
                     ("queue_full", "rate_limit_error", "1"))
        patient = self.client_of(server, max_retries=60)
        begin = time.monotonic()
        expect(self.complete(client=patient).choices[0].text, "no text")
        expect(time.monotonic() - begin >= 1, "the retry did not wait")
        load.join()

    def check_time_limit(self):
        """APITimeoutError; the server drops the request"""
        hasty = self.client_of(self.server, timeout=0.1)
        raises(openai.APITimeoutError, lambda: self.complete(["A"] * 64, client=hasty, **LONG))
        wait_until("nothing runs", lambda: not self.running(self.server))

    def check_server_gone(self):
        """APIConnectionError when there is no server"""
        server = self.start()
        client = self.client_of(server)
        expect(self.complete(client=client).choices, "no choices")
        server.stop()
        error = raises(openai.APIConnectionError, lambda: self.complete(client=client))
        expect(not isinstance(error, openai.APITimeoutError), "a time limit")

    def check_error_in_stream(self):
        """a request whose numbers break fails alone: 500, or APIError in mid-stream"""
        server = self.start(model=self.place.model.poisoned(self.token("A")))
        client = self.client_of(server)
        forced = {"client": client, "logit_bias": self.bias(A=100)}
        error = raises(openai.InternalServerError, lambda: self.complete(**forced))
        expect_equal((error.status_code, error.type), (500, "server_error"))
        for call in (self.complete, self.chat):
            chunks = []
            with call(stream=True, **forced) as stream:
                error = raises(openai.APIError, lambda: chunks.extend(stream))
            expect_equal((type(error), error.type), (openai.APIError, "server_error"))
            expect("finite" in error.message, error.message)
        expect(self.complete(client=client).choices[0].text, "others fail too")

    def check_draining(self):
        """SIGTERM lets what runs end, and refuses the rest"""
        server = self.start()
        client = self.client_of(server)
        rarely = {"ignore_eos": True, "stream_interval": 100}
        with self.complete(["A"] * 32, client=client, stream=True, max_tokens=900,
                           extra_body=rarely) as stream:
            next(stream)
            server.process.terminate()
            wait_until("it drains", lambda: ask(server.url + "/health")[0] == 503)
            error = raises(openai.InternalServerError, lambda: self.complete(client=client))
            expect_equal(error.status_code, 503)
            ends = [c.choices[0].finish_reason for c in stream if c.choices[0].finish_reason]
        expect_equal(ends, ["length"] * 32)
        expect_equal(server.process.wait(10), 0, "exit code")
