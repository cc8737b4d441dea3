"""Linear layers in the form in which a backend keeps their weights.

The first two keep plain matrices. A backend that has a better layout subclasses them and hands its own out in
:meth:`spec_sdk.ops.Ops.projection` and :meth:`~spec_sdk.ops.Ops.projections`.

Legend: I inputs, O outputs, L layers of a stack, g layers of a run, K rows (batch times tokens).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from spec_sdk.ops.quantized import QuantizedWeights


class Projection:
    """y = x Wᵀ + b, for one matrix of weights [O, I] and maybe a bias [O].

    ``quantized``: the weights in few bits, where they are kept so.
    """

    quantized: QuantizedWeights | None = None
    gives_rows: bool = False
    """Whether single rows are to be had (:meth:`rows`), so that an embedding of the same weights keeps no copy."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> None:
        self._weight_OI = weight_OI
        self.bias_O = bias_O

    @property
    def weight_OI(self) -> torch.Tensor:
        """The matrix; a copy where the backend keeps another form of it."""
        return self._weight_OI

    @property
    def parts(self) -> tuple[Projection, ...]:
        """The matrices that it is made of: itself, unless it says otherwise."""
        return (self,)

    @property
    def inputs(self) -> int:
        return self._weight_OI.shape[1]

    @property
    def outputs(self) -> int:
        return self._weight_OI.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, which every call reads."""
        return self._weight_OI.numel() * self._weight_OI.element_size()

    def holds(self, weight_OI: torch.Tensor) -> bool:
        """Whether this tensor, not a copy of it, is what is multiplied with."""
        return self._weight_OI is weight_OI

    def rows(self, row_K: torch.Tensor) -> torch.Tensor:
        """These rows of the matrix: [K, I]."""
        return self._weight_OI[row_K]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., I] → [..., O]."""
        return F.linear(x, self._weight_OI, self.bias_O)


class ProjectionOfParts(Projection):
    """One that is made of several, each of which keeps its weights in a form of its own."""

    def __init__(self, parts: Sequence[Projection]) -> None:
        self._parts = tuple(parts)
        self.bias_O = None

    @property
    def parts(self) -> tuple[Projection, ...]:
        return self._parts

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def holds(self, weight_OI: torch.Tensor) -> bool:
        return any(part.holds(weight_OI) for part in self._parts)

    def rows(self, row_K: torch.Tensor) -> torch.Tensor:
        return self.weight_OI[row_K]


class JoinedProjection(ProjectionOfParts):
    """Several projections of one input, their outputs one after the other; or none."""

    @property
    def weight_OI(self) -> torch.Tensor:
        return torch.cat([part.weight_OI for part in self._parts])

    @property
    def inputs(self) -> int:
        return self._parts[0].inputs

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self._parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self._parts], -1)


class SummedProjection(ProjectionOfParts):
    """The sum of several projections, of inputs that lie one after the other; or none."""

    @property
    def weight_OI(self) -> torch.Tensor:
        return torch.cat([part.weight_OI for part in self._parts], 1)

    @property
    def inputs(self) -> int:
        return sum(part.inputs for part in self._parts)

    @property
    def outputs(self) -> int:
        return self._parts[0].outputs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        of_parts = torch.split(x, [part.inputs for part in self._parts], -1)
        first, *others = (part(own) for part, own in zip(self._parts, of_parts, strict=True))
        return sum(others, start=first)


class ProjectionStack:
    """The projections of L layers, all of one shape: [L, O, I], with biases [L, O] or none."""

    def __init__(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> None:
        self._weight_LOI = weight_LOI
        self._bias_LO = bias_LO

    def __len__(self) -> int:
        return self._weight_LOI.shape[0]

    def __getitem__(self, layer: int) -> Projection:
        """One layer's, in the same memory."""
        return Projection(self._weight_LOI[layer], None if self._bias_LO is None else self._bias_LO[layer])

    def layers(self, first: int, end: int) -> ProjectionStack:
        """Those of layers ``first`` … ``end - 1``, in the same memory."""
        return ProjectionStack(self._weight_LOI[first:end], None if self._bias_LO is None else self._bias_LO[first:end])

    def __call__(self, x_gKI: torch.Tensor) -> torch.Tensor:
        """Every layer's projection of its own input: [g, K, O], g all L layers."""
        if self._bias_LO is None:
            return torch.bmm(x_gKI, self._weight_LOI.transpose(1, 2))
        return torch.baddbmm(self._bias_LO[:, None], x_gKI, self._weight_LOI.transpose(1, 2))


class SeparateProjections(ProjectionStack):
    """The projections of L layers, each by itself, in whatever form it is."""

    def __init__(self, layers: Sequence[Projection]) -> None:
        self._layers = tuple(layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: int) -> Projection:
        return self._layers[layer]

    def layers(self, first: int, end: int) -> ProjectionStack:
        return SeparateProjections(self._layers[first:end])

    def __call__(self, x_gKI: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x_KI) for layer, x_KI in zip(self._layers, x_gKI, strict=True)])
