"""Small tokenizers with the pipelines of published models, tokenizers that Hugging Face's BpeTrainer trained, and
folders as transformers reads them; see make_tokenizers.py for what the files mean.

usage: make_pipelines.py   (pip: tokenizers 0.23.3, transformers 5.22.2; no network) writes beside itself.
"""
import json, os, tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from make_tokenizers import CORPUS, HERE, PATTERNS, SEEDS, STRINGS, byte_level, save, train_bpe, write_expected

TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def make_byte_level():
    falcon = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), byte_level(), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    save("falcon", train_bpe(falcon, size=360))
    save("bloom", train_bpe(byte_level([r" ?[^(\s|[.,!?…。，、।۔،])]+"]), size=360))
    save("tekken", train_bpe(byte_level([TEKKEN]), size=360, special=["<unk>", "<s>", "</s>"], ignore_merges=True))
    olmo = train_bpe(byte_level(), size=360, normalizer=normalizers.NFC())
    olmo.add_tokens([AddedToken(" " * i, normalized=True) for i in range(24, 1, -1)] + ["|||IP_ADDRESS|||"])
    save("olmo", olmo)
    phi4 = train_bpe(byte_level([PATTERNS["llama3"]]), size=360)
    phi4.add_tokens([AddedToken("[MASK]", lstrip=True, rstrip=True, special=True), AddedToken("<s>", lstrip=True, rstrip=True)])
    save("phi4", phi4)


def make_metaspace():
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    gemma = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    gemma.normalizer = normalizers.Replace(" ", "▁")
    gemma.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    gemma.train_from_iterator(SEEDS[15:80], trainers.BpeTrainer(vocab_size=600, special_tokens=tokens, show_progress=False,
                                                              limit_alphabet=60))
    model = json.loads(gemma.to_str())
    model["added_tokens"] = [t for t in model["added_tokens"] if t["id"] < 4]
    gemma = Tokenizer.from_str(json.dumps(model))
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.add_tokens([AddedToken("\n" * i, normalized=False) for i in range(2, 12)] +
                     [AddedToken("▁" * i, normalized=False) for i in range(2, 12)])
    gemma.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    save("gemma3", gemma)


def make_unigram():
    albert = Tokenizer(models.Unigram())
    albert.normalizer = normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
        normalizers.Lowercase(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    albert.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    albert.decoder = decoders.Metaspace()
    # Special tokens are in the text, so the pieces have them a second time.
    albert.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "[cls]", "</s>"], unk_token="<unk>", show_progress=False))
    save("albert", albert)
    # Scores of 17 digits, which the reference's JSON reader rounds in its own way.
    ties = json.loads(albert.to_str())
    ties["model"]["vocab"] = [["<unk>", 0.0], ["▁", -3.7012345678901233]] + [
        ["中" * n, -(5.0 + 0.1 * n + 0.01234567890123457 * n * n)] for n in (1, 2, 4, 8, 16)] + [
        ["ab" * n, -(2.2222222222222223 * n)] for n in (1, 2, 3, 5)] + [[c, -9.123456789012345] for c in "ab"]
    ties["added_tokens"] = ties["added_tokens"][:1]
    save("unigram_ties", Tokenizer.from_str(json.dumps(ties)))


def make_trained():
    """What bevatron tokenizer train must find in strings.json: at this size most pairs have equal counts."""
    for name, pattern in (("gpt2", None), ("llama3", PATTERNS["llama3"]), ("o200k", PATTERNS["o200k"]), ("regex", r"\w+|\s")):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = byte_level(pattern and [pattern])
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(STRINGS, trainers.BpeTrainer(
            vocab_size=1100, special_tokens=["<|endoftext|>", "<s>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        save("trained_" + name, tokenizer)


def make_llama_folders():
    from transformers import AutoTokenizer
    for name, options in (("always", {"legacy": True}), ("first", {"legacy": False}), ("never", {"add_prefix_space": False})):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "tokenizer.json"), "w") as out:
                out.write(open(os.path.join(HERE, "llama2_legacy.json")).read())
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as out:
                json.dump({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} |
                          options, out)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            write_expected("llama_folder_" + name, [tokenizer.encode(s, add_special_tokens=False) for s in STRINGS],
                           tokenizer.decode, [tokenizer.encode(s) for s in STRINGS])


if __name__ == "__main__":
    make_byte_level()
    make_metaspace()
    make_unigram()
    make_trained()
    make_llama_folders()
