"""A draft model whose logits are not usable for one of several requests."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk import Engine, SamplingParams, UserError
from spec_sdk.contracts import Budget, DraftLogits, Growing, Request
from spec_sdk.errors import PluginFault, RequestError
from spec_sdk.model.session import Session
from spec_sdk.testing import reference_sampler, request_for
from spec_sdk.tree import TreeBuilder
from spec_sdk_drafters.growing_draft import GrowingDraft
from spec_sdk_growth.beam import BeamConfig, BeamGrowth
from tests.support.text_engine import checkpoint as checkpoint

PROMPTS = ["Why is the sky blue?", "Name three colours."]
OPTIONS = ("max_new_tokens=12", "ignore_eos=true", "sampling.temperature=1", "policy=fixed", "policy.depth=3")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("native", [False, True])
def test_a_draft_model_of_nan_is_named(native: bool, temperature: float, checkpoint: Path, tmp_path: Path) -> None:
    """Greedily too, where of its tokens none is the most probable."""
    shutil.copytree(checkpoint, tmp_path / "draft")
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    tensors["model.norm.weight"].fill_(torch.nan)
    save_file(tensors, tmp_path / "draft" / "model.safetensors", {"format": "pt"})
    options = [*OPTIONS, f"model.draft={tmp_path / 'draft'}", f"sampling.temperature={temperature}"]
    options += [f"backend.native={str(native).lower()}", "backend=cpu"]
    engine = Engine.from_pipeline("sd_chain", target=checkpoint, overrides=options)
    with pytest.raises(UserError, match=r"step 1, drafter 'draft_model': row 0 of the logits is NaN"):
        engine.generate(PROMPTS[0])


def test_a_growth_that_asks_for_no_node_is_named() -> None:
    tree = TreeBuilder(1, 9)

    def growing() -> Growing:
        yield 0
        return tree.build().tree

    root = DraftLogits.over_all(torch.ones(1, 4))
    request = request_for([1], reference_sampler(SamplingParams()), 0).view
    with pytest.raises(RequestError) as caught:
        GrowingDraft(request, tree, growing(), root, root.vocabulary, Budget(0)).advance(None)
    assert isinstance(caught.value.__cause__, PluginFault) and "of no node" in str(caught.value.__cause__)


@pytest.mark.parametrize("begun", [False, True])
def test_what_a_growth_raises_has_its_name(begun: bool) -> None:
    class Fails(BeamGrowth):
        name = "fails"

        def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
            if not begun:
                raise KeyError("level")
            return self.levels(fed)

        def levels(self, fed: TreeBuilder) -> Growing:
            yield 0
            raise KeyError("level")

    growth, root = Fails(BeamConfig()), DraftLogits.over_all(torch.ones(1, 4))
    request = request_for([1], reference_sampler(SamplingParams()), 0).view
    with pytest.raises(KeyError) as raised:
        list(growth.growing(TreeBuilder(1, 9), root, 2, request, "mine"))
    assert raised.value.__notes__ == ["in growth 'fails'"]


@pytest.mark.parametrize("drafting", ["grow", "feed"])
def test_the_others_go_on(drafting: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose levels are fed together with those of the one that fails, or whose roots are."""
    draft = ("model.draft=cut", "model.draft_layers=[0]")
    engine = Engine.from_pipeline("sd_chain", target=checkpoint, overrides=[*OPTIONS, *draft], max_num_seqs=2)
    drafter: Any = engine.pipeline.engine.drafter
    inner, failed = getattr(Session, drafting), []

    def spoilt(session: Session, slots: Sequence[int], *arguments: Any) -> list[DraftLogits]:
        levels: list[DraftLogits] = inner(session, slots, *arguments)
        if session is drafter.session and len(slots) == 2:
            failed.append(slots)
            levels[slots.index(1)].logits_KR.fill_(torch.nan)
        return levels

    monkeypatch.setattr(Session, drafting, spoilt)
    one, other = engine.generate(PROMPTS)
    assert len(failed) == 1 and not engine.pipeline.engine.busy
    assert other.error is not None and "is NaN" in str(other.error)
    assert one.error is None and len(one.tokens) == 12
