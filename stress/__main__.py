"""Every stress test of this directory, or those that are named. Exit code 1 where a case failed."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import secrets
import sys
import time

import stress


def main() -> int:
    known = sorted(
        found.name for found in pkgutil.iter_modules(stress.__path__) if found.name[0] != "_"
    )
    parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__)
    parser.add_argument(
        "tests", nargs="*", metavar="TEST", help=f"of {', '.join(known)}; default: all of them"
    )
    parser.add_argument(
        "--cases", type=int, help="how many cases of each; default: each one's full number"
    )
    parser.add_argument(
        "--seed", type=int, help="of the run that is to be repeated; default: another each time"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.tests if name not in known]:
        parser.error(f"unknown test {unknown[0]!r}; known are {', '.join(known)}")
    if given.cases is not None and given.cases < 1:
        parser.error(f"--cases: expected at least 1, found {given.cases}")
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    failures = 0
    for name in given.tests or known:
        test = importlib.import_module(f"stress.{name}")
        cases, began = given.cases or test.CASES, time.monotonic()
        print(f"{name}: {cases} cases, seed {seed}", flush=True)
        failed = test.run(cases, seed)
        print(f"{name}: {failed} failures in {time.monotonic() - began:.0f} s", flush=True)
        failures += failed
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
