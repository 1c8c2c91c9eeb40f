"""What batches of each task cost, alone and beside the step that they are for."""

from collections.abc import Callable
from typing import Any

from benchmarks.steps import runner
from benchmarks.timing import least_seconds
from train import image_flags, image_task, language_flags, language_task, video_flags, video_task
from train.assembly import assemble
from train.task import Task
from train.video_data import load_clips


def measure_data(options: Any) -> dict:
  """Batches of a preset of each task, whose data need no download, as JSON values.

  "share_of_step" is the time of a batch over that of a step: above 1 the devices wait, whatever is
  prefetched.
  """
  makers = {"language": _language, "image": _image, "video": _video}
  runs, items = {}, {}
  for name, make in makers.items():
    task, config = make(options.preset)
    batches = task.train_batches()
    first = next(batches)
    items[name] = task.item, task.count_items(first)
    runs[name, "batch"] = (_discard(batches), ())
    runs[name, "step"] = (
      runner(assemble(task.build, task.loss_fn, config.run, config.optim), first),
      (),
    )
  seconds = least_seconds(runs, options.repeats)
  return {
    f"data_{name}": {
      "milliseconds_per_batch": 1e3 * seconds[name, "batch"],
      "batches_per_second": 1 / seconds[name, "batch"],
      f"{item}_per_second": count / seconds[name, "batch"],
      "milliseconds_per_step": 1e3 * seconds[name, "step"],
      "share_of_step": seconds[name, "batch"] / seconds[name, "step"],
    }
    for name, (item, count) in items.items()
  }


def _discard(batches: Any) -> Callable[[], None]:
  def call() -> None:
    next(batches)

  return call


def _values(command: Any, preset: str) -> dict[str, Any]:
  return command.values(preset) | {"workdir": "none", "data_dir": None}


def _language(preset: str) -> tuple[Task, Any]:
  config = language_flags.COMMAND.build(_values(language_flags.COMMAND, preset))
  return language_task.make_task(config, language_task.load_corpus(config.data)), config


def _image(preset: str) -> tuple[Task, Any]:
  config = image_flags.COMMAND.build(_values(image_flags.COMMAND, preset))
  return image_task.make_task(config, image_task.load_images(config.data)), config


def _video(preset: str) -> tuple[Task, Any]:
  config = video_flags.COMMAND.build(_values(video_flags.COMMAND, preset))
  clips = load_clips(config.data, config.model, None)
  model = video_task.model_config(config.model, len(clips.classes))
  return video_task.make_task(config, model, clips), config
