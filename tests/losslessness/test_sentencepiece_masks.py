"""Masks over a SentencePiece vocabulary: spaces as a mark of their own, bytes for characters that it lacks.

Legend: V vocabulary.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from spec_sdk_constraints.grammar import GrammarConfig, GrammarConstraint
from spec_sdk_constraints.regex import RegexConfig, RegexConstraint

SPECIAL = ("<unk>", "<s>", "</s>")
END = SPECIAL.index("</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
PIECES = (*SPECIAL, *BYTES, "▁", "y", "e", "s", "n", "o", "▁y", "es", "yes", "▁yes", "no", "▁no", "é")
MERGES = [("e", "s"), ("y", "es"), ("▁", "yes"), ("n", "o"), ("▁", "no"), ("▁", "y")]


class SentencePieceTokenizer:
    """What a constraint is given of a tokenizer such as Llama 2's."""

    stop_ids = frozenset({END})

    def to_json(self) -> str:
        vocab = {piece: token for token, piece in enumerate(PIECES)}
        fast = Tokenizer(models.BPE(vocab=vocab, merges=MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        fast.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        fast.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
        return str(fast.to_str())


TOKENIZER: Any = SentencePieceTokenizer()


def written(answer: list[int]) -> str:
    texts = [PIECES[token] for token in answer]
    return b"".join(
        bytes.fromhex(text[3:5]) if text in BYTES else text.replace("▁", " ").encode() for text in texts
    ).decode()


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [("(yes|no)( yes| no){0,3}", {"yes", "▁yes", "▁", "<0x20>"}), ("é{1,3}ü", {"é", "<0xC3>", "<0xBC>"})],
)
def test_answers_are_spelt_in_any_way_that_the_pattern_allows(pattern: str, pieces: set[str]) -> None:
    first = RegexConstraint(RegexConfig(pattern)).compile(TOKENIZER, len(PIECES))
    rng, used = random.Random(5), set[str]()
    for _ in range(60):
        matcher, answer = first.begin(), list[int]()
        while END not in answer:
            logits_1V = torch.zeros(1, len(PIECES))
            matcher.apply(logits_1V, answer, [()])
            answer.append(rng.choice(logits_1V[0].isfinite().nonzero().flatten().tolist()))
        assert re.fullmatch(pattern, written(answer[:-1])), answer
        used.update(PIECES[token] for token in answer)
    assert pieces <= used and not {"<unk>", "<s>"} & used


@pytest.mark.parametrize("text", ["</s>", "no</s>es<unk>", "<s><s>yes"])
@pytest.mark.parametrize("forced", [False, True])
def test_the_text_of_a_special_token_is_spelt_by_others(text: str, forced: bool) -> None:
    matcher, answer = RegexConstraint(RegexConfig(text)).compile(TOKENIZER, len(PIECES)), list[int]()
    while END not in answer:
        logits_1V = torch.zeros(1, len(PIECES))
        matcher.apply(logits_1V, answer, [()])
        [only] = logits_1V[0].isfinite().nonzero().flatten().tolist()
        run = matcher.forced(answer, ())
        assert run[0] == only and matcher.allows(answer, (), only)
        answer += run if forced else [only]
    assert written(answer[:-1]) == text


def test_a_special_token_that_a_grammar_names_is_meant() -> None:
    grammar = GrammarConstraint(GrammarConfig(text='start: "yes<s>" <s> "</s>" </s>')).compile(TOKENIZER, len(PIECES))
    answer = list[int]()
    while END not in answer:
        answer += grammar.forced(answer, ())
    begin = SPECIAL.index("<s>")
    assert answer.count(begin) == 1
    before = answer.index(begin)
    assert (written(answer[:before]), written(answer[before + 1 : -1])) == ("yes<s>", "</s>")
