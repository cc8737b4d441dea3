"""The model that is trained is the one that will run: packed rows against the decoder on its own, cuts against theirs.

Legend: R rows, N positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.training.draft_shape import DraftShape, chosen_layers
from spec_sdk.training.packing import BatchOrder, fill_rows, pack
from spec_sdk.training.samples import Sample
from spec_sdk.training.trainable import TrainableDraft
from spec_sdk.tree import TokenTree
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import ModelTensors

CPU = torch.device("cpu")


def sample(number: int, prompt: int, answer: int, temperature: float = 0.0) -> Sample:
    """Random tokens with random labels."""
    random = torch.Generator().manual_seed(number)
    tokens = torch.randint(3, VOCABULARY, (prompt + answer,), generator=random).tolist()
    top = torch.rand(answer, VOCABULARY, generator=random).softmax(-1).topk(5, dim=-1)
    return Sample(
        number,
        "random",
        False,
        temperature,
        tokens[:prompt],
        tokens[prompt:],
        top.indices.int(),
        top.values.log().half(),
        top.values[:, 0].log(),
    )


DENSE = ["biased_llama", "gemma3", "qwen3", "phi4", "glm4", "ernie4_5", "smollm3", "granite"]


def logits_one_by_one(decoder_of: TorchExecutor, one: Sample) -> torch.Tensor:
    """What the decoder gives for each token of an answer, in plain decoding."""
    session, tokens, rows = Session(decoder_of), [*one.prompt, *one.answer], []
    session.prefill(0, one.prompt[:-1])
    for token in tokens[len(one.prompt) - 1 : -1]:
        (scores,) = session.score([0], [TokenTree.root_only(token)])
        session.commit([0], [[0]])
        rows.append(scores.logits_NV[0])
    return torch.stack(rows)


@pytest.mark.parametrize("name", [*DENSE, "smollm", "llama2", "qwen2", "gemma", "olmo2", "exaone4"])
def test_packed_rows_give_what_the_decoder_gives(name: str) -> None:
    source, layers = ModelTensors(name, 0), [0, 2, 4]
    model = TrainableDraft(source, DraftShape(layers), CPU)
    executor = TorchExecutor(load_decoder(source, CPU, torch.float32).subset(layers), Ops())
    rows = [[sample(0, 5, 9), sample(1, 30, 4)], [sample(2, 3, 40)]]
    batch = pack(rows, 52)
    with torch.no_grad():
        found = model.logits(model(batch))
    expected = torch.cat([logits_one_by_one(executor, one) for row in rows for one in row])
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)
    assert batch.next_A.tolist() == [token for row in rows for one in row for token in one.answer]


def test_heads_that_are_normalized_together_are_not_cut() -> None:
    with pytest.raises(UserError, match="task.kv_heads: the target's norms are of all heads together"):
        TrainableDraft(ModelTensors("olmo2", 0), DraftShape([0], kv_heads=1), CPU)


@pytest.mark.parametrize(("name", "what"), [("gemma2", "soft-capped"), ("mixtral", "mixture of experts")])
def test_what_is_not_trained_is_refused(name: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        TrainableDraft(ModelTensors(name, 0), DraftShape([0]), CPU)


def test_tensors_are_those_of_the_target_s_layers() -> None:
    for name in DENSE:
        source = ModelTensors(name, 0)
        model = TrainableDraft(source, DraftShape([1, 3]), CPU)
        theirs = weights_of(source.config)
        found = dict(model.tensors())
        table = weights_of(model.config)
        assert {*found, *dict(model.end_tensors())} == set(table.shapes)
        for tensor in found:
            row, layer, _ = table.entry(tensor)
            expected = source.tensor(theirs.name(row.role, [1, 3][layer] if row.per_layer else 0))
            torch.testing.assert_close(found[tensor], expected, atol=1e-6, rtol=0)


def test_units_and_heads_without_weight_are_the_first_to_go() -> None:
    source = ModelTensors("biased_llama", 0)
    config, table = source.config, weights_of(source.config)
    D, heads = config.head_dim, config.num_heads // config.num_kv_heads
    for layer in range(config.num_layers):
        for role in ("gate", "up"):
            source.tensor(table.name(role, layer))[7:27] = 0
            source.tensor(table.name(f"{role}_bias", layer))[7:27] = 0
        source.tensor(table.name("o", layer))[:, : heads * D] = 0
    kept = DraftShape([0, 1, 2, 3, 4], mlp_size=60, kv_heads=1)
    batch = pack([[sample(0, 5, 9), sample(1, 8, 4)]], 40)
    with torch.no_grad():
        whole = TrainableDraft(source, DraftShape([0, 1, 2, 3, 4]), CPU)
        narrow = TrainableDraft(source, kept, CPU)
        torch.testing.assert_close(narrow.logits(narrow(batch)), whole.logits(whole(batch)), atol=1e-4, rtol=1e-4)
    assert (narrow.config.intermediate_size, narrow.config.num_heads, narrow.config.num_kv_heads) == (60, heads, 1)


@pytest.mark.parametrize(
    ("layers", "of", "chosen"),
    [(6, 30, [0, 6, 12, 17, 23, 29]), (1, 5, [0]), (5, 5, [0, 1, 2, 3, 4]), ([0, 3], 5, [0, 3])],
)
def test_chosen_layers(layers: int | list[int], of: int, chosen: list[int]) -> None:
    assert chosen_layers(layers, of) == chosen


def test_rows_hold_all_samples_and_no_more_than_fits() -> None:
    lengths = [5, 9, 30, 2, 2, 8, 16, 1]
    order = [3, 2, 0, 1, 4, 6, 7, 5]
    rows = fill_rows(lengths, order, 16)
    assert [i for row in rows for i in row] == order
    assert all(len(row) == 1 or sum(lengths[i] for i in row) <= 16 for row in rows)


def test_every_epoch_has_an_order_of_its_own_that_the_seed_says() -> None:
    def epochs(seed: int) -> list[Sequence[Sequence[Sequence[int]]]]:
        order = BatchOrder([10] * 40, 20, 3, seed)
        return [order.epoch(number) for number in range(3)]

    assert epochs(1) == epochs(1) != epochs(2)
    one, other, _ = epochs(1)
    assert one != other and len(one) == 6 and all(len(step) == 3 for step in one)
    # fewer rows than a step has are still a step
    assert len(BatchOrder([10], 20, 3, 0).epoch(0)) == 1


def test_a_sample_longer_than_a_row_is_cut_off() -> None:
    batch = pack([[sample(0, 10, 30)]], 16)
    assert batch.labels == 7 and batch.lengths == [7] and int(batch.labelled_A[-1]) == 15
    assert pack([[sample(0, 20, 5)]], 16).labels == 0
