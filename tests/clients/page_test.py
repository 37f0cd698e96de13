#!/usr/bin/env python3
"""page_test.py URL [--screenshots FOLDER] [--only NAME]: the chat page of a running server in a browser.

Drives headless Chromium through chromedriver with the standard library alone. Nothing depends on what
the model says: answers of the server are checked by their structure, and what a page makes of a text,
of an error or of a lost connection by answers that the test puts in the server's place. Prints one
line for each check; exits with 1 if one fails."""
import argparse
import base64
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Tab": "\ue004", "Escape": "\ue00c", "Shift": "\ue008", "Control": "\ue009",
        "Right": "\ue014", "Left": "\ue012"}

# Runs in the page before its own script: notes requests, and answers in the server's place if told to.
WRAPPER = """
window.seen = [];
window.scripted = null;
const plainFetch = window.fetch;
window.fetch = (url, init = {}) => {
  const call = { url: String(url), body: init.body ? JSON.parse(init.body) : null, aborted: false };
  seen.push(call);
  init.signal?.addEventListener("abort", () => { call.aborted = true; });
  const script = window.scripted;
  if (!script || !call.url.includes("completions")) {
    if (window.unplugged) return Promise.reject(new TypeError("Failed to fetch"));
    return plainFetch(url, init);
  }
  if (script.fails) return Promise.reject(new TypeError("Failed to fetch"));
  if (script.status) {
    return Promise.resolve(new Response(JSON.stringify(script.body), { status: script.status }));
  }
  const bytes = new TextEncoder().encode(script.events.map((event) =>
      `data: ${typeof event === "string" ? event : JSON.stringify(event)}\\r\\n\\r\\n`).join(""));
  // In pieces of 7 bytes, which cut through lines and characters.
  let at = 0;
  return Promise.resolve(new Response(new ReadableStream({
    start(controller) {
      init.signal?.addEventListener("abort", () =>
          controller.error(new DOMException("aborted", "AbortError")));
    },
    async pull(controller) {
      if (at < bytes.length) controller.enqueue(bytes.slice(at, at += 7));
      else if (script.hangs) await new Promise(() => {});
      else controller.close();
    },
  }), { headers: { "Content-Type": "text/event-stream" } }));
};
"""


class Failure(Exception):
    pass


def call(method, url, body=None, timeout=60):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        value = json.load(error)["value"]
        raise Failure(f"{value['error']}: {value['message'].splitlines()[0]}") from None


class Browser:
    def __init__(self, folder):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
        self.session = None
        try:
            for line in self.driver.stdout:
                if match := re.search(r"started successfully on port (\d+)", line):
                    break
            else:
                raise Failure("chromedriver did not start")
            address = f"http://127.0.0.1:{match[1]}"
            options = {"args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                                "--force-color-profile=srgb", f"--user-data-dir={folder}/profile"],
                       "prefs": {"download.default_directory": f"{folder}/downloads",
                                 "download.prompt_for_download": False}}
            session = call("POST", f"{address}/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}}, timeout=120)
            self.session = f"{address}/session/{session['sessionId']}"
            self.devtools("Page.addScriptToEvaluateOnNewDocument", source=WRAPPER)
        except BaseException:
            self.close()
            raise

    def close(self):
        try:
            if self.session:
                call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(10)

    def post(self, path, **body):
        return call("POST", f"{self.session}/{path}", body)

    def devtools(self, command, **params):
        return self.post("goog/cdp/execute", cmd=command, params=params)

    def open(self, url):
        self.post("url", url=url)

    def run(self, script, *args):
        return self.post("execute/sync", script=script, args=args)

    def wait(self, what, script, *args, seconds=30):
        """The value of the script once it is true."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.run(script, *args)
            if value:
                return value
            if time.monotonic() > deadline:
                raise Failure(f"not within {seconds} s: {what}")
            time.sleep(0.03)

    def find(self, selector):
        return self.post("element", using="css selector", value=selector)[ELEMENT]

    def click(self, selector):
        self.post(f"element/{self.find(selector)}/click")

    def type(self, selector, text):
        self.post(f"element/{self.find(selector)}/value", text=text)

    def press(self, *keys):
        """Presses keys on what has the focus; the keys before the last are held."""
        keys = [KEYS.get(key, key) for key in keys]
        downs = [{"type": "keyDown", "value": key} for key in keys]
        ups = [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.post("actions", actions=[{"type": "key", "id": "keys", "actions": downs + ups}])

    def hover(self, element):
        self.post("actions", actions=[{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
                                       "actions": [{"type": "pointerMove", "duration": 0, "x": 0, "y": 0,
                                                    "origin": {ELEMENT: element}}]}])

    def size(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                      mobile=False)

    def prefer(self, **features):
        self.devtools("Emulation.setEmulatedMedia", features=[
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def log(self):
        return self.post("se/log", type="browser")


def expect(condition, message):
    if not condition:
        raise Failure(message)


def chunk(**delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def token(name, p, *others, data=None):
    """A token of `logprobs.content` with the probabilities of others."""
    def entry(text, probability, raw=None):
        return {"token": text, "bytes": list(raw if raw else text.encode()), "logprob": math.log(probability)}
    top = [entry(name, p, data)] + [entry(text, probability) for text, probability in others]
    return {**entry(name, p, data), "top_logprobs": sorted(top, key=lambda one: -one["logprob"])}


def with_tokens(text, *tokens):
    event = chunk(content=text)
    event["choices"][0]["logprobs"] = {"content": list(tokens)}
    return event


END = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
       {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7}}, "[DONE]"]

MARKDOWN = """# Title

A **bold** word, *another*, `in code <b>`, snake_case_name and 2 * 3 * 4.
Second line with [a link](https://example.org/a) and [a trap](javascript:alert(1)), <img src=x onerror=alert(1)>.

- one
- two
  1. inner
  2. other

| a | b |
|---|--:|
| `1 2` | **x** |

```python
def f(x):
    return x  # **not bold**

```

> quoted

Last 🦊 日本."""


class PageTest:
    def __init__(self, browser, url, screenshots):
        self.browser, self.url, self.screenshots = browser, url, screenshots
        self.server_mode = "chat"

    # -- What the checks have in common ---------------------------------------------------------

    def load(self):
        self.browser.open(self.url)
        self.ready()

    def ready(self):
        self.browser.wait("the page is ready", "return document.body?.dataset.ready !== undefined")
        self.browser.wait("the model's name", "return modelName() || ''")

    def picture(self, name):
        if self.screenshots:
            data = call("GET", f"{self.browser.session}/screenshot")
            (self.screenshots / f"{name}.png").write_bytes(base64.b64decode(data))

    def begin(self, mode=None):
        self.browser.run("window.scripted = null; byId('new').click(); arguments[0] && changeMode(arguments[0])",
                         mode or self.server_mode)
        self.browser.wait("an empty conversation", "return !document.querySelector('.message')")

    def settle(self, **settings):
        """Sets fields of the settings as a user's input does."""
        for name, value in settings.items():
            self.browser.run("const f = byId(arguments[0]); f.value = arguments[1]; f.dispatchEvent(new Event('input'))",
                             f"set-{name}", value)

    def probabilities(self, on):
        self.browser.run("if (byId('probabilities').checked !== arguments[0]) byId('probabilities').click()", on)

    def send(self, text):
        self.browser.type("#input", text)
        self.browser.press("Enter")

    def answered(self, seconds=90):
        return self.browser.wait("the answer is complete", """
            const last = [...document.querySelectorAll('.assistant')].at(-1);
            return last && last.getAttribute('aria-busy') === 'false' && !running.size""", seconds=seconds)

    def ask(self, text):
        """Sends to the server; takes raw completion if it has no chat template."""
        self.send(text)
        self.answered()
        if self.browser.run("return [...document.querySelectorAll('.trouble button')].some(b => /raw/i.test(b.textContent))"):
            self.browser.run("[...document.querySelectorAll('.trouble button')].find(b => /raw/i.test(b.textContent)).click()")
            self.server_mode = "completion"
            self.answered()
        trouble = self.browser.run("return document.querySelector('.trouble:not([hidden])')?.textContent")
        expect(not trouble, f"the server says: {trouble}")

    def play(self, events, text="hello", **script):
        """A scripted answer in a new chat."""
        self.begin("chat")
        self.browser.run("window.scripted = arguments[0]", {"events": events, **script})
        self.send(text)

    def last_request(self):
        return self.browser.run("return seen.filter(c => c.url.includes('completions')).at(-1).body")

    def trouble(self):
        return self.browser.wait("an error is shown",
                                 "return document.querySelector('.trouble:not([hidden]) p')?.textContent")

    # -- Checks, in this order ------------------------------------------------------------------

    def check_loads(self):
        """the page loads with the model's name"""
        self.browser.size(1280, 800)
        self.load()
        expect(self.browser.run("return document.activeElement.id") == "input", "the message field has no focus")
        self.picture("empty")

    def check_streams(self):
        """an answer arrives in steps"""
        for tokens in (64, 256, 512):
            self.begin()
            self.settle(max_tokens=tokens)
            self.browser.run("""window.steps = new Set();
                new MutationObserver(() => {
                  const text = document.querySelector('.assistant > .text')?.textContent;
                  if (text) steps.add(text.length);
                }).observe(byId('messages'), {childList: true, subtree: true, characterData: true})""")
            self.ask("Tell me about foxes.")
            if self.browser.run("return steps.size") >= 2:
                break
        else:
            raise Failure("the whole answer came at once")
        expect(self.browser.run("return document.querySelector('.assistant .foot').textContent.includes('token')"),
               "no numbers below the answer")

    def check_shift_enter(self):
        """Shift+Enter breaks the line, Enter sends"""
        self.begin("chat")
        self.browser.type("#input", "one")
        self.browser.press("Shift", "Enter")
        self.browser.type("#input", "two")
        expect(self.browser.run("return byId('input').value") == "one\ntwo", "no line break")
        self.browser.run("window.scripted = {events: arguments[0]}", [chunk(content="yes")] + END)
        self.browser.press("Enter")
        self.answered()
        expect(self.last_request()["messages"][-1]["content"] == "one\ntwo", "the line break was not sent")

    def check_stop(self):
        """Esc stops: the request is closed, the part stays"""
        self.play([chunk(content="A part"), chunk(content=" of it")], hangs=True)
        self.browser.wait("the part", "return document.querySelector('.assistant > .text p')?.textContent === 'A part of it'")
        expect(self.browser.run("return byId('send').hidden && !byId('stop').hidden"), "no stop button")
        self.browser.press("Escape")
        self.answered()
        expect(self.browser.run("return seen.filter(c => c.url.includes('completions')).at(-1).aborted"), "still open")
        expect(self.browser.run("return document.querySelector('.assistant > .text p').textContent") == "A part of it",
               "the part is gone")
        expect("stopped" in self.browser.run("return document.querySelector('.assistant .foot').textContent"), "not said")

    def check_stop_button(self):
        """the stop button ends the server's work"""
        self.settle(max_tokens=800)
        self.probabilities(True)  # it takes longer
        for _ in range(10):
            self.begin()
            self.browser.run("""window.stopped = false;
                new MutationObserver((_, observer) => {
                  if (!document.querySelector('.assistant > .text')?.textContent) return;
                  observer.disconnect();
                  window.stopped = !byId('stop').hidden;
                  byId('stop').click();
                }).observe(byId('messages'), {childList: true, subtree: true})""")
            self.send("A long one, please.")
            self.answered()
            if self.browser.run("return window.stopped && document.querySelector('.assistant > .text').textContent"):
                break
        else:
            raise Failure("no answer could be stopped on its way")
        self.probabilities(False)
        expect(self.browser.run("return seen.filter(c => c.url.includes('completions')).at(-1).aborted"), "still open")
        self.browser.wait("no request runs on the server", "return byId('stat-running').textContent === '0'")

    def check_settings(self):
        """settings reach the request, and are kept"""
        values = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 3, "seed": 7,
                  "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
        self.browser.click("#open-settings")
        self.settle(**values)
        self.browser.type("#system", "Be brief.")
        self.browser.type("#stop-texts", "END\n\\n\\n")
        self.picture("settings")
        self.browser.run("location.reload()")
        self.ready()
        expect(self.browser.run("return byId('set-top_k').value + byId('system').value") == "40Be brief.",
               "a reload loses them")
        self.begin()
        self.ask("Hello")
        count = self.browser.run("return Number(/\\d+/.exec(document.querySelector('.assistant .foot').textContent)[0])")
        expect(1 <= count <= 3, f"{count} tokens where 3 are the most")
        self.play([chunk(content="yes")] + END)
        self.answered()
        sent = self.last_request()
        values["max_completion_tokens"] = values.pop("max_tokens")
        for name, value in values.items():
            expect(sent.get(name) == value, f"{name}: {sent.get(name)} was sent")
        expect(sent["stop"] == ["END", "\n\n"], f"stop: {sent['stop']}")
        expect(sent["messages"][0] == {"role": "system", "content": "Be brief."}, "no system prompt")
        expect("logprobs" not in sent, "probabilities without being asked")
        self.browser.run("byId('reset').click()")
        self.play([chunk(content="yes")] + END)
        self.answered()
        expect(set(self.last_request()) == {"model", "messages", "stream", "stream_options"}, "reset leaves something")

    def shown_rows(self):
        return self.browser.wait("the card of probabilities", """
            return !byId('card').hidden && [...byId('card').querySelectorAll('ol:first-of-type li')].map(row =>
              ({p: Number(row.dataset.p), width: parseFloat(getComputedStyle(row.querySelector('.bar')).backgroundSize),
                chosen: row.className}))""")

    def check_probabilities(self):
        """hover and focus show a token's probabilities"""
        self.settle(max_tokens=24)
        self.probabilities(True)
        self.begin()
        self.ask("Say something.")
        self.browser.wait("tokens are marked", "return document.querySelector('.assistant .token')")
        spans = self.browser.run("return [...document.querySelectorAll('.assistant .token')].filter(t => "
                                 "t.textContent.trim() && t.getClientRects().length === 1).slice(0, 5)")
        expect(spans, "no token can be seen")
        for span in spans:
            self.browser.hover(span[ELEMENT])
            rows = self.shown_rows()
            expect(1 <= len(rows) <= 6, f"{len(rows)} rows")
            expect(sum(row["p"] for row in rows) <= 1.001, f"probabilities above 1: {rows}")
            expect(sum(row["chosen"] == "chosen" for row in rows) >= 1, f"the chosen token is not marked: {rows}")
        self.picture("probabilities")
        self.browser.run("window.tokens = document.querySelectorAll('.assistant .token'); tokens[0].focus()")
        self.browser.press("Right")
        expect(self.browser.run("return document.activeElement === (tokens[1] ?? tokens[0])"), "the arrow key does not move")
        self.shown_rows()
        self.browser.press("Escape")
        self.browser.wait("the card is closed", "return byId('card').hidden")
        self.probabilities(False)

    def check_token_alignment(self):
        """tokens lie on their text, also where a character has several"""
        fox = "🦊".encode()
        events = [with_tokens("Hi", token("Hi", 0.5, ("Ho", 0.25))),
                  with_tokens(" **you**", token(" **", 0.9), token("you", 0.08), token("**", 0.9)),
                  with_tokens("", token("\ufffd", 0.4, data=fox[:3])),
                  with_tokens("🦊", token("\ufffd", 0.3, data=fox[3:])),
                  with_tokens("!", token("!", 0.2)),
                  with_tokens("", token("<|end|>", 0.99))] + END
        self.probabilities(True)
        self.play(events)
        self.answered()
        self.probabilities(False)
        sent = self.last_request()
        expect(sent["logprobs"] is True and sent["top_logprobs"] == 5, "not asked for")
        spans = self.browser.run("return [...document.querySelectorAll('.token')].map(t => [t.textContent, t.dataset.token])")
        expect(spans == [["Hi", "0"], [" ", "1"], ["you", "2"], ["🦊", "4"], ["!", "6"]], f"{spans}")
        self.browser.run("document.querySelectorAll('.token')[3].focus()")
        names = self.browser.run("return [...byId('card').querySelectorAll('b')].map(b => b.textContent)")
        expect(names == ["‹f0\u00a09f\u00a0a6›", "‹8a›"], f"{names}")

    def check_markdown(self):
        """markdown becomes elements, and nothing else of the text does"""
        self.play([chunk(content=MARKDOWN[i:i + 3]) for i in range(0, len(MARKDOWN), 3)] + END)
        self.answered()
        shape = self.browser.run("""const text = document.querySelector('.assistant > .text');
            const all = (s) => [...text.querySelectorAll(s)].map(n => n.textContent);
            return {tags: [...text.children].map(n => n.localName), bold: all('p strong'), slanted: all('em'),
                    code: all('p code'), links: [...text.querySelectorAll('a')].map(a => [a.href, a.rel, a.textContent]),
                    items: all('li li'), block: all('pre'), bad: text.querySelectorAll('img, script').length,
                    handlers: [...text.querySelectorAll('*')].filter(n => n.getAttributeNames().some(a => /^on|^style/.test(a))).length}""")
        self.picture("markdown")
        expect(shape["tags"] == ["h2", "p", "ul", "pre", "div", "blockquote", "p"], f"blocks: {shape['tags']}")
        expect(shape["bold"] == ["bold"] and shape["slanted"] == ["another"], f"{shape}")
        expect(shape["code"] == ["in code <b>"], f"{shape['code']}")
        expect(shape["links"] == [["https://example.org/a", "noopener noreferrer", "a link"]], f"{shape['links']}")
        expect(shape["items"] == ["inner", "other"], f"{shape['items']}")
        expect(shape["block"] == ["| a | b |\n|---|--:|\n| `1 2` | **x** |", "def f(x):\n    return x  # **not bold**\n"], f"{shape['block']}")
        expect(not shape["bad"] and not shape["handlers"], "the text made elements")
        self.browser.run("[...document.querySelectorAll('.assistant .foot button')].at(-1).click()")
        expect(self.browser.run("return document.querySelector('.assistant > .text').textContent") == MARKDOWN,
               "the plain text is not what was sent")

    def check_hostile_markdown(self):
        """text made to be slow or deep does no harm"""
        for text in ("*" * 4000 + "a", ">" * 4000, "[" * 4000, "- " * 3000, "`a" * 2000, "**a " * 1500,
                     "|" * 3000 + "\n" + "|-" * 1500 + "|", "_a" * 3000, "http://" * 500):
            self.play([chunk(content=text)] + END)
            self.answered(seconds=20)
            expect(self.browser.run("return document.querySelector('.assistant > .text').childNodes.length"),
                   f"nothing is shown of {text[:8]}")

    def check_reasoning(self):
        """reasoning folds away"""
        for name in ("reasoning_content", "reasoning"):
            self.play([chunk(**{name: "First *this*"}), chunk(**{name: ", then that."}), chunk(content="So."), *END])
            self.answered()
            state = self.browser.run("""const box = document.querySelector('details');
                const was = box.open; box.querySelector('summary').click();
                return [was, box.open, box.querySelector('.reasoning').textContent,
                        document.querySelector('.assistant > .text').textContent]""")
            expect(state == [False, True, "First this, then that.", "So."], f"{state}")
        self.picture("reasoning")

    def check_server_error(self):
        """a refusal is shown with a retry"""
        self.play([], status=400, body={"error": {"message": "top_p must be at most 1", "type": "invalid_request_error",
                                                  "param": "top_p", "code": None}})
        expect(self.trouble() == "top_p must be at most 1", "another text")
        self.picture("error")
        self.browser.run("window.scripted = {events: arguments[0]}", [chunk(content="now")] + END)
        self.browser.click(".trouble button")
        self.browser.wait("the second answer", "return document.querySelector('.assistant > .text')?.textContent === 'now'")
        expect(self.browser.run("return document.querySelectorAll('.message').length") == 2, "more messages than two")

    def check_stream_error(self):
        """an error or a cut within a stream leaves the part"""
        for events, said in (([{"error": {"message": "shutting down"}}], "shutting down"), ([], "connection was lost")):
            self.play([chunk(content="A part"), *events])
            expect(said in self.trouble(), "another text")
            self.answered()
            expect(self.browser.run("return document.querySelector('.assistant > .text').textContent") == "A part", "the part is gone")

    def check_unreachable(self):
        """a lost connection is shown, and found again"""
        self.play([], fails=True)
        expect("cannot be reached" in self.trouble(), "another text")
        self.browser.run("window.unplugged = true")
        self.browser.wait("the notice", "return !byId('offline').hidden")
        self.picture("offline")
        self.browser.run("window.unplugged = false")
        self.browser.wait("the notice goes", "return byId('offline').hidden")

    def check_no_template(self):
        """a model without a chat template leads to raw completion"""
        self.play([], status=400, body={"error": {"message": "messages: none for this model",
                                                  "code": "no_chat_template"}})
        self.trouble()
        self.browser.run("window.scripted = {events: arguments[0]}",
                         [{"choices": [{"text": " there", "logprobs": None}]}, {"choices": [{"text": " was", "finish_reason": "stop"}]}, "[DONE]"])
        self.picture("no_template")
        self.browser.click(".trouble button")
        self.browser.wait("the text goes on", "return document.querySelector('.assistant > .text')?.textContent === ' there was'")
        expect(self.last_request()["prompt"] == "hello", "another prompt")
        self.answered()
        self.browser.press("Enter")  # an empty text lets it go on
        self.browser.wait("a third part", "return document.querySelectorAll('.message').length === 3 && !running.size")
        expect(self.last_request()["prompt"] == "hello there was", "another prompt")
        self.browser.run("modelsWithoutTemplate.clear()")

    def check_completion(self):
        """raw completion of the server, with probabilities"""
        self.settle(max_tokens=16)
        self.probabilities(True)
        self.begin("completion")
        self.ask("Once upon a time")
        self.probabilities(False)
        self.browser.wait("tokens are marked", "return document.querySelector('.assistant .token')")
        self.browser.run("document.querySelector('.assistant .token').focus()")
        rows = self.shown_rows()
        expect(sum(row["p"] for row in rows) <= 1.001, f"probabilities above 1: {rows}")
        self.picture("completion")

    def check_edit(self):
        """edit and send again, another answer, undo"""
        self.play([chunk(content="first")] + END, text="old question")
        self.answered()
        self.browser.run("window.scripted = {events: arguments[0]}; document.querySelector('.user .foot button:last-child').click()",
                         [chunk(content="second")] + END)
        self.browser.run("const a = document.querySelector('.edit textarea'); a.value = 'new question'")
        self.browser.press("Enter")
        texts = "return [...document.querySelectorAll('.message > .text')].map(t => t.textContent).join('|')"
        self.browser.wait("the new answer", f"return (() => {{ {texts} }})() === 'new question|second' && !running.size")
        expect([m["content"] for m in self.last_request()["messages"]] == ["new question"], "other messages were sent")
        self.browser.run("[...document.querySelectorAll('.assistant .foot button')][1].click()")
        self.browser.wait("another answer", f"return (() => {{ {texts} }})() === 'new question|second' && !running.size")
        self.browser.click("#toast button")
        expect(self.browser.run(texts) == "new question|second", "undo lost something")

    def check_history(self):
        """conversations survive a reload; rename, export, delete, undo"""
        self.begin()
        self.settle(max_tokens=12)
        self.ask("Remember me 🦊")
        texts = "return [...document.querySelectorAll('.message .text')].map(t => t.textContent)"
        before = self.browser.run(texts)
        count = "return document.querySelectorAll('#chats li').length"
        listed = self.browser.run(count)
        self.browser.run("location.reload()")
        self.ready()
        self.browser.wait("the conversation", "return document.querySelector('.assistant')")
        expect(self.browser.run(texts) == before, "another text after the reload")
        expect(self.browser.run(count) == listed, "another list after the reload")

        current = "#chats li:has([aria-current])"
        self.browser.click(f"{current} [aria-label=Rename]")
        self.browser.run("document.querySelector('#chats input').value = ''")
        self.browser.type("#chats input", "My name" + KEYS["Enter"])
        expect(self.browser.run("return document.querySelector(arguments[0]).textContent", current) == "My name", "not renamed")

        self.browser.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        self.browser.click(f"{current} [aria-label='Export as JSON']")
        deadline = time.monotonic() + 20
        # The file has its name before all of its bytes.
        while not (files := [file for file in self.downloads.glob("*.json") if file.read_text("utf-8").endswith("}")]):
            expect(time.monotonic() < deadline, "no file was saved")
            time.sleep(0.05)
        saved = json.loads(files[0].read_text("utf-8"))
        expect(saved["title"] == "My name" and saved["messages"][0]["content"] == "Remember me 🦊", "another content")

        self.browser.click(f"{current} [aria-label=Delete]")
        self.browser.wait("it is gone", f"return (() => {{ {count} }})() === arguments[0]", listed - 1)
        self.browser.click("#toast button")
        self.browser.wait("it is back", f"return (() => {{ {count} }})() === arguments[0]", listed)
        self.browser.run("[...document.querySelectorAll('#chats .title')].find(b => b.textContent === 'My name').click()")
        self.browser.wait("it is open", "return document.querySelector('.assistant')")
        expect(self.browser.run(texts) == before, "another text after the undo")
        self.browser.click(f"{current} [aria-label=Delete]")
        self.browser.wait("it is gone", f"return (() => {{ {count} }})() === arguments[0]", listed - 1)
        self.browser.run("location.reload()")
        self.ready()
        expect(self.browser.run(count) == listed - 1, "a deleted conversation came back")

    def check_metrics(self):
        """numbers of the server, only while the page is visible"""
        for name, pattern in (("running", r"^\d+$"), ("waiting", r"^\d+$"), ("cache", r"^[\d.]+%$"), ("speed", r"^[\d,]+$")):
            self.browser.wait(f"stat-{name}", "return RegExp(arguments[1]).test(byId(arguments[0]).textContent)",
                              f"stat-{name}", pattern)
        self.browser.wait("the line of the speed", "return byId('spark').firstChild.getAttribute('points')")
        polls = "return seen.filter(c => c.url.includes('metrics')).length"
        self.browser.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        self.browser.wait("a poll that is under way ends", "return !polling")
        before = self.browser.run(polls)
        time.sleep(4.5)
        expect(self.browser.run(polls) == before, "a hidden page asks")
        self.browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        self.browser.wait("the next poll", f"return (() => {{ {polls} }})() > arguments[0]", before)

    def check_theme(self):
        """the theme follows the system and the switch"""
        colour = "return getComputedStyle(document.body).backgroundColor"
        seen = []
        for scheme in ("light", "dark"):
            self.browser.prefer(prefers_color_scheme=scheme)
            seen.append(self.browser.run(colour))
            self.browser.click("#theme")
            seen.append(self.browser.run(colour))
            self.browser.run("location.reload()")
            self.ready()
            expect(self.browser.run(colour) == seen[-1], "a reload loses the theme")
            self.browser.click("#theme")
            self.browser.click("#theme")
        light, dark, also_dark, also_light = seen
        expect(light != dark and light == also_light and dark == also_dark, f"{seen}")
        self.browser.prefer()

    def check_keyboard(self):
        """everything is reached by Tab, with a visible focus"""
        self.play([chunk(content="```\ncode\n```")] + END)
        self.answered()
        self.browser.press("Control", "k")
        self.browser.wait("a new conversation", "return document.querySelector('.welcome')")
        self.browser.run("document.querySelector('#chats .title').click()")
        self.browser.wait("the conversation", "return document.querySelector('.code')")
        self.browser.run("document.activeElement.blur()")
        reached, unseen = set(), set()
        for _ in range(250):
            self.browser.press("Tab")
            at = self.browser.run("""const node = document.activeElement, style = getComputedStyle(node);
                const frame = node.closest('fieldset') ? getComputedStyle(node.nextSibling) : style;
                return [node.id || node.name || node.getAttribute('aria-label') || node.localName,
                        frame.outlineStyle !== 'none' || node.id === 'input']""")
            reached.add(at[0])
            if not at[1] and at[0] != "body":
                unseen.add(at[0])
            if at[0] == "send" and "new" in reached:
                break
        wanted = {"new", "theme", "open-settings", "input", "mode", "probabilities", "send", "pre", "Copy the code",
                  "Copy", "Another answer", "Edit and send again", "Rename", "Delete", "Export as JSON"}
        expect(wanted <= reached, f"not reached: {wanted - reached}")
        expect(not unseen, f"no visible focus: {unseen}")

    def check_scrolling(self):
        """the view follows the end only from the end"""
        long = [chunk(content=f"line {i}\n\n") for i in range(60)]
        at_end = "const s = byId('scroller'); return s.scrollHeight - s.scrollTop - s.clientHeight < 8"
        self.play(long, hangs=True)
        self.browser.wait("all lines", "return document.querySelectorAll('.assistant p').length === 60")
        self.browser.wait("the end", at_end)
        self.browser.run("byId('scroller').scrollTop -= 200")
        self.browser.wait("a button to the end", "return !byId('to-end').hidden")
        place = self.browser.run("return byId('scroller').scrollTop")
        self.browser.run("const m = current.messages.at(-1); m.content += 'more\\n\\n'.repeat(20); redrawSoon(m)")
        self.browser.wait("more lines", "return document.querySelectorAll('.assistant p').length === 80")
        expect(self.browser.run("return byId('scroller').scrollTop") == place, "the view moved")
        self.browser.click("#to-end")
        self.browser.wait("the end", at_end)
        self.browser.press("Escape")
        self.answered()

    def check_widths(self):
        """no sideways scrolling at 320, 768 and 1600 px"""
        self.play([chunk(content=MARKDOWN + "\n\n" + "x" * 300 + "\n\n```\n" + "y" * 300 + "\n```")] + END,
                  text="a question with a long_word_" + "z" * 200)
        self.answered()
        self.browser.run("document.body.classList.remove('settings')")
        for scheme in ("light", "dark"):
            self.browser.prefer(prefers_color_scheme=scheme)
            for width, height in ((320, 640), (768, 1024), (1600, 1000)):
                self.browser.size(width, height)
                self.browser.run("byId('scroller').scrollTop = 0")
                wide = self.browser.run("""return [document.documentElement, document.body, ...document.querySelectorAll('body *')]
                    .filter(n => n.scrollWidth > n.clientWidth + 1 && !n.closest('svg') && n.clientWidth &&
                                 !['visible', 'hidden', 'clip'].includes(getComputedStyle(n).overflowX) && !n.closest('pre, textarea')
                            || n === document.documentElement && n.scrollWidth > innerWidth)
                    .map(n => n.id || n.className || n.localName)""")
                out = self.browser.run("""return [...document.querySelectorAll('main *')].filter(n => {
                      const r = n.getBoundingClientRect();
                      return r.width > 1 && (r.right > innerWidth + 1 || r.left < -1) && !n.closest('pre, .unseen, svg');
                    }).map(n => n.id || n.className || n.localName)""")
                over = self.browser.run("""const boxes = [...document.querySelectorAll('.message')].map(n => n.getBoundingClientRect());
                    return boxes.some((box, i) => i && box.top < boxes[i - 1].bottom - 1)
                        || [...document.querySelectorAll('.message')].some(n => n.scrollHeight > n.clientHeight + 1)""")
                expect(self.browser.run("""const box = byId('composer').getBoundingClientRect();
                    return byId('send').getBoundingClientRect().right < box.right - 4"""), f"the send button at {width} px")
                expect(not over, f"messages lie over each other at {width} px")
                expect(not wide and not out, f"at {width} px: {wide} {out}")
                self.picture(f"width_{width}_{scheme}")
        self.browser.prefer()
        self.browser.size(320, 640)
        self.browser.click("#open-sidebar")
        self.browser.wait("the list is open", "return byId('sidebar').getBoundingClientRect().left === 0")
        self.picture("sidebar_320")
        self.browser.press("Escape")
        self.browser.wait("the list is closed", "return !byId('sidebar').checkVisibility()")
        expect(self.browser.run("return document.activeElement.id") == "open-sidebar", "the focus is lost")
        self.browser.size(1280, 800)

    def check_still(self):
        """reduced motion stops what moves"""
        self.browser.prefer(prefers_reduced_motion="reduce")
        self.play([], hangs=True)
        self.browser.wait("it waits", "return document.querySelector('.waiting')")
        name = self.browser.run("return getComputedStyle(document.querySelector('.waiting > .text'), '::before').animationName")
        self.browser.press("Escape")
        self.answered()
        self.browser.prefer()
        expect(name == "none", f"animation {name}")

    def check_console(self):
        """no errors in the browser's console, no foreign requests"""
        errors = [entry["message"] for entry in self.browser.log() if entry["level"] == "SEVERE"
                  and not re.search(r"completions.* 400 ", entry["message"])]
        expect(not errors, f"{errors[:3]}")
        foreign = self.browser.run("return performance.getEntriesByType('resource').map(e => e.name)"
                                   ".filter(n => new URL(n).origin !== location.origin && !n.startsWith('data:'))")
        expect(not foreign, f"{foreign}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--only", default="", help="checks whose name holds this")
    args = parser.parse_args()
    if args.screenshots:
        args.screenshots.mkdir(parents=True, exist_ok=True)

    failed = 0
    folder = Path(tempfile.mkdtemp(prefix="page_test_"))
    try:
        browser = Browser(folder)
        try:
            test = PageTest(browser, args.url, args.screenshots)
            test.downloads = folder / "downloads"
            test.downloads.mkdir()
            names = [name for name in vars(PageTest) if name.startswith("check_")]
            for name in names:
                if args.only not in name and name != "check_loads":
                    continue
                what = getattr(test, name).__doc__
                begin = time.monotonic()
                try:
                    getattr(test, name)()
                    print(f"ok    {what} ({time.monotonic() - begin:.1f} s)", flush=True)
                except Failure as failure:
                    failed += 1
                    print(f"FAIL  {what}: {failure}", flush=True)
                    test.picture(f"failed_{name}")
                except Exception:
                    failed += 1
                    print(f"FAIL  {what}: {traceback.format_exc()}", flush=True)
        finally:
            browser.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
