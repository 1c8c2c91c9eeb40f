"""TFDS builder of CUB-200-2011 from its archive: ArrayRecord files, served at random access."""

import dataclasses
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath

import tensorflow_datasets as tfds

from data.birds import FOLDER, LISTS, SPLITS, by_split
from data.errors import DatasetError
from data.image_file import EncodedImage
from data.prepared import LocalInfo, prepared


@dataclasses.dataclass(eq=False)
class BirdsConfig(tfds.core.BuilderConfig):
  """One archive.

  Attributes:
    archive: `CUB_200_2011.tgz`. `name` must change with it: it is the cache key.
  """

  archive: Path = Path()


class Birds(tfds.core.GeneratorBasedBuilder):
  """Images of CUB-200-2011 as they are in its archive, `{"name", "image"}`, in its own split.

  Reference: Wah et al. (2011), The Caltech-UCSD Birds-200-2011 Dataset.
  """

  VERSION = tfds.core.Version("1.0.0")
  builder_config: BirdsConfig

  def _info(self) -> tfds.core.DatasetInfo:
    features = {"name": tfds.features.Text(), "image": tfds.features.Text()}  # encoded, as bytes
    return LocalInfo(
      builder=self,
      description=self.__doc__,
      features=tfds.features.FeaturesDict(features),
      disable_shuffling=True,
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> Mapping[str, Iterator]:
    del dl_manager  # the archive is at hand
    archive = self.builder_config.archive
    names = by_split(dict(_members(archive, set(LISTS))), archive)
    return {split: self._generate_examples(names[split]) for split in SPLITS}

  def _generate_examples(self, names: Sequence[str]) -> Iterator[tuple[int, dict[str, bytes]]]:
    archive, missing = self.builder_config.archive, {f"images/{name}": name for name in names}
    for name, content in _members(archive, set(missing)):
      yield len(names) - len(missing), {"name": missing.pop(name).encode(), "image": content}
    if missing:
      raise DatasetError(
        f"{archive}: lacks {len(missing)} of {len(names)} images, as {next(iter(missing))};"
        " download it anew"
      )


def read_archive(archive: Path) -> dict[str, list[EncodedImage]]:
  """The images of an archive, by split, from the data cache.

  Raises:
    DatasetError: if the archive is damaged, or there is no room for its images.
  """
  stat = archive.stat()
  name = f"{stat.st_size:x}-{stat.st_mtime_ns:x}"
  config = BirdsConfig(name=name, description=str(archive), archive=archive)

  def read(builder: Birds) -> dict[str, list[EncodedImage]]:
    sources = {split: builder.as_data_source(split=split) for split in SPLITS}
    return {split: _images(source, f"{archive}: {split}") for split, source in sources.items()}

  return prepared(Birds, config, read)


def _images(source: Sequence[Mapping[str, bytes]], where: str) -> list[EncodedImage]:
  def image(index: int) -> EncodedImage:
    return EncodedImage(f"{where}, image {index}", lambda: source[index]["image"])

  return [image(index) for index in range(len(source))]


def _members(archive: Path, wanted: Set[str]) -> Iterator[tuple[str, bytes]]:
  """Some files of the archive, named from its folder CUB_200_2011 on, each of them once."""
  left = set(wanted)
  try:
    with tarfile.open(archive, "r|*") as file:
      for member in file:
        parts = PurePosixPath(member.name).parts
        name = "/".join(parts[parts.index(FOLDER) + 1 :]) if FOLDER in parts else ""
        if member.isfile() and name in left:
          left.remove(name)
          yield name, file.extractfile(member).read()
        if not left:
          return
  except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
    reason = " ".join(str(error).split())
    raise DatasetError(f"{archive}: not an archive that can be read ({reason})") from error
