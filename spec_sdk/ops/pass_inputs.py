"""One forward pass as a value: what a model is fed, where it goes in the cache, and who sees whom.

A pass serves B requests at once. Request b has ``prefix_b`` committed tokens, whose keys all of its rows see, and after
them the slots of a token tree (or of a causal chain, which is a tree without branches). The key in tree slot ``s`` is
visible to a row with pre-order number ``x`` iff ``key_start[s] <= x < key_end[s]`` (FlashSpecInfer's interval mask). In
a closed tree a slot's start is its own index; while a tree grows, older slots that are not queried change their
intervals, so keys have starts and ends of their own.

Legend: B requests, N rows of a request, T tree slots of a request, M width of what a drafter feeds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.uploads import to_device, upload

PassKind = Literal["chain", "tree", "growing"]
"""``chain``: a causal chain. ``tree``: closed trees in pre-order. ``growing``: slots in creation order."""


PARTS_OF_FLAT = (
    *("token_BN", "position_BN", "query_start_BN"),
    *("key_start_BT", "key_end_BT", "key_position_BT"),
    *("slot_B", "prefix_B", "write_at_B", "live_B"),
)
"""The tensors of :class:`PassInputs`, in the order in which they lie in one."""


@dataclass(frozen=True)
class RequestRows:
    """One request's part of a pass, before padding: host integers.

    ``slot`` of the cache; ``prefix`` committed tokens; ``write_at``: the cache column of the first row; token, absolute
    position and pre-order number per row; first and last-but-one pre-order number that sees it, and absolute position,
    per tree slot, of which the last ones are this pass's rows. No row's position lies before ``prefix``.
    """

    slot: int
    prefix: int
    write_at: int
    token: Sequence[int]
    position: Sequence[int]
    query_start: Sequence[int]
    key_start: Sequence[int]
    key_end: Sequence[int]
    key_position: Sequence[int]

    @staticmethod
    def chain(slot: int, prefix: int, tokens: Sequence[int]) -> RequestRows:
        """``tokens`` in order after the prefix, each of which sees those before it."""
        count = len(tokens)
        order, position = range(count), range(prefix, prefix + count)
        return RequestRows(slot, prefix, prefix, tokens, position, order, order, [count] * count, position)

    @staticmethod
    def tree(
        slot: int, prefix: int, token_N: Sequence[int], depth_N: Sequence[int], end_N: Sequence[int]
    ) -> RequestRows:
        """A closed tree in pre-order, whose root comes right after the prefix."""
        order = range(len(token_N))
        position = [prefix + depth for depth in depth_N]
        return RequestRows(slot, prefix, prefix, token_N, position, order, order, end_N, position)

    @staticmethod
    def growing(
        slot: int,
        prefix: int,
        token_N: Sequence[int],
        depth_N: Sequence[int],
        start_N: Sequence[int],
        end_N: Sequence[int],
        new: int,
        root_committed: bool = True,
    ) -> RequestRows:
        """The ``new`` youngest nodes of a tree in creation order.

        The root is the last committed token, and node i lies in row ``i - 1`` after the prefix; or, where it is not
        committed, the root comes after the prefix, and node i lies in row i. Earlier nodes must have been fed in order.
        """
        first = 1 if root_committed else 0
        position = [prefix - first + depth for depth in depth_N[first:]]
        return RequestRows(
            slot=slot,
            prefix=prefix,
            write_at=prefix + len(position) - new,
            token=token_N[-new:],
            position=position[-new:],
            query_start=start_N[-new:],
            key_start=start_N[first:],
            key_end=end_N[first:],
            key_position=position,
        )


@dataclass(frozen=True)
class PassInputs:
    """The inputs of one pass over B requests of N rows, padded; int32 tensors on the executor's device.

    ``token_BN``, ``position_BN``: what is fed, and its absolute position. ``slot_B``: the cache slot of each request,
    ``prefix_B``: its committed tokens, ``write_at_B``: the cache column of its first row; row i goes to the i-th column
    after. ``query_start_BN``, ``key_start_BT``, ``key_end_BT``: who sees whom, see above; ``key_position_BT``: where in
    the text each tree slot is, for layers with a window. ``live_B``: rows that are no padding; tree slots that are none
    are ``write_at + live - prefix``. Padded rows see the prefix at most, padded slots are seen by nobody.
    ``features_BNM``: what a drafter feeds besides tokens, such as a target's hidden states.
    Where all integers are parts of one tensor (:attr:`flat`), the parts are made when the first is asked for: a kernel
    that reads that tensor needs none of them.
    """

    kind: PassKind
    token_BN: torch.Tensor
    position_BN: torch.Tensor
    slot_B: torch.Tensor
    prefix_B: torch.Tensor
    write_at_B: torch.Tensor
    query_start_BN: torch.Tensor
    key_start_BT: torch.Tensor
    key_end_BT: torch.Tensor
    key_position_BT: torch.Tensor
    live_B: torch.Tensor
    features_BNM: torch.Tensor | None = None
    _known: tuple[tuple[int, int, int, int], ...] | None = field(default=None, repr=False, compare=False)
    _columns: int | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of(
        kind: PassKind,
        requests: Sequence[RequestRows],
        device: torch.device,
        rows: int = 0,
        slots: int = 0,
        features_BNM: torch.Tensor | None = None,
    ) -> PassInputs:
        """The inputs of these requests, padded to at least ``rows`` rows and ``slots`` tree slots each.

        Everything travels to the device as one tensor, once it is needed there.
        """
        B = len(requests)
        N = max(rows, *(len(request.token) for request in requests))
        T = max(slots, *(len(request.key_end) for request in requests))
        numbers: list[int] = []
        for r in requests:
            numbers += r.token
            numbers += [0] * (N - len(r.token))
        for r in requests:
            numbers += r.position
            numbers += [r.prefix] * (N - len(r.position))
        for r in requests:
            numbers += r.query_start
            # no slot's interval holds -1, so that padding sees the prefix alone
            numbers += [-1] * (N - len(r.query_start))
        for part in ("key_start", "key_end", "key_position"):
            for r in requests:
                numbers += getattr(r, part)
                numbers += [0] * (T - len(r.key_end))
        known = tuple((r.slot, r.prefix, r.write_at, len(r.token)) for r in requests)
        for column in zip(*known, strict=True):
            numbers += column
        # an array takes a whole list in half the time that it takes its parts in
        held = torch.frombuffer(array("i", numbers), dtype=torch.int32)
        return PassInputs._laid_out(
            kind=kind, sizes=(B, N, T), features_BNM=features_BNM, _known=known, _numbers=held, _device=device
        )

    @staticmethod
    def over(
        flat: torch.Tensor,
        kind: PassKind,
        B: int,
        N: int,
        T: int,
        columns: int | None = None,
        known: tuple[tuple[int, int, int, int], ...] | None = None,
        features_BNM: torch.Tensor | None = None,
    ) -> PassInputs:
        """The inputs whose integers lie in ``flat``, as :meth:`of` laid them out: whoever writes there changes them.

        ``columns`` may be promised with them, as many or more than any request sees.
        """
        return PassInputs._laid_out(
            kind=kind, sizes=(B, N, T), features_BNM=features_BNM, _known=known, _columns=columns, flat=flat
        )

    @staticmethod
    def _laid_out(**held: Any) -> PassInputs:
        """Without the parts of one tensor."""
        made = object.__new__(PassInputs)
        made.__dict__.update(held)
        return made

    def __getattr__(self, name: str) -> Any:
        """The parts of :attr:`flat`, of which none was asked for yet."""
        if name not in PARTS_OF_FLAT or not self.is_flat:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        flat, (B, N, T) = self.flat, self.sizes
        assert flat is not None
        by_row, by_slot = flat[: 3 * B * N].view(3, B, N), flat[3 * B * N : -4 * B].view(3, B, T)
        parts = *by_row.unbind(), *by_slot.unbind(), *flat[-4 * B :].view(4, B).unbind()
        self.__dict__.update(zip(PARTS_OF_FLAT, parts, strict=True))
        return self.__dict__[name]

    @cached_property
    def flat(self) -> torch.Tensor | None:
        """The one tensor that all the integers are parts of, on the device; None: a copy with other ones has none."""
        numbers = self.__dict__.get("_numbers")
        return None if numbers is None else to_device(numbers, self.__dict__["_device"])

    @property
    def is_flat(self) -> bool:
        """Whether all integers are parts of one tensor."""
        return "_numbers" in self.__dict__ or self.__dict__.get("flat") is not None

    def put_into(self, place_I: torch.Tensor) -> None:
        """Write the integers of :attr:`flat` to ``place_I``, on a device that they need not have been brought to."""
        if "flat" in self.__dict__:
            place_I.copy_(self.__dict__["flat"], non_blocking=True)
        else:
            upload(self.__dict__["_numbers"], place_I)

    def with_features(self, features_BNM: torch.Tensor | None) -> PassInputs:
        """The same pass, with these features in the place of its own."""
        return PassInputs._laid_out(**{**self.__dict__, "features_BNM": features_BNM})

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """B, N and T, padding included."""
        return *self.token_BN.shape, self.key_end_BT.shape[1]

    def request(self, index: int) -> PassInputs:
        """The pass of one of the requests alone, without padding."""
        if self.batch == 1 and self.parts[0].live == self.width:
            return self
        own, part = slice(index, index + 1), self.parts[index]
        rows, slots = slice(part.live), slice(part.slots)
        return PassInputs(
            kind=self.kind,
            token_BN=self.token_BN[own, rows],
            position_BN=self.position_BN[own, rows],
            slot_B=self.slot_B[own],
            prefix_B=self.prefix_B[own],
            write_at_B=self.write_at_B[own],
            query_start_BN=self.query_start_BN[own, rows],
            key_start_BT=self.key_start_BT[own, slots],
            key_end_BT=self.key_end_BT[own, slots],
            key_position_BT=self.key_position_BT[own, slots],
            live_B=self.live_B[own],
            features_BNM=None if self.features_BNM is None else self.features_BNM[own, rows],
            _known=((part.slot, part.mask.prefix, part.write_at, part.live),),
        )

    def part(self, requests: slice, rows: slice) -> PassInputs:
        """The pass of some rows of some requests; both slices have a start, and a stop inside the pass.

        A node's ancestors are fed before it, in this pass or an earlier one, so a pass may be run in parts, rows in
        order: a part's rows see no tree slot behind their own. Earlier rows of a chain count as prefix.
        """
        known, prefix_B, slots = None, self.prefix_B[requests], slice(None)
        if self.kind == "chain":
            prefix_B, slots = prefix_B + rows.start, rows
        live_B = (self.live_B[requests] - rows.start).clamp(0, rows.stop - rows.start)
        if self._known is not None:
            known = tuple(
                (
                    slot,
                    prefix + rows.start if self.kind == "chain" else prefix,
                    write_at + rows.start,
                    min(max(live - rows.start, 0), rows.stop - rows.start),
                )
                for slot, prefix, write_at, live in self._known[requests]
            )
        return PassInputs(
            kind="growing",
            token_BN=self.token_BN[requests, rows],
            position_BN=self.position_BN[requests, rows],
            slot_B=self.slot_B[requests],
            prefix_B=prefix_B,
            write_at_B=self.write_at_B[requests] + rows.start,
            query_start_BN=self.query_start_BN[requests, rows],
            key_start_BT=self.key_start_BT[requests, slots],
            key_end_BT=self.key_end_BT[requests, slots],
            key_position_BT=self.key_position_BT[requests, slots],
            live_B=live_B,
            features_BNM=None if self.features_BNM is None else self.features_BNM[requests, rows],
            _known=known,
        )

    @property
    def batch(self) -> int:
        """Number of requests B."""
        return self.sizes[0]

    @property
    def width(self) -> int:
        """Rows N of every request, padding included."""
        return self.sizes[1]

    @property
    def slots(self) -> int:
        """Tree slots T of every request, padding included."""
        return self.sizes[2]

    @property
    def first_chunk(self) -> bool:
        """Whether these are chains of which the host knows that none has a prefix, such as prompts' first chunks."""
        return self.kind == "chain" and self._known is not None and not any(prefix for _, prefix, _, _ in self._known)

    @property
    def columns(self) -> int | None:
        """Most cache columns that a request's rows see, by which a kernel may share out its work; None: not known."""
        if self._known is None:
            return self._columns
        return max(write_at + live for _, _, write_at, live in self._known)

    @property
    def host_knows(self) -> bool:
        """Whether the host knows slots and lengths, so that :attr:`parts` waits for nothing."""
        return self._known is not None

    @cached_property
    def parts(self) -> tuple[PassPart, ...]:
        """Every request's part without its padding, as host integers, for operations that take one request after the
        other; a kernel reads the tensors. Waits for the device unless the inputs were made of host integers.
        """
        numbers: Sequence[Sequence[int]] | None = self._known
        if numbers is None:
            numbers = torch.stack((self.slot_B, self.prefix_B, self.write_at_B, self.live_B), 1).tolist()
        return tuple(PassPart(self, b, *row) for b, row in enumerate(numbers))


def placed_in(flat: torch.Tensor, passes: Sequence[PassInputs], columns: int) -> list[PassInputs]:
    """Passes of the same kinds and sizes, whose integers lie in ``flat`` one pass after the other; ``columns`` as
    :meth:`PassInputs.over` takes it.
    """
    sizes = [0 if inputs.flat is None else inputs.flat.numel() for inputs in passes]
    return [
        PassInputs.over(part, inputs.kind, *inputs.sizes, columns)
        for part, inputs in zip(torch.split(flat, sizes), passes, strict=True)
    ]


class PassPart:
    """One request's part of a pass: ``index`` in the batch, cache ``slot``, first cache column ``write_at``, ``live``
    rows, tree ``slots`` that they see, and its ``mask``, over ``mask.keys`` columns.
    """

    def __init__(self, inputs: PassInputs, index: int, slot: int, prefix: int, write_at: int, live: int) -> None:
        self.index = index
        self.slot = slot
        self.write_at = write_at
        self.live = live
        self.slots = slots = write_at + live - prefix
        self.mask = AttentionMask(
            prefix,
            inputs.key_start_BT[index, :slots],
            inputs.key_end_BT[index, :slots],
            inputs.query_start_BN[index, :live],
            inputs.key_position_BT[index, :slots],
            inputs.position_BN[index, :live],
            is_preorder=inputs.kind != "growing",
            is_chain=inputs.kind == "chain",
        )
