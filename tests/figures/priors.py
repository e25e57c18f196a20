"""What each choice of the searched space was expected to gain, and what it gained alone: priors.py FOLDER.

``FOLDER`` holds the files that ``oracle.py`` wrote. Printed for each choice: its prior and spread, then the geometric
mean, the spread of the logarithm and the ends over the files in which it was tried alone and failed no gate.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from math import exp, log
from pathlib import Path
from statistics import fmean, pstdev

from regret import gain_of, read_case

from ort_metainfer.deciders.search_space import declared_space


def main(folder: Path) -> None:
    """Print the table."""
    measured: dict[tuple[str, str], list[float]] = defaultdict(list)
    expected: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for file in sorted(folder.glob("*.json.gz")):
        case = read_case(file, None)
        for dimension in declared_space(case.problem):
            for choice in dimension.choices:
                trial = case.trials.get(choice.part)
                if trial is not None and (gain := gain_of(trial)) > 0:
                    label = choice.label if dimension.name != "static shapes" else "static"
                    measured[dimension.name, label].append(log(gain))
                    expected[dimension.name, label].append((choice.prior, choice.spread))
    print(f"{'choice':58} {'prior':>7} {'spread':>7} {'mean':>7} {'spread':>7} {'worst':>7} {'best':>7} {'files':>5}")
    for (dimension, label), gains in measured.items():
        priors, spreads = zip(*expected[dimension, label], strict=True)
        print(
            f"{f'{dimension}: {label}'[:58]:58} {fmean(priors):7.2f} {fmean(spreads):7.2f} {exp(fmean(gains)):7.3f} "
            f"{pstdev(gains):7.3f} {exp(min(gains)):7.3f} {exp(max(gains)):7.3f} {len(gains):5}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
