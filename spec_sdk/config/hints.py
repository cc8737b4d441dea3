"""Which plugins have an option that was set for one without it."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.config.hydra_loader import config_loader
from spec_sdk.config.own_yaml import own_yaml
from spec_sdk.settings import PLUGIN_NODES

MOST_NAMES = 4


def plugins_with(option: str, search_path: Sequence[str], kinds: Sequence[str] = PLUGIN_NODES) -> str:
    """``drafter.width is an option of drafter=draft_model, easyspec``: of plugins that could be chosen; "" if of none.

    Goes by their YAML, so that no plugin is loaded.
    """
    if option == "name":
        return ""
    found = []
    with config_loader(search_path) as loader:
        for kind in kinds:
            names = sorted(set(loader.get_group_options(kind)))
            having = [name for name in names if option in own_yaml(loader, f"{kind}/{name}")]
            if having:
                listed = ", ".join([*having[:MOST_NAMES], *["…"] * (len(having) > MOST_NAMES)])
                found.append(f"{kind}.{option} is an option of {kind}={listed}")
    return "; ".join(found)
