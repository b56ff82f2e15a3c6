"""Every stress test of this directory, or those that are named. Exit code 1 where a case failed."""

from __future__ import annotations

import importlib
import pkgutil
import secrets
import sys
import time

import click

import stress

NAMES = sorted(m.name for m in pkgutil.iter_modules(stress.__path__) if m.name[0] != "_")


@click.command(help=__doc__)
@click.argument("tests", nargs=-1, type=click.Choice(NAMES))
@click.option("--cases", type=click.IntRange(1), help="Of each; default: each one's full number.")
@click.option("--seed", type=int, help="Of the run to repeat; default: another each time.")
def main(tests: tuple[str, ...], cases: int | None, seed: int | None) -> None:
    seed, failures = secrets.randbelow(2**31) if seed is None else seed, 0
    for name in tests or NAMES:
        test, began = importlib.import_module(f"stress.{name}"), time.monotonic()
        print(f"{name}: {cases or test.CASES} cases, seed {seed}", flush=True)
        failed = test.run(cases or test.CASES, seed)
        print(f"{name}: {failed} failures in {time.monotonic() - began:.0f} s", flush=True)
        failures += failed
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(prog_name="python -m stress")
