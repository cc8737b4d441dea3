"""Inputs for what recurrent layers compute: a text, and a tree and single steps behind it.

Legend: N rows, S rows seen, P earlier rows, G key heads, H value heads, D key dim, V value dim, M model dim, K tokens
of a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from spec_sdk.diagnosis.op_inputs import TREE_DEPTHS, TREE_ENDS, Inputs
from spec_sdk.model.recurrent.layers import CausalConvolution, GatedDeltaNet, RecurrentMixer, ShortConvolution
from spec_sdk.model.recurrent.paths import RowPaths
from spec_sdk.model.recurrent.state_space import StateSpace
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, PassKind, RequestRows

G, H, D, V, M, K = 2, 6, 32, 16, 48, 4


def gated_delta(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    """A tree of nine nodes, some of them earlier rows, behind a state and a chain of three rows."""
    wide, N, P = torch.promote_types(inputs.computed, torch.float32), 5, 7

    def numbers(*shape: int) -> torch.Tensor:
        return inputs.numbers(*shape).to(wide)

    k_GSD = torch.nn.functional.normalize(numbers(G, P + N, D), dim=-1)
    log_decay_HS = -numbers(H, P + N).abs()
    visible_SS = _visible().to(inputs.device)
    state_path_H = -4 * numbers(H).abs().double()
    path_HS = state_path_H[:, None] + log_decay_HS.double() @ visible_SS.double().T
    earlier = k_GSD[:, :P], numbers(H, P, V), path_HS[:, :P]
    return list(
        ops.gated_delta(
            numbers(H, V, D),
            state_path_H,
            earlier,
            numbers(G, N, D),
            k_GSD[:, P:],
            numbers(H, N, V),
            numbers(H, N).sigmoid(),
            log_decay_HS[:, P:],
            visible_SS[P:],
        )
    )


def recurrent_mixer(ops: Ops, inputs: Inputs) -> list[torch.Tensor]:
    """All kinds of layers: a text that is folded into the state, then a tree, a chain and a step."""
    found = []
    for mixer, width in _mixers(inputs):
        mixer, at = ops.recurrent_mixer(mixer), 130
        assert isinstance(mixer, RecurrentMixer), f"a {type(mixer).__name__} is no RecurrentMixer"
        state = mixer.new_state(inputs.device, inputs.computed)
        text_NX = inputs.numbers(at, width)
        found.append(mixer(text_NX, state, RowPaths(0, 0, at, None, inputs.device), Ops()))
        tree = RequestRows.tree(0, at, [1] * 9, TREE_DEPTHS, TREE_ENDS)
        passes: list[tuple[PassKind, RequestRows]] = [("tree", tree), ("chain", _chain(at, 5))]
        for kind, rows in (*passes, ("chain", _chain(at + 5, 1))):
            paths = RowPaths.of(PassInputs.of(kind, [rows], inputs.device).parts[0], inputs.device)
            found.append(mixer(inputs.numbers(paths.count, width), state, paths, Ops()))
    return found


def _mixers(inputs: Inputs) -> Sequence[tuple[RecurrentMixer, int]]:
    """And the widths of their input projections."""
    wide, channels = torch.promote_types(inputs.computed, torch.float32), 2 * G * D + H * V
    delta = GatedDeltaNet(
        CausalConvolution(inputs.numbers(channels, K).to(wide) / 2),
        G,
        D,
        decay_H=-inputs.numbers(H).abs().to(wide),
        bias_H=inputs.numbers(H).to(wide),
        norm_V=inputs.gain(V).to(wide),
        epsilon=1e-6,
        tiled=True,
    )
    space = StateSpace(
        CausalConvolution(inputs.numbers(channels, K).to(wide) / 2, inputs.numbers(channels).to(wide)),
        G,
        D,
        decay_H=-inputs.numbers(H).abs().to(wide),
        bias_H=inputs.numbers(H).to(wide),
        skip_H=inputs.numbers(H).to(wide),
        gain_Y=inputs.gain(H * V).to(wide),
        epsilon=1e-6,
        gate_scale=0.7,
        step_scale=0.6,
    )
    short = ShortConvolution(CausalConvolution(inputs.numbers(M, 3)))
    unnormed = replace(space, normed=False)
    widths = channels + H * V + 2 * H, channels + H * V + H, channels + H * V + H, 3 * M
    return list(zip((delta, space, unnormed, short), widths, strict=True))


def _visible() -> torch.Tensor:
    """[S, S]: three rows that all see, then the nodes of a tree in pre-order."""
    visible_SS = torch.zeros(12, 12, dtype=torch.bool)
    visible_SS[:3, :3] = torch.ones(3, 3, dtype=torch.bool).tril()
    visible_SS[3:, :3] = True
    for node, end in enumerate(TREE_ENDS):
        visible_SS[3 + node : 3 + end, 3 + node] = True
    return visible_SS


def _chain(prefix: int, count: int) -> RequestRows:
    return RequestRows.chain(0, prefix, [1] * count)
