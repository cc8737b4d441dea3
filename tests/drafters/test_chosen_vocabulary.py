"""A draft model that can draft some tokens only, and those of each request's text besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, RequestState, SamplingParams
from spec_sdk.errors import UserError
from spec_sdk.model.context_vocabulary import ContextVocabulary, with_all_tokens, with_lowest_tokens
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.reduced_vocabulary import ReducedVocabularyHead
from spec_sdk.registry import Registry
from spec_sdk.testing import StaticOps, check_drafter, repeated
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.tree import TreeBuilder
from spec_sdk_backends.native.library import find
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_drafters import chosen_vocabulary
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import ModelTensors
from tests.support.tiny_heads import HeadSizes, random_ends, write_eagle1, write_eagle3
from tests.support.tiny_models import TinyModels
from tests.support.tiny_mtp import model_config, mtp_tensors, write_module

CPU = torch.device("cpu")
FEW = 8
TEXTS = ([3, 70, 5, 70, 41], [90, 2, 41])
SIZES = HeadSizes(V=VOCABULARY, W=40, M=48, S=48)


def executor_of(name: str, ops: Ops | None = None) -> TorchExecutor:
    return TorchExecutor(load_decoder(ModelTensors(name, 3), CPU, torch.float32, ops or Ops()), ops or Ops())


def few_tokens(executor: TorchExecutor) -> tuple[Session, ContextVocabulary]:
    reduced = with_lowest_tokens(executor, FEW, "drafter.vocabulary")
    session = Session(reduced)
    session.context_vocabulary = ContextVocabulary(reduced)
    return session, session.context_vocabulary


def expected(logits: torch.Tensor, text: Sequence[int]) -> torch.Tensor:
    """Of all tokens' logits those of the lowest ids and the text's; -inf for the others."""
    kept = torch.zeros(VOCABULARY, dtype=torch.bool)
    kept[:FEW] = True
    kept[list(text)] = True
    return logits.masked_fill(~kept, float("-inf"))


# tied and untied heads, and one with a soft cap
@pytest.mark.parametrize("name", ["smollm", "llama2", "gemma2"])
@pytest.mark.parametrize("native", [False, True])
def test_the_logits_of_the_lowest_ids_and_of_the_own_text_are_the_whole_heads(name: str, native: bool) -> None:
    """Roots and levels of two requests in one pass: neither sees the tokens of the other's text."""
    if native and isinstance(find(), str):
        pytest.skip("no native kernels here")
    executor = executor_of(name, NativeOps(Ops(), None) if native else None)
    whole, (few, context) = Session(executor), few_tokens(executor)
    for session in (whole, few):
        session.open(0, [])
        session.open(1, [])
    for slot, text in enumerate(TEXTS):
        context.follow(slot, text)
    slots = [0, 1]
    for found, full, text in zip(
        roots_of(few.feed(slots, TEXTS)), roots_of(whole.feed(slots, TEXTS)), TEXTS, strict=True
    ):
        torch.testing.assert_close(found, expected(full, text), atol=1e-4, rtol=1e-4)
    trees = []
    for text in TEXTS:
        tree = TreeBuilder(text[-1], 8)
        for token in (7, 50):
            tree.add(0, token, "chosen")
        trees.append(tree)
    levels = zip(rows_of(few.grow(slots, trees, [2, 2])), rows_of(whole.grow(slots, trees, [2, 2])), TEXTS, strict=True)
    for found, full, text in levels:
        torch.testing.assert_close(found, expected(full, text), atol=1e-4, rtol=1e-4)


def test_a_text_grows_and_another_request_begins_anew() -> None:
    session, context = few_tokens(executor_of("smollm"))
    context.follow(0, [1, 20, 30, 20], others=(60, 4))
    assert context.tokens(0) == [60, 20, 30]
    context.follow(0, [1, 20, 30, 20, 31, 30], others=(61,))
    assert context.tokens(0) == [60, 20, 30, 31]
    session.open(0, [])
    assert context.tokens(0) == []
    context.follow(0, [44, VOCABULARY + 5])
    assert context.tokens(0) == [44]


def drafter_of(models: TinyModels | None = None, name: str = "draft_model", **options: Any) -> Any:
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": name, **options})
    return plugin(config, models or TinyModels())


def request(tokens: list[int], temperature: float = 0.0, stop_ids: Sequence[int] = ()) -> RequestState:
    state = request_for(tokens, reference_sampler(SamplingParams(temperature=temperature)), 0)
    state.stop_ids = frozenset(stop_ids)
    return state


@pytest.mark.parametrize("name", ["draft_model", "easyspec"])
def test_only_chosen_tokens_are_drafted_and_draws_say_so(name: str) -> None:
    asked = request([9, 3, 60, 17, 9], temperature=2.0, stop_ids=[88])
    drafter = drafter_of(name=name, vocabulary=4, growth="static", widths=[12, 2])
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [Budget(2)])
    can_be_drafted = {0, 1, 2, 3, 9, 60, 17, 88}
    for draws in tree.draws_N:
        for draw in draws:
            assert draw.q_V is not None and set(draw.q_V.nonzero().flatten().tolist()) == can_be_drafted
    assert set(tree.token_N) <= can_be_drafted and {60, 88} <= set(tree.token_N)
    drafter.finish([asked.view])


def test_without_the_text_only_the_lowest_ids_are_drafted() -> None:
    asked, drafter = request([9, 60, 17]), drafter_of(vocabulary=4, context_vocabulary=False, width=3)
    drafter.start([asked.view])
    assert set(drafter.propose([asked.view], [Budget(3)])[0].token_N[1:]) <= {0, 1, 2, 3}


# a tied head, and one of its own
@pytest.mark.parametrize("name", ["smollm", "llama2"])
def test_where_passes_are_single_launches_all_tokens_are_drafted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All levels are one launch then, and its tokens those of the model before it was reduced."""
    whole = GraphExecutor(load_decoder(ModelTensors(name, 3), CPU, torch.float32), StaticOps(), repeated)
    few = with_lowest_tokens(whole, FEW, "drafter.vocabulary")

    def proposed(executor: TorchExecutor, **options: Any) -> tuple[Any, list[int]]:
        models = TinyModels()
        models._draft = replace(models._draft, executor=executor)
        drafter, asked = drafter_of(models, width=1, **options), request([9, 3, 60, 17, 9])
        drafter.start([asked.view])
        return drafter.session, list(drafter.propose([asked.view], [Budget(4)])[0].token_N)

    _, expected_N = proposed(whole)
    assert any(token >= FEW for token in expected_N[1:])
    with monkeypatch.context() as patched:
        patched.setattr(Session, "grow", lambda *_: pytest.fail("a level was fed by itself"))
        session, token_N = proposed(few)
    assert token_N == expected_N and session.context_vocabulary is None
    assert session.executor.decoder.output_head is whole.decoder.output_head
    without, of_few = proposed(few, context_vocabulary=False)
    assert without.context_vocabulary is None and max(of_few[1:]) < FEW
    for asked_for in ({"vocabulary": 4}, {"context_vocabulary": True}):
        assert proposed(whole if "vocabulary" in asked_for else few, **asked_for)[0].context_vocabulary is not None
    # of a head that takes longer to read, and of one in few bits, which is expanded in every call, there is no more
    monkeypatch.setattr(chosen_vocabulary, "MOST_HEAD_BYTES", whole.decoder.output_head.nbytes - 1)
    assert proposed(few)[0].context_vocabulary is not None
    monkeypatch.undo()
    monkeypatch.setattr(whole.decoder.output_head, "quantized", object(), raising=False)
    assert with_all_tokens(few, 2**40) is None


def test_other_tokens_than_a_draft_model_was_made_for() -> None:
    """Of the target's own output head, which its rows are of."""
    whole = TorchExecutor(load_decoder(ModelTensors("smollm", 3), CPU, torch.float32), Ops())
    made_for = with_lowest_tokens(whole, FEW, "tests")
    for tokens in (3, FEW + 20):
        other, expected = (with_lowest_tokens(of, tokens, "tests") for of in (made_for, whole))
        found, wanted = other.decoder.output_head, expected.decoder.output_head
        assert isinstance(found, ReducedVocabularyHead) and isinstance(wanted, ReducedVocabularyHead)
        assert found.token_R.tolist() == list(range(tokens)) and torch.equal(found.weight_OI, wanted.weight_OI)
    every = with_lowest_tokens(made_for, VOCABULARY, "tests").decoder
    assert every.output_head is whole.decoder.output_head and every.token_R is None


@pytest.mark.parametrize("options", [{"width": 3}, {"growth": "dynamic", "width": 3}, {"children": "with_replacement"}])
def test_conformance(options: dict[str, Any]) -> None:
    """What one request drafts does not depend on those beside it, nor on those before it in its slot."""
    prompts = [[5], [9, 3, 3, 60, 17, 9, 3]]
    check_drafter(lambda: drafter_of(vocabulary=FEW, **options), VOCABULARY, prompts=prompts, draws=100)


@pytest.mark.parametrize("name", ["eagle", "mtp"])
def test_a_head_over_the_targets_output_head(name: str, tmp_path: Path) -> None:
    write_eagle1(tmp_path / "eagle", SIZES, seed=1)
    write_module(tmp_path / "mtp", "deepseek", model_config(), mtp_tensors("deepseek"))
    models = TinyModels()
    models._ends = random_ends(SIZES, models.target.executor.layers, dtype=torch.float32)
    few = drafter_of(models, name, checkpoint=str(tmp_path / name), vocabulary=FEW)
    whole = drafter_of(models, name, checkpoint=str(tmp_path / name))
    assert isinstance(few.head.output_head, ReducedVocabularyHead) and len(few.head.output_head.token_R) == FEW
    assert not isinstance(whole.head.output_head, ReducedVocabularyHead)
    tokens, features = [70, 5, 41], torch.randn(3, SIZES.M)
    few.session.open(0, [], keep=False)
    whole.session.open(0, [], keep=False)
    few.session.context_vocabulary.follow(0, [3, *tokens])
    (found,), (full,) = (roots_of(drafter.session.feed_pairs([0], [tokens], [features])) for drafter in (few, whole))
    torch.testing.assert_close(found, expected(full, [3, *tokens]))


def test_what_cannot_be_chosen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="drafter.vocabulary: 0 must be"):
        drafter_of(vocabulary=0)
    with pytest.raises(UserError, match="drafter.context_vocabulary=true: .* it can draft all tokens"):
        drafter_of(context_vocabulary=True)
    with pytest.raises(UserError, match="drafter.context_vocabulary: 'perhaps' must be"):
        drafter_of(context_vocabulary="perhaps")
    write_eagle3(tmp_path / "eagle3", SIZES, seed=1, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    models = TinyModels()
    models._ends = random_ends(SIZES, models.target.executor.layers, dtype=torch.float32)
    own = {"name": "eagle", "checkpoint": str(tmp_path / "eagle3")}
    with pytest.raises(UserError, match="drafter.vocabulary: 8 tokens .* has rows of 40 of 96 tokens"):
        drafter_of(models, **own, vocabulary=FEW)
    with pytest.raises(UserError, match="context_vocabulary=true: .* rows of no other tokens"):
        drafter_of(models, **own, context_vocabulary=True)
    assert drafter_of(models, **own).session.context_vocabulary is None
