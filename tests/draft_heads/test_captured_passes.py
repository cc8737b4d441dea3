"""Heads whose short passes are captured draft as heads whose passes are not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.contracts import Budget
from spec_sdk.model.draft_heads.head import CapturedHeadExecutor, DraftHeadExecutor
from spec_sdk.model.executor import PassOutput
from spec_sdk.model.quantized_kv_cache import QuantizedKVCache
from spec_sdk.ops.reduced_vocabulary import ReducedVocabularyHead
from spec_sdk.registry import Registry
from spec_sdk.testing import StaticOps, repeated
from tests.draft_heads.test_drafter import LAYERS, OPTIONS, SIZES, Served, write_heads
from tests.draft_heads.test_hydra import same_draws
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_models import TinyModels
from tests.support.tiny_mtp import model_config, mtp_tensors, write_module
from tests.support.tiny_peagle import write_peagle

KINDS = {"eagle3": "eagle", "eagle": "eagle", "deepseek": "mtp", "mimo": "mtp", "Hydra++": "hydra", "peagle": "peagle"}
"""Heads, and the drafters that draft with them."""
CASES = [*itertools.product(("eagle3", "eagle", "deepseek", "Hydra++"), ("dynamic", "distinct")), ("mimo", "dynamic")]


class Counted(StaticOps):
    """Operations whose passes are captured, and how many were."""

    def __init__(self) -> None:
        self.captures = 0
        self.capture = self._counted

    def _counted(self, run: Callable[[], PassOutput]) -> tuple[Callable[[], object], PassOutput]:
        self.captures += 1
        return repeated(run)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("heads")
    return {
        **write_heads(directory),
        "deepseek": write_module(directory / "deepseek", "deepseek", model_config(), mtp_tensors("deepseek")),
        "mimo": write_module(directory / "mimo", "mimo", model_config("mimo"), mtp_tensors("mimo", bias=True)),
        "Hydra++": write_hydra(directory / "hydra", prefix=True),
        "peagle": write_peagle(directory / "peagle", SIZES, 1, **LAYERS),
    }


def drafter_of(heads: dict[str, Path], kind: str, ops: StaticOps, **options: Any) -> Any:
    plugin: Any
    models = TinyModels()
    models.ops = ops
    chosen = {"name": KINDS[kind], "checkpoint": str(heads[kind]), **options}
    plugin, config = Registry.discover().configure("drafter", chosen)
    return plugin(config, models)


@pytest.mark.parametrize(("kind", "options"), [*CASES, ("peagle", "chain")])
def test_they_draft_the_same(kind: str, options: str, heads: dict[str, Path]) -> None:
    """Over cycles in which one to five tokens are committed, and fed in passes of one, two, four or eight rows."""
    ops = Counted()
    served = [
        Served(drafter_of(heads, kind, each, **OPTIONS[options]), [4, 8, 15, 16], 3) for each in (ops, StaticOps())
    ]
    for _ in range(8):
        same_draws(*(one.cycle(Budget(3)) for one in served))
    # of few sizes, each once
    assert 2 <= ops.captures <= 12


def test_other_executors_of_the_head_capture_too(heads: dict[str, Path]) -> None:
    """One over some tokens; not one whose cache is in 8 bits, nor one of operations that capture nothing."""
    whole = drafter_of(heads, "eagle", Counted()).session.executor
    assert isinstance(whole, CapturedHeadExecutor) and whole.one_launch and whole.rows_of(3) == 4
    few = drafter_of(heads, "eagle", Counted(), vocabulary=8).session.executor
    assert isinstance(few, CapturedHeadExecutor) and isinstance(few.head.output_head, ReducedVocabularyHead)
    whole.keep_cache_in("int8")
    for quantized in (whole, whole.of_decoder(few.head)):
        assert not quantized.one_launch and quantized.rows_of(3) == 3 and "int8" in quantized.form
        assert isinstance(quantized.new_cache(), QuantizedKVCache)
    plain = drafter_of(heads, "eagle", StaticOps()).session.executor
    assert type(plain) is DraftHeadExecutor and not plain.one_launch
