"""The one error that a data set on disk can cause."""


class DatasetError(ValueError):
  """A data set is missing, damaged or unusable.

  The message is one line, meant for the user as it stands: it names the file or directory,
  what is wrong with it and what would be right.
  """
