"""The worker of llama.cpp, against a stand-in for llama-cpp-python with the same calls."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spec_sdk.bench.peers.commands import llama_command
from spec_sdk.bench.peers.serving import Request
from spec_sdk.bench.peers.worker import NoAnswer, NotAvailable, peer_worker

LLAMA_CPP = '''
import numpy as np

__version__ = "0"
VOCABULARY = 7


class Llama:
    """Counts up from the prompt's last token; by 10 + the seed where it samples. Keeps logits as 0.3.36 does."""

    n_batch = 512

    def __init__(self, path, n_ctx, draft_model, logits_all, n_gpu_layers, verbose):
        assert path.endswith("model.gguf") and n_gpu_layers == 0
        self.n_ctx, self.draft_model, self.ctx, self.n_threads, self.n_threads_batch = n_ctx, draft_model, self, 1, 3
        self.seed = 0
        self._logits_all = logits_all if draft_model is None else True
        self.scores = np.ndarray((n_ctx if logits_all else self.n_batch, VOCABULARY), dtype=np.single)

    def eval(self, past, tokens):
        for first in range(0, len(tokens), self.n_batch):
            rows = len(tokens[first : first + self.n_batch])
            if self._logits_all:
                at = past + first
                self.scores[at : at + rows, :].reshape(-1)[::] = np.zeros(rows * VOCABULARY, np.single)

    def set_seed(self, seed):
        self.seed = seed

    def generate(self, tokens, temp, top_k, top_p, min_p):
        assert (top_k, top_p, min_p) == ((0, 1.0, 0.0) if tokens[0] != 77 else (40, 0.5, 0.1))
        if len(tokens) > self.n_ctx:
            raise ValueError(f"Requested tokens ({len(tokens)}) exceed context window of {self.n_ctx}")
        last, past = tokens[-1], len(tokens)
        self.eval(0, tokens)
        while True:
            last += 10 + self.seed if temp else 1
            yield last
            self.eval(past, [last])
            past += 1


def llama_set_n_threads(ctx, threads, batch):
    ctx.n_threads = threads


def llama_print_system_info():
    return b"a stand-in"


def llama_supports_gpu_offload():
    return False
'''
DRAFT = """
class LlamaPromptLookupDecoding:
    def __init__(self, num_pred_tokens):
        self.num_pred_tokens = num_pred_tokens
"""


@pytest.fixture
def llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's path, beside a stand-in that the worker finds."""
    package = tmp_path / "packages" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LLAMA_CPP)
    (package / "llama_speculative.py").write_text(DRAFT)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return tmp_path / "model.gguf"


def test_it_answers_greedily_and_sampled_until_a_stop_token(llama_cpp: Path) -> None:
    with peer_worker(llama_command(sys.executable, llama_cpp, 100)) as worker:
        assert worker.facts["versions"] == {"llama-cpp-python": "0"} and worker.facts["default_threads"] == 1
        assert worker.facts["prefill_threads"] == 3 and "num_pred_tokens" not in worker.facts
        answered = worker.ask(Request([1, 2, 3], 4))
        assert answered.tokens == [4, 5, 6, 7] and answered.groups == 4 and (answered.peak_bytes or 0) > 1 << 20
        assert worker.ask(Request([1, 2, 3], 4, temperature=1.0, seed=2**32 + 1)).tokens == [15, 27, 39, 51]
        assert worker.ask(Request([3], 9, stop_ids=(6, 5))).tokens == [4, 5]
        assert worker.ask(Request([77], 1, top_k=40, top_p=0.5, min_p=0.1)).tokens == [78]
        with pytest.raises(NoAnswer, match="last 64 tokens"):
            worker.ask(Request([3], 9, repetition_penalty=1.2))
        with pytest.raises(NoAnswer, match=r"Requested tokens \(200\) exceed context window of 100"):
            worker.ask(Request([3] * 200, 1))
        assert worker.ask(Request([3], 1)).tokens == [4]


def test_drafts_go_beyond_the_context_and_a_gpu_needs_a_build_for_it(llama_cpp: Path) -> None:
    with peer_worker(llama_command(sys.executable, llama_cpp, 100, lookup=True)) as worker:
        assert worker.facts["num_pred_tokens"] == 2
        assert worker.ask(Request([1] * 102, 1)).tokens == [2]
        with pytest.raises(NoAnswer, match="of 102"):
            worker.ask(Request([1] * 103, 1))
    with (
        pytest.raises(NotAvailable, match="built for the CPU alone"),
        peer_worker(llama_command(sys.executable, llama_cpp, 100, device="cuda:0")),
    ):
        pass


def test_a_text_longer_than_a_batch_is_answered_with_drafts(llama_cpp: Path) -> None:
    """llama-cpp-python's logits have room for n_batch = 512 rows where logits_all is not asked for, drafts or not."""
    with peer_worker(llama_command(sys.executable, llama_cpp, 700, lookup=True)) as worker:
        assert worker.ask(Request([1] * 600, 2)).tokens == [2, 3]
        assert worker.ask(Request([1] * 510, 5)).tokens == [2, 3, 4, 5, 6]
