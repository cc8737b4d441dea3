"""Heads written in a layout, exported into another, and what both say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from spec_sdk.export.draft_source import draft_source
from spec_sdk.export.exporting import Asked, Written, export
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.draft_heads.block_session import BlockSession
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.load_decoder import load_target_ends
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from tests.support.draft_logits import roots_of
from tests.support.tiny_blocks import load_block
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import CPU, load_head
from tests.support.tiny_medusa import load_medusa
from tests.support.tiny_peagle import peagle_session

LAYERS = 10
"""Of the target."""
TAPPED: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [1, 4, 9]}


def write_target(directory: Path, **more: Any) -> Path:
    """A target whose sizes are those of :class:`HeadSizes`."""
    directory.mkdir()
    write_checkpoint(directory, num_hidden_layers=LAYERS, **more)
    return directory


def exported(source: Path, target: Path, output: Path, **asked: Any) -> Written:
    """The draft in ``source``, beside ``target``."""
    return export(draft_source(str(source), {}, str(target), "auto"), Asked(str(target), **asked), output)


def ends_of(target: Path) -> TargetEnds:
    return load_target_ends(open_checkpoint(str(target)), "target", CPU, torch.float64, Ops())


def logits_of(directory: Path, ends: TargetEnds) -> torch.Tensor:
    """What the head in a directory says after the same short text and states, whichever kind of head it is."""
    generator = torch.Generator().manual_seed(5)
    size = ends.hidden_size
    hidden = {layer: torch.randn(4, size, dtype=torch.float64, generator=generator) for layer in range(LAYERS + 1)}
    tokens, method = [7, 8, 9, 10], open_draft_head(str(directory)).spec.method
    if method == "medusa":
        heads = load_medusa(directory, ends)
        return torch.stack(heads.logits(hidden, heads.positions))
    if method in ("dflash", "dspark"):
        blocks = BlockSession(load_block(directory, ends))
        blocks.feed_features([0], [tokens], [blocks.head.features(hidden)])
        normed_BNM = blocks.blocks([0], [11])
        said = [blocks.head.block_logits(normed_BNM).flatten()]
        if (markov := blocks.head.markov) is not None:
            said += [
                each.flatten() for each in markov.step(markov.start(1) + 0.5, torch.tensor([11]), normed_BNM[0, :1])
            ]
        if (confidence := blocks.head.confidence) is not None:
            previous = None if markov is None else markov.previous(torch.arange(normed_BNM.shape[1]))
            said.append(confidence(normed_BNM[0], previous).flatten())
        return torch.cat(said)
    if method == "peagle":
        session = peagle_session(directory, ends)
        return session.head.block_logits(session.ahead([0], [tokens], [session.head.features(hidden)], 4))
    chain = DraftHeadSession(load_head(directory, ends))
    return roots_of(chain.feed_pairs([0], [tokens], [chain.head.features(hidden)]))[0]
