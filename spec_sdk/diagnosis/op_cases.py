"""Inputs for every operation of :class:`spec_sdk.ops.Ops`, to be computed by a backend and by the reference.

They are small, and such that what a kernel may get wrong shows: odd sizes, heads that share keys, prefixes beyond a
block of keys, trees with branches, slots out of order, windows and caps that reach only some keys, sinks.

Legend: B requests, N rows or queries, H query heads, G KV heads, D head dim, S keys or cache slots, C capacity, P
prefix, K rows, L layers, O outputs, I inputs, M model dim, V vocabulary, F states of an encoder.
"""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.diagnosis import recurrent_cases
from spec_sdk.diagnosis.op_inputs import TREE_DEPTHS, TREE_ENDS, Computes, Inputs
from spec_sdk.ops import PLAIN, AttentionMask, AttentionSpec, Ops
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs, PassKind, RequestRows
from spec_sdk.ops.quantized import BITS
from spec_sdk.ops.quantizing import quantize

H, G, D = 6, 2, 64
SINKS = (-3.0, 0.5, 1.0, 2.0, 4.0, 7.5)
SPECS = (
    PLAIN,
    AttentionSpec(window=40),
    AttentionSpec(scale=0.4, softcap=1.5),
    AttentionSpec(window=40, sinks=SINKS),
    AttentionSpec(sinks=SINKS),
)


def _projection(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    found = []
    for outputs, width, biased in ((130, 257, True), (64, 96, False), (17, 33, True)):
        projection = ops.projection(inputs.numbers(outputs, width), inputs.numbers(outputs) if biased else None)
        found += [projection(inputs.numbers(rows, width)) for rows in (1, 5, 13, 65)]
    return found


def _projections(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    whole = ops.projections(inputs.numbers(4, 49, 96), inputs.numbers(4, 49))
    plain = ops.projections(inputs.numbers(2, 64, 32))
    return [
        whole(inputs.numbers(4, 7, 96)),
        whole.layers(1, 3)(inputs.numbers(2, 1, 96)),
        plain(inputs.numbers(2, 9, 32)),
    ]


def _quantized_projection(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    found = []
    for bits in BITS:
        matrix = quantize(inputs.numbers(96, 128).float().cpu(), bits).to(inputs.device)
        projection = ops.quantized_projection(matrix, inputs.numbers(96))
        found += [projection(inputs.numbers(rows, 128)) for rows in (1, 5, 13, 65)]
    return found


def _with_rows(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    found, projection = [], None
    for outputs in (1, 20, 3):
        projection = ops.with_rows(projection, inputs.numbers(outputs, 33))
        found += [projection(inputs.numbers(rows, 33)) for rows in (1, 5)]
    return found


def _rms_norm(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    with torch.no_grad():
        return [
            ops.rms_norm(inputs.numbers(5, 96), inputs.gain(96), 1e-5),
            ops.rms_norm(inputs.numbers(2, 3, 7, 33), inputs.gain(33), 1e-2),
        ]


def _top_log_probabilities(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    """Of equal logits any may come first, so it is the logits at the places that are compared."""
    found = []
    for rows, vocabulary, count in ((3, 1003, 10), (1, 50, 50)):
        logits_NV = 4 * inputs.numbers(rows, vocabulary)
        logprob_NK, place_NK = ops.top_log_probabilities(logits_NV, count)
        different = torch.tensor([len(set(row)) for row in place_NK.tolist()])
        found += [logprob_NK, logits_NV.gather(1, place_NK.to(logits_NV.device)), different]
    return found


def _passes() -> list[tuple[PassKind, list[RequestRows]]]:
    """Requests in slots out of order, with prefixes and sizes of their own."""

    def tree(slot: int, prefix: int) -> RequestRows:
        return RequestRows.tree(slot, prefix, [1] * len(TREE_ENDS), TREE_DEPTHS, TREE_ENDS)

    # under the committed root two nodes, under the first of them two more, which ask: in order of creation
    growing = [
        RequestRows.growing(slot, prefix, [1] * 5, [0, 1, 1, 2, 2], [0, 1, 4, 2, 3], [5, 4, 5, 3, 4], 2)
        for slot, prefix in ((2, 130), (0, 5))
    ]
    return [
        ("chain", [RequestRows.chain(2, 127, [1]), RequestRows.chain(0, 1, [1]), RequestRows.chain(3, 64, [1])]),
        ("chain", [RequestRows.chain(1, 120, [1] * 12), RequestRows.chain(3, 0, [1] * 9)]),
        ("tree", [tree(3, 70), tree(0, 0), tree(1, 129)]),
        ("growing", growing),
    ]


def _cached_attention(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    found = []
    for kind, requests in _passes():
        of_pass = PassInputs.of(kind, requests, inputs.device)
        cache = PassCache(inputs.numbers(3, 4, G, 160, D), inputs.numbers(3, 4, G, 160, D), of_pass)
        q_gBNHD = inputs.numbers(2, of_pass.batch, of_pass.width, H, D)
        with torch.no_grad():
            found += [ops.cached_attention(q_gBNHD, cache, 1, spec) for spec in SPECS]
    return found


def _cross_attention(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    of_pass = PassInputs.of("chain", _passes()[1][1], inputs.device)
    q_BNHD = inputs.numbers(of_pass.batch, of_pass.width, H, D)
    return [ops.cross_attention(q_BNHD, inputs.numbers(4, H, 70, D), inputs.numbers(4, H, 70, D), of_pass)]


def _masks(device: torch.device) -> list[AttentionMask]:
    return [
        AttentionMask.chain(0, 17, device),
        AttentionMask.chain(100, 5, device),
        AttentionMask.chain(129, 1, device),
        AttentionMask.tree(90, TREE_ENDS, device),
        AttentionMask.growing_tree(90, [0, 1, 4, 2, 3], [5, 4, 5, 3, 4], 2, device),
    ]


def _over(mask: AttentionMask, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of a batch of two."""
    keys = (inputs.numbers(2, G, mask.keys, D) for _ in range(2))
    return (inputs.numbers(2, mask.queries, H, D), *keys)  # type: ignore[return-value]


def _tree_attention(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    return [ops.tree_attention(*_over(mask, inputs), mask, spec) for mask in _masks(inputs.device) for spec in SPECS]


def _partial(ops: Ops, inputs: Inputs) -> list[Any]:
    """Attention to some keys of which each query sees a part, one of them nothing; and to others."""
    q_BNHD = inputs.numbers(2, 5, H, D)
    hidden = torch.zeros(5, 70).masked_fill(torch.arange(70) >= 14 * torch.arange(5)[:, None], float("-inf"))
    first = inputs.numbers(2, G, 70, D), inputs.numbers(2, G, 70, D)
    second = inputs.numbers(2, G, 33, D), inputs.numbers(2, G, 33, D)
    return [
        ops.partial_attention(q_BNHD, *first, hidden.to(inputs.device)),
        ops.partial_attention(q_BNHD, *second),
    ]


def _statistics(part: Any) -> list[torch.Tensor]:
    # a query that sees no key has a largest score of -inf
    return [part.o_BNHD, part.m_BNH.nan_to_num(neginf=-9.0), part.l_BNH]


def _partial_attention(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    return [tensor for part in _partial(ops, inputs) for tensor in _statistics(part)]


def _combine(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    first, second = _partial(ops, inputs)
    return [*_statistics(ops.combine(first, second)), *_statistics(ops.combine(second, first))]


def _speculative_attention(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    found = []
    for mask in _masks(inputs.device):
        for ends in (16, 64):
            given = ops.speculative_attention(*_over(mask, inputs), mask, ends)
            found += [given.predicted_BNHD, given.exact_BNHD, given.difference_sq_BN, given.norm_sq_BN]
    return found


def _sink_attention(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    masks = _masks(inputs.device)
    return [t for mask in masks for t in _statistics(ops.sink_attention(*_over(mask, inputs), mask, 16))]


def _selected_attention(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    masks = _masks(inputs.device)
    return [t for mask in masks for t in _statistics(ops.selected_attention(*_over(mask, inputs), mask))]


def _chunk_lse(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    q_BNHD, k_BGSD = inputs.numbers(2, 5, H, D), inputs.numbers(2, G, 70, D)
    return [ops.chunk_lse(q_BNHD, k_BGSD, chunk) for chunk in (1, 16)]


CASES: dict[str, Computes] = {
    "projection": _projection,
    "projections": _projections,
    "quantized_projection": _quantized_projection,
    "with_rows": _with_rows,
    "rms_norm": _rms_norm,
    "top_log_probabilities": _top_log_probabilities,
    "cached_attention": _cached_attention,
    "cross_attention": _cross_attention,
    "tree_attention": _tree_attention,
    "partial_attention": _partial_attention,
    "combine": _combine,
    "speculative_attention": _speculative_attention,
    "sink_attention": _sink_attention,
    "selected_attention": _selected_attention,
    "chunk_lse": _chunk_lse,
    "gated_delta": recurrent_cases.gated_delta,
    "recurrent_mixer": recurrent_cases.recurrent_mixer,
}
"""By the name of the operation. ``accept`` gives no numbers: :mod:`spec_sdk.diagnosis.self_tests` has it."""
