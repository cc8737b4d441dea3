"""``task=transcribe`` on the command line: texts, figures and files, and a line for what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
import yaml

from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.speech.transcribing import TranscribingRun
from tests.cli.conftest import Result, cli, own_directory  # noqa: F401
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_whisper import RATE, sound, write_wav, write_whisper

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "whisper"
    write_whisper(directory, lively=True)
    return directory


@pytest.fixture
def run(cli: Cli, checkpoint: Path) -> Callable[..., Result]:  # noqa: F811
    def run_task(*arguments: str) -> Result:
        defaults = {"model.target": str(checkpoint), "max_new_tokens": "12", "output_dir": "out"}
        given = {argument.partition("=")[0] for argument in arguments}
        added = [f"{key}={value}" for key, value in defaults.items() if key not in given]
        return cli("task=transcribe", *arguments, *added)

    return run_task


def lines(directory: str = "out") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(directory) / "transcripts.jsonl").read_text().splitlines()]


def metrics(directory: str = "out") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(directory) / "metrics.json").read_text())
    return found


def write_list(*records: dict[str, Any]) -> str:
    Path("list.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return "audio=list.jsonl"


def test_one_file(run: Callable[..., Result], cli: Cli, checkpoint: Path) -> None:  # noqa: F811
    """The text is that of task=generate; the parts of the work add up to prefill and decoding."""
    write_wav(Path("a.wav"), sound(2))
    result = run("pipeline=sd_chain", "audio=a.wav", "language=de")
    assert result.status == 0, result.err
    generated = cli(
        *("pipeline=vanilla", f"model.target={checkpoint}", "audio=a.wav", "language=de"),
        *("max_new_tokens=12", "output_dir=generated"),
    )
    [line], found = lines(), metrics()
    assert result.out.strip() == line["text"] == generated.out.strip()
    [prompt] = metrics("generated")["prompts"]
    [window] = line["windows"]
    assert window["token_ids"] == prompt["token_ids"] and (window["begin_s"], window["end_s"]) == (0.0, 1.0)
    assert (line["pipeline"], line["id"], line["language"], line["seconds"]) == ("sd_chain", "a.wav", "de", 1.0)
    assert line["reference"] is None and line["word_error_rate"] is None
    summary = found["summary"]
    assert sum(summary["work_s"].values()) == pytest.approx(summary["prefill_s"] + summary["decode_s"])
    assert all(summary["work_s"][part] > 0 for part in ("encoder_s", "draft_s", "target_s", "sampling_s"))
    assert summary["real_time_factor"] == pytest.approx(summary["preparing_s"] + summary["answering_s"])
    assert found["guarantee"] == "exact" and "comparison" not in found
    assert found["models"]["draft"] is not None
    assert yaml.safe_load(Path("out/config.yaml").read_text())["task"]["name"] == "transcribe"
    events = [json.loads(event) for event in Path("out/events.jsonl").read_text().splitlines()]
    assert {event["pipeline"] for event in events} == {"sd_chain"}
    assert "real time factor" in result.err and "verifying" in result.err


def test_without_max_new_tokens_the_context_decides(cli: Cli, checkpoint: Path) -> None:  # noqa: F811
    write_wav(Path("a.wav"), sound(2))
    options = (f"model.target={checkpoint}", "pipeline=vanilla", "audio=a.wav", "language=en", "ignore_eos=true")
    assert cli("task=transcribe", *options, "output_dir=out").status == 0
    [line] = lines()
    assert line["windows"][0]["new_tokens"] == 96 - 4


def test_pipelines_beside_plain_decoding(run: Callable[..., Result]) -> None:
    """Of stereo FLAC at another rate, a long sound and one more: each by all pipelines, and as plain decoding does."""
    stereo_TC = sound(3, rate=44_100)[:, None].expand(-1, 2).numpy()
    soundfile.write("stereo.flac", stereo_TC, 44_100)
    write_wav(Path("long.wav"), sound(4, 2.4))
    write_wav(Path("a.wav"), sound(5))
    given = write_list(
        {"audio": "stereo.flac", "reference": "one two three", "language": "fr"},
        {"audio": "long.wav", "reference": "four"},
        {"audio": "a.wav"},
    )
    result = run(given, 'task.pipelines=[sd_chain,"prompt_lookup drafter.max_ngram=2"]', "language=en")
    assert result.status == 0, result.err
    found, records = metrics(), lines()
    names = ["sd_chain", "prompt_lookup drafter.max_ngram=2", "vanilla"]
    assert [run["name"] for run in found["pipelines"]] == names
    assert [record["pipeline"] for record in records] == [name for name in names for _ in range(3)]
    texts = {name: [record["text"] for record in records if record["pipeline"] == name] for name in names}
    assert texts[names[0]] == texts[names[1]] == texts["vanilla"]
    assert result.out == "\n\n".join(texts["sd_chain"]) + "\n"
    windows = sum(len(record["windows"]) for record in records[:3])
    assert windows >= 5
    assert [run["same_windows_as_vanilla"] for run in found["pipelines"]] == [[windows, windows]] * 2 + [None]
    assert [record["language"] for record in records[:3]] == ["fr", "en", "en"]
    first, second, third = records[:3]
    assert third["word_error_rate"] is None and first["errors"]["words"] == 3 and second["errors"]["words"] == 1
    kinds = ("substitutions", "deletions", "insertions")
    edits = sum(record["errors"][kind] for record in (first, second) for kind in kinds)
    assert found["summary"]["word_error_rate"] == edits / 4 and edits > 0
    assert found["summary"]["recordings"] == 3 and found["summary"]["audio_s"] == pytest.approx(4.4)
    assert found["comparison"]["speedup"] > 0 and found["comparison"]["vanilla"]["acceptance_rate"] is None
    assert "as vanilla" in result.err and f"{windows} of {windows}" in result.err


def test_a_reference_that_is_right(run: Callable[..., Result]) -> None:
    write_wav(Path("a.wav"), sound(2))
    assert run("pipeline=vanilla", "audio=a.wav", "language=en").status == 0
    text = lines()[0]["text"]
    given = write_list({"audio": "a.wav", "reference": text.upper(), "language": "en"})
    assert run("pipeline=suffix", given, "compare=true", "save_prompts=false").status == 0
    ours, theirs = lines()
    assert ours["pipeline"] == "suffix" and theirs["pipeline"] == "vanilla"
    assert ours["errors"]["words"] > 0 and ours["word_error_rate"] == 0.0 and ours["reference"] is None
    assert ours["text"] == text


def test_windows_at_once_and_each_told_the_one_before(run: Callable[..., Result]) -> None:
    write_wav(Path("long.wav"), sound(7, 3.4))
    options = ("pipeline=suffix", "audio=long.wav", "language=en", "ignore_eos=true")
    ids = {}
    for name, more in {
        "plain": (),
        "together": ("task.max_num_seqs=3",),
        "told": ("task.continued=true",),
        "seconds": ("task.cut=length",),
    }.items():
        assert run(*options, *more, f"output_dir={name}").status == 0
        ids[name] = [window["token_ids"] for window in lines(name)[0]["windows"]]
    assert ids["together"] == ids["plain"]
    assert ids["told"][0] == ids["plain"][0] and ids["told"] != ids["plain"]
    assert [window["end_s"] for window in lines("seconds")[0]["windows"]] == [1.0, 2.0, 3.0, 3.4]


def test_a_damaged_file_does_not_stop_the_others(run: Callable[..., Result]) -> None:
    for name in ("a", "b", "c"):
        soundfile.write(f"{name}.flac", sound(2).numpy(), RATE)
    broken = Path("b.flac")
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    result = run("pipeline=vanilla", "audio=[a.flac,b.flac,c.flac]", "language=en")
    assert result.status == 1 and "2/3 audio: b.flac is damaged" in result.err
    assert [line["id"] for line in lines()] == ["a.flac", "c.flac"]
    [failure] = metrics()["failures"]
    assert failure["id"] == "b.flac" and "damaged" in failure["error"]


def test_an_interrupt_keeps_what_is_there(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_wav(Path(f"{name}.wav"), sound(2))
    answer = TranscribingRun.answer

    def interrupted(self: TranscribingRun, recording: Any, *others: Any) -> Any:
        if recording.id == "b.wav":
            raise KeyboardInterrupt
        return answer(self, recording, *others)

    monkeypatch.setattr(TranscribingRun, "answer", interrupted)
    result = run("pipeline=vanilla", "audio=[a.wav,b.wav]", "language=en")
    assert result.status == 130
    assert [line["id"] for line in lines()] == ["a.wav"] and metrics()["summary"]["recordings"] == 1


@pytest.mark.parametrize("continued", [False, True])
def test_an_interrupt_keeps_the_windows_that_are_there(
    continued: bool, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before the first that is not answered: of two at once the second may be ready first."""
    write_wav(Path("long.wav"), sound(2, 5.0))
    windows = "task.continued=true" if continued else "task.max_num_seqs=2"
    options = ["audio=long.wav", "language=en", windows]
    assert run("pipeline=vanilla", *options, "output_dir=whole").status == 0
    [whole], steps = lines("whole"), Scheduler.step
    made = 0

    def interrupted(self: Scheduler) -> Any:
        nonlocal made
        made += 1
        if made > 30:
            raise KeyboardInterrupt
        return steps(self)

    monkeypatch.setattr(Scheduler, "step", interrupted)
    result = run("pipeline=vanilla", *options)
    assert result.status == 130
    [found] = lines()
    count = len(found["windows"])
    assert found["unfinished"] and 0 < count < len(whole["windows"])
    assert [one["token_ids"] for one in found["windows"]] == [one["token_ids"] for one in whole["windows"][:count]]
    assert whole["text"].startswith(found["text"]) and metrics()["summary"]["recordings"] == 0


def test_a_loud_file_and_one_of_nothing_are_told_by_name(run: Callable[..., Result]) -> None:
    soundfile.write("loud.wav", 1e30 * sound(2).numpy(), RATE, subtype="FLOAT")
    soundfile.write("short.wav", sound(2).numpy()[:1], 192_000)
    write_wav(Path("a.wav"), sound(2))
    result = run("pipeline=vanilla", "audio=[loud.wav,short.wav,a.wav]", "language=en")
    assert result.status == 1 and [line["id"] for line in lines()] == ["a.wav"]
    assert "1/3 audio: loud.wav has samples up to" in result.err and "scale them to -1 ... 1" in result.err
    assert "2/3 audio: short.wav holds no samples at 16,000 Hz" in result.err


def test_sampled_transcripts_are_not_held_against_plain_decodings(run: Callable[..., Result]) -> None:
    write_wav(Path("a.wav"), sound(2))
    result = run("pipeline=sd_chain", "audio=a.wav", "language=en", "compare=true", "sampling.temperature=1")
    assert result.status == 0 and "as vanilla" not in result.err
    assert [each["same_windows_as_vanilla"] for each in metrics()["pipelines"]] == [None, None]
    assert metrics()["guarantee"] == "distribution"


HEADS = ("eagle_tree", "medusa_tree", "hydra_tree", "block_tree", "peagle_tree", "mtp_chain")


@pytest.mark.parametrize("pipeline", HEADS)
def test_draft_heads_are_refused_by_name(pipeline: str, run: Callable[..., Result]) -> None:
    write_wav(Path("a.wav"), sound(2))
    result = run(f"pipeline={pipeline}", "audio=a.wav", "language=en")
    assert result.status == 2
    assert "whisper has an encoder, and draft heads are of text models; use sd_chain" in result.error


def test_what_is_wrong_is_a_line_before_anything_is_done(
    run: Callable[..., Result],
    tmp_path: Path,
) -> None:
    write_wav(Path("a.wav"), sound(2))
    Path("text.wav").write_text("no sound")
    write_checkpoint(tmp_path / "text")
    for arguments, message in (
        ((), "audio: task=transcribe needs something to hear; give audio=FILE.wav"),
        (("audio=b.wav",), "audio: b.wav does not exist"),
        (("audio=text.wav",), "audio: text.wav is no sound that libsndfile reads"),
        (("audio=a.wav", "language=xx"), "language: the model knows no 'xx'"),
        (
            (write_list({"audio": "a.wav", "language": "xx"}),),
            "audio: list.jsonl line 1: language: the model knows no 'xx'",
        ),
        (("audio=a.wav", f"model.target={tmp_path / 'text'}"), "model.target: text is a text model"),
        (("audio=a.wav", "error_bounds=true"), "error_bounds: they are estimated for decoders without"),
        (("audio=a.wav", "task.cut=paus"), "task.cut: unknown value 'paus', did you mean 'pause'"),
        (("audio=a.wav", "task.max_num_seqs=0"), "task.max_num_seqs: 0 must be 1 or more"),
        (("audio=a.wav", "task.continued=true", "task.max_num_seqs=2"), "task.max_num_seqs: with task.continued"),
        (("audio=a.wav", "task.pipelines=[]"), "task.pipelines: [] must be a list of pipelines"),
        (("audio=a.wav", "task.pipelines=[sufix]"), "task.pipelines: "),
        (("audio=a.wav", "task.pipelines=[suffix]", "pipeline=vanilla"), "pipeline: task.pipelines says what"),
        (("audio=a.wav", "task.pipelines=[suffix,medusa_tree]"), "task.pipelines: 'medusa_tree': drafter: whisper has"),
        (("audio=a.wav", "verifier=greedy", "sampling.temperature=1"), "greedy"),
        (("audio=a.wav", "max_new_tokens=95", "language=en"), "exceed the context of 96"),
    ):
        result = run(*arguments)
        assert result.status == 2, (arguments, result.err)
        assert message in result.error, arguments
        assert not Path("out").exists(), arguments
