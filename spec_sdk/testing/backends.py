"""Does a backend describe itself, execute passes and accept tokens as the reference does?

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import torch

from spec_sdk.contracts import Backend, Finding, SamplingParams
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.ops import RULES, FromLogits, LogitsToCome, Ops, Recipe, Rows, ScoredTree, UnscoredTree, read_decisions
from spec_sdk.testing.check import Check, run_checks
from spec_sdk.testing.defaults import MakeSampler, reference_sampler
from spec_sdk.testing.drawing import check_drawing
from spec_sdk.testing.executors import CHECKS, check_executor
from spec_sdk.testing.kept_tokens import check_kept_tokens
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.testing.same_bits import check_same_bits
from spec_sdk.testing.wording import words_of
from spec_sdk.tree import DraftDistribution, TreeBuilder

VOCABULARY, TREES, NODES = 40, 24, 9
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.8, top_k=8, top_p=0.9))


def check_backend(
    backend: Backend, *, seeds: Sequence[int] = (0,), make_sampler: MakeSampler = reference_sampler
) -> None:
    """Raise AssertionError unless ``backend`` is sound, in one process.

    It says what machine it is in one line that stays the same. What it loads is a sound executor
    (:func:`spec_sdk.testing.check_executor`, random weights of ``seeds``) in every dtype of its ``tolerances``. Made
    deterministic, if it can be, its rows have the same bits in any pass (:func:`spec_sdk.testing.check_same_bits`). Its
    operations accept, by every rule and for several trees at once, what the reference ones accept with the same random
    numbers, after a pass and, where they do that, as its last operation; they keep the tokens that its filters keep.
    What it finds on the machine is told in lines, and its own self-tests pass.
    """
    run_checks(backend_checks(backend, seeds=seeds, make_sampler=make_sampler))


def backend_checks(
    backend: Backend, *, seeds: Sequence[int] = (0,), make_sampler: MakeSampler = reference_sampler
) -> list[Check]:
    """The checks of :func:`check_backend`, one by one."""
    return [
        Check("says what machine it is", lambda: _check_facts(backend)),
        Check(
            "its executor computes what the torch executor computes",
            lambda: _check_executor(backend, seeds),
        ),
        Check("its operations accept what the reference ones accept", lambda: _check_rules(backend, make_sampler)),
        Check("says what it finds, and passes its own self-tests", lambda: _check_diagnosis(backend)),
        Check("deterministic, it gives a row the same bits in any pass", lambda: _check_bits(backend, seeds)),
    ]


def _check_executor(backend: Backend, seeds: Sequence[int]) -> str:
    check_executor(backend.load, tolerances=backend.tolerances, seeds=seeds)
    tried = [f"{str(dtype).removeprefix('torch.')} to {off:.0e}" for dtype, off in backend.tolerances.items()]
    return f"{len(CHECKS)} kinds of passes, {', '.join(tried)}"


def _check_bits(backend: Backend, seeds: Sequence[int]) -> str:
    asked = copy.copy(backend)
    try:
        asked.be_deterministic()
    except UserError as error:
        return f"it refuses: {error}"
    trees, kept = 0, []
    for dtype in backend.tolerances:
        name = str(dtype).removeprefix("torch.")
        executor = asked.load(RandomWeights(TINY, 0, dtype), dtype)
        if executor.bits_vary is not None:
            kept.append(f"not {name}: {executor.bits_vary}")
            continue
        trees += sum(check_same_bits(executor, seed, most_nodes=24, longest_prompt=150) for seed in (*seeds, 1, 2))
        kept.append(name)
    return f"{trees} trees, {', '.join(kept)}"


def _check_facts(backend: Backend) -> str:
    device = backend.device
    assert isinstance(device, torch.device), f"its device is {device!r}, which is no torch.device"
    for name, text, again in (
        ("describe()", backend.describe(), backend.describe()),
        ("hardware", backend.hardware, backend.hardware),
    ):
        assert isinstance(text, str) and text.strip() and "\n" not in text, f"{name} is {text!r}, not one line"
        assert name == "describe()" or text == again, f"{name} is {text!r} and then {again!r}"
    clock = backend.clock()
    first, last = clock.mark(), clock.mark()
    seconds = clock.seconds(first, last)
    assert seconds >= 0, f"its clock went back by {-seconds} seconds between two marks"
    return backend.describe()


def _check_rules(backend: Backend, make_sampler: MakeSampler) -> str:
    for rule in RULES:
        check_rule(backend, rule, make_sampler)
        check_rule_in_pass(backend, rule, make_sampler)
    check_kept_tokens(backend)
    drawn = ", and draws as the reference sampler does" if check_drawing(backend) else ""
    return f"{len(RULES)} rules, {TREES} trees at once{drawn}"


def _check_diagnosis(backend: Backend) -> str:
    findings = backend.diagnose()
    for finding in findings:
        assert isinstance(finding, Finding), f"diagnose() gives {finding!r}, which is no Finding"
        for text in (finding.subject, finding.text, finding.advice):
            assert "\n" not in text, f"diagnose() gives {text!r}, which is not one line"
        assert finding.subject and finding.text, f"diagnose() gives {finding!r}, which does not say what it is of"
    tests = backend.self_tests()
    for test in tests:
        error = test.run()
        assert error <= test.limit, f"{test.operation} ({test.numbers}) is off by {error:.1e}, not {test.limit:.0e}"
    return f"{counted(len(findings), 'finding')}, {counted(len(tests), 'self-test')}"


def check_rule(backend: Backend, rule: str, make_sampler: MakeSampler) -> None:
    """Raise AssertionError unless the backend's operations accept by ``rule`` what the reference ones accept."""
    for params in SAMPLINGS[:1] if rule == "greedy" else SAMPLINGS[1:]:
        ours = read_decisions(backend.ops.accept(rule, _scored(rule, make_sampler, params, backend.device)))
        theirs = read_decisions(Ops().accept(rule, _scored(rule, make_sampler, params, torch.device("cpu"))))
        for number, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
            assert not isinstance(expected, Exception), f"the reference fails: {expected!r}"
            assert found == expected, (
                f"rule {rule!r}, tree {number} of {TREES}, {words_of(params)}: it accepts the nodes {found}, "
                f"the reference {expected} (path, next token)"
            )


def check_rule_in_pass(backend: Backend, rule: str, make_sampler: MakeSampler) -> bool:
    """Raise AssertionError unless what passes decide by ``rule`` (:meth:`~spec_sdk.ops.Ops.accept_in_pass`) is what the
    reference decides after them. Returns whether they decide by it at all.
    """
    asked = False
    for params in SAMPLINGS[:1] if rule == "greedy" else SAMPLINGS[1:]:
        scored = _scored(rule, make_sampler, params, backend.device)
        logits_BNV = torch.nn.utils.rnn.pad_sequence([one.rows.logits_NV.float() for one in scored], batch_first=True)
        requests, rows, vocabulary = logits_BNV.shape
        inside = backend.ops.accept_in_pass(
            rule,
            [UnscoredTree(one.tree, Recipe(params), one.uniforms) for one in scored],
            LogitsToCome(requests, rows, vocabulary, logits_BNV.dtype, logits_BNV.device),
        )
        if inside is None:
            continue
        asked, made_BX = True, inside.epilogue(logits_BNV).cpu()
        theirs = read_decisions(Ops().accept(rule, _scored(rule, make_sampler, params, torch.device("cpu"))))
        for b, expected in enumerate(theirs):
            assert not isinstance(expected, Exception), f"the reference fails: {expected!r}"
            found = inside.decision(b, made_BX[b])
            assert found == expected, (
                f"rule {rule!r} in a pass, tree {b} of {TREES}, {words_of(params)}: it accepts the nodes {found}, "
                f"the reference {expected} (path, next token)"
            )
    return asked


def _scored(rule: str, make_sampler: MakeSampler, params: SamplingParams, device: torch.device) -> list[ScoredTree]:
    """Random trees of all kinds of draws, the same whenever it is asked; chains for a rule of chains."""
    scored = []
    for number in range(TREES):
        choose, rng = random.Random(number), torch.Generator().manual_seed(number)
        sampler = make_sampler(params)
        tree = TreeBuilder(choose.randrange(VOCABULARY))
        while tree.size < NODES:
            parent = tree.size - 1 if rule == "block" else choose.randrange(tree.size)
            kind = choose.choice(("chosen", "with_replacement"))
            if kind == "chosen" or sampler.greedy:
                tree.add(parent, choose.randrange(VOCABULARY), "chosen")
                continue
            distribution = DraftDistribution(
                (2 * torch.randn(VOCABULARY, generator=rng)).to(device),
                lambda logits_V, sampler=sampler: sampler.probabilities(logits_V[None])[0].cpu(),  # type: ignore[misc]
            )
            tree.add(parent, sampler.draw_from(distribution, rng), "with_replacement", distribution)
        closed = tree.build().tree
        logits_NV = (2 * torch.randn((closed.size, VOCABULARY), generator=rng)).to(device)
        rows: Rows = sampler.rows(closed, logits_NV)
        if not (sampler.greedy or sampler.own_probabilities) and rows.from_logits is None:
            # so that kernels that make rows by themselves are asked, too
            rows.from_logits = FromLogits(logits_NV, params)
        numbers = torch.Generator().manual_seed(1000 + number)

        def uniforms(count: int, numbers: torch.Generator = numbers) -> list[float]:
            drawn: list[float] = torch.rand(count, generator=numbers, dtype=torch.float64).tolist()
            return drawn

        scored.append(ScoredTree(closed, rows, uniforms))
    return scored
