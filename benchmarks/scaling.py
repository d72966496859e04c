"""Print predicted strong and weak scaling of products over 8 to 1024 GPUs, as in docs/distributed.md.

python benchmarks/scaling.py
"""

import itertools
import math

from toprung.distributed.schedule import H200, ITEM, Rates

SIZE = 65536
"""Size of the products on 8 devices: on more it is the same, or grows as the devices' memory does."""


def tables() -> str:
    """Return strong and weak scaling on paper as two tables: shares of the local products' speed."""
    lines = []
    for title, power in (("strong", 0.0), ("weak", 0.5)):
        lines += [f"| GPUs, {title} | size | 1-D | 2-D | 2.5-D | grid |", "|---|---|---|---|---|---|"]
        for p in (8, 16, 32, 64, 128, 256, 512, 1024):
            size = round(SIZE * (p / 8) ** power)
            kinds = {kind: min((on_paper(size, grid), grid) for grid in found) for kind, found in grids(p).items()}
            whole = 2 * size**3 / p / H200.products
            shares = " | ".join(f"{whole / seconds:.0%}".replace("%", " %") for seconds, _ in kinds.values())
            _, grid = min(kinds.values())
            lines.append(f"| {p} | {size} | {shares} | {' × '.join(map(str, grid))} |")
        lines.append("")
    return "\n".join(lines)


HOST, NETWORK = 8, 50e9
"""Devices of a host, and bytes per second of each one's network adapter: 400 Gb/s."""


def grids(devices: int) -> dict[str, list[tuple[int, int, int]]]:
    """Return the grids (parts of m, n and k) of a power of two of devices, by kind; 2.5-D ones cut k, too."""
    powers = [1 << i for i in range(devices.bit_length())]
    found: dict[str, list[tuple[int, int, int]]] = {"1-D": [(devices, 1, 1)], "2-D": [], "2.5-D": []}
    for m, k in itertools.product(powers, powers):
        n = devices // (m * k)
        if m > 1 and n > 1:
            found["2-D" if k == 1 else "2.5-D"].append((m, n, k))
    return found


def on_paper(size: int, grid: tuple[int, int, int], panels: int = 16, rates: Rates = H200) -> float:
    """Return the predicted seconds of a square product on a grid of devices, HOST of them in each host.

    A device receives A's panels along n, B's along m, and adds up C's along k. A group of devices that spans hosts uses as many
    adapters of each host as it has devices there, and no more than the link's speed. Of all ways to fill hosts the best is taken.
    """
    devices = math.prod(grid)
    m, n, k = (size / parts for parts in grid)
    received = [ITEM * (k * n) * (1 - 1 / grid[0]), ITEM * (m * k) * (1 - 1 / grid[1]), ITEM * (m * n) * (1 - 1 / grid[2])]
    powers = [1 << i for i in range(HOST.bit_length())]
    sent = math.inf
    for inside in itertools.product(powers, repeat=3):
        if math.prod(inside) != min(HOST, devices) or any(i > g for i, g in zip(inside, grid, strict=True)):
            continue
        links = [rates.link if i == g else min(rates.link, i * NETWORK) for i, g in zip(inside, grid, strict=True)]
        # fsum is exact; sum rounds differently from Python 3.12 on, which would select the other of two equally good grids
        sent = min(sent, math.fsum(bytes_ / link for bytes_, link in zip(received, links, strict=True)))
    work = 2 * m * n * k / rates.products
    return max(sent, work) + min(sent, work) / panels


if __name__ == "__main__":
    print(tables(), end="")
