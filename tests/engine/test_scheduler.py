"""Requests that share steps: how they join, leave, fail and are cancelled, and that others do not notice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import (
    Budget,
    Drafter,
    Hidden,
    Matcher,
    OnlyTokens,
    Policy,
    Request,
    RequestError,
    SamplingParams,
    Verdict,
    Verifier,
)
from spec_sdk.engine.faults import verdict_fault
from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.errors import PluginFault, UnusableLogits, UserError
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.prompt_lookup import PromptLookup, PromptLookupConfig
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_models import TinyModels

PROMPTS = [[5, 9, 17, 5, 9, 17, 5, 9], [41, 3], [7, 8, 9, 10, 7, 8, 9, 10, 7], [30, 31]]
Events = dict[int, list[dict[str, Any]]]


class Lookup(PromptLookup):
    """Prompt lookup, of which one request's proposal can be replaced."""

    def __init__(self, spoil: Callable[[Request], TokenTree] | None = None, of: int = -1) -> None:
        super().__init__(PromptLookupConfig(), TinyModels())
        self.spoil = spoil
        self.of = of
        self.finished: list[int] = []

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        if request.id == self.of and self.spoil is not None and request.step == 2:
            return self.spoil(request)
        return super().propose_one(request, budget)

    def finish(self, requests: Sequence[Request]) -> None:
        self.finished += [request.id for request in requests]
        super().finish(requests)


def engine_of(
    slots: int = 4,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    policy: Policy | None = None,
    stop_ids: frozenset[int] = frozenset(),
) -> TokenEngine:
    return TokenEngine(
        target=Session(TorchExecutor(tiny_decoder(), Ops())),
        drafter=drafter or Lookup(),
        verifier=verifier or MultiStep(None),
        policy=policy or FixedPolicy(FixedConfig(depth=3)),
        make_sampler=lambda params: ReferenceSampler(None, params),
        sampling=SamplingParams(),
        stop_ids=stop_ids,
        slots=slots,
    )


def serve(engine: TokenEngine, prompts: Sequence[list[int]] = PROMPTS, new_tokens: int = 10) -> tuple[Events, Any]:
    """The events of all requests, and the error of each that had one."""
    events: Events = {}
    for number, prompt in enumerate(prompts):
        events[number] = []
        engine.add(TokenRequest(prompt, request_id=number, max_new_tokens=new_tokens, emit=events[number].append))
    errors = {}
    while engine.busy:
        for progress in engine.step():
            if progress.error is not None:
                errors[progress.request] = progress.error
    return events, errors


def tokens(events: Sequence[dict[str, Any]]) -> list[int]:
    return [token for event in events if event["event"] == "cycle" for token in event["tokens"]]


def reason(events: Sequence[dict[str, Any]]) -> str:
    assert [event["event"] for event in events].count("request_end") == 1
    return str(events[-1]["finish_reason"])


@pytest.fixture(scope="module")
def expected() -> dict[int, list[int]]:
    events, errors = serve(engine_of())
    assert not errors and all(reason(own) == "length" for own in events.values())
    return {number: tokens(own) for number, own in events.items()}


def raising(error: Exception) -> Callable[[Request], TokenTree]:
    def spoil(request: Request) -> TokenTree:
        raise error

    return spoil


def drawn(request: Request, q_V: torch.Tensor) -> TokenTree:
    builder = TreeBuilder(request.pending_token)
    builder.add(0, 1, "with_replacement", q_V)
    return builder.build().tree


SPOILT: dict[str, tuple[Callable[[Request], Any], str]] = {
    "names its request": (lambda request: raising(RequestError(request.id, ValueError("no luck")))(request), "no luck"),
    "another root": (lambda request: TokenTree.root_only(request.pending_token + 1), "drafter 'prompt_lookup': tree"),
    "too deep": (lambda request: TokenTree.chain(request.pending_token, [1, 2, 3, 4]), "depth 4, the budget is"),
    "no token": (lambda request: TokenTree.chain(request.pending_token, [10**6]), "tree node 1: token 1000000"),
    "no tree": (lambda request: None, "None is no TokenTree"),
    "no mass": (
        lambda request: drawn(request, torch.ones(96)),
        "tree node 1: its q_V is no distribution: it sums to 96",
    ),
    "half the mass": (lambda request: drawn(request, torch.full((96,), 0.5 / 96, dtype=torch.bfloat16)), "sums to 0.5"),
    "less than none": (lambda request: drawn(request, torch.tensor([-0.5, 1.5, *[0.0] * 94])), "its least is -0.5"),
    "not a number": (lambda request: drawn(request, torch.full((96,), torch.nan)), "it sums to nan"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_one_requests_bad_tree_ends_it_alone(fault: str, expected: dict[int, list[int]]) -> None:
    spoil, message = SPOILT[fault]
    drafter = Lookup(spoil, of=2)
    events, errors = serve(engine_of(drafter=drafter))
    assert list(errors) == [2] and message in str(errors[2])
    assert reason(events[2]) == "error" and sorted(drafter.finished) == [0, 1, 2, 3]
    assert tokens(events[2]) == expected[2][: len(tokens(events[2]))]
    for number in (0, 1, 3):
        assert tokens(events[number]) == expected[number] and reason(events[number]) == "length"


def test_a_batched_call_that_raises_ends_its_requests_and_those_that_wait_go_on(expected: dict[int, list[int]]) -> None:
    class Batched(Lookup):
        def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
            return [self.propose_one(*case) for case in zip(requests, budgets, strict=True)]

    events, errors = serve(engine_of(slots=2, drafter=Batched(raising(OSError("broken")), of=1)))
    assert sorted(errors) == [0, 1] and all("broken" in str(error) for error in errors.values())
    assert [reason(events[number]) for number in range(4)] == ["error", "error", "length", "length"]
    assert [tokens(events[number]) for number in (2, 3)] == [expected[2], expected[3]]


class OneByOne(PromptLookup):
    """Fails over one request, in its third step, by ``propose_one``."""

    def __init__(self, error: Exception, of: int) -> None:
        super().__init__(PromptLookupConfig(), TinyModels())
        self.error, self.of = error, of

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        if (request.id, request.step) == (self.of, 2):
            raise self.error
        return super().propose_one(request, budget)


@pytest.mark.parametrize("error", [KeyError("no luck"), UserError("no luck"), UnusableLogits(0)], ids=repr)
@pytest.mark.parametrize("of", [0, 2, 3])
def test_what_propose_one_raises_ends_its_own_request_alone(
    error: Exception, of: int, expected: dict[int, list[int]]
) -> None:
    events, errors = serve(engine_of(drafter=OneByOne(error, of)))
    assert list(errors) == [of] and reason(events[of]) == "error"
    if isinstance(error, UnusableLogits):
        assert isinstance(errors[of], UserError) and str(errors[of]).startswith("step 3, drafter 'prompt_lookup': row")
    else:
        assert errors[of] is error
        said = ["in drafter 'prompt_lookup'"] if isinstance(error, KeyError) else []
        assert getattr(error, "__notes__", []) == said
    for number in {0, 1, 2, 3} - {of}:
        assert tokens(events[number]) == expected[number] and reason(events[number]) == "length"


def test_what_a_requests_own_policy_raises_ends_it_alone(expected: dict[int, list[int]]) -> None:
    class Failing(FixedPolicy):
        def budget(self, request: Request) -> Budget:
            if (request.id, request.step) == (2, 2):
                raise KeyError("no luck")
            return super().budget(request)

    events, errors = serve(engine_of(policy=Failing(FixedConfig(3))))
    assert list(errors) == [2] and isinstance(errors[2], KeyError)
    assert errors[2].__notes__ == ["in policy 'fixed'"]
    for number in (0, 1, 3):
        assert tokens(events[number]) == expected[number] and reason(events[number]) == "length"


def test_an_error_that_names_no_request_of_the_call_ends_them_all() -> None:
    _, errors = serve(engine_of(drafter=Lookup(raising(RequestError(77, ValueError("no luck"))), of=1)))
    assert len(errors) > 1 and {str(error) for error in errors.values()} == {"no luck"}


def test_a_finish_that_raises_ends_its_own_request_alone(expected: dict[int, list[int]]) -> None:
    class Forgetful(Lookup):
        def finish(self, requests: Sequence[Request]) -> None:
            super().finish(requests)
            if any(request.id == 1 for request in requests):
                raise KeyError("no such slot")

    events, errors = serve(engine_of(slots=2, drafter=Forgetful()))
    assert list(errors) == [1] and "no such slot" in str(errors[1])
    assert errors[1].__notes__ == ["in drafter 'prompt_lookup'"]
    assert [reason(events[number]) for number in range(4)] == ["length", "error", "length", "length"]
    assert [tokens(events[number]) for number in range(4)] == [expected[number] for number in range(4)]

    # where a request failed before, that is what is told
    both = Forgetful(raising(RequestError(1, ValueError("no luck"))), of=1)
    _, errors = serve(engine_of(slots=2, drafter=both))
    assert list(errors) == [1] and "no luck" in str(errors[1])


@pytest.mark.parametrize(
    ("at", "plugin"),
    [
        ("start", "drafter 'prompt_lookup'"),
        ("observe", "drafter 'prompt_lookup'"),
        ("verify", "verifier 'multi_step'"),
        ("verify_one", "verifier 'multi_step'"),
        ("told", "policy 'fixed'"),
    ],
)
def test_what_a_plugin_raises_names_it(at: str, plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*of: Any) -> Any:
        raise KeyError("no luck")

    drafter, verifier = Lookup(), MultiStep(None)
    if at in ("start", "observe"):
        monkeypatch.setattr(drafter, at, fails)
    elif at == "told":
        monkeypatch.setattr(FixedPolicy, "observe", fails)
    else:
        verifier = type("Fails", (MultiStep,), {at: fails})(None)
    _, errors = serve(engine_of(drafter=drafter, verifier=verifier), PROMPTS[:1])
    assert errors[0].__notes__ == [f"in {plugin}"]


def test_a_policy_changes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def boasts(self: FixedPolicy, event: Any) -> None:
        event["accepted"] = 7

    monkeypatch.setattr(FixedPolicy, "observe", boasts)
    _, errors = serve(engine_of(drafter=Lookup()), PROMPTS[:1])
    assert isinstance(errors[0], TypeError) and errors[0].__notes__ == ["in policy 'fixed'"]


class Spoiling(MultiStep):
    """Gives one request a verdict that is none, in its third step."""

    def __init__(self, spoil: Callable[[Verdict], Any], of: int) -> None:
        super().__init__(None)
        self.spoil, self.of = spoil, of

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        verdict = super().verify_one(tree, logits_NV, request)
        spoilt: Verdict = self.spoil(verdict) if (request.id, request.step) == (self.of, 2) else verdict
        return spoilt


VERDICTS: dict[str, tuple[Callable[[Verdict], Any], str]] = {
    "no verdict": (lambda v: None, "None is no Verdict"),
    "no root": (lambda v: Verdict([], v.next_token, v.tree), "does not begin with the root"),
    "no path": (lambda v: Verdict([0, 7], v.next_token, v.tree), "node 7"),
    "no token": (lambda v: Verdict([0], 10**9, v.tree), "lies outside the vocabulary"),
    "another tree": (lambda v: Verdict([0], 3, TokenTree.root_only(1)), "on another tree"),
}


@pytest.mark.parametrize("fault", VERDICTS)
def test_a_verdict_that_is_none_names_the_verifier_and_ends_one_request(
    fault: str, expected: dict[int, list[int]]
) -> None:
    spoil, message = VERDICTS[fault]
    events, errors = serve(engine_of(verifier=Spoiling(spoil, of=0)))
    assert list(errors) == [0] and str(errors[0]).startswith("verifier 'multi_step': ") and message in str(errors[0])
    assert [tokens(events[number]) for number in (1, 2, 3)] == [expected[number] for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget(-1), "depth is a whole number of 0 or more, not -1"),
        (Budget(2, 0), "nodes is a whole number of 1 or more, not 0"),
        (3, "3 is no Budget"),
        (Budget(2, level_cost=math.nan), "level_cost is a number of 0 or more, not nan"),
        (Budget(2, tokens_per_second="fast"), "tokens_per_second is a number of 0 or more, not 'fast'"),  # type: ignore[arg-type]
        (Budget(2, node_costs=(0.0, "x")), "node_costs are numbers, not (0.0, 'x')"),  # type: ignore[arg-type]
        (Budget(2, node_costs=(0.0, math.nan)), "node_costs are numbers, not (0.0, nan)"),
    ],
)
def test_a_budget_that_is_none_names_the_policy(budget: Any, message: str) -> None:
    class Wrong(Policy):
        name = "wrong"

        def budget(self, request: Request) -> Budget:
            given: Budget = budget
            return given

    _, errors = serve(engine_of(policy=Wrong(None)), PROMPTS[:1])
    assert str(errors[0]) == f"policy 'wrong': a budget's {message}" or str(errors[0]) == f"policy 'wrong': {message}"


def test_a_policy_without_one_for_a_request_is_named() -> None:
    class Wrong(Policy):
        name = "wrong"

        def budget(self, request: Request) -> Budget:
            return Budget(1)

        def for_request(self) -> Any:
            return None

    with pytest.raises(PluginFault, match="^policy 'wrong': its for_request returned None, which is no policy$"):
        serve(engine_of(policy=Wrong(None)), PROMPTS[:1])


def test_a_cancelled_request_leaves_and_its_slot_is_used_again(expected: dict[int, list[int]]) -> None:
    engine, events = engine_of(slots=1), {number: list[dict[str, Any]]() for number in range(3)}
    for number in range(3):
        engine.add(TokenRequest(PROMPTS[number], request_id=number, max_new_tokens=10, emit=events[number].append))
    engine.step()
    engine.cancel(0)
    # one that waits can be cancelled too
    engine.cancel(1)
    while engine.busy:
        engine.step()
    assert [reason(events[number]) for number in range(3)] == ["interrupted", "interrupted", "length"]
    assert tokens(events[0]) == expected[0][: len(tokens(events[0]))] and tokens(events[2]) == expected[2]


def test_slots_that_nobody_has_yet_cost_nothing(expected: dict[int, list[int]]) -> None:
    engine = engine_of(slots=10**12)
    for _ in range(2):
        events, errors = serve(engine)
        assert not errors and {number: tokens(own) for number, own in events.items()} == expected
    assert sorted(engine.scheduler._roster.free) == list(range(len(PROMPTS) + 1))


def test_what_a_slot_had_of_a_prompt_is_told() -> None:
    """As in the next turn of a chat; of a prompt that has nothing in common nothing is said."""
    first = list(range(5, 25))
    engine = engine_of(slots=1)
    answered = tokens(serve(engine, [first], 6)[0][0])
    following = [*first, *answered, 40, 41, 42]
    events, _ = serve(engine, [following, list(range(60, 70))], 3)
    told, unlike = (next(event for event in own if event["event"] == "prefill") for own in events.values())
    # the answer's last token had no K and V yet
    assert told["kept"] == len(first) + len(answered) - 1 and told["tokens"] == len(following) - 1
    assert "kept" not in unlike


def test_an_interrupt_ends_all_requests() -> None:
    def interrupted(request: Request) -> TokenTree:
        raise KeyboardInterrupt

    engine, events = (
        engine_of(slots=2, drafter=Lookup(interrupted, of=1)),
        {i: list[dict[str, Any]]() for i in range(3)},
    )
    for number in range(3):
        engine.add(TokenRequest(PROMPTS[number], request_id=number, max_new_tokens=10, emit=events[number].append))
    with pytest.raises(KeyboardInterrupt):
        while engine.busy:
            engine.step()
    assert [reason(own) for own in events.values()] == ["interrupted"] * 3 and not engine.busy


def test_a_stream_raises_what_its_request_failed_with() -> None:
    engine = engine_of(drafter=Lookup(raising(UserError("bad luck")), of=0))
    with pytest.raises(UserError, match="bad luck"):
        list(engine.stream(TokenRequest(PROMPTS[0], request_id=0, max_new_tokens=10)))


@pytest.mark.parametrize("constraint", [None, OnlyTokens([5])])
def test_a_request_for_no_token_is_refused(constraint: Matcher | None) -> None:
    engine = engine_of()
    with pytest.raises(UserError, match="^max_new_tokens: 0 must be 1 or more$"):
        engine.add(TokenRequest(PROMPTS[0], max_new_tokens=0, constraint=constraint))
    assert not engine.busy


def test_a_long_prompt_is_fed_in_chunks_beside_others_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [3 + 7 * i % 80 for i in range(60)]
    whole = tokens(serve(engine_of(), [long, PROMPTS[0]])[0][0])
    monkeypatch.setattr("spec_sdk.engine.scheduler.PREFILL_CHUNK", 8)
    engine, events = engine_of(), [list[dict[str, Any]]() for _ in range(2)]
    engine.add(TokenRequest(PROMPTS[0], request_id=1, max_new_tokens=10, emit=events[1].append))
    engine.step()
    engine.add(TokenRequest(long, request_id=0, max_new_tokens=10, emit=events[0].append))
    steps = 0
    while engine.busy:
        engine.step()
        steps += not any(event["event"] == "prefill" for event in events[0])
    assert steps == 7  # of 59 tokens, 8 a step, before the step that feeds the last of them
    assert tokens(events[1]) and tokens(events[0]) == whole


def test_seconds_add_up_to_the_time_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks once a reading: what requests are charged with is what went by between the readings."""
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    engine, emitted = engine_of(), list[dict[str, Any]]()
    for number, prompt in enumerate(PROMPTS):
        engine.add(TokenRequest(prompt, request_id=number, max_new_tokens=10, emit=emitted.append))
    shared = 0
    while engine.busy:
        emitted.clear()
        engine.step()
        cycles = [event for event in emitted if event["event"] == "cycle"]
        shared += len(cycles) > 1
        if cycles:
            # a tick for each stage
            assert sum(event["draft_s"] for event in cycles) == pytest.approx(1)
            assert sum(event["recover_s"] for event in cycles) == pytest.approx(1)
            assert sum(event["verify_s"] - event["verdict_s"] for event in cycles) == pytest.approx(1)
            assert sum(event["verdict_s"] for event in cycles) == pytest.approx(1)
    assert shared > 5


def test_plugins_see_a_request_and_cannot_change_it() -> None:
    seen: list[Request] = []

    class Curious(Lookup):
        def propose_one(self, request: Request, budget: Budget) -> TokenTree:
            seen.append(request)
            return super().propose_one(request, budget)

    serve(engine_of(drafter=Curious()), PROMPTS[:1])
    request: Any = seen[0]
    for name in ("tokens", "step", "max_new_tokens", "sampler", "anything"):
        with pytest.raises(AttributeError):
            setattr(request, name, 1)
    with pytest.raises(TypeError):
        request.tokens[0] = 1
    assert not hasattr(request.tokens, "append")
    before = list(request.tokens)
    request.tokens[:].append(5)
    assert list(request.tokens) == before


@pytest.mark.parametrize(
    ("path", "next_token", "fault"),
    [
        ([0, 1, 2], 4, None),
        ([0, 2], 0, "tree node 2 follows node 0 in the accepted path, its parent is 1"),
        ([0, 1, 2, 3], 0, "the accepted path has node 3, the tree has 3 nodes"),
        ([0, 0], 0, "the accepted path has node 0, the tree has 3 nodes"),
        ([1, 2], 0, "the accepted path [1, 2] does not begin with the root, node 0"),
        ([0], 5, "the next token 5 lies outside the vocabulary of 5"),
        ([0], -1, "the next token -1 lies outside the vocabulary of 5"),
        ([0], 2.0, "the next token 2.0 is no int"),
    ],
)
def test_the_least_that_makes_a_verdict_unusable(path: list[int], next_token: int, fault: str | None) -> None:
    tree = TokenTree.chain(1, [2, 3])
    assert verdict_fault(Verdict(path, next_token, tree), tree, 5) == fault


class Noting(Policy):
    """One request's policy, which hears of it alone: budgets by the request, and by the events heard so far."""

    name = "noting"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.heard: list[int] = []

    def budget(self, request: Request) -> Budget:
        assert self.heard == [request.id] * len(self.heard)
        return Budget(1 + (request.id + len(self.heard)) % 3, 3 + request.id)

    def observe(self, event: Mapping[str, Any]) -> None:
        self.heard.append(event["request"])


class Asked(Lookup):
    """Notes the budgets of every request."""

    def __init__(self) -> None:
        super().__init__()
        self.budgets: defaultdict[int, list[Budget]] = defaultdict(list)

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        self.budgets[request.id].append(budget)
        return super().propose_one(request, budget)


def test_every_request_has_a_policy_and_a_budget_of_its_own(expected: dict[int, list[int]]) -> None:
    drafter = Asked()
    events, errors = serve(engine_of(drafter=drafter, policy=Noting(None)))
    assert not errors and {number: tokens(own) for number, own in events.items()} == expected
    for number, prompt in enumerate(PROMPTS):
        alone = Asked()
        list(
            engine_of(1, alone, policy=Noting(None)).stream(TokenRequest(prompt, request_id=number, max_new_tokens=10))
        )
        assert drafter.budgets[number] == alone.budgets[number]
        cycles = [event["budget"] for event in events[number] if event["event"] == "cycle" and event["budget"]]
        assert cycles == [budget.depth for budget in alone.budgets[number]]
    assert len({str(budgets) for budgets in drafter.budgets.values()}) == len(PROMPTS)


class Tapped(Lookup):
    """Notes what it is told of the target's hidden states: [P, M] of the prompt, [N, M] of every committed path."""

    taps = (0, 3)

    def __init__(self) -> None:
        super().__init__()
        self.told: defaultdict[int, list[Hidden]] = defaultdict(list)

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        super().start(requests, prompt_hidden)
        assert prompt_hidden is not None
        for request, hidden in zip(requests, prompt_hidden, strict=True):
            assert {len(h_PM) for h_PM in hidden.values()} == {request.prompt_length - 1}
            self.told[request.id].append(hidden)

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        assert path_hidden is not None
        for request, new, hidden in zip(requests, committed, path_hidden, strict=True):
            assert {len(h_NM) for h_NM in hidden.values()} == {len(new)}
            self.told[request.id].append(hidden)


def test_every_request_is_told_its_own_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all of its prompt, fed in chunks or taken over from a request before."""
    monkeypatch.setattr("spec_sdk.engine.scheduler.PREFILL_CHUNK", 3)
    drafter = Tapped()
    engine = engine_of(drafter=drafter)
    for _ in range(2):
        drafter.told.clear()
        events, errors = serve(engine)
        assert not errors
        for number, prompt in enumerate(PROMPTS):
            alone = Tapped()
            answer = engine_of(1, alone).stream(TokenRequest(prompt, request_id=number, max_new_tokens=10))
            assert tokens(events[number]) == [token for new in answer for token in new]
            for ours, theirs in zip(drafter.told[number], alone.told[number], strict=True):
                assert set(ours) == set(Tapped.taps)
                for layer in ours:
                    torch.testing.assert_close(ours[layer], theirs[layer], atol=1e-4, rtol=1e-4)


def test_hidden_states_of_what_prompts_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken over with the cache, those of an answer too, unless another engine has used the slot since."""
    fed: list[list[int]] = []
    prefill = Session.prefill

    def spy(self: Session, slot: int, new: Sequence[int], taps: Sequence[int] = ()) -> Mapping[int, torch.Tensor]:
        fed.append(list(new))
        return prefill(self, slot, new, taps)

    drafter = Tapped()
    engine = engine_of(1, drafter)
    first, _ = serve(engine, PROMPTS[:1])
    longer = [*PROMPTS[0], *tokens(first[0])[:6], 50, 51]
    shorter = [*PROMPTS[0][:4], 33, 34]
    monkeypatch.setattr(Session, "prefill", spy)

    def check(prompt: list[int], fed_now: list[int]) -> None:
        fed.clear()
        drafter.told.clear()
        serve(engine, [prompt])
        assert fed == [fed_now]
        alone = Tapped()
        serve(engine_of(1, alone), [prompt])
        for ours, theirs in zip(drafter.told[0], alone.told[0], strict=True):
            for layer in Tapped.taps:
                torch.testing.assert_close(ours[layer], theirs[layer], atol=1e-4, rtol=1e-4)

    check(longer, [50])
    check(shorter, [33])
    check(longer, longer[4:-1])
    other = engine_of(1)
    other.scheduler.target = engine.scheduler.target
    serve(other, [[*longer[:10], 60, 61]])
    check([*longer[:10], 60, 62], [*longer[:10], 60])


def test_a_request_gets_the_slot_that_holds_most_of_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[list[int]] = []
    prefill = Session.prefill

    def spy(self: Session, slot: int, new: Sequence[int], taps: Sequence[int] = ()) -> Mapping[int, torch.Tensor]:
        fed.append(list(new))
        return prefill(self, slot, new, taps)

    monkeypatch.setattr(Session, "prefill", spy)
    engine = engine_of(slots=3)
    first, _ = serve(engine, PROMPTS[:3])
    assert fed == [prompt[:-1] for prompt in PROMPTS[:3]]
    fed.clear()
    longer = [*PROMPTS[1], *tokens(first[0])[:3], 50]
    again, _ = serve(engine, [PROMPTS[2], longer, PROMPTS[0]])
    assert fed == [longer[2:-1]]
    assert [tokens(again[number]) for number in (0, 2)] == [tokens(first[number]) for number in (2, 0)]


@pytest.mark.parametrize("place", range(10))
def test_every_request_has_a_stop_rule_and_a_length_of_its_own(place: int, expected: dict[int, list[int]]) -> None:
    """The same prompt to its tenth token, to a stop token and to its fourth token, in this order and the other.

    All guesses are right, so that stop tokens lie in the middle of what a cycle accepts.
    """
    whole = expected[0]

    class Knowing(Lookup):
        def propose_one(self, request: Request, budget: Budget) -> TokenTree:
            known = whole[request.new_tokens : request.new_tokens + budget.depth]
            return TokenTree.chain(request.pending_token, known)

    stop = whole[place]
    asked = {0: (10, True, whole), 1: (10, False, whole[: whole.index(stop) + 1]), 2: (4, True, whole[:4])}
    for order in ((0, 1, 2), (2, 1, 0)):
        engine, events = engine_of(4, Knowing(), stop_ids=frozenset({stop})), {i: list[dict[str, Any]]() for i in asked}
        for number in order:
            count, ignore_eos, _ = asked[number]
            engine.add(
                TokenRequest(
                    PROMPTS[0],
                    request_id=number,
                    max_new_tokens=count,
                    ignore_eos=ignore_eos,
                    emit=events[number].append,
                )
            )
        while engine.busy:
            engine.step()
        assert [tokens(events[number]) for number in asked] == [answer for _, _, answer in asked.values()]
        assert [reason(events[number]) for number in asked] == ["length", "stop", "length"]
