"""The asynchronous client, concurrent streams, and streams that the caller leaves."""
import asyncio
import ssl

import openai

from harness import expect, expect_equal, wait_until
from openai_suite import OpenAISuite

RUNNING, WAITING = "bevatron:num_requests_running", "bevatron:num_requests_waiting"
ENDED = "bevatron:request_success_total"
ENDLESS = {"extra_body": {"ignore_eos": True}}


class Streams(OpenAISuite):
    flags = ("--max-seqs", "8")

    def run_async(self, use):
        """Runs use(client) with an asynchronous client."""
        async def main():
            async with openai.AsyncOpenAI(base_url=self.url + "/v1", api_key="none",
                                          max_retries=0) as client:
                return await use(client)
        return asyncio.run(main())

    def check_async(self):
        """the asynchronous client gets the answers of the other one"""
        async def use(client):
            answer = await client.completions.create(model="tiny", prompt="The work",
                                                     max_tokens=12, temperature=0)
            models = [model.id async for model in client.models.list()]
            return models, answer.choices[0].text
        expect_equal(self.run_async(use), (["tiny"], self.complete().choices[0].text))

    def check_async_streams(self):
        """24 asynchronous streams at a time, more than run together, say what each says alone"""
        async def read(client, seed):
            parts = []
            async with await client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": f"number {seed}"}],
                    seed=seed, temperature=1.2, max_completion_tokens=30, stream=True) as stream:
                async for chunk in stream:
                    parts.append(chunk.choices[0].delta.content or "")
            return "".join(parts)

        async def use(client):
            return await asyncio.gather(*(read(client, seed) for seed in range(24)))
        texts = self.run_async(use)
        alone = [self.chat(f"number {seed}", seed=seed, temperature=1.2,
                           max_completion_tokens=30).choices[0].message.content
                 for seed in range(24)]
        expect_equal(texts, alone)

    def aborted(self):
        return self.metrics().value(ENDED, finished_reason="abort")

    def expect_cancelled(self, before):
        """Soon nothing is under way, and what was counts as aborted."""
        wait_until("nothing runs or waits", lambda: all(
            self.metrics().value(name) == 0 for name in (RUNNING, WAITING)), seconds=2)
        expect(self.aborted() > before, "nothing counts as aborted")
        expect_equal(self.metrics().value("bevatron:kv_cache_blocks_used"), 0, "blocks in use")

    def check_left_stream(self):
        """a stream comes while it is being computed, and is cancelled when its caller leaves"""
        before = self.aborted()
        with self.complete(["A"] * 40, stream=True, max_tokens=1000, **ENDLESS) as stream:
            next(stream)
            expect(self.metrics().value(RUNNING) > 0, "all is done before the first chunk")
        self.expect_cancelled(before)

    def check_left_async_stream(self):
        """so is an asynchronous one, whose task is cancelled"""
        before = self.aborted()

        async def read(client, began):
            async with await client.completions.create(
                    model="tiny", prompt=["A"] * 40, max_tokens=1000, stream=True,
                    **ENDLESS) as stream:
                async for _ in stream:
                    began.set()

        async def use(client):
            began = asyncio.Event()
            task = asyncio.create_task(read(client, began))
            await began.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.run_async(use)
        self.expect_cancelled(before)

    def check_raw_stream(self):
        """with_streaming_response reads lines as they come"""
        with self.client.completions.with_streaming_response.create(
                model="tiny", prompt="The work", max_tokens=3, stream=True) as answer:
            lines = [line for line in answer.iter_lines() if line]
        expect_equal(lines[-1], "data: [DONE]")
        expect(all(line.startswith("data: {") for line in lines[:-1]), f"{lines}")

    def check_tls(self):
        """the client speaks TLS with a certificate that it trusts"""
        certificate, key = self.place.certificate()
        server = self.start("--tls-cert", certificate, "--tls-key", key)
        expect(server.url.startswith("https://"), server.url)
        trusted = ssl.create_default_context(cafile=certificate)
        http = openai.DefaultHttpxClient(verify=trusted)
        with self.client_of(server, http_client=http) as client:
            with self.complete(client=client, stream=True) as stream:
                text = "".join(chunk.choices[0].text for chunk in stream)
        expect_equal(text, self.complete().choices[0].text)
