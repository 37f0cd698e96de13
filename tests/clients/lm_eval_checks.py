"""lm-evaluation-harness: its requests for scores and texts, and how it reads the answers."""
import json
import math
import random

from harness import ask, expect, expect_equal
from suites import ServerSuite

BATCH = 20
LONGEST = 5  # tokens of a continuation
PAIRS = 120


def scoring_request(rows):
    return {"model": "tiny", "prompt": rows, "temperature": 0, "max_tokens": 1, "logprobs": 1,
            "seed": 1234, "echo": True}


def parse_scores(answer, context_lengths):
    """(sum of log-probabilities, whether greedy) of the continuations, as lm-eval reads them."""
    found = []
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    for choice, length in zip(choices, context_lengths):
        lists = choice["logprobs"]
        logprobs = lists["token_logprobs"][length:-1]
        tops = lists["top_logprobs"][length:-1]
        greedy = all(own == max(top.values()) for own, top in zip(logprobs, tops))
        found.append((sum(logprobs), greedy))
    return found


class LmEval(ServerSuite):
    flags = ("--exact",)

    def open(self):
        super().open()
        self.pairs = self.make_pairs()

    def file(self, rows):
        path = self.place.folder / "rows.json"
        path.write_text(json.dumps({"input_ids": rows}))
        return str(path)

    def make_pairs(self):
        """(context, continuation, whether it is the greedy one), of which a third is."""
        draw = random.Random(17)
        text = (self.place.folder / "text.txt").read_text()
        _, _, answer = ask(self.url + "/tokenize", {"prompt": text, "add_special_tokens": False})
        corpus = json.loads(answer)["tokens"]
        contexts = []
        for _ in range(PAIRS):
            begin = draw.randrange(len(corpus) - 400)
            length = draw.choice((1, 2, 9, 40, 63, 64, 150))
            contexts.append(corpus[begin:begin + length])
        line = self.place.model.run(
            "generate", "--prompt-tokens", self.file(contexts), "--max-new-tokens", str(LONGEST),
            "--ignore-eos", "--exact", "--json")
        pairs = []
        for context, greedy in zip(contexts, line["generated"]):
            wanted = greedy[:draw.randint(1, LONGEST)]
            kind = draw.randrange(3)
            if kind == 1:
                wanted[draw.randrange(len(wanted))] = draw.randrange(420)
            elif kind == 2:
                begin = draw.randrange(len(corpus) - LONGEST)
                wanted = corpus[begin:begin + len(wanted)]
            pairs.append((context, wanted, wanted == greedy[:len(wanted)]))
        return pairs

    def scores(self, url):
        """What lm-eval makes of the pairs."""
        out = []
        for at in range(0, len(self.pairs), BATCH):
            pairs = self.pairs[at:at + BATCH]
            status, _, text = ask(f"{url}/v1/completions",
                                  scoring_request([context + said for context, said, _ in pairs]))
            expect_equal(status, 200, text)
            out += parse_scores(json.loads(text), [len(context) for context, _, _ in pairs])
        return out

    def score_sums(self, *flags):
        rows = [context + said for context, said, _ in self.pairs]
        line = self.place.model.run("score", "--tokens", self.file(rows), "--logprobs", *flags)
        return [math.fsum(row[len(context):])
                for row, (context, _, _) in zip(line["logprobs"], self.pairs)]

    def check_scores(self):
        """sums of 120 continuations are those of `score` to 1e-6"""
        for (found, _), wanted in zip(self.scores(self.url), self.score_sums("--exact")):
            expect(abs(found - wanted) < 1e-6, f"{found} instead of {wanted}")

    def check_greedy_flags(self):
        """their greedy flags are those of `generate`"""
        wanted = [greedy for _, _, greedy in self.pairs]
        expect(PAIRS / 4 < sum(wanted) < PAIRS / 2, f"{sum(wanted)} are greedy")
        expect_equal([greedy for _, greedy in self.scores(self.url)], wanted)

    def check_usual_kernels(self):
        """without --exact too, sums to 1e-5"""
        server = self.start()
        found = self.scores(server.url)
        for (value, greedy), wanted, (_, _, flag) in zip(found, self.score_sums(), self.pairs):
            expect(abs(value - wanted) < 1e-5, f"{value} instead of {wanted}")
            expect_equal(greedy, flag)

    def check_lists(self):
        """the lists have prompt and answer, null first"""
        context, said, _ = self.pairs[0]
        _, _, text = ask(self.url + "/v1/completions", scoring_request([context + said]))
        lists = json.loads(text)["choices"][0]["logprobs"]
        count = len(context) + len(said) + 1
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            expect_equal(len(lists[name]), count, name)
        expect(lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None, "no null")

    def check_texts(self):
        """a request for texts stops where lm-eval's `until` says"""
        line = self.place.model.run("generate", "--prompt", "The work", "--max-new-tokens", "60",
                                    "--ignore-eos", "--exact", "--json")
        whole = line["text"][0]
        until = [whole[25:28], whole[40:42]]
        _, _, answer = ask(self.url + "/tokenize", {"prompt": "The work"})
        for prompt in ("The work", json.loads(answer)["tokens"]):
            _, _, text = ask(self.url + "/v1/completions", {
                "prompt": [prompt], "model": "tiny", "max_tokens": 60, "temperature": 0,
                "stop": until, "seed": 1234})
            choice, = json.loads(text)["choices"]
            end = min(whole.find(each) for each in until)
            expect_equal((choice["text"], choice["index"]), (whole[:end], 0))

    def check_chat_texts(self):
        """so does one for answers of a chat"""
        body = {"messages": [{"role": "user", "content": "The work"}], "model": "tiny",
                "max_tokens": 60, "temperature": 0, "seed": 1234}
        def content(**fields):
            _, _, text = ask(self.url + "/v1/chat/completions", body | fields)
            return json.loads(text)["choices"][0]["message"]["content"]
        whole = content(stop=None)
        expect_equal(content(stop=[whole[20:23]]), whole[:whole.find(whole[20:23])])
