"""EasySpec: layer-parallel fuzzy drafting with bonus calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spec_sdk.model.layer_groups import EASYSPEC, resolve_groups
from spec_sdk.model.models import Models
from spec_sdk.model.runners.base import BlockRunner
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.runners.layer_parallel_ranks import RanksLayerParallelRunner
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter


@dataclass
class EasySpecConfig(DraftModelConfig):
    """Options of ``draft_model``, and which layers run in parallel.

    ``groups``: ``easyspec`` is EasySpec's Table 6 for this depth and size, and elsewhere the rule that continues it; or
    an explicit list of groups, such as [[0], [1, 2, 3], [4]] (``task=tune_layers`` finds one).
    ``size``: most layers in a group of ``easyspec``, first and last layer alone; 1 is plain drafting.
    ``calibrate``: bonus calibration; false keeps the fuzzy K and V of accepted tokens, for the ablation.
    """

    groups: Any = EASYSPEC
    size: int = 4
    calibrate: bool = True


class EasySpecDrafter(DraftModelDrafter):
    """Drafts with the attention layers of a group all run on the hidden state that enters the group (EasySpec, §3.1).

    Bonus calibration (§3.2): no K and V computed so is kept. The accepted tokens and the bonus token are fed in one
    plain pass, the first of the next round, which leaves precise K and V and gives the first, precise distribution.
    """

    name = "easyspec"
    Config = EasySpecConfig
    config: EasySpecConfig

    def __init__(self, config: EasySpecConfig, models: Models) -> None:
        super().__init__(config, models)
        self.groups = resolve_groups(config.groups, config.size, self.session.decoder.layers, "drafter")
        self.drops_drafted_kv = config.calibrate
        self._runner = LayerParallelRunner(self.groups)
        if models.ranks.size > 1:
            self.every_rank = True
            self._runner = RanksLayerParallelRunner(self.groups, models.ranks, shares_kv=not config.calibrate)

    @property
    def growth_runner(self) -> BlockRunner:
        return self._runner
