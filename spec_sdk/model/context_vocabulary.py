"""What a draft model can draft, chosen at inference: some tokens for all requests, and those of each request's text.

Few tokens make most of a text, and most others of an answer stand before it in the prompt or the answer. So an output
head over the lowest ids, which a BPE tokenizer gives to frequent tokens, and the rows of the text's tokens, a few
dozen, miss few tokens at a fraction of the whole head's bytes.

Legend: B requests, N rows of a request, R tokens of the head, C tokens of a text beside them, M model dim,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.executor import Executor, PassOutput, PassPlan
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.grown_paths import OutputRows
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.reduced_vocabulary import ReducedVocabularyHead, reduced
from spec_sdk.ops.uploads import numbers_on


def with_lowest_tokens(executor: TorchExecutor, tokens: int, option: str) -> TorchExecutor:
    """The same model, its weights shared, with an output head over the ``tokens`` lowest ids: a copy of those rows.

    Raises UserError, naming ``option``, for a model whose head is divided among ranks, or over some tokens only, and
    rows of others not at hand.
    """
    if executor.head_is_collective:
        raise UserError(f"{option}: a draft model that ranks divide drafts all tokens; leave it at null")
    decoder, head = executor.decoder, executor.decoder.output_head
    if isinstance(head, ReducedVocabularyHead):
        if head.whole is None:
            raise UserError(
                f"{option}: {tokens} tokens cannot be chosen: the draft model has rows of {len(head.token_R)} of "
                f"{head.outputs} tokens; leave it at null"
            )
        # chosen anew from the target's head, which those rows are of
        head = head.whole
    if tokens >= head.outputs:
        return executor if head is decoder.output_head else executor.of_decoder(decoder.with_head(head))
    token_R = torch.arange(tokens, device=decoder.device)
    return executor.of_decoder(decoder.with_head(reduced(head, decoder.embedding, token_R, executor.ops)))


def with_all_tokens(executor: Executor, most_bytes: int) -> TorchExecutor | None:
    """The same model, all weights shared, with the output head over all tokens that its head over some was made of.

    None where that is not at hand as a plain matrix of at most ``most_bytes``.
    """
    if not isinstance(executor, TorchExecutor):
        return None
    head = executor.decoder.output_head
    whole = head.whole if isinstance(head, ReducedVocabularyHead) else None
    if whole is None or whole.quantized is not None or whole.nbytes > most_bytes:
        return None
    return executor.of_decoder(executor.decoder.with_head(whole))


def why_no_context(executor: Executor) -> str | None:
    """Why the tokens of a request's text cannot be added to what a model can draft; None if they can."""
    head = executor.decoder.output_head if isinstance(executor, TorchExecutor) else None
    if head is None or executor.config.encoder is not None:
        return "its output head is not that of a decoder in torch"
    if not isinstance(head, ReducedVocabularyHead):
        return "it can draft all tokens"
    return None if head.rows_of_tokens is not None else "its output head has rows of no other tokens"


@dataclass
class _Text:
    """A request's tokens that the head has no rows of, and their ``rows`` as the backend multiplies them. ``seen``:
    tokens of the text that were looked at; ``known``: what can be drafted, and ``token_R`` the same in the order of the
    logits.
    """

    known: set[int]
    token_R: torch.Tensor
    seen: int = 0
    tokens: list[int] = field(default_factory=list)
    rows: Projection | None = None


class ContextVocabulary:
    """Adds to a pass's logits those of the tokens that stand in each request's own text.

    ``executor`` is one that :func:`why_no_context` has nothing against. What one request can draft does not depend on
    the texts of others, and a draw's distribution is over exactly what it can draft.
    """

    def __init__(self, executor: TorchExecutor) -> None:
        decoder, head = executor.decoder, executor.decoder.output_head
        assert isinstance(head, ReducedVocabularyHead) and head.rows_of_tokens is not None
        self._decoder, self._ops = decoder, executor.ops
        self._rows, self._vocabulary = head.rows_of_tokens, head.outputs
        self._head_token_R = head.token_R
        self._in_head = frozenset(head.token_R.tolist())
        self._texts: dict[int, _Text] = {}

    def follow(self, slot: int, tokens: Sequence[int], others: Iterable[int] = ()) -> None:
        """``tokens``: a slot's text, which has grown since the last call. ``others``: tokens to add to it at first."""
        text = self._texts.get(slot)
        if text is None:
            text = self._texts[slot] = _Text(set(self._in_head), self._head_token_R)
        else:
            others = ()
        new = [t for t in dict.fromkeys(chain(others, tokens[text.seen :])) if t not in text.known]
        new = [token for token in new if token < self._vocabulary]
        text.seen = len(tokens)
        if new:
            text.known.update(new)
            text.tokens.extend(new)
            token_C = numbers_on(self._decoder.device, new)
            text.rows = self._ops.with_rows(text.rows, self._rows(token_C))
            text.token_R = torch.cat((text.token_R, token_C))

    def forget(self, slot: int) -> None:
        """A slot's request has ended, or another one begins there."""
        self._texts.pop(slot, None)

    def tokens(self, slot: int) -> list[int]:
        """What a slot's request can draft beside the head's tokens."""
        text = self._texts.get(slot)
        return [] if text is None else [*text.tokens]

    def output_rows(self, slot: int) -> OutputRows | None:
        """The head's rows and those of the tokens of a slot's text beside them; None where there are none beside."""
        text, head = self._texts.get(slot), self._decoder.output_head
        if text is None or text.rows is None:
            return None
        assert isinstance(head, ReducedVocabularyHead)
        return OutputRows([head.head, text.rows], text.token_R)

    def planned(self, plan: PassPlan) -> PassPlan:
        """The plan with what :meth:`completed` needs of the pass."""
        return replace(plan, taps=tuple(dict.fromkeys((*plan.taps, self._decoder.layers))))

    @torch.no_grad()
    def completed(self, slot: int, output: PassOutput) -> PassOutput:
        """A request's pass with the logits of its text's tokens behind those of the head's: [1, N, R] or [1, 1, R]."""
        text, logits_1NR = self._texts.get(slot), output.logits_BNV
        if text is None or text.rows is None:
            return output
        h_BNM = self._decoder.unpublished(output.hidden[self._decoder.layers][:, -logits_1NR.shape[1] :])
        of_text_1NC = self._decoder.logits_with(h_BNM, text.rows)
        return replace(output, logits_BNV=torch.cat((logits_1NR, of_text_1NC), -1), token_R=text.token_R)
