"""How byte-level BPE splits text before merging. GGUF files only name it (``tokenizer.ggml.pre``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER_PATTERN = _QWEN2_PATTERN.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")


@dataclass(frozen=True)
class PreTokenizer:
    """``patterns`` split one after the other, each what the ones before it left whole.

    ``ignores_merges``: a piece that is a token is that token, whatever its merges give. ``adds_bos``: files without a
    flag want BOS before text. ``to_nfc``: text is normalized first.
    """

    patterns: Sequence[str]
    ignores_merges: bool = False
    adds_bos: bool = False
    to_nfc: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Of the tokenizers package."""
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = PreTokenizer([_GPT2_PATTERN])
_DIGITS = PreTokenizer([r"\p{N}", _GPT2_PATTERN])
_LLAMA3 = PreTokenizer([_LLAMA3_PATTERN], ignores_merges=True, adds_bos=True)
_LLAMA3_MERGED = PreTokenizer([_LLAMA3_PATTERN])
_QWEN2 = PreTokenizer([_QWEN2_PATTERN], to_nfc=True)
_QWEN35 = PreTokenizer([_QWEN35_PATTERN], to_nfc=True)
_TEKKEN = PreTokenizer([_TEKKEN_PATTERN], ignores_merges=True, adds_bos=True)
_DEEPSEEK_CODER = PreTokenizer([r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"])
_DEFAULT = PreTokenizer([r"[\p{P}\$\+<=>\^~\|]+", _GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]"])

PRE_TOKENIZERS = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "exaone4", "gigachat", "mellum", "mpt", "olmo", "phi-2", "trillion"), _GPT2),
    **dict.fromkeys(("smollm", "command-r", "exaone", "minerva-7b", "refact", "starcoder"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"), _LLAMA3),
    **dict.fromkeys(("chatglm-bpe", "dbrx", "smaug-bpe"), _LLAMA3_MERGED),
    "glm4": PreTokenizer([_LLAMA3_PATTERN], ignores_merges=True),
    **dict.fromkeys(("gpt-4o", "kanana2", "llama4"), PreTokenizer([_GPT4O_PATTERN])),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo"), _QWEN2),
    "qwen35": _QWEN35,
    **dict.fromkeys(("megrez", "stablelm2"), PreTokenizer([_QWEN2_PATTERN])),
    "tekken": _TEKKEN,
    "seed-coder": PreTokenizer([_SEED_CODER_PATTERN]),
    "deepseek-coder": _DEEPSEEK_CODER,
}
"""By ``tokenizer.ggml.pre``. ``default`` is what llama.cpp takes where a file names none, and no model's own."""
