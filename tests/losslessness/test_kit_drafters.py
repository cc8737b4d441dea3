"""What check_drafter finds: draws that depend on each other, and whatever a drafter changes in its request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, NoOptions, Request, SamplingParams, SuppressedTokens
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.inversion import draw
from spec_sdk.ops.logit_offsets import LogitOffsets
from spec_sdk.testing import PlannedDraw, TableDrafter, TableModel, check_drafter, reference_sampler, request_for
from spec_sdk.testing.drafters import drafter_checks
from spec_sdk.testing.service import contents
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.noting_drafter import NotingDrafter
from tests.support.tiny_decoder import tiny_decoder

VOCABULARY, LARGE = 6, 96
PROMPTS = [[5], [1, 3, 3, 2, 4, 1, 3]]


class Drawing(Drafter):
    """Draws a few children of the root from a table's distribution, one after the other."""

    name = "drawing"
    branches = True
    vocabulary = VOCABULARY

    def __init__(self) -> None:
        no_models: Any = None
        super().__init__(NoOptions(), no_models)
        self.table = TableModel(self.vocabulary, 1)

    def q_V(self, request: Request, path: Sequence[int] = ()) -> torch.Tensor:
        return request.sampler.probabilities(self.table.logits([*request.tokens, *path])[None])[0]


class Sound(Drawing):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token, budget.nodes), self.q_V(request)
        for _ in range(min(3, tree.room)):
            tree.add(0, request.sampler.draw(q_V, request.rng), "with_replacement", q_V)
        return tree.build().tree


class Shifted(Drawing):
    """Each token is drawn soundly; but of one random number, u, u + 1/3 and u + 2/3."""

    def number(self, request: Request) -> float:
        return request.uniforms(1)[0]

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token, budget.nodes), self.q_V(request)
        number = self.number(request)
        for i in range(min(3, tree.room)):
            tree.add(0, draw(q_V, (number + i / 3) % 1), "with_replacement", q_V)
        return tree.build().tree


class ShiftedUnseen(Shifted):
    """The same with the generator's own numbers, which cannot be enumerated, in a larger vocabulary."""

    vocabulary = LARGE

    def number(self, request: Request) -> float:
        return float(torch.rand((), generator=request.rng, dtype=torch.float64))


class RecordedTwice(Drawing):
    vocabulary = LARGE

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token), self.q_V(request)
        token = request.sampler.draw(q_V, request.rng)
        for _ in range(2):
            tree.add(0, token, "with_replacement", q_V)
        return tree.build().tree


class ChosenFirst(Drawing):
    """Offers what it drew as chosen, and then as drawn."""

    vocabulary = LARGE

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token), self.q_V(request)
        token = request.sampler.draw(q_V, request.rng)
        tree.add(0, token, "chosen")
        tree.add(0, token, "with_replacement", q_V)
        return tree.build().tree


class OneNumberForAllLevels(Drawing):
    vocabulary = LARGE

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, node, path = TreeBuilder(request.pending_token), 0, list[int]()
        number = float(torch.rand((), generator=request.rng, dtype=torch.float64))
        for _ in range(min(2, budget.depth)):
            q_V = self.q_V(request, path)
            path.append(draw(q_V, number))
            node = tree.add(node, path[-1], "with_replacement", q_V)
        return tree.build().tree


class OneNumberForAllCycles(Drawing):
    """Its random number of a request serves all cycles."""

    vocabulary = LARGE

    def __init__(self) -> None:
        super().__init__()
        self.number: dict[int, float] = {}

    def start(self, requests: Sequence[Request], prompt_hidden: Any = None) -> None:
        for request in requests:
            self.number[request.slot] = float(torch.rand((), generator=request.rng, dtype=torch.float64))

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token), self.q_V(request)
        tree.add(0, draw(q_V, self.number[request.slot]), "with_replacement", q_V)
        return tree.build().tree


class TakesTheVerifiersNumbers(Drawing):
    """Draws by the numbers that the verifier will take."""

    vocabulary = LARGE

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token), self.q_V(request)
        ahead = torch.Generator()
        ahead.set_state(request.rng.get_state())
        tree.add(0, request.sampler.draw(q_V, ahead), "with_replacement", q_V)
        return tree.build().tree


class TooSure(Drawing):
    """Draws at a lower temperature than the one it declares."""

    vocabulary = LARGE

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token), self.q_V(request)
        drawn_V = q_V.pow(3) / q_V.pow(3).sum()
        tree.add(0, request.sampler.draw(drawn_V, request.rng), "with_replacement", q_V)
        return tree.build().tree


class DropsTheUnlikely(Drawing):
    """A draw that gives an improbable token is not recorded."""

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token), self.q_V(request)
        token = request.sampler.draw(q_V, request.rng)
        if float(q_V[token]) > 0.2:
            tree.add(0, token, "with_replacement", q_V)
        return tree.build().tree


class ArgmaxAsDrawn(Drawing):
    vocabulary = LARGE

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, q_V = TreeBuilder(request.pending_token), self.q_V(request)
        tree.add(0, int(q_V.argmax()), "with_replacement", q_V)
        return tree.build().tree


WRONG: dict[type[Drawing], str] = {
    Shifted: "draw 1 at depth 0: .* depend on draw 0 there",
    ShiftedUnseen: "draw 1 at depth 0: .* depend on draw 0 there",
    RecordedTwice: "draw 1 at depth 0: .* depend on draw 0 there",
    ChosenFirst: "draw 1 at depth 0: .* depend on draw 0 there",
    OneNumberForAllLevels: "draw 0 at depth 1: .* depend on draw 0 at its parent",
    OneNumberForAllCycles: "draw 0 at the root: .* depend on draw 0 at the root of the tree before",
    TakesTheVerifiersNumbers: "random number 0 after the tree: .* depend on draw 0 at depth 0",
    TooSure: "draw 0 at depth 0: .* do not follow the declared q_V",
    DropsTheUnlikely: "draw 0 at depth 0: .* do not follow the declared q_V",
    ArgmaxAsDrawn: "draw 0 at depth 0: .* do not follow the declared q_V",
}


@pytest.mark.parametrize("drafter", WRONG, ids=lambda drafter: drafter.__name__)
def test_few_trees_show_what_is_wrong_with_their_draws(drafter: type[Drawing]) -> None:
    """In a large vocabulary 60, as many as the quick tier has of drafters with a model. Where a token or two have most
    of the mass a draw says less, and there every outcome can be tried.
    """
    draws = 60 if drafter.vocabulary == LARGE else 500
    check = drafter_checks(drafter, drafter.vocabulary, prompts=PROMPTS, draws=draws)[3]
    with pytest.raises(AssertionError, match=WRONG[drafter]):
        check.run()


@pytest.mark.parametrize("drafter", [Shifted, RecordedTwice, ChosenFirst], ids=lambda drafter: drafter.__name__)
def test_every_outcome_shows_it_too(drafter: type[Drawing]) -> None:
    class Small(drafter):  # type: ignore[misc, valid-type]
        vocabulary = VOCABULARY

    check = drafter_checks(Small, VOCABULARY, prompts=PROMPTS)[4]
    with pytest.raises(AssertionError, match=r"off the target's by .* \(enumerated\)"):
        check.run()


@pytest.mark.parametrize("draws", [60, 200])
@pytest.mark.parametrize("vocabulary", [VOCABULARY, LARGE])
def test_sound_draws_pass(vocabulary: int, draws: int) -> None:
    class OfSize(Sound):
        pass

    OfSize.vocabulary = vocabulary
    check_drafter(OfSize, vocabulary, prompts=PROMPTS, draws=draws)


def test_what_finish_raises_is_found_by_every_outcome_too() -> None:
    """A cycle is left before its request ends; the collector would print such an error and go on."""

    class Unfinished(Sound):
        def finish(self, requests: Sequence[Request]) -> None:
            raise RuntimeError("finish")

    table = TableModel(VOCABULARY, 2)
    every_outcome = drafter_checks(Unfinished, VOCABULARY, PROMPTS, target=table)[-1]
    assert every_outcome.promise.startswith("every outcome")
    with pytest.raises(RuntimeError, match="^finish"):
        every_outcome.run()


def test_what_cannot_be_enumerated_is_said() -> None:
    class Small(OneNumberForAllLevels):
        vocabulary = VOCABULARY

    words = drafter_checks(Small, VOCABULARY, prompts=PROMPTS)[4].run()
    assert words == "0 cycles; the next cannot be enumerated: the request's generator was used directly"


def _set(name: str, value: Any) -> Callable[[Request], None]:
    return lambda request: setattr(request._state, name, value)


CHANGES: dict[str, Callable[[Request], object]] = {
    "tokens": lambda request: request._state.tokens.append(1),
    "prompt_length": _set("prompt_length", 0),
    "max_new_tokens": _set("max_new_tokens", 1),
    "sampler": _set("sampler", reference_sampler(SamplingParams(temperature=0.1))),
    "stop_ids": _set("stop_ids", frozenset({1})),
    "id": _set("id", 77),
    "slot": _set("slot", 5),
    "step": _set("step", 77),
    "target": _set("target", object()),
    "constraint": _set("constraint", SuppressedTokens([1])),
    "encoder_input": _set("encoder_input", object()),
    "offsets": _set("offsets", LogitOffsets({1: 9.0})),
    "min_tokens": _set("min_tokens", 5),
    "logprobs": _set("logprobs", 5),
    "prompt_logprobs": _set("prompt_logprobs", 5),
    "trace": _set("trace", True),
    "sampling parameters": lambda request: setattr(request.sampler, "params", SamplingParams(temperature=9.0)),
    "sampler's methods": lambda request: setattr(request.sampler, "draw", lambda p_V, random: 0),
    "operations": lambda request: setattr(request._state, "ops", type("Ours", (type(request.ops),), {})()),
    "rng": lambda request: request.rng.manual_seed(3),
    "view": lambda request: object.__setattr__(request, "tokens", [1, 2, 3]),
}


@pytest.mark.parametrize("part", CHANGES)
def test_a_drafter_that_changes_any_part_of_its_request_is_found_out(part: str) -> None:
    class Meddling(Sound):
        def propose_one(self, request: Request, budget: Budget) -> TokenTree:
            tree = super().propose_one(request, budget)
            CHANGES[part](request)
            return tree

    with pytest.raises(AssertionError, match=f"drafter 'drawing': its propose changed the request's .*{part}"):
        drafter_checks(Meddling, VOCABULARY, prompts=PROMPTS)[1].run()


def test_a_drafter_that_misses_forced_tokens_is_found_out() -> None:
    """It keeps a text of its own, of what it was told is committed."""

    class OwnText(Sound):
        def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
            self.texts = getattr(self, "texts", {}) | {request.slot: [*request.tokens] for request in requests}

        def observe(
            self,
            requests: Sequence[Request],
            committed: Sequence[Sequence[int]],
            path_hidden: Sequence[Hidden] | None = None,
        ) -> None:
            for request, tokens in zip(requests, committed, strict=True):
                self.texts[request.slot] += tokens

        def propose_one(self, request: Request, budget: Budget) -> TokenTree:
            return TokenTree.root_only(self.texts[request.slot][-1])

    class Deaf(OwnText):
        def observe_forced(self, requests: Sequence[Request], forced: Sequence[Sequence[int]]) -> None:
            pass

    check_drafter(OwnText, VOCABULARY, prompts=PROMPTS)
    greedy, sampled, forced = drafter_checks(Deaf, VOCABULARY, prompts=PROMPTS)[:3]
    greedy.run()
    sampled.run()
    with pytest.raises(AssertionError, match=r"the tree begins with token \d, the pending token is \d"):
        forced.run()


@pytest.mark.parametrize("ahead", [True, False])
def test_states_of_forced_tokens_come_with_those_of_the_next_pass(ahead: bool) -> None:
    """As the engine hands them out: of the last committed token and all forced ones, in a plain step."""

    class Counting(NotingDrafter, Sound):
        taps = (0,)
        drafts_ahead = ahead

        def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
            assert prompt_hidden is not None
            known = {r.slot: len(h[0]) if h else 0 for r, h in zip(requests, prompt_hidden, strict=True)}
            self.known = getattr(self, "known", {}) | known

        def _note(self, request: Request, hidden: Hidden) -> None:
            self.known[request.slot] += len(hidden[0])

        def propose_one(self, request: Request, budget: Budget) -> TokenTree:
            assert self.known[request.slot] == len(request.tokens) - 1
            return super().propose_one(request, budget)

    class Silent(Counting):
        """Has forced tokens observed as others are, which come without states."""

        observe_forced = Drafter.observe_forced

    target = Session(TorchExecutor(tiny_decoder("smollm", 0), Ops()))
    drafter_checks(Counting, VOCABULARY, prompts=PROMPTS, target=target)[2].run()
    with pytest.raises(AssertionError):
        drafter_checks(Silent, VOCABULARY, prompts=PROMPTS, target=target)[2].run()


def test_every_field_of_a_request_is_among_those_changes() -> None:
    """A field that comes to be must be looked at too."""
    looked_at = contents(request_for([1], reference_sampler(SamplingParams()), 0))
    derived = {"constraint's fields", "encoder input's fields", "sampler's options"}
    assert set(looked_at) == set(CHANGES) | derived


def test_a_table_drafter_of_all_kinds_of_draws_passes_with_sixty_trees() -> None:
    plan = [
        [PlannedDraw("with_replacement"), PlannedDraw("chosen", 1), PlannedDraw("without_replacement", 1)],
        [PlannedDraw("without_replacement")] * 2,
    ]
    tables = [TableModel(VOCABULARY, 1), TableModel(VOCABULARY, 2)]
    check_drafter(lambda: TableDrafter(tables, plan), VOCABULARY, prompts=PROMPTS, draws=60)
