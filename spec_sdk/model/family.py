"""What there is to know of an architecture, in one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.weight_table import Weight


@dataclass(frozen=True)
class Family:
    """Models whose blocks consist of the same parts, and whose checkpoints name them alike.

    ``model_types`` are its values of ``model_type`` in config.json, ``gguf_architectures`` its values of
    ``general.architecture`` in GGUF files.

    ``read_config`` reads config.json; ``read_gguf`` gives what the config.json of a GGUF file's model would say. Both
    raise UserError, naming the file, for what is missing, impossible, or not computed by the decoder.
    """

    model_types: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    read_config: Callable[[Fields], ModelConfig]
    read_gguf: Callable[[GGUFFile], dict[str, Any]]
    weights: tuple[Weight, ...]
