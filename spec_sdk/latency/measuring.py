"""Fill a latency table by measuring: the stages of one-token decoding steps of a real model, on one device.

The paper's quantities (ALSpec, App. F), and what is timed for each:

- fixed: everything outside the blocks: positions, mask, embedding, final norm, head;
- pre_attention: input norm, QKV, rotation, writing K and V; post_attention: output projection, MLP, residuals;
- FD(K): the backend's own attention over all K keys;
- SFD_R(K): attention over the first S and the last S keys alone, from its start until the prediction is there;
- SFD_S(K): from the same start: that prediction, then attention over the keys between, both combined, and the verdict
  on the prediction (Alg. 3: the prediction is a part of the full attention, not an extra).

All blocks run in order on their own weights, as in a real step, so no stage finds them in a cache that decoding would
not. Random K and V stand for a prefix: time does not depend on their values.

Stages are what speculation on attention is made of, and they add up to a step that is made stage by stage. Plain
decoding may make its own in one call, of native code or a captured graph: that is timed too, and told beside.

Legend: B requests (1), N tokens (1), M model dim, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import yaml

from spec_sdk.contracts import AttentionVerifier
from spec_sdk.errors import UserError
from spec_sdk.latency.table import show_context
from spec_sdk.model.decoder import ForwardPass
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows

FIRST_CONTEXT = 1024
DEFAULT_CONTEXTS = 4
TOLERANCE = 0.1
"""How far the stages' sum may lie from a whole step before the table says that it is not to be trusted."""
NOTES = (
    "one process on one device: no communication is measured, so there are no times for 2 or more devices here",
    "link, the time that a prediction takes to the other group, is not measured and counts as 0 unless you give it",
)


@dataclass(frozen=True)
class MeasuringPlan:
    """``size``: S. ``repeats``: steps of each kind at each context, after one that does not count."""

    contexts: Sequence[int]
    size: int
    repeats: int


@dataclass
class Samples:
    """Microseconds, one entry per step; times of a stage are per layer.

    ``token``: a step stage by stage, without stops in between; ``whole``: as plain decoding makes it.
    """

    fixed: list[float] = field(default_factory=list)
    pre_attention: list[float] = field(default_factory=list)
    post_attention: list[float] = field(default_factory=list)
    flash_decode: dict[int, list[float]] = field(default_factory=dict)
    receiver: dict[int, list[float]] = field(default_factory=dict)
    sender: dict[int, list[float]] = field(default_factory=dict)
    token: dict[int, list[float]] = field(default_factory=dict)
    whole: dict[int, list[float]] = field(default_factory=dict)


class Stopwatch:
    """Laps in microseconds, each ended by a synchronisation with the device."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._last = 0.0
        self.lap()

    def lap(self) -> float:
        """Time since the last lap."""
        self._synchronize()
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        return 1e6 * passed


class NoStops(Stopwatch):
    """Laps at which nothing stops, and which have no times."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def lap(self) -> float:
        return 0.0


def default_contexts(longest: int) -> list[int]:
    """1K, 2K, 4K and 8K as far as a model of context ``longest`` goes; its own context if it is shorter."""
    contexts = [FIRST_CONTEXT << i for i in range(DEFAULT_CONTEXTS) if FIRST_CONTEXT << i <= longest]
    return contexts or [longest]


def check_plan(plan: MeasuringPlan, longest: int) -> None:
    """Raise UserError unless the model, whose context is ``longest``, can be measured so."""
    for context in plan.contexts:
        if context > longest:
            raise UserError(f"task.contexts: {show_context(context)} exceeds the model's context of {longest} tokens")


@torch.no_grad()
def measure(
    executor: TorchExecutor,
    verifier: AttentionVerifier,
    plan: MeasuringPlan,
    synchronize: Callable[[], None],
    progress: Callable[[str], None] = lambda line: None,
) -> Samples:
    """Time ``plan`` on a cache of its own. Contexts take turns, so that a disturbance hits all of them alike."""
    layers, samples, cache = executor.layers, Samples(), executor.new_cache()
    cache.reserve(1, max(plan.contexts))
    cache.fill_with_noise()
    plain_decoding = PassPlan(SequentialRunner(), logits="last")
    for repeat in range(plan.repeats + 1):
        progress(f"measuring: round {repeat + 1} of {plan.repeats + 1}")
        for context in plan.contexts:
            plain = _step(executor, cache, context, Stopwatch(synchronize), flash_decode)
            sender = speculative_flash_decode(verifier, plan.size)
            speculative = _step(executor, cache, context, Stopwatch(synchronize), sender)
            watch = Stopwatch(synchronize)
            _step(executor, cache, context, NoStops(), flash_decode)
            token = watch.lap()
            executor.forward(_last_token(executor, context), cache, plain_decoding)
            whole = watch.lap()
            if repeat == 0:
                continue
            for step in (plain, speculative):
                samples.fixed.append(step.fixed)
                samples.pre_attention.append(step.pre_attention / layers)
                samples.post_attention.append(step.post_attention / layers)
            samples.flash_decode.setdefault(context, []).append(plain.attention / layers)
            samples.receiver.setdefault(context, []).append(speculative.prediction / layers)
            samples.sender.setdefault(context, []).append(speculative.attention / layers)
            samples.token.setdefault(context, []).append(token)
            samples.whole.setdefault(context, []).append(whole)
    return samples


def as_yaml(samples: Samples, *, title: str, source: str, layers: int, size: int) -> str:
    """The medians as a latency table, to be fed back as ``task.latencies=PATH``."""

    def by_context(values: dict[int, list[float]]) -> dict[Any, float]:
        return {show_context(context): _median(of) for context, of in sorted(values.items())}

    fixed, pre, post = (_median(of) for of in (samples.fixed, samples.pre_attention, samples.post_attention))
    attention = by_context(samples.flash_decode)
    shares = {}
    for context, tokens in sorted(samples.token.items()):
        parts = fixed + layers * (pre + post + attention[show_context(context)])
        shares[show_context(context)] = parts / statistics.median(tokens)
    checks = [f"the stages add up to this much of the same step without stops in between: {_listed(shares)}"]
    if any(abs(share - 1) > TOLERANCE for share in shares.values()):
        checks.append(
            "they should add up to 100 %: stops take time, since each waits for the device, and others may have used "
            "the machine; measure again, with more task.repeats"
        )
    checks += _in_one_call(samples)
    table = {
        "title": title,
        "source": source,
        "layers": layers,
        "unit": "us",
        "speculation_size": size,
        "notes": [*NOTES, *checks],
        "tensor_parallel": {
            1: {
                "fixed": fixed,
                "pre_attention": pre,
                "post_attention": post,
                "flash_decode": attention,
                "speculative_sender": by_context(samples.sender),
                "speculative_receiver": by_context(samples.receiver),
                "tokens_per_second": {
                    show_context(context): round(1e6 / statistics.median(of), 3)
                    for context, of in sorted(samples.token.items())
                },
            }
        },
    }
    header = "# Measured by task=estimate. docs/latency_estimator.md describes the keys.\n"
    text: str = yaml.safe_dump(table, sort_keys=False, allow_unicode=True, width=1000)
    return header + text


@dataclass
class StepLaps:
    """One step, in microseconds. Stages are summed over the layers; ``prediction`` is a part of ``attention``."""

    fixed: float = 0.0
    pre_attention: float = 0.0
    attention: float = 0.0
    prediction: float = 0.0
    post_attention: float = 0.0


Attention = Callable[[int, torch.Tensor, ForwardPass, TorchExecutor, Stopwatch, StepLaps], torch.Tensor]
"""(layer, q_BNHD, pass, executor, watch, laps) → o_BNHD; adds its laps."""


def _last_token(executor: TorchExecutor, context: int) -> PassInputs:
    """The pass over one token that is the last of a context of so many."""
    return PassInputs.of("chain", [RequestRows.chain(0, context - 1, [0])], executor.device)


def _step(executor: TorchExecutor, cache: KVCache, context: int, watch: Stopwatch, attention: Attention) -> StepLaps:
    """One plain decoding step that ends at ``context`` tokens, stopped at every stage."""
    decoder, laps = executor.decoder, StepLaps()
    inputs = _last_token(executor, context)
    # made here, since the first layer would make it otherwise
    _ = inputs.parts
    h_BNM, work = decoder.forward_pass(inputs, cache, executor.ops)
    laps.fixed += watch.lap()
    for layer in range(decoder.layers):
        q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
        decoder.write_kv(layer, k_BNGD, v_BNGD, work)
        laps.pre_attention += watch.lap()
        o_BNHD = attention(layer, q_BNHD, work, executor, watch, laps)
        h_BNM = decoder.post_attention(layer, h_BNM, decoder.project(layer, o_BNHD))
        laps.post_attention += watch.lap()
    decoder.head(h_BNM)
    laps.fixed += watch.lap()
    return laps


def flash_decode(
    layer: int, q_BNHD: torch.Tensor, work: ForwardPass, executor: TorchExecutor, watch: Stopwatch, laps: StepLaps
) -> torch.Tensor:
    """The backend's own attention."""
    o_BNHD = executor.decoder.attend(layer, q_BNHD, work)
    laps.attention += watch.lap()
    return o_BNHD


def speculative_flash_decode(verifier: AttentionVerifier, size: int) -> Attention:
    """The same attention as the sender computes it (Alg. 3), by the backend's operation, and the verdict.

    The operation announces its prediction, which ends the first of its two laps.
    """

    def attend(
        layer: int, q_BNHD: torch.Tensor, work: ForwardPass, executor: TorchExecutor, watch: Stopwatch, laps: StepLaps
    ) -> torch.Tensor:
        (part,) = work.inputs.parts
        k_BGSD, v_BGSD = executor.ops.keys_to_read(work.cache, part.index, layer)

        def announced(predicted_BNHD: torch.Tensor) -> None:
            lap = watch.lap()
            laps.prediction += lap
            laps.attention += lap

        attention = executor.ops.speculative_attention(q_BNHD, k_BGSD, v_BGSD, part.mask, size, announced)
        verifier.verify(layer, attention.difference_sq_BN, attention.norm_sq_BN)
        laps.attention += watch.lap()
        return attention.exact_BNHD

    return attend


def _in_one_call(samples: Samples) -> list[str]:
    """What is to be said where plain decoding makes a step otherwise than stage by stage."""
    medians = {context: statistics.median(of) for context, of in sorted(samples.whole.items())}
    shares = {show_context(context): us / statistics.median(samples.token[context]) for context, us in medians.items()}
    if all(abs(share - 1) <= TOLERANCE for share in shares.values()):
        return []
    speeds = ", ".join(f"{1e6 / us:.1f} tok/s at {show_context(context)}" for context, us in medians.items())
    return [
        f"plain decoding makes a step in one call, not stage by stage: in {_listed(shares)} of the time, {speeds}. "
        "TP and ALSpec are both estimated stage by stage; hold what you would run against these too"
    ]


def _listed(shares: dict[str, float]) -> str:
    return ", ".join(f"{100 * share:.0f} % at {context}" for context, share in shares.items())


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)
