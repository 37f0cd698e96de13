"""Trains small tokenizers of every kind and records what the reference libraries make of nasty strings.

usage: make_tokenizers.py   (pip: tokenizers, sentencepiece, tiktoken; no network) writes beside itself:
strings.json (the shared inputs), NAME.json / NAME.model / ... and NAME.expected.json with "ids" (no special tokens
added), "before" and "after" (the special tokens that are added) and "text" (decoded, special tokens kept; null where it
is the input).
"""
import base64, io, json, os, random, tempfile

import sentencepiece, tiktoken
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

HERE = os.path.dirname(os.path.abspath(__file__))
PATTERNS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "cl100k_in_onig": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "odd": r"\p{Han}+|[a-z&&[^aeiou]]+|\d{2,}|[[:punct:]]|\w+(?=\s)|^\s+|[^\W\d_]+$",
}
SEEDS = [
    "", " ", "  ", "\n", "\r\n", "\t\t x", "a", "A", "é", "e\u0301", "\u0301", "\u0301ABC", "a\u0301bc", "\u0300\u0315a", "\x00", "a\x00b", "\x01\x02\x7f",
    "hello world", "Hello, World!", "It's we'll THEY'RE I'D you'Ve can'T 'ſ 'S", "don't won't", "x='s", "''''s", "I'm 'M",
    "123", "1234567", "12 345 6789", "3.14e-10", "①②③ ½ Ⅷ ٣٤٥", "x2y3z", "camelCaseWordABCdef", "HTMLParser2XML", "ǅ ǈa ʰa ªb",
    "  leading", "trailing  ", "a  b   c    d", "a \n b\n\n\nc\r\n\r\nd", " \n ", "\n\n  x", "x \n  ", "a\u00a0b\u2003c\u3000d\u200be\ufeff",
    "a\u2028b\u2029c\x85d\x0be\x0cf", "中文字符测试", "日本語のテキスト、カタカナ。", "한국어 텍스트", "混合mixed文字text", "ﾊﾟ ｶﾞ ﬁ ﬀ ﷺ", "Ａ１！", "𝕳𝖊𝖑𝖑𝖔 𝟘𝟙",
    "Привет, мир!", "Ελληνικά ΣΊΣΥΦΟΣ", "İstanbul ıI", "straße STRASSE", "ẞ ß", "مرحبا بالعالم", "שָׁלוֹם", "नमस्ते दुनिया", "ไทยภาษา", "ትግርኛ",
    "👍", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "👍🏽👍🏿", "e\u0301\u0323\u0302", "q\u0307\u0323", "\u1e9b\u0323", "가\u11a8", "\u1100\u1161\u11a8", "Å\u212b", "ϓ\u0301",
    "<s>", "</s>", "<unk>", "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "[CLS] a [SEP]", "x [MASK] y", "x[MASK]y", "  [MASK]  \n", "[MASK][MASK]",
    "<special> word", "a<special>", "wordwisely wise wisely", "NORMED normed Normed", "<0x41><0x0A>", "<0xFF>", "▁", "▁▁a", "a▁b", "▁hello ▁world",
    "http://example.com/a?b=c&d=%20#x", "user@mail.org", "C:\\dir\\file.txt", "if (x==1) { return y[0]; }\n\treturn;\n", "/* comment */ // path/to/x\r\n",
    "!!!???...", "--- === +++ ***", "“quoted” ‘single’ —dash–", "$100 €200 £300 ¥400", "a/b\\c|d", "a_b__c", "@#$%^&*()", "...\n\n...", "!\r\n!", ". . .",
    "do not go . I ' m fine , is n't it ?", "a" * 60, "ab" * 70, "A" * 30 + "b" * 30, "1" * 50, " " * 40, "\n" * 20, "é" * 40, "中" * 50, "!" * 45, "👍" * 20, "<" * 30,
    "\ufffd", "\ufffe\uffff", "\U0010ffff", "\ue000", "\u0378", "\U0001e5f0", "\U00010d4a\U00010d50", "\u1c89\u1c8a", "\U0001cc00", "\u0897a", "\u2e5d \u061d \u166d", "\u1734a\u0c04",
    "\u2160\u24b6\u24d0", "a\u200cb\u200dc", "\u00ad\u180e\u2060", "x\u0488y", "\u0903\u093e", "Z\u0351\u036b\u0343A\u0321", "ſt ﬆ K \u212a", "ŉ ǰ ΐ", "\u1e0a\u0323", "\u0344\u0340\u0341", "\u2126\u2329", "\u0f73\u0f75",
]


def make_strings():
    random.seed(5)
    pool = list("abcdefgXYZ   \n\r\t'.,!?-/0123456789éßñ中文日の한Жאह🙂\u0301\u0323\u200d\u00a0\u3000_#<>|[]{}") + [
        "'s", "'LL", " the", "ing", "\r\n", "<|endoftext|>", "[MASK]", "</s>", "wise", "ǅ", "½", "ʰ", "\U0001d54f"]
    strings = list(SEEDS)
    while len(strings) < 290:
        strings.append("".join(random.choice(pool) for _ in range(random.randint(1, 40))))
    while len(strings) < 305:
        points = [random.randrange(0x3100) if random.random() < 0.6 else random.randrange(0x110000) for _ in range(12)]
        strings.append("".join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF))
    return strings


# A small character map in place of nmt_nfkc, which alone has 240 KB.
RULES = {"\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u00a0": " ", "\u200b": " ", "ﬁ": "fi", "ﬀ": "ff", "Ａ": "A", "１": "1",
         "！": "!", "e\u0301": "é", "a\u0301": "á", "½": "1/2", "ﷺ": "صلى الله", "\x7f": "", "\u0301": "", "…": "...", "①": "1",
         "가\u11a8": "각", "q\u0307\u0323": "q\u0323\u0307", "\u212b": "\u00c5"}
STRINGS = make_strings()
CORPUS = (SEEDS + ["the quick brown fox jumps over the lazy dog and the wise old owl's hooting in the winter night",
                   "information international understanding representation computation 2024 1999 100",
                   "Das Wetter ist schön. Über allen Gipfeln ist Ruh. Größe, Straße.", "voilà l'été où ça commençait"] * 30 + STRINGS)


def byte_level(split=None, prefix=False, regex=True):
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex and split is None)
    if split is None:
        return last
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(s), "isolated") for s in split] + [last])


def train_bpe(pre, size=420, normalizer=None, special=("<|endoftext|>",), **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def save(name, tokenizer):
    path = os.path.join(HERE, name + ".json")
    tokenizer.save(path, pretty=False)
    tokenizer = Tokenizer.from_file(path)
    write_expected(name, [tokenizer.encode(s, add_special_tokens=False).ids for s in STRINGS],
                   lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
                   [tokenizer.encode(s).ids for s in STRINGS])


def write_expected(name, ids, decode, special=None):
    texts = [decode(row) for row in ids]
    record = {"ids": ids, "text": [None if text == s else text for text, s in zip(texts, STRINGS)]}
    if special is not None:
        sample = STRINGS.index("hello world")
        before = next(i for i in range(9) if special[sample][i:i + len(ids[sample])] == ids[sample])
        record["before"], record["after"] = special[sample][:before], special[sample][before + len(ids[sample]):]
        assert all(s == record["before"] + i + record["after"] for s, i in zip(special, ids))
    with open(os.path.join(HERE, name + ".expected.json"), "w") as out:
        json.dump(record, out, ensure_ascii=False, separators=(",", ":"))


def make_byte_level():
    gpt2 = train_bpe(byte_level())
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    save("gpt2", gpt2)
    roberta = train_bpe(byte_level(prefix=True), size=380)
    roberta.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    roberta.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True), "<s>", "</s>"])
    roberta.add_tokens([AddedToken("wise", single_word=True), AddedToken("<special>", rstrip=True)])
    save("roberta", roberta)
    for name in ("llama3", "qwen2", "o200k"):
        tokenizer = train_bpe(byte_level([PATTERNS[name]]), ignore_merges=name == "llama3",
                              normalizer=normalizers.NFC() if name == "qwen2" else None)
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing("<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])])
        save(name, tokenizer)
    save("deepseek", train_bpe(byte_level([r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", PATTERNS["deepseek"]])))
    save("cl100k_in_onig", train_bpe(byte_level([PATTERNS["cl100k_in_onig"]]), size=360))
    save("odd_regex", train_bpe(byte_level([PATTERNS["odd"]]), size=360))
    clip = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    clip.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    clip.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    clip.decoder = decoders.ByteLevel()
    clip.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>"], end_of_word_suffix="</w>", show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    save("clip", clip)


def make_metaspace_bpe():
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    base = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    base.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    base.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)])
    base.train_from_iterator(SEEDS[15:80], trainers.BpeTrainer(vocab_size=600, special_tokens=tokens, show_progress=False,
                                                             limit_alphabet=60))
    model = json.loads(base.to_str())
    model["added_tokens"] = [t for t in model["added_tokens"] if t["id"] < 3]
    base = Tokenizer.from_str(json.dumps(model))
    base.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    save("llama2_legacy", base)
    model["normalizer"] = None
    model["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    save("llama2_first", Tokenizer.from_str(json.dumps(model)))
    model["model"]["byte_fallback"] = False
    model["model"]["fuse_unk"] = False
    model["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    model["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    save("metaspace_unk", Tokenizer.from_str(json.dumps(model)))


def make_words():
    for name, lower in (("bert", True), ("bert_cased", False)):
        bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        bert.normalizer = normalizers.BertNormalizer(lowercase=lower)
        bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        bert.decoder = decoders.WordPiece()
        bert.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
            vocab_size=420, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False, limit_alphabet=120))
        bert.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        bert.add_tokens(["NORMED"])
        save(name, bert)
        if lower:
            vocab = sorted(Tokenizer.from_file(os.path.join(HERE, "bert.json")).get_vocab(False).items(), key=lambda t: t[1])
            os.makedirs(os.path.join(HERE, "bert_vocab"), exist_ok=True)
            with open(os.path.join(HERE, "bert_vocab", "vocab.txt"), "w") as out:
                out.write("".join(token + "\n" for token, _ in vocab))
    levels = {
        "word_level": (normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()]), pre_tokenizers.Whitespace()),
        "digits": (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
                   pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(True),
                                            pre_tokenizers.Punctuation("merged_with_previous")])),
        "splits": (normalizers.Sequence([normalizers.NFKD(), normalizers.Nmt(), normalizers.Replace("a", "")]),
                   pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "merged_with_next"),
                                            pre_tokenizers.Split(Regex(r"[aeiou]"), "contiguous"),
                                            pre_tokenizers.Digits(False),
                                            pre_tokenizers.Split(Regex(r"\p{P}"), "merged_with_previous"),
                                            pre_tokenizers.Metaspace(prepend_scheme="first")])),
    }
    for name, (normalizer, pre) in levels.items():
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre
        tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(
            vocab_size=700, special_tokens=["<unk>"], show_progress=False))
        tokenizer.add_tokens([AddedToken("[MASK]", lstrip=True, rstrip=True), AddedToken("wise", single_word=True, normalized=False)])
        save(name, tokenizer)


def make_sentencepieces():
    lines = [s for s in CORPUS if s.strip() and "\x00" not in s]

    def train(name, **options):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, minloglevel=2,
                                                 hard_vocab_limit=False, num_threads=1, **options)
        with open(os.path.join(HERE, name + ".model"), "wb") as out:
            out.write(model.getvalue())
        sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        write_expected(name, [sp.encode(s) for s in STRINGS], sp.decode)
        return sp

    train("sp_bpe", model_type="bpe", vocab_size=700, byte_fallback=True, character_coverage=0.98,
          normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=["wise", "<special>"])
    train("sp_bpe_plain", model_type="bpe", vocab_size=500, character_coverage=0.98, normalization_rule_name="identity")
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", delete=False) as rules:
        for old, new in RULES.items():
            rules.write(" ".join(f"{ord(c):X}" for c in old) + "\t" + " ".join(f"{ord(c):X}" for c in new) + "\n")
    unigram = train("sp_unigram", model_type="unigram", vocab_size=400, character_coverage=0.98,
                    normalization_rule_tsv=rules.name, user_defined_symbols=["wise"])
    train("sp_suffix", model_type="unigram", vocab_size=560, character_coverage=0.98, byte_fallback=True,
          normalization_rule_name="identity", treat_whitespace_as_suffix=True)
    from sentencepiece import sentencepiece_model_pb2 as pb
    proto = pb.ModelProto.FromString(open(os.path.join(HERE, "sp_unigram.model"), "rb").read())
    del unigram
    t5 = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], 0, False))
    t5.normalizer = normalizers.Sequence([normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
                                          normalizers.Replace(Regex(" {2,}"), " ")])
    t5.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t5.decoder = decoders.Metaspace()
    t5.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    t5.add_special_tokens(["</s>", "<unk>"])
    save("t5", t5)


def make_tiktoken():
    import tiktoken_ext.openai_public as public
    source = json.load(open(os.path.join(HERE, "gpt2.json")))["model"]["vocab"]
    table = {chr(c): b for b, c in bytes_to_unicode().items()}
    tokens = sorted((t for t in source if all(c in table for c in t)), key=lambda t: (len(t) > 1, source[t]))
    tokens = [t for t in tokens if t != "<|endoftext|>"]
    ranks = {bytes(table[c] for c in t): i for i, t in enumerate(tokens)}
    with open(os.path.join(HERE, "ranks.tiktoken"), "w") as out:
        out.write("".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items()))
    o200k = PATTERNS["o200k"]
    cl100k = PATTERNS["cl100k_in_onig"]
    for name, pattern in (("gpt2", public.r50k_pat_str), ("cl100k_base", cl100k), ("o200k_base", o200k),
                          ("llama3", PATTERNS["llama3"])):
        encoding = tiktoken.Encoding("fixture", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        write_expected("tiktoken_" + name, [encoding.encode_ordinary(s) for s in STRINGS], encoding.decode)


def bytes_to_unicode():
    visible = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {b: b for b in visible}, 0
    for b in range(256):
        if b not in table:
            table[b] = 256 + extra
            extra += 1
    return table


def make_gpt2_files():
    model = json.load(open(os.path.join(HERE, "gpt2.json")))["model"]
    folder = os.path.join(HERE, "gpt2_files")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "vocab.json"), "w") as out:
        json.dump(model["vocab"], out, ensure_ascii=False, separators=(",", ":"))
    with open(os.path.join(folder, "merges.txt"), "w") as out:
        out.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))


if __name__ == "__main__":
    with open(os.path.join(HERE, "strings.json"), "w") as out:
        json.dump(STRINGS, out, separators=(",", ":"))
    make_byte_level()
    make_metaspace_bpe()
    make_words()
    make_sentencepieces()
    make_tiktoken()
    make_gpt2_files()
