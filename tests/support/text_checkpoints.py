"""A tiny random checkpoint that can spell any text: byte-level BPE, with a chat template or without."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel

from spec_sdk.needles.filler import filler_sentences
from tests.support.tiny_checkpoints import write_checkpoint

VOCABULARY = 480
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>\n{% endfor %}<assistant>\n"


def text_tokenizer() -> Tokenizer:
    """Byte-level BPE of VOCABULARY tokens, trained on made-up sentences; the first three are <pad>, <s>, </s>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(filler_sentences(random.Random(0)), 300), trainer)
    return tokenizer


def write_text_checkpoint(directory: Path, chat: bool = True, **overrides: Any) -> PreTrainedModel:
    """Save a random model with that tokenizer into ``directory``; return the model."""
    shape = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, "num_hidden_layers": 3}
    model = write_checkpoint(directory, "smollm", **{**shape, **overrides})
    text_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "</s>", **({"chat_template": TEMPLATE} if chat else {})}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return model
