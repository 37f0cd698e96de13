"""Fields beyond OpenAI's, as vLLM names them, sent by the official client's extra_body."""
import re

import openai

from harness import expect, expect_equal, raises
from openai_suite import END, OpenAISuite


class Extras(OpenAISuite):
    def extra(self, prompt="The work", **fields):
        """The first choice of a completion."""
        known = {name: fields.pop(name) for name in ("temperature", "seed", "logit_bias",
                                                     "max_tokens", "echo") if name in fields}
        return self.complete(prompt, extra_body=fields, **known).choices[0]

    def check_filters(self):
        """top_k 1, min_p 1 and top_p 0 leave the likeliest token at any temperature"""
        greedy = self.extra().text
        for field in ({"top_k": 1}, {"min_p": 1}, {"top_p": 0}):
            expect_equal(self.extra(temperature=2, seed=1, **field).text, greedy, f"{field}")
        free = self.extra(temperature=2, seed=1).text
        expect(free != greedy, "temperature 2 is greedy")
        for field in ({"top_k": -1}, {"top_k": 0}, {"min_p": 0}, {"top_p": 1}):
            expect_equal(self.extra(temperature=2, seed=1, **field).text, free, f"{field}")

    def check_repetition_penalty(self):
        """repetition_penalty repels what was said"""
        def variety(penalty):
            choice = self.extra(repetition_penalty=penalty, max_tokens=60, ignore_eos=True,
                                return_token_ids=True)
            return len(set(choice.token_ids))
        expect(variety(0.5) < variety(1) < variety(3), "no effect")

    def check_min_tokens(self):
        """min_tokens keeps end tokens away"""
        end = {"logit_bias": self.bias(**{END: 100})}
        expect_equal(self.extra(**end).finish_reason, "stop")
        usage = self.complete(extra_body={"min_tokens": 5}, **end).usage
        expect_equal(usage.completion_tokens, 6)
        self.refused("min_tokens", lambda: self.extra(min_tokens=13))

    def check_ignore_eos(self):
        """ignore_eos goes on after end tokens"""
        whole = self.complete(extra_body={"ignore_eos": True}, logit_bias=self.bias(**{END: 100}))
        expect_equal((whole.usage.completion_tokens, whole.choices[0].finish_reason),
                     (12, "length"))

    def check_stop_token_ids(self):
        """stop_token_ids end a choice, whose text is without them"""
        stop = {"stop_token_ids": [self.token("A")], "logit_bias": self.bias(A=100),
                "return_token_ids": True}
        choice = self.extra(**stop)
        expect_equal((choice.finish_reason, choice.stop_reason, choice.token_ids, choice.text),
                     ("stop", self.token("A"), [self.token("A")], ""))
        expect_equal(self.extra(include_stop_str_in_output=True, **stop).text, "A")
        chat, = self.chat(logit_bias=self.bias(A=100),
                          extra_body={"stop_token_ids": [self.token("A")]}).choices
        expect_equal((chat.message.content, chat.stop_reason), ("", self.token("A")))

    def check_skip_special_tokens(self):
        """skip_special_tokens false shows special tokens"""
        fields = {"logit_bias": self.bias(**{"<|im_start|>": 100}), "max_tokens": 2}
        expect_equal(self.extra(**fields).text, "")
        expect_equal(self.extra(skip_special_tokens=False, **fields).text, "<|im_start|>" * 2)
        chat, = self.chat(logit_bias=self.bias(**{"<|im_end|>": 100}),
                          extra_body={"skip_special_tokens": False}).choices
        expect_equal((chat.message.content, chat.finish_reason), ("<|im_end|>", "stop"))

    def check_add_special_tokens(self):
        """add_special_tokens decides about the token before a prompt"""
        end, plain = self.token(END), self.ids("The work")
        def prompt(**fields):
            return self.extra(return_token_ids=True, **fields).prompt_token_ids
        expect_equal(prompt(), [end, *plain])
        expect_equal(prompt(add_special_tokens=False), plain)
        chat = self.chat("u", extra_body={"return_token_ids": True, "add_special_tokens": True})
        expect_equal(chat.prompt_token_ids[0], end)

    def check_token_ids(self):
        """return_token_ids lists the tokens of prompt and answer, in a stream too"""
        choice = self.extra(return_token_ids=True)
        expect_equal(self.text(choice.token_ids), choice.text)
        with self.complete(stream=True, extra_body={"return_token_ids": True}) as stream:
            choices = [chunk.choices[0] for chunk in stream]
        expect_equal(choices[0].prompt_token_ids, choice.prompt_token_ids)
        expect_equal([id for each in choices for id in each.token_ids], choice.token_ids)

    def check_tokens_as_ids(self):
        """return_tokens_as_token_ids names tokens by their ids"""
        choice = self.complete(logprobs=1, extra_body={
            "return_tokens_as_token_ids": True, "return_token_ids": True}).choices[0]
        expect_equal(choice.logprobs.tokens, [f"token_id:{id}" for id in choice.token_ids])

    def check_prompt_logprobs(self):
        """prompt_logprobs has the numbers of echo"""
        ids = self.ids("The work", special=True)
        choice = self.extra(prompt_logprobs=2)
        lists = self.complete(echo=True, logprobs=2, max_tokens=0).choices[0].logprobs
        expect_equal((len(choice.prompt_logprobs), choice.prompt_logprobs[0]), (len(ids), None))
        for i in range(1, len(ids)):
            entry = choice.prompt_logprobs[i]
            own = entry[str(ids[i])]
            expect(abs(own["logprob"] - lists.token_logprobs[i]) < 1e-4, f"{own}")
            expect_equal(own["decoded_token"], lists.tokens[i])
            expect({1, 2} <= {each["rank"] for each in entry.values()}, f"{entry}")
        chat = self.chat(extra_body={"prompt_logprobs": 0})
        expect_equal(len(chat.prompt_logprobs), chat.usage.prompt_tokens)
        self.refused("prompt_logprobs", lambda: self.complete(
            stream=True, extra_body={"prompt_logprobs": 1}))

    def check_truncation(self):
        """truncate_prompt_tokens keeps the end of a prompt"""
        ids = self.ids("any Licensor of the work")
        kept = self.extra(ids, truncate_prompt_tokens=4, return_token_ids=True)
        expect_equal(kept.prompt_token_ids, ids[-4:])
        long = self.extra([5] * 3000, truncate_prompt_tokens=-1, return_token_ids=True)
        expect_equal(len(long.prompt_token_ids), 1024 - 12)
        self.refused("truncate_prompt_tokens", lambda: self.extra(truncate_prompt_tokens=0))

    def check_cache_salt(self):
        """a prefix is found again in the cache, but not across cache_salt"""
        ids = [7 + i % 300 for i in range(200)]
        def cached(**fields):
            return self.complete(ids, extra_body=fields).usage.prompt_tokens_details.cached_tokens
        expect_equal([cached(cache_salt="a"), cached(cache_salt="b")], [0, 0])
        expect_equal([cached(cache_salt="a"), cached(cache_salt="b"), cached()], [192, 192, 0])

    def check_priority(self):
        """priority is a number"""
        expect(self.extra(priority=-5).text, "no text")
        self.refused("priority", lambda: self.extra(priority="high"))

    def check_request_id(self):
        """request_id names the answer"""
        expect_equal(self.complete(extra_body={"request_id": "r-1"}).id, "cmpl-r-1")
        expect_equal(self.chat(extra_body={"request_id": "r-2"}).id, "chatcmpl-r-2")

    def check_stream_interval(self):
        """stream_interval gathers tokens"""
        with self.complete(stream=True, max_tokens=24, logit_bias=self.bias(A=100),
                           extra_body={"stream_interval": 8}) as stream:
            texts = [chunk.choices[0].text for chunk in stream]
        expect_equal([text for text in texts if text], ["A" * 8] * 3)

    def check_allowed_tokens(self):
        """allowed_token_ids and bad_words rule what is said, or are refused by name"""
        allowed = [self.token("A"), self.token("B")]
        self.ruled({"allowed_token_ids": allowed}, lambda text: set(text) <= set("AB"))
        said = self.extra().text
        word = re.search(r"\w{2,}", said)[0]
        self.ruled({"bad_words": [word]}, lambda text: word not in text)

    def ruled(self, field, holds):
        try:
            text = self.extra(**field).text
        except openai.BadRequestError as error:
            return expect_equal([error.param], list(field))
        return expect(holds(text), f"{field} is ignored: {text!r}")

    def check_missing_abilities(self):
        """fields that the server has no answer to are refused by name"""
        for name, value in {
                "structured_outputs": {"regex": "a"}, "guided_regex": "a", "guided_json": {},
                "guided_choice": ["a"], "prompt_embeds": "x", "kv_transfer_params": {},
                "thinking_token_budget": 5}.items():
            self.refused(name, lambda: self.extra(**{name: value}), code="unsupported_parameter")

    def check_bad_values(self):
        """values outside of their ranges are refused by name"""
        for name, values in {
                "top_k": (-2, 1.5), "min_p": (-0.1, 1.1, "x"), "repetition_penalty": (0, -1),
                "min_tokens": (-1,), "ignore_eos": ("yes", 1), "stop_token_ids": (["A"], [424], 3),
                "prompt_logprobs": (-1, 21), "stream_interval": (0,), "cache_salt": (5,),
                "truncate_prompt_tokens": (-2,), "request_id": (5,)}.items():
            for value in values:
                error = raises(openai.BadRequestError, lambda: self.extra(**{name: value}))
                expect_equal(error.param, name, f"{value!r}: {error.message}")

    def check_tokenize(self):
        """/tokenize and /detokenize agree with what prompts become"""
        found = self.post("/tokenize", {"prompt": "The work", "return_token_strs": True})
        expect_equal((found["count"], found["max_model_len"]), (len(found["tokens"]), 1024))
        expect_equal(found["token_strs"][0], END)
        messages = [{"role": "user", "content": "u"}]
        chat = self.post("/tokenize", {"messages": messages})
        expect_equal(chat["tokens"],
                     self.chat("u", extra_body={"return_token_ids": True}).prompt_token_ids)
        expect_equal(self.text(found["tokens"][1:]), "The work")
