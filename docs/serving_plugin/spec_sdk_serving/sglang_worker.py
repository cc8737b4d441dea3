"""NGRAM's worker with a drafter of spec-sdk in the place of its corpus."""

from __future__ import annotations

from typing import Any

import numpy as np

from spec_sdk_serving.sglang_plugin import new_corpus


def worker_class() -> type:
    """The class that SGLang's scheduler makes, of the worker that is installed."""
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    class SpecSdkWorker(NGRAMWorker):  # type: ignore[misc, unused-ignore]
        """Asks the drafter for trees with each request's whole text, where NGRAM's own shows the corpus the last
        tokens.
        """

        def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
            super().__init__(server_args=server_args, gpu_id=gpu_id, nccl_port=nccl_port, target_worker=target_worker)
            self.ngram_corpus = new_corpus(self.draft_token_num)

        def _prepare_draft_tokens(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
            # with overlap a step's tokens reach the requests one step later, and lie in spec_info until then
            late = self.enable_overlap and not batch.grammar_needs_sync()
            accepted = batch.spec_info.accept_tokens.cpu().tolist() if late else []
            lengths = batch.spec_info.accept_lens.cpu().tolist() if late else [0] * len(batch.reqs)
            self.prev_token_ids, self.prev_accept_lens = accepted, lengths
            texts = []
            for i, (request, length) in enumerate(zip(batch.reqs, lengths, strict=True)):
                first = i * self.draft_token_num
                recent = accepted[first : first + length]
                texts.append([*request.origin_input_ids_unpadded, *request.output_ids, *recent])
            names = [request.rid for request in batch.reqs]
            return self.ngram_corpus.batch_get(names, texts, [len(text) for text in texts])

        def _update_ngram_corpus(self, batch: Any) -> None:
            """The drafter reads what was accepted with the next text."""

    return SpecSdkWorker
