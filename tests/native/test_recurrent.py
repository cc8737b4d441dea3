"""Native recurrent layers between their projections: against the reference in float64, and to the bit the same for a
path however it lies.

Legend: N rows, X outputs of an input projection, G key heads, H value heads, D key dim, V value dim, M model dim.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from spec_sdk.model.recurrent.layers import CausalConvolution, GatedDeltaNet, RecurrentMixer, ShortConvolution
from spec_sdk.model.recurrent.paths import RowPaths
from spec_sdk.model.recurrent.state import RecurrentState
from spec_sdk.model.recurrent.state_space import StateSpace
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, PassKind, RequestRows
from spec_sdk.tree import TreeBuilder
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.mixers import NativeDeltaNet, NativeShortConvolution, NativeStateSpace, native_mixer
from spec_sdk_backends.native.ops import NativeOps
from tests.kernels.dense_attention import chain, depths, ends, random_tree, star
from tests.support.threads import threads

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
PREFIXES = [0, 1, 3, 47, 49, 200]
TREES = {"step": chain(1), "chain": chain(5), "star": star(7), "tree": random_tree(21, 3), "wide": random_tree(64, 4)}
OPS = Ops()


def delta_net(G: int, H: int, D: int, V: int, tokens: int = 4, tiled: bool = False) -> GatedDeltaNet:
    generator = torch.Generator().manual_seed(G * H + D + V)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    convolution = CausalConvolution(noise(2 * G * D + H * V, tokens) / 2)
    # one head forgets at once, and one nothing
    decay_H = -(torch.linspace(0, 6, H) ** 2)
    return GatedDeltaNet(convolution, G, D, decay_H, noise(H) / 5, 1 + noise(V) / 5, 1e-6, tiled)


def short_convolution(M: int, dtype: torch.dtype, tokens: int = 3) -> ShortConvolution:
    generator = torch.Generator().manual_seed(M)
    return ShortConvolution(CausalConvolution(torch.randn((M, tokens), generator=generator).to(dtype)))


def state_space(G: int, H: int, D: int, V: int, tokens: int = 4) -> StateSpace:
    generator = torch.Generator().manual_seed(G * H + D + V)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    C = 2 * G * D + H * V
    convolution, decay_H = CausalConvolution(noise(C, tokens) / 2, noise(C) / 5), -(torch.linspace(0, 6, H) ** 2)
    return StateSpace(convolution, G, D, decay_H, noise(H) / 5, noise(H), 1 + noise(H * V) / 5, 1e-6, (0.01, 1.5))


def mixers(dtype: torch.dtype) -> dict[str, RecurrentMixer]:
    return {
        "neighbours": delta_net(2, 4, 32, 48),
        "tiled": delta_net(2, 6, 16, 32, tiled=True),
        "one to one": delta_net(3, 3, 128, 128),
        "odd": delta_net(3, 6, 13, 7, tokens=3, tiled=True),
        "one token": delta_net(1, 1, 16, 16, tokens=1),
        "space": state_space(1, 6, 128, 64),
        "groups": state_space(2, 4, 16, 48),
        "odd space": state_space(3, 6, 13, 7, tokens=3),
        "short": short_convolution(96, dtype),
        "odd short": short_convolution(37, dtype, tokens=4),
    }


NAMES = list(mixers(torch.float32))


def in_float64(mixer: RecurrentMixer) -> RecurrentMixer:
    """The reference in torch with the same weights."""
    assert is_dataclass(mixer)
    values = {field.name: getattr(mixer, field.name) for field in fields(mixer)}
    wide: dict[str, Any] = {name: value.double() for name, value in values.items() if isinstance(value, torch.Tensor)}
    weight_CK, bias_C = values["convolution"].weight_CK, values["convolution"].bias_C
    wide["convolution"] = CausalConvolution(weight_CK.double(), None if bias_C is None else bias_C.double())
    (kind,) = (kind for kind in (GatedDeltaNet, StateSpace, ShortConvolution) if isinstance(mixer, kind))
    return kind(**(values | wide))


class Fed:
    """A mixer and what it keeps of one request."""

    def __init__(self, mixer: RecurrentMixer, dtype: torch.dtype) -> None:
        self.mixer, self.dtype = mixer, dtype
        self.state: RecurrentState = mixer.new_state(CPU, dtype)

    def feed(self, projected_NX: torch.Tensor, paths: RowPaths) -> torch.Tensor:
        return self.mixer(projected_NX.to(self.dtype), self.state, paths, OPS)

    def feed_chain(self, projected_NX: torch.Tensor, prefix: int) -> torch.Tensor:
        return self.feed(projected_NX, RowPaths(prefix, prefix, len(projected_NX), None, CPU))

    def numbers(self, end: int) -> list[torch.Tensor]:
        """All that it keeps of columns before ``end``, in float64."""
        kept = [tensor[..., : self.state.index(end), :].double() for tensor in self.state.rows]
        return kept if self.state.memory is None else [*kept, self.state.memory.state_HVD.double()]


def width(mixer: RecurrentMixer) -> int:
    """X."""
    if isinstance(mixer, StateSpace):
        return mixer.outputs + mixer.convolution.weight_CK.shape[0] + len(mixer.decay_H)
    if not isinstance(mixer, GatedDeltaNet):
        return 3 * mixer.outputs
    return mixer.convolution.weight_CK.shape[0] + mixer.outputs + 2 * len(mixer.decay_H)


def projections(mixer: RecurrentMixer, count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn((count, width(mixer)), generator=torch.Generator().manual_seed(seed)).to(dtype)


def both(name: str, dtype: torch.dtype) -> tuple[Fed, Fed]:
    """The kernels and float64."""
    mixer = mixers(dtype)[name]
    native = native_mixer(mixer)
    assert isinstance(native, NativeDeltaNet | NativeShortConvolution | NativeStateSpace)
    return Fed(native, dtype), Fed(in_float64(mixer), torch.float64)


def compare(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, of_rows: bool = True) -> None:
    """``of_rows``: of numbers that are rounded to ``dtype``."""
    # a short convolution in bfloat16 rounds what it adds up, too
    rounding = 2**-6 if dtype == torch.bfloat16 and of_rows else 1e-4
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=rounding * 4)


def compare_kept(ours: Fed, theirs: Fed, end: int) -> None:
    for kind, (found, expected) in enumerate(zip(ours.numbers(end), theirs.numbers(end), strict=True)):
        compare(found, expected, ours.dtype, of_rows=kind == 0)


def paths_of(kind: PassKind, rows: RequestRows) -> RowPaths:
    return RowPaths.of(PassInputs.of(kind, [rows], CPU).parts[0], CPU)


def tree_paths(prefix: int, parents: list[int]) -> RowPaths:
    rows = RequestRows.tree(0, prefix, [1] * len(parents), [*depths(parents)], ends(parents))
    return paths_of("tree", rows)


def growing_paths(prefix: int, parents: list[int], new: int) -> RowPaths:
    """Of the youngest nodes of a tree whose root is committed."""
    builder = TreeBuilder(7)
    for node, parent in enumerate(parents):
        builder.add(parent + 1, node, "chosen")
    start, end = builder.intervals()
    depth = [0, *(1 + depth for depth in depths(parents))]
    rows = RequestRows.growing(0, prefix, [1] * (len(parents) + 1), depth, start, end, new)
    return paths_of("growing", rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", NAMES)
def test_trees_behind_a_text(name: str, prefix: int, dtype: torch.dtype) -> None:
    compare_trees(name, prefix, dtype)


def compare_trees(name: str, prefix: int, dtype: torch.dtype) -> None:
    """A text, and trees behind it."""
    ours, theirs = both(name, dtype)
    if prefix:
        text_NX = projections(ours.mixer, prefix, dtype)
        compare(ours.feed_chain(text_NX, 0), theirs.feed_chain(text_NX, 0), dtype)
        compare_kept(ours, theirs, prefix)
    for seed, parents in enumerate(TREES.values(), start=1):
        projected_NX, paths = projections(ours.mixer, len(parents), dtype, seed), tree_paths(prefix, parents)
        compare(ours.feed(projected_NX, paths), theirs.feed(projected_NX, paths), dtype)
        compare_kept(ours, theirs, paths.end)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_growing_tree_and_single_steps(name: str, dtype: torch.dtype) -> None:
    ours, theirs = both(name, dtype)
    at = 0
    for seed in range(60):
        projected_NX = projections(ours.mixer, 1, dtype, seed)
        compare(ours.feed_chain(projected_NX, at), theirs.feed_chain(projected_NX, at), dtype)
        at += 1
    parents = [-1, -1, 0, 1, 0, 2, 3, 3, 5]
    for end, new in ((2, 2), (5, 3), (6, 1), (9, 3)):
        projected_NX, paths = projections(ours.mixer, new, dtype, end), growing_paths(at, parents[:end], new)
        assert paths.first == at + end - new
        compare(ours.feed(projected_NX, paths), theirs.feed(projected_NX, paths), dtype)
        compare_kept(ours, theirs, paths.end)


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_that_is_not_looked_at_is_found(name: str) -> None:
    """The comparison of this file fails for rows that see all before them."""
    ours, theirs = both(name, torch.float32)
    parents = star(7)
    projected_NX, paths = projections(ours.mixer, 7, torch.float32), tree_paths(0, parents)
    found, expected = ours.feed(projected_NX, replace(paths, part=None)), theirs.feed(projected_NX, paths)
    compare(found[:2], expected[:2], torch.float32)
    with pytest.raises(AssertionError):
        compare(found[2:], expected[2:], torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_path_has_the_same_bits_in_a_tree_and_alone(name: str, dtype: torch.dtype) -> None:
    parents, prefix = random_tree(21, 3), 49
    text_NX = projections(mixers(dtype)[name], prefix, dtype)
    projected_NX = projections(mixers(dtype)[name], len(parents), dtype, 1)

    def behind_text() -> Fed:
        made, _ = both(name, dtype)
        made.feed_chain(text_NX, 0)
        return made

    in_tree_NY = behind_text().feed(projected_NX, tree_paths(prefix, parents))
    for node in range(len(parents)):
        path, walker = [node], node
        while (walker := parents[walker]) >= 0:
            path.insert(0, walker)
        assert torch.equal(in_tree_NY[path], behind_text().feed_chain(projected_NX[path], prefix)), node


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_threads_change_no_bit(name: str, dtype: torch.dtype) -> None:
    found: list[list[torch.Tensor]] = []
    for count in (1, 2, 3, 5):
        ours, _ = both(name, dtype)
        with threads(count):
            given = [ours.feed_chain(projections(ours.mixer, 30, dtype), 0)]
            paths = tree_paths(30, random_tree(21, 3))
            given.append(ours.feed(projections(ours.mixer, 21, dtype, 1), paths))
        found.append([*given, *ours.numbers(paths.end)])
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


def test_rows_between_others() -> None:
    """Of a wider matrix, as one request's rows of a pass lie."""
    for name in ("tiled", "short"):
        ours, theirs = both(name, torch.float32)
        wide = projections(ours.mixer, 8, torch.float32)
        apart = torch.cat((wide, wide), 1)[:, : wide.shape[1]]
        assert apart.stride(0) > apart.shape[1]
        compare(ours.feed_chain(apart, 0), theirs.feed_chain(wide, 0), torch.float32)


@pytest.mark.parametrize("name", ["tiled", "groups", "short"])
def test_what_kernels_lack_is_left_to_the_reference(name: str) -> None:
    mixer = in_float64(mixers(torch.float32)[name])
    assert native_mixer(mixer) is mixer
    ours, theirs = both(name, torch.float32)
    projected_NX = projections(ours.mixer, 4, torch.float32)
    turned = projected_NX.T.contiguous().T
    compare(ours.feed_chain(turned, 0), theirs.feed_chain(projected_NX, 0), torch.float32)
    ours, _ = both(name, torch.float32)
    assert ours.feed_chain(projected_NX.requires_grad_(), 0).requires_grad


def test_operations_hand_out_native_mixers() -> None:
    mixer: Any = delta_net(2, 4, 16, 16)
    assert isinstance(NativeOps(CpuOps()).recurrent_mixer(mixer), NativeDeltaNet)
    assert OPS.recurrent_mixer(mixer) is mixer
