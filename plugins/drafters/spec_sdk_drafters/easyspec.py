"""EasySpec: layer-parallel fuzzy drafting with bonus calibration, as a preset of ``draft_model``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import option
from spec_sdk_drafters.draft_model import RUNNERS, DraftModelConfig, DraftModelDrafter


@dataclass
class EasySpecConfig(DraftModelConfig):
    """The options of ``draft_model``; ``runner`` is layer-parallel unless another is chosen."""

    runner: Any = option("layer_parallel", f"how the draft model runs while the tree grows: {RUNNERS}")


class EasySpecDrafter(DraftModelDrafter):
    """Drafts with all attention layers of a group run on the hidden state that enters the group (EasySpec, §3.1)."""

    name = "easyspec"
    Config = EasySpecConfig
    config: EasySpecConfig
