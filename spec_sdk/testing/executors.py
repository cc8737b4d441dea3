"""Does an executor compute what the torch executor computes, whatever passes it is given?

A cache cannot be looked into: what it holds is right if the passes after it return what they should.

Legend: B requests, N rows of a request, M model dim, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.executor import Executor, PassPlan
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.models import Load
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.draft_logits import DraftLogits
from spec_sdk.ops.grown_paths import GrownPaths, PathDraws, ProbablePaths
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.testing.side_by_side import SideBySide
from spec_sdk.tree import TokenTree, TreeBuilder

FLOAT32 = {torch.float32: 1e-4}
SHAPES = ((1, 4, 99), (3, 3, 99), (4, 4, 9), (2, 1, 99))
"""Of trees that grow in one call: their width, depth, and most nodes."""
LARGEST_SIZE = 300
"""Sizes of passes are asked for up to this one."""


def check_executor(
    make_executor: Load,
    *,
    tolerances: Mapping[torch.dtype, float] = FLOAT32,
    runners: Sequence[Callable[[], BlockRunner]] = (SequentialRunner,),
    config: ModelConfig = TINY,
    seeds: Sequence[int] = range(3),
) -> None:
    """Raise AssertionError unless the executor that ``make_executor`` makes of random weights is a sound one.

    It is given random passes with each of ``runners``: chains, closed and growing trees, of one request and of several
    with other prefixes, sizes and slots, padded and not, with commits, roll backs and larger caches between them. What
    they return must be what the torch executor returns in float32, each request alone and without padding: off by at
    most ``tolerances[dtype]`` of the largest value, for every dtype named there. A model of ``config`` is made up of
    weights that the dtype can hold. A runner that nobody knows must be refused by name.

    Trees that it grows in one call (``grow_paths``) must be those of its own passes, level by level.

    ``runners`` are called for a fresh runner each time, which is prepared for the model. They may not keep anything of
    a request from pass to pass: of commits and roll backs only the cache hears.
    """
    for dtype, tolerance in tolerances.items():
        for seed in seeds:
            source = RandomWeights(config, seed, dtype)
            executor = make_executor(source, dtype)
            reference = TorchExecutor(load_decoder(source, torch.device("cpu"), torch.float32), Ops())
            name = str(dtype).removeprefix("torch.")
            check_facts(executor, config, dtype)
            check_sizes(executor)
            check_grown_paths(executor, tolerance, random.Random(seed), f"{name}, seed {seed}")
            for make_runner in runners:
                for check in CHECKS:
                    where = f"{name}, seed {seed}, {make_runner().name}, {check.__name__}"
                    check(SideBySide(executor, reference, make_runner, tolerance, random.Random(seed), where))
            check_unknown_runner(executor)


def check_facts(executor: Executor, config: ModelConfig, dtype: torch.dtype) -> None:
    """It says of itself what was loaded."""
    for name, found, expected in (
        ("layers", executor.layers, config.num_layers),
        ("vocabulary", executor.vocabulary, config.vocab_size),
        ("config", executor.config, config),
        ("dtype", executor.dtype, dtype),
    ):
        assert found == expected, f"executor.{name} is {found}, the model's is {expected}"


def check_sizes(executor: Executor) -> None:
    """A pass is padded to at least its size, and a larger one to no less."""
    for name, size_of in (("rows_of", executor.rows_of), ("slots_of", executor.slots_of)):
        largest = 0
        for size in range(1, LARGEST_SIZE + 1):
            padded = size_of(size)
            assert padded >= size, f"{name}({size}) is {padded}, which is less"
            assert padded >= largest, f"{name}({size}) is {padded}, but {name}({size - 1}) is {largest}"
            largest = padded


def check_grown_paths(executor: Executor, tolerance: float, rng: random.Random, where: str) -> None:
    """Trees that are fed in one call have the logits of a pass for each level, and what follows sees none of them."""
    if not executor.grows_paths:
        return
    ahead, plain = Session(executor), Session(executor)
    vocabulary = executor.config.vocab_size
    chosen = [ProbablePaths(width, depth, nodes) for width, depth, nodes in SHAPES]
    params = SamplingParams(temperature=1.2)
    drawn = [PathDraws(uniforms, params, 0.8, vocabulary) for uniforms in ((0.2, 0.9, 0.5), (0.7,))]
    # several of unlike depths, whose levels are alike as far as they go
    together = [[paths] for paths in (*chosen, *map(ProbablePaths.drawn, drawn))]
    together.append([replace(chosen[1], depth=depth) for depth in (3, 2, 4)])
    for asked in together:
        slots = [2, 0, 1][-len(asked) :]
        tokens = [[rng.randrange(vocabulary) for _ in range(rng.randint(1, 9))] for _ in asked]
        grown = ahead.feed_and_grow(slots, tokens, asked)
        assert len(grown) == len(asked), f"{where}: {len(grown)} trees grow of {len(asked)} requests"
        for slot, own, paths, found in zip(slots, tokens, asked, grown, strict=True):
            (root,) = plain.feed([slot], [own])
            tree = TreeBuilder(own[-1])
            check_levels(plain, slot, tree, paths, found, root, tolerance, where)
            # of several what is fed behind the last level of one nobody asks for
            deepest = max(each.depth for each in asked)
            assert max(tree.depth) < deepest, f"{where}: trees of {deepest} levels are fed {max(tree.depth)}"


def check_levels(
    plain: Session,
    slot: int,
    tree: TreeBuilder,
    paths: ProbablePaths,
    grown: GrownPaths,
    root: DraftLogits,
    tolerance: float,
    where: str,
) -> None:
    """The logits of what grew in one call behind the root of ``tree``, to which it is added, are those of a pass for
    each level.
    """
    pairs = [(grown.root, root)]
    for level in grown.levels:
        fed = tree.size + len(level.token_K)
        assert fed <= paths.nodes, f"{where}: a tree of {paths.nodes} nodes at most is fed {fed}"
        for parent, child in zip(level.parent_K, level.token_K, strict=True):
            tree.add(parent, child, "chosen")
        pairs.append((level.logits, plain.grow([slot], [tree], [len(level.token_K)])[0]))
    for number, (found, expected) in enumerate(pairs):
        of_own, of_passes = found.full_KV.float(), expected.full_KV.float()
        off, most = float((of_own - of_passes).abs().max()), tolerance * float(of_passes.abs().max())
        # a comparison with NaN is false
        assert off <= most, f"{where}: level {number} of a tree that grows in one call is off by {off:.1e}"
        if paths.draws is not None and found.drawn_KW is not None:
            check_drawn(found, paths.draws, paths.draws.uniforms[number], where)


def check_drawn(logits: DraftLogits, draws: PathDraws, uniform: float, where: str) -> None:
    """The token of a level's one node is the one that ``uniform`` draws, and as probable as it says."""
    ((token,),), (probability,) = logits.drawn_KW or ((-1,),), logits.probability_K or (0.0,)
    temperature = draws.temperature * draws.shaping.temperature
    p_V = (logits.full_KV[0, : draws.vocabulary].cpu().double() / temperature).softmax(-1)
    last = float(p_V.cumsum(0)[token])
    assert last - float(p_V[token]) - 1e-5 <= uniform <= last + 1e-5, f"{where}: {uniform} draws token {token}"
    assert abs(probability - float(p_V[token])) < 1e-5, f"{where}: token {token} is drawn with {probability}"


def check_chains(side: SideBySide) -> None:
    """Prompts in chunks of any size, a slot after the other."""
    for slot in (1, 0):
        for size in (1, 7, 1, side.rng.randint(2, 20), side.rng.randint(2, 20)):
            side.feed([slot], [size])


def check_closed_trees(side: SideBySide) -> None:
    """Trees of any shape, of which a path is kept; what follows sees the path and nothing else of the tree."""
    side.feed([0], [side.rng.randint(1, 20)])
    for size in (1, 2, 5, 9, side.rng.randint(10, 30)):
        tree = random_tree(side.rng, size, side.vocabulary)
        side.run("tree", [tree_rows(side, 0, tree)])
        side.commit([0], [tree.path_to(side.rng.randrange(tree.size))])
        side.feed([0], [1])


def check_growing_trees(side: SideBySide) -> None:
    """Trees that grow in portions of any size, under any of their nodes; and such as begin with a root that is fed."""
    side.feed([0], [side.rng.randint(1, 20)])
    for _ in range(3):
        tree = TreeBuilder(side.token())
        for _ in range(4):
            new = grow_tree(side.rng, tree, side.rng.randint(1, 5), side.vocabulary)
            side.run("growing", [growing_rows(side, 0, tree, new)])
        side.commit([0], [path_of_rows(side.rng, tree)])
        side.feed([0], [2])
        drafted, new = TreeBuilder(side.token()), 1
        for _ in range(3):
            side.run("growing", [growing_rows(side, 0, drafted, new, root_committed=False)])
            new = grow_tree(side.rng, drafted, side.rng.randint(1, 5), side.vocabulary)
        # nothing of it is kept, and nothing of it is seen
        side.feed([0], [1])


def check_batches(side: SideBySide) -> None:
    """Several requests in a pass, in any order of slots and with gaps, each with a prefix and a size of its own."""
    for slots in batches(side):
        side.feed(slots, [side.rng.randint(1, 9) for _ in slots])
        trees = [random_tree(side.rng, side.rng.randint(1, 12), side.vocabulary) for _ in slots]
        side.run("tree", [tree_rows(side, slot, tree) for slot, tree in zip(slots, trees, strict=True)])
        side.commit(slots, [tree.path_to(side.rng.randrange(tree.size)) for tree in trees])
        builders = [TreeBuilder(side.token()) for _ in slots]
        for _ in range(2):
            news = [grow_tree(side.rng, tree, side.rng.randint(1, 4), side.vocabulary) for tree in builders]
            grown = zip(slots, builders, news, strict=True)
            side.run("growing", [growing_rows(side, slot, tree, new) for slot, tree, new in grown])
        side.commit(slots, [path_of_rows(side.rng, tree) for tree in builders])


def check_padding(side: SideBySide) -> None:
    """Rows and tree slots of padding change nothing, of requests whose slots have no room for them either."""
    side.feed([0, 1], [1, 4])
    full = min(side.cache.capacity, side.context)
    while (room := full - side.length(0)) > 1:
        size = min(room - 1, side.rng.randint(1, 40))
        side.feed([0, 1], [size, 1], rows=size + 5, tree_slots=size + 9)
    for slot, size in ((0, 1), (1, 1), (1, 3)):
        tree = random_tree(side.rng, size, side.vocabulary)
        side.run("tree", [tree_rows(side, slot, tree)], rows=size + 7, tree_slots=size + 7)
    side.commit([0, 1], [[0], [0]])
    growing = TreeBuilder(side.token())
    for size in (3, 1):
        new = grow_tree(side.rng, growing, size, side.vocabulary)
        side.run("growing", [growing_rows(side, 1, growing, new)], rows=8, tree_slots=9)
    side.feed([1], [1])


def check_commits(side: SideBySide) -> None:
    """Any rows, in order, of several slots at once: all, none, some."""
    slots = [3, 0, 2]
    side.feed(slots, [5, 1, 9])
    for kept in ((0, 4, 8), (1, 0, 8), (8, 3, 2)):
        trees = [random_tree(side.rng, 8, side.vocabulary) for _ in slots]
        side.run("tree", [tree_rows(side, slot, tree) for slot, tree in zip(slots, trees, strict=True)])
        side.commit(slots, [sorted(side.rng.sample(range(8), count)) for count in kept])
        side.feed(slots, [1, 1, 1])


def check_roll_backs(side: SideBySide) -> None:
    """A slot that is rolled back, or given to another request, has nothing of what was behind."""
    side.feed([0, 1], [20, 8])
    for length in (13, 5, 0):
        side.roll_back(0, length)
        side.feed([0, 1], [3, 1])
        tree = random_tree(side.rng, 6, side.vocabulary)
        side.run("tree", [tree_rows(side, 0, tree)])


def check_reserving(side: SideBySide) -> None:
    """A larger cache has what the smaller one had; asking for less takes nothing away."""
    for slots, capacity in ((2, 30), (4, 30), (4, 90), (1, 10), (5, 200)):
        side.reserve(slots, capacity)
        assert side.cache.slots >= slots, f"{side.where}: {side.cache.slots} slots, {slots} were reserved"
        assert side.cache.capacity >= capacity, (
            f"{side.where}: a slot has room for {side.cache.capacity} tokens, {capacity} were reserved"
        )
        assert side.cache.nbytes > 0, f"{side.where}: a cache with room says that it takes no memory"
        side.feed([1, 0], [3, 2])


def check_logits(side: SideBySide) -> None:
    """Of every row, of every request's last live row, or of none."""
    for _ in range(2):
        for sizes in ((1,), (4, 1, 7)):
            slots = range(len(sizes))
            side.feed(slots, sizes, logits="none")
            side.feed(slots, sizes, logits="last")
            side.feed(slots, sizes, logits="last", rows=max(sizes) + 3)
            side.feed(slots, sizes, logits="all")


def check_taps(side: SideBySide) -> None:
    """The hidden states of the layers that were asked for, and of no others."""
    layers = side.executor.layers
    for taps in (range(layers + 1), (layers,), (0,), (layers // 2, 1)):
        side.feed([0, 1], [3, 5], taps=taps, rows=6)
        tree = random_tree(side.rng, 6, side.vocabulary)
        side.run("tree", [tree_rows(side, 1, tree)], taps=taps, logits="none")


def check_cuts(side: SideBySide) -> None:
    """A model made of some of the layers, beside the whole one, each with a cache of its own."""
    last = side.executor.layers - 1
    for layers in ([0, last], [last], sorted(side.rng.sample(range(last + 1), min(2, last + 1)))):
        cut = side.cut(layers)
        assert cut.executor.layers == len(layers), f"{cut.where}: it has {cut.executor.layers} layers"
        for one in (cut, side):
            one.feed([0], [4], taps=[1])
            one.run("tree", [tree_rows(one, 0, tree := random_tree(one.rng, 5, one.vocabulary))])
            one.commit([0], [tree.path_to(4)])
            one.feed([0], [1])


CHECKS: tuple[Callable[[SideBySide], None], ...] = (
    check_chains,
    check_closed_trees,
    check_growing_trees,
    check_batches,
    check_padding,
    check_commits,
    check_roll_backs,
    check_reserving,
    check_logits,
    check_taps,
    check_cuts,
)


class UnheardOf(BlockRunner):
    """A runner that an executor knows nothing of; one that is torch can run it all the same."""

    name = "unheard_of"

    def __init__(self) -> None:
        super().__init__()
        self.has_run = False

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        self.has_run = True
        return SequentialRunner().run(decoder, h_BNM, work)


def check_unknown_runner(executor: Executor) -> None:
    """What an executor cannot carry out, it refuses by name, instead of doing something else."""
    runner, cache = UnheardOf(), executor.new_cache()
    cache.reserve(1, 4)
    inputs = PassInputs.of(
        "chain", [RequestRows.chain(0, 0, [1])], executor.device, executor.rows_of(1), executor.slots_of(1)
    )
    try:
        executor.forward(inputs, cache, PassPlan(runner))
    except UserError as error:
        assert runner.name in str(error), f"runner '{runner.name}' is refused without its name: {error}"
        return
    assert runner.has_run, f"runner '{runner.name}' was neither run nor refused: the pass was executed in another way"


def random_tree(rng: random.Random, size: int, vocabulary: int) -> TokenTree:
    """A closed tree of so many nodes: from a chain to a star."""
    tree = TreeBuilder(rng.randrange(vocabulary))
    grow_tree(rng, tree, size - 1, vocabulary)
    return tree.build().tree


def grow_tree(rng: random.Random, tree: TreeBuilder, new: int, vocabulary: int) -> int:
    """Add ``new`` nodes under any of its nodes, the youngest more often than others; return ``new``."""
    size, reach = tree.size + new, rng.choice((1, 3, 1000))
    while tree.size < size:
        tree.add(rng.randrange(max(0, tree.size - reach), tree.size), rng.randrange(vocabulary), "chosen")
    return new


def tree_rows(side: SideBySide, slot: int, tree: TokenTree) -> RequestRows:
    """A closed tree after what the slot has committed."""
    return RequestRows.tree(slot, side.length(slot), tree.token_N, tree.depth_N, tree.end_N)


def growing_rows(side: SideBySide, slot: int, tree: TreeBuilder, new: int, root_committed: bool = True) -> RequestRows:
    """The ``new`` youngest nodes of a tree whose root is the slot's last committed token, or comes after it."""
    return RequestRows.growing(slot, side.length(slot), tree.token, tree.depth, *tree.intervals(), new, root_committed)


def path_of_rows(rng: random.Random, tree: TreeBuilder) -> list[int]:
    """The rows, after the prefix, of the nodes below the root that lead to some node."""
    node, rows = rng.randrange(tree.size), list[int]()
    while node:
        rows.append(node - 1)
        node = tree.parent[node]
    return rows[::-1]


def batches(side: SideBySide) -> Iterator[list[int]]:
    """Slots of successive passes: one, several, in any order, with gaps."""
    yield [2]
    yield [4, 0]
    for _ in range(3):
        yield side.rng.sample(range(6), side.rng.randint(2, 5))
