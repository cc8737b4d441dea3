"""Does a block runner keep its promises?

Legend: L layers, G KV heads, P committed tokens, D head dim, N rows of a request, M model dim, V vocabulary.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Sequence

import torch

from spec_sdk.contracts import GUARANTEES, BlockRunner
from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.testing.check import Check, run_checks
from spec_sdk.testing.executors import grow_tree, path_of_rows, random_tree
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.testing.static_ops import StaticOps
from spec_sdk.testing.waiting import repeated
from spec_sdk.tree import TokenTree, TreeBuilder

TOLERANCE = 1e-4
"""Of the largest value: float32, in whatever order a batch adds up."""
ROUNDS = 3
SLOTS = (1, 0, 3)

Makes = Callable[[], BlockRunner]


def check_runner(
    make_runner: Makes, *, bad: Sequence[Makes] = (), config: ModelConfig = TINY, seeds: Sequence[int] = range(3)
) -> None:
    """Raise AssertionError unless the runners that ``make_runner`` makes, a new one per call, behave.

    On random decoders of ``config``, in rounds of growing and closed trees, of which a path is kept: a request gets the
    same in company as alone, and in a slot that another one had; the K and V of committed tokens are not changed; the
    hidden states that are asked for are recorded; ``declaration`` is plain data. A runner whose guarantee is exact has
    the logits and hidden states of a plain pass, and, if its K and V may be kept (``keeps_kv``), leaves those of a
    plain pass. One that names its groups of layers (``attention_groups``) has their logits. What else a relaxed one
    deviates by is not looked at. One that is ``capturable`` gets the same from passes that are repeated in place, with
    other inputs, and waits for nothing in them (:func:`spec_sdk.testing.no_waiting`).

    ``bad``: runners with options that a model of ``config.num_layers`` layers cannot be run with (TINY has 4), which
    must raise UserError when they are made or in ``prepare``.
    """
    run_checks(runner_checks(make_runner, bad=bad, config=config, seeds=seeds))


def runner_checks(
    make_runner: Makes, *, bad: Sequence[Makes] = (), config: ModelConfig = TINY, seeds: Sequence[int] = range(3)
) -> list[Check]:
    """The checks of :func:`check_runner`, one by one."""

    def facts() -> str:
        runner = make_runner()
        _check_facts(runner)
        for number, make_bad in enumerate(bad):
            _check_refusal(make_bad, number, config.num_layers)
        return f"guarantee {runner.guarantee}"

    def passes() -> str:
        for seed in seeds:
            _check_model(make_runner, config, seed)
        return f"{len(seeds)} random models"

    return [
        Check("declares itself as plain data", facts),
        Check("logits, hidden states, K and V of passes: alone, in company, against a plain pass", passes),
    ]


def _check_model(make_runner: Makes, config: ModelConfig, seed: int) -> None:
    runner = make_runner()
    executor = TorchExecutor(load_decoder(RandomWeights(config, seed), torch.device("cpu"), torch.float32), Ops())
    where = f"runner {runner.name!r}, seed {seed}"
    own = [_Rounds(executor, make_runner, seed, where) for _ in SLOTS]
    alone = [rounds.run([slot], [number])[0] for number, (rounds, slot) in enumerate(zip(own, SLOTS, strict=True))]
    taps = _taps(executor, make_runner(), where)
    runner.prepare(executor.layers)
    if (groups := runner.attention_groups(executor.layers)) is not None:
        described = _Rounds(
            executor, lambda: LayerParallelRunner.of(groups, fused=False), seed, where, keeps=runner.keeps_kv
        )
        fault = f"{where}: its logits are not those of the groups that attention_groups names"
        _check_passes(alone, described.run(SLOTS, range(len(SLOTS))), fault)
    if runner.guarantee == "exact":
        plain = _Rounds(executor, SequentialRunner, seed, where, keeps=runner.keeps_kv)
        fault = f"{where}: it is exact, and its logits are not those of a plain pass"
        _check_passes(alone, plain.run(SLOTS, range(len(SLOTS))), fault)
        plain_taps = _taps(executor, SequentialRunner(), where)
        for layer, (h_NM, plain_NM) in enumerate(zip(taps, plain_taps, strict=True)):
            _check_close(h_NM, plain_NM, f"{where}: hidden states of layer {layer} are not those of a plain pass")
        for rounds, slot in zip(own if runner.keeps_kv else (), SLOTS, strict=False):
            for name, left, plainly in zip("KV", rounds.committed(slot), plain.committed(slot), strict=True):
                _check_close(left, plainly, f"{where}: it leaves another {name} than a plain pass")
    company = _Rounds(executor, make_runner, seed, where)
    for turn, slots in (("in company", SLOTS), ("in a slot that another had", (*SLOTS[1:], SLOTS[0]))):
        found = company.run(slots, range(len(slots)))
        _check_passes(found, alone, f"{where}: {turn} a request gets other logits than alone")
    if runner.capturable:
        graphs = GraphExecutor(executor.decoder, StaticOps(), repeated)
        found = _Rounds(graphs, make_runner, seed, where).run(SLOTS, range(len(SLOTS)))
        _check_passes(found, alone, f"{where}: it is capturable, and captured passes give other logits")


class _Rounds:
    """A session of the runner under test, which looks at what it does to the cache.

    ``keeps``: whether K and V of accepted rows are kept, or their tokens fed once more in a plain pass.
    """

    def __init__(
        self, executor: TorchExecutor, make_runner: Makes, seed: int, where: str, keeps: bool | None = None
    ) -> None:
        runner = make_runner()
        runner.prepare(executor.layers)
        self._keeps = runner.keeps_kv if keeps is None else keeps
        self._seed = seed
        self._where = where
        self._vocabulary = executor.config.vocab_size
        self._session = Session(executor, runner)
        self._slots: Sequence[int] = ()

    def run(self, slots: Sequence[int], numbers: Sequence[int]) -> list[list[torch.Tensor]]:
        """The logits [N, V] of a few passes of the requests ``numbers``, each in its slot of ``slots``."""
        self._slots, session, vocabulary = slots, self._session, self._vocabulary
        rngs = [random.Random(f"{self._seed}, {number}") for number in numbers]
        for slot, rng in zip(slots, rngs, strict=True):
            prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 20))]
            session.open(slot, prompt, keep=False)
            session.prefill(slot, prompt)
        passes: list[list[torch.Tensor]] = []
        for _ in range(ROUNDS):
            builders = [TreeBuilder(rng.randrange(vocabulary)) for rng in rngs]
            session.feed(slots, [[tree.root] for tree in builders])
            growing = list(zip(rngs, builders, strict=True))
            for _ in range(2):
                new = [grow_tree(rng, tree, rng.randint(1, 4), vocabulary) for rng, tree in growing]
                passes.append(self._watched(functools.partial(self._grown, builders, new)))
            rows = [path_of_rows(rng, tree) for rng, tree in growing]
            self._keep(rows, [[tree.token[row + 1] for row in path] for tree, path in zip(builders, rows, strict=True)])
            trees = [random_tree(rng, rng.randint(1, 9), vocabulary) for rng in rngs]
            passes.append(self._watched(functools.partial(self._scored, trees)))
            paths = [tree.path_to(rng.randrange(tree.size)) for rng, tree in zip(rngs, trees, strict=True)]
            self._keep(paths, [[tree.token_N[n] for n in path] for tree, path in zip(trees, paths, strict=True)])
        return [list(of_request) for of_request in zip(*passes, strict=True)]

    def _grown(self, builders: Sequence[TreeBuilder], new: Sequence[int]) -> list[torch.Tensor]:
        return [logits.full_KV for logits in self._session.grow(self._slots, builders, new)]

    def _scored(self, trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        return [scores.logits_NV for scores in self._session.score(self._slots, trees)]

    def committed(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [L, G, P, D] of a slot's committed tokens."""
        cache, length = self._session.cache, self._session.length(slot)
        assert isinstance(cache, KVCache)
        return cache.k_LSGCD[:, slot, :, :length].clone(), cache.v_LSGCD[:, slot, :, :length].clone()

    def _watched(self, run: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        before = [self.committed(slot) for slot in self._slots]
        logits = run()
        for slot, (old_k, old_v) in zip(self._slots, before, strict=True):
            k, v = self.committed(slot)
            assert torch.equal(k, old_k) and torch.equal(v, old_v), (
                f"{self._where}: a pass changed the K and V of committed tokens"
            )
        return logits

    def _keep(self, rows: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> None:
        if self._keeps:
            self._session.commit(self._slots, rows)
            return
        kept = [(slot, path) for slot, path in zip(self._slots, tokens, strict=True) if path]
        if kept:
            self._session.feed(*map(list, zip(*kept, strict=True)))


def _taps(executor: TorchExecutor, runner: BlockRunner, where: str) -> list[torch.Tensor]:
    """The hidden states [N, M] that a pass of ``runner`` records, of every layer."""
    runner.prepare(executor.layers)
    session, tree = Session(executor, runner), TokenTree.chain(3, [4, 5], kind="chosen")
    session.prefill(0, [1, 2])
    (scores,) = session.score([0], [tree], range(executor.layers + 1))
    missing = [layer for layer in range(executor.layers + 1) if layer not in scores.hidden]
    assert not missing, f"{where}: it does not record the hidden states of layers {missing}, which were asked for"
    return [scores.hidden[layer] for layer in range(executor.layers + 1)]


def _check_facts(runner: BlockRunner) -> None:
    assert runner.guarantee in GUARANTEES, f"guarantee {runner.guarantee!r} is none of {', '.join(GUARANTEES)}"
    declared = dict(runner.declaration())
    assert declared.get("name") == runner.name, f"its declaration has the name {declared.get('name')!r}"
    try:
        json.dumps(declared)
    except TypeError as error:
        raise AssertionError(f"its declaration {declared} is no plain data: {error}") from error


def _check_refusal(make_bad: Makes, number: int, layers: int) -> None:
    try:
        make_bad().prepare(layers)
    except UserError:
        return
    except Exception as error:
        raise AssertionError(
            f"bad runner {number} is refused by {type(error).__name__} ({error}), not UserError"
        ) from error
    raise AssertionError(f"bad runner {number} is not refused for a model of {layers} layers")


def _check_passes(
    found: Sequence[Sequence[torch.Tensor]], expected: Sequence[Sequence[torch.Tensor]], fault: str
) -> None:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for step, (logits_NV, expected_NV) in enumerate(zip(ours, theirs, strict=True)):
            _check_close(logits_NV, expected_NV, f"{fault} (request {number}, pass {step})")


def _check_close(found: torch.Tensor, expected: torch.Tensor, fault: str) -> None:
    off, allowed = float((found - expected).abs().max()), TOLERANCE * float(expected.abs().max())
    # a comparison with NaN is false
    assert off <= allowed, f"{fault}: off by {off:.1e}, {allowed:.1e} is allowed"
