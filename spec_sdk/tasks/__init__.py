"""What ``task=…`` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl

if TYPE_CHECKING:
    from spec_sdk.kept_files import KeptFiles


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk.tasks.accuracy import CompareAccuracy
    from spec_sdk.tasks.advise import Advise
    from spec_sdk.tasks.bench import Bench
    from spec_sdk.tasks.cache import ShowCache
    from spec_sdk.tasks.check import CheckPlugin
    from spec_sdk.tasks.convert_draft_head import ConvertDraftHead
    from spec_sdk.tasks.cost_curve import ShowCostCurve
    from spec_sdk.tasks.doctor import Doctor
    from spec_sdk.tasks.estimate import EstimateLatency
    from spec_sdk.tasks.eval import Evaluate
    from spec_sdk.tasks.export import Export
    from spec_sdk.tasks.generate import Generate
    from spec_sdk.tasks.needle import FindNeedles
    from spec_sdk.tasks.plugins import ListPlugins
    from spec_sdk.tasks.report import Report
    from spec_sdk.tasks.serve import Serve
    from spec_sdk.tasks.show_tree import ShowTree
    from spec_sdk.tasks.train_draft import TrainDraft
    from spec_sdk.tasks.transcribe import Transcribe
    from spec_sdk.tasks.tune_layers import TuneLayers
    from spec_sdk.tasks.watch import Watch

    return [
        Advise,
        Bench,
        CheckPlugin,
        CompareAccuracy,
        ConvertDraftHead,
        Doctor,
        EstimateLatency,
        Evaluate,
        Export,
        FindNeedles,
        Generate,
        ListPlugins,
        Report,
        Serve,
        ShowCache,
        ShowCostCurve,
        ShowTree,
        TrainDraft,
        Transcribe,
        TuneLayers,
        Watch,
    ]


@hookimpl
def spec_sdk_kept_files() -> Iterable[KeptFiles]:
    from spec_sdk.tasks.cache import OWN

    return OWN
