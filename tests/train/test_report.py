import json

import numpy as np
import pytest

from train import report, speed
from train.errors import FlagError, RunError
from train.pictures import SHARED, TOLD, side_by_side, write_rows


def make_run(folder, loss, method, gates):
  folder.mkdir()
  result = {
    "task": "language",
    "method": method,
    "dataset": "text",
    "tokenizer": "byte",
    "protocol": "windows",
    "best_step": 20,
    "steps": 20,
    "params": 12_345,
    "causal": True,
    "state_bytes": 4096,
    "tokens_per_second": 1234.5,
    "valid_loss": loss,
    "test_loss": loss + 0.1,
    "test_perplexity": 7.389,
    "test_bits_per_byte": 2.885,
    "fusion_gates": gates,
  }
  (folder / "result.json").write_text(json.dumps(result))
  lines = [{"step": s, "loss": loss + 1 / s, "valid_loss": loss + 2 / s} for s in (10, 20)]
  (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  return folder


def test_runs_are_compared_in_a_table_and_a_picture(tmp_path, capsys):
  one = make_run(tmp_path / "memory", 1.75, "tensor_local", {"block_0": 0.57})
  two = make_run(tmp_path / "baseline", 1.87, "local", {})
  output = tmp_path / "report"
  report.main(["report", f"--workdirs={one},{two}", f"--output={output}"])
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].split()[:4] == ["run", "method", "dataset", "protocol"]
  assert lines[1].split() == [
    "memory", "tensor_local", "text", "windows", "20", "1.7500", "1.8500", "2.8850", "7.39",
    "12,345", "1,234", "4,096", "True",
  ]  # fmt: skip
  assert lines[2].split()[:5] == ["baseline", "local", "text", "windows", "20"]
  assert lines[3] == "fusion gates of memory: block_0 0.570"
  assert (output / "losses.png").read_bytes().startswith(b"\x89PNG")
  assert "baseline" in (output / "report.md").read_text()


def test_runs_that_differ_by_their_seed_alone_are_taken_together(tmp_path, capsys):
  workdirs = []
  for name, seed, steps, loss in (("a", 0, 20, 1.75), ("b", 1, 20, 1.5), ("c", 1, 30, 1.25)):
    workdirs.append(make_run(tmp_path / name, loss, "local", {}))
    flags = {"seed": seed, "steps": steps, "grid": [2, 2]}
    (workdirs[-1] / "config.json").write_text(json.dumps({"flags": flags}))
  flags = {"seed": 1, "steps": 20, "grid": [2, 2], "keep": 3, "init_from": None}
  (workdirs[1] / "config.json").write_text(json.dumps({"flags": flags}))  # decides the same
  workdirs.append(make_run(tmp_path / "d", 1.0, "local", {}))  # what it was asked for is not known
  workdirs.append(workdirs[0])  # named twice
  report.main(["report", f"--workdirs={','.join(map(str, workdirs))}"])
  heading, *rows = capsys.readouterr().out.split("\n\n")[1].splitlines()
  assert heading.split()[:4] == ["run", "seeds", "valid", "nats"]
  assert rows[0].split()[:6] == ["a", "2", "1.6250", "(1.5000–1.7500)", "1.7250", "(1.6000–1.8500)"]
  assert [row.split()[:3] for row in rows[1:]] == [["c", "1", "1.2500"], ["d", "1", "1.0000"]]


def make_task_run(folder, task, **figures):
  """A run of images or videos."""
  make_run(folder, 1.0, "tensor", {})
  result = json.loads((folder / "result.json").read_text()) | {"task": task} | figures
  (folder / "result.json").write_text(json.dumps(result))
  return folder


def test_videos_are_compared_by_what_they_miss(tmp_path, capsys):
  top1 = {"test_top1": 0.75, "test_blank_50_top1": 0.5, "test_covered_25_top1": 0.25}
  facts = {"frames": 8, "blank_frames": 0.25, "encoder": None, "frames_per_second": 99.5}
  one = make_task_run(tmp_path / "one", "video", **facts, **top1)
  report.main(["report", f"--workdirs={one}", f"--output={tmp_path / 'report'}"])
  runs, seeds = capsys.readouterr().out.split("\n\n")[:2]
  assert runs.splitlines()[1].split() == [
    "one", "tensor", "text", "8", "25%", "-", "20", "1.0000", "1.1000", "75.0%", "-", "-", "50.0%",
    "-", "25.0%", "-", "-", "100", "12,345", "4,096",
  ]  # fmt: skip
  assert seeds.splitlines()[1].split() == ["one", "1", "0.750", "-", "0.500", *"-", "0.250", *"--"]
  assert (tmp_path / "report" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_images_are_compared_by_what_is_hidden(tmp_path, capsys):
  figures = {"test_25_psnr": 20.125, "test_75_ssim": 0.5, "order": "raster"}
  one = make_task_run(tmp_path / "one", "image", images_per_second=7.0, **figures)
  report.main(["report", f"--workdirs={one}"])
  assert capsys.readouterr().out.splitlines()[1].split() == [
    "one", "tensor", "text", "raster", "20", "1.0000", "20.12", "-", "-", "-", "-", "0.5000", "7",
    "12,345", "4,096",
  ]  # fmt: skip


def test_what_runs_make_of_the_same_images_is_drawn_together(tmp_path, capsys):
  rng, folders = np.random.default_rng(0), {}
  shown = {kind: rng.integers(256, size=(2, 8, 8, 3), dtype=np.uint8) for kind in SHARED}
  told = {name: np.full((2, 8, 8, 3), value, np.uint8) for value, name in enumerate("abcd")}
  for name in "abcd":
    folders[name] = make_task_run(tmp_path / name, "image") / "plots"
    write_rows({**shown, TOLD: told[name]}, folders[name] / "reconstructions_test_50.npz")
  write_rows(
    {**shown, SHARED[1]: shown[SHARED[0]], TOLD: told["c"]},  # was shown something else
    folders["c"] / "reconstructions_test_50.npz",
  )
  damaged = folders["d"] / "reconstructions_test_50.npz"
  whole = damaged.read_bytes()
  # The compressed pixels, too, and what is no archive of several arrays.
  damaged.write_bytes(whole[:200] + bytes(255 - byte for byte in whole[200:300]) + whole[300:])
  rows = side_by_side(folders, "reconstructions_test_50.npz")
  assert list(rows) == [*SHARED, "a", "b"]
  with damaged.open("wb") as file:
    np.save(file, told["d"])
  assert list(side_by_side(folders, damaged.name)) == [*SHARED, "a", "b"]
  np.testing.assert_array_equal(rows["b"], told["b"])
  np.testing.assert_array_equal(rows["original"], shown["original"])
  assert side_by_side({"a": folders["a"]}, "reconstructions_test_50.npz") == {}
  workdirs = ",".join(str(tmp_path / name) for name in "abcd")
  report.main(["report", f"--workdirs={workdirs}", f"--output={tmp_path / 'out'}"])
  assert "curves.png, pictures.png" in capsys.readouterr().out
  assert (tmp_path / "out" / "pictures.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_several_tasks_are_not_compared(tmp_path):
  one = make_task_run(tmp_path / "one", "video")
  two = make_run(tmp_path / "two", 1.0, "local", {})
  with pytest.raises(RunError, match="--workdirs: runs of video and language; compare them apart"):
    report.main(["report", f"--workdirs={one},{two}"])


def test_models_are_timed_where_asked(finished, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(speed, "PROMPT", 16)
  report.main(["report", f"--workdirs={finished}", f"--output={tmp_path}", "--speed"])
  heading, row = capsys.readouterr().out.splitlines()[:2]
  assert "prefill/s" in heading
  assert "decode/s at 131,072" in heading
  state_bytes, *rates = row.replace("True", "").split()[-5:]
  assert int(state_bytes.replace(",", "")) > 100
  assert all(int(rate.replace(",", "")) > 0 for rate in rates)
  assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
  (tmp_path / "other").mkdir()
  (tmp_path / "other" / "result.json").write_text((finished / "result.json").read_text())
  with pytest.raises(RunError, match=r"--speed: .*config.json: no such file"):
    report.main(["report", f"--workdirs={tmp_path / 'other'}", "--speed"])


def test_streams_that_begin_more_often_are_not_compared():
  one = {"dataset": "text", "protocol": "stream", "eval_streams": 8}
  last = report.format_table({"a": one, "b": {**one, "eval_streams": 4}}).splitlines()[-1]
  assert last.startswith("warning: different numbers of streams")


def test_missing_numbers_are_dashes(tmp_path):
  table = report.format_table({"a": {"method": "base", "test_loss": None}})
  assert table.splitlines()[1].split() == ["a", "base", *"-" * 11]


def test_a_run_without_a_result_is_named(tmp_path):
  with pytest.raises(RunError, match=r"--workdirs: .*nothing has no result.json"):
    report.main(["report", f"--workdirs={tmp_path / 'nothing'}"])


@pytest.mark.parametrize(
  ("changes", "warning"),
  [
    ({}, None),
    ({"tokenizer": "word"}, "warning: different tokenizers (byte, word): nats and perplexity are"),
    ({"vocabulary": "reference"}, "warning: standard and reference vocabularies: another scale"),
    ({"protocol": "stream"}, "warning: different protocols (windows, stream): tokens were"),
    ({"dataset": "stdlib", "tokenizer": "word"}, "warning: different datasets (text, stdlib): "),
  ],
)
def test_what_cannot_be_compared_is_said(changes, warning):
  one = {
    "dataset": "text", "tokenizer": "byte", "protocol": "windows", "vocabulary": "standard"
  }  # fmt: skip
  last = report.format_table({"a": one, "b": {**one, **changes}}).splitlines()[-1]
  assert last.startswith(warning or "b ")


@pytest.mark.parametrize(
  ("changes", "problem"),
  [
    ({"task": None}, "has no 'task'"),
    ({"params": "many"}, "params is 'many'"),
    ({"test_loss": "low"}, "Unknown format code"),
    ({"fusion_gates": [1]}, "'list' object has no attribute"),
  ],
)
def test_a_broken_result_is_named(tmp_path, changes, problem):
  workdir = make_run(tmp_path / "run", 1.0, "local", {})
  content = {**json.loads((workdir / "result.json").read_text()), **changes}
  content = {name: value for name, value in content.items() if value is not None}
  (workdir / "result.json").write_text(json.dumps(content))
  with pytest.raises(RunError, match=rf"run/result.json: broken \({problem}.*; restore it, or"):
    report.main(["report", f"--workdirs={workdir}"])


@pytest.mark.parametrize("arguments", [[], ["--workdirs="], ["--bogus=1"], ["a"]])
def test_bad_flags(arguments):
  with pytest.raises(FlagError):
    report.main(["report", *arguments])


def test_a_real_run_can_be_reported(finished, capsys):
  report.main(["report", f"--workdirs={finished}"])
  assert "tensor_local" in capsys.readouterr().out
