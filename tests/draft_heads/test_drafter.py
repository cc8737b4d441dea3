"""The drafter ``eagle`` on a tiny target: it conforms, its cache is mended rightly, and costs nobody else anything."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, RequestState, Sampler, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.model import session as sessions
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.registry import Registry
from spec_sdk.testing import check_drafter
from spec_sdk.testing.defaults import request_for
from spec_sdk_drafters import unfed_states
from spec_sdk_drafters.eagle import EagleDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.pairs import every_pair
from tests.support.real_pipelines import settings_of
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_heads import HeadSizes, write_eagle1, write_eagle3
from tests.support.tiny_models import TinyModels

MODELS = TinyModels()
SIZES = HeadSizes()
LAYERS: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}
"""The target has five."""
OPTIONS: dict[str, dict[str, Any]] = {
    "chain": {},
    "drawn chain": {"children": "with_replacement"},
    "beam": {"growth": "beam", "width": 3},
    "dynamic": {"growth": "dynamic", "width": 3, "max_nodes": 8},
    "distinct": {"growth": "static", "widths": [3, 2, 1], "children": "without_replacement"},
    "repeated": {"growth": "static", "widths": [3, 2, 1], "children": "with_replacement"},
}
GROWN_ALIKE = ("drawn chain", "beam", "dynamic", "repeated")
"""How trees grow does not depend on the head: these are tried with one of the two outside the full tier."""
CASES = [
    *(("eagle3", options) for options in OPTIONS),
    *(
        pytest.param("eagle", options, marks=[pytest.mark.full] * (options in GROWN_ALIKE), id=f"eagle-{options}")
        for options in OPTIONS
    ),
]


def write_heads(directory: Path) -> dict[str, Path]:
    return {
        "eagle3": write_eagle3(directory / "eagle3", SIZES, **LAYERS),
        "eagle": write_eagle1(directory / "eagle", SIZES),
    }


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_heads(tmp_path_factory.mktemp("heads"))


def drafter_of(head: Path, models: TinyModels = MODELS, **options: Any) -> EagleDrafter:
    """As YAML describes it."""
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "eagle", "checkpoint": str(head), **options})
    drafter = plugin(config, models)
    assert isinstance(drafter, EagleDrafter)
    return drafter


def target_session() -> Session:
    return Session(TorchExecutor(tiny_decoder("smollm", 0), Ops()))


@pytest.mark.parametrize(("head", "options"), CASES)
def test_conformance(head: str, options: str, heads: dict[str, Path], scale: Callable[[int, int], int]) -> None:
    check_drafter(
        lambda: drafter_of(heads[head], **OPTIONS[options]),
        VOCABULARY,
        prompts=[[5], [9, 3, 3, 60, 17, 9, 3]],
        draws=scale(30, 2000),
        target=target_session(),
    )


class Served:
    """A request whose target says after every cycle which path it accepts, at random."""

    def __init__(self, drafter: Drafter, tokens: list[int], seed: int, sampler: Sampler | None = None) -> None:
        self.drafter, self.target, self.choose = drafter, target_session(), random.Random(seed)
        sampler = sampler or ReferenceSampler(None, SamplingParams(temperature=1.0))
        self.request = request_for(tokens, sampler, seed)
        hidden = self.target.prefill(0, tokens[:-1], drafter.taps)
        drafter.start([self.request.view], [hidden])

    def cycle(self, budget: Budget) -> Any:
        (tree,) = self.drafter.propose([self.request.view], [budget])
        (scores,) = self.target.score([0], [tree], self.drafter.taps)
        path = tree.path_to(self.choose.randrange(tree.size))
        self.target.commit([0], [path])
        committed = [*(tree.token_N[node] for node in path[1:]), self.choose.randrange(VOCABULARY)]
        self.request.tokens.extend(committed)
        hidden: Hidden = {layer: h_NM[path] for layer, h_NM in scores.hidden.items()}
        self.drafter.observe([self.request.view], [committed], [hidden])
        return tree


@pytest.mark.parametrize("head", ["eagle3", "eagle"])
@pytest.mark.parametrize("options", ["dynamic", "distinct"])
def test_a_drafter_in_use_drafts_as_a_fresh_one_would(options: str, head: str, heads: dict[str, Path]) -> None:
    """Its cache holds what the target's own states of the same text would have put there."""
    used = Served(drafter_of(heads[head], **OPTIONS[options]), [4, 8, 15, 16, 23], 3)
    for _ in range(8):
        state = used.request.rng.get_state()
        fresh = Served(drafter_of(heads[head], **OPTIONS[options]), list(used.request.tokens), 0)
        fresh.request.rng.set_state(state)
        (expected,) = fresh.drafter.propose([fresh.request.view], [Budget(4)])
        tree = used.cycle(Budget(4))
        assert tree.token_N == expected.token_N
        for draws, others in zip(tree.draws_N, expected.draws_N, strict=True):
            for draw, other in zip(draws, others, strict=True):
                if draw.q_V is not None and other.q_V is not None:
                    torch.testing.assert_close(draw.q_V, other.q_V, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("head", ["eagle3", "eagle"])
def test_long_prompts_and_long_silence_are_fed_in_parts(
    head: str, heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_q(drafter: EagleDrafter) -> torch.Tensor:
        served = Served(drafter, list(range(5, 25)), 0)
        for _ in range(7):
            served.cycle(Budget(1))
        for _ in range(9):
            # plain steps: nothing is proposed
            (scores,) = served.target.score([0], [eagle_root(served.request)], drafter.taps)
            served.target.commit([0], [[0]])
            served.request.tokens.append(7)
            drafter.observe([served.request.view], [[7]], [{k: h[:1] for k, h in scores.hidden.items()}])
        tree = served.cycle(Budget(2))
        q_V = tree.draws_N[0][0].q_V
        assert q_V is not None
        assert isinstance(q_V, torch.Tensor)
        return q_V

    whole = first_q(drafter_of(heads[head], **OPTIONS["drawn chain"]))
    for module in (sessions, unfed_states):
        monkeypatch.setattr(module, "PREFILL_CHUNK", 4)
    torch.testing.assert_close(first_q(drafter_of(heads[head], **OPTIONS["drawn chain"])), whole)


def eagle_root(request: RequestState) -> Any:
    from spec_sdk.tree import TokenTree

    return TokenTree.root_only(request.view.pending_token)


def greedy_answer(
    make_drafter: Callable[[], Drafter], prompt: list[int], depth: int = 4, new_tokens: int = 20
) -> list[int]:
    """What the target answers beside such a drafter."""
    request = request_for(prompt, ReferenceSampler(None, SamplingParams()), 0, max_new_tokens=new_tokens)
    scheduler = Scheduler(target_session(), make_drafter(), MultiStep(None), FixedPolicy(FixedConfig(depth=depth)))
    return [token for tokens in scheduler.run(request) for token in tokens]


@pytest.mark.parametrize(("head", "options"), CASES)
def test_greedy_answers_are_those_of_plain_decoding(head: str, options: str, heads: dict[str, Path]) -> None:
    # of one token: there is no feature before the first step
    for prompt in ([30, 31, 32, 40], [9]):
        drafted = greedy_answer(lambda: drafter_of(heads[head], **OPTIONS[options]), prompt, new_tokens=30)
        assert drafted == greedy_answer(lambda: NoDraft(None, MODELS), prompt, new_tokens=30)


def test_drafting_stops_where_the_heads_context_ends(heads: dict[str, Path]) -> None:
    for context, depth in ((None, 8), (12, 2), (10, 0), (6, 0)):
        drafter = drafter_of(heads["eagle3"], context=context)
        served = Served(drafter, list(range(5, 15)), 0)
        assert served.cycle(Budget(8)).depth == depth
        # and it does not begin again
        depths = [served.cycle(Budget(3)).depth for _ in range(4)]
        assert depths == sorted(depths, reverse=True) and (depths[-1] == 0) == (context is not None)
        assert drafter.session.length(0) <= drafter.session.context


# --- pipelines ---


def pipeline_of(target: Path, *overrides: str) -> Pipeline:
    return build_pipeline(settings_of(f"model.target={target}", *overrides), Registry.discover())


def answers(pipeline: Pipeline, slots: int, prompts: list[list[int]]) -> dict[int, list[int]]:
    engine, found = pipeline.new_engine(slots), {number: list[int]() for number in range(len(prompts))}
    for number, prompt in enumerate(prompts):
        engine.add(TokenRequest(prompt, request_id=number, max_new_tokens=8 + number % 5, ignore_eos=True))
    while engine.busy:
        for progress in engine.step():
            if progress.error is not None:
                raise progress.error
            found[progress.request] += progress.tokens
    return found


SAMPLED = ("sampling.temperature=0.8", "sampling.repetition_penalty=1.1")
PROMPTS = [[5 + (i * j * j) % 80 for j in range(length)] for i, length in enumerate((1, 40, 7, 19, 2, 64))]


@pytest.mark.parametrize(
    ("head", "growth", "sampling"), every_pair(("eagle3", "eagle"), ("auto", "dynamic"), ((), SAMPLED))
)
def test_tokens_are_the_same_alone_and_among_others(
    head: str, growth: str, sampling: tuple[str, ...], target: Path, heads: dict[str, Path]
) -> None:
    chosen = (
        "pipeline=eagle_tree",
        "policy=fixed",
        f"drafter.checkpoint={heads[head]}",
        f"drafter.growth={growth}",
        *sampling,
    )
    pipeline = pipeline_of(target, *chosen)
    alone = {i: answers(pipeline, 1, PROMPTS[: i + 1])[i] for i in (0, 3, 5)}
    for slots in (2, 6):
        together = answers(pipeline, slots, PROMPTS)
        assert {i: together[i] for i in alone} == alone
    if not sampling:
        assert answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS) == together


def test_in_a_merged_drafter(target: Path, heads: dict[str, Path]) -> None:
    members = ", ".join(f"{{name: eagle, checkpoint: {heads[head]}, width: 2}}" for head in ("eagle3", "eagle"))
    pipeline = pipeline_of(target, "pipeline=specinfer_tree", f"drafter.members=[{members}, {{name: prompt_lookup}}]")
    assert answers(pipeline, 3, PROMPTS) == answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS)


def test_drafters_without_a_head_tap_nothing(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    run = Session._run

    def watched(session: Session, kind: Any, requests: Any, plan: Any, features: Any = None, **rest: Any) -> Any:
        asked.append((*plan.taps, *([-1] if features is not None else [])))
        return run(session, kind, requests, plan, features, **rest)

    monkeypatch.setattr(Session, "_run", watched)
    answers(pipeline_of(target, "pipeline=easyspec_paper"), 2, PROMPTS)
    assert asked and not any(asked)


def test_an_adaptive_policy_measures_the_head(
    target: Path, heads: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    chosen = ("pipeline=eagle_tree", f"drafter.checkpoint={heads['eagle3']}", "policy=adaptive")
    pipeline = pipeline_of(target, *chosen, "backend.native=false", "backend.compile=false")
    costs = pipeline.costs_of(pipeline.engine.drafter).measure()
    assert costs is not None and costs.draft is not None and costs.draft.at(1, 64) > 0
    assert answers(pipeline, 2, PROMPTS) == answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS)


@pytest.mark.parametrize("policy", ["fixed", "break_even"])
def test_beside_guesses(policy: str, target: Path, heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Started late, and asked in every cycle (``fixed``) or where it pays; the guesses see the target's choices."""
    asked, propose = list[int](), EagleDrafter.propose

    def counted(drafter: EagleDrafter, requests: Any, budgets: Any) -> Any:
        asked.append(len(requests))
        return propose(drafter, requests, budgets)

    monkeypatch.setattr(EagleDrafter, "propose", counted)
    chosen = ("pipeline=mixed_eagle", f"drafter.model.checkpoint={heads['eagle3']}", f"policy={policy}")
    drafted = answers(pipeline_of(target, *chosen), 3, PROMPTS)
    assert drafted == answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS)
    assert policy == "break_even" or sum(asked) > 20
