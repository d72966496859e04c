"""Make every generated table in the documentation anew from ``results/``; ``--check`` only says which are out of date."""

import sys
from pathlib import Path

from toprung.report.markdown import refresh

ROOT = Path(__file__).parent.parent


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    stale = []
    for page in pages():
        old = page.read_text()
        new = refresh(old, ROOT)
        if new != old:
            stale.append(page.relative_to(ROOT))
            if "--check" not in sys.argv:
                page.write_text(new)
    for page in stale:
        print(f"{'out of date' if '--check' in sys.argv else 'made anew'}: {page}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
