"""A tokenizer of a handful of tokens that spell words of two letters, for grammars that can be enumerated."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

A, B, AB, END = range(4)
VOCABULARY = 4
TEXTS = ("a", "b", "ab", "")


class SpellingTokenizer:
    """What a constraint is given of a tokenizer: the tokens a, b, ab and the one that ends an answer."""

    stop_ids = frozenset({END})

    def to_json(self) -> str:
        fast = Tokenizer(models.BPE(vocab={"a": A, "b": B, "ab": AB, "<end>": END}, merges=[("a", "b")]))
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        fast.decoder = decoders.ByteLevel()
        fast.add_special_tokens([AddedToken("<end>", special=True)])
        return fast.to_str()


def spelt(tokens: list[int]) -> str:
    return "".join(TEXTS[token] for token in tokens)
