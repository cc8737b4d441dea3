"""EasySpec: layer-parallel fuzzy drafting with bonus calibration."""

from __future__ import annotations

from dataclasses import dataclass, field

from spec_sdk.errors import UserError
from spec_sdk.model.models import Models
from spec_sdk.model.runners.base import BlockRunner
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner, check_groups, consecutive_groups
from spec_sdk.model.runners.layer_parallel_ranks import RanksLayerParallelRunner
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter


@dataclass
class EasySpecConfig(DraftModelConfig):
    """Options of ``draft_model``, and which layers run in parallel.

    ``size``: layers per group, first and last layer alone; 1 is plain drafting.
    ``groups``: an explicit list of groups instead, such as [[0], [1, 2, 3], [4]].
    ``calibrate``: bonus calibration; false keeps the fuzzy K and V of accepted tokens, for the ablation.
    """

    size: int = 4
    groups: list[list[int]] = field(default_factory=list)
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
        layers = self.session.decoder.layers
        if config.size < 1:
            raise UserError(f"drafter.size: {config.size} must be 1 (plain drafting) or more")
        if config.groups:
            groups = check_groups(config.groups, layers, "drafter.groups")
        else:
            groups = consecutive_groups(layers, config.size)
        self.drops_drafted_kv = config.calibrate
        self._runner = LayerParallelRunner(groups)
        if models.ranks.size > 1:
            self.every_rank = True
            self._runner = RanksLayerParallelRunner(groups, models.ranks, shares_kv=not config.calibrate)

    @property
    def growth_runner(self) -> BlockRunner:
        return self._runner
