"""Tokens as text, as they come."""

import codecs

from data.text import Tokenizer


class Typewriter:
  """Turns tokens into text one by one, such that the pieces join to the text of them all.

  Args:
    tokenizer: of the tokens.
  """

  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer
    self._bytes = None
    if tokenizer.to_dict()["kind"] == "byte":
      self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
    self._last = []

  def type(self, token: int) -> str:
    """The text that a token adds; "" while a character has more bytes to come."""
    if self._bytes is not None:
      return self._bytes.decode(bytes([token]))
    before = self._tokenizer.decode(self._last)  # what stands between two words depends on both
    text = self._tokenizer.decode([*self._last, token])
    self._last = [token]
    return text[len(before) :]

  def finish(self) -> str:
    """What is left of a character whose last bytes never came."""
    return "" if self._bytes is None else self._bytes.decode(b"", final=True)
