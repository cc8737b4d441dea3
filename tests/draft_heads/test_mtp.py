"""The drafter ``mtp``: it conforms, its cache is mended rightly, and no answer changes, wherever the module lies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk import Engine, InMemoryModel
from spec_sdk.contracts import Budget
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from spec_sdk.testing import TableModel, check_drafter, joint_distribution
from spec_sdk_drafters.mtp import MtpConfig, MtpDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_samplers.reference import ReferenceSampler
from tests.checkpoints.test_float8 import FORMS, round_to_float8
from tests.draft_heads.test_drafter import OPTIONS, PROMPTS, Served, answers, greedy_answer, pipeline_of, target_session
from tests.draft_heads.test_hydra import same_draws
from tests.draft_heads.test_losslessness import (
    CHAINS,
    PROMPT,
    SAMPLINGS,
    TREES,
    VERIFIERS,
    VOCABULARY,
    Granted,
    TableModels,
)
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.support import tiny_checkpoints
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import random_ends, write_head
from tests.support.tiny_models import TinyModels
from tests.support.tiny_mtp import NAMES, SIZES, add_module, model_config, mtp_tensors, write_module

MODELS = TinyModels()
TABLE = replace(SIZES, V=VOCABULARY, W=VOCABULARY, M=4, S=4, heads=2, kv_heads=1, head_dim=4, mlp=16)
FAMILIES = ("deepseek", "mimo")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("mtp")
    return {
        "deepseek": write_module(directory / "deepseek", "deepseek", model_config(), mtp_tensors("deepseek")),
        "mimo": write_module(directory / "mimo", "mimo", model_config("mimo"), mtp_tensors("mimo", bias=True)),
    }


def drafter_of(module: Path, models: TinyModels = MODELS, **options: Any) -> MtpDrafter:
    """As YAML describes it."""
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "mtp", "checkpoint": str(module), **options})
    drafter = plugin(config, models)
    assert isinstance(drafter, MtpDrafter)
    return drafter


@pytest.mark.parametrize(("family", "options"), [("deepseek", "distinct"), ("mimo", "dynamic")])
def test_a_drafter_in_use_drafts_as_a_fresh_one_would(options: str, family: str, modules: dict[str, Path]) -> None:
    used = Served(drafter_of(modules[family], **OPTIONS[options]), [4, 8, 15, 16, 23], 3)
    for _ in range(4):
        state = used.request.rng.get_state()
        fresh = Served(drafter_of(modules[family], **OPTIONS[options]), list(used.request.tokens), 0)
        fresh.request.rng.set_state(state)
        (expected,) = fresh.drafter.propose([fresh.request.view], [Budget(4)])
        same_draws(used.cycle(Budget(4)), expected)


def test_drafting_stops_where_the_context_ends(modules: dict[str, Path]) -> None:
    for context, depth in ((None, 8), (12, 2), (6, 0)):
        assert (
            Served(drafter_of(modules["mimo"], context=context), list(range(5, 15)), 0).cycle(Budget(8)).depth == depth
        )


# --- losslessness ---


@pytest.mark.parametrize(("family", "options"), [("mimo", "dynamic")])
def test_conformance(family: str, options: str, modules: dict[str, Path]) -> None:
    check_drafter(
        lambda: drafter_of(modules[family], **OPTIONS[options]),
        tiny_checkpoints.VOCABULARY,
        prompts=[[5], [9, 3, 3, 60, 17, 9, 3]],
        draws=10,
        target=target_session(),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_plain_decoding(family: str, modules: dict[str, Path]) -> None:
    # of one token: there is no state before the first step
    for prompt in ([30, 31, 32, 40], [9]):
        assert greedy_answer(lambda: drafter_of(modules[family]), prompt, depth=3) == greedy_answer(
            lambda: NoDraft(None, MODELS), prompt, depth=3
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("growth", "verifier"),
    [
        ("drawn chain", "chain_rejection"),
        ("chosen chain", "block_verification"),
        ("drawn paths", "naive_tree"),
        ("drawn with replacement", "multi_step"),
    ],
)
def test_every_outcome_of_a_cycle(growth: str, verifier: str, family: str, tmp_path: Path) -> None:
    said = {"vocab_size": VOCABULARY, "hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = model_config(**said, head_dim=4, intermediate_size=16, model_type={"mimo": "mimo"}.get(family, "llama"))
    write_head(tmp_path, config, mtp_tensors(family, TABLE, seed=1, bias=family == "mimo"))
    models, target = TableModels(random_ends(TABLE, 3, dtype=torch.float32)), TableModel(VOCABULARY, 0)
    chosen, policy = MtpConfig(str(tmp_path), growth={**CHAINS, **TREES}[growth]()), Granted(Budget(2, 4))
    for params in SAMPLINGS.values():
        emitted = cycle_distribution(
            target, lambda: MtpDrafter(chosen, models), VERIFIERS[verifier], params, PROMPT, policy=policy
        )
        length = max(map(len, emitted))
        distribution = completed_distribution(emitted, target, params, PROMPT, length)
        expected = joint_distribution(target, ReferenceSampler(None, params), PROMPT, length)
        assert (distribution - expected).abs().max() < 1e-6


# --- pipelines ---


def own_module(directory: Path, family: str) -> Path:
    """A tiny target with a module among its tensors."""
    if family == "deepseek":
        write_checkpoint(directory, "smollm", 3)
        return add_module(directory, "deepseek")
    if family == "glm":
        return with_last_layer_as_module(directory, "glm4_moe")
    if family == "latents":
        return with_last_layer_as_module(directory, "deepseek_v3")
    write_checkpoint(directory, "qwen2", 3)
    add_module(directory, "mimo", bias=True)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "mimo"}))
    return directory


def with_last_layer_as_module(directory: Path, family: str) -> Path:
    """One more layer, with experts as the others have, and what joins it to the model."""
    layers, module = 3, "model.layers.3"
    write_checkpoint(directory, family, 3, num_hidden_layers=layers + 1)
    path, said = directory / "model.safetensors", directory / "config.json"
    known = mtp_tensors("deepseek", seed=3)
    joining = {name: of for name, of in known.items() if ".mlp." not in name and ".self_attn." not in name}
    stored = load_file(path)
    renamed = {name.replace(NAMES["deepseek"]["layer"], module): tensor for name, tensor in joining.items()}
    save_file(renamed | stored, path, metadata={"format": "pt"})
    config = json.loads(said.read_text()) | {"num_hidden_layers": layers, "num_nextn_predict_layers": 1}
    said.write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("family", "sampling"), [("deepseek", "sampling.temperature=0.8"), ("mimo", ""), ("glm", ""), ("latents", "")]
)
def test_the_targets_own_module(family: str, sampling: str, tmp_path: Path) -> None:
    target, said = own_module(tmp_path / "target", family), [sampling] if sampling else []
    pipeline = pipeline_of(target, "pipeline=mtp_chain", *said)
    drafter = pipeline.engine.drafter
    assert isinstance(drafter, MtpDrafter) and drafter.draft_name is not None
    assert drafter.draft_name.startswith("target, ")
    # embedding and output head are the target's very own
    assert drafter.head.embedding is pipeline.models.target.executor.decoder.embedding  # type: ignore[attr-defined]
    together = answers(pipeline, 3, PROMPTS)
    assert answers(pipeline, 1, PROMPTS[:4])[3] == together[3]
    if not sampling:
        assert answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS) == together
    # it is for texts as long as those that are served
    served = pipeline_of(target, "pipeline=mtp_chain", "model.context=100")
    assert isinstance(served.engine.drafter, MtpDrafter) and served.engine.drafter.session.context == 100


def test_a_module_beside_weights_in_float8(tmp_path: Path) -> None:
    """As DeepSeek-V3 is published: it drafts what that of the dense weights does."""
    directory = own_module(tmp_path / "rounded", "latents")
    dense = round_to_float8(directory, *FORMS["blocks"])
    own_module(tmp_path / "dense", "latents")
    save_file(dense, tmp_path / "dense" / "model.safetensors", metadata={"format": "pt"})
    drafted = []
    for name in ("rounded", "dense"):
        pipeline = pipeline_of(tmp_path / name, "pipeline=mtp_chain")
        drafter = pipeline.engine.drafter
        assert isinstance(drafter, MtpDrafter)
        drafted.append([part.weight_OI for part in drafter.head.projections])
    assert len(drafted[0]) == len(drafted[1]) and all(map(torch.equal, *drafted))


def test_a_mimo_is_a_qwen2(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "qwen2", "qwen2", 3)
    own_module(tmp_path / "mimo", "mimo")
    plain = [answers(pipeline_of(tmp_path / name, "pipeline=vanilla"), 1, PROMPTS) for name in ("qwen2", "mimo")]
    assert plain[0] == plain[1]


def test_a_target_without_a_module(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "target", "smollm", 3)
    with pytest.raises(UserError, match=r"checkpoint: is not given, and target has no prediction module \(MTP\) among"):
        pipeline_of(tmp_path / "target", "pipeline=mtp_chain")


def test_a_target_in_memory(tmp_path: Path) -> None:
    directory = own_module(tmp_path / "target", "deepseek")
    config = json.loads((directory / "config.json").read_text())
    model = InMemoryModel(load_file(directory / "model.safetensors"), config, directory, "mine")
    with pytest.raises(UserError, match="checkpoint: is not given, and mine is in memory, without files to look for a"):
        Engine.from_pipeline("mtp_chain", target=model)
