"""What the suites of the official client share."""
import math

import openai

from harness import expect, expect_equal, raises
from suites import ServerSuite

END = "<|endoftext|>"


class OpenAISuite(ServerSuite):
    def open(self):
        super().open()
        self.client = self.client_of(self.server)

    def client_of(self, server, key="none", **settings):
        settings = {"max_retries": 0, **settings}
        return openai.OpenAI(base_url=server.url + "/v1", api_key=key, **settings)

    def complete(self, prompt="The work", client=None, **fields):
        fields = {"model": "tiny", "max_tokens": 12, "temperature": 0, **fields}
        return (client or self.client).completions.create(prompt=prompt, **fields)

    def chat(self, text="hello", client=None, **fields):
        fields = {"model": "tiny", "max_completion_tokens": 12, "temperature": 0,
                  "messages": [{"role": "user", "content": text}], **fields}
        return (client or self.client).chat.completions.create(**fields)

    def post(self, path, body, client=None):
        """A route that the client has no method for."""
        return (client or self.client.with_options(base_url=self.url)).post(
            path, body=body, cast_to=object)

    def ids(self, text, special=False):
        return self.post("/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"]

    def text(self, ids):
        return self.post("/detokenize", {"tokens": ids})["prompt"]

    def token(self, text):
        return self.place.model.ids[text]

    def bias(self, **by_text):
        """logit_bias by the texts of tokens."""
        return {str(self.token(text)): value for text, value in by_text.items()}

    def refused(self, param, call, code="invalid_value"):
        error = raises(openai.BadRequestError, call)
        expect_equal((error.param, error.code), (param, code), error.message)
        expect(code != "invalid_value" or param in error.message, error.message)
        return error


def score(logprobs):
    return math.fsum(logprobs) / len(logprobs)


def parts_of(stream):
    """Texts by the index of choices, the reasons of their ends, usage, and all chunks."""
    chunks = list(stream)
    texts, reasons, usage = {}, {}, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = getattr(choice, "delta", None)
            text = (delta.content or "") if delta else choice.text
            texts[choice.index] = texts.get(choice.index, "") + text
            if choice.finish_reason:
                expect(choice.index not in reasons, "a choice ends twice")
                reasons[choice.index] = choice.finish_reason
    expect_equal(len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}), 1,
                 "id, created and object of all chunks")
    return texts, reasons, usage, chunks
