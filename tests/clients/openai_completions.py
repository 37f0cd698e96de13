"""Models and /v1/completions by the official client."""
import openai

from harness import expect, expect_equal, raises
from openai_suite import END, OpenAISuite, parts_of, score


class Completions(OpenAISuite):
    def check_models(self):
        """models.list and models.retrieve"""
        found = self.client.models.list().data
        expect_equal([model.id for model in found], ["tiny"])
        model = self.client.models.retrieve("tiny")
        expect_equal((model.id, model.object, model.owned_by), ("tiny", "model", "bevatron"))
        expect_equal(model.max_model_len, 1024)
        expect_equal(model.created, found[0].created)

    def check_model_names(self):
        """a model's second name, which has a slash, is served too"""
        server = self.start("--served-model-name", "first", "org/a b")
        client = self.client_of(server)
        expect_equal([model.id for model in client.models.list().data], ["first", "org/a b"])
        expect_equal(client.models.retrieve("org/a b").id, "org/a b")
        expect(self.complete(client=client, model="org/a b").choices[0].text, "no text")

    def check_unknown_model(self):
        """another model's name is a NotFoundError"""
        for call in (lambda: self.client.models.retrieve("other"),
                     lambda: self.complete(model="other"), lambda: self.chat(model="other"),
                     lambda: self.client.embeddings.create(model="other", input="a")):
            error = raises(openai.NotFoundError, call)
            expect_equal((error.param, error.code), ("model", "model_not_found"))

    def check_text(self):
        """a text is continued"""
        whole = self.complete()
        expect_equal(whole.object, "text_completion")
        expect(whole.id.startswith("cmpl-") and whole.model == "tiny", f"{whole}")
        expect(whole.created > 1.7e9 and whole.system_fingerprint, f"{whole}")
        choice, = whole.choices
        expect_equal((choice.index, choice.finish_reason, choice.logprobs), (0, "length", None))
        expect(choice.text, "no text")
        prompt = len(self.ids("The work", special=True))
        expect_equal((whole.usage.prompt_tokens, whole.usage.completion_tokens,
                      whole.usage.total_tokens), (prompt, 12, prompt + 12))

    def check_default_length(self):
        """16 tokens where nothing is said"""
        usage = self.complete(max_tokens=None, extra_body={"ignore_eos": True}).usage
        expect_equal(usage.completion_tokens, 16)

    def check_texts(self):
        """a list of texts gives choices in their order, each as if alone"""
        prompts = ["The work", "Licensor", "any"]
        whole = self.complete(prompts)
        expect_equal([choice.index for choice in whole.choices], [0, 1, 2])
        alone = [self.complete(prompt) for prompt in prompts]
        expect_equal([c.text for c in whole.choices], [a.choices[0].text for a in alone])
        expect_equal(whole.usage.prompt_tokens, sum(a.usage.prompt_tokens for a in alone))
        expect_equal(whole.usage.completion_tokens, sum(a.usage.completion_tokens for a in alone))

    def check_ids(self):
        """token ids, and lists of them, do the same as their text"""
        ids, others = self.ids("The work", special=True), self.ids("Licensor", special=True)
        text = self.complete("The work").choices[0].text
        expect_equal(self.complete(ids).choices[0].text, text)
        both = self.complete([ids, others])
        expect_equal([c.text for c in both.choices],
                     [text, self.complete("Licensor").choices[0].text])
        self.refused("prompt", lambda: self.complete([ids, [5, 99999]]))

    def check_echo(self):
        """echo puts the prompt first"""
        plain, echoed = self.complete(), self.complete(echo=True)
        expect_equal(echoed.choices[0].text, "The work" + plain.choices[0].text)

    def check_echo_alone(self):
        """max_tokens 0 with echo scores the prompt alone"""
        whole = self.complete(echo=True, max_tokens=0, logprobs=2)
        choice, = whole.choices
        expect_equal((choice.text, whole.usage.completion_tokens), ("The work", 0))
        expect_equal(choice.finish_reason, "length")
        lists = choice.logprobs
        expect_equal(lists.tokens[0], END)
        expect_equal("".join(lists.tokens[1:]), "The work")
        expect(lists.token_logprobs[0] is None and lists.top_logprobs[0] is None, f"{lists}")
        expect(all(value < 0 for value in lists.token_logprobs[1:]), f"{lists}")
        self.refused("max_tokens", lambda: self.complete(max_tokens=0))

    def check_logprobs(self):
        """logprobs: parallel lists, of which greedy tokens have the largest numbers"""
        choice, = self.complete(logprobs=3).choices
        lists = choice.logprobs
        expect_equal("".join(lists.tokens), choice.text)
        lengths = {len(each) for each in (lists.tokens, lists.token_logprobs,
                                          lists.top_logprobs, lists.text_offset)}
        expect_equal(lengths, {12})
        for token, logprob, top, offset in zip(lists.tokens, lists.token_logprobs,
                                               lists.top_logprobs, lists.text_offset):
            expect_equal((len(top), top[token], max(top.values())), (3, logprob, logprob))
            expect_equal(choice.text[offset:offset + len(token)], token)
        sampled = self.complete(logprobs=0, temperature=1.5, seed=3).choices[0].logprobs
        expect_equal([len(top) for top in sampled.top_logprobs], [1] * 12)

    def check_echo_logprobs(self):
        """with echo, the lists begin with the prompt"""
        whole = self.complete(echo=True, logprobs=2).choices[0]
        alone = self.complete(echo=True, max_tokens=0, logprobs=2).choices[0].logprobs
        plain = self.complete(logprobs=2).choices[0].logprobs
        lists = whole.logprobs
        expect_equal(lists.tokens, alone.tokens + plain.tokens)
        expect_equal(lists.top_logprobs[1:len(alone.tokens)], alone.top_logprobs[1:])
        for found, wanted in zip(lists.token_logprobs[len(alone.tokens):], plain.token_logprobs):
            expect(abs(found - wanted) < 1e-4, f"{found} instead of {wanted}")

    def check_n(self):
        """n gives so many different choices"""
        whole = self.complete(["The work", "Licensor"], n=3, temperature=1.5, seed=1,
                              max_tokens=30)
        expect_equal([choice.index for choice in whole.choices], list(range(6)))
        expect(len({choice.text for choice in whole.choices}) == 6, "equal choices")

    def check_best_of(self):
        """best_of gives the n with the best mean log-probability"""
        fields = {"temperature": 1.5, "seed": 4, "logprobs": 0, "max_tokens": 20}
        all_of_them = self.complete(n=5, **fields).choices
        best = self.complete(n=2, best_of=5, **fields)
        ranked = sorted(all_of_them, key=lambda c: -score(c.logprobs.token_logprobs))
        expect_equal([choice.text for choice in best.choices], [c.text for c in ranked[:2]])
        expect_equal([choice.index for choice in best.choices], [0, 1])
        self.refused("best_of", lambda: self.complete(n=3, best_of=2))

    def check_stop(self):
        """stop texts end a choice before them"""
        text = self.complete(max_tokens=40).choices[0].text
        for stop in (text[7:10], [text[20:22], text[12:15], "no such text"]):
            choice, = self.complete(max_tokens=40, stop=stop).choices
            stops = [stop] if isinstance(stop, str) else stop
            place, which = min((text.find(s), s) for s in stops if s in text)
            expect_equal((choice.text, choice.finish_reason, choice.stop_reason),
                         (text[:place], "stop", which))
        whole, = self.complete(max_tokens=40, stop=text[7:10],
                               extra_body={"include_stop_str_in_output": True}).choices
        expect_equal(whole.text, text[:text.find(text[7:10]) + 3])
        self.refused("stop", lambda: self.complete(stop=["a", "b", "c", "d", "e"]))

    def check_suffix(self):
        """suffix is refused by its name"""
        self.refused("suffix", lambda: self.complete(suffix="x"), code="unsupported_parameter")

    def check_seed(self):
        """a seed repeats a text, others and none do not"""
        def sample(**fields):
            return self.complete(temperature=1.5, max_tokens=30, **fields).choices[0].text
        expect_equal(sample(seed=5), sample(seed=5))
        expect_equal(sample(seed=-5), sample(seed=-5))
        expect_equal(len({sample(seed=5), sample(seed=6), sample(), sample()}), 4)

    def check_stream(self):
        """a stream says what the whole answer says"""
        for fields in ({}, {"temperature": 1.8, "seed": 11, "max_tokens": 60},
                       {"n": 2, "temperature": 1.5, "seed": 2}, {"echo": True}):
            prompts = ["The work", "any"]
            whole = self.complete(prompts, **fields)
            with self.complete(prompts, stream=True, **fields) as stream:
                texts, reasons, usage, chunks = parts_of(stream)
            expect_equal(texts, {c.index: c.text for c in whole.choices}, f"{fields}")
            expect_equal(reasons, {c.index: c.finish_reason for c in whole.choices})
            expect(usage is None and len(chunks) > 12, f"{len(chunks)} chunks, {usage}")

    def check_stream_usage(self):
        """stream_options.include_usage adds one chunk without choices"""
        whole = self.complete()
        options = {"include_usage": True}
        _, _, usage, chunks = parts_of(self.complete(stream=True, stream_options=options))
        expect_equal(usage.total_tokens, whole.usage.total_tokens)
        expect_equal([bool(c.usage) for c in chunks], [False] * (len(chunks) - 1) + [True])
        expect_equal(chunks[-1].choices, [])
        self.refused("stream_options", lambda: self.complete(stream_options=options))

    def check_stream_logprobs(self):
        """the chunks of a stream have the log-probabilities of their tokens"""
        wanted = self.complete(logprobs=2).choices[0].logprobs
        _, _, _, chunks = parts_of(self.complete(logprobs=2, stream=True))
        found = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
        for name in ("tokens", "text_offset"):
            expect_equal([x for each in found for x in getattr(each, name)],
                         getattr(wanted, name), name)

    def check_stream_echo_logprobs(self):
        """a stream with echo and logprobs says what the whole answer says, or is refused"""
        try:
            _, _, _, chunks = parts_of(self.complete(logprobs=1, echo=True, stream=True))
        except openai.BadRequestError as error:
            return expect_equal(error.param, "echo")
        wanted = self.complete(logprobs=1, echo=True).choices[0].logprobs
        found = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
        expect_equal([t for each in found for t in each.tokens], wanted.tokens)
        return None

    def check_context_length(self):
        """what does not fit is refused with both numbers"""
        error = self.refused("prompt", lambda: self.complete("a " * 1000, max_tokens=600),
                             code="context_length_exceeded")
        expect("This model's maximum context length is 1024 tokens" in error.message
               and "600 in the completion" in error.message, error.message)

    def check_bad_values(self):
        """values outside of their ranges are refused by name"""
        for name, values in {
                "temperature": (-1, 2.5, "hot"), "top_p": (-0.1, 1.1), "n": (0, 129, 1.5),
                "max_tokens": (-1, "x"), "logprobs": (-1, 21), "presence_penalty": (-2.1, 3),
                "frequency_penalty": (2.1,), "seed": ("x",), "echo": ("yes",), "stop": ("", 5),
                "logit_bias": ({"5": 101}, {"x": 1}, {"424": 1}, 3),
                "best_of": (21,)}.items():
            for value in values:
                self.refused_value(name, value)

    def refused_value(self, name, value):
        error = raises(openai.BadRequestError, lambda: self.complete(**{name: value}))
        expect(error.param.startswith(name), f"{name}={value!r}: {error.param}, {error.message}")

    def check_bad_prompts(self):
        """prompts of other kinds are refused"""
        for prompt in ([], {}, 5, [[]], ["a", 5], [1, "a"], [-1], [1.5], [True]):
            error = raises(openai.BadRequestError, lambda: self.complete(prompt))
            expect_equal(error.param, "prompt", f"{prompt}")

    def check_nulls(self):
        """null means absent, and unknown fields are ignored"""
        names = ("temperature max_tokens n stop logprobs echo stream stream_options seed "
                 "logit_bias top_p best_of suffix user presence_penalty response_format "
                 "top_k min_p min_tokens stop_token_ids prompt_logprobs priority "
                 "request_id cache_salt truncate_prompt_tokens").split()
        body = {"model": "tiny", "prompt": "The work", **dict.fromkeys(names), "nonsense": 1,
                "user": "someone"}
        expect(self.post("/v1/completions", body)["choices"][0]["text"], "no text")

    def check_raw_answers(self):
        """with_raw_response has the headers"""
        raw = self.client.completions.with_raw_response.create(model="tiny", prompt="The work",
                                                               max_tokens=2)
        expect_equal(raw.headers["content-type"], "application/json")
        expect(raw.headers["x-request-id"] in raw.parse().id, f"{raw.headers}")
        named = self.client.completions.with_raw_response.create(
            model="tiny", prompt="The work", max_tokens=2,
            extra_headers={"X-Request-Id": "mine-17"})
        expect_equal((named.headers["x-request-id"], named.parse().id),
                     ("mine-17", "cmpl-mine-17"))
        streamed = self.client.completions.with_raw_response.create(
            model="tiny", prompt="The work", max_tokens=2, stream=True)
        expect(streamed.headers["content-type"].startswith("text/event-stream"),
               f"{streamed.headers}")
        expect(len(list(streamed.parse())) > 1, "no chunks")
