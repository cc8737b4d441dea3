"""check_runner: it passes the installed runners and the example's, and names the fault of each faulty one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import BlockRunner
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.options import merge_options
from spec_sdk.ranks import ALONE, Ranks
from spec_sdk.testing import check_runner
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from tests.support.example_plugin import example


def test_the_plain_runner_conforms() -> None:
    check_runner(SequentialRunner)


@pytest.mark.parametrize("fused", [True, False])
def test_layer_parallel_runners_conform(fused: bool) -> None:
    check_runner(
        lambda: LayerParallelRunner(LayerParallelConfig(size=2), fused),
        bad=[
            lambda: LayerParallelRunner(merge_options(LayerParallelConfig, {"size": 0}, "drafter", "layer_parallel")),
            lambda: LayerParallelRunner(LayerParallelConfig(groups=[[0], [1, 2], [3], [4]])),
        ],
    )


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"skip": [1, 3]}, {"exit": 1}),
        *(pytest.param({"skip": skip}, marks=pytest.mark.full) for skip in ([], [0])),
    ],
)
def test_layer_skip_runners_conform(options: dict[str, Any]) -> None:
    def skipping(**given: Any) -> Any:
        return lambda: LayerSkipRunner(merge_options(LayerSkipConfig, given, "drafter", "layer_skip"))

    check_runner(skipping(**options), bad=[skipping(skip=[4]), skipping(exit=5), skipping(skip=[-1])])


def test_attention_speculative_runners_conform() -> None:
    def make() -> AttentionSpeculativeRunner:
        return AttentionSpeculativeRunner(
            lambda: AttentionSink(AttentionSinkConfig()), L2Threshold(L2ThresholdConfig(threshold=0.3))
        )

    check_runner(make)


@pytest.mark.parametrize("skip", [pytest.param([], marks=pytest.mark.full), [1, 2], [0, 1, 2, 3]])
def test_the_examples_runner_conforms(skip: list[int]) -> None:
    module = example("runner")

    def skipping(layers: list[int]) -> Any:
        return lambda: module.SkipLayers(
            merge_options(module.SkipLayersConfig, {"skip": layers}, "drafter", "skipping")
        )

    check_runner(skipping(skip), bad=[skipping([4]), skipping([-1])])


class Spoilt(SequentialRunner):
    """The plain runner, with something wrong in a subclass."""

    def block(self, decoder: Decoder, layer: int, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
        self.write(decoder, layer, k_BNGD, v_BNGD, work)
        return decoder.post_attention(layer, h_BNM, decoder.project(layer, decoder.attend(layer, q_BNHD, work)))

    def write(
        self, decoder: Decoder, layer: int, k_BNGD: torch.Tensor, v_BNGD: torch.Tensor, work: ForwardPass
    ) -> None:
        decoder.write_kv(layer, k_BNGD, v_BNGD, work)

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        for layer in range(decoder.layers):
            h_BNM = self.block(decoder, layer, h_BNM, work)
            work.record(layer + 1, h_BNM)
        return h_BNM


class LeavesOutABlock(Spoilt):
    def block(self, decoder: Decoder, layer: int, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        return h_BNM if layer == 2 else super().block(decoder, layer, h_BNM, work)


class LeavesOtherValues(Spoilt):
    """Its own logits are right, since it attends before it spoils what it keeps."""

    def block(self, decoder: Decoder, layer: int, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        _, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
        h_BNM = super().block(decoder, layer, h_BNM, work)
        decoder.write_kv(layer, k_BNGD, 1.01 * v_BNGD, work)
        return h_BNM


class NamesOtherGroups(Spoilt):
    def attention_groups(self, layers: int) -> tuple[tuple[int, ...], ...]:
        return ((0,), (1, 2), (3,))


class RecordsNothing(Spoilt):
    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        for layer in range(decoder.layers):
            h_BNM = self.block(decoder, layer, h_BNM, work)
        return h_BNM


class RecordsWhatEnters(Spoilt):
    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        for layer in range(decoder.layers):
            work.record(layer + 1, h_BNM)
            h_BNM = self.block(decoder, layer, h_BNM, work)
        return h_BNM


class MixesRequests(Spoilt):
    guarantee = "relaxed"

    def block(self, decoder: Decoder, layer: int, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        return super().block(decoder, layer, h_BNM, work) + 0.01 * h_BNM.mean(0, keepdim=True)


class NeverForgets(Spoilt):
    """It keeps how many rows a slot has run, and lets that into what it computes."""

    guarantee = "relaxed"

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, int] = {}

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        shift_B = []
        for part in work.inputs.parts:
            self.rows[part.slot] = self.rows.get(part.slot, 0) + part.live
            shift_B.append(0.01 * self.rows[part.slot])
        return super().run(decoder, h_BNM, work) + torch.tensor(shift_B)[:, None, None]


class ForgetsWithItsSlot(NeverForgets):
    """What is wrong with the last one, mended."""

    def truncate(self, slot: int, length: int) -> None:
        if not length:
            self.rows.pop(slot, None)


class ChangesThePrefix(Spoilt):
    guarantee = "relaxed"

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        k_GKD, _ = work.cache.keys_values(0, 1, 2)
        k_GKD[:, 0] *= 1.5
        return super().run(decoder, h_BNM, work)


class DeclaresATensor(Spoilt):
    def declaration(self) -> Mapping[str, Any]:
        return {"name": self.name, "gains": torch.ones(2)}


class DeclaresAnotherName(Spoilt):
    def declaration(self) -> Mapping[str, Any]:
        return {"name": "plain"}


@pytest.mark.parametrize(
    ("runner", "fault"),
    [
        (LeavesOutABlock, "its logits are not those of a plain pass"),
        (LeavesOtherValues, "it leaves another V than a plain pass|its logits are not those of a plain pass"),
        (NamesOtherGroups, "are not those of the groups that attention_groups names"),
        (RecordsNothing, r"does not record the hidden states of layers \[1, 2, 3, 4\]"),
        (RecordsWhatEnters, "hidden states of layer 1 are not those of a plain pass"),
        (MixesRequests, "in company a request gets other logits"),
        (NeverForgets, "in a slot that another had a request gets other logits"),
        (ChangesThePrefix, "changed the K and V of committed tokens"),
        (DeclaresATensor, "is no plain data"),
        (DeclaresAnotherName, "has the name 'plain'"),
    ],
)
def test_a_faulty_runner_is_named(runner: type[BlockRunner], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_runner(runner, seeds=[0])


@pytest.mark.parametrize("runner", [Spoilt, ForgetsWithItsSlot])
def test_what_they_spoil_conforms(runner: type[BlockRunner]) -> None:
    check_runner(runner, seeds=[0])


class RefusesWithAnotherError(Spoilt):
    def prepare(self, layers: int, ranks: Ranks = ALONE) -> None:
        raise IndexError("list index out of range")


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (
            [RefusesWithAnotherError],
            r"bad runner 0 is refused by IndexError \(list index out of range\), not UserError",
        ),
        ([Spoilt], "bad runner 0 is not refused for a model of 4 layers"),
    ],
)
def test_bad_options_must_be_refused(bad: Sequence[type[BlockRunner]], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_runner(SequentialRunner, bad=bad, seeds=[0])
