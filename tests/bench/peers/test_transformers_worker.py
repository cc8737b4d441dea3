"""The worker of transformers: all ways of drafting give plain decoding's tokens, and sampling leaves no token out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from spec_sdk.bench.peers.assistant import Assistant
from spec_sdk.bench.peers.commands import transformers_command
from spec_sdk.bench.peers.serving import Request
from spec_sdk.bench.peers.worker import NoAnswer, peer_worker
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint

PROMPT = [7, 8, 9, 10, 7, 8, 9, 10, 7, 8]


@pytest.mark.parametrize("drafts", ["none", pytest.param("lookup", marks=pytest.mark.full), "assistant"])
def test_answers_are_plain_decoding_s_and_samples_are_of_the_whole_vocabulary(tmp_path: Path, drafts: str) -> None:
    model = write_text_checkpoint(tmp_path / "model").eval()
    assistant = Assistant(tmp_path / "assistant", "another")
    write_text_checkpoint(assistant.directory, num_hidden_layers=1)
    command = transformers_command(
        sys.executable,
        tmp_path / "model",
        "float32",
        lookup=drafts == "lookup",
        assistant=assistant if drafts == "assistant" else None,
    )
    tokens, wanted = torch.tensor([PROMPT]), []
    with torch.inference_mode():
        distribution_V = model(tokens).logits[0, -1].softmax(-1)
        for _ in range(24):
            wanted.append(int(model(tokens).logits[0, -1].argmax()))
            tokens = torch.cat([tokens, torch.tensor([wanted[-1:]])], dim=1)
    with peer_worker(command) as worker:
        facts = {"none": set(), "lookup": {"prompt_lookup_num_tokens"}, "assistant": {"assistant", "assistant_layers"}}
        assert set(worker.facts) == {"versions", "threads"} | facts[drafts]
        answered = worker.ask(Request(PROMPT, 24))
        # the checkpoint's own end token is no end
        assert answered.tokens == wanted and answered.first_tokens >= 1
        assert (answered.groups == 24) if drafts == "none" else (answered.groups <= 24)
        ended = wanted.index(wanted[5]) + 1
        assert worker.ask(Request(PROMPT, 24, stop_ids=(wanted[5],))).tokens == wanted[:ended]
        count = 120 if drafts == "none" else 24
        samples = [worker.ask(Request(PROMPT, 2, temperature=1.0, seed=seed)).tokens for seed in range(count)]
        assert samples[3] == worker.ask(Request(PROMPT, 2, temperature=1.0, seed=3)).tokens
        # transformers' own top_k of 50 would leave as many
        assert len({sample[0] for sample in samples}) > count // 2
        assert float(distribution_V[torch.tensor([s[0] for s in samples])].log().mean()) == pytest.approx(
            float((distribution_V * distribution_V.log()).sum()), abs=0.5
        )
        few = {worker.ask(Request(PROMPT, 1, temperature=1.0, seed=seed, top_k=2)).tokens[0] for seed in range(20)}
        assert few == set(distribution_V.topk(2).indices.tolist())
        with pytest.raises(NoAnswer):
            worker.ask(Request([VOCABULARY + 5], 1))
        assert worker.ask(Request(PROMPT, 3)).tokens == wanted[:3]
