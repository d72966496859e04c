"""A kernel family: one way to compute products, with all that selection, tuning, verification and launching must know of it.

A family is a folder here, or in a folder that the environment variable ``TOPRUNG_KERNELS`` names, with a module ``family.py`` that
has ``FAMILY``, or ``FAMILIES``: one in several forms, each with a name. Nothing lists the folders, and nothing outside one names
the family in it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toprung import forks
from toprung.device import Device
from toprung.gemm.epilogue import Epilogue
from toprung.tile import Tile

TEST_EDGE = 20
"""Elements that a test problem has beyond whole tiles, so that there are edges to get wrong: five of the widest accesses."""

TEST_SLICES = 3
"""Slices of K that a test problem has at most."""

Switches = tuple[tuple[str, int], ...]
"""Values of a kernel's switches, sorted by name."""

Axes = Mapping[str, tuple[int, ...]]
"""Values of each parameter that a search may try."""

Point = Mapping[str, int]
"""One value for each axis."""


OwnDesc: TypeAlias = Any
"""Type of the products that a family computes, which it names: ``GemmDesc`` or ``Desc``."""

TILE = tuple(one.name for one in fields(Tile))


class KernelConfig(ABC):
    """One configuration of a family: a frozen dataclass that prints itself and encodes itself for the store."""

    @abstractmethod
    def encode(self) -> dict[str, dict[str, int]]:
        """Return the configuration as plain data: ``tile`` and ``options``, names with whole numbers."""

    @abstractmethod
    def decode(self, tile: Mapping[str, int], options: Mapping[str, int]) -> Self:
        """Return the configuration that ``encode`` wrote, absent fields as in this one; ValueError if it is none."""

    @property
    def slices(self) -> int:
        """Slices of K whose results another pass adds."""
        return 1

    def axes(self) -> Axes:
        """Return the values of each field that a search may try."""
        return {}

    def refused(self) -> str:
        """Return why no device runs the kernel, as a sentence; empty where one does."""
        return ""


LEAST = Tile(1, 1)


@dataclass(frozen=True)
class TileConfig(KernelConfig):
    """A tile, with ``SPLIT_K`` where sums are split, and the kernel's switches."""

    tile: Tile = LEAST
    options: Switches = ()

    def encode(self) -> dict[str, dict[str, int]]:
        return {"tile": self.tile.given(), "options": dict(self.options)}

    def decode(self, tile: Mapping[str, int], options: Mapping[str, int]) -> Self:
        try:
            return replace(self, tile=Tile(**tile), options=tuple(sorted(options.items())))
        except TypeError as error:
            raise ValueError(f"it needs a tile, not {dict(tile)}: {error}") from None

    @property
    def slices(self) -> int:
        return self.tile.SPLIT_K or 1

    def __str__(self) -> str:
        return str(self.tile)


def parameter(*values: int, name: str = "", unit: int = 1, optional: bool = False) -> Any:
    """Return a field of a ``FieldsConfig``.

    Parameters
    ----------
    values : the default, and what else a search tries
    name : name in the store, of a tile's parameter or of an option; the field's own by default
    unit : factor of the stored number
    optional : the default is not stored
    """
    return field(default=values[0], metadata={"values": values, "name": name, "unit": unit, "optional": optional})


@dataclass(frozen=True)
class FieldsConfig(KernelConfig):
    """A configuration whose fields are ``parameter``s, from which all else follows.

    Attributes
    ----------
    fixed : parameters of the tile that all configurations share
    former : options that older entries of a store have and that mean nothing now
    """

    fixed: ClassVar[Mapping[str, int]] = {}
    former: ClassVar[frozenset[str]] = frozenset()

    def encode(self) -> dict[str, dict[str, int]]:
        found = dict(self.fixed)
        for name, one, meta in self.stored():
            if (value := getattr(self, one.name)) != one.default or not meta["optional"]:
                found[name] = value * meta["unit"]
        tile = {name: found.pop(name) for name in TILE if name in found}
        return {"tile": tile, "options": dict(sorted(found.items()))}

    def decode(self, tile: Mapping[str, int], options: Mapping[str, int]) -> Self:
        given = {"tile": dict(tile), "options": {name: n for name, n in options.items() if name not in self.former}}
        config = self.of(given["tile"] | given["options"])
        if (nearest := config.encode()) != given:
            raise ValueError(f"no kernel is {given}; the nearest is {nearest}")
        if reason := config.malformed():
            raise ValueError(reason)
        return config

    def of(self, given: Mapping[str, int]) -> Self:
        """Return the configuration with values by their names in a store, among others; its own where there is none."""
        return replace(self, **{one.name: given[name] // meta["unit"] for name, one, meta in self.stored() if name in given})

    def stored(self) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        """Yield the name of each parameter in a store, the field, and what ``parameter`` was told."""
        return ((one.metadata["name"] or one.name, one, one.metadata) for one in fields(self) if one.metadata)

    def axes(self) -> Axes:
        return {one.name: meta["values"] for _, one, meta in self.stored() if len(meta["values"]) > 1}

    @forks.cached_property
    def tile(self) -> Tile:
        """The block as a tile."""
        return Tile(**self.encode()["tile"])

    def malformed(self) -> str:
        """Return why there is no such kernel: ``refused``, unless older entries name what is refused now."""
        return self.refused()

    def __str__(self) -> str:
        return str(self.tile)


@dataclass(frozen=True)
class NoConfig(FieldsConfig):
    """The configuration of somebody else's kernel: there is nothing of ours to choose."""

    def __str__(self) -> str:
        return ""


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from toprung.backends.base import Session
    from toprung.backends.plan import Plan, Run
    from toprung.gemm.desc import Desc, GemmDesc

    Config = TypeVar("Config", bound=KernelConfig, default=Any)
else:
    from typing import TypeVar

    Config = TypeVar("Config")  # defaults of type variables came with Python 3.13


class PackedOperand(Protocol):
    """A B that was split beforehand: the address of its terms, which stay beside it."""

    address: int

    def refused(self, session: Session, call: GemmDesc) -> str:
        """Return why it cannot be B of a product; empty if it can."""


class Launches:
    """The launches of one product with one configuration, compiled and laid out but for addresses, α and β.

    Attributes
    ----------
    plan : what is launched
    packed : function that returns what is launched where B is a ``PackedOperand``; None if no such operand is taken
    call : the product, where one is
    escalated : function that returns how many pieces of C were computed again in plain fp32; it waits for the device
    """

    packed: Callable[[], Plan] | None = None
    call: GemmDesc

    def __init__(self, session: Session, plan: Plan, escalated: Callable[[], int] = lambda: 0) -> None:
        self.session, self.plan, self.escalated = session, plan, escalated

    def starter(self) -> Run:
        """Return a function that puts the launches into a queue. It keeps its arguments in one place: one for each thread."""
        return self.session.launcher(self.plan)

    def prepacked(self) -> Launches:
        """Return the launches where B is prepacked: a run has the address of its terms as ``packed``."""
        assert self.packed is not None
        return Launches(self.session, self.packed()._replace(scales=self.plan.scales), self.escalated)

    def reserve(self, queue: Any = None) -> None:
        """Allocate what a queue needs, so that nothing is while it is captured into a graph."""
        session: Any = self.session
        if self.plan.workspace_bytes:
            session.workspace(queue, self.plan.workspace_bytes)
        if self.plan.flags_bytes:
            session.flags(int(session.queue if queue is None else queue), self.plan.flags_bytes)

    def accepts(self, packed: Any) -> bool:
        """Return True if ``prepacked`` launches take ``packed``, a B that was split beforehand."""
        return self.packed is not None and packed is not None and not packed.refused(self.session, self.call)


def address(thing: Any) -> int:
    """Return the address of a buffer, or of what already is one."""
    if isinstance(thing, int):
        return thing
    handle = getattr(thing, "handle", None)
    return int(thing.pointer if handle is None else handle)


class Member(NamedTuple):
    """One product of a group, C = f(A·B + D), wherever its operands lie; ``epilogue`` is None for C = A·B."""

    desc: GemmDesc
    epilogue: Epilogue | None = None


class GroupLaunches:
    """The launches of a group of products, compiled and laid out, for operands anywhere, from any thread.

    Attributes
    ----------
    kernels : names of the kernels with their configurations
    launches : number of kernels that ``start`` puts into a queue
    counters : functions whose sum is the pieces of C that these kernels, in whatever group, computed again in plain fp32
    """

    def __init__(self, session: Session, plan: Plan, kernels: Iterable[str], counters: Iterable[Callable[[], int]] = ()) -> None:
        self.session, self.plan, self.kernels, self.counters = session, plan, tuple(kernels), tuple(counters)
        self.launches = len(plan.launches)
        self._mine = threading.local()
        self._mine.run = session.launcher(plan)  # errors show now

    def start(self, queue: Any, addresses: NDArray[np.int64]) -> None:
        """Put the launches into a queue (None: the session's own); never waits.

        ``addresses``: of A, B, C and D in bytes, a row each with as many as there are products; D's is 0 where nothing is added.
        """
        try:
            run = self._mine.run
        except AttributeError:
            run = self._mine.run = self.session.launcher(self.plan)
        run(0, 0, 0, 0, 0, 0, 1.0, 0.0, queue, operands=np.ascontiguousarray(addresses))


MOST = 5
"""Best configurations of a family, by its prediction, that selection is told of."""


class Groups(NamedTuple):
    """A family's launches of several products together.

    Attributes
    ----------
    share : function that returns the predicted seconds that a product adds to a launch with others; infinite if it cannot be one
    launches : function that compiles and lays out the launches of products, for each of which ``share`` is finite and ``epilogues``
        has all that it needs. All have the same activation. A graph may hold the launches: nothing that they need is uploaded. It
        raises BuildError or LaunchError where the device cannot run them; nothing was launched
    """

    share: Callable[[Device, GemmDesc], float]
    launches: Callable[[Session, Sequence[Member]], GroupLaunches]


class KernelFamily(ABC, Generic[Config]):
    """One kernel family.

    Attributes
    ----------
    name : as receipts and the store name it
    config : one of its configurations: others are decoded from it, and it has the axes of a search
    ranked : True if ``toprung.lab.bounds.rank`` predicts its configurations, tunable blocks
    predicts : True if its model tells configurations apart well enough to overrule a measured neighbour
    precision : accuracy class that it promises, by its name in ``toprung.oracle.precision``
    own : True for kernels of toprung's own, False for what is installed
    memory : where operands lie, ``"device"`` or ``"host"``
    operand_dtypes : names of the types that A and B may have, in any mix; only of those that it takes is it asked anything
    margin : factor by which its prediction must be below plain fp32's for ``auto`` to take it, where its class is not fp32
    epilogues : what it can do with α·op(A)·op(B) on the way out, beside adding β·C: ``ADDEND`` and names of activations
    groups : how it computes several products in one launch; None if it does not
    packs : function of session, product, address of B and queue that returns a B laid out for any number of products, of which
        ``Launches.accepts`` says which take it; B stays as it is as long as that. None if the family has no such layout
    release : function that returns the version of an installed library, which identifies the code; None: a hash of ``texts`` does
    reproducible : ``"run"`` if the same product on the same device gives the same bits each time, ``""`` if nothing is promised
    """

    name: ClassVar[str]
    config: Config = NoConfig()  # type: ignore[assignment]
    ranked: ClassVar[bool] = False
    predicts: ClassVar[bool] = False
    precision: ClassVar[str] = "fp32"
    own: ClassVar[bool] = True
    memory: ClassVar[str] = "device"
    operand_dtypes: ClassVar[frozenset[str]] = frozenset({"float32"})
    margin: ClassVar[float] = 1.2
    epilogues: ClassVar[frozenset[str]] = frozenset()
    groups: ClassVar[Groups | None] = None
    packs: ClassVar[Callable[..., Any] | None] = None
    release: ClassVar[Callable[[], str] | None] = None
    reproducible: ClassVar[str] = "run"

    # what selection asks

    @abstractmethod
    def supports(self, device: Device, desc: Desc) -> str:
        """Return why the family cannot compute a product on a device, as a sentence; empty if it can."""

    @abstractmethod
    def cost(self, device: Device, desc: OwnDesc, config: Config) -> float:
        """Return the predicted seconds of a product; infinite where nothing is known of the configuration."""

    def weighed(self, device: Device, desc: OwnDesc, most: int = MOST) -> Iterable[tuple[float, Config]]:
        """Return the configurations worth considering, each behind its predicted seconds.

        ``supports`` allows the product. The ``most`` fastest must be among them; of equally fast ones the first is taken.
        """
        return [(self.cost(device, desc, self.config), self.config)]

    def reason(self, device: Device, desc: OwnDesc, config: Config) -> str:
        """Return why the model would take a configuration, a sentence for the receipt."""
        return ""

    # what running asks

    @abstractmethod
    def compile(self, session: Session, desc: OwnDesc, config: Config, epilogue: Epilogue | None = None) -> Launches:
        """Compile and lay out the launches. K = 0 and empty results never get here.

        With an epilogue, of which ``epilogues`` has all that it needs, their ``Run`` takes one argument more, ``addend``: the
        address of D, which is read where β is not 0. With α = 0 this is called only if there is an epilogue.

        Raises
        ------
        BuildError, IllegalTile, LaunchError
            the device cannot run the configuration; nothing was launched
        """

    # what the store asks

    def adapt(self, device: Device, desc: OwnDesc, config: Config, measured: OwnDesc, exact: bool) -> Config | str:
        """Return a configuration measured on one product, adapted to another, or why it does not fit.

        Parameters
        ----------
        measured : the product it was measured on
        exact : True if both have the same sizes: the number of K slices stays as it is
        """
        return config

    def texts(self, backend: str) -> Iterable[str]:
        """Return every source text that the family's launches consist of, a backend's prelude before OpenCL C."""
        return ()

    # what verification and the tuner ask

    def test_problem(self, desc: OwnDesc, config: Config) -> tuple[tuple[int, int, int], Config]:
        """Return (rows, columns, K) of a small problem with edges in every direction, and its configuration.

        The default is for configurations that have a tile and do not split K.
        """
        tile: Tile = config.tile  # type: ignore[attr-defined]
        return (tile.BM + TEST_EDGE, tile.BN + TEST_EDGE, TEST_SLICES * (tile.BK or 1) + TEST_EDGE), config

    def __repr__(self) -> str:
        return f"<kernel family {self.name}>"


def candidates(family: KernelFamily, device: Device, desc: Desc) -> list[Any]:
    """Return all configurations that a family weighs for a product."""
    return [config for _, config in family.weighed(device, desc, 1 << 30)]


def version(family: KernelFamily, backend: str) -> str:
    """Return what identifies the code behind a family on a backend: a hash of sources, or an installed library's version."""
    if release := type(family).release:  # not bound to the family
        return release()
    from toprung.kernels.tokens import source_digest  # it compiles regular expressions, which the host's BLAS does not need

    return source_digest(family.texts(backend))


class SearchedFamily(KernelFamily[Config]):
    """A family with a space that the tuner searches; by default all values of its configuration's fields."""

    def space(self, device: Device, desc: OwnDesc) -> Axes:
        """Return the axes of a search for a supported product; empty where there is nothing to search."""
        return self.config.axes()

    def at(self, device: Device, desc: OwnDesc, point: Point) -> Config | None:
        """Return the configuration at a point of the axes; None if it is not legal."""
        config: Any = replace(self.config, **point)  # type: ignore[type-var]
        return None if config.refused() else config

    def point(self, config: Config) -> Point:
        """Return the point nearest to a configuration: the inverse of ``at``."""
        return {name: getattr(config, name) for name in self.config.axes()}

    def starts(self, device: Device, desc: OwnDesc) -> Iterator[Point] | None:
        """Return points from which a search starts; None for all of the space."""
        return None

    def search_cost(self, device: Device, desc: OwnDesc, config: Config) -> float:
        """Return the prediction by which a search orders configurations; what is small is tried first."""
        return self.cost(device, desc, config)


class HostFamily(KernelFamily[Config]):
    """A family for arrays in the host's memory."""

    memory = "host"

    @abstractmethod
    def host_seconds(self, flops: int) -> float:
        """Return the predicted seconds of a product by its operations."""
