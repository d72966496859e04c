"""Cost model of the library's block kernel, by ``bounds.rank``: predicted seconds of a configuration, and a lower bound of them.

order = Ranking.of(device, desc)
order.seconds(config)                     before it is compiled
order.seconds(config, Code.read(code))    when it is known what the compiler made of it
order.least(config)                       what a search discards by
"""

from __future__ import annotations

from dataclasses import dataclass

from toprung.device import Device
from toprung.errors import Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import TileConfig
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.rank import Code, Machine, Prediction, bound, machine, predict
from toprung.lab.explain import figures_of


@dataclass(frozen=True)
class Ranking:
    """Cost model of the block kernel's configurations for one product on one device."""

    machine: Machine
    desc: GemmDesc

    @staticmethod
    def of(device: Device, desc: GemmDesc, figures: Figures | None = None) -> Ranking:
        """Return the ranking for a call; ``figures``: those of the device, looked up if not given.

        Raises
        ------
        Unsupported
            figures of the device that the model needs are unknown
        """
        found = machine(figures or figures_of(device))
        if isinstance(found, Unknown):
            raise Unsupported(f"the model cannot rank tiles on {device}, it lacks {', '.join(found.missing)}: run toprung probe")
        return Ranking(found, desc)

    def prediction(self, config: TileConfig, code: Code | None = None) -> Prediction:
        """Return the model's prediction for a configuration; without ``code``, what the compiler makes of it is predicted, too."""
        return predict(self.machine, self.desc, config.tile, dict(config.options), code)

    def seconds(self, config: TileConfig, code: Code | None = None) -> float:
        """Return the predicted seconds of a product."""
        return self.prediction(config, code).seconds

    def least(self, config: TileConfig, code: Code | None = None) -> float:
        """Return a lower bound of a configuration's seconds."""
        return bound(self.machine, self.desc, config.tile, dict(config.options), code)
