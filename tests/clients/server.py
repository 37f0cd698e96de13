"""The program under test: a small model made by it, and servers of that model."""
import json
import select
import shutil
import subprocess
from pathlib import Path

from harness import Failure, expect, expect_equal

SOURCE = Path(__file__).resolve().parents[2]

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking %}{{ '<think>\\n' }}{% endif %}"
    "{%- endif %}")
# (text, whether it is a special token) of the tokens that the conversations need.
CHAT_TOKENS = (("<|im_start|>", True), ("<|im_end|>", True), ("<think>", False),
               ("</think>", False))
MODEL_FLAGS = """
    --family llama --num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4
    --num-query-groups 2 --max-position-embeddings 1024 --seq-length 128 --global-batch-size 8
    --train-iters 200 --lr 1e-2 --split 1,0,0 --untie-embeddings-and-output-weights
    --seed 7""".split()


def write_tokenizer(folder):
    """One of the golden tokenizers with the tokens of a chat template; ids by text."""
    tokenizer = json.loads((SOURCE / "tests/golden/tokenizers/qwen2.json").read_text())
    vocabulary = len(tokenizer["model"]["vocab"])
    for i, (text, special) in enumerate(CHAT_TOKENS):
        tokenizer["added_tokens"].append({
            "id": vocabulary + i, "content": text, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": special})
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    return {each["content"]: each["id"] for each in tokenizer["added_tokens"]} | (
        tokenizer["model"]["vocab"])


def run_program(program, *words, folder):
    """What a command prints; it must succeed."""
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    expect(done.returncode == 0, f"{words[0]} ends with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


class TinyModel:
    """A model that can talk after a second of training, with special tokens of a chat."""

    def __init__(self, program, folder):
        self.program = program
        self.work = folder
        self.path = folder / "tiny"
        self.ids = write_tokenizer(folder / "tokenizer")
        shutil.copy(SOURCE / "LICENSE", folder / "text.txt")
        run_program(program, "train", *MODEL_FLAGS, "--text", "text.txt", "--tokenizer",
                    "tokenizer", "--export-hf", "tiny", folder=folder)
        (self.path / "chat_template.jinja").write_text(CHAT_TEMPLATE)

    def run(self, *words):
        """The JSON line that a command prints about the model."""
        command, *flags = words
        return json.loads(run_program(self.program, command, "--hf-model", str(self.path), *flags,
                                      folder=self.work))

    def poisoned(self, token):
        """A copy that computes no finite logits after this token."""
        path = self.work / f"poisoned_{token}"
        if path.exists():
            return path
        shutil.copytree(self.path, path)
        weights = path / "model.safetensors"
        data = bytearray(weights.read_bytes())
        header_size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + header_size])
        tensor = header["model.embed_tokens.weight"]
        begin, end = tensor["data_offsets"]
        row = (end - begin) // tensor["shape"][0]
        at = 8 + header_size + begin + token * row
        data[at:at + row] = b"\xff" * row  # not a number in every format
        weights.write_bytes(data)
        return path


class Server:
    """A running `bevatron serve` of a folder."""

    def __init__(self, program, model, *flags, log):
        self.log = Path(log)
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [program, "serve", "--hf-model", str(model), "--served-model-name", "tiny",
                 "--port", "0", *flags], stdout=subprocess.PIPE, stderr=errors)
        self.url = self.ready_line()["url"]

    def ready_line(self):
        readable, _, _ = select.select([self.process.stdout], [], [], 60)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            self.process.kill()
            self.process.wait()
            raise Failure(f"the server does not start: {self.log.read_text()[-800:]}")
        ready = json.loads(line)
        expect_equal(ready["event"], "ready")
        return ready

    def stop(self):
        """SIGTERM ends it, with exit code 0."""
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failure("SIGTERM did not end the server within 20 s") from None
        expect_equal(code, 0, f"exit code ({self.log.read_text()[-800:]})")
