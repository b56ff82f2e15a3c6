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
# for hours, is interrupted, is extended next week, and is read by somebody who was not there. Four rules make that
# bearable, and `ostools sweep run` keeps them:
#
# 1. **one file a cell**, written whole or not at all: an interrupted sweep goes on where it stopped;
# 2. **a file is named by what defines its numbers**: parameters, checkpoint, code, versions. Nothing is computed twice, and
#    nothing stale is read;
# 3. **what was broken on disk is found**, and measured again;
# 4. **a cell that fails is recorded**, and does not end the others.

# %%
import tempfile
from pathlib import Path

import altair as alt

import ostools as ost
from ostools.reporting.style.notebook import offline
from ostools.theory.statistics.intervals import wilson

workplace = tempfile.TemporaryDirectory()
results = Path(workplace.name) / "counting"

# %% [markdown]
# ## The file
#
# The question: does the number format, or a comma after every third item, change how far the embedded model can count?
# Every combination is a cell; lengths are rows *within* a cell, because one call serves them all.

# %%
file = Path(workplace.name) / "sweep.yaml"
file.write_text("""
models: embedded                      # names, directories or hub ids
tasks: [count-ones-bernoulli, count-word]
lengths: [4, 8, 16, 32]               # or a range, 4:32, both ends included
dtypes: [float32, bfloat16]
mitigations: [none, "separator:every=3"]
seeds: [0, 1]
measurements: [evaluate]             # or collapse, sensitivity, bounds
""")
sweep = ost.runs.read_sweep(file)
plan = ost.runs.plan(sweep, results)
print(len(plan.keyed_cells), "cells,", len(plan.pending), "of them missing; the first:", plan.keyed_cells[0].cell)
assert len(plan.pending) == 16

# %% [markdown]
# In a terminal, this is `ostools sweep run sweep.yaml --out counting --dry-run`. What does not fit is refused before anything
# is loaded, with the nearest name that does:

# %%
try:
    ost.runs.sweep_of({"tasks": "count-ones", "lengths": "4:8", "measurments": "evaluate"})
except ost.InputError as error:
    print(error)

# %% [markdown]
# ## Interrupted, resumed, extended
#
# **Expect** the second call to do only what the first one left, and the third to do nothing. The last one asks for one
# length more, and measures just that one.


# %%
def lid(done, total):
    """Your laptop's lid, after six cells."""
    if done == 6:
        raise KeyboardInterrupt


try:
    ost.runs.run(sweep, results, progress=lid)
except KeyboardInterrupt:
    print("interrupted:", len(list((results / "cells").iterdir())), "cells on disk")
resumed = ost.runs.run(sweep, results)
again = ost.runs.run(sweep, results)
wider = sweep.model_copy(update={"lengths": (4, 8, 16, 24, 32)})
extended = ost.runs.run(wider, results)
for when, found in (("resumed", resumed), ("again", again), ("extended", extended)):
    print(f"{when:9s} {found.measured} measured, {found.present} there, {len(found.failed)} failed")
assert (resumed.measured, resumed.present) == (10, 6)
assert (again.measured, again.present) == (0, 16)
assert (extended.measured, extended.present) == (16, 0)

# %% [markdown]
# Each of the 16 cells lacked its new length, and that alone was measured: as a file of its own beside the first.
#
# Now something that cannot be done: the paper's own pair of Figure 5, where the last digit is repeated once, under a
# mitigation that rewrites the prompt. The rewritten prompts would not be such a pair. **Expect** a refusal on record, and
# the other cell measured.

# %%
impossible = ost.runs.sweep_of(
    {
        "tasks": "figure-5a",
        "lengths": "4:12",
        "mitigations": ["none", "separator:every=3"],
        "measurements": [{"name": "collapse", "dtypes": "bfloat16"}],
    }
)
outcome = ost.runs.run(impossible, Path(workplace.name) / "pairs")
print(outcome.measured, "measured;", *outcome.failed)
assert (outcome.measured, len(outcome.failed)) == (1, 1)

# %% [markdown]
# ## Read it back as one table
#
# `ostools sweep results counting --out table.csv` in a terminal; one row is one question.

# %%
everything = ost.runs.results(results)
print(len(everything), "rows:", ", ".join(everything.columns[:9]), "…")
assert len(everything) == 2 * 2 * 2 * 2 * 5
everything.groupby(["task", "dtype", "mitigation"])["correct"].agg(["mean", "sum", "count"]).astype(float).round(2)

# %% [markdown]
# ## One chart of all of it
#
# Shares of right answers, with Wilson intervals. **Before you look**: with two questions a point, how wide will an
# interval be? Any chart of your own shows itself offline, too, when you wrap it in `offline`.

# %%
keys = ["task", "dtype", "mitigation", "length"]
shares = everything.groupby(keys)["correct"].agg(right="sum", asked="count").reset_index()
shares[["low", "high"]] = [wilson(int(row.right), int(row.asked)) for row in shares.itertuples()]
shares["share"] = shares["right"] / shares["asked"]
assert (shares["asked"] == 2).all()
assert (shares["high"] - shares["low"]).median() > 0.6

base = alt.Chart(shares).encode(x=alt.X("length:Q", title="items"), color=alt.Color("mitigation:N", title="mitigation"))
lines = base.mark_line(point=True).encode(y=alt.Y("share:Q", title="share of right answers", axis=alt.Axis(format="%")))
intervals = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
panels = alt.layer(intervals, lines).properties(width=260, height=170).facet(column="dtype:N", row="task:N")
offline(panels)

# %% [markdown]
# The intervals fill most of each panel, as they should: a point is two questions. So do not read single points. Pair
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
assert (won < 0.5).all()
assert differ < 0.1 * len(by_format)
assert shift.abs().median() < 0.1

# %% [markdown]
# In pairs the sweep speaks where the chart could not. The number format hardly matters to these answers: where this
# model fails to count, it is not precision that stops it. And the comma, the paper's remedy for collapse, makes the
# right answer *less* likely to this model on most questions of both tasks. For effects with intervals, and verdicts
# that know how many of them there are, hand the same questions to `ost.study`
# ([tutorial 4](04_mitigations_and_plugins.ipynb)).
#
# ## Many texts in place of one prompt
#
# A sweep asks questions of the paper. `ost.corpus` asks one measurement of windows out of your own texts: a list, or a file
# (`ostools sweep corpus --texts texts.jsonl`). It keeps its cells in a directory as a sweep does, and the same call goes on
# where it was cut off. Eight first lines of old books, 24 tokens of each; every interval is over texts.
#
# **Before you run it**: which end of a window should weigh more for the last token, the first third or the last one?

# %%
model = ost.load_model()
lines = [
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, I thought I "
    "would sail about a little and see the watery part of the world.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do.",
    "You will rejoice to hear that no disaster has accompanied the commencement of an enterprise which you have regarded "
    "with such evil forebodings.",
    "The sun was shining on the sea, shining with all his might: he did his very best to make the billows smooth and bright.",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void.",
    "No one would have believed in the last years of the nineteenth century that this world was being watched keenly.",
]
profiles = ost.corpus(model, lines, lengths=24, out=Path(workplace.name) / "profiles", progress=False)
assert profiles.summary["texts"].item() == len(lines)
profiles.shapes[["kept", "verdict", "start_contrast", "end_contrast", "end_contrast_low", "end_contrast_high"]].round(2)

# %% [markdown]
# And the paper's other question: how far is each window from the same window with its last token once more (the pair of
# Theorem 4.2), against what rounding does to that very window?

# %%
pairs = ost.corpus(model, lines, lengths=24, measure="collapse", out=Path(workplace.name) / "theorem", progress=False)
assert (pairs.frame["hidden_share"] == 0).all()
pairs.frame[["dtype", "texts", "mean", "low", "high", "pair_noise", "hidden_share", "hidden_high"]].round(5)

# %% [markdown]
# None of these windows is hidden, in either format. Eight texts are few: the interval of the share that is hidden reaches
# up to a third of all windows (`hidden_high`). Real text does not end in hundreds of equal tokens: one copy more moves y
# by far more than rounding does.
# `docs/findings/corpus.md` has profiles of a thousand texts.
#
# ## Exercises
#
# 1. Add `collapse` to the measurements, and join it to `evaluate` by task, length and seed: do errors come where distances
#    are small?
# 2. Cut the last bytes off one of the files in `counting/cells`, and run the sweep again with `say=print`.
# 3. Run two processes at once on the same directory. What does the second one say?
# 4. A cell that failed stays failed, until `retry_failed=True`. Why is that the right way round?

# %%
workplace.cleanup()
