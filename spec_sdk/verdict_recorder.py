"""A verifier that keeps what another one decided."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import Guarantee, Request, SamplingParams, Verdict, Verifier
from spec_sdk.engine.committed_tokens import clip
from spec_sdk.tree import TokenTree


class VerdictRecorder(Verifier):
    """Decides as ``inner`` does and collects the verdicts.

    ``emitted[i]``: how many tokens of verdict i the answer took; fewer than it has where the answer ended.
    """

    name = "verdict_recorder"

    def __init__(self, inner: Verifier) -> None:
        super().__init__(inner.config)
        self.inner = inner
        self.verdicts: list[Verdict] = []
        self.emitted: list[int] = []

    def check(self, params: SamplingParams) -> None:
        self.inner.check(params)

    def guarantee_under(self, params: SamplingParams) -> Guarantee:
        return self.inner.guarantee_under(params)

    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        verdicts = self.inner.verify(trees, logits, requests)
        for verdict, request in zip(verdicts, requests, strict=True):
            if not isinstance(verdict, Exception):
                self.verdicts.append(verdict)
                self.emitted.append(len(clip(verdict, request)))
        return verdicts
