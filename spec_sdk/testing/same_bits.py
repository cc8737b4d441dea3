"""Does a row of a pass get the bits that plain decoding gives it, whatever its text was fed in and stands beside?

Legend: N nodes of a path, V vocabulary, M model dim.
"""

from __future__ import annotations

import random

import torch

from spec_sdk.model.executor import Executor
from spec_sdk.model.session import Session
from spec_sdk.tree import TokenTree, TreeBuilder

ROUNDS = 4
"""Trees that a request is given one after the other, a path of each committed."""


def check_same_bits(
    executor: Executor,
    seed: int,
    *,
    rounds: int = ROUNDS,
    most_requests: int = 4,
    most_nodes: int = 48,
    longest_prompt: int = 200,
    texts: list[list[int]] | None = None,
) -> int:
    """Raise AssertionError unless random trees beside others give what plain decoding gives, to the bit.

    Up to ``most_requests`` requests are prefilled in chunks of any size, alone or together, some on what an earlier
    request left in their slot. Then ``rounds`` times each is given a tree of up to ``most_nodes`` nodes of any shape,
    all in one call; a path to a random node of each is compared, its logits and the states that leave a block in the
    middle and the last one, and committed. Plain decoding feeds the same text in a session of its own, one token a pass
    from the first on.

    ``texts``: what prompts begin with, instead of random tokens. Returns how many trees were compared.
    """
    rng = random.Random(seed)
    vocabulary, taps = executor.config.vocab_size, middle_and_last(executor)
    room = executor.config.max_context - rounds * most_nodes - 2
    session = Session(executor)
    slots = list(range(rng.randint(1, most_requests)))
    plain = {slot: Plain(executor) for slot in slots}
    prompts = []
    for slot in slots:
        length = rng.randint(1, max(1, min(longest_prompt, room)))
        known = texts[rng.randrange(len(texts))] if texts else []
        prompts.append([*known[:length], *(rng.randrange(vocabulary) for _ in range(length - len(known)))])
        if rng.random() < 0.3:
            _leave_behind(session, slot, prompts[-1], rng)
    _prefill(session, slots, prompts, rng)
    for slot, prompt in zip(slots, prompts, strict=True):
        plain[slot].feed(prompt)
    compared = 0
    for _ in range(rounds):
        trees = [random_tree(rng, rng.randint(1, most_nodes), vocabulary) for _ in slots]
        scores = session.score(slots, trees, taps=taps)
        paths = [tree.path_to(rng.randrange(tree.size)) for tree in trees]
        for slot, tree, scored, path in zip(slots, trees, scores, paths, strict=True):
            expected = plain[slot].decode([tree.token_N[node] for node in path])
            found = [scored.logits_NV[path], *(scored.hidden[layer][path] for layer in taps)]
            names = ["logits", *(f"states after block {layer}" for layer in taps)]
            for what, ours, theirs in zip(names, found, expected, strict=True):
                if not same_bits(ours, theirs):
                    depth = next(i for i in range(len(path)) if not same_bits(ours[i], theirs[i]))
                    raise AssertionError(
                        f"seed {seed}, request {slot} of {len(slots)}, prefix {session.length(slot)}: the {what} of "
                        f"node {path[depth]} of {tree.size}, at depth {depth}, are not plain decoding's"
                    )
            compared += 1
        session.commit(slots, paths)
    return compared


class Plain:
    """Plain decoding of one text: a request alone, one token a pass."""

    def __init__(self, executor: Executor) -> None:
        self._session, self._taps = Session(executor), middle_and_last(executor)

    def feed(self, tokens: list[int]) -> None:
        for token in tokens:
            self._session.prefill(0, [token])

    def decode(self, tokens: list[int]) -> list[torch.Tensor]:
        """Feed ``tokens``: the logits [N, V] after each, and the states [N, M] of each layer of
        :func:`middle_and_last`.
        """
        rows: list[list[torch.Tensor]] = []
        for token in tokens:
            (scores,) = self._session.score([0], [TokenTree.root_only(token)], taps=self._taps)
            self._session.commit([0], [[0]])
            rows.append([scores.logits_NV[0], *(scores.hidden[layer][0] for layer in self._taps)])
        return [torch.stack(column) for column in zip(*rows, strict=True)]


def middle_and_last(executor: Executor) -> tuple[int, ...]:
    """The blocks whose states are looked at, counted from 1."""
    return tuple(sorted({max(1, executor.layers // 2), executor.layers}))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal bit by bit: zeros of unlike signs are not, NaNs of the same bits are."""
    whole = {2: torch.int16, 4: torch.int32}[one.element_size()]
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and torch.equal(one.contiguous().view(whole), other.contiguous().view(whole))


def random_tree(rng: random.Random, size: int, vocabulary: int) -> TokenTree:
    """A tree of up to ``size`` nodes, from a chain to a star."""
    builder, reach = TreeBuilder(rng.randrange(vocabulary)), rng.choice((1, 3, size))
    for _ in range(size - 1):
        builder.add(rng.randint(max(0, builder.size - reach), builder.size - 1), rng.randrange(vocabulary), "chosen")
    return builder.build().tree


def _leave_behind(session: Session, slot: int, prompt: list[int], rng: random.Random) -> None:
    """An earlier request in the slot: a first part of the prompt, then a tree, whose cache the prompt goes on with."""
    common = rng.randint(0, len(prompt) - 1)
    vocabulary = session.vocabulary
    session.open(slot, prompt)
    if common:
        session.prefill(slot, prompt[:common])
    tree = random_tree(rng, rng.randint(1, 20), vocabulary)
    session.score([slot], [tree])
    session.commit([slot], [tree.path_to(tree.size - 1)])


def _prefill(session: Session, slots: list[int], prompts: list[list[int]], rng: random.Random) -> None:
    done = [session.open(slot, prompt) for slot, prompt in zip(slots, prompts, strict=True)]
    while left := [i for i in range(len(slots)) if done[i] < len(prompts[i])]:
        together = rng.sample(left, rng.randint(1, len(left)))
        sizes = [rng.randint(1, len(prompts[i]) - done[i]) for i in together]
        chunks = [prompts[i][done[i] : done[i] + size] for i, size in zip(together, sizes, strict=True)]
        session.prefill_together([slots[i] for i in together], chunks, ())
        for i, size in zip(together, sizes, strict=True):
            done[i] += size
