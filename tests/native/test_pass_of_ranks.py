"""A pass that several ranks make in one native call each is that of their stages; a rank may do either; and one that is
gone ends the others' wait. Threads stand in for the processes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from spec_sdk.errors import RankLost
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.session import Session
from spec_sdk.model.tensor_parallel import divided, load_shard
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ranks import ALONE, Ranks
from spec_sdk.testing.random_weights import RandomWeights
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.native import recurrent_decoder, whole_pass
from spec_sdk_backends.native.recurrent_decoder import NativeRecurrentDecoder
from spec_sdk_backends.native.whole_pass import NativePassOfRanks, NativeWholePass, Passed, native_whole_pass
from spec_sdk_backends.shared_memory import SharedMemory, SharingRanks
from tests.distributed.test_shared_memory import everyone
from tests.native.test_deterministic import Checkpoint
from tests.native.test_recurrent_decoder import MODELS, InEightBits, LongMemories, config_of, logits_of, natively
from tests.native.test_whole_pass import results, tokens
from tests.support.threads import threads

CLOSE = {torch.float32: 1e-5, torch.bfloat16: 0.03}
"""Of the largest value."""


class Rank(SharingRanks):
    """One of several threads that share memory as processes would."""

    def __init__(self, memory: SharedMemory) -> None:
        self.rank, self.size, self.memory = memory.rank, memory.size, memory
        self.shared = memory

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared.sum(x.contiguous())

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared.gather(x.contiguous())


def ranks_of(size: int, look: Callable[[], None] = lambda: None) -> list[Rank]:
    return [Rank(memory) for memory in everyone(size, look)]


def source_of(family: str, weights: str) -> ChosenWeights:
    """In few bits a part of the columns has whole groups, and every part of dense ones whole panels."""
    widths = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
    return ChosenWeights(Checkpoint(family, **dict.fromkeys(widths, 128)), weights, lambda bits: True)


def whole(family: str, dtype: torch.dtype, weights: str) -> TorchExecutor:
    made = CpuBackend(CpuConfig(native=True, activations="exact")).load(source_of(family, weights), dtype)
    assert isinstance(made, TorchExecutor) and isinstance(made._whole_pass, NativeWholePass)
    return made


def shard(rank: Ranks, family: str, dtype: torch.dtype, weights: str) -> TorchExecutor:
    backend = CpuBackend(CpuConfig(native=True, activations="exact"))
    return load_shard(source_of(family, weights), rank, rank, backend.load, dtype)


def of_all(executors: list[TorchExecutor]) -> list[list[torch.Tensor]]:
    """What every rank computes of all, without the parts of K and V that each has."""
    with ThreadPoolExecutor(len(executors)) as pool:
        return [found[:-2] for found in pool.map(results, executors)]


def stages_alone(executor: TorchExecutor) -> TorchExecutor:
    """It, without passes in one call."""
    vars(executor)["_whole_pass"] = None
    return executor


def far(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference, as a part of the largest value."""
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("weights", "size"), [("dense", 2), ("dense", 4), ("int8", 2)])
@pytest.mark.parametrize(
    ("family", "dtype"),
    # a mixture's near-tie goes to another expert where sums are rounded to bfloat16
    [
        *itertools.product(["smollm", "biased_llama", "qwen3", "gemma3", "youtu"], CLOSE),
        ("qwen2_moe", torch.float32),
        ("deepseek_v3", torch.float32),
    ],
    ids=str,
)
def test_all_ranks_have_what_one_computes(family: str, dtype: torch.dtype, weights: str, size: int) -> None:
    """Four ranks share two KV heads: each has half a group of weights in few bits, which would be dense."""
    with torch.no_grad():
        expected = results(whole(family, dtype, weights))[:-2]
    executors = [shard(rank, family, dtype, weights) for rank in ranks_of(size)]
    assert all(isinstance(executor._whole_pass, NativePassOfRanks) for executor in executors)
    with threads(1 if size == 4 else 2):
        first, *others = of_all(executors)
    assert far(first, expected) < CLOSE[dtype]
    for other in others:
        assert all(torch.equal(one, same) for one, same in zip(other, first, strict=True))


@pytest.mark.parametrize("family", ["smollm", "qwen2_moe"])
def test_a_rank_may_compute_stage_by_stage(family: str) -> None:
    """As one whose part the kernels lack: it sends the same messages."""
    executors = [shard(rank, family, torch.float32, "dense") for rank in ranks_of(2)]
    at_once, _ = of_all(executors)
    mixed, _ = of_all([executors[0], stages_alone(executors[1])])
    staged, _ = of_all([stages_alone(executor) for executor in executors])
    assert far(mixed, at_once) < 1e-5 and far(staged, at_once) < 1e-5


def test_rows_whose_message_is_too_long_are_left_to_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = of_all([shard(rank, "smollm", torch.float32, "dense") for rank in ranks_of(2)])
    monkeypatch.setattr(whole_pass, "CAPACITY", 4 * 64 * 4)
    executors = [shard(rank, "smollm", torch.float32, "dense") for rank in ranks_of(2)]
    made: list[int] = []
    call = NativePassOfRanks.__call__

    def counted(self: NativePassOfRanks, *arguments: Any) -> Passed | None:
        found = call(self, *arguments)
        made.append(0 if found is None else found[0].shape[0] * found[0].shape[1])
        return found

    monkeypatch.setattr(NativePassOfRanks, "__call__", counted)
    found, _ = of_all(executors)
    assert far(found, expected) < 1e-5
    assert 0 in made and 0 < max(made) <= 4


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each narrow pass that was offered to recurrent blocks of ranks whether they made it."""
    made: list[bool] = []
    call = NativeRecurrentDecoder.blocks_of_ranks

    def counted(self: NativeRecurrentDecoder, h_BNM: torch.Tensor, *others: Any) -> torch.Tensor | None:
        found = call(self, h_BNM, *others)
        if self.narrow(h_BNM):
            made.append(found is not None)
        return found

    monkeypatch.setattr(NativeRecurrentDecoder, "blocks_of_ranks", counted)
    return made


def recurrent_source(name: str, kind: type[RandomWeights]) -> RandomWeights:
    """Of which every part of a matrix has whole panels and groups."""
    kinds = ("", "moe_", "shared_", "shared_expert_", "moe_shared_expert_")
    widths = [f"{kind}intermediate_size" for kind in kinds]
    return kind(config_of(name, **dict.fromkeys(widths, 128)), 0)


def recurrent_shards(source: RandomWeights, ranks: list[Rank]) -> list[TorchExecutor]:
    backend = CpuBackend(CpuConfig(native=True, activations="exact"))
    return [load_shard(source, rank, rank, backend.load, torch.float32) for rank in ranks]


def logits_of_all(executors: list[TorchExecutor]) -> list[list[torch.Tensor]]:
    with ThreadPoolExecutor(len(executors)) as pool:
        return list(pool.map(logits_of, executors))


@pytest.mark.parametrize("kind", [LongMemories, pytest.param(InEightBits, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_have_states_whole_and_a_part_of_the_rest(
    name: str, kind: type[RandomWeights], at_once: list[bool]
) -> None:
    source = recurrent_source(name, kind)
    with threads(2), torch.no_grad():
        first, second = logits_of_all(recurrent_shards(source, ranks_of(2)))
        assert at_once and all(at_once)
        assert far(first, logits_of(natively(source, torch.float32, activations="exact"))) < 1e-4
    assert all(torch.equal(one, same) for one, same in zip(second, first, strict=True))


@pytest.mark.parametrize("name", ["qwen3_5", "falcon_h1"])
def test_a_rank_may_go_through_recurrent_blocks_stage_by_stage(name: str, at_once: list[bool]) -> None:
    source, ranks = recurrent_source(name, LongMemories), ranks_of(2)
    with torch.no_grad():
        natively_all, _ = logits_of_all(recurrent_shards(source, ranks_of(2)))
        ranks[1].memory = None
        mixed, _ = logits_of_all(recurrent_shards(source, ranks))
    assert {True, False} == set(at_once) and far(mixed, natively_all) < 1e-5


def test_rows_of_recurrent_blocks_whose_message_is_too_long(
    monkeypatch: pytest.MonkeyPatch, at_once: list[bool]
) -> None:
    source = recurrent_source("falcon_h1", LongMemories)
    with torch.no_grad():
        expected, _ = logits_of_all(recurrent_shards(source, ranks_of(2)))
        monkeypatch.setattr(recurrent_decoder, "CAPACITY", 4 * 64 * 4)
        del at_once[:]
        found, _ = logits_of_all(recurrent_shards(source, ranks_of(2)))
    assert {True, False} == set(at_once) and far(found, expected) < 1e-5


def test_ranks_without_memory_go_by_stages() -> None:
    (rank, _) = ranks_of(2)
    rank.memory = None
    executor = shard(rank, "smollm", torch.float32, "dense")
    assert native_whole_pass(executor.decoder) is None


def test_a_whole_decoder_whose_head_ranks_divide() -> None:
    """Each device group of two that has one rank: blocks need nobody."""
    of_one = whole("smollm", torch.float32, "dense")
    with torch.no_grad():
        expected = results(of_one)[:-2]
    first, second = of_all([divided(of_one, of_one.config, rank, ALONE) for rank in ranks_of(2)])
    assert all(torch.equal(one, other) for one, other in zip(first, expected, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(second, expected, strict=True))


@pytest.mark.parametrize("number", [1, 2])
def test_who_waits_within_a_pass_learns_that_the_other_is_gone(number: int) -> None:
    looks = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise RankLost("gone")

    first, _ = (shard(rank, "smollm", torch.float32, "dense") for rank in ranks_of(2, look))
    raised: list[RankLost] = []

    def feed() -> None:
        with pytest.raises(RankLost, match="gone") as caught:
            Session(first).prefill(0, tokens(5, 1))
        raised.append(caught.value)

    with threads(number):
        # one that waits for ever must not keep the tests
        waiting = threading.Thread(target=feed, daemon=True)
        waiting.start()
        waiting.join(20)
    assert len(raised) == 1 and len(looks) == 3
