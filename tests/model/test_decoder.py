"""Our decoder against transformers, architecture by architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.layers_of import LayersOf
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree, TreeBuilder
from tests.support.draft_logits import rows_of
from tests.support.tiny_checkpoints import ARCHITECTURES, SHAPE, VOCABULARY, tiny_tokenizer, write_checkpoint
from tests.support.tiny_decoder import ModelTensors

CPU = torch.device("cpu")


def load(directory: Path) -> TorchExecutor:
    return TorchExecutor(load_decoder(open_checkpoint(str(directory)), CPU, torch.float32), Ops())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = write_checkpoint(tmp_path, name)
    tokens = torch.randint(3, VOCABULARY, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([tokens])).logits[0]
    session = Session(load(tmp_path))
    whole = session.score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV
    assert (whole - expected_NV).abs().max() < 1e-4
    session.prefill(0, tokens[:60])
    rest = session.score([0], [TokenTree.chain(tokens[60], tokens[61:])])[0].logits_NV
    assert (rest - expected_NV[60:]).abs().max() < 1e-4
    # the comparison means something only if the logits differ between positions and tokens by far more
    assert expected_NV.std() > 0.1


WINDOWED = ["mistral_sliding", "qwen2_sliding", "gemma2", "gemma3", "gemma4", "gemma4_small", "gemma4_moe"]
"""Their windows are of 24 tokens."""


@pytest.mark.parametrize("name", [*WINDOWED, "gemma"])
def test_chunks_single_tokens_and_trees_equal_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests of different lengths, far beyond the window; a closed tree and a growing one behind each."""
    reference = write_checkpoint(tmp_path, name)
    texts = [torch.randint(3, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (90, 61)]
    monkeypatch.setattr("spec_sdk.model.session.PREFILL_CHUNK", 40)
    session = Session(load(tmp_path))

    def expected(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return reference(torch.tensor([tokens])).logits[0, -1]

    for slot, tokens in enumerate(texts):
        session.prefill(slot, tokens[:-4])
    for at in range(4, 0, -1):
        pending = [tokens[-at] for tokens in texts]
        scores = session.score([0, 1], [TokenTree.root_only(token) for token in pending])
        for tokens, score in zip(texts, scores, strict=True):
            end = len(tokens) - at + 1
            assert (score.logits_NV[0] - expected(tokens[:end])).abs().max() < 1e-4
        session.commit([0, 1], [[0], [0]])
    # deeper than the window, with branches at several depths
    parents = [*range(30), 3, 30, 31, 0, 34, 20]
    for growing in (False, True):
        builders = [TreeBuilder(7) for _ in texts]
        for builder in builders:
            for node, parent in enumerate(parents):
                builder.add(parent, 3 + node, "chosen")
        if growing:
            session.feed([0, 1], [[7], [7]])
            for new in (len(parents) - 5, 5):
                partial = [cut(builder, len(parents) - 5 if new != 5 else len(parents)) for builder in builders]
                logits = rows_of(session.grow([0, 1], partial, [new] * 2))
            found = [dict(zip(range(len(parents) - 4, len(parents) + 1), each, strict=True)) for each in logits]
        else:
            made = [builder.build() for builder in builders]
            scores = session.score([0, 1], [each.tree for each in made])
            slots = builders[0].intervals()[0]
            found = [{node: score.logits_NV[slots[node]] for node in range(len(parents) + 1)} for score in scores]
        for tokens, builder, logits_of in zip(texts, builders, found, strict=True):
            for node in {5, 30, 32, 33, 35, 36} & logits_of.keys():
                path, walker = [], node
                while walker > 0:
                    path.append(builder.token[walker])
                    walker = builder.parent[walker]
                error = (logits_of[node] - expected([*tokens, 7, *path[::-1]])).abs().max()
                assert error < 1e-4, (growing, node)


def cut(builder: TreeBuilder, nodes: int) -> TreeBuilder:
    """The tree of the first so many nodes, its root not counted."""
    part = TreeBuilder(builder.root)
    for node in range(1, nodes + 1):
        part.add(builder.parent[node], builder.token[node], "chosen")
    return part


@pytest.mark.parametrize("name", WINDOWED)
def test_the_window_matters(name: str) -> None:
    """Without it the same weights give other logits, from the first position on that is beyond it."""
    tokens, logits = list(range(3, 63)), []
    for window in (24, 400):
        source = ModelTensors(name, 0, sliding_window=window)
        session = Session(TorchExecutor(load_decoder(source, CPU, torch.float32), Ops()))
        logits.append(session.score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV)
    difference_N = (logits[0] - logits[1]).abs().amax(1)
    assert difference_N[:24].max() < 1e-4 < 100 * difference_N[24:].min()


def test_gemma_in_bfloat16_is_as_near_as_transformers(tmp_path: Path) -> None:
    """Gains keep the digits that bfloat16 would cut off of 1 + w; the embeddings' scale is rounded as it is there."""
    reference = write_checkpoint(tmp_path, "gemma3")
    tokens = list(range(3, 63))
    with torch.inference_mode():
        exact_NV = reference(torch.tensor([tokens])).logits[0]
        theirs_NV = reference.bfloat16()(torch.tensor([tokens])).logits[0].float()
    decoder = load_decoder(open_checkpoint(str(tmp_path)), CPU, torch.bfloat16)
    gain_M = decoder.blocks[0].input_norm_M
    assert gain_M is not None and gain_M.dtype == torch.float32
    session = Session(TorchExecutor(decoder, Ops()))
    ours_NV = session.score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV.float()
    assert (ours_NV - exact_NV).norm() < 1.2 * (theirs_NV - exact_NV).norm()


def test_the_text_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    """Its vision tower is left out."""
    text = {**SHAPE, **ARCHITECTURES["gemma3"][1], "hidden_size": 48}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(text_config=text, vision_config={**vision, "image_size": 28, "patch_size": 14})
    torch.manual_seed(0)
    reference = Gemma3ForConditionalGeneration(config).eval()
    reference.save_pretrained(tmp_path)
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    checkpoint = open_checkpoint(str(tmp_path))
    assert all(name.startswith("language_model.model.") for name in checkpoint.names())
    tokens = list(range(3, 63))
    with torch.inference_mode():
        expected_NV = reference(input_ids=torch.tensor([tokens])).logits[0]
    ours_NV = Session(load(tmp_path)).score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV
    assert (ours_NV - expected_NV).abs().max() < 1e-4
    two = load_decoder(LayersOf(checkpoint, [1, 5]), CPU, torch.float32)
    assert two.kinds == tuple(checkpoint.config.layer_kind(layer) for layer in (1, 5))


@pytest.mark.parametrize("name", ["llama2", "qwen3", "gemma2"])
def test_greedy_output_equals_generate(name: str, tmp_path: Path) -> None:
    reference: Any = write_checkpoint(tmp_path, name)
    prompt = list(range(5, 25))
    with torch.inference_mode():
        expected = reference.generate(torch.tensor([prompt]), max_new_tokens=40, min_new_tokens=40, do_sample=False)[
            0, len(prompt) :
        ].tolist()
    session = Session(load(tmp_path))
    tokens = list(prompt)
    session.prefill(0, tokens[:-1])
    for _ in range(40):
        logits_V = session.score([0], [TokenTree.root_only(tokens[-1])])[0].logits_NV[0].clone()
        logits_V[2] = float("-inf")  # min_new_tokens forbids the end token
        session.commit([0], [[0]])
        tokens.append(int(logits_V.argmax()))
    assert tokens[len(prompt) :] == expected


@pytest.mark.parametrize("name", ["smollm", "granite", "falcon_h1", "nemotron_h"])
def test_hidden_states_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = write_checkpoint(tmp_path, name)
    tokens = list(range(3, 40))
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    session = Session(load(tmp_path))
    prompt_hidden = session.prefill(0, tokens[:-1], taps=(0, 2, 4))
    pending_hidden = session.score([0], [TokenTree.root_only(tokens[-1])], taps=(0, 2, 4))[0].hidden
    for layer in (0, 2, 4):
        ours_NM = torch.cat((prompt_hidden[layer], pending_hidden[layer]))
        assert (ours_NM - expected[layer][0]).abs().max() < 1e-4


def test_long_prompts_are_prefilled_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path)
    tokens = torch.randint(3, VOCABULARY, (200,), generator=torch.Generator().manual_seed(2)).tolist()
    executor = load(tmp_path)
    whole, chunked = Session(executor), Session(executor)
    whole_hidden = whole.prefill(0, tokens, taps=(3,))[3]
    monkeypatch.setattr("spec_sdk.model.session.PREFILL_CHUNK", 64)
    chunked_hidden = chunked.prefill(0, tokens, taps=(3,))[3]
    assert (whole_hidden - chunked_hidden).abs().max() < 1e-4
    logits = [s.score([0], [TokenTree.root_only(5)])[0].logits_NV for s in (whole, chunked)]
    assert (logits[0] - logits[1]).abs().max() < 1e-4
