"""The reference executor: a decoder in torch, whose blocks a runner executes.

Legend: B requests, N rows of a request, M model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.block_tensors import form_of
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.executor import Cache, Executor, PassOutput, PassPlan
from spec_sdk.model.kv_cache import KVCache, is_exact
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.ops import Ops
from spec_sdk.ops.grown_paths import GrownPaths, OutputRows, PathGrower, ProbablePaths, RowsToCommit
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.quantized_linear import rounds_rows
from spec_sdk.ops.reduced_vocabulary import rows_and_tokens
from spec_sdk.plugin import not_inherited

OF_TORCH = "torch's products and attention add up in an order that depends on the size of a pass"
"""Why the bits of a decoder's rows vary, where nothing else is known."""


class TorchExecutor(Executor):
    """Runs a :class:`Decoder` with the kernels ``ops``, on whichever device its weights are.

    ``bits_vary``: what it is for this decoder and these kernels, beside a cache in the decoder's dtype.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for described in ("grows_paths", "grow_paths"):
            not_inherited(cls, described, getattr(Executor, described), ["forward"])

    def __init__(self, decoder: Decoder, ops: Ops, bits_vary: str | None = OF_TORCH) -> None:
        self.bits_vary = bits_vary
        self.decoder = decoder
        self.ops = ops
        self.config = decoder.config
        self.device = decoder.device
        self.dtype = decoder.dtype
        self.head_is_collective = decoder.head_is_collective
        self.deepest_tree = decoder.deepest_tree
        self._cache_form = "exact"

    @property
    def layers(self) -> int:
        return self.decoder.layers

    @property
    def kv_sources(self) -> Sequence[int]:
        return self.decoder.kv_sources

    @property
    def vocabulary(self) -> int:
        return self.decoder.vocabulary

    @property
    def form(self) -> str:
        decoder = self.decoder
        parts = (form_of(decoder.blocks[0]), form_of(decoder.output_head))
        return ", ".join((super().form, type(decoder).__qualname__, f"{self._cache_form} cache", *parts))

    @property
    def rounds_rows(self) -> bool:
        return rounds_rows(self.decoder.projections)

    @property
    def weight_bytes(self) -> int:
        return self.decoder.nbytes

    def new_cache(self) -> KVCache:
        return self.decoder.new_cache(self._cache_form)

    def keep_cache_in(self, form: str) -> None:
        self._cache_form = "exact" if is_exact(form, self.dtype) else form
        if self._cache_form not in self.ops.cache_forms:
            self.bits_vary = f"attention over a cache in {form} is torch's; use model.kv_cache=exact"

    @torch.no_grad()
    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        assert isinstance(cache, KVCache)
        self.ops.before_pass()
        if self._whole_pass is not None and runs_plainly(plan.runner, self.layers):
            whole = self._whole_pass(inputs, cache, plan.taps, plan.logits)
            if whole is not None:
                h_BNM, states, logits_BNV = whole
                hidden = self._hidden(states)
                if plan.logits == "none":
                    return PassOutput(h_BNM[..., :0], hidden, plan.runner.reports())
                made = None if plan.epilogue is None else plan.epilogue(logits_BNV)
                return PassOutput(logits_BNV, hidden, plan.runner.reports(), self.decoder.token_R, made)
        h_BNM, work = self.decoder.forward_pass(inputs, cache, self.ops, plan.taps)
        h_BNM = self._needed_of(plan).run(self.decoder.of_pass(work), h_BNM, work)
        reports = plan.runner.reports()
        if plan.logits == "none":
            return PassOutput(h_BNM[..., :0], self._hidden(work.hidden), reports)
        if plan.logits == "last":
            h_BNM = last_live_row(h_BNM, inputs)
        logits_BNV = self.decoder.head(h_BNM)
        made = None if plan.epilogue is None else plan.epilogue(logits_BNV)
        return PassOutput(logits_BNV, self._hidden(work.hidden), reports, self.decoder.token_R, made)

    def _needed_of(self, plan: PassPlan) -> BlockRunner:
        """What runs the blocks that a pass is for: a prompt's rows end where nobody sees them any more."""
        needed = max(self.decoder.blocks_with_kv, *plan.taps, 0)
        if plan.logits != "none" or needed >= self.layers or not runs_plainly(plan.runner, self.layers):
            return plan.runner
        return SequentialRunner(end=needed)

    def _hidden(self, states: Mapping[int, torch.Tensor]) -> Mapping[int, torch.Tensor]:
        return {layer: self.decoder.published(state_BNM) for layer, state_BNM in states.items()}

    @cached_property
    def _whole_pass(self) -> Callable[..., Any] | None:
        return self.ops.whole_pass(self.decoder)

    @cached_property
    def _path_grower(self) -> PathGrower | None:
        return self.ops.path_grower(self.decoder)

    @property
    def grows_paths(self) -> bool:
        return self._path_grower is not None

    @torch.no_grad()
    def grow_paths(
        self,
        rows: Sequence[RowsToCommit],
        cache: Cache,
        output: OutputRows | None,
        paths: Sequence[ProbablePaths],
    ) -> list[GrownPaths] | None:
        # several requests share the weights of a pass for each level
        if self._path_grower is None or len(rows) > 1:
            return None
        self.ops.before_pass()
        if output is None:
            head, token_R = rows_and_tokens(self.decoder.output_head)
            output = OutputRows([head], token_R)
        grown = self._path_grower(rows[0], cache, output, paths[0])
        return None if grown is None else [grown]

    @torch.no_grad()
    def encode(self, encoder_input: EncoderInput, cache: Cache, slot: int) -> None:
        assert isinstance(cache, KVCache)
        self.ops.before_pass()
        self.decoder.encode(encoder_input, cache, slot)

    def cut(self, layers: Sequence[int]) -> TorchExecutor:
        made = TorchExecutor(self.decoder.subset(layers), self.ops, self.bits_vary)
        made._cache_form = self._cache_form
        return made

    def of_decoder(self, decoder: Decoder) -> TorchExecutor:
        """What runs another decoder, of this one's kind, as this one is run, with caches as its are."""
        made = self._running(decoder)
        made.keep_cache_in(self._cache_form)
        return made

    def _running(self, decoder: Decoder) -> TorchExecutor:
        return TorchExecutor(decoder, self.ops)


def runs_plainly(runner: BlockRunner, layers: int) -> bool:
    """Whether a runner runs every block on the output of the one before, and does nothing else."""
    if type(runner) is SequentialRunner:
        return runner.runs_all(layers)
    groups = runner.attention_groups(layers)
    return groups is not None and [*map(tuple, groups)] == [(layer,) for layer in range(layers)]


def last_live_row(h_BNM: torch.Tensor, inputs: PassInputs) -> torch.Tensor:
    """Each request's last row that is no padding [B, 1, M]."""
    if inputs.batch == 1 and inputs.width == 1:
        return h_BNM
    row_B11 = (inputs.live_B - 1).long()[:, None, None]
    return h_BNM.gather(1, row_B11.expand(-1, 1, h_BNM.shape[-1]))
