"""The verdicts of a step come together: one request's fault is not its neighbours'."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch

from spec_sdk.contracts import Request, RequestError, SamplingParams, Verdict, Verifier
from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.errors import PluginFault, UserError
from spec_sdk.model.session import EpilogueOf, Scores, Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TokenTree
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.greedy import Greedy
from spec_sdk_verifiers.multi_step import MultiStep
from tests.engine.test_scheduler import Lookup, reason, serve, tokens
from tests.support.tiny_decoder import tiny_decoder

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.2)
Verdicts = list[Verdict | Exception]


class Spoilt(Session):
    """A target whose logits after the root are NaN for one slot, from its third pass on."""

    def __init__(self, slot: int) -> None:
        super().__init__(TorchExecutor(tiny_decoder(), Ops()))
        self.slot, self.passes = slot, 0

    def score(
        self,
        slots: Sequence[int],
        trees: Sequence[TokenTree],
        taps: Sequence[int] = (),
        epilogue: EpilogueOf | None = None,
    ) -> list[Scores]:
        self.passes += 1
        scores = super().score(slots, trees, taps)
        for slot, own in zip(slots, scores, strict=True):
            if slot == self.slot and self.passes >= 3:
                own.logits_NV[0] = float("nan")
        return scores


def engine_of(params: SamplingParams, target: Session | None = None, verifier: Verifier | None = None) -> TokenEngine:
    sampler = ReferenceSampler if params.temperature else ExactSampler
    return TokenEngine(
        target=target or Session(TorchExecutor(tiny_decoder(), Ops())),
        drafter=Lookup(),
        verifier=verifier or MultiStep(None),
        policy=FixedPolicy(FixedConfig(depth=3)),
        make_sampler=lambda own: sampler(None, own),
        sampling=params,
        slots=4,
    )


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_unusable_logits_end_their_request_alone(params: SamplingParams) -> None:
    expected, _ = serve(engine_of(params))
    events, errors = serve(engine_of(params, Spoilt(slot=1)))
    assert list(errors) == [1] and isinstance(errors[1], UserError)
    step = sum(event["event"] == "cycle" for event in events[1]) + 1
    assert str(errors[1]).startswith(f"step {step}, target: row 0 of the logits is NaN")
    assert [tokens(events[number]) for number in (0, 2, 3)] == [tokens(expected[number]) for number in (0, 2, 3)]


def test_greedy_and_sampled_requests_share_a_step() -> None:
    found = []
    for together in (True, False):
        engine, events = engine_of(GREEDY), dict[int, list[dict[str, Any]]]()
        for number in range(4):
            params = dataclasses.replace(SAMPLED, seed=number) if number % 2 else GREEDY
            events[number] = []
            emit = events[number].append
            engine.add(TokenRequest([5, 9, 17, 5, 9], 9, sampling=params, request_id=number, emit=emit))
            while engine.busy and not together:
                engine.step()
        while engine.busy:
            engine.step()
        assert {event["host_reads"] for own in events.values() for event in own if event["event"] == "cycle"} == {1}
        found.append({number: tokens(own) for number, own in events.items()})
    assert found[0] == found[1] and found[0][0] == found[0][2] and found[0][1] != found[0][3]


class Changing(MultiStep):
    """A verifier of several requests whose third answer is changed."""

    def __init__(self, change: Callable[[Verdicts, Sequence[Request]], Verdicts]) -> None:
        super().__init__(None)
        self.change, self.calls = change, 0

    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> Verdicts:
        self.calls += 1
        verdicts = super().verify(trees, logits, requests)
        return self.change(verdicts, requests) if self.calls == 3 else verdicts


def raising(error: Exception) -> Verdicts:
    raise error


def test_a_wrong_number_of_verdicts_names_the_verifier_and_ends_the_requests_of_the_call() -> None:
    events, errors = serve(engine_of(GREEDY, verifier=Changing(lambda verdicts, requests: verdicts[1:])))
    assert errors and all(reason(own) in ("error", "length") for own in events.values())
    count = len(errors)
    message = f"verifier 'multi_step': it returned {count - 1} verdicts for {count} requests"
    assert {str(error) for error in errors.values()} == {message}


def test_a_verifier_that_returns_none_is_named() -> None:
    class OfNone(MultiStep):
        def rule(self, *_: object) -> Any:  # type: ignore[override]
            return None

    class Nothing(Greedy):
        def verify_one(self, *_: object) -> Any:
            return None

    cases = (
        (Changing(lambda verdicts, requests: cast(Verdicts, None)), "it returned None, and no list of verdicts"),
        (OfNone(None), "its rule returned None, not a path and a token"),
        (Nothing(None), "None is no Verdict"),
    )
    for verifier, fault in cases:
        _, errors = serve(engine_of(SAMPLED if isinstance(verifier, OfNone) else GREEDY, verifier=verifier))
        assert errors and all(isinstance(error, PluginFault) for error in errors.values())
        assert {str(error) for error in errors.values()} == {f"verifier {verifier.name!r}: {fault}"}


@pytest.mark.parametrize("named", [False, True])
def test_a_call_that_raises_ends_its_requests(named: bool) -> None:
    def change(verdicts: Verdicts, requests: Sequence[Request]) -> Verdicts:
        cause = ValueError("no luck")
        return raising(RequestError(requests[0].id, cause) if named else cause)

    _, errors = serve(engine_of(GREEDY, verifier=Changing(change)))
    # a verdict that was not given cannot be asked for again: that would take other random numbers
    assert len(errors) > 1 and all("no luck" in str(error) for error in errors.values())


def test_an_exception_in_the_place_of_a_verdict_ends_that_request() -> None:
    expected, _ = serve(engine_of(SAMPLED))
    spoil = Changing(lambda verdicts, requests: [ValueError("no luck"), *verdicts[1:]])
    events, errors = serve(engine_of(SAMPLED, verifier=spoil))
    assert [str(error) for error in errors.values()] == ["no luck"]
    others = [number for number in events if number not in errors]
    assert [tokens(events[number]) for number in others] == [tokens(expected[number]) for number in others]


def test_a_verifier_is_asked_for_one_request_or_for_all() -> None:
    class Alone(Greedy):
        def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
            if request.id == 2 and request.step == 1:
                raise ValueError("no luck")
            return super().verify_one(tree, logits_NV, request)

    expected, _ = serve(engine_of(GREEDY, verifier=Greedy(None)))
    events, errors = serve(engine_of(GREEDY, verifier=Alone(None)))
    assert list(errors) == [2] and str(errors[2]) == "no luck"
    assert [tokens(events[number]) for number in (0, 1, 3)] == [tokens(expected[number]) for number in (0, 1, 3)]


def test_a_rule_that_returns_no_decision_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(tree: Any, rows: Any, uniforms: Any) -> Any:
        return None if tree.token_N[0] == 3 else ([0], 7)

    verifier = MultiStep(None)
    monkeypatch.setattr(verifier, "rule", rule)
    trees, logits, requests = zip(*[case(3), case(4)], strict=True)
    verdicts = verifier.verify(trees, logits, requests)
    assert isinstance(verdicts[0], PluginFault) and isinstance(verdicts[1], Verdict) and verdicts[1].tokens == [7]


def case(token: int) -> tuple[TokenTree, torch.Tensor, Request]:
    request = request_for([1, token], ReferenceSampler(None, SAMPLED), seed=0)
    return TokenTree.root_only(token), torch.zeros(1, 9), request.view
