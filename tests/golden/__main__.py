"""Write the golden files anew, or compare a device's results with them.

python -m tests.golden                              what is selected and launched, what is asked of CUDA's driver, and bits on PoCL
python -m tests.golden --device cuda:0              bits of results on this device alone
python -m tests.golden --device cuda:0 --check      the same, compared with what is stored; nothing is written
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests import golden

from toprung import backends, store


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=0, ensure_ascii=False) + "\n")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--device", help="compute the bits of results on this device, and write nothing but those")
    words.add_argument("--describe", metavar="NAME", help="store the device's description under this name, too")
    words.add_argument("--check", action="store_true", help="compare, and write nothing")
    given = words.parse_args()
    os.environ[store.VARIABLE] = "off"
    if not given.device and not given.check:
        write(golden.SELECTED, golden.all_selected())
        sys.path.append(str(Path(__file__).parents[1]))
        importlib.import_module("driver").write()
    device = backends.find(given.device or "pocl")
    if given.describe:
        known = json.loads(golden.DEVICES.read_text()) if golden.DEVICES.exists() else {}
        write(golden.DEVICES, {**known, given.describe: {k: v for k, v in vars(device).items() if k != "handle"}})
    name = {"cuda": "h200-cuda", "opencl": "h200-opencl" if device.kind == "gpu" else "pocl"}[device.backend]
    kept = json.loads(golden.BITS.read_text()) if golden.BITS.exists() else {}
    with backends.opened(device) as session:
        if given.check and name not in kept:
            sys.exit(f"{golden.BITS} has no results of {name}: make them without --check")
        if given.check:
            found = {text: golden.bits(session, golden.Forced.read(text)) for text in kept[name]}
            wrong = [text for text, bits in kept[name].items() if found[text] != bits]
            print(f"{len(found) - len(wrong)} of {len(found)} results on {device} have the bits that are stored", *wrong, sep="\n")
            sys.exit(bool(wrong))
        made: dict[str, golden.Forced] = {}
        for described, other in golden.devices().items():
            if described == name or (name == "pocl" and described == "h200-opencl"):
                made |= {str(one): one for one in golden.forced(other)}
        found = {text: golden.bits(session, one) for text, one in made.items()}
    write(golden.BITS, {**kept, name: found})
    print(f"{len(found)} results on {device}")


if __name__ == "__main__":
    main()
