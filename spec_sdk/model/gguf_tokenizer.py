"""The tokenizer described by GGUF metadata, as Hugging Face tokenizer files.

Three kinds: ``gpt2``, byte-level BPE with merges, whose way of splitting text is only named
(:mod:`spec_sdk.model.gguf_pre_tokenizers`); ``llama``, SentencePiece BPE, which has scores instead of merges; and
``gemma4``, SentencePiece's way with spaces and bytes, and merges.

Where transformers' own GGUF conversion differs from the tokenizer that the model was trained with, this follows the
model: ``smollm`` splits off every digit (transformers only uses GPT-2's pattern, so runs of spaces before a number come
out differently), ``qwen2`` normalizes to NFC, and SentencePiece puts its dummy space before text that begins with
a space as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_merges import merges_from_scores
from spec_sdk.model.gguf_pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.say import say

_PRE = "tokenizer.ggml.pre"
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_SPECIAL = (_UNKNOWN, _CONTROL)
_FILLER = re.compile(r"\[PAD\d+\]")
_END_OF_TURN = frozenset(
    ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>")
    # Gemma 4 waits for a tool's answer behind the second
    + ("<turn|>", "<|tool_response>")
)
_END_OF_TEXT = frozenset(("<|endoftext|>", "<|end_of_text|>", "<eos>"))
"""Tokens that end an answer also where a file does not say so: many do not, and llama.cpp goes by the names."""


def tokenizer_of(gguf: GGUFFile) -> Tokenizer:
    """Build the tokenizer. Raises UserError if the metadata lack it or describe a kind that is not supported."""
    meta = Fields(gguf.metadata, gguf.where)
    kind = meta.text("tokenizer.ggml.model", "")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _merged_pieces}
    if not kind:
        raise UserError(f"{gguf.where}: has no tokenizer (tokenizer.ggml.model)")
    if kind not in builders:
        raise UserError(f"{gguf.where}: unsupported tokenizer '{kind}'{did_you_mean(kind, builders)}")
    tokens = _strings(meta, "tokenizer.ggml.tokens")
    types = meta.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise UserError(f"{gguf.where}: {len(types)} token types for {len(tokens)} tokens")
    vocabulary = {
        token: i
        for i, (token, type_) in enumerate(zip(tokens, types, strict=True))
        # rows that only pad the embedding name no token
        if not (type_ == _UNUSED and _FILLER.fullmatch(token))
    }
    tokenizer = builders[kind](meta, vocabulary, tokens, types)
    typed = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, i in typed if i in _SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t, i in typed if i == _USER_DEFINED])
    begin, end = _added_at_ends(meta, kind, tokens)
    if begin or end:
        tokenizer.post_processor = _wrapping(begin, end, vocabulary)
    return tokenizer


def tokenizer_config(gguf: GGUFFile) -> dict[str, Any]:
    """What tokenizer_config.json would say: the special tokens by role, and whether BOS is added."""
    meta = Fields(gguf.metadata, gguf.where)
    tokens = _strings(meta, "tokenizer.ggml.tokens")
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for role, key in roles.items():
        token = _special(meta, key, tokens)
        if token is not None:
            config[role] = token
    begin, end = _added_at_ends(meta, meta.text("tokenizer.ggml.model", ""), tokens)
    return config | {"add_bos_token": begin is not None, "add_eos_token": end is not None}


def end_token_ids(gguf: GGUFFile) -> list[int]:
    """The ids that end an answer: end of sequence, of turn and of message as the file says, and by their names."""
    keys = ("eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id")
    meta = Fields(gguf.metadata, gguf.where)
    ids = [i for key in keys for i in meta.token_ids(f"tokenizer.ggml.{key}")]
    tokens = _strings(meta, "tokenizer.ggml.tokens")
    # SmolLM's stands for what is unknown too, and its own files do not end answers at it
    ends = _END_OF_TURN | _END_OF_TEXT - {_special(meta, "unknown", tokens)}
    named = [i for i, token in enumerate(tokens) if token in ends]
    return list(dict.fromkeys([*ids, *named]))


def _byte_level(meta: Fields, vocabulary: Mapping[str, int], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    name = meta.text(_PRE, "")
    if not name:
        say(
            f"{meta.where}: names no {_PRE}: text is split as llama.cpp does then, maybe not as the model has learnt it"
        )
    pre, merges = _pre_tokenizer(meta), _merges(meta, vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=merges, ignore_merges=pre.ignores_merges))
    tokenizer.pre_tokenizer = pre.build()
    if pre.to_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(meta: Fields, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in _strings(meta, "tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or left + right not in vocabulary or left not in vocabulary or right not in vocabulary:
            raise UserError(f"{meta.where}: tokenizer merge {merge!r} does not join two tokens into a third")
        merges.append((left, right))
    return merges


def _pre_tokenizer(meta: Fields) -> PreTokenizer:
    name = meta.text(_PRE, "") or "default"
    if name not in PRE_TOKENIZERS:
        raise UserError(
            f"{meta.where}: splits text in a way that is not known ({_PRE} '{name}'): "
            "take the model's directory in Hugging Face layout instead"
        )
    return PRE_TOKENIZERS[name]


def _sentencepiece(
    meta: Fields, vocabulary: Mapping[str, int], tokens: Sequence[str], types: Sequence[int]
) -> Tokenizer:
    scores = meta.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise UserError(f"{meta.where}: the SentencePiece tokenizer has no score for every token")
    pieces = {token: score for token, score, type_ in zip(tokens, scores, types, strict=True) if type_ == 1}
    prefixed = meta.flag("tokenizer.ggml.add_space_prefix", True)
    return _pieces(meta, vocabulary, tokens, types, merges_from_scores(pieces), prefixed)


def _merged_pieces(
    meta: Fields, vocabulary: Mapping[str, int], tokens: Sequence[str], types: Sequence[int]
) -> Tokenizer:
    return _pieces(meta, vocabulary, tokens, types, _merges(meta, vocabulary), False)


def _pieces(
    meta: Fields,
    vocabulary: Mapping[str, int],
    tokens: Sequence[str],
    types: Sequence[int],
    merges: Sequence[tuple[str, str]],
    prefixed: bool,
) -> Tokenizer:
    """Spaces are ▁, and what is in no token is bytes. ``prefixed``: a text begins with a space."""
    unknown = _special(meta, "unknown", tokens) or next(
        (t for t, type_ in zip(tokens, types, strict=True) if type_ == _UNKNOWN), None
    )
    tokenizer = Tokenizer(
        models.BPE(vocab=dict(vocabulary), merges=list(merges), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    undo: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(undo + ([decoders.Strip(" ", 1, 0)] if prefixed else []))
    return tokenizer


def _added_at_ends(meta: Fields, kind: str, tokens: Sequence[str]) -> tuple[str | None, str | None]:
    """The tokens that the model wants before and after every text. Defaults are llama.cpp's for files without flags."""
    wants_begin = kind in ("llama", "gemma4") or _pre_tokenizer(meta).adds_bos
    # there are files of Gemma 4 that say otherwise, and it was never trained without
    begins = kind == "gemma4" or meta.flag("tokenizer.ggml.add_bos_token", wants_begin)
    begin = _special(meta, "bos", tokens) if begins else None
    end = _special(meta, "eos", tokens) if meta.flag("tokenizer.ggml.add_eos_token", False) else None
    return begin, end


def _wrapping(begin: str | None, end: str | None, vocabulary: Mapping[str, int]) -> processors.PostProcessor:
    """Put ``begin`` before and ``end`` after each text."""
    before, after = [begin] if begin else [], [end] if end else []
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{t}:1" for t in before), "$B:1", *(f"{t}:1" for t in after)],
        special_tokens=[(token, vocabulary[token]) for token in dict.fromkeys([*before, *after])],
    )


def _special(meta: Fields, key: str, tokens: Sequence[str]) -> str | None:
    """The token of a role such as ``bos``, if the file names one."""
    ids = meta.token_ids(f"tokenizer.ggml.{key}_token_id", len(tokens))
    return tokens[ids[0]] if ids else None


def _strings(meta: Fields, key: str) -> list[str]:
    value = meta.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise UserError(f"{meta.where}: no list of strings {key}")
    return value
