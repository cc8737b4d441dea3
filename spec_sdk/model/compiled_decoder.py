"""A decoder whose stages before and after attention are compiled; attention and the cache stay as they are.

A stage is compiled once for all blocks of a form, whose tensors are arguments, and for any number of rows up to
``MOST_ROWS``: every cut of the model runs the same two graphs. Longer passes, such as prompts, run eagerly: there the
products take all the time. So does whatever needs derivatives.

Legend: B requests, N rows of a request, K = B*N rows, M model dim, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.block_tensors import form_of, tensors_of, with_tensors
from spec_sdk.model.compiler import CannotCompile, Compiler, Graph, place
from spec_sdk.model.decoder import Decoder, Rotations
from spec_sdk.model.restaged_decoder import RestagedDecoder

MOST_ROWS = 64
"""From here on torch shares elementwise work among its threads, which a graph does not."""


@dataclass(frozen=True)
class CompiledBlock:
    """The graphs of one block's stages, and the block's tensors, which are their last arguments.

    A stage that could not be compiled is None.
    """

    before: Graph | None
    after: Graph | None
    tensors: Sequence[torch.Tensor]


class CompiledDecoder(RestagedDecoder):
    """A decoder with a :class:`CompiledBlock` for each of its blocks."""

    def __init__(self, decoder: Decoder, compiled: Sequence[CompiledBlock]) -> None:
        super().__init__(decoder)
        self.compiled = tuple(compiled)

    def subset(self, layers: Sequence[int]) -> CompiledDecoder:
        return CompiledDecoder(super().subset(layers), [self.compiled[i] for i in layers])

    def pre_attention(
        self, layer: int, h_BNM: torch.Tensor, work: Rotations
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        block = self.compiled[layer]
        if block.before is None or not runs_compiled(h_BNM):
            return super().pre_attention(layer, h_BNM, work)
        B, N = h_BNM.shape[:2]
        q, k, v = block.before(
            [*(in_one_row_of_requests(x) for x in (h_BNM, *self.rotation(layer, work))), *block.tensors]
        )
        if B == 1:
            return q, k, v
        return q.view(B, N, *q.shape[2:]), k.view(B, N, *k.shape[2:]), v.view(B, N, *v.shape[2:])

    def post_attention(self, layer: int, h_BNM: torch.Tensor, a_BNM: torch.Tensor) -> torch.Tensor:
        block = self.compiled[layer]
        if block.after is None or not runs_compiled(h_BNM):
            return super().post_attention(layer, h_BNM, a_BNM)
        (h_1KM,) = block.after([in_one_row_of_requests(h_BNM), in_one_row_of_requests(a_BNM), *block.tensors])
        return h_1KM.view(h_BNM.shape)


def runs_compiled(h_BNM: torch.Tensor) -> bool:
    """Whether a stage on these rows is run by its graph."""
    return h_BNM.shape[0] * h_BNM.shape[1] <= MOST_ROWS and not torch.is_grad_enabled()


def in_one_row_of_requests(x_BN: torch.Tensor) -> torch.Tensor:
    """[B, N, …] as [1, B*N, …], laid out as a graph expects its arguments."""
    return (x_BN if x_BN.shape[0] == 1 else x_BN.reshape(1, -1, *x_BN.shape[2:])).contiguous()


def compile_decoder(decoder: Decoder, compiler: Compiler) -> tuple[Decoder, str | None]:
    """The decoder with compiled stages, and why some of them are not; as it was where none is."""
    if type(decoder) is not Decoder:
        return decoder, f"a {type(decoder).__name__} is not compiled"
    graphs: dict[tuple[str, str], Graph | None] = {}
    why: str | None = None

    def graph_of(stage: type[_Stage], layer: int) -> Graph | None:
        nonlocal why
        if fault := stage.exempt(decoder, layer):
            why = f"layer {layer} {stage.name} attention: {fault}"
            return None
        made = stage(decoder, layer)
        if (stage.name, made.form) not in graphs:
            try:
                graphs[stage.name, made.form] = made.compiled(compiler)
            except CannotCompile as error:
                graphs[stage.name, made.form] = None
                why = f"layer {layer} {stage.name} attention: {error}"
        return graphs[stage.name, made.form]

    blocks = [
        CompiledBlock(graph_of(_Before, layer), graph_of(_After, layer), tensors_of(decoder.blocks[layer]))
        for layer in range(decoder.layers)
    ]
    if all(graph is None for graph in graphs.values()):
        return decoder, why
    return CompiledDecoder(decoder, blocks), why


def graphs_to_compile(decoder: Decoder) -> int:
    """How many graphs of a decoder are not on disk yet; none of one that is not compiled."""
    if type(decoder) is not Decoder:
        return 0
    stages = [(stage, layer) for stage in (_Before, _After) for layer in range(decoder.layers)]
    forms = {stage(decoder, layer).form for stage, layer in stages if not stage.exempt(decoder, layer)}
    return sum(not place(form).is_file() for form in forms)


class _Stage:
    """One stage of one block as a function of tensors: its inputs, then the block's.

    It goes by the model's config and the block's weights. What kind of layer it is decides over attention and
    rotations, which are no part of it.
    """

    name: str
    inputs: int

    def __init__(self, decoder: Decoder, layer: int) -> None:
        self.block = decoder.blocks[layer]
        self.tensors = tensors_of(self.block)
        self.form = f"{self.name}: {decoder.config} {decoder.dtype} {form_of(self.block)}"
        self._decoder, self._layer = decoder, layer

    @functools.cached_property
    def alone(self) -> Decoder:
        """A decoder of this block alone, whose weights are exchanged while it is traced."""
        return self._decoder.subset([self._layer])

    def compiled(self, compiler: Compiler) -> Graph:
        # torch.export takes part of a second to import, which a run without compilation should not wait for
        from torch.export import Dim

        _ = self.alone  # made before tracing, which would record its making
        rows = Dim("rows", min=2, max=MOST_ROWS)
        examples = self.examples(rows=8)
        dynamic = [*({1: rows} for _ in examples), *(None for _ in self.tensors)]
        return compiler.obtain(self.form, self.traced, [*examples, *self.tensors], dynamic)

    @classmethod
    def exempt(cls, decoder: Decoder, layer: int) -> str | None:
        """Why a layer's stage is not to be compiled; None if it may be."""
        return None

    def traced(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        self.alone.blocks = (with_tensors(self.block, tensors[self.inputs :]),)
        return self.run(*tensors[: self.inputs])

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.alone.dtype, device=self.alone.device)

    run: Callable[..., Sequence[torch.Tensor]]

    def examples(self, rows: int) -> list[torch.Tensor]:
        raise NotImplementedError


class _Before(_Stage):
    name = "before"
    inputs = 3

    def run(self, h_1KM: torch.Tensor, cos_1K1D: torch.Tensor, sin_1K1D: torch.Tensor) -> Sequence[torch.Tensor]:
        return self.alone.pre_attention(0, h_1KM, Rotations([(cos_1K1D, sin_1K1D)]))

    def examples(self, rows: int) -> list[torch.Tensor]:
        width, dim = self.alone.embedding.width, self.alone.config.rotary_head_dim
        return [self.zeros(1, rows, width), self.zeros(1, rows, 1, dim), self.zeros(1, rows, 1, dim)]


class _After(_Stage):
    name = "after"
    inputs = 2

    @classmethod
    def exempt(cls, decoder: Decoder, layer: int) -> str | None:
        mlp = decoder.blocks[layer].mlp
        reason = None if mlp is None else mlp.data_dependent
        return None if reason is None else f"a {reason} is not compiled"

    def run(self, h_1KM: torch.Tensor, a_1KM: torch.Tensor) -> Sequence[torch.Tensor]:
        return [self.alone.post_attention(0, h_1KM, a_1KM)]

    def examples(self, rows: int) -> list[torch.Tensor]:
        width = self.alone.embedding.width
        return [self.zeros(1, rows, width), self.zeros(1, rows, width)]
