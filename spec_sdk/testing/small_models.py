"""A target and a draft model of random weights and six tokens: small enough to try every outcome of a cycle.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spec_sdk.model.architectures import read_config
from spec_sdk.model.in_memory import InMemoryModel
from spec_sdk.model.models import Model, Models
from spec_sdk.model.session import Session
from spec_sdk.ops import Ops
from spec_sdk.testing.random_weights import RandomWeights

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 6,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""As a config.json says it."""


def small_models(load: Any, ops: Ops, device: torch.device) -> Models:
    """What a drafter is given: a small target, and another small model as ``model.draft``, in float32."""
    target, draft = (_small(name, seed) for seed, name in enumerate(("small target", "small draft model")))
    given = {model.reference: model for model in (target, draft)}
    return Models(target.reference, draft.reference, "auto", load, ops, device, torch.float32, given=given)


def _small(name: str, seed: int) -> InMemoryModel:
    weights = RandomWeights(read_config(CONFIG, name), seed)
    return InMemoryModel(
        {key: weights.tensor(key) for key in weights.names()}, CONFIG, words(CONFIG["vocab_size"]), name
    )


def words(count: int) -> Any:
    """A tokenizer of so many words, ``w0``, ``w1`` and so on, each a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(count)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


class AnyText(Session):
    """A session of the target that can be asked about any text, as a table can: by another session beside it."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.executor)
        self._plain = Session(model.executor)
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits [V] for the token after ``tokens``, in host memory."""
        key = tuple(tokens)
        if key not in self._known:
            self._plain.open(0, tokens, keep=False)
            self._known[key] = self._plain.feed([0], [tokens])[0].full_KV[0].cpu()
        return self._known[key]
