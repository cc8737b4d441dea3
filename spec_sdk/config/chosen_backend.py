"""``backend=auto``: the backend that suits this machine, and the dtype and the sampler that suit a backend.

It is what a run has that names no backend. The plugins are asked (:meth:`spec_sdk.contracts.Backend.suitability`),
which imports torch; a run that names none asks them only where some accelerator's driver is seen, so that a mistyped
value is answered at once elsewhere.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf

from spec_sdk.config.hydra_loader import config_loader
from spec_sdk.config.overrides import parse, search_path_of
from spec_sdk.config.own_yaml import own_yaml
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.contracts import Suitability
    from spec_sdk.registry import Registry

AUTO, DEFAULT, DTYPE, SAMPLER = "auto", "cpu", "float32", "exact"
"""What is chosen by machine; and the choices where nothing else suits."""
DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvgpu", "/dev/dxg", "/dev/kfd", "/dev/tenstorrent")
"""What drivers of accelerators make: NVIDIA's, on Jetson and under Windows too, AMD's, Tenstorrent's."""


def with_chosen_backend(overrides: Sequence[str]) -> list[str]:
    """``overrides``, with the backend that suits this machine for ``backend=auto``, or where there is an accelerator
    and neither they nor the pipeline's YAML choose one.

    Raises UserError for an override that cannot be read.
    """
    read = parse(overrides)
    typed = [override for override in read if override.key_or_group == "backend"]
    if any(override.is_sweep_override() or override.value() != AUTO for override in typed):
        return list(overrides)
    if not typed:
        if not has_accelerator():
            return list(overrides)
        named = next((str(o.value()) for o in reversed(read) if o.key_or_group == "pipeline"), None)
        with config_loader(search_path_of(overrides)) as loader:
            if chosen_by_yaml("backend", named, loader):
                return list(overrides)
    others = [text for text, override in zip(overrides, read, strict=True) if override.key_or_group != "backend"]
    return [*others, f"backend={suited_backend()[0]}"]


def has_accelerator() -> bool:
    """Whether the driver of one is seen, without importing anything."""
    return any(map(os.path.exists, DRIVER_FILES))


def chosen_by_yaml(kind: str, pipeline: str | None, loader: ConfigLoader) -> bool:
    """Whether a pipeline's YAML says which plugin of this kind it takes."""
    loaded = None
    if pipeline is not None:
        loaded = loader.repository.load_config(f"pipeline/{pipeline}")  # type: ignore[attr-defined]
    if loaded is None:
        return False
    groups = [str(getattr(entry, "group", "")) for entry in loaded.defaults_list or ()]
    return any(group.lstrip("/") == kind for group in groups)


def suited_backend() -> tuple[str, str]:
    """The usable backend of the highest rank, and why it is that one: what it found, or what others lack."""
    from spec_sdk.registry import Registry

    return _suited(Registry.discover())


@functools.lru_cache(maxsize=1)
def _suited(registry: Registry) -> tuple[str, str]:
    asked = {offer.plugin.name: suitability(offer.plugin.name, {}) for offer in registry.offers("backend")}
    known = {name: suited for name, suited in asked.items() if suited is not None and suited.rank is not None}
    usable = {name: suited for name, suited in known.items() if suited.usable}
    best = max(usable, key=lambda name: usable[name].rank or 0, default=DEFAULT)
    lacking = [f"{name}: {suited.reason}" for name, suited in known.items() if not suited.usable]
    found = usable[best].reason if best in usable else ""
    return best, found or "; ".join(lacking)


def suitability(name: str, node: Mapping[str, Any]) -> Suitability | None:
    """What the backend ``name`` with the options of ``node`` says; None of one that says nothing, or cannot."""
    from spec_sdk.registry import Registry

    plugin: Any
    registry = Registry.discover()
    if name not in registry.names("backend"):
        return None
    options = {key: value for key, value in node.items() if key != "name"}
    plugin, config = registry.configure("backend", {"name": name, **options})
    try:
        suited: Suitability | None = plugin.suitability(config)
    except Exception:  # a third party's look at the machine may raise anything; making the backend says what is wrong
        return None
    return suited


def settle_suited(config: DictConfig, typed: set[str], pipeline: str | None, loader: ConfigLoader) -> None:
    """Give a composed config the dtype and the sampler that suit its backend, where nobody chose them.

    ``typed``: the keys that were set beside ``pipeline``. Raises UserError for options that the backend refuses.
    """
    backend, model = config.get("backend"), config.get("model")
    if not (isinstance(backend, DictConfig) and isinstance(model, DictConfig)):
        return
    suited = None
    if (name := str(backend.get("name"))) != DEFAULT:
        node = OmegaConf.to_container(backend, resolve=True)
        assert isinstance(node, dict)
        suited = suitability(name, {str(key): value for key, value in node.items()})
    if model.get("dtype") == AUTO:
        model.dtype = DTYPE if suited is None else suited.dtype
    sampler = SAMPLER if suited is None else suited.sampler
    chosen = any(key.partition(".")[0] == "sampler" for key in typed) or chosen_by_yaml("sampler", pipeline, loader)
    if not chosen and sampler != SAMPLER and isinstance(config.get("sampler"), DictConfig):
        config.sampler = OmegaConf.create({"name": sampler, **own_yaml(loader, f"sampler/{sampler}")})


def is_auto(overrides: Sequence[str]) -> bool:
    """Whether a run with these overrides left the choice of its backend to us."""
    return all(value == AUTO for value in _named(overrides))


def _named(overrides: Sequence[str]) -> list[Any]:
    """The backends that overrides name."""
    return [override.value() for override in parse(overrides) if override.key_or_group == "backend"]


def backend_choice(settings: Settings) -> str | None:
    """Which backend was chosen for this run and why, with its dtype and sampler, in one line.

    None if it was named, and where nothing could be chosen: no ``backend=auto``, and no accelerator's driver.
    """
    chosen = _named(settings.overrides)
    if any(value != AUTO for value in chosen) or not (chosen or has_accelerator()):
        return None
    name, (suited, reason) = str(settings.backend.get("name")), suited_backend()
    checked = settings.plugin is not None and settings.plugin.rpartition("/")[2] == name
    if name != suited or checked:
        return None
    why = f" ({reason})" if reason else ""
    return f"backend=auto: {name}, {settings.model.dtype}, sampler {settings.sampler.get('name')}{why}"
