"""``task=doctor``: what is on this machine, what is missing or in the way, and whether kernels compute what they
should.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from spec_sdk.contracts import Task
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.contracts import Backend, SelfTest
    from spec_sdk.diagnosis.report import Report


class Doctor(Task):
    """Looks at the machine and what is installed on it, and tests the kernels of all backends: for bug reports too."""

    name = "doctor"

    def run(self, app: Settings) -> int:
        """A report goes to stdout, as JSON with ``json=true``.

        Returns 1 if an operation is wrong or an installed plugin cannot be loaded, else 0: a missing GPU, compiler or
        network is no fault.
        """
        from spec_sdk.diagnosis.report import Report, show, summary

        registry, report = Registry.discover(), Report()
        _look(report, registry, app)
        _test(report, registry, app)
        if app.json:
            print(json.dumps(report.as_data(), indent=2, ensure_ascii=False))
        else:
            show(report, sys.stdout)
        print(summary(report), file=sys.stderr)
        return 0 if report.healthy else 1


def _look(report: Report, registry: Registry, app: Settings) -> None:
    from spec_sdk.diagnosis import machine, packages, places

    report.look("versions", machine.versions)
    report.look("versions", packages.requirements)
    report.look("machine", machine.machine)
    report.look("places", lambda: places.cache(registry))
    report.look("places", places.outputs)
    report.look("places", places.hub)
    report.look("places", lambda: places.target(app.model.target))
    report.look("plugins", lambda: packages.plugins(registry))
    report.problems = registry.problems
    report.extras = packages.extras()


def _test(report: Report, registry: Registry, app: Settings) -> None:
    from spec_sdk.diagnosis.report import TestedOps
    from spec_sdk.diagnosis.self_tests import reference_tests

    report.tested.append(TestedOps.of("the reference", reference_tests()))
    for name, make in _backends(registry, app):
        # made first: a backend sets the number of threads, which is looked at
        report.tested.append(TestedOps.of(f"backend={name}", _tests(make)))
        plugin: Any = registry.get("backend", name)
        report.look(f"backend={name}", plugin.diagnose)


def _tests(make: Callable[[], Backend]) -> Iterator[SelfTest]:
    from spec_sdk.diagnosis.self_tests import backend_tests

    yield from backend_tests(make())


def _backends(registry: Registry, app: Settings) -> Iterator[tuple[str, Callable[[], Backend]]]:
    """All backends, that of the run first and with its options."""
    chosen = registry.get("backend", str(app.backend.get("name"))).name
    others = [offer.plugin.name for offer in registry.offers("backend") if offer.plugin.name != chosen]
    for name in (chosen, *others):
        make: Any
        make, config = registry.configure("backend", app.backend if name == chosen else {"name": name})
        yield name, functools.partial(make, config)
