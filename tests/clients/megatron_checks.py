"""Megatron-LM's interfaces: PUT /api, its command-line client, and routes without /v1."""
import json
import subprocess
import sys
from pathlib import Path

from harness import ask, expect, expect_equal
from suites import ServerSuite

# A prompt's continuation is greedy only by top_k, since temperature 0 is not allowed.
GREEDY = {"top_k": 1}


class Megatron(ServerSuite):
    def put(self, **fields):
        status, _, text = ask(self.url + "/api", {"prompts": ["The work"], **fields}, "PUT")
        return status, json.loads(text)

    def generate(self, **fields):
        status, answer = self.put(**fields)
        expect_equal(status, 200, f"{answer}")
        return answer

    def refused(self, name, **fields):
        """The field is refused by its name, in a message where Megatron's client reads it."""
        status, answer = self.put(**fields)
        expect_equal(status, 400, f"{fields}: {answer}")
        expect(name in answer["message"], f"{fields}: {answer['message']}")
        expect_equal((answer["error"]["param"], answer["error"]["message"]),
                     (name, answer["message"]), f"{fields}")

    def greedy(self, count=10, prompt="The work"):
        """The same by /v1/completions, without a special token before the prompt."""
        _, _, text = ask(self.url + "/v1/completions", {
            "prompt": prompt, "max_tokens": count, "temperature": 0, "add_special_tokens": False,
            "return_token_ids": True, "logprobs": 0, "echo": True})
        return json.loads(text)["choices"][0]

    def check_client(self):
        """Megatron's command-line client prints texts, and messages of errors"""
        asked = "The work\n12\nany Licensor\n5\nThe work\n-1\nThe work\n5000\n"
        done = subprocess.run([sys.executable, Path(__file__).parent / "megatron_cli.py",
                               self.url.removeprefix("http://")], input=asked, text=True,
                              capture_output=True)
        expect_equal(done.returncode, 0, done.stderr)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("text", "error"))]
        expect_equal(len(lines), 4, done.stdout)
        expect(lines[0].startswith("text: The work") and lines[1].startswith("text: any Licensor"),
               done.stdout)
        expect(lines[2].startswith("error 400: tokens_to_generate: -1"), lines[2])
        expect("maximum context length is 1024" in lines[3], lines[3])

    def check_answer(self):
        """text, tokens, segments and logprobs cover prompts and what follows"""
        answer = self.generate(tokens_to_generate=10, logprobs=True, **GREEDY)
        wanted = self.greedy()
        ids = wanted["prompt_token_ids"] + wanted["token_ids"]
        expect_equal(set(answer), {"text", "tokens", "segments", "logprobs"})
        expect_equal(answer["text"], [wanted["text"]])
        expect_equal(answer["tokens"], [ids])
        expect_equal(["".join(answer["segments"][0])], answer["text"])
        found, numbers = answer["logprobs"][0], wanted["logprobs"]["token_logprobs"][1:]
        expect_equal(len(found), len(ids) - 1)
        expect(all(abs(x - y) < 1e-4 for x, y in zip(found, numbers)), f"{found} {numbers}")
        plain = self.generate(tokens_to_generate=10, **GREEDY)
        expect_equal(set(plain), {"text", "tokens", "segments"})

    def check_prompts(self):
        """several prompts; 64 tokens where nothing is said; limits of their number"""
        answer = self.generate(prompts=["The work", "any"], tokens_to_generate=10, **GREEDY)
        expect_equal(answer["text"], [self.greedy()["text"], self.greedy(prompt="any")["text"]])
        ids = self.generate(stop_token=5)["tokens"][0]
        expect(len(ids) <= len(self.greedy()["prompt_token_ids"]) + 64, f"{len(ids)} tokens")
        for prompts in ([], ["a"] * 129, "a", [5], None, [""]):
            self.refused("prompts", prompts=prompts)
        expect(self.generate(prompts=[""], add_BOS=True)["text"][0], "no text")

    def check_scoring(self):
        """tokens_to_generate 0 needs logprobs"""
        self.refused("tokens_to_generate", tokens_to_generate=0)
        answer = self.generate(tokens_to_generate=0, logprobs=True)
        expect_equal(answer["text"], ["The work"])
        expect_equal(len(answer["logprobs"][0]), len(answer["tokens"][0]) - 1)

    def check_sampling(self):
        """temperature, top_k, top_p and random_seed are honoured"""
        def text(**fields):
            return self.generate(tokens_to_generate=30, **fields)["text"][0]
        greedy = self.greedy(30)["text"]
        expect_equal(text(temperature=100, top_k=1), greedy)
        expect_equal(text(temperature=1e-6), greedy)
        expect_equal(text(top_p=1e-6, random_seed=3), greedy)
        expect_equal(text(random_seed=3), text(random_seed=3))
        expect_equal(len({text(random_seed=3), text(random_seed=4), text(), text()}), 4)
        expect_equal(text(random_seed=3, top_k=0, top_p=0.0), text(random_seed=3))

    def check_bos(self):
        """add_BOS puts the token before the prompt"""
        with_bos = self.generate(add_BOS=True, tokens_to_generate=1)["tokens"][0]
        without = self.generate(add_BOS=False, tokens_to_generate=1)["tokens"][0]
        expect_equal(with_bos[:-1], [self.place.model.ids["<|endoftext|>"], *without[:-1]])

    def check_stops(self):
        """stop_on_eol, stop_on_double_eol and stop_token end a text, which keeps them"""
        long = {"tokens_to_generate": 400, "temperature": 1.2, "random_seed": 5}
        text = self.generate(**long)["text"][0]
        line = self.generate(stop_on_eol=True, **long)["text"][0]
        expect_equal(line, text[:text.index("\n") + 1])
        double = self.generate(stop_on_double_eol=True, **long)["text"][0]
        end = text.find("\n\n")
        expect_equal(double, text if end < 0 else text[:end + 2])
        ids = self.greedy()["token_ids"]
        stopped = self.generate(stop_token=ids[4], tokens_to_generate=10, **GREEDY)["tokens"][0]
        expect_equal(stopped[len(self.greedy()["prompt_token_ids"]):],
                     ids[:ids.index(ids[4]) + 1])

    def check_idle_fields(self):
        """fields that Megatron's server drops are refused, but for values that change nothing"""
        for name, idle, other in (("top_p_decay", 0, 0.5), ("top_p_bound", 0, 0.5),
                                  ("length_penalty", 1, 2),
                                  ("prevent_newline_after_colon", False, True)):
            self.generate(tokens_to_generate=1, **{name: idle})
            self.refused(name, **{name: other})
        for name, value in (("max_len", 5), ("sentences", ["a"]), ("beam_width", 2)):
            self.refused(name, **{name: value})

    def check_bad_values(self):
        """values outside of Megatron's ranges are refused with a status"""
        for name, values in {"tokens_to_generate": (-1, 1.5, "x"), "logprobs": (1, "x"),
                             "temperature": (0, -1, 100.5, "x"), "top_k": (-1, 1001, 1.5),
                             "top_p": (-0.1, 1.1, "x"), "add_BOS": (1,), "stop_token": (-1, 5000),
                             "stop_on_eol": (1,), "stop_on_double_eol": ("x",),
                             "random_seed": (-1, 1.5)}.items():
            for value in values:
                self.refused(name, **{name: value})
        self.refused("top_p", top_p=0.5, top_k=5)

    def check_broken_numbers(self):
        """a request whose numbers break gets a message too"""
        ids = self.place.model.ids
        server = self.start(model=self.place.model.poisoned(ids["A"]))
        status, _, text = ask(server.url + "/api", {"prompts": ["A"]}, "PUT")
        expect_equal(status, 500)
        expect("finite" in json.loads(text).get("message", ""), text)

    def check_routes(self):
        """/completions and /chat/completions go without /v1 too"""
        _, _, text = ask(self.url + "/completions", {"prompt": "The work", "max_tokens": 10,
                                                     "temperature": 0})
        _, _, same = ask(self.url + "/v1/completions", {"prompt": "The work", "max_tokens": 10,
                                                        "temperature": 0})
        expect_equal(json.loads(text)["choices"], json.loads(same)["choices"])
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
        status, _, text = ask(self.url + "/chat/completions", chat)
        expect_equal((status, json.loads(text)["object"]), (200, "chat.completion"))
        health = json.loads(ask(self.url + "/v1/health")[2])
        expect_equal((health["status"], health["ready"]), ("ok", True))

    def check_dynamic_fields(self):
        """fields of Megatron's dynamic server are honoured, or refused by name"""
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
        for name, value in (("add_BOS", True), ("return_raw_text", True),
                            ("return_tokenized_data", True), ("multi_modal_data", {"image": "x"})):
            status, _, text = ask(self.url + "/chat/completions", chat | {name: value})
            expect_equal((status, name), (400, (json.loads(text).get("error") or {}).get("param")),
                         f"{name}: {text[:300]}")
        for name, value in (("add_BOS", False), ("return_raw_text", False),
                            ("skip_prompt_log_probs", True), ("prevent_retokenization", True)):
            expect_equal(ask(self.url + "/chat/completions", chat | {name: value})[0], 200, name)
        body = {"prompt": "The work", "max_tokens": 16, "temperature": 0, "stream": True,
                "streaming_interval": 8, "ignore_eos": True}
        events = ask(self.url + "/completions", body)[2].count("data: {")
        expect(events <= 3, f"streaming_interval is ignored: {events} events")
