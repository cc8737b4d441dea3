"""What is said of a machine."""

from __future__ import annotations

import json

import torch

from spec_sdk.bench.machine import device_facts, hardware_name, machine_facts, processor_name, run_facts, slug
from spec_sdk_backends.cpu import CpuBackend, CpuConfig


def test_facts_are_json_and_those_of_the_backend() -> None:
    facts = device_facts(torch.device("cpu"))
    assert json.loads(json.dumps(facts)) == facts
    hardware = CpuBackend(CpuConfig()).hardware
    assert facts == {**machine_facts(hardware), "device": "cpu"}
    assert facts["machine"] == hardware == hardware_name(torch.device("cpu"))
    assert hardware.startswith(processor_name()) and f"{torch.get_num_threads()} threads" in hardware
    assert facts["torch"] == torch.__version__ and facts["cores"] >= 1


def test_runs_tell_of_the_same_machine() -> None:
    backend = CpuBackend(CpuConfig())
    facts, known = run_facts(backend), machine_facts(backend.hardware)
    assert {name: facts[name] for name in facts.keys() & known.keys()} == {
        name: known[name] for name in ("cores", "threads", "python", "torch")
    }
    assert (facts["device"], facts["hardware"]) == (backend.describe(), known["machine"])


def test_a_name_as_part_of_a_file_name() -> None:
    assert slug("AMD EPYC, 2 threads") == "amd-epyc-2-threads"
    assert slug("(R) Xeon® @ 2.5 GHz") == "r-xeon-2-5-ghz"
