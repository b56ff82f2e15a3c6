"""Long tests of what must not break: `make stress`, or `python -m stress kills --cases 100 --seed
1`.

Each module has `CASES`, how many a full test has, and `run(cases, seed)`, which prints a line a
failure and gives back how many there were.
"""
