"""A model of random weights at work behind a random prompt, made where there is no checkpoint: passes and cycles of it.

The engine is touched in :func:`make_model`, :func:`plain_pass`, :func:`tree_pass` and :func:`cycles` only.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.timing import waiting
from benchmarks.support.device_ops import device_ops
from spec_sdk.bench.random_models import bytes_per_pass, random_decoder
from spec_sdk.contracts import Budget, Drafter, Request, RequestState, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.model.session import Session
from spec_sdk.model.step_clock import HostClock, StepClock, StreamClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.policy import FixedPolicy
from spec_sdk.policy.fixed import FixedConfig
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_verifiers.greedy import Greedy

DEEPEST = 8
"""Of a random tree: as deep as a good drafter's, and the rest of its nodes in width."""


@dataclass
class Model:
    """A model at work: ``session`` has ``prompt`` but for its last token in the cache. ``weight_bytes`` of one pass."""

    session: Session
    prompt: list[int]
    vocabulary: int
    weight_bytes: int
    synchronize: Callable[[], None]
    clock: StepClock


def make_model(shape: str, device: torch.device, dtype: torch.dtype, prefix: int, bits: int | None = None) -> Model:
    """A model of random weights, in few ``bits`` or in ``dtype``, with a prompt of ``prefix`` random tokens."""
    ops = device_ops(device)
    decoder = random_decoder(shape, device, dtype, ops, bits)
    chosen = random.Random(0)
    prompt = [chosen.randrange(decoder.vocabulary) for _ in range(prefix)]
    session = Session(TorchExecutor(decoder, ops))
    clock: StepClock = StreamClock(device) if device.type == "cuda" else HostClock()
    session.prefill(0, prompt[:-1])
    return Model(session, prompt, decoder.vocabulary, bytes_per_pass(decoder), waiting(device), clock)


def back_to_prompt(model: Model) -> None:
    """Forget what was decoded behind the prompt."""
    kept = model.session.open(0, model.prompt[:-1])
    model.session.prefill(0, model.prompt[kept:-1])


def plain_pass(model: Model) -> Callable[[], torch.Tensor]:
    """A pass over the pending token alone: logits [1, V]. Nothing is committed."""
    tree = TokenTree.root_only(model.prompt[-1])
    return lambda: model.session.score([0], [tree])[0].logits_NV


def tree_pass(model: Model, nodes: int) -> Callable[[], torch.Tensor]:
    """A pass over a tree of N = ``nodes``: logits [N, V]. Nothing is committed."""
    tree = random_tree(model.prompt[-1], nodes, model.vocabulary)
    return lambda: model.session.score([0], [tree])[0].logits_NV


def cycles(model: Model, nodes: int, most: int) -> Iterator[object]:
    """The engine's own loop on the prompt, a cycle at every ``next``, with room for ``most``: greedy, with a tree of
    N = ``nodes`` that costs nothing to draft. One node is plain decoding, as without a drafter.
    """
    params = SamplingParams()
    sampler = ExactSampler(ExactConfig(), params)
    tree = random_tree(model.prompt[-1], nodes, model.vocabulary)
    request = RequestState(
        tokens=list(model.prompt),
        prompt_length=len(model.prompt),
        max_new_tokens=(most + 1) * (tree.depth + 1),
        sampler=sampler,
        rng=torch.Generator().manual_seed(0),
        # the kernels that choose tokens inside a captured pass
        ops=model.session.executor.ops,
    )
    policy = FixedPolicy(FixedConfig(depth=tree.depth))
    # a cache that grew would have all passes captured anew
    model.session.reserve(1, len(model.prompt) + request.max_new_tokens + nodes)
    scheduler = Scheduler(model.session, SameTree(tree), Greedy(None), policy, clock=model.clock)
    return scheduler.run(request)


class SameTree(Drafter):
    """Proposes the same tree in every cycle, under another root."""

    name = "same_tree"

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree
        self.drafts = tree.size > 1

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return dataclasses.replace(self.tree, token_N=(request.pending_token, *self.tree.token_N[1:]))


def random_tree(root: int, nodes: int, vocabulary: int) -> TokenTree:
    """N = ``nodes`` random tokens, each under a random earlier one that is less than DEEPEST deep."""
    chosen, builder, depths = random.Random(1), TreeBuilder(root), [0]
    # one node draws no token twice, so that no two nodes become one
    tokens: list[set[int]] = [set()]
    while builder.size < nodes:
        parent = chosen.choice([node for node, depth in enumerate(depths) if depth < DEEPEST])
        token = chosen.randrange(vocabulary)
        if token not in tokens[parent]:
            tokens[parent].add(token)
            builder.add(parent, token, "chosen")
            depths.append(depths[parent] + 1)
            tokens.append(set())
    return builder.build().tree


def fitting(shape: str, device: torch.device) -> str:
    """``shape``, or the 1B one where an 8B model of half precision does not fit beside its cache."""
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else 0
    return "1b" if shape == "8b" and free < 24 * 2**30 else shape


def make_room(device: torch.device) -> None:
    """Give back the memory of what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
