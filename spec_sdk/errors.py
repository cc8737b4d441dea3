"""The exceptions that are told in a single clear line: what the user can fix (exit status 2), a plugin's fault (1), a
lost process (3)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Given = TypeVar("Given")
Raised = TypeVar("Raised", bound=BaseException)


class OneLineError(Exception):
    """Its message is one line that says all; no type needs to stand before it."""


class UserError(OneLineError):
    """Something the user gave is wrong. The message is one line: what was wrong, where, the nearest valid value.

    The command line prints it as ``error: …`` without a traceback and exits with status 2.
    """


class ConstraintLimit(UserError):
    """An answer that its constraint cannot be followed in any further: a limit of its parser is reached, or the model
    lacks a token. It ends its own request and no other; ``request``: that one's number, where it is known.
    """

    request: int | None = None


class RankLost(OneLineError):
    """Another process of a run on several ended, or did not answer in time. One line says what is known of it."""


class EndedElsewhere(OneLineError):
    """Another process of a run on several ended it, and says why. ``status``: the run's."""

    def __init__(self, status: int) -> None:
        super().__init__("another process of this run ended it")
        self.status = status


class PluginFault(OneLineError, ValueError):
    """What a plugin returned cannot be used. One line names the plugin and what it was."""


class WrongDraw(PluginFault):
    """A draw that cannot have been made as its drafter says: of ``token``, from a distribution that is so."""

    def __init__(self, node: int, drafter: str, token: int, distribution: str) -> None:
        super().__init__(
            f"tree node {node}: drafter {drafter!r} says that it drew token {token} from a distribution {distribution}"
        )
        self._node, self._drafter, self._token, self._distribution = node, drafter, token, distribution

    def by(self, drafter: str) -> WrongDraw:
        """The same of a draw whose tree does not say by whom it is."""
        return self if self._drafter else WrongDraw(self._node, drafter, self._token, self._distribution)


class RequestError(Exception):
    """An error of one request out of several: ``request`` is its id, the cause is what went wrong.

    A plugin that is called for several requests at once raises it for the one that fails; the others go on.
    """

    def __init__(self, request: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.request = request
        self.__cause__ = cause


def of_request(request: int, act: Callable[..., Given], *given: Any) -> Given:
    """What ``act(*given)`` returns. Raises RequestError, which names the request, for whatever it raises."""
    try:
        return act(*given)
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(request, error) from error


def cause_of(error: Raised) -> Raised | Exception:
    """What went wrong: the cause of a RequestError, any other error itself."""
    if isinstance(error, RequestError) and isinstance(error.__cause__, Exception):
        return error.__cause__
    return error


class CallOf:
    """Entered around a call of a plugin: what its code raises has a note that names the plugin, below its traceback."""

    __slots__ = ("_kind", "_name")

    def __init__(self, kind: str, name: str) -> None:
        self._kind, self._name = kind, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self.note(error)

    def note(self, error: Exception) -> None:
        """Note it on an error, or on its cause, unless its line says all or it names a plugin already."""
        raised = cause_of(error)
        if not isinstance(raised, OneLineError) and not getattr(raised, "__notes__", None):
            raised.add_note(f"in {self._kind} {self._name!r}")


class UnusableLogits(ValueError):
    """Logits that give no distribution: NaN, +inf, or -inf for every token. ``row`` is the row they stand in."""

    def __init__(self, row: int, where: str = "") -> None:
        super().__init__(f"{where}row {row} of the logits is NaN, infinite, or -inf for every token")
        self.row = row


def message_of(error: BaseException) -> str:
    """The message of an error in one line; the error's type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the error's type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def in_a_line(error: BaseException) -> str:
    """An error in one line: its message, and before it the type of one that is not made for people."""
    message, kind = message_of(error), type(error).__name__
    return message if isinstance(error, OneLineError) or message == kind else f"{kind}: {message}"


def did_you_mean(given: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return ``", did you mean 'x'?"`` for the nearest of ``known``, else a list of what exists ("" if nothing).

    ``cutoff``: how near it must be, from 0 to 1.
    """
    names = sorted(set(known))
    # what stands before the last dot is common to all, and says nothing
    group = given[: given.rfind(".") + 1]
    common = len(group) if all(name.startswith(group) for name in names) else 0
    ends = {name[common:]: name for name in names}
    own = given[common:]
    # an abbreviation is no near match of a long name
    begun = [end for end in ends if len(own) > 1 and end.startswith(own)]
    near = begun if len(begun) == 1 else difflib.get_close_matches(own, ends, n=1, cutoff=cutoff)
    if near:
        return f", did you mean '{ends[near[0]]}'?"
    return f"; there are: {', '.join(names)}" if names else ""
