"""Two runs of speed.py side by side: each measurement of the second over the first, and both ratios.

    python benchmarks/compare.py BEFORE.json AFTER.json

A ratio taken inside a run can be compared between any two; a time only on one machine under the same load.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from records import console, number, read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    (about_before, before), (about_after, after) = read(options.before), read(options.after)
    table = Table("", "what", "before", "after", "after/before", "ratio before", "ratio after")
    earlier = {(row.section, row.what): row for row in before}
    for row in after:
        old = earlier.pop((row.section, row.what), None)
        if old is None:
            table.add_row(row.section, row.what, "", _shown(row.value), "new", "", _shown(row.ratio))
            continue
        change = row.value / old.value if row.value is not None and old.value else None
        numbers = (old.value, row.value, change, old.ratio, row.ratio)
        table.add_row(row.section, row.what, *(_shown(x) for x in numbers))
    for row in earlier.values():
        table.add_row(row.section, row.what, _shown(row.value), "", "gone", _shown(row.ratio), "")
    out = console()
    for name in sorted(about_before.keys() | about_after.keys()):
        if about_before.get(name) != about_after.get(name):
            out.print(f"{name}: {about_before.get(name)} → {about_after.get(name)}", markup=False)
    out.print(table)


def _shown(x: float | None) -> str:
    return "" if x is None else number(x)


if __name__ == "__main__":
    main()
