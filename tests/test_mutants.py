"""`make mutants`: its table of survivors is of lines that are there."""

from scripts import mutants


def test_the_table_of_survivors_is_of_lines_that_stand_in_the_files() -> None:
    for (path, was, _), why in mutants.triaged().items():
        assert why.startswith(("equivalent: ", "law: ")), (path, was)
        lines = [line.strip() for line in (mutants.ROOT / path).read_text("utf-8").splitlines()]
        assert was in lines or why.startswith("law: "), (path, was)
