"""Descriptions of public chips, read from ``chips.toml``: figures with units and sources, nothing measured here.

For planning, teaching and tests. A figure that the vendor does not state is None, never zero.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ort_metainfer.errors import ProviderError

__all__ = ["Chip", "Figure", "Link", "OperatorFamily", "all_chips", "get_chip", "load_chips"]

SCHEMA = 1
FILE = Path(__file__).with_name("chips.toml")
KINDS = ("cpu", "gpu", "npu", "dsp", "fpga")

UNITS: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "TOP/s": (0.5e12, "MAC/s"),
        "GOP/s": (0.5e9, "MAC/s"),
        "TMAC/s": (1e12, "MAC/s"),
        "GMAC/s": (1e9, "MAC/s"),
        "GB/s": (1e9, "B/s"),
        "MB/s": (1e6, "B/s"),
        "GB": (1e9, "B"),
        "MB": (1e6, "B"),
        "GiB": (2.0**30, "B"),
        "MiB": (2.0**20, "B"),
        "KiB": (2.0**10, "B"),
        "us": (1e-6, "s"),
        "ms": (1e-3, "s"),
        "W": (1.0, "W"),
        "1": (1.0, "1"),
    }
)
"""Unit in the file -> factor and unit computed in. An operation is a multiply or an add: two make a
multiply-accumulate."""

_FIGURES = ("bandwidth", "memory", "on_chip", "units", "power")
_USAGE = ("compute_efficiency", "memory_efficiency", "launch", "call", "tile")
_TEXTS = ("name", "title", "vendor", "kind", "host", "link", "family", "note", "quantised")
_KEYS = {*_TEXTS, *_FIGURES, *_USAGE, "channel_alignment", "static_shapes", "keeps_weights", "peak"}


@dataclass(frozen=True)
class Figure:
    """One figure: ``value`` in ``unit`` (``MAC/s``, ``B/s``, ``B``, ``s``, ``W``, ``1``).

    Attributes:
        stated: as the file has it (``130 TOP/s``).
        source: document, or a sentence that begins with ``derived:`` or ``assumed:``.
        doubtful: why it should not be leaned on; empty where nothing speaks against it.
        was_read: whether the document was read for this file; otherwise it is named from common knowledge.
    """

    value: float
    unit: str
    stated: str
    source: str
    doubtful: str = ""
    was_read: bool = False


@dataclass(frozen=True)
class Link:
    """How inputs and outputs reach a chip; without ``bandwidth`` it shares the host's memory."""

    name: str
    latency: Figure
    bandwidth: Figure | None = None
    efficiency: Figure | None = None


@dataclass(frozen=True)
class OperatorFamily:
    """Which operators a family of chips runs: all but ``missing``, or ``operators`` only where there are any."""

    name: str
    source: str
    operators: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def has(self, operator: str) -> bool:
        """Whether it runs ``operator``; a name that ends in ``*`` stands for all that begin like it."""
        if self.operators:
            return _matches(operator, self.operators)
        return not _matches(operator, self.missing)


def _matches(operator: str, names: tuple[str, ...]) -> bool:
    return any(operator == name or (name[-1:] == "*" and operator.startswith(name[:-1])) for name in names)


@dataclass(frozen=True)
class Chip:
    """One described chip.

    Attributes:
        name: identifier (``nvidia-t4``).
        title: name for people; ``vendor`` who makes it.
        kind: ``cpu``, ``gpu``, ``npu``, ``dsp`` or ``fpga``.
        link: how inputs and outputs reach it; ``family`` which operators it runs.
        host: name of the described processor it usually sits beside; None for a processor.
        peak: element type -> dense peak in MAC/s.
        bandwidth: of its memory, B/s; None where it has no memory but its own on-chip one.
        memory: bytes of memory of its own; None where it shares the host's or it is not stated.
        on_chip: bytes of on-chip memory or last cache.
        units: compute units that work on one layer side by side (SMs, CUs, cores).
        power: watts, as stated (TDP, typical).
        channel_alignment: channels are padded to a multiple of this; None: not stated.
        static_shapes: whether it takes graphs of fixed shapes only.
        quantised: ``any``, ``preferred`` or ``required``, as
            :class:`~ort_metainfer.providers.capabilities.Constraints` has it.
        keeps_weights: whether weights stay on the chip between runs where they fit.
        usage: efficiencies and overheads by name, the chip's own or its kind's.
        note: what a planner should know of it; ``origin`` the file that describes it.
    """

    name: str
    title: str
    vendor: str
    kind: str
    link: Link
    family: OperatorFamily
    peak: Mapping[str, Figure]
    usage: Mapping[str, Figure]
    host: str | None = None
    bandwidth: Figure | None = None
    memory: Figure | None = None
    on_chip: Figure | None = None
    units: Figure | None = None
    power: Figure | None = None
    channel_alignment: int | None = None
    static_shapes: bool = False
    quantised: Literal["any", "preferred", "required"] = "any"
    keeps_weights: bool = False
    note: str = ""
    origin: str = field(default="", compare=False)

    def figures(self) -> dict[str, Figure]:
        """Every figure that is known, by name, those of its link and usage included."""
        own = {f"peak/{dtype}": figure for dtype, figure in self.peak.items()}
        own |= {name: figure for name in _FIGURES if (figure := getattr(self, name)) is not None}
        link = {"latency": self.link.latency, "bandwidth": self.link.bandwidth, "efficiency": self.link.efficiency}
        own |= {f"link/{name}": figure for name, figure in link.items() if figure is not None}
        return own | {f"usage/{name}": figure for name, figure in self.usage.items()}


@lru_cache(maxsize=1)
def all_chips() -> Mapping[str, Chip]:
    """The chips that come with the package, by name, in the order of the file."""
    return load_chips(FILE)


def get_chip(name: str, chips: Mapping[str, Chip] | None = None) -> Chip:
    """The chip of that name, or the only one whose name contains it.

    Raises:
        ProviderError: there is none, or several; with the names there are.
    """
    known = all_chips() if chips is None else chips
    wanted = name.lower()
    if wanted in known:
        return known[wanted]
    near = [chip for chip in known.values() if wanted in chip.name or wanted in chip.title.lower()]
    if len(near) == 1:
        return near[0]
    names = ", ".join(chip.name for chip in near or known.values())
    raise ProviderError(f"{'several' if near else 'no'} described chips match {name!r}; there are: {names}")


def load_chips(file: Path) -> Mapping[str, Chip]:
    """The chips that a file describes, in the form of the package's own ``chips.toml``.

    Raises:
        ProviderError: it cannot be read, or an entry is not as it must be.
    """
    try:
        plain = tomllib.loads(file.read_text(encoding="utf-8"))
        if plain.get("schema") != SCHEMA:
            raise ProviderError(f"chip descriptions {file} must have schema = {SCHEMA}, got {plain.get('schema')!r}")
        chips = [_Reader(plain, str(file)).chip(entry) for entry in plain["chip"]]
    except OSError as error:
        raise ProviderError(f"cannot read chip descriptions {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProviderError(f"chip descriptions {file} are not TOML: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ProviderError(f"chip descriptions {file}: {type(error).__name__}: {error}") from error
    known = {chip.name: chip for chip in chips}
    for chip in chips:
        _check(chip, known, file)
    return MappingProxyType(known)


def _check(chip: Chip, known: Mapping[str, Chip], file: Path) -> None:
    """Raise where a chip could not be reckoned with."""
    host = known.get(chip.host or chip.name)
    if (chip.host is None) != (chip.kind == "cpu") or host is None or host.kind != "cpu":
        raise ProviderError(
            f"chip descriptions {file}: {chip.name} needs a described processor as host, got {chip.host!r}"
        )
    if chip.bandwidth is None and chip.link.bandwidth is None:
        raise ProviderError(f"chip descriptions {file}: {chip.name} states neither its memory's bandwidth nor a link's")
    if not chip.peak:
        raise ProviderError(f"chip descriptions {file}: {chip.name} states no peak")


class _Reader:
    """Makes chips of the tables of one file."""

    def __init__(self, plain: Mapping[str, Any], file: str) -> None:
        self._plain, self._file = plain, file

    def chip(self, entry: Mapping[str, Any]) -> Chip:
        strays = sorted(set(entry) - _KEYS)
        if strays:
            raise ValueError(
                f"{entry.get('name')} has the unknown key {strays[0]!r}; known: {', '.join(sorted(_KEYS))}"
            )
        if entry["kind"] not in KINDS:
            raise ValueError(f"{entry['name']} is of kind {entry['kind']!r}; must be one of {', '.join(KINDS)}")
        usage = {**self._plain["defaults"][entry["kind"]], **{name: entry[name] for name in _USAGE if name in entry}}
        plain = {key: value for key, value in entry.items() if key not in {*_FIGURES, *_USAGE, "peak"}}
        family = dict(self._plain["family"][entry["family"]])
        return Chip(
            **{
                **plain,
                "link": self._link(entry["link"]),
                "family": OperatorFamily(
                    entry["family"],
                    self._source(family["source"])[0],
                    tuple(family.get("operators", ())),
                    tuple(family.get("missing", ())),
                ),
                "peak": {dtype: self._figure(figure, "MAC/s") for dtype, figure in entry["peak"].items()},
                "usage": {name: self._figure(figure) for name, figure in usage.items()},
                "origin": self._file,
                **{name: self._figure(entry[name]) for name in _FIGURES if name in entry},
            }
        )

    def _link(self, name: str) -> Link:
        return Link(name, **{key: self._figure(figure) for key, figure in self._plain["link"][name].items()})

    def _figure(self, plain: Mapping[str, Any], wanted: str | None = None) -> Figure:
        factor, unit = UNITS[plain["unit"]]
        if wanted is not None and unit != wanted:
            raise ValueError(f"{plain['value']} {plain['unit']} is no figure in {wanted}")
        source, was_read = self._source(plain["source"])
        stated = f"{plain['value']:g} {plain['unit']}".removesuffix(" 1")
        return Figure(plain["value"] * factor, unit, stated, source, plain.get("doubtful", ""), was_read)

    def _source(self, name: str) -> tuple[str, bool]:
        """A document's title and whether it was read; what begins with ``derived:`` or ``assumed:`` stands as it is."""
        if name.startswith(("derived:", "assumed:")):
            return name, False
        document = self._plain["sources"][name]
        return document["title"], bool(document.get("read"))
