"""What a trainer trains on: the rows of docs/samples.md.

`read(path_or_bytes)` takes both forms, JSON lines and the binary one. Arrays of the binary form are views of its bytes
(of a file: of its mapping), nothing is copied: numpy arrays when numpy is there, else memoryviews of the same type.

    for sample in postern.samples.read("samples.bin"):
        sample.token_ids, sample.mask, sample.logprobs, sample.provenance   # one entry per token
        sample.reward, sample.rollout_id, sample.group_id, sample.turns     # and every other member of the row
"""

from __future__ import annotations

import array
import json
import math
import mmap
import pathlib
import struct
import sys
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

try:
    import numpy
except ImportError:  # the arrays are memoryviews then
    numpy = None  # type: ignore[assignment]

PROMPT, SAMPLED, GLUE, RE_RENDERED = range(4)
PROVENANCE = ("prompt", "sampled", "glue", "re_rendered")

MAGIC = b"POSTERNS"
VERSION = 1
_HEAD = struct.Struct("<8sIIQQQQ")
_RECORD = struct.Struct("<Q4sIQQQdQQQQQQQQQQ")
_ARRAYS = ("token_ids", "logprobs", "mask", "provenance")
_TYPES = {"token_ids": ("i", 4, "<i4"), "logprobs": ("f", 4, "<f4"), "mask": ("B", 1, "u1"), "provenance": ("B", 1, "u1")}


class Sample:
    """One row. Members of its JSON are attributes; so are the arrays. Of a row of messages the arrays are None."""

    __slots__ = ("meta", "token_ids", "logprobs", "mask", "provenance", "policy_versions", "context_differs")

    def __init__(self, meta: Dict[str, Any], arrays: Dict[str, Any], versions: Any, differs: Any) -> None:
        self.meta = meta
        self.token_ids, self.logprobs = arrays["token_ids"], arrays["logprobs"]
        self.mask, self.provenance = arrays["mask"], arrays["provenance"]
        self.policy_versions, self.context_differs = versions, differs

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "meta")[name]
        except KeyError:
            raise AttributeError(f"a sample has no {name!r}") from None

    def __len__(self) -> int:
        return 0 if self.token_ids is None else len(self.token_ids)

    def __repr__(self) -> str:
        return (f"<postern.Sample {self.meta.get('rollout_id')}/{self.meta.get('sample')} {len(self)} tokens, "
                f"{self.meta.get('trained_count')} trained, reward {self.meta.get('reward')}>")

    def versions(self, unknown: int = -1) -> List[int]:
        """The version of the weights behind each token; `unknown` where there is none."""
        out = [unknown] * len(self)
        for start, end, version in self.policy_versions:
            out[int(start):int(end)] = [int(version)] * int(end - start)
        return out


class Samples(Sequence[Sample]):
    """Rows of the binary form: read when they are asked for, as views of `data`."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data).toreadonly()
        if len(self.data) < 64:
            raise ValueError(f"these are no samples: {len(self.data)} bytes")
        magic, version, _, count, table, _, total = _HEAD.unpack_from(self.data)
        if magic != MAGIC:
            raise ValueError(f"these are no samples: they begin with {magic!r}")
        if version != VERSION:
            raise ValueError(f"these samples have version {version}; this reader knows {VERSION}")
        if total > len(self.data) or table + 8 * count > total:
            raise ValueError(f"these samples are cut: {len(self.data)} bytes of {total}")
        self._places = struct.unpack_from(f"<{count}Q", self.data, table)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return self._read(self._places[at])

    def _read(self, place: int) -> Sample:
        if place + _RECORD.size > len(self.data):
            raise ValueError("a sample begins outside of its file")
        (size, magic, kind, tokens, versions, differs, _, ids_at, logprobs_at, mask_at, provenance_at, versions_at, differs_at,
         meta_at, meta_size, _, _) = _RECORD.unpack_from(self.data, place)
        if magic != b"SMPL" or place + size > len(self.data):
            raise ValueError("a sample is damaged")
        record = self.data[place:place + size]
        places = {"token_ids": ids_at, "logprobs": logprobs_at, "mask": mask_at, "provenance": provenance_at}
        arrays = {name: _view(record, places[name], tokens, *_TYPES[name]) if kind == 0 else None for name in _ARRAYS}
        return Sample(json.loads(bytes(record[meta_at:meta_at + meta_size])), arrays,
                      _spans(record, versions_at, versions, 3), _spans(record, differs_at, differs, 2))


def _view(record: memoryview, at: int, count: int, letter: str, wide: int, dtype: str) -> Any:
    if at + count * wide > len(record):
        raise ValueError("a sample is damaged: an array ends outside of it")
    if numpy is not None:
        return numpy.frombuffer(record, dtype=dtype, count=count, offset=at)
    part = record[at:at + count * wide]
    if sys.byteorder == "little" or wide == 1:
        return part.cast(letter)
    swapped = array.array(letter, part.tobytes())
    swapped.byteswap()
    return memoryview(swapped)


def _spans(record: memoryview, at: int, count: int, width: int) -> List[Tuple[int, ...]]:
    if at + count * width * 8 > len(record):
        raise ValueError("a sample is damaged: its spans end outside of it")
    return [struct.unpack_from(f"<{width}q", record, at + i * width * 8) for i in range(count)]


def _from_line(line: Union[str, bytes]) -> Sample:
    row = json.loads(line)
    arrays = {name: row.pop(name, None) for name in _ARRAYS}
    if arrays["token_ids"] is not None:
        for name, values in arrays.items():
            letter, _, dtype = _TYPES[name]
            arrays[name] = numpy.array(values, dtype=dtype) if numpy is not None else memoryview(array.array(letter, values))
    return Sample(row, arrays, [tuple(span) for span in row.get("policy_versions", [])],
                  [tuple(span) for span in row.get("context_differs", [])])


def read_lines(source: Union[str, bytes, pathlib.Path]) -> Iterator[Sample]:
    """Rows of samples.jsonl, one after the other: of a file by its path, or of what an answer held."""
    if isinstance(source, pathlib.Path) or (isinstance(source, str) and "\n" not in source and not source.startswith("{")):
        with open(source, "rb") as file:
            for line in file:
                if line.strip():
                    yield _from_line(line)
        return
    for each in source.splitlines():
        if each.strip():
            yield _from_line(each)


def read(source: Union[str, bytes, bytearray, memoryview, pathlib.Path]) -> Sequence[Sample]:
    """Rows in either form. A file of the binary form is mapped, so that only what is used is read."""
    if isinstance(source, (str, pathlib.Path)):
        with open(source, "rb") as file:
            if file.read(8) != MAGIC:
                return list(read_lines(pathlib.Path(source)))
            return Samples(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if bytes(memoryview(source)[:8]) == MAGIC:
        return Samples(source)
    return list(read_lines(bytes(source)))


def importance(sample: Sample, logprobs: Sequence[float]) -> List[float]:
    """exp(new - old) for each trained token, in order: 1 everywhere when the policy has not changed."""
    if len(logprobs) != len(sample):
        raise ValueError(f"the row has {len(sample)} tokens, there are {len(logprobs)} log-probabilities")
    return [math.exp(float(logprobs[i]) - float(sample.logprobs[i])) for i in range(len(sample)) if sample.mask[i]]


def with_advantages(samples: Sequence[Sample], advantages: Optional[Dict[str, Optional[float]]] = None,
                    scale: bool = True) -> List[Tuple[Sample, float]]:
    """Each row with its group-relative advantage: the distance of its rollout's reward from the mean over the rollouts of its
    group, in standard deviations (`scale=False`: as it is). All rows of a rollout share it. Rows of rollouts without a reward are left
    out; a group whose rewards are equal gives zeros. `advantages` by rollout id may be given instead."""
    from .training import advantages as relative
    if advantages is None:
        groups: Dict[Any, Dict[str, Optional[float]]] = {}
        for sample in samples:
            groups.setdefault(sample.group_id or sample.rollout_id, {})[sample.rollout_id] = sample.reward
        advantages = {}
        for rewards in groups.values():
            advantages.update(zip(rewards, relative(list(rewards.values()), scale=scale)))
    pairs = ((sample, advantages.get(sample.rollout_id)) for sample in samples)
    return [(sample, value) for sample, value in pairs if value is not None]
