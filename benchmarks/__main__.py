"""Every benchmark in turn, in one process, so that their ratios hold whatever the machine's speed
today.
"""

from __future__ import annotations

import os

import torch

from benchmarks import collapse, evaluate, goals, ratios, sensitivity, sweep


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores")
    sensitivity.main()
    collapse.main()
    evaluate.main()
    sweep.main()
    ratios.main()
    goals.main()


if __name__ == "__main__":
    main()
