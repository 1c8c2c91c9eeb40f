"""`train.video`: a run on videos, what it leaves behind, and what its figures mean."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import interop
from tmem.video_models import VideoClassifier
from train import video, watching
from train.errors import FlagError, RunError
from train.video_flags import COMMAND, build
from train.video_losses import classification_quality, smoothed_loss

SIZES = {
  "preset": "smoke",
  "dataset": "folder",
  "num_layers": 1,
  "features": 8,
  "memory_channels": 2,
  "dropout": 0.2,
  "steps": 4,
  "eval_every": 2,
  "checkpoint_every": 2,
  "log_every": 1,
}
CLASSES = ("brighter", "darker")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TMEM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield


@pytest.fixture(scope="module")
def folder(write_video, tmp_path_factory):
  """Two classes, four videos of each to train on and two for tests; one more is broken."""
  path = tmp_path_factory.mktemp("videos")
  for of, levels in zip(CLASSES, (range(40, 200, 20), range(200, 40, -20)), strict=True):
    for split, count in (("train", 4), ("test", 2)):
      for index in range(count):
        write_video(path / split / of / f"{index}.avi", [level + index for level in levels])
  (path / "train" / CLASSES[0] / "broken.avi").write_bytes(b"no video")
  return path


def arguments(folder, workdir, **changes):
  values = {"workdir": workdir, "data_path": folder, **SIZES, **changes}
  return ["video", *(f"--{name}={value}" for name, value in values.items())]


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "run"
  video.main(arguments(folder, workdir))
  return workdir


def read(path):
  return json.loads(path.read_text())


def test_a_run_says_how_often_it_is_right(finished):
  result = read(finished / "result.json")
  assert (result["task"], result["method"], result["dataset"]) == ("video", "tensor", "folder")
  assert result["clips"] == {"train": 6, "valid": 2, "test": 4}
  assert (result["classes"], result["causal"]) == (2, True)
  assert result["state_bytes"] == 2 * 4 * 2**3 * 2  # h and c of 8 cells with 2 channels
  # Four clips say little of what depends on which frames are missing: each is shown ten times.
  shown = {"valid": 2, "test": 4, "test_blank_50": 40, "test_covered_75": 40}
  for split, clips in shown.items():
    assert result[f"{split}_clips"] == clips
    assert clips * result[f"{split}_top1"] == pytest.approx(round(clips * result[f"{split}_top1"]))
    assert 0 < result[f"{split}_loss"] < 5
  assert "test_top5" not in result  # of two classes
  assert result["test_loss"] != result["test_blank_75_loss"]
  assert isinstance(interop.load_model(finished / "model"), VideoClassifier)


def test_figures_say_which_classes_are_taken_for_which(finished):
  lines = (finished / "plots" / "classes.txt").read_text().splitlines()
  assert lines[0].split() == ["class", "most", "often", "taken", "for", "clips", "right"]
  shares = [float(line.split()[-2]) for line in lines[1:]]
  assert [line.split()[0] for line in lines[1:]] == list(CLASSES)
  np.testing.assert_allclose(np.mean(shares), 100 * read(finished / "result.json")["test_top1"])
  for name in ("confusion", "loss", "gates"):
    assert (finished / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_other_clips_are_refused(finished, folder, tmp_path):
  for split in ("train", "test"):
    for of, name in zip(CLASSES, ("brighter", "other"), strict=True):
      (tmp_path / "videos" / split / name).mkdir(parents=True)
      for path in (folder / split / of).glob("?.avi"):
        (tmp_path / "videos" / split / name / path.name).write_bytes(path.read_bytes())
  with pytest.raises(RunError, match=r"began with \(classes changed\); use another --workdir"):
    video.main(["video", f"--workdir={finished}", "--mode=eval", f"--data_path={tmp_path}/videos"])
  with pytest.raises(RunError, match=r"began with \(classes changed\); use another --workdir"):
    video.main(arguments(tmp_path / "videos", tmp_path / "run", init_from=finished))
  (folder / "train" / "brighter" / "9.avi").write_bytes((folder / "test/darker/0.avi").read_bytes())
  try:
    video.main(["video", f"--workdir={finished}", "--mode=eval", f"--data_path={folder}"])
    (finished / "result.json").rename(tmp_path / "result.json")
    with pytest.raises(RunError, match=r"began with \(train changed\); use another --workdir"):
      video.main(arguments(folder, finished))
  finally:
    (tmp_path / "result.json").rename(finished / "result.json")
    (folder / "train" / "brighter" / "9.avi").unlink()


def test_gates_are_logged_with_every_evaluation(finished):
  records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
  gates = [record.get("gate_block_0") for record in records]
  assert [gate is not None for gate in gates] == [False, True, False, True]
  assert gates[3] == pytest.approx(read(finished / "result.json")["fusion_gates"]["block_0"])
  assert 0 < gates[1] < 0.2  # gate_init is -2
  assert all(records[index]["memory_cell_max"] > 0 for index in (1, 3))


def test_an_evaluation_repeats_the_result(finished, folder, capsys):
  video.main(["video", f"--workdir={finished}", "--mode=eval", f"--data_path={folder}"])
  measured, result = read(finished / "eval.json"), read(finished / "result.json")
  for name in ("valid_loss", "test_loss", "test_blank_25_loss", "test_covered_50_loss"):
    np.testing.assert_allclose(measured[name], result[name], rtol=1e-6)
  assert "test clips: 4" in capsys.readouterr().out


def test_a_run_that_was_stopped_goes_on_exactly(finished, folder, tmp_path, assert_same_model):
  video.main(arguments(folder, tmp_path / "run", stop_at=3))
  assert not (tmp_path / "run" / "result.json").exists()
  video.main(arguments(folder, tmp_path / "run"))
  assert_same_model(finished / "model", tmp_path / "run" / "model")


@pytest.mark.parametrize("method", ["joint", "registers"])
def test_the_other_methods_train_also_with_frames_missing(method, folder, tmp_path):
  more = {"blank_frames": 0.3, "label_smoothing": 0.1, "drop_path": 0.2}
  video.main(arguments(folder, tmp_path / "run", method=method, steps=2, **more))
  result = read(tmp_path / "run" / "result.json")
  assert (result["method"], result["blank_frames"]) == (method, 0.3)
  assert result["fusion_gates"] == {}
  assert np.isfinite(result["test_blank_75_loss"])


def test_online_says_a_class_after_every_frame(finished, folder, capsys):
  path = folder / "test" / CLASSES[0] / "0.avi"
  online = ["video", f"--workdir={finished}", "--mode=online", f"--input={path}"]
  video.main(online)
  lines = capsys.readouterr().out.splitlines()
  assert [line.split(":")[0] for line in lines] == [f"frame {i}" for i in range(8)]
  assert {line.split()[2] for line in lines} <= set(CLASSES)
  video.main([*online, "--every=3"])
  assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
    "frame 0", "frame 3", "frame 6",
  ]  # fmt: skip


def test_what_is_said_online_is_what_the_clip_at_once_says(finished):
  model = interop.load_model(finished / "model")
  frames = np.random.default_rng(0).normal(size=(5, 16, 16, 3)).astype(np.float32)
  told = list(watching.told(model, iter(frames)))
  for count in (1, 5):
    logits = model(jnp.asarray(frames[None, :count]))
    np.testing.assert_allclose(told[count - 1], nnx.softmax(logits[0]), atol=1e-6)


class Told(nnx.Module):
  """In place of a model: tells what it was made with."""

  def __init__(self, logits):
    self.logits = jnp.asarray(logits, jnp.float32)

  def __call__(self, frames, key=None):
    del frames, key
    return self.logits


def test_losses_and_counts_are_those_of_rows_that_exist():
  logits = np.random.default_rng(0).normal(size=(4, 7))
  logits[1] = [3, 2, 1, 0, -1, -2, -3]
  batch = {
    "frames": jnp.zeros((4, 1, 1, 1, 1)),
    "label": jnp.array([int(logits[0].argmax()), 4, 5, 6]),
    "mask": jnp.array([True, True, False, False]),
  }
  shares = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  nats = [-shares[row, int(batch["label"][row])] for row in (0, 1)]
  sums = classification_quality(Told(logits), batch, None)
  assert (sums["weight"], sums["top1"], sums["top5"]) == (2, 1, 2)
  np.testing.assert_allclose(sums["loss"], sum(nats), rtol=1e-5)
  batch["label"] = batch["label"].at[1].set(5)
  assert classification_quality(Told(logits), batch, None)["top5"] == 1
  smoothed = smoothed_loss(0.2)(Told(logits), batch, None)
  nats[1] = -shares[1, 5]
  expected = [0.8 * n - 0.2 * shares[row].mean() for row, n in enumerate(nats)]
  np.testing.assert_allclose(smoothed["loss"], sum(expected), rtol=1e-5)
  broken = classification_quality(Told(np.full((4, 7), np.nan)), batch, None)
  assert (broken["top1"], broken["top5"]) == (0, 0)
  same = classification_quality(Told(np.zeros((4, 7))), batch, None)
  assert same["top1"] == (batch["label"][0] == 0)  # saying the same of all is right for one


@pytest.mark.parametrize(
  ("changes", "error", "message"),
  [
    ({"method": "base"}, FlagError, "--method=base: .*joint, registers, tensor"),
    ({"split": 4}, FlagError, "--split=4: "),
    ({"image_size": 20}, FlagError, "--image_size: 20 is not a multiple of --patch_size 8"),
    ({"data_path": ""}, FlagError, "--data_path: missing, --dataset=folder needs one"),
    ({"data_path": "/absent"}, RunError, "/absent: no such folder"),
    ({"dataset": "ucf101", "data_dir": "/absent"}, RunError, "no folder ucfTrainTestlist there"),
    ({"blank_frames": 1.0}, FlagError, "--blank_frames=1.0: "),
    ({"blank_frames": 0.9}, FlagError, "--blank_frames=0.9: hides all of --num_frames=4 frames"),
    ({"blank_frames": 0.1}, FlagError, "--blank_frames=0.1: hides none of --num_frames=4 frames"),
  ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, error, message, folder, tmp_path):
  with pytest.raises(error, match=message) as caught:
    video.main(arguments(folder, tmp_path / "run", **changes))
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ([], "--input: missing, --mode=online needs a video"),
    (["--input=/absent.avi"], "--input: /absent.avi: not a video that can be read"),
  ],
)
def test_what_cannot_be_watched_is_refused(flags, message, finished):
  with pytest.raises((FlagError, RunError), match=message):
    video.main(["video", f"--workdir={finished}", "--mode=online", *flags])


def test_what_is_skipped_is_counted(folder, tmp_path, caplog):
  video.main(arguments(folder, tmp_path / "run", steps=2, log_every=2))
  (line,) = [m for m in caplog.messages if m.startswith("skipped")]
  assert line.startswith("skipped 1 of 7 videos; the first: ")
  assert "broken.avi: not a video that can be read" in line


@pytest.mark.parametrize(
  ("preset", "sizes", "gate", "blank"),
  [("cpu", (96, 3, 16, 8), 0.0, 0.25), ("paper", (384, 12, 196, 8), -2.0, 0.0)],
)
def test_presets_have_their_sizes(preset, sizes, gate, blank):
  config = build(COMMAND.values(preset) | {"workdir": "runs/none"})
  model = config.model
  assert (model.features, model.num_layers, model.patches, model.num_frames) == sizes
  assert (model.state_scope, model.gate_init) == ("depth", gate)
  assert config.data.blank_frames == blank
