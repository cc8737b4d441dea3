"""Mixtures of experts: which experts a row has depends on the row alone, and only those are computed."""

from __future__ import annotations

import gc
import json
import math
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.feed_forward import GatedMLP, MixtureOfExperts, Routing, activated
from spec_sdk.ops.host_reads import total
from spec_sdk.ops.linear import Projection
from spec_sdk.tree import TokenTree
from tests.support.tiny_checkpoints import VOCABULARY, write_checkpoint
from tests.support.tiny_decoder import ModelTensors, tiny_decoder

M, I, E = 16, 12, 8  # noqa: E741
CPU = torch.device("cpu")
MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "ernie4_5_moe", "glm4_moe"]


@dataclass(frozen=True)
class Noting(GatedMLP):
    """An expert that notes how many rows it is given."""

    rows: list[int] = field(default_factory=list)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(x.shape[0])
        return super().__call__(x)


def mixture(seed: int, routing: Routing, shared: bool = False, corrected: bool = False) -> MixtureOfExperts:
    """``shared``: with a gate, unless scores are corrected; ``corrected``: the router has a bias, too."""
    rng = torch.Generator().manual_seed(seed)

    def expert(width: int) -> Noting:
        up, down = torch.randn(2 * width, M, generator=rng) * M**-0.5, torch.randn(M, width, generator=rng)
        return Noting(Projection(up), Projection(down))

    experts = [expert(I) for _ in range(E)]
    router_EM, besides = torch.randn(E, M, generator=rng), expert(2 * I) if shared else None
    if corrected:
        correction_E, bias_E = torch.randn(E, generator=rng) * 0.3, torch.randn(E, generator=rng)
        return MixtureOfExperts(router_EM, experts, routing, besides, correction_E=correction_E, router_bias_E=bias_E)
    gate_1M = torch.randn(1, M, generator=rng) if shared else None
    return MixtureOfExperts(router_EM, experts, routing, besides, gate_1M)


def by_definition(moe: MixtureOfExperts, x_M: torch.Tensor) -> torch.Tensor:
    """One row, expert by expert."""
    how, logit_E = moe.routing, moe.router_EM @ x_M
    logit_E = logit_E if moe.router_bias_E is None else logit_E + moe.router_bias_E
    score_E = torch.sigmoid(logit_E) if how.scored_by == "sigmoid" else torch.softmax(logit_E, -1)
    choice = (score_E if moe.correction_E is None else score_E + moe.correction_E).tolist()
    size = E // how.groups
    groups = [range(i * size, (i + 1) * size) for i in range(how.groups)]
    groups.sort(key=lambda group: -sum(sorted((choice[e] for e in group), reverse=True)[:2]))
    allowed = [e for group in groups[: how.groups_of_token] for e in group]
    chosen = sorted(allowed, key=lambda expert: -choice[expert])[: how.per_token]
    whole = sum(float(score_E[expert]) for expert in chosen) if how.normalized else 1.0
    weights = {e: float(score_E[e]) / whole * how.scale for e in chosen}
    y_M = sum((weight * moe.experts[e](x_M[None])[0] for e, weight in weights.items()), torch.zeros(M))
    if moe.shared is not None:
        gate = 1.0 if moe.shared_gate_1M is None else torch.sigmoid(moe.shared_gate_1M @ x_M)
        y_M = y_M + gate * moe.shared(x_M[None])[0]
    return y_M


def routings() -> st.SearchStrategy[Routing]:
    """All that E experts allow."""

    def of(groups: int, groups_of_token: int) -> st.SearchStrategy[Routing]:
        most = E // groups * groups_of_token
        return st.builds(
            Routing,
            st.integers(1, most),
            st.booleans(),
            st.sampled_from(["softmax", "sigmoid"]),
            st.sampled_from([1.0, 2.5]),
            st.just(groups),
            st.just(groups_of_token),
        )

    return st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 3)]).flatmap(lambda of_groups: of(*of_groups))


@given(st.integers(0, 2**30), st.integers(1, 3), st.integers(1, 9), routings(), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_row_has_its_own_experts(
    seed: int, batch: int, rows: int, routing: Routing, shared: bool, corrected: bool
) -> None:
    moe = mixture(seed, routing, shared, corrected)
    x_BNM = torch.randn(batch, rows, M, generator=torch.Generator().manual_seed(seed))
    expected = torch.stack([by_definition(moe, x_M) for x_M in x_BNM.flatten(0, 1)]).view(x_BNM.shape)
    assert torch.allclose(moe(x_BNM), expected, atol=1e-4, rtol=1e-4)


def test_only_experts_that_a_row_chose_are_computed_and_each_once() -> None:
    moe = mixture(0, Routing(2, True), shared=True)
    x_BNM = torch.randn(2, 1, M, generator=torch.Generator().manual_seed(1))
    chosen_KA, weight_KA = moe.route(x_BNM.flatten(0, 1))
    assert torch.allclose(weight_KA.sum(-1), torch.ones(2))
    before = total()
    moe(x_BNM)
    assert total() == before + 1
    counts = torch.bincount(chosen_KA.flatten(), minlength=E).tolist()
    assert 0 in counts
    rows = [expert.rows for expert in moe.experts if isinstance(expert, Noting)]
    assert rows == [[count] if count else [] for count in counts]
    assert isinstance(moe.shared, Noting) and moe.shared.rows == [2]


@pytest.mark.parametrize(("gate", "up"), [(2.0, 3.0), (9.0, -3.0), (-9.0, 8.0), (7.5, -8.0), (-0.5, 0.25)])
def test_a_clamped_swiglu(gate: float, up: float) -> None:
    """Both are held within 7, but the gate not from below; what the gate multiplies has one added."""
    held, held_up = min(gate, 7.0), max(-7.0, min(up, 7.0))
    expected = held / (1 + math.exp(-1.702 * held)) * (held_up + 1)
    found = activated(torch.tensor([gate]), torch.tensor([up]), "clamped_swiglu")
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_there_is_no_capacity() -> None:
    """All rows go to one expert, and none is dropped."""
    moe = mixture(0, Routing(1, True))
    moe.router_EM.zero_()
    moe.router_EM[3] = 1.0
    x_KM = torch.rand(200, M, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(moe(x_KM[None])[0], moe.experts[3](x_KM), atol=1e-5)


def test_rows_of_padding_change_nothing() -> None:
    moe = mixture(3, Routing(3, False), shared=True)
    x_1NM = torch.randn(1, 5, M, generator=torch.Generator().manual_seed(3))
    for padding in (0.0, 1e30, float("inf"), float("nan")):
        padded_BNM = torch.full((2, 8, M), padding)
        padded_BNM[:1, :5] = x_1NM
        assert torch.allclose(moe(padded_BNM)[:1, :5], moe(x_1NM), atol=1e-5)


def test_the_choice_is_made_in_float32() -> None:
    """Logits that differ by less than bfloat16 can tell."""
    moe = mixture(4, Routing(1, True))
    x_KM = torch.ones(1, M, dtype=torch.bfloat16)
    for best in range(E):
        moe.router_EM.fill_(8.0)
        moe.router_EM[best, 0] += 0.01
        assert F.linear(x_KM, moe.router_EM.bfloat16()).unique().numel() == 1
        assert moe.route(x_KM)[0].tolist() == [[best]]
    decoder = load_decoder(ModelTensors("qwen3_moe", 0), CPU, torch.bfloat16)
    router = decoder.blocks[0].mlp
    assert isinstance(router, MixtureOfExperts) and router.router_EM.dtype == torch.float32


@pytest.mark.parametrize("scored_by", ["softmax", "sigmoid"])
def test_of_equal_scores_the_first_are_chosen(scored_by: Any) -> None:
    """Sigmoids of large logits are all 1."""
    moe = mixture(5, Routing(3, True, scored_by))
    moe.router_EM.fill_(4.0)
    assert moe.route(torch.ones(2, M))[0].tolist() == [[0, 1, 2]] * 2


def test_a_sum_has_a_least_value() -> None:
    moe = mixture(6, Routing(2, True, least_sum=4.0))
    _, weight_KA = moe.route(torch.randn(3, M, generator=torch.Generator().manual_seed(6)))
    assert bool((weight_KA.sum(-1) < 0.25).all())


def test_which_decoders_depend_on_their_data() -> None:
    assert tiny_decoder("smollm").data_dependent is None
    decoder = tiny_decoder("sparse_steps")
    assert decoder.data_dependent == "mixture of experts"
    # those of its layers that have an MLP
    assert decoder.subset([0, 2, 4]).data_dependent is None
    assert decoder.subset([0, 1]).data_dependent == "mixture of experts"


class Lending(ModelTensors):
    """A source of new tensors, which knows how many of them are still held."""

    lent: int = 0
    most: int = 0

    def tensor(self, name: str) -> torch.Tensor:
        tensor = super().tensor(name).clone()
        if ".experts." in name:
            weakref.finalize(tensor, self._returned)
            gc.collect()
            self.lent += 1
            self.most = max(self.most, self.lent)
        return tensor

    def _returned(self) -> None:
        self.lent -= 1


def test_no_second_copy_of_the_experts_is_held() -> None:
    source = Lending("qwen3_moe", 0, num_hidden_layers=2)
    # the collector need not look at all that was there before
    gc.freeze()
    try:
        decoder = load_decoder(source, CPU, torch.float32)
    finally:
        gc.unfreeze()
    # the last that was read, while the next one is
    assert (source.most, source.lent) == (2, 0)
    assert sum(p.nbytes for p in decoder.blocks[1].projections[2:]) == 6 * 3 * 24 * 48 * 4


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_that_transformers_left_in_one_tensor(name: str, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "original", name)
    write_checkpoint(tmp_path / "packed", name)
    model.save_pretrained(tmp_path / "packed", save_original_format=False)
    stored = load_file(tmp_path / "packed" / "model.safetensors").keys()
    assert "model.layers.3.mlp.experts.gate_up_proj" in stored and not any(".experts.0." in key for key in stored)
    original, packed = (open_checkpoint(str(tmp_path / directory)) for directory in ("original", "packed"))
    assert packed.names() == original.names() and not packed.unread, "what others are within is read"
    assert all(torch.equal(packed.tensor(key), original.tensor(key)) for key in original.names())


def test_a_packed_tensor_of_another_shape(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path, "mixtral")
    model.save_pretrained(tmp_path, save_original_format=False)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_local_experts": 4}))
    with pytest.raises(UserError, match=r"mlp.gate.weight' has shape \[5, 48\], but the config asks for \[4, 48\]"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.down_proj"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"layers.2.block_sparse_moe.experts.0.w2.weight' and 4 more are missing"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", MIXTURES)
def test_greedy_output_equals_generate(name: str, tmp_path: Path) -> None:
    reference = write_checkpoint(tmp_path, name)
    prompt = list(range(5, 25))
    with torch.inference_mode():
        expected = reference.generate(
            torch.tensor([prompt]), max_new_tokens=30, min_new_tokens=30, do_sample=False, eos_token_id=VOCABULARY + 1
        )
    session = Session(TorchExecutor(load_decoder(open_checkpoint(str(tmp_path)), CPU, torch.float32), Ops()))
    session.prefill(0, prompt[:-1])
    tokens = list(prompt)
    for _ in range(30):
        logits_V = session.score([0], [TokenTree.root_only(tokens[-1])])[0].logits_NV[0]
        session.commit([0], [[0]])
        tokens.append(int(logits_V.argmax()))
    assert tokens == expected[0].tolist()
