"""Directories of a user's own YAML with something wrong in them, or with them."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import yaml

from benchmarks.fuzzing.material import Material
from benchmarks.fuzzing.trial import Place
from benchmarks.fuzzing.values import JSON, LONG, TEXTS, mutated
from spec_sdk.config.composing import groups

CONF = Path(__file__).parents[2] / "conf"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)
"""Nine levels of nine aliases each: 9^10 items."""
ODD = (
    *(
        "",
        "\x00",
        "[",
        "{",
        "- a",
        "5",
        "null",
        "text",
        "a: b: c",
        "\ta: 1",
        "a: 1\na: 2",
        "? [a]\n: 1",
        "&a [*a]",
        "~: 1",
    ),
    *("a: !!python/object/apply:os.system [ls]", "a: !!binary x", "a: !!timestamp 5", "<<: 5", "<<: *x", "a: *x"),
    *("pipeline: ${pipeline}", "prompt: ${prompt}", "prompt: ${oc.env:NOPE}", "prompt: ???", "prompt: ${", "1: 2"),
    *("defaults: 5", "defaults: [5]", "defaults: [mine]", "defaults: [nothing]", "defaults: [{drafter: null}]"),
    *("defaults: [{drafter: nothing}]", "defaults: [{override drafter: none}]", "defaults: [_self_, _self_]"),
    *("defaults: [{/drafter: none}]", "defaults: [{drafter@x: none}]", "defaults: [{'': ''}]", "defaults: {a: b}"),
    *(
        "defaults: [{optional nothing: x}]",
        "defaults: [[a]]",
        "defaults: [null]",
        "# @package\n",
        "# @package x y\nb: 1",
    ),
    *("# @package _group_\na: 1", "# @package drafter\nname: 5", "# @package ''\na: 1", "%YAML 9.9\n---\na: 1"),
    *("--- a\n--- b", "hydra: 5", "hydra: {run: 5}", "hydra: {searchpath: 5}", "hydra: {job: {name: [1]}}", BOMB),
    *("a: 2001-99-99", "a: 0o9", "a: 1e999", "a: " + "9" * 5000, "[" * 3000, "a: " + "{a: " * 300, LONG, "a: \ud800"),
    *(
        "prompt: 2001-01-01",
        "max_new_tokens: 0x4",
        "prompt: 'a\x00b'",
        "output_dir: 'a\x00b'",
        "pipeline: {name: 'a\x00'}",
    ),
    *(
        "model: {target: 'a\x00b'}",
        "prompt_file: 'a\x00b'",
        "sampling: {seed: 99999999999999999999}",
        "task: {name: x}",
    ),
)
NAMES = ("mine", "mine", "mine", "a b", "ü", "a=b", "a,b", "a.b", "-", "null", "5", "[x]", "${x}", "@x", "a" * 250)


def config_directory(rng: Random, material: Material, place: Place) -> list[str]:
    """Writes a directory into ``place.given``; returns the command line that uses it."""
    top = place.given / rng.choice(("conf", "conf", "conf", "a b", "ü", "a,b", "a=b", "a'b", '"', "[x]", "${x}", "a\\"))
    top.mkdir()
    group, name = (
        rng.choice(("pipeline", "pipeline", "pipeline", *groups(), "hydra", "hydra/launcher")),
        rng.choice(NAMES),
    )
    folder = top / group
    folder.mkdir(parents=True)
    path = folder / f"{name}{rng.choice(('.yaml',) * 8 + ('.yml', '', '.YAML'))}"
    path.write_bytes(_content(rng, group))
    if rng.random() < 0.2:
        (top / rng.choice(("config.yaml", "pipeline.yaml", "hydra.yaml"))).write_bytes(_content(rng, group))
    if rng.random() < 0.2:
        _spoil(rng.choice((top, folder, path)), rng)
    asked = rng.choice((f"{group}={name}", f"{group}={name}", f"+{group}={name}", f"'{group}={name}'", f"{group}=mine"))
    way = rng.choice((["--config-dir", str(top)],) * 5 + ([f"hydra.searchpath=[file://{top}]"], [f"-cd{top}"]))
    more = [rng.choice((["--cfg", "job"], ["-m"], ["--help"], ["--info", "defaults"]))] if rng.random() < 0.2 else []
    return [
        f"model.target={material.model('text')}",
        *("prompt=a b c", "max_new_tokens=2", "output_dir=out"),
        *(way if rng.random() < 0.97 else []),
        asked,
        *(argument for arguments in more for argument in arguments),
    ]


def _content(rng: Random, group: str) -> bytes:
    kind = rng.random()
    if kind < 0.35:
        return _odd(rng).encode("utf-8", "surrogatepass")
    if kind < 0.4:
        return rng.randbytes(rng.choice((1, 20, 3000)))
    known = sorted((CONF / group).glob("*.yaml")) or sorted((CONF / "pipeline").glob("*.yaml"))
    text = rng.choice(known).read_text()
    if kind < 0.55:
        return _damaged(text.encode(), rng)
    head = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
    value: Any = yaml.safe_load(text) or {}
    for _ in range(rng.choice((1, 1, 2))):
        value = mutated(value, rng)
    if rng.random() < 0.2 and isinstance(value, dict):
        value[rng.choice(("drafter", "prompt", "output_dir", "x", "pipeline", "hydra"))] = rng.choice((*TEXTS, *JSON))
    return (head + yaml.safe_dump(value, allow_unicode=True)).encode("utf-8", "surrogatepass")


def _odd(rng: Random) -> str:
    return rng.choice(("", "# @package _global_\n")) + rng.choice(ODD)


def _damaged(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return rng.choice(
        (
            data[:at],
            data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
            data[:at] + rng.choice((b"\t", b"\x00", b":", b"[", b"&", b"*", b"\xff", b"\n")) + data[at:],
            b"\xef\xbb\xbf" + data,
            data.decode().encode("utf-16"),
            data.replace(b"  ", b"\t"),
            data.replace(b"\n", b"\r"),
            data * 2,
        )
    )


def _spoil(path: Path, rng: Random) -> None:
    """Take its permissions, or put something in its place that is no such file or directory."""
    kind = rng.choice(("forbidden", "forbidden", "unlisted", "dangling", "loop", "pipe", "other", "zero"))
    if kind in ("forbidden", "unlisted"):
        path.chmod(0 if kind == "forbidden" else 0o111)
        return
    was_directory = path.is_dir()
    moved = path.with_name("moved")
    path.rename(moved)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind != "other":
        path.symlink_to({"dangling": "nowhere", "loop": path.name, "zero": "/dev/zero"}[kind])
    elif was_directory:
        path.write_text("a: 1")
    else:
        path.mkdir()
