"""/v1/chat/completions and /v1/embeddings by the official client."""
import math

from harness import expect, expect_equal
from openai_suite import OpenAISuite, parts_of


def rendered(*messages, begin="<|im_start|>assistant\n"):
    """What the template makes of (role, content)."""
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n"
                   for role, content in messages) + begin


class Chat(OpenAISuite):
    def prompt_of(self, answer):
        return self.text(answer.prompt_token_ids)

    def ask_ids(self, messages, **fields):
        return self.chat(messages=messages, extra_body={"return_token_ids": True}, **fields)

    def check_answer(self):
        """an answer is one message of the assistant"""
        answer = self.chat()
        expect_equal((answer.object, answer.model), ("chat.completion", "tiny"))
        expect(answer.id.startswith("chatcmpl-"), answer.id)
        choice, = answer.choices
        expect_equal((choice.index, choice.finish_reason, choice.logprobs), (0, "length", None))
        message = choice.message
        expect_equal((message.role, message.refusal, message.tool_calls), ("assistant", None, None))
        expect(message.content, "no content")
        prompt = len(self.ids(rendered(("user", "hello"))))
        usage = answer.usage
        expect_equal((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
                     (prompt, 12, prompt + 12))
        expect_equal(usage.completion_tokens_details.reasoning_tokens, 0)

    def check_roles(self):
        """messages of every role reach the template"""
        answer = self.ask_ids([
            {"role": "developer", "content": "d"}, {"role": "system", "content": "s"},
            {"role": "user", "content": "u", "name": "someone"},
            {"role": "assistant", "content": "a"},
            {"role": "tool", "content": "t", "tool_call_id": "call_1"},
            {"role": "function", "content": "f", "name": "g"}])
        expect_equal(self.prompt_of(answer), rendered(
            ("system", "d"), ("system", "s"), ("user", "u"), ("assistant", "a"), ("tool", "t"),
            ("function", "f")))

    def check_parts(self):
        """content may be a list of text parts; others are refused by their place"""
        def content(*parts):
            return [{"role": "user", "content": list(parts)}]
        one, two = {"type": "text", "text": "one"}, {"type": "text", "text": "two"}
        expect_equal(self.prompt_of(self.ask_ids(content(one, two))),
                     rendered(("user", "one\ntwo")))
        image = {"type": "image_url", "image_url": {"url": "data:,"}}
        self.refused("messages[0].content[1].type",
                     lambda: self.chat(messages=content(one, image)))

    def check_bad_messages(self):
        """messages that are none are refused by their place"""
        for messages, param in (([], "messages"), ([{"role": "king", "content": "x"}],
                                                   "messages[0].role"),
                                ([{"role": "user"}], "messages[0].content"),
                                ([{"role": "user", "content": 5}], "messages[0].content")):
            self.refused(param, lambda: self.chat(messages=messages))

    def check_stream(self):
        """a stream says what the whole answer says, greedy or by its seed"""
        for fields in ({}, {"temperature": 1.8, "seed": 3, "max_completion_tokens": 80},
                       {"temperature": 1.5, "seed": 4, "n": 3}):
            whole = self.chat(**fields)
            with self.chat(stream=True, **fields) as stream:
                texts, reasons, _, chunks = parts_of(stream)
            expect_equal(texts, {c.index: c.message.content for c in whole.choices})
            expect_equal(reasons, {c.index: c.finish_reason for c in whole.choices})
            expect_equal(chunks[0].object, "chat.completion.chunk")
            self.expect_frame([c.choices[0] for c in chunks if c.choices[0].index == 0])

    def expect_frame(self, choices):
        """A role first, then content, then nothing but the reason of the end."""
        first, *middle, last = choices
        expect_equal((first.delta.role, first.delta.content), ("assistant", ""))
        expect(all(c.delta.content and c.finish_reason is None for c in middle), f"{middle}")
        expect_equal((last.delta.content, last.delta.role), (None, None))
        expect(last.finish_reason, "no finish_reason")

    def check_stream_usage(self):
        """stream_options.include_usage adds one chunk without choices"""
        whole = self.chat()
        _, _, usage, chunks = parts_of(
            self.chat(stream=True, stream_options={"include_usage": True}))
        expect_equal(usage.to_dict() | {"prompt_tokens_details": None},
                     whole.usage.to_dict() | {"prompt_tokens_details": None})
        expect_equal([bool(c.usage) for c in chunks], [False] * (len(chunks) - 1) + [True])
        _, _, _, chunks = parts_of(self.chat(
            stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
        counts = [c.usage.completion_tokens for c in chunks]
        expect_equal((counts, counts[-1]), (sorted(counts), 12))

    def check_stream_helper(self):
        """the client's own chat.completions.stream puts an answer together"""
        stop = self.chat().choices[0].message.content[-2:]
        with self.client.chat.completions.stream(
                model="tiny", messages=[{"role": "user", "content": "hello"}], temperature=0,
                max_completion_tokens=12, stop=stop) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
        expect_equal("".join(deltas), final.choices[0].message.content)
        whole = self.chat(stop=stop).choices[0]
        expect_equal((final.choices[0].message.content, whole.finish_reason),
                     (whole.message.content, "stop"))

    def check_logprobs(self):
        """logprobs: the tokens' bytes make the content, the likeliest come first"""
        for fields in ({}, {"temperature": 1.8, "seed": 8, "max_completion_tokens": 60},
                       {"logit_bias": self.bias(**{"Ã©": 100})}):
            choice, = self.chat(logprobs=True, top_logprobs=4, **fields).choices
            content = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
            # A model that may reason has no blanks at the beginning of what it says.
            expect_equal(content.decode(errors="replace").strip(" \r\n\t�"),
                         choice.message.content.strip(" \r\n\t�"))
            for entry in choice.logprobs.content:
                numbers = [top.logprob for top in entry.top_logprobs]
                expect_equal((len(numbers), numbers), (4, sorted(numbers, reverse=True)))
                expect(entry.logprob <= numbers[0], f"{entry}")
                same = [t.logprob for t in entry.top_logprobs if t.bytes == entry.bytes]
                expect(not same or entry.logprob in same, f"{entry}")
        self.refused("top_logprobs", lambda: self.chat(top_logprobs=2))

    def check_stream_logprobs(self):
        """the chunks of a stream have the log-probabilities of their tokens"""
        wanted = self.chat(logprobs=True).choices[0].logprobs.content
        with self.chat(logprobs=True, stream=True) as stream:
            found = [entry for chunk in stream if chunk.choices[0].logprobs
                     for entry in chunk.choices[0].logprobs.content]
        expect_equal([entry.token for entry in found], [entry.token for entry in wanted])
        for one, other in zip(found, wanted):
            expect(abs(one.logprob - other.logprob) < 1e-4, f"{one} instead of {other}")

    def check_n(self):
        """n gives so many answers"""
        answer = self.chat(n=2, temperature=1.5, seed=1)
        expect_equal([choice.index for choice in answer.choices], [0, 1])
        expect_equal(len({choice.message.content for choice in answer.choices}), 2)
        expect_equal(answer.usage.completion_tokens, 24)

    def check_length(self):
        """max_completion_tokens goes before max_tokens; without them the context is the end"""
        expect_equal(self.chat(max_completion_tokens=3, max_tokens=9).usage.completion_tokens, 3)
        fields = {"max_completion_tokens": None, "extra_body": {"ignore_eos": True}}
        expect_equal(self.chat(max_tokens=9, **fields).usage.completion_tokens, 9)
        usage = self.chat(logit_bias=self.bias(A=100), **fields).usage
        expect_equal(usage.total_tokens, 1024)
        self.refused("messages", lambda: self.chat("a " * 2000), code="context_length_exceeded")

    def check_stop(self):
        """stop texts end an answer before them, in a stream too"""
        text = self.chat(max_completion_tokens=40).choices[0].message.content
        stop = [text[9:12], "no such text"]
        answer = self.chat(max_completion_tokens=40, stop=stop).choices[0]
        wanted = (text[:text.find(stop[0])], "stop")
        expect_equal((answer.message.content, answer.finish_reason), wanted)
        expect_equal(answer.stop_reason, stop[0])
        texts, reasons, _, _ = parts_of(
            self.chat(max_completion_tokens=40, stop=stop, stream=True))
        expect_equal((texts[0], reasons[0]), wanted)

    def check_turn_end(self):
        """the template's end of a turn ends an answer, and is not in its text"""
        choice, = self.chat(logit_bias=self.bias(**{"<|im_end|>": 100})).choices
        expect_equal((choice.message.content, choice.finish_reason), ("", "stop"))

    def check_logit_bias(self):
        """logit_bias forces a token, and forbids one"""
        expect_equal(self.chat(logit_bias=self.bias(A=100)).choices[0].message.content, "A" * 12)
        first = self.chat(logprobs=True).choices[0].logprobs.content[0]
        token, = self.ids(first.token)
        biased = self.chat(logit_bias={str(token): -100}, logprobs=True)
        expect(biased.choices[0].logprobs.content[0].token != first.token, "not forbidden")

    def check_penalties(self):
        """presence and frequency penalties decide every greedy token as defined"""
        bias = self.bias(A=100, B=99, C=98.5)
        for presence, frequency in ((2, 0), (0, 2), (-2, 0), (1.5, 0.75), (0, -1)):
            choice, = self.chat(logprobs=True, top_logprobs=20, presence_penalty=presence,
                                frequency_penalty=frequency, max_completion_tokens=30).choices
            counts = {}
            for entry in choice.logprobs.content:
                def value(token):
                    count = counts.get(bytes(token.bytes), 0)
                    return token.logprob - presence * (count > 0) - frequency * count
                best = max(map(value, entry.top_logprobs))
                expect(value(entry) > best - 1e-4, f"{presence} {frequency}: {entry.token!r}")
                counts[bytes(entry.bytes)] = counts.get(bytes(entry.bytes), 0) + 1
        text = self.chat(logit_bias=bias, frequency_penalty=2,
                         max_completion_tokens=30).choices[0].message.content
        expect_equal(set(text), set("ABC"))

    def check_seed(self):
        """a seed repeats an answer"""
        def sample(seed):
            return self.chat(temperature=1.5, seed=seed).choices[0].message.content
        expect_equal(sample(2 ** 62), sample(2 ** 62))
        expect(sample(1) != sample(2), "seeds 1 and 2 say the same")

    def check_response_format(self):
        """text is the only response_format; others are refused by name"""
        expect(self.chat(response_format={"type": "text"}).choices, "no choices")
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
        for each in ({"type": "json_object"}, schema):
            self.refused("response_format", lambda: self.chat(response_format=each),
                         code="unsupported_parameter")

    def check_tools(self):
        """tools are refused by name"""
        function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
        tools = [{"type": "function", "function": function}]
        self.refused("tools", lambda: self.chat(tools=tools), code="unsupported_parameter")
        self.refused("functions", lambda: self.chat(functions=[function]),
                     code="unsupported_parameter")
        self.refused("tool_choice", lambda: self.chat(tool_choice="required"),
                     code="unsupported_parameter")
        expect(self.chat(tool_choice="none").choices, "no choices")

    def check_tool_messages(self):
        """a conversation with tool calls can go on"""
        call = {"id": "call_1", "type": "function",
                "function": {"name": "f", "arguments": "{\"x\": 1}"}}
        answer = self.ask_ids([
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "call_1"}])
        expect_equal(self.prompt_of(answer),
                     rendered(("user", "u"), ("assistant", ""), ("tool", "2")))

    def check_ignored(self):
        """fields about OpenAI's service change nothing"""
        same = self.chat(user="me", metadata={"a": "b"}, store=False, service_tier="auto",
                         modalities=["text"], parallel_tool_calls=None, safety_identifier="x",
                         verbosity="low", reasoning_effort="low")
        expect_equal(same.choices[0].message.content, self.chat().choices[0].message.content)
        self.refused("modalities", lambda: self.chat(modalities=["text", "audio"]),
                     code="unsupported_parameter")
        self.refused("reasoning_effort", lambda: self.chat(reasoning_effort="colossal"))

    def think(self, seed, **fields):
        return self.chat(
            temperature=1, seed=seed, max_completion_tokens=40,
            logit_bias=self.bias(**{"</think>": 8.0}), **fields,
            extra_body={"chat_template_kwargs": {"enable_thinking": True},
                        "return_token_ids": True, "skip_special_tokens": False})

    def check_reasoning(self):
        """what a model thinks is apart from what it says, in a stream too"""
        both = 0
        for seed in range(8):
            answer = self.think(seed)
            message = answer.choices[0].message
            expect(self.prompt_of(answer).endswith("<think>\n"), "the prompt does not think")
            thought, _, said = self.text(answer.choices[0].token_ids).partition("</think>")
            expect_equal(message.content, said.lstrip(), f"seed {seed}")
            expect_equal(getattr(message, "reasoning", None) or "", thought.lstrip())
            expect_equal(getattr(message, "reasoning_content", None),
                         getattr(message, "reasoning", None))
            counted = answer.usage.completion_tokens_details.reasoning_tokens
            expect(counted > 0 or not thought, f"{counted} tokens of {thought!r}")
            both += bool(thought and said)
            self.expect_same_stream(seed, message)
        expect(both > 0, "no answer has reasoning and content")

    def expect_same_stream(self, seed, message):
        with self.think(seed, stream=True) as stream:
            deltas = [chunk.choices[0].delta for chunk in stream]
        for name in ("content", "reasoning", "reasoning_content"):
            streamed = "".join(getattr(delta, name, None) or "" for delta in deltas)
            expect_equal(streamed, getattr(message, name, None) or "", f"streamed {name}")

    def check_hidden_reasoning(self):
        """include_reasoning false leaves reasoning out"""
        answer = self.chat(extra_body={"chat_template_kwargs": {"enable_thinking": True},
                                       "include_reasoning": False})
        expect("reasoning" not in answer.choices[0].message.to_dict(), f"{answer.choices[0]}")

    def check_continue(self):
        """continue_final_message goes on in the last message"""
        messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "The lic"}]
        fields = {"continue_final_message": True, "add_generation_prompt": False,
                  "return_token_ids": True}
        answer = self.chat(messages=messages, extra_body=fields)
        expect_equal(self.prompt_of(answer),
                     rendered(("user", "u"), begin="<|im_start|>assistant\nThe lic"))
        echoed = self.chat(messages=messages, extra_body=fields | {"echo": True})
        expect_equal(echoed.choices[0].message.content,
                     "The lic" + answer.choices[0].message.content)
        blank = self.chat(messages=messages, extra_body=fields,
                          logit_bias=self.bias(**{"Ġthe": 100}))
        expect_equal(blank.choices[0].message.content, " the" * 12)
        fields["add_generation_prompt"] = True
        self.refused("continue_final_message",
                     lambda: self.chat(messages=messages, extra_body=fields))

    def check_no_generation_prompt(self):
        """add_generation_prompt false leaves the prompt at the end of the turn"""
        answer = self.chat("u", extra_body={"add_generation_prompt": False,
                                            "return_token_ids": True})
        expect_equal(self.prompt_of(answer), rendered(("user", "u"), begin=""))

    def check_own_template(self):
        """templates of requests need the server's consent"""
        fields = {"chat_template": "{{ messages[0].content }}!", "return_token_ids": True}
        self.refused("chat_template", lambda: self.chat("u", extra_body=fields),
                     code="unsupported_parameter")
        server = self.start("--trust-request-chat-template")
        answer = self.chat("u", client=self.client_of(server), extra_body=fields)
        expect_equal(self.prompt_of(answer), "u!")

    def check_embeddings(self):
        """embeddings in the client's base64 are those in numbers, of length 1"""
        texts = ["The work", "any Licensor"]
        packed = self.client.embeddings.create(model="tiny", input=texts)
        plain = self.client.embeddings.create(model="tiny", input=texts, encoding_format="float")
        expect_equal([each.index for each in packed.data], [0, 1])
        expect(packed.data[0].embedding != packed.data[1].embedding, "equal vectors")
        for one, other in zip(packed.data, plain.data):
            expect_equal((len(one.embedding), len(other.embedding)), (64, 64))
            expect(all(abs(x - y) < 1e-6 for x, y in zip(one.embedding, other.embedding)), "")
            expect(abs(math.hypot(*one.embedding) - 1) < 1e-5, "its length is not 1")
        count = sum(len(self.ids(text, special=True)) for text in texts)
        expect_equal((packed.usage.prompt_tokens, packed.usage.total_tokens), (count, count))
        ids = self.client.embeddings.create(
            model="tiny", input=[self.ids(text, special=True) for text in texts])
        expect_equal([e.embedding for e in ids.data], [e.embedding for e in packed.data])
        one = self.client.embeddings.create(model="tiny", input=texts[0], dimensions=64)
        expect(max(abs(x - y) for x, y in zip(one.data[0].embedding, packed.data[0].embedding))
               < 1e-5, "one text has another vector")

    def check_bad_embeddings(self):
        """bad inputs of embeddings are refused by name"""
        def embed(**fields):
            return self.client.embeddings.create(**{"model": "tiny", "input": "a", **fields})
        for value in ("", [], [[]], [5, "a"], [99999], {"a": 1}, ["a"] * 2049):
            if value != "":
                self.refused("input", lambda: embed(input=value))
        self.refused("dimensions", lambda: embed(dimensions=32))
        self.refused("encoding_format", lambda: embed(encoding_format="octal"))
        self.refused("input", lambda: embed(input="a " * 3000), code="context_length_exceeded")
