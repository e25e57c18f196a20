"""``ort-metainfer`` and ``python -m ort_metainfer``.

``run`` needs nothing but this package; every other command needs the extra ``cli``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]

USAGE_ERROR = 2
NEEDED = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Carry out one command, then leave the process: exit status 0 is success, 1 failure, 2 wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:
        from ort_metainfer.cli.launch import launch

        sys.exit(launch(words[1:]))
    if any(find_spec(name) is None for name in NEEDED):
        print("error: the command line needs click and rich: pip install 'ort-metainfer[cli]'", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    from ort_metainfer.cli.application import application

    application.main(args=words, prog_name="ort-metainfer")


if __name__ == "__main__":
    main()
