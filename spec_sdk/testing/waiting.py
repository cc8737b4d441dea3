"""Code that a graph can capture waits for nothing: on a machine without a GPU, what would wait on one is refused.

A captured pass is a list of launches. It may read no value back, make no tensor whose shape depends on values, and
bring nothing from the host: a graph would repeat what it saw when it was captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from spec_sdk.model.executor import PassOutput
from spec_sdk.model.graph_executor import changed, tensors_of_output

READS = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__)
"""On the CPU they read memory, and torch dispatches nothing that could be seen."""
UPLOADS = (torch.tensor, torch.as_tensor, torch.from_numpy)
INDEXED = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_, torch.ops.aten._index_put_impl_)


class WouldWait(AssertionError):
    """What code that shall be captured did."""


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """In here :class:`WouldWait` is raised for what would wait for a GPU's stream, or fill it from the host.

    That is: reading a tensor's values (``item``, ``tolist``, ``bool``, ``cpu``, ``numpy``), shapes that depend on
    values (``nonzero``, ``masked_select``, ``unique``, boolean indices), copies between devices, and tensors made of
    Python numbers. ``torch.arange``, ``zeros`` and the like are launches, and allowed.
    """
    with _Calls(), _Operations():  # type: ignore[no-untyped-call]
        yield


class _Calls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise WouldWait(f"Tensor.{func.__name__} reads values back")
        if func in UPLOADS:
            raise WouldWait(f"torch.{func.__name__} makes a tensor of values that the host has")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.data_dependent_output in func.tags:
            raise WouldWait(f"{func} reads a value back")
        if torch.Tag.dynamic_output_shape in func.tags and not _is_static_index(func, args):
            raise WouldWait(f"the shape that {func} returns depends on values")
        if func.overloadpacket in INDEXED and _has_boolean_index(args):
            raise WouldWait(f"{func} with a boolean index counts what is true")
        devices = {str(tensor.device) for tensor in args if isinstance(tensor, torch.Tensor) and tensor.dim()}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            devices.add(str(result.device))
        if len(devices) > 1 and func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            raise WouldWait(f"{func} copies between {' and '.join(sorted(devices))}")
        return result


def _is_static_index(func: Any, args: Any) -> bool:
    """Indexing is marked as of dynamic shape for the sake of boolean indices; by integers it is not."""
    return func.overloadpacket in INDEXED and not _has_boolean_index(args)


def _has_boolean_index(args: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def repeated(run: Callable[[], PassOutput]) -> tuple[Callable[[], object], PassOutput]:
    """Stands for a captured graph (:data:`spec_sdk.model.graph_executor.Capture`): computes again into the same memory.

    Raises WouldWait where a graph could not be captured.
    """
    with no_waiting():
        output = changed(run(), torch.clone)

    def replay() -> None:
        with no_waiting():
            again = run()
        following = iter(tensors_of_output(again))
        changed(output, lambda place: place.copy_(next(following)))

    return replay, output
