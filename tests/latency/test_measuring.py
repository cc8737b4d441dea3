"""What measuring times is what it says: speculative flash decode is exact attention, prediction first."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from spec_sdk.contracts import AttentionVerdict, AttentionVerifier
from spec_sdk.latency.measuring import (
    MeasuringPlan,
    Samples,
    StepLaps,
    Stopwatch,
    as_yaml,
    default_contexts,
    flash_decode,
    measure,
    speculative_flash_decode,
)
from spec_sdk.latency.model import StepTimes
from spec_sdk.latency.table import parse_table
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from tests.support.tiny_decoder import tiny_executor


class Remembering(AttentionVerifier):
    """Keeps what it is asked to compare."""

    name = "remembering"

    def verify(self, layer: int, difference_sq_BN: Any, norm_sq_BN: Any) -> AttentionVerdict:
        self.asked = difference_sq_BN, norm_sq_BN
        return AttentionVerdict(torch.tensor(False), torch.zeros(1, 1))


@pytest.mark.parametrize("size", [8, 50, 64])
def test_the_timed_kernel_computes_exact_attention(size: int) -> None:
    executor, keys = tiny_executor(), 100
    config, cache = executor.config, executor.new_cache()
    cache.reserve(1, keys)
    for storage in (cache.k_LSGCD, cache.v_LSGCD):
        storage.normal_(generator=torch.Generator().manual_seed(1))
    inputs = PassInputs.of("chain", [RequestRows.chain(0, keys - 1, [0])], executor.device)
    _, work = executor.decoder.forward_pass(inputs, cache, executor.ops)
    q_BNHD = torch.randn(1, 1, config.num_heads, config.head_dim, generator=torch.Generator().manual_seed(2))
    watch, laps, verifier = Stopwatch(lambda: None), StepLaps(), Remembering(None)
    exact_BNHD = flash_decode(1, q_BNHD, work, executor, watch, laps)
    speculative_BNHD = speculative_flash_decode(verifier, size)(1, q_BNHD, work, executor, watch, laps)
    assert torch.allclose(speculative_BNHD, exact_BNHD, atol=1e-5)
    difference_sq_BN, norm_sq_BN = verifier.asked
    k_BGSD, v_BGSD = work.cache.keys_values(0, 1, 2)
    ends = [i for i in range(keys) if i < size or i >= keys - 1 - size]
    sink = executor.ops.partial_attention(q_BNHD, k_BGSD[:, :, ends], v_BGSD[:, :, ends])
    assert torch.allclose(difference_sq_BN, (sink.o_BNHD - exact_BNHD).square().sum((-1, -2)), atol=1e-6)
    assert torch.allclose(norm_sq_BN, exact_BNHD.square().sum((-1, -2)), rtol=1e-4)
    assert laps.prediction > 0 and laps.attention > 0


def test_default_contexts() -> None:
    assert default_contexts(8192) == [1024, 2048, 4096, 8192]
    assert default_contexts(131072) == [1024, 2048, 4096, 8192]
    assert default_contexts(3000) == [1024, 2048]
    assert default_contexts(512) == [512]


@pytest.mark.parametrize(("token", "doubtful"), [(58.0, False), (70.0, True), (45.0, True)])
def test_a_table_whose_parts_are_not_the_whole_says_so(token: float, doubtful: bool) -> None:
    by_context = [{1024: [value]} for value in (7.0, 2.0, 9.0, token)]
    samples = Samples([10.0, 8.0, 99.0], [2.0], [3.0], *by_context)
    text = as_yaml(samples, title="tiny", source="a test", layers=4, size=16)
    assert ("measure again" in text) == doubtful and "in one call" not in text
    assert f"{100 * 58 / token:.0f} % at 1K" in text
    assert parse_table(text, "tiny", "tiny.yaml").groups[1].step(1024, 4) == StepTimes(10.0, 5.0, 7.0, 9.0, 2.0)


@pytest.mark.parametrize("one_call", [True, False])
def test_stages_are_held_against_a_step_that_is_made_of_them(one_call: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of our own: a millisecond for each stage outside attention, two in it."""
    executor, now = tiny_executor(), [0.0]
    monkeypatch.setattr("spec_sdk.latency.measuring.time.perf_counter", lambda: now[0])

    def takes(ms: float, owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            made = method(*arguments)
            now[0] += ms / 1000
            return made

        monkeypatch.setattr(owner, name, timed)

    for name, ms in {"pre_attention": 1.0, "attend": 2.0, "post_attention": 1.0, "head": 1.0}.items():
        takes(ms, executor.decoder, name)
    of_stages = 1.0 + 4.0 * executor.layers
    monkeypatch.setattr(executor, "forward", Mock())
    takes(1.0 if one_call else of_stages, executor, "forward")
    plan = MeasuringPlan([16, 64], size=4, repeats=2)
    samples = measure(executor, Remembering(None), plan, lambda: None)
    for measured in samples.token.values():
        assert measured == pytest.approx([1000 * of_stages] * 2)
    assert samples.fixed == pytest.approx([1000] * 8) and samples.flash_decode[16] == pytest.approx([2000] * 2)
    text = as_yaml(samples, title="tiny", source="a test", layers=executor.layers, size=4)
    assert "without stops in between: 100 % at 16, 100 % at 64" in text and "measure again" not in text
    token = parse_table(text, "tiny", "tiny.yaml").groups[1].token
    assert token is not None and token.at(16) == pytest.approx(1000 * of_stages, rel=1e-4)
    share = f"{100 / of_stages:.0f} %"
    told = f"in one call, not stage by stage: in {share} at 16, {share} at 64 of the time, 1000.0 tok/s at 16"
    assert (told in text) == one_call and ("in one call" in text) == one_call
