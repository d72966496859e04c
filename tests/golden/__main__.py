"""Write the golden files anew."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from tests import golden

from toprung import backends, store


def write(path: Any, content: Any) -> None:
    path.write_text(json.dumps(content, indent=0, ensure_ascii=False, sort_keys=False) + "\n")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--device", help="compute the bits on this device, and write nothing but those")
    words.add_argument("--describe", metavar="NAME", help="store the device's description under this name, too")
    given = words.parse_args()
    os.environ[store.VARIABLE] = "off"
    if not given.device:
        write(golden.SELECTED, golden.all_selected())
    device = backends.find(given.device or "pocl")
    if given.describe:
        known = json.loads(golden.DEVICES.read_text()) if golden.DEVICES.exists() else {}
        write(golden.DEVICES, {**known, given.describe: {k: v for k, v in vars(device).items() if k != "handle"}})
    kept = json.loads(golden.BITS.read_text()) if golden.BITS.exists() else {}
    name = {"cuda": "h200-cuda", "opencl": "h200-opencl" if device.kind == "gpu" else "pocl"}[device.backend]
    made: dict[str, golden.Forced] = {}
    for described, other in golden.devices().items():
        if described == name or (name == "pocl" and described == "h200-opencl"):
            made |= {str(one): one for one in golden.forced(other)}
    with backends.opened(device) as session:
        found = {text: golden.bits(session, one) for text, one in made.items()}
    write(golden.BITS, {**kept, name: found})
    print(f"{len(found)} results on {device}")


if __name__ == "__main__":
    main()
