"""Which hidden states of the target a head reads: three ways of numbering layers, brought to one.

Here a layer's number is that of :attr:`Drafter.taps`: 0 is the embedding, i the output of the i-th block, counted from
1. That is the stream that enters the block of index i, counted from 0, and transformers' ``hidden_states[i]``.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields

ENTERING = "eagle_aux_hidden_state_layer_ids"
"""At the top of config.json (speculators, vLLM): the index of the block that the state enters."""
LEAVING = "target_layer_ids"
"""At the top of config.json (DeepSpec) or in ``dflash_config``: the index of the block that the state leaves."""
BLOCK_ENTERING = "aux_hidden_state_layer_ids"
"""The same as :data:`ENTERING` in the files that speculators writes of heads that draft a block."""


@dataclass(frozen=True)
class PublishedTaps:
    """The layers that config.json names; None where it names none and the method's own are meant.

    ``fault``: why it cannot be told which are meant; empty if it can. ``evenly``: how many layers are meant where none
    are named, if they are spread evenly.
    """

    layers: tuple[int, ...] | None = None
    fault: str = ""
    evenly: int | None = None

    def of_target(self, target_layers: int) -> tuple[int, ...]:
        """The layers of a target of so many. Raises UserError if it cannot be told which."""
        if self.fault:
            raise UserError(self.fault)
        if self.layers is not None:
            return self.layers
        return default_taps(target_layers) if self.evenly is None else evenly_spread(target_layers, self.evenly)


def published_taps(config: Fields) -> PublishedTaps:
    """The layers that config.json names.

    Inside ``eagle_config`` (SGLang, SpecForge) the list of the same name as at the top counts the block that a state
    leaves, one less. Raises UserError for what is no list of layers.
    """
    nested = _section(config)
    entering, leaving = _ids(config, ENTERING, 0), _ids(config, LEAVING, 1)
    inside = _ids(nested, ENTERING, 1) if nested is not None else None
    plain = _ids(nested, "layer_ids", 0) if nested is not None else None
    if entering is not None and inside is not None and entering != inside:
        return PublishedTaps(
            fault=f"{config.where}: {ENTERING} is {list(entering)} at the top, meaning layers {list(entering)}, and "
            f"{[tap - 1 for tap in inside]} in eagle_config, meaning layers {list(inside)}; say which are right "
            "with drafter.target_layers"
        )
    return PublishedTaps(next((ids for ids in (entering, inside, leaving, plain) if ids is not None), None))


def block_taps(config: Fields, nested: Fields | None, draft_layers: int) -> PublishedTaps:
    """The layers that a head which drafts a block of so many layers names, at the top or in ``dflash_config``."""
    sections = [config] if nested is None else [nested, config]
    leaving = [ids for section in sections if (ids := _ids(section, LEAVING, 1)) is not None]
    if len(leaving) == 2 and leaving[0] != leaving[1]:
        return PublishedTaps(
            fault=f"{config.where}: {LEAVING} is {[tap - 1 for tap in leaving[1]]} at the top, and "
            f"{[tap - 1 for tap in leaving[0]]} in dflash_config; say which layers are right with drafter.target_layers"
        )
    entering = [
        ids
        for section, key in ((config, BLOCK_ENTERING), (nested, "layer_ids"))
        if section is not None and (ids := _ids(section, key, 0)) is not None
    ]
    return PublishedTaps(next(iter((*leaving, *entering)), None), evenly=draft_layers)


def evenly_spread(target_layers: int, count: int) -> tuple[int, ...]:
    """DFlash's own choice: what leaves so many blocks from the second to the last but two. May coincide."""
    if count == 1:
        return (target_layers // 2 + 1,)
    return tuple(2 + round(i * (target_layers - 4) / (count - 1)) for i in range(count))


def default_taps(target_layers: int) -> tuple[int, ...]:
    """EAGLE-3's own choice: a low, a middle and a high layer. May coincide in a target of few layers."""
    return (2, target_layers // 2, target_layers - 3)


def flag(config: Fields, key: str, default: bool = False) -> bool:
    """A flag that may stand at the top of config.json or in ``eagle_config``."""
    nested = _section(config)
    return config.flag(key, default if nested is None else nested.flag(key, default))


def _section(config: Fields) -> Fields | None:
    return None if config.get("eagle_config") is None else config.section("eagle_config")


def _ids(config: Fields, key: str, offset: int) -> tuple[int, ...] | None:
    """The list ``key`` as layers: each of its numbers plus ``offset``."""
    value = config.get(key)
    if value is None:
        return None
    whole = isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
    if not whole or not value or min(value) + offset < 0:
        raise UserError(f"{config.where}: {key} is {value!r}, not a list of layers")
    return tuple(i + offset for i in value)
