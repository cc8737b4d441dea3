"""Passes captured as CUDA graphs on a GPU: a sound executor, and the tokens of eager passes. Skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.testing import check_executor
from spec_sdk_backends.cuda_graphs import GraphCapture
from spec_sdk_backends.fused_decoder import FusedDecoder
from spec_sdk_backends.triton_ops import TritonOps
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.tiny_checkpoints import write_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPT = [5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9]
# tf32 products
TOLERANCES = {torch.float32: 5e-3, torch.bfloat16: 0.1}


@pytest.mark.parametrize("fused", [False, True])
def test_captured_passes_are_those_of_the_reference(fused: bool) -> None:
    """All of the conformance suite on the device, plain and layer-parallel."""
    device = torch.device("cuda")

    def load(source: object, dtype: torch.dtype) -> GraphExecutor:
        decoder = load_decoder(source, device, dtype, TritonOps())  # type: ignore[arg-type]
        return GraphExecutor(FusedDecoder(decoder) if fused else decoder, TritonOps(), GraphCapture(device))

    check_executor(
        load,
        tolerances=TOLERANCES,
        runners=(SequentialRunner, lambda: LayerParallelRunner(LayerParallelConfig())),
        seeds=(0,),
    )


SAMPLED = ("sampler=exact", "sampling.temperature=1", "sampling.seed=3")
SHORT_SINK = ("predictor.size=4", "attention_verifier.threshold=0.3")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vanilla", ()),
        ("sd_chain", ()),
        ("sd_chain", (*SAMPLED, "backend.verdicts=inside")),
        ("easyspec_paper", ()),
        ("alspec", SHORT_SINK),
        ("alspec_easyspec_tree", SHORT_SINK),
    ],
)
def test_tokens_are_those_of_eager_passes(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """With draft levels, verdicts and hits or misses inside what is captured."""
    write_checkpoint(tmp_path, "smollm", num_hidden_layers=9)
    found = {}
    for compiled in ("false", "true"):
        made = pipeline(name, compiled, tmp_path, *options)
        found[compiled] = [tokens_of(made, PROMPT[i:], 24, ignore_eos=True) for i in (0, 3)]
        if compiled == "true":
            captured = made.backend.compiled["graphs"]
            assert captured > 0
            tokens_of(made, PROMPT, 24, ignore_eos=True)
            assert made.backend.compiled["graphs"] == captured, "the sizes have all come"
    assert found["true"] == found["false"]


def pipeline(name: str, compiled: str, checkpoint: Path, *more: str) -> Pipeline:
    # in bfloat16, a GPU's own choice, a near-tie may fall the other way in a pass of another size
    options = ("backend=cuda", f"backend.compile={compiled}", f"model.target={checkpoint}", "model.dtype=float32")
    return build_pipeline(settings_of(f"pipeline={name}", *options, *more), Registry.discover())
