"""``python -m litepost ...`` is the program ``litepost``, for services that start ``python -m sqloutbox`` so far.

Invariant: this process becomes the program, so signals and exit codes are the program's own.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Replaces this process: by the program beside the interpreter, else by the one in the ``PATH``."""
    program = shutil.which("litepost", path=sysconfig.get_path("scripts")) or shutil.which("litepost")
    if program is None:
        sys.exit("error: the program litepost is not installed\n  hint: install the wheel, which brings it")
    os.execv(program, [program, *sys.argv[1:]])  # noqa: S606 (there is no shell in it)


if __name__ == "__main__":
    main()
