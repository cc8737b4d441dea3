"""The target's probabilities, kept while it answers: no pass is made for them alone.

Legend: B requests, N tree nodes, V vocabulary, K most probable tokens, A tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import Guarantee, Request, SamplingParams, Verdict, Verifier
from spec_sdk.ops import host_reads
from spec_sdk.tree import TokenTree


class LabelRecorder(Verifier):
    """Verifies plain decoding steps as ``inner`` does, and keeps what the target held probable in each of them.

    Only of requests that were :meth:`begin` begun; :meth:`finish` gives their labels out.
    """

    name = "label_recorder"

    def __init__(self, inner: Verifier, top: int) -> None:
        super().__init__(inner.config)
        self.inner = inner
        self._top = top
        self._rows: dict[int, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {}

    def check(self, params: SamplingParams) -> None:
        self.inner.check(params)

    def guarantee_under(self, params: SamplingParams) -> Guarantee:
        return self.inner.guarantee_under(params)

    def begin(self, request: int) -> None:
        """Keep labels of this request from now on."""
        self._rows[request] = []

    def finish(self, request: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids [A, K] int32, their log-probabilities [A, K] float16, those of the answer's own tokens [A] float32."""
        ids, logprobs, own = zip(*self._rows.pop(request), strict=True)
        return torch.stack(ids).int(), torch.stack(logprobs).half(), torch.stack(own)

    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        kept = [i for i, request in enumerate(requests) if request.id in self._rows]
        if not kept:
            return self.inner.verify(trees, logits, requests)
        logit_BV = torch.stack([logits[i][0] for i in kept]).float()
        total_B1 = logit_BV.logsumexp(-1, keepdim=True)
        top = logit_BV.topk(min(self._top, logit_BV.shape[-1]), dim=-1)
        verdicts = self.inner.verify(trees, logits, requests)
        chosen = [verdict.next_token if isinstance(verdict := verdicts[i], Verdict) else 0 for i in kept]
        chosen_B1 = torch.tensor(chosen, device=logit_BV.device)[:, None]
        own_B1 = logit_BV.gather(1, chosen_B1) - total_B1
        id_BK, logprob_BK, own_B1 = host_reads.read(top.indices, top.values - total_B1, own_B1)
        for row, i in enumerate(kept):
            self._rows[requests[i].id].append((id_BK[row], logprob_BK[row], own_B1[row, 0]))
        return verdicts
