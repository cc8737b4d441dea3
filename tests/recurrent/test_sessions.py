"""Sessions of models with recurrent layers: whatever was fed, rejected and rolled back before, a text's logits are
those of a fresh session.
"""

from __future__ import annotations

import random

import pytest
import torch

from spec_sdk.bench.measuring import PassTimer
from spec_sdk.model.decoder import Decoder, ForwardPass, TensorSource
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.step_clock import HostClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.testing.executors import check_executor, grow_tree, path_of_rows, random_tree
from spec_sdk.tree import TokenTree, TreeBuilder
from tests.recurrent.tiny_models import MODELS, config_of, tiny_session

VOCABULARY = 96


class Fresh:
    """The logits after a text, by a session that has seen no other."""

    def __init__(self, name: str) -> None:
        self._name = name

    def logits_V(self, tokens: list[int]) -> torch.Tensor:
        (logits,) = tiny_session(self._name).feed([0], [tokens])
        return logits.full_KV[0]


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompt", [1, 2, 30, 65, 200])
def test_what_follows_kept_and_rejected_nodes_sees_the_kept_ones_alone(name: str, prompt: int) -> None:
    rng, session, fresh = random.Random(prompt), tiny_session(name), Fresh(name)
    session.prefill(0, random_tokens(rng, prompt))
    for _ in range(12):
        tree = random_tree(rng, rng.randint(1, 12), VOCABULARY)
        (scores,) = session.score([0], [tree])
        node = rng.randrange(tree.size)
        path = tree.path_to(node)
        text = [*session.tokens(0), *(tree.token_N[each] for each in path)]
        torch.testing.assert_close(scores.logits_NV[node], fresh.logits_V(text))
        session.commit([0], [path])
        assert session.tokens(0) == text


@pytest.mark.parametrize("name", MODELS)
def test_a_tree_that_grows_is_the_same_tree(name: str) -> None:
    rng, session, fresh = random.Random(1), tiny_session(name), Fresh(name)
    session.prefill(0, random_tokens(rng, 40))
    for _ in range(8):
        (_,) = session.feed([0], [random_tokens(rng, 1 + rng.randrange(20))])
        tree = TreeBuilder(session.tokens(0)[-1])
        for _ in range(3):
            new = grow_tree(rng, tree, rng.randint(1, 4), VOCABULARY)
            (logits,) = session.grow([0], [tree], [new])
        node, below = tree.size - 1, list[int]()
        while node:
            below.insert(0, tree.token[node])
            node = tree.parent[node]
        torch.testing.assert_close(logits.full_KV[-1], fresh.logits_V([*session.tokens(0), *below]))
        session.commit([0], [path_of_rows(rng, tree)])
    (logits,) = session.feed([0], [[5]])
    torch.testing.assert_close(logits.full_KV[0], fresh.logits_V(session.tokens(0)))


@pytest.mark.parametrize("name", MODELS)
def test_requests_of_a_pass_do_not_see_each_other(name: str) -> None:
    rng, session, fresh = random.Random(2), tiny_session(name), Fresh(name)
    slots = [3, 0, 2]
    session.prefill_together(slots, [random_tokens(rng, count) for count in (70, 1, 20)], [])
    for _ in range(5):
        trees = [random_tree(rng, rng.randint(1, 9), VOCABULARY) for _ in slots]
        scores = session.score(slots, trees)
        paths = [tree.path_to(rng.randrange(tree.size)) for tree in trees]
        for slot, tree, path, scored in zip(slots, trees, paths, scores, strict=True):
            text = [*session.tokens(slot), *(tree.token_N[node] for node in path)]
            torch.testing.assert_close(scored.logits_NV[path[-1]], fresh.logits_V(text))
        session.commit(slots, paths)


@pytest.mark.parametrize("name", MODELS)
def test_another_end_of_a_text_goes_on_from_what_is_kept_of_it(name: str) -> None:
    rng, session, fresh = random.Random(3), tiny_session(name), Fresh(name)
    text = random_tokens(rng, 1300)
    # states are at other places then than where the chunks of a prompt end
    session.prefill(0, text[:40])
    session.prefill(0, text[40:])
    for token in random_tokens(rng, 90):
        session.feed([0], [[token]])
    for shared in (1395, 1384, 1290, 700, 3):
        kept = session.open(0, [*session.tokens(0)[:shared], 7, 8])
        # the last states are a few tokens back, earlier ones some hundred, and the text's beginning is always there
        assert kept == session.length(0) <= shared
        assert kept > shared - 600 or shared < 600
        rest = [*text[kept:shared], *random_tokens(rng, 30)]
        (logits,) = session.feed([0], [rest])
        torch.testing.assert_close(logits.full_KV[0], fresh.logits_V(session.tokens(0)))


def test_an_end_that_was_just_fed_is_taken_back_without_loss() -> None:
    session = tiny_session("qwen3_5")
    session.prefill(0, random_tokens(random.Random(4), 333))
    assert session.truncate(0, 325) == 325
    assert session.length(0) == 325


def test_rejected_rows_leave_the_states_as_they_were() -> None:
    session, rng = tiny_session("qwen3_5"), random.Random(5)
    session.prefill(0, random_tokens(rng, 100))
    (before,) = session.score([0], [TokenTree.chain(3, [4, 5])])
    for _ in range(30):
        session.score([0], [random_tree(rng, 20, VOCABULARY)])
    (after,) = session.score([0], [TokenTree.chain(3, [4, 5])])
    torch.testing.assert_close(after.logits_NV, before.logits_NV)


def test_a_pass_that_was_interrupted_can_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session, text = tiny_session("qwen3_5"), random_tokens(random.Random(6), 400)
    session.prefill(0, text[:100])
    assert isinstance(session.executor, TorchExecutor)
    decoder = session.executor.decoder
    attend, layers = type(decoder).attend, list[int]()

    def interrupted(self: Decoder, layer: int, q_BNHD: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        layers.append(layer)
        if layer == 2:
            raise KeyboardInterrupt
        return attend(self, layer, q_BNHD, work)

    with monkeypatch.context() as patch:
        patch.setattr(type(decoder), "attend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.prefill(0, text[100:])
    assert layers == [0, 1, 2]
    kept = session.open(0, text)
    assert kept < 100
    (logits,) = session.feed([0], [text[kept:]])
    torch.testing.assert_close(logits.full_KV[0], Fresh("qwen3_5").logits_V(text))


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_its_requests_one_by_one(name: str) -> None:
    def load(source: TensorSource, dtype: torch.dtype) -> TorchExecutor:
        return TorchExecutor(load_decoder(source, torch.device("cpu"), dtype), Ops())

    # states of random weights take rounding errors far
    check_executor(load, config=config_of(name, max_position_embeddings=256), tolerances={torch.float32: 1e-3})


@pytest.mark.parametrize("name", MODELS)
def test_passes_behind_texts_that_were_not_fed_can_be_measured(name: str) -> None:
    timer = PassTimer(tiny_session(name).executor, HostClock(), "tree")
    assert all(timer(nodes, context) > 0 for context in (*timer.contexts, timer.contexts[0]) for nodes in (1, 8))
