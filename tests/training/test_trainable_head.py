"""The head that is trained is the one that will run: chains of the training's forward pass against a drafter's session.

Legend: N positions of a text, A labelled positions, R rows of a step, V vocabulary, W tokens that can be drafted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import EAGLE_HEADS, load_head
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.head_directory import head_settings, write_head
from spec_sdk.training.head_start import head_start
from spec_sdk.training.measured_acceptance import measure
from spec_sdk.training.sample_shards import write_shard
from spec_sdk.training.samples import Sample
from spec_sdk.training.target_features import TargetFeatures
from spec_sdk.training.trainable_head import TrainableHead
from spec_sdk.tree import TreeBuilder
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_checkpoints import VOCABULARY, write_checkpoint
from tests.training.test_trainable import CPU, sample

TAPS = (1, 2, 4)
STEPS = 4


class Heads:
    """A tiny target with a head of random weights, as it is trained and as it runs."""

    def __init__(self, place: Path, name: str, shape: DraftShape, tokens: int | None, whole: bool = True) -> None:
        write_checkpoint(place / "target", name)
        self.target: Checkpoint = open_checkpoint(str(place / "target"))
        self.decoder = load_decoder(self.target, CPU, torch.float32)
        start = head_start(self.target, read_json_object(place / "target" / "config.json"), shape, TAPS, 0)
        token_W = None if tokens is None else torch.arange(VOCABULARY)[-tokens:]
        self.model = TrainableHead(start, self.features_of, STEPS, 0.8, CPU, token_W=token_W)
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for _, parameter in sorted(self.model.weights.items()):
                parameter += 0.3 * torch.randn(parameter.shape, generator=random) * parameter.std().nan_to_num(1.0)
        width = VOCABULARY if tokens is None else tokens
        self.directory = place / "head"
        write_head(self.directory, self.model, head_settings(self.target, start, width, STEPS, whole), "float32")
        ends = TargetEnds.of(self.target.name, self.decoder)
        self.executor = load_head(
            open_draft_head(str(self.directory)), EAGLE_HEADS, ends, HeadChoices(), CPU, torch.float32, Ops()
        )

    def states(self, text: list[int]) -> Mapping[int, torch.Tensor]:
        return Session(TorchExecutor(self.decoder, Ops())).prefill(0, text, TAPS)

    def features_of(self, one: Sample) -> torch.Tensor:
        hidden = self.states([*one.prompt, *one.answer][:-2])
        return torch.cat([hidden[tap] for tap in TAPS], dim=-1)

    def logits_while_drafting(self, one: Sample, anchor: int, steps: int) -> torch.Tensor:
        """What the head gives for the tokens after pair ``anchor``, along the text itself [steps, V]."""
        text, session = [*one.prompt, *one.answer], DraftHeadSession(self.executor)
        features_NM = self.executor.head.features(self.states(text[: anchor + 1]))
        (logit_V,) = roots_of(session.feed_pairs([0], [text[1 : anchor + 2]], [features_NM]))
        tree, rows = TreeBuilder(text[anchor + 1]), [logit_V]
        for step in range(1, steps):
            tree.add(tree.size - 1, text[anchor + 1 + step], "chosen")
            (logit_1V,) = rows_of(session.grow([0], [tree], [1]))
            rows.append(logit_1V[0])
        return torch.stack(rows)


@pytest.mark.parametrize(
    ("name", "shape", "tokens", "whole"),
    [
        ("smollm", DraftShape([4]), 30, True),
        ("smollm", DraftShape([4]), 30, False),
        ("llama2", DraftShape([4], mlp_size=40), None, True),
        ("qwen2", DraftShape([4], kv_heads=1), 50, True),
        ("gemma3", DraftShape([4]), 50, True),
    ],
)
def test_chains_are_those_of_a_drafter(
    tmp_path: Path, name: str, shape: DraftShape, tokens: int | None, whole: bool
) -> None:
    heads = Heads(tmp_path, name, shape, tokens, whole)
    samples = [sample(0, 5, 9), sample(1, 1, 6), sample(2, 30, 3), sample(3, 2, 1)]
    batch = heads.model.batch([samples[:2], samples[2:]], 100)
    with torch.no_grad():
        logit_RW = heads.model.logits(heads.model(batch))
    label_R, step_R = heads.model.targets(batch)
    # the first answer token has no pair before it where the prompt is one token
    firsts = [(one, i) for one in samples for i in range(len(one.answer)) if len(one.prompt) + i > 1]
    assert batch.labels == len(firsts)
    at = {
        (int(label) - int(step), int(step)): row for row, (label, step) in enumerate(zip(label_R, step_R, strict=True))
    }
    assert len(at) == len(label_R) == batch.rows(STEPS)
    token_W = torch.arange(VOCABULARY) if tokens is None else torch.arange(VOCABULARY)[-tokens:]
    for label, (one, i) in enumerate(firsts):
        steps = min(STEPS, len(one.answer) - i)
        assert {step for first, step in at if first == label} == set(range(steps))
        assert int(batch.next_A[label]) == one.answer[i]
        expected_SV = heads.logits_while_drafting(one, len(one.prompt) - 2 + i, steps)
        found_SW = torch.stack([logit_RW[at[label, step]] for step in range(steps)])
        torch.testing.assert_close(found_SW, expected_SV[:, token_W], atol=1e-4, rtol=1e-4)


def test_answers_may_all_be_shorter_than_the_chains(tmp_path: Path) -> None:
    model = Heads(tmp_path, "smollm", DraftShape([4]), 30).model
    short, longer = [sample(0, 5, 2), sample(1, 7, 1)], sample(2, 5, 9)
    state_RM, (_, step_R) = model(batch := model.batch([short], 100)), model.targets(batch)
    assert step_R.tolist() == [0, 0, 0, 1]
    state_RM.sum().backward()
    assert model.weights["qkv"].grad is not None and bool(model.weights["qkv"].grad.isfinite().all())
    with torch.no_grad():
        # beside an answer that is as long as a chain they are the same
        whole_RM, (_, step_R) = model(batch := model.batch([[*short, longer]], 100)), model.targets(batch)
    torch.testing.assert_close(whole_RM[step_R == 0][:3], state_RM[:3].detach())
    torch.testing.assert_close(whole_RM[step_R == 1][:1], state_RM[3:].detach())
    apart, together = (measure(model, rows, 100, 7, CPU).total for rows in ([[one] for one in short], [short]))
    assert apart.cycles_by_depth == together.cycles_by_depth and len(apart.cycles_by_depth) == 7
    assert apart.tokens == apart.chain_tokens == 3 and apart.cycles == apart.cycles_by_depth[7] > 0
    mixed = measure(model, [[short[0]], [longer]], 100, 7, CPU)
    assert mixed.total.chain_tokens == 11 and len(mixed.report()["mean_accepted_tokens_by_depth"]) == 7  # type: ignore[arg-type]


def test_features_are_what_a_prefill_gives(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "target", "smollm")
    executor = TorchExecutor(load_decoder(open_checkpoint(str(tmp_path / "target")), CPU, torch.float32), Ops())
    samples = [sample(0, 5, 9), sample(1, 1, 1), sample(2, 30, 3), sample(3, 6, 9), sample(4, 5, 40)]
    shard = tmp_path / "shard-00000.safetensors"
    write_shard(shard, samples)
    features = TargetFeatures(tmp_path / "features", {}, TAPS, executor.config.hidden_size)
    lower = executor.cut(range(max(TAPS)))
    features.write([shard], Session(lower, looks_at_logits=False), 3, print)
    found = {one.number: one for one in features.open([shard])}
    for one in samples:
        text = [*one.prompt, *one.answer][:-2]
        states_NF = features.of(found[one.number])
        assert states_NF.shape == (len(text), len(TAPS) * executor.config.hidden_size)
        if text:
            hidden = Session(executor).prefill(0, text, TAPS)
            expected_NF = torch.cat([hidden[tap] for tap in TAPS], dim=-1)
            torch.testing.assert_close(states_NF.float(), expected_NF, atol=2e-2, rtol=2e-2)


def test_a_mark_that_leaves_other_weights_to_the_target_is_refused(tmp_path: Path) -> None:
    heads = Heads(tmp_path, "smollm", DraftShape([4]), 30, whole=False)
    path = heads.directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "weights_of_target": ["layers"]}))
    with pytest.raises(UserError, match=r"weights_of_target is \['layers'\]; a head can leave \['head'\] to its"):
        open_draft_head(str(heads.directory))
