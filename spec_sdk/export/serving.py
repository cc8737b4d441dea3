"""The commands that serve an exported draft, for the README beside it: vLLM 0.33 and SGLang 0.5.23.

What each program reads, and what it reads wrongly without a word, is from the source of these versions.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.export.exported_head import ExportedHead
from spec_sdk.model.draft_heads.block_spec import BlockSpec, DSparkSpec
from spec_sdk.model.draft_heads.eagle1_spec import Eagle1Spec
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec

DIRECTORY = "DIRECTORY"
"""What stands for the exported directory, which may be moved."""


@dataclass(frozen=True)
class Serving:
    """``command``: empty where the program does not serve this draft, and ``why`` it does not."""

    program: str
    command: str = ""
    why: str = ""


def serving_of(format_name: str, head: ExportedHead) -> list[Serving]:
    """How both programs serve a head in this format."""
    spec = head.spec
    if format_name == "medusa":
        return [Serving(program, why="it has no Medusa heads any more") for program in ("vLLM", "SGLang")]
    if format_name == "speculators":
        return [
            _vllm_dspark(spec) or Serving("vLLM", f"vllm serve {DIRECTORY}"),
            Serving("SGLang", why=f"it does not read this format{_advice(spec)}"),
        ]
    if isinstance(spec, Eagle1Spec):
        # vLLM's fc has no bias, and SGLang's always has one
        if spec.fc_bias:
            return [Serving("vLLM", why="its EAGLE heads have no bias in fc, and this one has"), _sglang(head, "EAGLE")]
        return [_vllm(head, "eagle"), Serving("SGLang", why="its EAGLE heads have a bias in fc, and this one has none")]
    if isinstance(spec, Eagle3Spec):
        return [_vllm(head, "eagle3"), _unread_by_sglang(spec) or _sglang(head, "EAGLE3")]
    assert isinstance(spec, BlockSpec)
    return [
        _vllm_dspark(spec) or _vllm(head, spec.method),
        _blocks_in_sglang(head, spec),
    ]


def serving_of_model(target: str, depth: int) -> list[Serving]:
    """How both programs draft with a model."""
    return [
        Serving("vLLM", _vllm_command(target, {"method": "draft_model"}, depth)),
        Serving("SGLang", _sglang_command(target, "STANDALONE", depth)),
    ]


def _vllm(head: ExportedHead, method: str) -> Serving:
    return Serving("vLLM", _vllm_command(head.target.called, {"method": method}, head.depth))


def _vllm_command(target: str, how: Mapping[str, Any], depth: int) -> str:
    config = json.dumps({**how, "model": DIRECTORY, "num_speculative_tokens": depth})
    return f"vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(config)}"


def _vllm_dspark(spec: object) -> Serving | None:
    if isinstance(spec, DSparkSpec) and spec.markov_rank and spec.markov_kind != "vanilla":
        return Serving("vLLM", why=f"it builds vanilla Markov heads alone, and this one is {spec.markov_kind}")
    return None


def _sglang(head: ExportedHead, algorithm: str) -> Serving:
    return Serving("SGLang", _sglang_command(head.target.called, algorithm, head.depth))


def _sglang_command(target: str, algorithm: str, depth: int) -> str:
    return (
        f"python -m sglang.launch_server --model-path {shlex.quote(target)} --speculative-algorithm {algorithm} "
        f"--speculative-draft-model-path {DIRECTORY} --speculative-num-steps {depth} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {depth + 1}"
    )


def _blocks_in_sglang(head: ExportedHead, spec: BlockSpec) -> Serving:
    dspark = isinstance(spec, DSparkSpec)
    if spec.draft_vocabulary < spec.target_vocabulary:
        return Serving("SGLang", why="its heads of this method draft all tokens, and this one some")
    if spec.form.from_anchor and not dspark:
        return Serving("SGLang", why="it reads no draft off the anchor of a DFlash head, and this one has one there")
    # how many tokens a block drafts it takes from config.json
    return Serving(
        "SGLang",
        f"python -m sglang.launch_server --model-path {shlex.quote(head.target.called)} --speculative-algorithm "
        f"{'DSPARK' if dspark else 'DFLASH'} --speculative-draft-model-path {DIRECTORY}",
    )


def _unread_by_sglang(spec: Eagle3Spec) -> Serving | None:
    for key, said in (
        ("norm_before_residual", spec.variant.norm_before_residual),
        ("logit_scale", spec.variant.logit_scale != 1.0),
    ):
        if said:
            return Serving("SGLang", why=f"it does not read {key}, and would draft something else without a word")
    return None


def _advice(spec: object) -> str:
    if isinstance(spec, BlockSpec):
        return "; export with task.format=zlab"
    eagle3 = isinstance(spec, Eagle3Spec) and spec.method == "eagle3"
    return "; export with task.format=safeailab" if eagle3 else ", nor P-EAGLE heads in another one"
