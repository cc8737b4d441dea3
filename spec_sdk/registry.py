"""Who offers what: the plugins of all installed packages, by kind and name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

import pluggy

from spec_sdk import hookspecs
from spec_sdk.contracts import GUARANTEES, PLUGIN_KINDS, Drafter, Plugin, Verifier
from spec_sdk.errors import PluginFault, UserError, did_you_mean
from spec_sdk.installed import GROUP, Problem, conf_packages, distribution, entries, is_data
from spec_sdk.load_faults import check_hooks, load_fault, plugins_of
from spec_sdk.option_types import config_fault
from spec_sdk.options import describe_options, merge_options
from spec_sdk.registered import THIS_PROGRAM, note_registered

MADE_OF = {"drafter": ("config", "models"), "sampler": ("config", "params")}
"""What the classes of a kind are given when they are made; of other kinds their config alone."""
OFFERING = hookspecs.spec_sdk_plugins.__name__


@dataclasses.dataclass(frozen=True)
class Offer:
    """A plugin class and the package (name, version) it comes from."""

    plugin: type[Plugin]
    package: str
    version: str


class Registry:
    """The plugins to choose from. ``problems`` lists what was installed but left out, and why.

    ``hook`` is the pluggy relay on which :func:`spec_sdk.hookspecs.spec_sdk_event` is called.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._offers: dict[tuple[str, str], Offer] = {}
        self._left_out: dict[tuple[str, str], str] = {}
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self.hook = self._manager.hook

    @classmethod
    @functools.cache
    def discover(cls) -> Registry:
        """The registry of all installed packages, read once per process.

        A package that cannot be loaded becomes an entry of ``problems``, never an exception.
        """
        registry = cls()
        for entry in entries():
            if is_data(entry):
                continue
            package, version = distribution(entry)
            try:
                # what an import prints is no part of a command's output
                with contextlib.redirect_stdout(sys.stderr):
                    registry.register(entry.load(), package, version)
            except (Exception, SystemExit) as error:  # a third party's import may raise anything at all
                reason = load_fault(error, entry.value)
                registry.problems.append(Problem(package, f"plugin {entry.value!r} cannot be loaded: {reason}"))
        registry.problems += conf_packages()[1]
        return registry

    def register(self, source: Any, package: str = "", version: str = "") -> None:
        """Take in a plugin class, or a module or object with hook implementations.

        What is no valid plugin, or has a name that is taken, is left out and noted in ``problems``.
        """
        plugins: list[Any] = [source] if inspect.isclass(source) else self._call_hook(source)
        for plugin in plugins:
            fault = self._fault(plugin)
            if fault is not None:
                self.problems.append(Problem(package, f"plugin {getattr(plugin, '__qualname__', plugin)} {fault}"))
                kind, name = (str(getattr(plugin, key, None)) for key in ("kind", "name"))
                self._left_out[kind, name] = f"'{name}' of {package} could not be loaded: it {fault}"
                continue
            self._offer(plugin, package, version)

    def register_own(self, plugin: Any) -> None:
        """Take in a plugin class of the program itself, in the place of the one that it gave before by that name.

        Raises UserError for what is no valid plugin, or has a name that is taken; what was given before then stays.
        """
        before = dict(self._offers)
        name = getattr(plugin, "kind", None), getattr(plugin, "name", None)
        for key, offer in before.items():
            if offer.package == THIS_PROGRAM and (offer.plugin.kind, offer.plugin.name) == name:
                del self._offers[key]
        if fault := self._fault(plugin):
            self._offers = before
            raise UserError(f"register: {getattr(plugin, '__qualname__', repr(plugin))} {fault}")
        self._offer(plugin, THIS_PROGRAM, "")
        note_registered(plugin.name)

    def _offer(self, plugin: type[Plugin], package: str, version: str) -> None:
        for name in (plugin.name, *plugin.aliases):
            self._offers[plugin.kind, name] = Offer(plugin, package, version)

    def _call_hook(self, source: Any) -> list[Any]:
        check_hooks(self._manager, source)
        others = self._manager.get_plugins()
        self._manager.register(source)
        try:
            implemented = [caller.name for caller in self._manager.get_hookcallers(source) or ()]
            if not implemented:
                raise PluginFault("it implements no hook of spec_sdk.hookspecs and is no plugin class")
            if OFFERING not in implemented:
                return []
            # None is no result to pluggy
            [offered] = self._manager.subset_hook_caller(OFFERING, others)() or [None]
            return plugins_of(offered, source)
        except BaseException:
            self._manager.unregister(source)
            raise

    def _fault(self, plugin: Any) -> str | None:
        if not (inspect.isclass(plugin) and issubclass(plugin, Plugin)):
            return "is not a subclass of spec_sdk.contracts.Plugin"
        base = PLUGIN_KINDS.get(getattr(plugin, "kind", ""))
        if base is None or not issubclass(plugin, base):
            return f"is of no known kind; the kinds are {', '.join(PLUGIN_KINDS)}"
        if inspect.isabstract(plugin):
            return f"is abstract, it lacks {', '.join(sorted(getattr(plugin, '__abstractmethods__', ())))}"
        if issubclass(plugin, Drafter) and not plugin.proposes():
            return "is abstract, it lacks propose_one (or propose)"
        if not isinstance(getattr(plugin, "name", None), str):
            return "has no name"
        guarantee = getattr(plugin, "guarantee", None)
        if isinstance(guarantee, str) and guarantee not in GUARANTEES:
            return f"has the guarantee {guarantee!r}, which is none of {', '.join(GUARANTEES)}"
        if guarantee is None and issubclass(plugin, Verifier) and plugin.guarantee_under is Verifier.guarantee_under:
            return f"has no guarantee, which is one of {', '.join(GUARANTEES)}"
        if not dataclasses.is_dataclass(plugin.Config):
            return "has a Config that is not a dataclass"
        required = [f.name for f in dataclasses.fields(plugin.Config) if not _has_default(f)]
        if required:
            return f"has a Config without a default for {', '.join(required)}"
        if fault := config_fault(plugin.Config) or _making_fault(plugin):
            return fault
        for name in (plugin.name, *plugin.aliases):
            taken = self._offers.get((plugin.kind, name))
            if taken is not None and taken.plugin is not plugin:
                return f"is ignored: {taken.package} has a {plugin.kind} '{name}' too"
        return None

    def names(self, kind: str) -> list[str]:
        """Names and aliases of all plugins of ``kind``, sorted."""
        return sorted(name for of_kind, name in self._offers if of_kind == kind)

    def offers(self, kind: str) -> list[Offer]:
        """The plugins of ``kind``, each once, in the order in which they were taken in."""
        return list({offer.plugin: offer for (of_kind, _), offer in self._offers.items() if of_kind == kind}.values())

    def offer(self, kind: str, name: str) -> Offer:
        """The plugin called ``name`` (or an alias) and its package. Raises UserError with the nearest name."""
        known = self.names(kind)
        if name not in known:
            raise UserError(f"{kind}: {self.unknown(name, known, kind)}")
        return self._offers[kind, name]

    def unknown(self, name: str, known: Collection[str], *kinds: str) -> str:
        """What to say of a ``name`` that no plugin of these kinds has: why the one that has it was left out, or the
        nearest of ``known``, and the packages of which some were left out.
        """
        for kind in kinds:
            if (kind, name) in self._left_out:
                return self._left_out[kind, name]
        what = kinds[0] if len(kinds) == 1 else "plugin"
        hint = did_you_mean(name, known) or "; none is installed (is spec-sdk installed, not only on the path?)"
        packages = sorted({problem.package for problem in self.problems})
        broken = f" (some plugins of {', '.join(packages)} could not be loaded: see task=plugins)" if packages else ""
        return f"unknown {what} '{name}'{hint}{broken}"

    def get(self, kind: str, name: str) -> type[Plugin]:
        """The plugin class called ``name`` (or an alias). Raises UserError with the nearest name."""
        return self.offer(kind, name).plugin

    def configure(self, kind: str, node: Mapping[str, Any]) -> tuple[type[Plugin], Any]:
        """The class that ``node`` (``{name: …, option: value, …}``) chooses, and its typed config.

        A plugin's parts (:attr:`Plugin.parts`) are made of the options that are theirs, and take the place of their
        names in the config. Options of parts that were not chosen are passed over. Raises UserError for a missing or
        unknown name, an unknown option or a wrong type, and for a part with an option of a name that is given away.
        """
        name = node.get("name")
        if not isinstance(name, str):
            raise UserError(f"{kind}.name: {name!r} is not the name of a {kind}{did_you_mean('', self.names(kind))}")
        plugin = self.get(kind, name)
        own = {field.name for field in dataclasses.fields(plugin.Config)}
        elsewhere = self._options_of_parts(plugin) - own
        options = {key: value for key, value in node.items() if key != "name" and key not in elsewhere}
        config = merge_options(plugin.Config, options, kind, f"{kind} '{name}'", elsewhere)
        whose = dict.fromkeys(own, f"{kind} '{name}'")
        for option, part_kind in plugin.parts.items():
            chosen = getattr(config, option)
            if not isinstance(chosen, str):
                raise UserError(f"{kind}.{option}: {chosen!r} is not the name of a {part_kind}")
            try:
                part: Any = self.get(part_kind, chosen)
            except UserError as error:
                raise UserError(f"{kind}.{option}: {str(error).partition(': ')[2]}") from error
            theirs = [field.name for field in dataclasses.fields(part.Config)]
            if twice := next((field for field in theirs if field in whose), None):
                raise UserError(
                    f"{kind}.{option}: {part_kind} '{chosen}' does not go with {whose[twice]}: both have an option "
                    f"'{twice}', which one of them must call otherwise"
                )
            whose.update(dict.fromkeys(theirs, f"{part_kind} '{chosen}'"))
            values = {key: value for key, value in node.items() if key in theirs}
            setattr(config, option, part(merge_options(part.Config, values, kind, f"{part_kind} '{chosen}'")))
        return plugin, config

    def part(self, kind: str, chosen: Any) -> Any:
        """A plugin's part: what its config has, or, of a name alone, that plugin with its defaults."""
        if not isinstance(chosen, str):
            return chosen
        plugin: Any = self.get(kind, chosen)
        return plugin(plugin.Config())

    def _options_of_parts(self, plugin: type[Plugin]) -> set[str]:
        """The options of all plugins that could be one of its parts."""
        kinds = set(plugin.parts.values())
        offered = [offer.plugin for (kind, _), offer in self._offers.items() if kind in kinds]
        return {field.name for part in offered for field in dataclasses.fields(part.Config)}

    def listing(self) -> list[dict[str, Any]]:
        """All plugins, by kind and name, as plain data: what ``task=plugins`` prints.

        ``parts``: options that choose plugins of other kinds, whose options stand beside its own.
        """
        offers = {(o.plugin.kind, o.plugin.name): o for o in self._offers.values()}
        kinds = list(PLUGIN_KINDS)
        return [_describe(offers[key]) for key in sorted(offers, key=lambda key: (kinds.index(key[0]), key[1]))]


def _making_fault(plugin: type[Plugin]) -> str | None:
    """Why a class cannot be made of what it is given."""
    given = MADE_OF.get(plugin.kind, ("config",))
    try:
        inspect.signature(plugin).bind(*given)
    except TypeError as error:
        return f"has an __init__ that takes no {' and '.join(given)}: {error}"
    return None


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def summary_of(plugin: type[Plugin]) -> str:
    """The first line of a plugin's docstring, without the marks of reStructuredText; empty for one that has none."""
    text = inspect.getdoc(plugin) or ""
    # a contract's own would be inherited, and tells an author what to write
    line = "" if text == inspect.getdoc(PLUGIN_KINDS[plugin.kind]) else text.split("\n")[0]
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`|``([^`]*)``", lambda match: match[1] or match[2], line)


def _describe(offer: Offer) -> dict[str, Any]:
    plugin = offer.plugin
    return {
        "kind": plugin.kind,
        "name": plugin.name,
        "aliases": list(plugin.aliases),
        "package": offer.package,
        "version": offer.version,
        "guarantee": getattr(plugin, "guarantee", None),
        "summary": summary_of(plugin),
        "options": describe_options(plugin.Config),
        "parts": dict(plugin.parts),
    }
