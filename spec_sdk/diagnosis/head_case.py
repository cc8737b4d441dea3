"""A draft head of random weights that feeds pairs and grows trees, as ``head_block`` and ``path_grower`` do, beside
float64.

Legend: N rows of a request, V vocabulary, S model dim of the target.
"""

from __future__ import annotations

import torch

from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.draft_heads.eagle3 import Eagle3Head
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec
from spec_sdk.model.draft_heads.head_files import HeadTensors
from spec_sdk.model.draft_heads.head_weights import HeadWeights
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from spec_sdk.ops.grown_paths import ProbablePaths
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.tree import TreeBuilder

CPU = torch.device("cpu")
SPEC = Eagle3Spec(config=TINY, draft_vocabulary=TINY.vocab_size, target_hidden_size=TINY.hidden_size)


class RandomHead(HeadTensors):
    """The tensors of an EAGLE-3 head, with values that ``stored`` can hold."""

    def __init__(self, taps: int, stored: torch.dtype) -> None:
        self.where = "random weights"
        rng = torch.Generator().manual_seed(0)
        self._drawn: dict[str, torch.Tensor] = {}
        for name, shape in SPEC.shapes(taps)[0].items():
            noise = torch.randn(shape, generator=rng)
            spread = 1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2
            drawn = spread * noise if len(shape) > 1 or name.endswith("bias") else 1 + spread * noise
            self._drawn[name] = drawn.to(stored).float()

    def __contains__(self, name: str) -> bool:
        return name in self._drawn

    def tensor(self, name: str) -> torch.Tensor:
        return self._drawn[name]

    def quantized(self, name: str) -> None:
        return None


def head_logits(
    ops: Ops, device: torch.device, stored: torch.dtype, computed: torch.dtype, only_own: bool = True
) -> list[torch.Tensor] | None:
    """Logits [N, V] of three requests: a few pairs each, then trees of three levels.

    None where these operations have no block of a head of their own; with ``only_own`` false the stages compute it.
    """
    session, rng = _session(ops, device, stored, computed), torch.Generator().manual_seed(3)
    if only_own and session.head.at_once is None:
        return None

    def tokens(count: int) -> list[int]:
        return [int(token) for token in torch.randint(0, TINY.vocab_size, (count,), generator=rng)]

    found = []
    fed = [tokens(count) for count in (7, 1, 3)]
    states = [
        {
            layer: torch.randn(len(own), TINY.hidden_size, generator=rng).to(stored).to(computed).to(device)
            for layer in session.head.taps
        }
        for own in fed
    ]
    with torch.no_grad():
        found += session.feed_pairs(range(3), fed, [session.head.features(hidden) for hidden in states])
        trees = [TreeBuilder(own[-1]) for own in fed]
        for new in ((1, 2, 3), (2, 3, 1), (3, 1, 2)):
            for tree, count in zip(trees, new, strict=True):
                above = [node for node in range(tree.size) if tree.depth[node] == max(tree.depth)]
                for i, token in enumerate(tokens(count)):
                    tree.add(above[i % len(above)], token, "chosen")
            found += session.grow(range(3), trees, new)
    return [logits.full_KV for logits in found]


def grown_logits(
    ops: Ops, device: torch.device, stored: torch.dtype, reference: Ops
) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """Logits [V] of the root of a tree and of each node that was fed in one call, twice over; and those of the same
    nodes in passes of ``reference``, in float64. None where these operations have no such call.
    """
    session, in_double = _session(ops, device, stored, stored), _session(reference, CPU, stored, torch.float64)
    rng, paths = torch.Generator().manual_seed(5), ProbablePaths(3, 4, 99)
    found, expected = list[torch.Tensor](), list[torch.Tensor]()
    with torch.no_grad():
        for count in (6, 2):
            tokens = torch.randint(0, TINY.vocab_size, (count,), generator=rng).tolist()
            states = [torch.randn(count, TINY.hidden_size, generator=rng).to(stored) for _ in session.head.taps]
            hidden, exact = (
                each.head.features(dict(zip(each.head.taps, states, strict=True))) for each in (session, in_double)
            )
            (grown,) = session.feed_pairs_and_grow([0], [tokens], [hidden], [paths])
            if not grown.levels:
                return None
            expected += [logits.full_KV[0] for logits in in_double.feed_pairs([0], [tokens], [exact])]
            found.append(grown.root.full_KV[0])
            tree = TreeBuilder(tokens[-1])
            for level in grown.levels:
                for parent, token in zip(level.parent_K, level.token_K, strict=True):
                    tree.add(parent, token, "chosen")
                found += level.logits.full_KV.unbind()
                expected += in_double.grow([0], [tree], [len(level.token_K)])[0].full_KV.unbind()
    return found, expected


def _session(ops: Ops, device: torch.device, stored: torch.dtype, computed: torch.dtype) -> DraftHeadSession:
    source: TensorSource = RandomWeights(TINY, 0, stored)
    target = TargetEnds.of("random weights", load_decoder(source, device, computed, ops))
    taps = SPEC.taps(10)
    executor = SPEC.load(HeadWeights(RandomHead(len(taps), stored), device, computed, ops), taps, target)
    assert isinstance(executor.head, Eagle3Head)
    return DraftHeadSession(executor)
