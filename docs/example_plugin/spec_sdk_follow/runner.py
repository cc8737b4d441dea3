"""A runner: a draft model without the attention of some layers (legend: B requests, N rows, M model dim)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import BlockRunner, option
from spec_sdk.errors import UserError
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.ranks import ALONE, Ranks


@dataclass
class SkipLayersConfig:
    """Options of the runner ``skip_layers``."""

    skip: list[int] = option([], "layers, from 0, whose attention is left out; their MLPs run", minimum=0)


class SkipLayers(BlockRunner):
    """Leaves out the attention of given layers, which costs little where it is redundant (He et al., 2406.15786)."""

    name = "skip_layers"
    Config = SkipLayersConfig
    config: SkipLayersConfig
    guarantee = "relaxed"
    # skipped layers write no K and V, and later ones wrote theirs from other states than a plain pass
    keeps_kv = False

    def prepare(self, layers: int, ranks: Ranks = ALONE) -> None:
        for layer in self.config.skip:
            if layer >= layers:
                raise UserError(f"drafter.skip: there is no layer {layer}; the draft model's are 0 … {layers - 1}")

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        for layer in range(decoder.layers):
            if layer in self.config.skip:
                h_BNM = decoder.post_attention(layer, h_BNM, torch.zeros_like(h_BNM))
            else:
                q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
                decoder.write_kv(layer, k_BNGD, v_BNGD, work)
                a_BNM = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
                h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
            work.record(layer + 1, h_BNM)
        return h_BNM
