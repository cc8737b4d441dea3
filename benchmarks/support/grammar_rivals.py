"""Two engines of grammars over one text: what a mask costs, and a walk through a tree of drafted tokens.

Legend: V vocabulary, W words of a mask, 32 tokens each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from spec_sdk.model.tokenizer import Tokenizer

SEPARATORS = (", ", ": ")


class GrammarEngine(Protocol):
    """``compile`` makes a matcher at its begin, from nothing that was compiled before."""

    name: str

    def compile(self, schema: dict[str, Any]) -> Any: ...
    def fill(self, matcher: Any, mask_W: np.ndarray[Any, np.dtype[np.int32]]) -> None: ...
    def accept(self, matcher: Any, token: int) -> bool: ...
    def roll_back(self, matcher: Any, tokens: int) -> None: ...


class LLGuidance:
    name = "llguidance"

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        from llguidance import LLTokenizer

        self._known = LLTokenizer(tokenizer.to_json(), n_vocab=vocabulary, eos_token=sorted(tokenizer.stop_ids))

    def compile(self, schema: dict[str, Any]) -> Any:
        from llguidance import LLMatcher

        compact: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=compact)
        matcher = LLMatcher(self._known, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def fill(self, matcher: Any, mask_W: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        matcher.unsafe_compute_mask_ptr(mask_W.ctypes.data, mask_W.nbytes)

    def accept(self, matcher: Any, token: int) -> bool:
        return bool(matcher.consume_token(token))

    def roll_back(self, matcher: Any, tokens: int) -> None:
        matcher.rollback(tokens)


class XGrammar:
    """``pip install --no-deps xgrammar apache-tvm-ffi``; it asks for transformers besides, which is not used here."""

    name = "xgrammar"

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        import xgrammar

        pieces = {token: text for text, token in tokenizer.vocabulary.items()}
        info = xgrammar.TokenizerInfo(
            [pieces.get(token, "") for token in range(vocabulary)],
            xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=vocabulary,
            stop_token_ids=sorted(tokenizer.stop_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._matcher = xgrammar.GrammarMatcher

    def compile(self, schema: dict[str, Any]) -> Any:
        compiled = self._compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=SEPARATORS, strict_mode=True
        )
        return self._matcher(compiled, max_rollback_tokens=64)

    def fill(self, matcher: Any, mask_W: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        import torch

        matcher.fill_next_token_bitmask(torch.from_numpy(mask_W[None]))

    def accept(self, matcher: Any, token: int) -> bool:
        return bool(matcher.accept_token(token))

    def roll_back(self, matcher: Any, tokens: int) -> None:
        matcher.rollback(tokens)


def followed(engine: GrammarEngine, schema: dict[str, Any], tokens: Sequence[int], vocabulary: int, clock: Any) -> Any:
    """Seconds to compile, of every mask along ``tokens``, and of going four tokens ahead and back at every fourth.

    ``tokens`` must be of the schema: raises ValueError for one that the engine refuses.
    """
    began = clock()
    matcher = engine.compile(schema)
    compile_s, masks_s, walks_s = clock() - began, list[float](), list[float]()
    mask_W = np.zeros((vocabulary + 31) // 32, np.int32)
    for place, token in enumerate(tokens):
        if place % 4 == 0 and place + 4 <= len(tokens):
            began = clock()
            for ahead in tokens[place : place + 4]:
                if not engine.accept(matcher, ahead):
                    raise ValueError(f"{engine.name} refuses token {ahead} at place {place}")
            engine.roll_back(matcher, 4)
            walks_s.append(clock() - began)
        began = clock()
        engine.fill(matcher, mask_W)
        masks_s.append(clock() - began)
        if not mask_W[token >> 5] >> (token & 31) & 1 or not engine.accept(matcher, token):
            raise ValueError(f"{engine.name} refuses token {token} at place {place}")
    return compile_s, masks_s, walks_s
