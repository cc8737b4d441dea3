"""A model that is in memory already: its weights, configuration and tokenizer, as a training script has them."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config, weights_of
from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.model_source import ModelSource
from spec_sdk.model.own_head import with_own_head
from spec_sdk.model.packed_weights import packed_in, part_of
from spec_sdk.model.tokenizer import TOKENIZER_NAME, Tokenizer

_numbers = itertools.count(1)


class InMemoryModel(ModelSource):
    """A target or draft model for :meth:`spec_sdk.Engine.from_pipeline`, in place of a reference to files.

    ``state_dict``: Hugging Face tensor name → tensor, floating point, on any device. ``config``: the content of
    config.json. ``tokenizer``: one of transformers or of the tokenizers library, or a directory that has a
    tokenizer.json. ``name`` labels it in reports; ``reference`` is what a run's settings call it, another for each
    object. A tensor that has the dtype and device already may be used as it is: do not write to it afterwards.

    Raises UserError for tensors that are missing or of another shape than ``config`` says, and for a model that the
    decoder cannot run.
    """

    def __init__(
        self, state_dict: Mapping[str, torch.Tensor], config: Mapping[str, Any], tokenizer: Any, name: str = "in memory"
    ) -> None:
        self.name = name
        self.reference = f"memory:{next(_numbers)}"
        for given, what in ((state_dict, "state_dict"), (config, "config")):
            if not isinstance(given, Mapping):
                raise UserError(f"model {name!r}, {what}: a {type(given).__name__} is no mapping of names")
        for key, tensor in state_dict.items():
            if not isinstance(tensor, torch.Tensor):
                raise UserError(f"model {name!r}, state_dict: {key!r} is a {type(tensor).__name__} and no tensor")
        self._settings = dict(config)
        config_read = read_config(self._settings, f"model {name!r}, config")
        found = {key: tuple(tensor.shape) for key, tensor in state_dict.items()}
        self.config = with_own_head(config_read, found, lambda key, rows: state_dict[key][rows.start : rows.stop])
        table, where = weights_of(self.config), f"model {name!r}, state_dict"
        packed = packed_in(found, table)
        check_shapes({each.name: each.shape for each in packed.values()}, found, where)
        check_shapes({key: shape for key, shape in table.shapes.items() if key not in packed}, found, where)
        parts = {key: part_of(state_dict[of.name], key, of.packing, table) for key, of in packed.items()}
        self._tensors = {key: (parts[key] if key in parts else state_dict[key]).detach() for key in table.shapes}
        for key, tensor in self._tensors.items():
            if not tensor.is_floating_point() or tensor.element_size() < 2:
                raise UserError(
                    f"{where}: tensor '{key}' is {tensor.dtype}; only float32, bfloat16 and float16 weights are read"
                )
        self._tokenizer = tokenizer

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Made at first use. Raises UserError for something that is no tokenizer."""
        given, vocabulary = self._tokenizer, self.config.vocab_size
        if isinstance(given, str | Path):
            return Tokenizer(Path(given).expanduser(), vocabulary)
        with tempfile.TemporaryDirectory(prefix="spec-sdk-") as name:
            directory = Path(name)
            # a tokenizer reads the model's end tokens from here
            end = {key: value for key, value in self._settings.items() if key == "eos_token_id"}
            (directory / "config.json").write_text(json.dumps(end), encoding="utf-8")
            if hasattr(given, "save_pretrained"):
                given.save_pretrained(directory)
            elif hasattr(given, "save"):
                given.save(str(directory / TOKENIZER_NAME))
            else:
                raise UserError(
                    f"model {self.name!r}: {type(given).__name__} is no tokenizer; give one of transformers or "
                    "tokenizers, or a directory that has a tokenizer.json"
                )
            return Tokenizer(directory, vocabulary)

    def within(self, context: int) -> InMemoryModel:
        """The model for texts of at most ``context`` tokens, or of as many as it has positions for if that is less."""
        served = copy.copy(self)
        served.config = self.config.within(min(context, self.config.longest_context))
        return served

    def names(self) -> frozenset[str]:
        """Hugging Face names of the tensors that make up the model."""
        return frozenset(self._tensors)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as it was given: do not write to it. Raises KeyError for a name not in :meth:`names`."""
        return self._tensors[name]
