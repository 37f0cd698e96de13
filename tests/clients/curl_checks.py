"""curl against the server: HTTP itself, TLS, origins, and the bodies of errors."""
import json
import subprocess

from harness import Missing, expect, expect_equal
from suites import ServerSuite

KEY, CONTROL, ORIGIN = "secret-key", "control-key", "https://chat.example.org"
MOST = 4_000_000
COMPLETION = {"model": "tiny", "prompt": "The work", "max_tokens": 8, "temperature": 0}


def curl(*words, code=0):
    """What curl prints; it must end with the code."""
    try:
        done = subprocess.run(["curl", "-sS", "--max-time", "60", *words], capture_output=True)
    except FileNotFoundError:
        raise Missing("there is no curl") from None
    expect_equal(done.returncode, code, f"curl ends ({done.stderr.decode()[-300:]})")
    return done.stdout.decode()


def split_answer(text):
    """Status, headers and body of the last answer that curl -i prints."""
    head, _, body = text.partition("\r\n\r\n")
    while body.startswith("HTTP/"):
        head, _, body = body.partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


class Curl(ServerSuite):
    flags = ("--max-body-bytes", str(MOST), "--allowed-origins", ORIGIN,
             "--control-key", CONTROL)

    def get(self, path, *words):
        return split_answer(curl("-i", *words, self.url + path))

    def post(self, path, body, *words):
        data = body if isinstance(body, str) else json.dumps(body)
        return self.get(path, "-H", "Content-Type: application/json", "--data-binary", data, *words)

    def expect_error(self, answer, status, kind="invalid_request_error"):
        """An answer with an error in OpenAI's shape; its message."""
        found, headers, body = answer
        expect_equal(found, status, body)
        expect_equal(headers["content-type"], "application/json")
        expect_equal(int(headers["content-length"]), len(body.encode()))
        error = json.loads(body)["error"]
        expect_equal(set(error), {"message", "type", "param", "code"})
        expect_equal(error["type"], kind)
        return error["message"]

    def check_large_body(self):
        """a body of 3 MB is asked for by 100 Continue, and read"""
        path = self.place.folder / "large.json"
        path.write_text(json.dumps(COMPLETION | {"user": "x" * 3_000_000}))
        text = curl("-i", "-H", "Content-Type: application/json", "--data-binary", f"@{path}",
                    self.url + "/v1/completions")
        expect(text.startswith("HTTP/1.1 100 Continue\r\n\r\n"), text[:80])
        status, _, body = split_answer(text)
        expect_equal((status, len(json.loads(body)["choices"])), (200, 1))

    def check_too_large_body(self):
        """a longer body than allowed is refused before it is sent"""
        path = self.place.folder / "too_large.json"
        path.write_text(json.dumps(COMPLETION | {"user": "x" * (MOST + 1)}))
        text = curl("-i", "-H", "Content-Type: application/json", "--data-binary", f"@{path}",
                    "-w", "%{size_upload}", self.url + "/v1/completions")
        expect("100 Continue" not in text, "100 Continue")
        message_end = text.rindex("}") + 1
        expect_equal(int(text[message_end:]), 0, "bytes sent")
        message = self.expect_error(split_answer(text[:message_end]), 413)
        expect(str(MOST) in message, message)

    def check_http_1_0(self):
        """HTTP/1.0 gets whole answers and streams, without chunks"""
        status, headers, body = self.post("/v1/completions", COMPLETION, "-0")
        expect_equal((status, len(json.loads(body)["choices"])), (200, 1))
        expect_equal(headers.get("connection", "close"), "close")
        status, headers, body = self.post("/v1/completions", COMPLETION | {"stream": True}, "-0")
        expect_equal((status, headers.get("transfer-encoding")), (200, None))
        expect(body.startswith("data: {") and body.endswith("data: [DONE]\n\n"), body)

    def check_compressed(self):
        """--compressed changes nothing in the answer"""
        _, _, body = self.post("/v1/completions", COMPLETION)
        _, _, again = self.post("/v1/completions", COMPLETION, "--compressed")
        expect_equal(json.loads(again)["choices"], json.loads(body)["choices"])

    def check_head(self):
        """HEAD has the headers of GET and no body"""
        for path in ("/health", "/v1/models", "/metrics", "/"):
            status, headers, body = split_answer(curl("-I", self.url + path))
            expect_equal((status, body), (200, ""), path)
            expect(int(headers["content-length"]) > 0, f"{path}: {headers}")
        expect_equal(split_answer(curl("-I", self.url + "/v1/completions"))[0], 405)

    def check_stream(self):
        """-N shows the events of a stream"""
        status, headers, body = self.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "stream": True}, "-N")
        expect_equal(status, 200)
        expect(headers["content-type"].startswith("text/event-stream"), f"{headers}")
        expect_equal((headers["transfer-encoding"], headers["cache-control"]),
                     ("chunked", "no-cache"))
        events = body.split("\n\n")
        expect_equal(events[-2:], ["data: [DONE]", ""])
        for event in events[:-2]:
            expect_equal(json.loads(event.removeprefix("data: "))["object"],
                         "chat.completion.chunk")

    def check_parallel(self):
        """20 connections at a time"""
        words = []
        for i in range(20):
            body = COMPLETION | {"seed": i, "temperature": 1, "max_tokens": 60}
            words += [*(["--next"] if words else []), "-sS", "-H", "Content-Type: application/json",
                      "-d", json.dumps(body), "-o", str(self.place.folder / f"answer_{i}.json"),
                      "-w", "%{http_code} ", self.url + "/v1/completions"]
        codes = curl("-Z", "--parallel-immediate", "--parallel-max", "20", *words)
        expect_equal(codes.split(), ["200"] * 20)
        texts = [json.loads((self.place.folder / f"answer_{i}.json").read_text())
                 ["choices"][0]["text"] for i in range(20)]
        expect_equal(len(set(texts)), 20)

    def check_keep_alive(self):
        """several requests share a connection, also after errors and streams"""
        words = []
        for body in (COMPLETION, {"prompt": 5}, COMPLETION | {"stream": True}, COMPLETION):
            words += [*(["--next"] if words else []), "-sS", "-H", "Content-Type: application/json",
                      "-d", json.dumps(body), "-o", "/dev/null", "-w",
                      "%{num_connects}:%{http_code} ", self.url + "/v1/completions"]
        expect_equal(curl(*words).split(), ["1:200", "0:400", "0:200", "0:200"])

    def check_route_errors(self):
        """404, 405 and 415 say what was expected"""
        message = self.expect_error(self.get("/v1/nothing"), 404, "not_found_error")
        expect("/v1/nothing" in message, message)
        answer = self.get("/v1/completions")
        self.expect_error(answer, 405)
        expect_equal(answer[1]["allow"], "post")
        self.expect_error(self.get("/health", "-X", "DELETE"), 405)
        answer = self.get("/v1/completions", "-d", json.dumps(COMPLETION))
        message = self.expect_error(answer, 415)
        expect("application/json" in message, message)

    def check_bad_json(self):
        """a body that is no JSON object is refused, and says where it breaks"""
        path = self.place.folder / "bad.json"
        for body in (b"", b"{", b"[]", b"5", b'{"a": 1,}', b'{"prompt": "\xff"}', b"nul",
                     b'{"model": "tiny"} {}', b"{" * 100_000, b'{"prompt": "\x00"}'):
            path.write_bytes(body)
            self.expect_error(self.post("/v1/completions", f"@{path}"), 400)

    def check_preflight(self):
        """OPTIONS answers pages of allowed origins, without a key"""
        server = self.start("--api-key", KEY, "--allowed-origins", ORIGIN)
        for origin, allowed in ((ORIGIN, True), ("https://other.example", False)):
            status, headers, body = split_answer(curl(
                "-i", "-X", "OPTIONS", "-H", f"Origin: {origin}", "-H",
                "Access-Control-Request-Method: POST", "-H",
                "Access-Control-Request-Headers: authorization,content-type",
                server.url + "/v1/chat/completions"))
            expect((status, body) == (204, ""), f"{status} {body}")
            expect_equal(headers.get("access-control-allow-origin"), origin if allowed else None)
            if allowed:
                expect("POST" in headers["access-control-allow-methods"].upper(), f"{headers}")
                expect_equal(headers["access-control-allow-headers"], "authorization,content-type")

    def check_origins(self):
        """pages of allowed origins may call, those of others may not"""
        status, headers, _ = self.post("/v1/completions", COMPLETION, "-H", f"Origin: {ORIGIN}")
        expect_equal((status, headers["access-control-allow-origin"]), (200, ORIGIN))
        status, headers, _ = self.post("/v1/completions", "{", "-H", f"Origin: {ORIGIN}")
        expect_equal((status, headers["access-control-allow-origin"]), (400, ORIGIN))
        other = self.post("/v1/completions", COMPLETION, "-H", "Origin: https://other.example")
        self.expect_error(other, 403, "permission_error")
        expect("access-control-allow-origin" not in other[1], f"{other[1]}")
        own = self.post("/v1/completions", COMPLETION, "-H", f"Origin: {self.url}")
        expect_equal(own[0], 200, "the server's own page")

    def check_key(self):
        """a key opens the server as a bearer's or as a password"""
        server = self.start("--api-key", KEY)
        models = server.url + "/v1/models"
        self.expect_error(split_answer(curl("-i", models)), 401, "authentication_error")
        for words, status in ((("-H", f"Authorization: Bearer {KEY}"), 200),
                              (("-H", f"authorization: bearer {KEY}"), 200),
                              (("-u", f"anyone:{KEY}"), 200), (("-u", f"{KEY}:x"), 401),
                              (("-H", f"Authorization: Bearer {KEY}x"), 401),
                              (("-H", f"Authorization: Bearer {KEY[:-1]}"), 401),
                              (("-H", "Authorization: Bearer"), 401),
                              (("-H", f"Authorization: {KEY}"), 401),
                              (("-H", f"X-Api-Key: {KEY}"), 401)):
            expect_equal(split_answer(curl("-i", *words, models))[0], status, f"{words}")
        _, headers, _ = split_answer(curl("-i", server.url + "/"))
        expect(headers["www-authenticate"].startswith("basic "), f"{headers}")

    def check_control(self):
        """control routes: pause, is_paused, resume, weight_info, abort_requests"""
        key = ("-H", f"Authorization: Bearer {CONTROL}")
        expect_equal(json.loads(self.get("/is_paused", *key)[2]), {"is_paused": False})
        expect_equal(self.post("/pause?mode=wait", "{}", *key)[0], 200)
        expect_equal(json.loads(self.get("/is_paused", *key)[2]), {"is_paused": True})
        expect_equal(json.loads(self.get("/health")[2])["status"], "paused")
        expect_equal(self.post("/v1/completions", COMPLETION)[0], 503)
        expect_equal(self.post("/resume", "{}", *key)[0], 200)
        expect_equal(self.post("/v1/completions", COMPLETION)[0], 200)
        expect_equal(json.loads(self.get("/weight_info", *key)[2])["weights_version"], 0)
        expect_equal(json.loads(self.post("/abort_requests", "{}", *key)[2])["aborted"], 0)
        expect_equal(self.post("/reset_prefix_cache", "{}", *key)[0], 200)
        self.expect_error(self.post("/pause?mode=never", "{}", *key), 400)

    def check_tls(self):
        """TLS with a certificate of our own, which curl must be told"""
        certificate, key = self.place.certificate()
        server = self.start("--tls-cert", certificate, "--tls-key", key)
        url = server.url + "/v1/completions"
        words = ("-H", "Content-Type: application/json", "-d", json.dumps(COMPLETION))
        status, _, body = split_answer(curl("-i", "--cacert", certificate, *words, url))
        expect_equal((status, len(json.loads(body)["choices"])), (200, 1))
        curl(*words, url, code=60)
        expect_equal(curl("--cacert", certificate, "--tls-max", "1.2", server.url + "/health",
                          "-w", "%{http_code}", "-o", "/dev/null"), "200")
        curl(server.url.replace("https", "http") + "/health", code=52)

    def check_open_routes(self):
        """/health, /v1/health, /ping and /version"""
        for path in ("/health", "/v1/health", "/ping"):
            status, _, body = self.get(path)
            expect_equal((status, json.loads(body)["status"]), (200, "ok"))
        expect(json.loads(self.get("/version")[2])["version"], "no version")
