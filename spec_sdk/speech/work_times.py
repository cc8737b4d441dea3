"""What the work of a transcription consists of, from its events."""

from __future__ import annotations

from collections.abc import Iterable

from spec_sdk.events import Event

PARTS = ("encoder_s", "prompt_s", "draft_s", "target_s", "sampling_s", "recover_s")


def work_times(events: Iterable[Event]) -> dict[str, float]:
    """Seconds by part, which add up to prefill and decoding.

    ``encoder_s``: the target's encoder, and K and V of its states. ``prompt_s``: the rest of prefill; a draft model's
    prompt is part of it, and the encoder of one that has its own. ``draft_s``: drafting. ``target_s``: the target's
    passes. ``sampling_s``: from their logits to tokens: suppressed tokens, probabilities, acceptance, draws.
    ``recover_s``: keeping what was accepted.
    """
    times = dict.fromkeys(PARTS, 0.0)
    for event in events:
        if event["event"] == "prefill":
            encoder = event.get("encoder_s") or 0.0
            times["encoder_s"] += encoder
            times["prompt_s"] += event["seconds"] - encoder
        elif event["event"] == "cycle":
            times["draft_s"] += event["draft_s"]
            times["target_s"] += event["verify_s"] - event["verdict_s"]
            times["sampling_s"] += event["verdict_s"]
            times["recover_s"] += event["recover_s"]
    return times
