"""Events: what a run tells of itself. All metrics are computed from them.

Every event is a flat dict with ``event`` and, but for the last kind, ``request`` (the index of the prompt):

``request_start``  ``prompt_tokens``
``prefill``        ``seconds``; ``drafter_s``: those of them that the drafter took, null if it was not started yet;
                   ``tokens`` (the prompt's, without the pending one), ``draft`` (the draft model's label, or null);
                   of an encoder–decoder model also ``encoder_s``, those of the seconds that the target's encoder took;
                   where the slot's cache had the prompt's first tokens, ``kept``: how many were not fed;
                   ``logprobs``, only where a request of the token engine asks for the prompt's: of each of its tokens
                   but the first, as in ``cycle``; no file and no observer gets them
``cycle``          ``step`` (from 1), ``prefix`` (committed tokens in the target's cache), ``budget`` (depth asked for;
                   0 is a plain step), ``draft_s``, ``verify_s``, ``recover_s`` (seconds), ``verdict_s`` (those of
                   ``verify_s`` that came after the target's pass: the repetition penalty, and the verifier with its
                   sampler), ``tree_nodes``, ``drafted`` (depth of the tree), ``accepted`` (drafted tokens kept),
                   ``level_sizes`` (nodes of each level of the tree below its root), ``accepted_ranks`` (of each
                   drafted token kept, its node's rank in its level, from 1: spec_sdk/level_ranks.py), ``tokens`` (ids
                   emitted), ``host_reads`` (times that the step waited for values of the device, for
                   all requests that it served), ``attention``: null, or what the attention level did:
                   per layer ``hit``, ``error`` (relative, of the pass's worst row) and ``difference`` (‖Â − A‖ of the
                   worst row), where null is a layer that made no prediction; ``row_error``, per layer one error per
                   node of the tree, null for a tree of one; ``space`` (heads or residual: where errors are measured);
                   where ``error_bounds`` are asked for, ``state_norm`` (the largest norm of a hidden state entering
                   each layer, and leaving the last), and in a request's first guess ``constants``, per layer.
                   ``parts``, only of a drafter that tells of its parts: name → [nodes of the tree that it proposed,
                   those that were accepted]; and ``accepted_parts``, of each drafted token kept: who proposed it.
                   ``constraint``, only of a constrained answer: ``seconds`` (of the host, within those of draft and
                   verify), ``pruned`` (drafted nodes that were taken out), ``taken`` (forced tokens among ``tokens``
                   that were neither drafted nor verified; the first of them, but for those that end an answer),
                   ``added`` (forced tokens that were added behind a draft) and ``added_accepted``. ``tree_nodes``
                   counts rows of taken and added ones, ``drafted`` and what follows it only the drafter's own;
                   ``logprobs``, only where a request asks for them: of each token, [id, log-probability, [[id,
                   log-probability] of the likeliest …]]. ``trace``, only where a request of the token engine asks:
                   the tree, node by node (spec_sdk/engine/step_trace.py); no file and no observer gets it
``request_end``    ``finish_reason``: ``stop``, ``length``, ``interrupted`` (also: cancelled) or ``error``
``follower``       of several processes, once for each rank but the leader, behind the last request and without
                   ``request``: ``rank`` and ``calls``, each prompt's last 65,536: name, begin (seconds since the epoch,
                   by its own clock) and seconds (of the host) of each call that it made with the leader

In ``events.jsonl`` each line has also ``pipeline`` and ``timestamp`` (UTC). With ``compare=true`` each
prompt's events of the pipeline stand before those of plain decoding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import structlog

Event = dict[str, Any]
_FINITE = frozenset({int, str, bool, type(None)})


class EventLog:
    """Passes every event on to a file of JSON lines, to memory (``events``) and to the observers of plugin packages.

    ``observe`` is called as ``observe(event=…)`` (:func:`spec_sdk.hookspecs.spec_sdk_event`).
    """

    def __init__(self, pipeline: str, file: TextIO | None = None, observe: Callable[..., Any] | None = None) -> None:
        self.events: list[Event] = []
        self._by_request: dict[Any, list[Event]] = {}
        self._pipeline = pipeline
        self._observe = observe
        self._logger: Any = None
        if file is not None:
            self._logger = structlog.wrap_logger(
                structlog.WriteLogger(file),
                processors=[
                    structlog.processors.TimeStamper(fmt="iso", utc=True),
                    structlog.processors.JSONRenderer(serializer=_as_json),
                ],
                wrapper_class=structlog.BoundLogger,
            ).bind(pipeline=pipeline)

    def emit(self, event: Mapping[str, Any]) -> None:
        """Record ``event``. A NaN or an infinity in it becomes null, since JSON knows neither."""
        kept = {key: finite(value) for key, value in event.items()}
        self.events.append(kept)
        self._by_request.setdefault(kept.get("request"), []).append(kept)
        if self._logger is not None:
            self._logger.info(kept["event"], **{key: value for key, value in kept.items() if key != "event"})
        if self._observe is not None:
            self._observe(event={"pipeline": self._pipeline, **kept})

    def of_request(self, request: int) -> list[Event]:
        """The events of one request so far, in order."""
        return list(self._by_request.get(request, ()))


def finite(value: Any) -> Any:
    """``value`` with every NaN and infinity in it replaced by None."""
    # nearly all are of these very types, and every step of every request has dozens
    if type(value) in _FINITE:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _as_json(event: Any, **options: Any) -> str:
    return json.dumps(event, allow_nan=False, **options)
