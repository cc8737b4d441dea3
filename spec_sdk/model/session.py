"""A model at work on one request: a decoder and its KV cache.

The target is scored through a session, and a draft model drafts through one; what differs is the block runner.

Legend: N tokens or tree nodes, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.decoder import Decoder, ForwardOutput, ForwardPass
from spec_sdk.model.runners.base import AttentionReport, BlockRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.tree import TokenTree, TreeBuilder

PREFILL_CHUNK = 1024
"""Tokens per prefill pass: bounds the memory of its mask and activations."""


@dataclass(frozen=True)
class Scores:
    """What one target pass over a tree returns.

    ``logits_NV[i]``: for the token after node i. ``hidden``: layer → [N, M], as asked. ``attention``: what the runner
    measured, if it speculates on attention.
    """

    logits_NV: torch.Tensor
    hidden: Mapping[int, torch.Tensor]
    attention: AttentionReport | None = None


class Session:
    """Feeds tokens and trees to a decoder and keeps its cache in step. Not for use by two requests at once.

    ``wants_logits`` may be set to False where nobody looks at them: all that are returned have a vocabulary of 0 then.
    """

    def __init__(self, decoder: Decoder, ops: Ops, runner: BlockRunner | None = None) -> None:
        self.decoder = decoder
        self.ops = ops
        self.runner = runner or SequentialRunner()
        self.cache = decoder.new_cache()
        self.wants_logits = True
        self._plain = SequentialRunner()

    @property
    def context(self) -> int:
        """Most tokens the model can hold."""
        return self.decoder.config.max_context

    @property
    def length(self) -> int:
        """Committed tokens, whose K and V are in the cache."""
        return self.cache.length

    def reset(self) -> None:
        """Forget all tokens."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.cache.truncate(length)
        self.runner.truncate(length)

    @torch.no_grad()
    def prefill(self, tokens: Sequence[int], hidden_layers: Sequence[int] = ()) -> Mapping[int, torch.Tensor]:
        """Commit ``tokens`` in plain passes; return the asked hidden states, layer → [N, M]."""
        parts: dict[int, list[torch.Tensor]] = {layer: [] for layer in hidden_layers}
        for first in range(0, len(tokens), PREFILL_CHUNK):
            output = self._chain_pass(tokens[first : first + PREFILL_CHUNK], self._plain, hidden_layers)
            for layer, states in parts.items():
                states.append(output.hidden[layer][0])
        return {layer: torch.cat(states) for layer, states in parts.items() if states}

    @torch.no_grad()
    def feed(self, tokens: Sequence[int], runner: BlockRunner | None = None) -> torch.Tensor:
        """Commit ``tokens`` in one pass and return the logits [V] after the last one."""
        return self._chain_pass(tokens, runner or self._plain, ()).logits_BNV[0, -1]

    @torch.no_grad()
    def score(self, tree: TokenTree, hidden_layers: Sequence[int] = ()) -> Scores:
        """One pass over a whole tree whose root comes after the committed tokens. Nothing is committed.

        Raises ValueError, naming the node, for a token that the model does not have.
        """
        vocabulary = self.decoder.config.vocab_size
        if max(tree.token_N) >= vocabulary:
            node = next(i for i, token in enumerate(tree.token_N) if token >= vocabulary)
            raise ValueError(
                f"tree node {node}: token {tree.token_N[node]} lies outside the vocabulary of {vocabulary}"
            )
        device = self.decoder.device
        mask = AttentionMask.tree(self.length, tree.end_N, device)
        position_N = torch.tensor(tree.depth_N, device=device) + self.length
        output = self._forward(tree.token_N, position_N, self.length + tree.depth, mask, self.runner, hidden_layers)
        hidden = {layer: h_BNM[0] for layer, h_BNM in output.hidden.items()}
        return Scores(output.logits_BNV[0], hidden, self.runner.report())

    @torch.no_grad()
    def grow(self, tree: TreeBuilder, new_nodes: int, runner: BlockRunner | None = None) -> torch.Tensor:
        """Feed the ``new_nodes`` youngest nodes of a growing tree; return their logits [new_nodes, V].

        The tree's root is the last committed token. Node i of the builder lies in slot ``length + i - 1``, so earlier
        nodes must have been fed in order. Nothing is committed.
        """
        device = self.decoder.device
        start, end = tree.intervals()
        mask = AttentionMask.growing_tree(self.length, start[1:], end[1:], new_nodes, device)
        depths = tree.depth[-new_nodes:]
        position_N = torch.tensor(depths, device=device) + (self.length - 1)
        largest = self.length - 1 + max(depths)
        tokens = tree.token[-new_nodes:]
        return self._forward(tokens, position_N, largest, mask, runner or self._plain, ()).logits_BNV[0]

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the tree that was scored last (offsets from the prefix) and drop the others."""
        self.cache.commit(path)
        self.runner.commit(path)

    def _chain_pass(self, tokens: Sequence[int], runner: BlockRunner, hidden_layers: Sequence[int]) -> ForwardOutput:
        count, device = len(tokens), self.decoder.device
        mask = AttentionMask.chain(self.length, count, device)
        position_N = torch.arange(self.length, self.length + count, device=device)
        largest = self.length + count - 1
        output = self._forward(tokens, position_N, largest, mask, runner, hidden_layers, last_only=True)
        self.cache.commit(range(count))
        runner.commit(range(count))
        return output

    def _forward(
        self,
        tokens: Sequence[int],
        position_N: torch.Tensor,
        largest_position: int,
        mask: AttentionMask,
        runner: BlockRunner,
        hidden_layers: Sequence[int],
        last_only: bool = False,
    ) -> ForwardOutput:
        if largest_position >= self.context:
            raise UserError(f"position {largest_position} lies outside the model's context of {self.context} tokens")
        self.cache.reserve(mask.keys)
        cos_N1D, sin_N1D = self.decoder.rotary.at(position_N, largest_position)
        work = ForwardPass(
            cache=self.cache,
            write_at=mask.keys - len(tokens),
            mask=mask,
            cos_N1D=cos_N1D,
            sin_N1D=sin_N1D,
            ops=self.ops,
            hidden_layers=frozenset(hidden_layers),
        )
        token_BN = torch.tensor([tokens], device=self.decoder.device)
        return self.decoder.forward(token_BN, work, runner, last_only, self.wants_logits)
