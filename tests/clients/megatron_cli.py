#!/usr/bin/env python3
"""megatron_cli.py HOST:PORT: asks a server for texts as Megatron-LM's command-line client does.

Reads pairs of lines from standard input, a prompt and a number of tokens, and prints the text that
each becomes, or what the server has against it."""
import json
import sys
import urllib.error
import urllib.request


def generate(address, prompt, count):
    body = json.dumps({"prompts": [prompt], "tokens_to_generate": count}).encode()
    request = urllib.request.Request(f"http://{address}/api", body, method="PUT",
                                     headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return f"text: {json.load(answer)['text'][0]}"
    except urllib.error.HTTPError as error:
        return f"error {error.code}: {json.load(error)['message']}"


def main():
    lines = [line.rstrip("\n") for line in sys.stdin]
    for prompt, count in zip(lines[::2], lines[1::2]):
        print(generate(sys.argv[1], prompt, int(count)))


if __name__ == "__main__":
    main()
