"""Hugging Face's trainer of byte-level BPE on JSON lines with a "text" each: seconds, as one JSON line.

usage: tokenizer_train.py DOCS.jsonl VOCAB_SIZE OUTPUT.json   (pip: tokenizers) with llama3's expression
"""
import json, sys, time

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

path, size, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
documents = [json.loads(line)["text"] for line in open(path)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
start, processor_start = time.perf_counter(), time.process_time()
tokenizer.train_from_iterator(documents, trainers.BpeTrainer(
    vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
print(json.dumps(dict(name="hf tokenizers", seconds=round(time.perf_counter() - start, 2),
                      processor_seconds=round(time.process_time() - processor_start, 2))))
tokenizer.save(output)
