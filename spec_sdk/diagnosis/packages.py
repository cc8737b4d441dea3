"""What spec-sdk requires, its extras, and the packages that bring plugins: what is missing, and how to get it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from urllib.parse import unquote, urlparse

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spec_sdk.contracts import PLUGIN_KINDS, Finding
from spec_sdk.counted import counted
from spec_sdk.installed import OWN_DISTRIBUTION, installed_version
from spec_sdk.registry import Registry


@dataclass(frozen=True)
class Extra:
    """An extra of this package. ``missing``: what of it is not installed, or too old; ``command`` gets it."""

    name: str
    missing: tuple[str, ...]
    command: str


def own_distribution() -> Distribution | None:
    """None where the package lies on the path and was not installed: it then has no plugins either."""
    try:
        return distribution(OWN_DISTRIBUTION)
    except PackageNotFoundError:
        return None


def requirements() -> Iterator[Finding]:
    """Whether what spec-sdk cannot do without is there, in the versions that it needs."""
    own = own_distribution()
    if own is None:
        yield Finding("installation", "spec-sdk is on the path, but not installed", "pip install -e . in its directory")
        return
    missing = missing_of(own, "")
    text = f"missing or too old: {', '.join(missing)}" if missing else "all that spec-sdk requires is there"
    yield Finding("installation", text, command_for(own, "") if missing else "")


def extras() -> list[Extra]:
    """All extras, in alphabetical order."""
    own = own_distribution()
    if own is None:
        return []
    names = sorted(own.metadata.get_all("Provides-Extra") or ())
    return [Extra(name, missing_of(own, name), command_for(own, name)) for name in names]


def missing_of(own: Distribution, extra: str, seen: Sequence[str] = ()) -> tuple[str, ...]:
    """What of an extra, or of none, is not installed or has another version than is required, each in a few words."""
    missing = []
    for text in own.requires or ():
        required = Requirement(text)
        if required.marker is not None and not required.marker.evaluate({"extra": extra}):
            continue
        # without an extra's name the marker of one that belongs to it does not hold
        if extra and (required.marker is None or required.marker.evaluate({"extra": ""})):
            continue
        if canonicalize_name(required.name) == OWN_DISTRIBUTION:
            others = [other for other in sorted(required.extras) if other not in seen]
            missing += [part for other in others for part in missing_of(own, other, (*seen, extra))]
            continue
        found = installed_version(required.name)
        if found is None:
            missing.append(f"{required.name}{required.specifier}")
        elif not required.specifier.contains(found, prereleases=True):
            missing.append(f"{required.name}{required.specifier} (there is {found})")
    return tuple(dict.fromkeys(missing))


def command_for(own: Distribution, extra: str) -> str:
    """The command that installs spec-sdk with an extra, from where it was installed."""
    chosen = f"[{extra}]" if extra else ""
    try:
        origin = json.loads(own.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    url = urlparse(str(origin.get("url", "")))
    if url.scheme != "file":
        return f"pip install 'spec-sdk{chosen}'"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{unquote(url.path)}{chosen}'"


def plugins(registry: Registry) -> Iterator[Finding]:
    """How many plugins every installed package brings."""
    packages: dict[str, int] = {}
    for kind in PLUGIN_KINDS:
        for offer in registry.offers(kind):
            name = f"{offer.package} {offer.version}".strip()
            packages[name] = packages.get(name, 0) + 1
    for name, count in packages.items():
        yield Finding(name, counted(count, "plugin"))
