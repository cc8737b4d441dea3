"""A ``cycle`` event whose last tokens a stop string cut off."""

from __future__ import annotations

from spec_sdk.events import Event
from spec_sdk.policy.forced_token_costs import ForcedTokens


def cut_cycle(event: Event, kept: int) -> Event:
    """``event`` (spec_sdk/events.py) as if it had emitted its first ``kept`` tokens alone; at least one.

    Forced tokens that were taken come first, then the tree's, drafted before added ones, the bonus or correction token,
    and forced tokens that end the answer.
    """
    tokens = event["tokens"]
    if kept == len(tokens):
        return event
    taken = ForcedTokens.of(event).taken
    of_tree = max(0, kept - taken)
    accepted = min(event["accepted"], of_tree)
    cut = event | {
        "tokens": tokens[:kept],
        "accepted": accepted,
        "accepted_ranks": event["accepted_ranks"][:accepted],
    }
    if "logprobs" in event:
        cut["logprobs"] = event["logprobs"][:kept]
    if "parts" in event:
        parts_of_accepted = event["accepted_parts"][:accepted]
        cut["accepted_parts"] = parts_of_accepted
        cut["parts"] = {
            part: [proposed, sum(part in own for own in parts_of_accepted)]
            for part, (proposed, _) in event["parts"].items()
        }
    if "constraint" in event:
        told = event["constraint"]
        ending = told["taken"] - taken
        cut["constraint"] = told | {
            "taken": min(taken, kept) + max(0, ending - (len(tokens) - kept)),
            "added_accepted": min(told["added_accepted"], max(0, of_tree - event["accepted"])),
        }
    return cut
