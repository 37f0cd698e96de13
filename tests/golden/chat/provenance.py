# Spans of the assistant's text, as trl's training variants of chat templates give them by their
# {% generation %} blocks, for the templates of this folder that have no such blocks. Rows whose text
# differs between template and variant are left out. No text of trl's templates is written.
# python provenance.py; made with trl 1.16.0, transformers 5.23.0, jinja2 3.1.6.
import copy
import json
import pathlib

import trl
from transformers.utils.chat_template_utils import _compile_jinja_template

import make_chat

HERE = pathlib.Path(__file__).parent
VARIANTS = pathlib.Path(trl.__file__).parent / "chat_templates"
TEMPLATES = {
    "command_r": "cohere", "deepseek_r1": "deepseek_r1_distill", "gemma2": "gemma", "gemma3": "gemma3",
    "gpt_oss": "gptoss", "llama3": "llama3", "phi3": "phi3", "qwen2.5": "qwen2_5", "qwen3": "qwen3",
}
# The beginnings of the generation prompts without reasoning: three variants have a part of theirs
# inside of their blocks, though a model is given it.
PROMPTS = {"qwen2.5": "<|im_start|>assistant\n", "deepseek_r1": "<｜Assistant｜>", "gpt_oss": "<|start|>assistant"}
M = make_chat.message
MORE = {
    "same": [M("user", "same"), M("assistant", "same"), M("user", "same"), M("assistant", "same")],
    "literals": [M("user", "<|im_end|>\n<|im_start|>assistant\n"), M("assistant", "<|im_start|>assistant\n<|eot_id|>"),
                 M("user", "model\n"), M("assistant", "<start_of_turn>model\n<end_of_turn>\n")],
    "blanks": [M("user", "\n a \n"), M("assistant", "\n\n  b\t\n "), M("user", " "), M("assistant", "   ")],
    "last_is_user": [M("user", "a"), M("assistant", "b"), M("user", "c")],
    "call_and_text": [
        M("user", "Weather?"),
        M("assistant", "Let me see.", tool_calls=[make_chat.CALL]),
        M("tool", "get_weather sunny", tool_call_id="abc123XYZ", name="get_weather"),
        M("assistant", "Sunny, says get_weather."),
    ],
}


def render(template, messages, tools):
    compiled = _compile_jinja_template(template)
    blocks, spans = [], []
    with compiled.environment.activate_tracker(blocks, spans):
        for block in compiled.generate(messages=copy.deepcopy(messages), tools=tools, documents=None,
                                       add_generation_prompt=False, **make_chat.SPECIAL):
            blocks.append(block)
    return "".join(blocks), spans


def behind_prompt(text, begin, prompt):
    for start in range(max(begin - len(prompt), 0), begin + 1):
        if prompt and text.startswith(prompt, start) and begin < start + len(prompt):
            return start + len(prompt)
    return begin


def main():
    conversations = {**make_chat.CONVERSATIONS, **MORE}
    for name in ["reasoning", "thinking"]:  # transformers passes these under both names
        for m in conversations[name]:
            said = m.get("reasoning_content", m.get("thinking"))
            if said:
                m.update(reasoning_content=said, thinking=said)
    rows = []
    for name, variant in TEMPLATES.items():
        plain = (HERE / "templates" / f"{name}.jinja").read_text()
        tagged = (VARIANTS / f"{variant}_training.jinja").read_text()
        for conversation, messages in conversations.items():
            for tools in [None, make_chat.TOOLS]:
                try:
                    text, _ = render(plain, messages, tools)
                    other, spans = render(tagged, messages, tools)
                except Exception:
                    continue
                if text != other:
                    continue
                spans = [[behind_prompt(text, a, PROMPTS.get(name, "")), b] for a, b in spans]
                joined = []
                for a, b in spans:
                    if joined and joined[-1][1] == a:
                        joined[-1][1] = b
                    elif a < b:
                        joined.append([a, b])
                rows.append([name, conversation, tools is not None, joined])
    out = {"conversations": conversations, "rows": rows}
    (HERE / "provenance.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")
    from collections import Counter
    print(Counter(r[0] for r in rows))


if __name__ == "__main__":
    main()
