# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 7. Sweeps
#
# One chart is an anecdote. A study is tasks × lengths × number formats × mitigations × seeds, and such a thing runs
# for hours, is interrupted, is extended next week, and is read by somebody who was not there. Three rules make that
# bearable:
#
# 1. **one file a cell**, written whole or not at all: an interrupted sweep goes on where it stopped;
# 2. **the file knows where it came from**: model, weights, parameters, versions travel in it;
# 3. **a cell that fails is recorded**, and does not end the others.
#
# This is all that it takes.

# %%
import hashlib
import itertools
import json
import tempfile
from pathlib import Path

import altair as alt
import pandas as pd

import ostools as ost
from ostools.reporting.notebook import offline
from ostools.theory.intervals import wilson

workplace = tempfile.TemporaryDirectory()
results = Path(workplace.name)

# %% [markdown]
# ## The grid
#
# Lengths are rows *within* a cell, because one call serves them all; everything else makes a cell. The question: does
# the number format, or a mitigation, change how far the embedded model can count? The third mitigation is there to
# fail.

# %%
grid = {
    "task": ["count-ones-bernoulli", "count-word"],
    "dtype": ["float32", "bfloat16"],
    "mitigation": ["none", "separator:every=3", "sliding-window:window=0"],
    "seed": [0, 1, 2],
}
lengths = [4, 8, 16, 32]
cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
print(len(cells), "cells of", len(lengths), "lengths")

# %% [markdown]
# A cell's file is named by what defines its numbers. Change a length, and it is another cell; add a seed, and the old
# ones stand.


# %%
def file_of(cell, ending="parquet"):
    """Where a cell's table is, or what went wrong (`ending="error"`)."""
    definition = json.dumps(cell | {"lengths": lengths}, sort_keys=True)
    return results / f"{hashlib.sha256(definition.encode()).hexdigest()[:16]}.{ending}"


models = {dtype: ost.load_model(dtype=dtype) for dtype in grid["dtype"]}


def measure(cell):
    """One cell's result."""
    mitigation = None if cell["mitigation"] == "none" else cell["mitigation"]
    return ost.behaviour(
        models[cell["dtype"]], cell["task"], lengths=lengths, seeds=[cell["seed"]], mitigation=mitigation
    )


def sweep(cells, stop_after=None):
    """Run what is missing; returns how many cells were run, how many were there, and how many failed."""
    ran = there = failed = 0
    for cell in cells:
        if file_of(cell).exists() or file_of(cell, "error").exists():
            there += 1
            continue
        if ran == stop_after:
            break  # stands for your laptop's lid
        try:
            measure(cell).save(file_of(cell))
            ran += 1
        except ValueError as error:  # InputError and MitigationError: this cell, not the sweep
            file_of(cell, "error").write_text(json.dumps(cell | {"error": str(error)}), encoding="utf-8")
            failed += 1
    return {"ran": ran, "there": there, "failed": failed}


# %% [markdown]
# ## Interrupted, resumed, extended
#
# **Expect** the second call to do only what the first one left, the third to do nothing, and the last one to run the
# new seed alone.

# %%
first = sweep(cells, stop_after=10)
second = sweep(cells)
third = sweep(cells)
wider = [cell | {"seed": 3} for cell in cells if cell["seed"] == 0]
fourth = sweep(wider)
for when, counts in (("interrupted", first), ("resumed", second), ("again", third), ("one seed more", fourth)):
    print(f"{when:14s} {counts}")
assert first["ran"] == 10
assert first["ran"] + second["ran"] + first["failed"] + second["failed"] == len(cells)
assert third == {"ran": 0, "there": len(cells), "failed": 0}
assert fourth["ran"] + fourth["failed"] == len(wider)

# %% [markdown]
# `save` writes to a temporary name and renames, so a file that exists is whole. What failed is on record too, once
# for every cell, with the reason:

# %%
errors = pd.DataFrame([json.loads(file.read_text(encoding="utf-8")) for file in sorted(results.glob("*.error"))])
assert set(errors["mitigation"]) == {"sliding-window:window=0"}
print(len(errors), "cells failed:", "; ".join(errors["error"].unique()))

# %% [markdown]
# ## Read it back as one table
#
# Each file has its provenance in `attrs`. Before tables are joined, make sure that they *may* be: the same weights (a
# cast model is other weights), the same versions.


# %%
def read(file):
    """A cell's table, with what its provenance says of it."""
    table = pd.read_parquet(file)
    origin = table.attrs.pop("ostools")
    columns = {"dtype": origin["model"]["dtype"], "weights": origin["model"]["weight_hash"][:12]}
    return table.assign(**columns, versions=json.dumps(origin["versions"], sort_keys=True))


everything = pd.concat([read(file) for file in sorted(results.glob("*.parquet"))], ignore_index=True)
origins = everything.groupby("dtype")[["weights", "versions"]].nunique()
assert (origins == 1).all().all()
assert everything["within_training"].all()
print(f"{len(everything)} rows, {everything['seed'].nunique()} seeds")
everything[
    ["task", "dtype", "mitigation", "status", "length", "seed", "key", "number", "correct", "log_probability"]
].head()

# %% [markdown]
# ## One chart of all of it
#
# Shares of right answers, with Wilson intervals. **Before you look**: with four questions a point, how wide will an
# interval be? Any chart of your own shows itself offline, too, when you wrap it in `offline`.

# %%
keys = ["task", "dtype", "mitigation", "length"]
shares = everything.groupby(keys)["correct"].agg(right="sum", asked="count").reset_index()
shares[["low", "high"]] = [wilson(int(row.right), int(row.asked)) for row in shares.itertuples()]
shares["share"] = shares["right"] / shares["asked"]
assert (shares["asked"] == 4).all()
assert (shares["high"] - shares["low"]).median() > 0.45

base = alt.Chart(shares).encode(x=alt.X("length:Q", title="items"), color=alt.Color("mitigation:N", title="mitigation"))
lines = base.mark_line(point=True).encode(y=alt.Y("share:Q", title="share of right answers", axis=alt.Axis(format="%")))
intervals = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
panels = alt.layer(intervals, lines).properties(width=260, height=170).facet(column="dtype:N", row="task:N")
offline(panels)

# %% [markdown]
# The intervals fill half of each panel, as they should: a point is four questions. So do not read single points. Pair
# what belongs together instead: the *same* question in both formats, and with and without the comma.

# %%
question = ["task", "mitigation", "length", "seed"]
by_format = everything.pivot(index=question, columns="dtype", values=["correct", "log_probability"])
differ = (by_format["correct", "float32"] != by_format["correct", "bfloat16"]).sum()
shift = (by_format["log_probability", "bfloat16"] - by_format["log_probability", "float32"]).astype(float)
print(f"bfloat16 against float32: {differ} of {len(by_format)} answers differ in being right; ", end="")
print(f"log p moves by {shift.abs().median():.3f} in the median")

in_float32 = everything[everything["dtype"] == "float32"]
by_comma = in_float32.pivot(
    index=["task", "length", "seed"], columns="mitigation", values=["correct", "log_probability"]
)
won = (by_comma["log_probability", "separator"] > by_comma["log_probability", "none"]).groupby("task").mean()
print("the comma makes the right answer likelier in", won.map("{:.0%}".format).to_dict(), "of the questions")
assert (won < 0.25).all()
assert differ < 0.1 * len(by_format)
assert shift.abs().median() < 0.1

# %% [markdown]
# In pairs the sweep speaks clearly where the chart could not. The number format hardly matters to these answers:
# where this model fails to count, it is not precision that stops it. And the comma, the paper's own remedy, makes the
# right answer *less* likely to this model on nearly every question of these two tasks. For effects with intervals,
# and verdicts that know how many of them there are, hand the same questions to `ost.study` ([tutorial
# 4](04_mitigations_and_plugins.ipynb)).
#
# ## Exercises
#
# 1. Make a cell of `ost.collapse(...)` beside that of `behaviour`, and join the two by task, length and seed: do
#    errors come where distances are small?
# 2. The hash above knows the parameters, and not the *code*. What else would you put into it, to be sure that a file
#    from last month means the same?
# 3. Run two processes at once on the same directory. What goes wrong, and what does not?
# 4. Try again what failed: remove the `.error` files of one mitigation, and run the sweep again.

# %%
workplace.cleanup()
