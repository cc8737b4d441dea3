"""Encoder and decoder beside transformers: states, prefill, steps, trees, slots; in float32."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.whisper_decoder import WhisperDecoder
from spec_sdk.model.whisper_encoder import WhisperEncoder
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree, TreeBuilder
from tests.support.draft_logits import rows_of
from tests.support.tiny_whisper import FRAMES, MELS, write_whisper

CPU = torch.device("cpu")
CLOSE: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, WhisperDecoder]:
    directory = tmp_path_factory.mktemp("whisper")
    model = write_whisper(directory)
    decoder = load_decoder(open_checkpoint(str(directory)), CPU, torch.float32)
    assert isinstance(decoder, WhisperDecoder)
    return model, decoder


def features(seed: int) -> torch.Tensor:
    return torch.randn((MELS, FRAMES), generator=torch.Generator().manual_seed(seed))


def session_of(decoder: WhisperDecoder) -> Session:
    return Session(TorchExecutor(decoder, Ops()))


def expected(model: Any, features_XF: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """Transformers' logits [len(tokens), V]."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_features=features_XF[None], decoder_input_ids=torch.tensor([tokens])).logits
    return logits[0]


def tokens_of(seed: int, count: int, vocabulary: int) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(vocabulary) for _ in range(count)]


def random_tree(root: int, size: int, vocabulary: int, seed: int) -> tuple[TokenTree, list[list[int]]]:
    """A tree, and every node's path of tokens from the root on."""
    choose, builder = random.Random(seed), TreeBuilder(root)
    while builder.size < size:
        builder.add(choose.randrange(builder.size), choose.randrange(vocabulary), "chosen")
    tree = builder.build().tree
    paths = [[root]]
    for node in range(1, tree.size):
        paths.append([*paths[tree.parent_N[node]], tree.token_N[node]])
    return tree, paths


def test_states_of_the_encoder(loaded: tuple[Any, WhisperDecoder]) -> None:
    model, decoder = loaded
    with torch.no_grad():
        states = model.model.encoder(features(0)[None]).last_hidden_state[0]
        torch.testing.assert_close(decoder.encoder(features(0)), states, **CLOSE)
    assert float(states.std()) > 0.1


def test_prefill_then_token_by_token(loaded: tuple[Any, WhisperDecoder]) -> None:
    model, decoder = loaded
    tokens = tokens_of(0, 30, decoder.vocabulary)
    wanted = expected(model, features(1), tokens)
    session = session_of(decoder)
    session.open(0, tokens[:8], encoder_input=EncoderInput(features(1)))
    session.prefill(0, tokens[:8])
    for place in range(8, 30):
        [scores] = session.score([0], [TokenTree.root_only(tokens[place])])
        torch.testing.assert_close(scores.logits_NV[0], wanted[place], **CLOSE)
        session.commit([0], [[0]])


def test_trees_of_requests_with_sounds_of_their_own(loaded: tuple[Any, WhisperDecoder]) -> None:
    """Three in one batch, in slots out of order, each with its own prefix, tree and sound; then a path of each."""
    model, decoder = loaded
    session, slots = session_of(decoder), [2, 0, 1]
    prefixes = [tokens_of(10 + i, 4 + 5 * i, decoder.vocabulary) for i in range(3)]
    for slot, prefix in zip(slots, prefixes, strict=True):
        session.open(slot, prefix, encoder_input=EncoderInput(features(slot)))
        session.prefill(slot, prefix)
    for seed in range(3):
        trees = [random_tree(7 + i, 5 + i, decoder.vocabulary, 10 * seed + i) for i in range(3)]
        scored = session.score(slots, [tree for tree, _ in trees])
        kept = []
        for i, (slot, scores) in enumerate(zip(slots, scored, strict=True)):
            tree, paths = trees[i]
            for node, path in enumerate(paths):
                wanted = expected(model, features(slot), [*prefixes[i], *path])[-1]
                torch.testing.assert_close(scores.logits_NV[node], wanted, **CLOSE)
            node, rows = tree.size - 1, [0]
            while node:
                rows.insert(1, node)
                node = tree.parent_N[node]
            kept.append(rows)
            prefixes[i] += paths[rows[-1]]
        session.commit(slots, kept)


def test_a_growing_tree(loaded: tuple[Any, WhisperDecoder]) -> None:
    model, decoder = loaded
    prefix, session = tokens_of(3, 6, decoder.vocabulary), session_of(decoder)
    session.open(0, prefix, encoder_input=EncoderInput(features(5)))
    session.prefill(0, prefix)
    tree = TreeBuilder(prefix[-1])
    first, second = tree.add(0, 11, "chosen"), tree.add(0, 12, "chosen")
    [logits_KV] = rows_of(session.grow([0], [tree], [2]))
    for row, token in zip(logits_KV, (11, 12), strict=True):
        torch.testing.assert_close(row, expected(model, features(5), [*prefix, token])[-1], **CLOSE)
    for parent, token in ((first, 13), (second, 14)):
        tree.add(parent, token, "chosen")
    [logits_KV] = rows_of(session.grow([0], [tree], [2]))
    for row, path in zip(logits_KV, ([11, 13], [12, 14]), strict=True):
        torch.testing.assert_close(row, expected(model, features(5), [*prefix, *path])[-1], **CLOSE)


def test_a_cut_decoder_shares_the_encoder_and_its_states(loaded: tuple[Any, WhisperDecoder]) -> None:
    model, decoder = loaded
    cut = decoder.subset([0, 3, 5])
    assert cut.encoder is decoder.encoder and cut.whisper_blocks[1] is decoder.whisper_blocks[3]
    given, runs = EncoderInput(features(4)), list[WhisperEncoder]()
    whole, part = session_of(decoder), session_of(cut)
    forward = WhisperEncoder.__call__

    def counted(encoder: WhisperEncoder, features_XT: torch.Tensor) -> torch.Tensor:
        runs.append(encoder)
        return forward(encoder, features_XT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhisperEncoder, "__call__", counted)
        for session in (whole, part):
            session.open(0, [5], encoder_input=given)
    assert len(runs) == 1
    logits = part.score([0], [TokenTree.root_only(5)])[0].logits_NV[0]
    layers = model.model.decoder.layers
    model.model.decoder.layers = torch.nn.ModuleList([layers[0], layers[3], layers[5]])
    try:
        torch.testing.assert_close(logits, expected(model, features(4), [5])[0], **CLOSE)
    finally:
        model.model.decoder.layers = layers


def test_a_kept_prefix_is_used_beside_the_same_sound_only(loaded: tuple[Any, WhisperDecoder]) -> None:
    model, decoder = loaded
    session, tokens = session_of(decoder), tokens_of(6, 12, decoder.vocabulary)
    assert session.open(0, tokens, encoder_input=EncoderInput(features(1))) == 0
    session.prefill(0, tokens)
    same, other = EncoderInput(features(1).clone()), EncoderInput(features(2))
    assert session.shared(0, tokens, same) == 12 and session.shared(0, tokens, other) == 0
    assert session.open(0, tokens[:9], encoder_input=same) == 9
    [scores] = session.score([0], [TokenTree.root_only(tokens[9])])
    torch.testing.assert_close(scores.logits_NV[0], expected(model, features(1), tokens[:10])[-1], **CLOSE)
    assert session.open(0, tokens[:9], encoder_input=other) == 0
    session.prefill(0, tokens[:9])
    [scores] = session.score([0], [TokenTree.root_only(tokens[9])])
    torch.testing.assert_close(scores.logits_NV[0], expected(model, features(2), tokens[:10])[-1], **CLOSE)


def test_more_slots_keep_what_was_encoded(loaded: tuple[Any, WhisperDecoder]) -> None:
    model, decoder = loaded
    session = session_of(decoder)
    for slot in (0, 3):
        session.open(slot, [], encoder_input=EncoderInput(features(slot)))
    before = session.cache.nbytes
    session.reserve(6, 40)
    assert session.cache.nbytes > before
    for slot in (0, 3):
        [scores] = session.score([slot], [TokenTree.root_only(9)])
        torch.testing.assert_close(scores.logits_NV[0], expected(model, features(slot), [9])[0], **CLOSE)


def test_what_an_encoder_cannot_be_given(loaded: tuple[Any, WhisperDecoder]) -> None:
    _, decoder = loaded
    session = session_of(decoder)
    with pytest.raises(UserError, match="answers nothing but audio"):
        session.open(0, [1])
    with pytest.raises(UserError, match=r"their shape is \[16, 99\], the encoder takes \[16, 100\]"):
        session.open(0, [1], encoder_input=EncoderInput(torch.zeros(MELS, 99)))
    with pytest.raises(UserError, match="NaN or infinite"):
        session.open(0, [1], encoder_input=EncoderInput(torch.full((MELS, FRAMES), float("nan"))))
    with pytest.raises(UserError, match="no audio for its encoder"):
        session.prefill(0, [1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near(dtype: torch.dtype, tmp_path: Path) -> None:
    model = write_whisper(tmp_path, seed=2)
    decoder = load_decoder(open_checkpoint(str(tmp_path)), CPU, dtype)
    assert isinstance(decoder, WhisperDecoder)
    session = session_of(decoder)
    session.open(0, [], encoder_input=EncoderInput(features(0)))
    logits = session.score([0], [TokenTree.root_only(9)])[0].logits_NV[0].float()
    wanted = expected(model, features(0), [9])[0]
    assert float((logits - wanted).norm() / wanted.norm()) < 0.05


def test_an_untied_head_has_weights_of_its_own(tmp_path: Path) -> None:
    model = write_whisper(tmp_path, seed=3, tie_word_embeddings=False)
    assert not torch.equal(model.proj_out.weight, model.model.decoder.embed_tokens.weight)
    decoder = load_decoder(open_checkpoint(str(tmp_path)), CPU, torch.float32)
    assert isinstance(decoder, WhisperDecoder)
    session = session_of(decoder)
    session.open(0, [], encoder_input=EncoderInput(features(0)))
    logits = session.score([0], [TokenTree.root_only(9)])[0].logits_NV[0]
    torch.testing.assert_close(logits, expected(model, features(0), [9])[0], **CLOSE)
