import jax
import numpy as np
import pytest

from data import synthetic

KEY = jax.random.key(5)


def read(task, batch):
  """Frames [rows, frames, size, size], from the tokens."""
  inputs, side = np.asarray(batch["inputs"]), task.size // task.patch
  pixels, places, flags = np.split(inputs, [task.patch**2, inputs.shape[-1] - 1], axis=-1)
  assert (flags[..., 0] == [0] * (task.length - 1) + [1]).all()
  assert not inputs[:, -1, :-1].any()
  frames = np.full((len(inputs), task.frames, task.size, task.size), np.nan)
  for token in range(task.length - 1):
    frame, patch = divmod(token, side * side)
    assert (places[:, token] == np.eye(side * side)[patch]).all()
    top, left = task.patch * np.array(divmod(patch, side))
    window = frames[:, frame, top : top + task.patch, left : left + task.patch]
    window[:] = pixels[:, token].reshape(-1, task.patch, task.patch)
  return frames


def find_ball(frame, ball):
  """Top-left pixel of the ball, or None in a blank frame."""
  if not frame.any():
    return None
  size = len(frame)
  picture = np.zeros((size, size))
  picture[:ball, :ball] = 1
  found = [
    (row, column)
    for row in range(size)
    for column in range(size)
    if (np.roll(picture, (row, column), (0, 1)) == frame).all()
  ]
  assert len(found) == 1
  return np.array(found[0])


def solve(corners, size):
  """The quadrant in the last frame: of the ball seen there, or where its motion leads."""
  if corners[-1] is None:
    last = max(index for index, corner in enumerate(corners) if corner is not None)
    velocity = corners[last] - corners[last - 1]
    end = corners[last] + velocity * (len(corners) - 1 - last)
  else:
    end = corners[-1]
  down, right = end % size >= size // 2
  return 2 * down + right


TASKS = [
  synthetic.Occlusion(),
  synthetic.Occlusion(until_end=True),
  synthetic.Occlusion(frames=5, hidden=3, until_end=True, size=6, patch=3, ball=3, max_speed=4),
  synthetic.Occlusion(frames=4, hidden=3, size=4, patch=1, ball=1, max_speed=1),
]


@pytest.mark.parametrize("task", TASKS)
def test_the_motion_of_the_seen_ball_answers(task):
  rows = 100
  batch = jax.tree.map(np.asarray, task.sample(KEY, rows))
  frames = read(task, batch)
  corners = [[find_ball(frame, task.ball) for frame in row] for row in frames]
  hidden = [[corner is None for corner in row] for row in corners]
  assert hidden == [[index in task.hidden_frames for index in range(task.frames)]] * rows
  assert (batch["mask"] == [False] * (task.length - 1) + [True]).all()
  answers = np.array([solve(row, task.size) for row in corners])
  assert (answers == batch["targets"][:, -1]).mean() == task.ceiling() == 1.0
  assert set(answers) == {0, 1, 2, 3}


@pytest.mark.parametrize("until_end", [True, False])
def test_each_sample_may_hide_another_number_of_frames(until_end):
  task = synthetic.Occlusion(hidden=6, fewest_hidden=1, until_end=until_end)
  batch = jax.tree.map(np.asarray, task.sample(KEY, 120))
  corners = [[find_ball(frame, task.ball) for frame in row] for row in read(task, batch)]
  assert [solve(row, 16) for row in corners] == batch["targets"][:, -1].tolist()
  counts = []
  for row in corners:
    hidden = [index for index, corner in enumerate(row) if corner is None]
    alone = synthetic.Occlusion(hidden=len(hidden), until_end=until_end)
    assert hidden == list(alone.hidden_frames)
    counts.append(len(hidden))
  found, times = np.unique(counts, return_counts=True)
  assert found.tolist() == [1, 2, 3, 4, 5, 6]
  np.testing.assert_allclose(times / 120, 1 / 6, atol=0.1)


def test_the_velocity_is_constant_and_uniform_without_standing_still():
  task = synthetic.Occlusion(frames=4, hidden=0, size=8, ball=2)
  frames = read(task, task.sample(KEY, 600))
  corners = np.array([[find_ball(frame, 2) for frame in row] for row in frames])
  steps = (np.diff(corners, axis=1) + 4) % 8 - 4
  assert (steps == steps[:, :1]).all()
  velocities, counts = np.unique(steps[:, 0], axis=0, return_counts=True)
  expected = [[row, column] for row in range(-2, 3) for column in range(-2, 3) if row or column]
  assert velocities.tolist() == expected
  np.testing.assert_allclose(counts / 600, 1 / 24, atol=0.03)
  starts = np.bincount(corners[:, 0] @ [8, 1], minlength=64)
  assert starts.min() > 0  # anywhere, the far edge included


@pytest.mark.parametrize(
  ("fields", "expected"),
  [
    ({}, [2, 3, 4, 5]),
    ({"until_end": True}, [4, 5, 6, 7]),
    ({"hidden": 3}, [2, 3, 4]),
    ({"hidden": 7}, [0, 1, 2, 3, 4, 5, 6]),
    ({"hidden": 6, "until_end": True}, [2, 3, 4, 5, 6, 7]),
    ({"hidden": 0}, []),
    ({"hidden": 0, "until_end": True}, []),
  ],
)
def test_which_frames_are_hidden(fields, expected):
  assert list(synthetic.Occlusion(**fields).hidden_frames) == expected


def test_hiding_changes_neither_the_ball_nor_the_answer():
  seen = synthetic.Occlusion(hidden=0).sample(KEY, 20)
  task = synthetic.Occlusion(until_end=True)
  hidden = task.sample(KEY, 20)
  np.testing.assert_array_equal(seen["targets"], hidden["targets"])
  begin = task.hidden_frames.start * task.patches
  np.testing.assert_array_equal(seen["inputs"][:, :begin], hidden["inputs"][:, :begin])
  assert not np.asarray(hidden["inputs"])[:, begin:, : task.patch**2].any()


def test_lessons_ask_after_every_frame_and_change_nothing_else():
  alone, lesson, exam = (
    synthetic.Occlusion(until_end=True, **how).sample(KEY, 8)
    for how in ({}, {"ask_each_frame": True}, {"ask_each_frame": True, "count_last": True})
  )
  side = 17  # patches of a frame, and its query
  is_query = (np.arange(8 * side) + 1) % side == 0
  np.testing.assert_array_equal(lesson["mask"], np.broadcast_to(is_query, (8, 8 * side)))
  np.testing.assert_array_equal(
    np.asarray(lesson["inputs"])[:, ~is_query], np.asarray(alone["inputs"])[:, :-1]
  )
  assert not np.asarray(lesson["inputs"])[:, is_query, :-1].any()
  assert (np.asarray(lesson["inputs"])[:, is_query, -1] == 1).all()
  np.testing.assert_array_equal(lesson["inputs"], exam["inputs"])
  assert (np.asarray(exam["mask"]).sum(axis=1) == 1).all()
  for batch in (lesson, exam):
    np.testing.assert_array_equal(batch["targets"][:, -1], alone["targets"][:, -1])
  # While the ball is seen, the answer is where it is.
  task = synthetic.Occlusion(until_end=True)
  for row, frames in enumerate(read(task, alone)):
    for frame in range(4):
      down, right = find_ball(frames[frame], task.ball) >= task.size // 2
      assert lesson["targets"][row, frame * side + side - 1] == 2 * down + right
