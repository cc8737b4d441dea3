"""A tiny model that can spell any text, and its tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from spec_sdk.model.tokenizer import Tokenizer
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """A checkpoint with a chat template, and the same model as transformers has it."""
    directory = tmp_path_factory.mktemp("text")
    return directory, write_text_checkpoint(directory)


@pytest.fixture(scope="session")
def chat_tokenizer(saved: tuple[Path, PreTrainedModel]) -> Tokenizer:
    return Tokenizer(saved[0], VOCABULARY)


@pytest.fixture(scope="session")
def plain_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Without a chat template."""
    directory = tmp_path_factory.mktemp("plain")
    write_text_checkpoint(directory, chat=False)
    return Tokenizer(directory, VOCABULARY)
