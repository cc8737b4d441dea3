"""Captured passes without a GPU: what a graph would record is run in place, where nothing may wait for the device.

Legend: B requests, N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch

from spec_sdk.contracts import BlockRunner
from spec_sdk.model import graph_executor
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.executor import PassOutput, PassPlan
from spec_sdk.model.graph_executor import MOST_ROWS, CannotCapture, GraphExecutor, changed
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.testing import StaticOps, WouldWait, check_executor, check_runner, no_waiting, repeated
from spec_sdk.testing.random_weights import TINY, RandomWeights
from tests.support.tiny_decoder import tiny_decoder

CPU = torch.device("cpu")


def executor(ops: Ops | None = None) -> GraphExecutor:
    return GraphExecutor(load_decoder(RandomWeights(TINY, 0), CPU, torch.float32), ops or StaticOps(), repeated)


def chain(made: TorchExecutor, prefix: int, count: int, slot: int = 0) -> PassInputs:
    rows = RequestRows.chain(slot, prefix, [1 + i % 7 for i in range(count)])
    return PassInputs.of("chain", [rows], CPU, rows=made.rows_of(count), slots=made.slots_of(count))


def grouped() -> BlockRunner:
    return LayerParallelRunner(LayerParallelConfig())


@pytest.mark.parametrize("make_runner", [SequentialRunner, grouped])
def test_it_is_a_sound_executor(make_runner: Callable[[], BlockRunner]) -> None:
    """All of the conformance suite: its passes are padded to powers of two, and none of them waits."""
    check_executor(
        lambda source, dtype: GraphExecutor(load_decoder(source, CPU, dtype), StaticOps(), repeated),
        runners=(make_runner,),
        seeds=(0,),
    )


def test_one_capture_serves_every_length_of_a_bucket() -> None:
    made, plan = executor(), PassPlan(SequentialRunner())
    cache = made.new_cache()
    cache.reserve(2, 300)
    for prefix, count, slot in ((0, 3, 0), (3, 4, 0), (7, 3, 0), (0, 4, 1), (10, 1, 0), (11, 1, 0), (12, 5, 0)):
        made.forward(chain(made, prefix, count, slot), cache, plan)
    assert made.captures == 3, "four rows, one row, eight rows"
    made.forward(chain(made, 4, 1, 1), cache, PassPlan(plan.runner, taps=(1,)))
    assert made.captures == 4, "other taps are another graph"


def test_a_repeated_pass_is_announced_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread may be another one than that of its capture."""
    made, plan, announced = executor(), PassPlan(SequentialRunner()), []
    monkeypatch.setattr(made.ops, "before_pass", lambda: announced.append(made.captures))
    cache = made.new_cache()
    cache.reserve(1, 64)
    for prefix in (0, 2, 4):
        announced.clear()
        made.forward(chain(made, prefix, 2), cache, plan)
        assert announced, "what is launched behind the pass goes to the current device"
    assert made.captures == 1


def test_a_result_outlives_the_next_pass() -> None:
    made, plan = executor(), PassPlan(SequentialRunner(), taps=(2,))
    cache = made.new_cache()
    cache.reserve(1, 64)
    first = made.forward(chain(made, 0, 2), cache, plan)
    kept = first.logits_BNV.clone(), first.hidden[2].clone()
    made.forward(chain(made, 2, 2), cache, plan)
    assert torch.equal(first.logits_BNV, kept[0])
    assert torch.equal(first.hidden[2], kept[1])


def test_a_larger_cache_is_captured_anew() -> None:
    """Its tensors, and the table of rotations, lie elsewhere."""
    made, plain = executor(), TorchExecutor(load_decoder(RandomWeights(TINY, 0), CPU, torch.float32), Ops())
    caches = made.new_cache(), plain.new_cache()
    plan = PassPlan(SequentialRunner())
    for prefix, capacity in ((0, 64), (2, 64), (4, 2048)):
        for cache in caches:
            cache.reserve(1, capacity)
        inputs = chain(made, prefix, 2)
        torch.testing.assert_close(
            made.forward(inputs, caches[0], plan).logits_BNV,
            plain.forward(inputs, caches[1], plan).logits_BNV,
            atol=1e-5,
            rtol=1e-5,
        )
    assert made.captures == 2


@pytest.mark.parametrize("elsewhere", ["the same executor", "an executor of the same decoder"])
def test_a_long_pass_over_another_cache_leaves_no_graph_with_a_table_that_is_gone(elsewhere: str) -> None:
    """It is not captured itself, but a larger table of rotations takes the place of the one that graphs read."""
    made, plan = executor(), PassPlan(SequentialRunner())
    small, large = made.new_cache(), made.new_cache()
    small.reserve(1, 64)
    large.reserve(1, 2048)
    made.forward(chain(made, 0, 2), small, plan)
    other = made if elsewhere == "the same executor" else TorchExecutor(made.decoder, StaticOps())
    other.forward(chain(other, 0, MOST_ROWS + 1), large, plan)
    assert made.captures == 1
    made.forward(chain(made, 2, 2), small, plan)
    assert made.captures == 2
    made.forward(chain(made, 4, 2), small, plan)
    assert made.captures == 2


def test_a_runner_says_itself_that_it_is_capturable() -> None:
    """A subclass may look at lengths: it is run as it is until it says that it does not."""

    class Reads(SequentialRunner):
        def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
            assert work.inputs.parts[0].live
            return super().run(decoder, h_BNM, work)

    class Claims(Reads):
        capturable = True

    made = executor()
    cache = made.new_cache()
    cache.reserve(1, 64)
    made.forward(chain(made, 0, 2), cache, PassPlan(Reads()))
    assert made.captures == 0
    with pytest.raises(WouldWait, match="tolist"):
        made.forward(chain(made, 0, 2), cache, PassPlan(Claims()))
    with pytest.raises(WouldWait, match="tolist"):
        check_runner(Claims, seeds=(0,))


def test_long_passes_are_not_captured() -> None:
    made = executor()
    cache = made.new_cache()
    cache.reserve(1, MOST_ROWS + 1)
    made.forward(chain(made, 0, MOST_ROWS + 1), cache, PassPlan(SequentialRunner()))
    assert made.captures == 0


def test_what_finds_no_room_runs_without_until_a_graph_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that come by turns, more than are kept, capture nothing anew; the one in use is not dropped."""
    monkeypatch.setattr(graph_executor, "MOST_GRAPHS", 4)
    monkeypatch.setattr(graph_executor, "STALE_AFTER", 12)
    made, plain = executor(), TorchExecutor(load_decoder(RandomWeights(TINY, 0), CPU, torch.float32), Ops())
    caches, plans = (made.new_cache(), plain.new_cache()), [PassPlan(SequentialRunner()) for _ in range(6)]
    for cache in caches:
        cache.reserve(1, 64)
    for turn in range(3):
        for plan in plans:
            inputs = chain(made, 0, 1 + turn % 2)
            found, expected = (
                one.forward(inputs, cache, plan) for one, cache in zip((made, plain), caches, strict=True)
            )
            torch.testing.assert_close(found.logits_BNV, expected.logits_BNV, atol=1e-5, rtol=1e-5)
    assert made.captures == 4
    for _ in range(14):
        made.forward(chain(made, 0, 1), caches[0], plans[0])
    made.forward(chain(made, 0, 1), caches[0], plans[5])
    assert made.captures == 5 and len(made._captured) == 4
    made.forward(chain(made, 0, 1), caches[0], plans[0])
    assert made.captures == 5


def test_graphs_of_a_cache_that_has_moved_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_executor, "MOST_GRAPHS", 2)
    made, plans = executor(), [PassPlan(SequentialRunner()) for _ in range(2)]
    cache, other = made.new_cache(), made.new_cache()
    for one, capacity in ((other, 4096), (cache, 64)):
        one.reserve(1, capacity)
        made.forward(chain(made, 0, 1), one, plans[0])
    made.forward(chain(made, 0, 1), cache, plans[1])
    assert made.captures == 2
    cache.reserve(1, 2048)
    for plan in plans:
        made.forward(chain(made, 0, 1), cache, plan)
    assert made.captures == 3, "that of the place before made room, and the other cache's is kept"


def test_a_size_that_cannot_be_captured_runs_without_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Its neighbours are captured, and the first alone is told of."""
    tried: list[int] = []

    def capture(run: Callable[[], PassOutput]) -> tuple[Callable[[], object], PassOutput]:
        tried.append(run().logits_BNV.shape[1])
        if tried[-1] in (2, 8):
            raise CannotCapture("it reads a value back")
        return repeated(run)

    decoder = load_decoder(RandomWeights(TINY, 0), CPU, torch.float32)
    made, plain = GraphExecutor(decoder, StaticOps(), capture), TorchExecutor(decoder, StaticOps())
    caches = made.new_cache(), plain.new_cache()
    for cache in caches:
        cache.reserve(1, 64)
    prefix, plan = 0, PassPlan(SequentialRunner())
    for count in (2, 4, 2, 8, 8, 4, 2):
        inputs = chain(made, prefix, count)
        found, expected = (one.forward(inputs, cache, plan) for one, cache in zip((made, plain), caches, strict=True))
        torch.testing.assert_close(found.logits_BNV, expected.logits_BNV, atol=1e-5, rtol=1e-5)
        prefix += count
    assert tried == [2, 4, 8] and made.captures == 1
    assert capsys.readouterr().err.splitlines() == [
        "backend.compile: a pass that cannot be captured runs without: it reads a value back"
    ]


def test_the_reference_operations_would_wait() -> None:
    """They go by lengths that the host knows, which a graph would freeze."""
    made = executor(Ops())
    cache = made.new_cache()
    cache.reserve(1, 64)
    with pytest.raises(WouldWait, match="tolist"):
        made.forward(chain(made, 0, 2), cache, PassPlan(SequentialRunner()))


X = torch.arange(6.0)
WAITS: dict[str, Callable[[], object]] = {
    "item": lambda: X.sum().item(),
    "float": lambda: float(X[0]),
    "bool": lambda: bool(X[0] > 1),
    "tolist": lambda: X.tolist(),
    "cpu": lambda: X.cpu(),
    "numpy": lambda: X.numpy(),
    "nonzero": lambda: X.nonzero(),
    "masked_select": lambda: X.masked_select(X > 2),
    "boolean index": lambda: X[X > 2],
    "boolean assignment": lambda: X.clone().__setitem__(X > 2, 0.0),
    "unique": lambda: X.unique(),
    "equal": lambda: torch.equal(X, X + 1),
    "upload": lambda: torch.tensor([1, 2]),
    "another device": lambda: X.to("meta"),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_refused(name: str) -> None:
    WAITS[name]()
    with pytest.raises(WouldWait), no_waiting():
        WAITS[name]()


def test_launches_are_allowed() -> None:
    with no_waiting():
        index = torch.arange(3)
        y = X[index] + X.gather(0, index) * X.clone().index_fill_(0, index, 1.0)[:3]
        y = torch.where(y > 1, y, 0.0).masked_fill(y > 3, 1.0)
        X.clone()[index] = y
        torch.topk(y, 2).values.softmax(-1).to(torch.float64)


@pytest.mark.parametrize("make_runner", [SequentialRunner, grouped])
def test_a_whole_pass_is_traced_as_one_graph(make_runner: Callable[[], BlockRunner]) -> None:
    """No value is needed to go on: tracing has none to give."""
    from torch.fx.experimental.proxy_tensor import make_fx

    made = TorchExecutor(load_decoder(RandomWeights(TINY, 0), CPU, torch.float32), StaticOps())
    cache, plan = made.new_cache(), PassPlan(make_runner())
    plan.runner.prepare(made.layers)
    cache.reserve(1, 64)
    inputs = chain(made, 5, 3)
    assert inputs.flat is not None
    made.forward(inputs, cache, plan)  # the table of rotations is made here

    def whole(flat: torch.Tensor) -> torch.Tensor:
        return made.forward(PassInputs.over(flat, "chain", 1, 3, 3), cache, plan).logits_BNV

    graph = make_fx(whole, tracing_mode="fake", _allow_non_fake_inputs=True)(inputs.flat)
    torch.testing.assert_close(graph(inputs.flat), whole(inputs.flat))


def test_a_mixture_of_experts_is_not_captured() -> None:
    """It reads on the host how many rows each expert has."""
    made = GraphExecutor(tiny_decoder("qwen3_moe"), Ops(), repeated)
    cache = made.new_cache()
    cache.reserve(1, 8)
    made.forward(chain(made, 0, 1), cache, PassPlan(SequentialRunner()))
    assert made.captures == 0


def test_what_is_changed_in_an_output_is_all_of_it() -> None:
    one = torch.ones(1, 2, 3)
    output = PassOutput(one, {2: 2 * one}, (None,), torch.tensor([3, 4]), 5 * one)
    assert [field.name for field in fields(output)] == ["logits_BNV", "hidden", "reports", "token_R", "made"]
    found = changed(output, lambda tensor: tensor + 1)
    assert found.token_R is not None and found.made is not None
    made = [found.logits_BNV, found.hidden[2], found.token_R, found.made]
    torch.testing.assert_close(made, [one + 1, 2 * one + 1, torch.tensor([4, 5]), 5 * one + 1])
    assert len(found.hidden) == len(found.reports) == 1
