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
# # 5. Ablation scripts
#
# The bounds and profiles of the other tutorials say how much *could* get through. Ablation asks what *does*: take a
# part of the model out, and see what is left of a number that you care about. All edits of `hooks` are `with` blocks
# around any code of yours. They leave nothing behind, and raise where they would silently have done nothing.

# %%
import pandas as pd
import torch

import ostools as ost
from ostools import hooks
from ostools.measure.task_prompt import carrier_positions, render_prompt

model = ost.load_model()
question = render_prompt(model, ost.tasks.task("copy-first:hint=true"), 40)
carriers = carrier_positions(model, question)
prompt = ost.encode(model, question.text + question.task.lead + question.line.removesuffix(question.key))
print(question.text)
print(f"right answer: {question.key}, at the tokens {carriers}; the prompt ends in {prompt.tokens[-3:]}")

# %% [markdown]
# ## Choose a number
#
# Forty digits, a single 0 in front, and the model is asked for the first. The prompt ends where the digit comes
# next. Our number is the logit of 0 minus the logit of 1: positive is right.

# %%
ids = prompt.ids[None]
zero, one = (model.tokenizer.convert_tokens_to_ids(digit) for digit in "01")


@torch.no_grad()
def logit_difference():
    """Log-odds of "0" against "1" as the next token, under whatever edits are active."""
    logits = model(ids)[0, -1]
    return float(logits[zero] - logits[one])


whole = logit_difference()
print(f"nothing taken out: {whole:.2f}, odds of e^{whole:.0f} for the right digit")
assert whole > 5

# %% [markdown]
# ## Where do the heads look?
#
# A first idea: the heads that matter are those that look at the answer. `head_scores` has where the last token's
# attention goes.

# %%
scores = ost.head_scores(model, prompt, carriers=carriers)
scores.plot()

# %%
look = scores.frame.nlargest(3, "last_to_carriers")[["layer", "head", "last_to_carriers"]]
looking = [f"{int(row.layer)}.{int(row.head)}" for row in look.itertuples()]
look.round(2)

# %% [markdown]
# ## Heads, one at a time
#
# Those are the candidates. **Before you look**: are they the heads that this answer needs? And how many of the 16
# does it need?

# %%
effects = {}
for layer in range(model.cfg.n_layers):
    for head in range(model.cfg.n_heads):
        with hooks.ablate_heads(model, [(layer, head)]):
            effects[hooks.Head(layer, head)] = logit_difference() - whole

real = pd.Series(effects, name="effect")
needed = [f"{layer}.{head}" for (layer, head), effect in effects.items() if whole + effect < 0]
print("without one of these heads the answer is wrong:", ", ".join(needed))
print(f"all the others: {real[real > -2].min():.2f} to {real[real > -2].max():.2f}")
assert needed == ["0.3"]
largest = [f"{layer}.{head}" for layer, head in real[real < -2].index]
print("more than 2 lost without:", ", ".join(largest), "- most attention on the 0:", ", ".join(looking))
assert largest == ["0.3", "1.3"]
assert looking[0] == "0.3"
assert not set(largest) & set(looking[1:])
assert logit_difference() == whole  # nothing is left behind

# %% [markdown]
# Two heads do the work, and for one of them nothing stands in. It is the one that looks at the 0 most. The next two that
# look at it are not needed, and the second that is needed is not among them: attention says where a head reads, not
# what depends on it. The others hardly move the number.
#
# ## Would a gradient have found them?
#
# Sixteen forward passes are nothing; for a large model one wants to know beforehand. Put a gate $g$ on every head, $z
# \to g z$, and take $-\partial m / \partial g$ at $g = 1$: to first order, that is what taking each head out does to
# the number $m$, from **one** backward pass (Michel et al. 2019; attribution patching).

# %%
heads = list(effects)
gates = torch.ones(len(heads), requires_grad=True)
with hooks.gated(model, heads, gates):
    logits = model(ids)[0, -1]
    (slopes,) = torch.autograd.grad(logits[zero] - logits[one], gates)

table = pd.DataFrame(
    {"head": [f"{layer}.{head}" for layer, head in heads], "real": list(effects.values()), "first_order": -slopes}
)
print(f"rank correlation: {table['real'].corr(table['first_order'], method='spearman'):.2f}")
table.loc[table["real"].abs().nlargest(5).index].round(2)

# %% [markdown]
# For the one head that is indispensable first order predicts next to nothing. The gradient is not wrong. It is exact,
# as a nudge shows; but the model is *sure* of its answer, the curve is flat where we stand, and taking a head out is
# a step over the cliff.

# %%
indispensable = heads.index(hooks.Head(0, 3))
rows = []
for gate in (1.0, 0.99, 0.9, 0.75, 0.5, 0.25, 0.0):
    values = torch.ones(len(heads))
    values[indispensable] = gate
    with hooks.gated(model, heads, values):
        measured = logit_difference()
    rows.append({"gate": gate, "measured": measured, "first order": whole + float(slopes[indispensable]) * (gate - 1)})
path = pd.DataFrame(rows)
nudge = (path["measured"][1] - whole) / -0.01
print(f"slope by gradient {float(slopes[indispensable]):.3f}, by a nudge of 1% {nudge:.3f}")
assert abs(nudge - float(slopes[indispensable])) < 0.05
assert path["measured"].iloc[-1] < 0 < path["first order"].iloc[-1]
path.round(2)

# %% [markdown]
# That table is the whole story of attribution by gradients: right at $g = 0.99$, and nowhere near at $g = 0$.
#
# ## All of it in one call
#
# `ablation` takes out every head (or edge, or sublayer) and puts the real effect beside the predicted one, for three
# numbers: the log-probability of the answer, the sensitivity to the tokens that carry it, and the collapse distance.

# %%
found = ost.ablation(
    model,
    ost.experiments.AnsweredPrompt(prompt, carriers, answer=question.key),
    what="heads",
    measures=["answers", "collapse"],
)
found.plot()

# %%
of_answer = found.frame.query("quantity == 'log_probability'").set_index("target")["effect"]
agreement = found.agreement.set_index("quantity")
assert of_answer["0.3"] < -5
assert -0.1 < of_answer["1.3"] < 0
assert real[hooks.Head(1, 3)] < -3
assert agreement.loc["pair_distance", "spearman"] > 0.6 > 0.5 > agreement.loc["log_probability", "spearman"]
agreement[["parts", "spearman", "same_sign", "within_factor_2", "largest", "largest_predicted"]].round(2)

# %% [markdown]
# Below, all of first order's predictions for the answer lie on zero, and 0.3 at the bottom. Above, for the distance
# between this prompt and the same with its last token once more, it ranks the heads fairly.
#
# And mind the number that you choose. Head 1.3 cost four in log-odds, and a hundredth of a nat in log-probability: who
# is sure by $e^9$ can lose $e^4$ of it and hardly show. By the log-probability alone you would have found one head of
# two.

# %% [markdown]
# ## Single edges
#
# A head is many edges. `hooks.capture` hands you the patterns; take the 24 largest attention weights of the last
# token, wherever they are, cut each (`hooks.ablate_edges`), and put the first-order prediction beside it. **Expect**
# first order to do better: one edge is a small step.

# %%
last = len(prompt.ids) - 1
with hooks.capture(model, "pattern") as record:
    model(ids)
weights = torch.stack(
    [record["pattern"][layer][0, :, last] for layer in range(model.cfg.n_layers)]
)  # [layer, head, key]
edges = [
    hooks.Edge(layer, head, last, key)
    for layer, head, key in (
        map(int, torch.unravel_index(index, weights.shape)) for index in weights.flatten().topk(24).indices
    )
]

gates = torch.ones(len(edges), requires_grad=True)
with hooks.gated(model, edges, gates):
    logits = model(ids)[0, -1]
    (slopes_of_edges,) = torch.autograd.grad(logits[zero] - logits[one], gates)
rows = []
for edge, slope in zip(edges, slopes_of_edges.tolist(), strict=True):
    with hooks.ablate_edges(model, [edge]):
        effect = logit_difference() - whole
    where = f"{edge.layer}.{edge.head}"
    rows.append(
        {"head": where, "looks at": prompt.tokens[edge.key], "key": edge.key, "real": effect, "first_order": -slope}
    )
cuts = pd.DataFrame(rows)
small = cuts[cuts["real"].abs() < 0.15]
close = (small["first_order"] / small["real"]).between(0.5, 2).mean()
print(
    f"rank correlation: {cuts['real'].corr(cuts['first_order'], method='spearman'):.2f}; of the {len(small)} small effects "
)
print(f"{close:.0%} are predicted within a factor of 2")
assert close > 0.6
cuts.loc[cuts["real"].abs().nlargest(5).index].round(2)

# %% [markdown]
# Two things are worth a second look. **One edge is a whole head**: what head 1.3 does for this answer, it does by a
# single attention weight, on the word "ANSWER" of the request. And first order is close on most edges that hardly
# matter, and less than half of the truth on the one that does. The parts that one searches for are the ones on which
# the cheap method fails.

# %%
key = int(cuts.loc[cuts["real"].idxmin(), "key"])
strongest = cuts.loc[cuts["real"].idxmin()]
assert strongest["head"] == "1.3"
assert prompt.tokens[key] == "ANSWER"
assert abs(strongest["real"] / real[hooks.Head(1, 3)] - 1) < 0.1
assert strongest["real"] < 2 * strongest["first_order"] < 0
with hooks.ablate_edges(model, [(1, 3, last, key)], method="renormalise"):
    renormalised = logit_difference() - whole
print(f"that edge set to 0: {strongest['real']:.2f}; masked, so that the others share its weight: {renormalised:.2f}")
assert renormalised < strongest["real"] - 1

# %% [markdown]
# The last line is a warning. *Setting the weight to zero* leaves its row short: the head says almost nothing, and the
# answer suffers. *Masking the score* gives the weight to the other tokens, and what the head then says does more harm
# than silence. Both are "cutting the edge"; say which one you did.
#
# ## Your own TransformerLens hooks
#
# Nothing here asks you to give up your scripts. The model *is* a TransformerLens bridge, and a raw hook is respected
# by every measurement: the same head, taken out by hand, gives the same bits.


# %%
def without_head_3(z, hook):
    """z: [batch, pos, head, d_head]."""
    z = z.clone()
    z[:, :, 3] = 0
    return z


raw = [("blocks.0.attn.hook_z", without_head_3)]
with model.hooks(fwd_hooks=raw):
    by_hand = logit_difference()
    measured_by_hand = ost.sensitivity(model, prompt, linearisations=["full"])
with hooks.ablate_heads(model, [(0, 3)]):
    by_hooks = logit_difference()
    measured_by_hooks = ost.sensitivity(model, prompt, linearisations=["full"])
assert by_hand == by_hooks
difference = (measured_by_hand.frame["operator_norm"] - measured_by_hooks.frame["operator_norm"]).abs().max()
assert difference < 1e-5
print("logit difference:", by_hand, "and", by_hooks)
print("in the provenance:", measured_by_hand.provenance.edits, "and", measured_by_hooks.provenance.edits)

# %% [markdown]
# Two things differ. The formulas behind the bounds know the edits of `hooks`, and no foreign ones: `sensitivity`,
# which measures whatever runs, goes on; `bounds` refuses rather than describe another network. And a raw hook can
# miss without a word:

# %%
with model.hooks(fwd_hooks=raw):
    try:
        ost.bounds(model, prompt, variants="local")
    except ost.InputError as error:
        print(error)
    else:
        raise AssertionError("expected a refusal")

typo = [(lambda name: name.endswith("hook_zz"), without_head_3)]  # a filter that matches nothing
with model.hooks(fwd_hooks=typo):
    assert logit_difference() == whole
    print("a raw hook with a typo in its filter: no error, no effect")

try:
    with hooks.ablate_heads(model, [(0, 7)]):
        pass
except hooks.HookError as error:
    print("hooks.ablate_heads:", error)
else:
    raise AssertionError("expected a refusal")

# %% [markdown]
# ## A large effect does not prove a path
#
# One more look, at the sensitivity to the token that carries the answer. **Before you look**: the head without which
# the answer is lost is taken out. Does the last token feel the 0 less?

# %%
measured = ost.sensitivity(model, prompt, linearisations=["full"])
at_zero = {
    "whole model": float(measured.frame["operator_norm"][carriers[0]]),
    "without head 0.3": float(measured_by_hooks.frame["operator_norm"][carriers[0]]),
}
assert at_zero["without head 0.3"] > 2 * at_zero["whole model"]
bars = pd.DataFrame({"model": list(at_zero), "sensitivity to the 0 (operator norm)": list(at_zero.values())})
print(bars.round(2).to_string(index=False))

# %% [markdown]
# *More*, by far. Ablation breaks what later layers and norms expect, and a broken network may react more wildly to
# everything. Read sensitivity together with the answer, never in its place.
#
# ## Exercises
#
# 1. Use the mean in place of zero: `hooks.ablate_heads(model, [(0, 3)], method="mean", reference=ids)`. Is the answer
#    still lost?
# 2. Take out *pairs* of heads. Do two that are harmless alone break the answer together?
# 3. End the prompt before the answer's line (`question.prompt`) and repeat the loop with `answer_log_probability`
#    (`examples/ablate_heads.py`). Is 0.3 still the most needed head?
# 4. `hooks.ablate_layers(model, [0], part="mlp")` takes out a whole sublayer. How well does first order do on those
#    eight?
