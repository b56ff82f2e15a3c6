"""The declarations of the commands about sensitivity: measured, bounded, predicted, and what is read off it."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Dtype, Layers, MaxMemory, Model, Out, Prompt


def sensitivity(
    prompt: Prompt,
    linearisation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="full, frozen, frozen-attention, frozen-norm; repeatable. Else full and frozen."
        ),
    ] = None,
    layers: Layers = "0",
    method: Annotated[
        str, typer.Option(metavar="NAME", help="exact, estimate (random cotangents, with intervals) or auto.")
    ] = "auto",
    relative_error: Annotated[
        float, typer.Option(metavar="X", help="An estimate stops when every interval is that narrow.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of an estimate.")] = 0,
    max_memory: MaxMemory = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Measure what each token means to the last.

    The norms of d y_n / d v_i for every token i, exact or estimated; nothing held constant (full), or attention patterns and
    norm scales (frozen). Checked by finite differences on every run.

    \b
    Example:
      ostools sensitivity --prompt "The capital of France is" --out france.html
      ostools sensitivity --prompt "The capital of France is" --layers all --out layers.png
    """
    from ostools.commands import depth

    settings = depth.Measuring(linearisation, layers, method, relative_error, seed, max_memory)
    depth.sensitivity(model, prompt, settings, out, device, dtype)


def path_sum(
    prompt: Prompt,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="uniform, local, heads, edge, windowed(k), local-full, edge-full, theorem-5.1, theorem-b5, proof, multi-head, "
            "second-moment[-diagonal|-full], rollout; repeatable.",
        ),
    ] = None,
    positions: Annotated[
        str, typer.Option(metavar="WHICH", help="last, or all: the triangular matrix (to a table file).")
    ] = "last",
    mlp_norm: Annotated[str, typer.Option(metavar="NAME", help="svd, or product: cheaper and looser.")] = "svd",
    mlp_trace: Annotated[str, typer.Option(metavar="NAME", help="exact, or probes: for wide MLPs.")] = "exact",
    max_memory: MaxMemory = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Bound and predict it (Theorem 5.1).

    The sum over paths from every token to the last, out of one forward pass and no gradient.

    \b
    Example:
      ostools path-sum --prompt "The capital of France is" --variant local --variant proof
    """
    from ostools.commands import depth

    settings = depth.Folding(variant, positions, mlp_norm, mlp_trace, max_memory)
    depth.path_sum(model, prompt, settings, out, device, dtype)


def looseness(
    prompt: Prompt, model: Model = "embedded", out: Out = None, device: Device = "auto", dtype: Dtype = "float32"
) -> None:
    """Split a certified bound's looseness into where it arises.

    From the paper's kind of bound (uniform) down to the measured norm, part by part, in decades that add up.

    \b
    Example:
      ostools looseness --prompt "The capital of France is" --out waterfall.png
    """
    from ostools.commands import depth

    depth.looseness(model, prompt, out, device, dtype)


def profile(
    prompt: Prompt, model: Model = "embedded", out: Out = None, device: Device = "auto", dtype: Dtype = "float32"
) -> None:
    """Say which tokens matter, and test for a U-shape.

    The measured profile with and without the sink, its shape with intervals, full against frozen.

    \b
    Example:
      ostools profile --prompt "The capital of France is"
    """
    from ostools.commands import depth

    depth.profile(model, prompt, out, device, dtype)


def flow(
    prompt: Prompt, model: Model = "embedded", out: Out = None, device: Device = "auto", dtype: Dtype = "float32"
) -> None:
    """Draw where sensitivity flows, layer by layer.

    The predicted share of every edge between tokens and layers, out of one forward pass.

    \b
    Example:
      ostools flow --prompt "The capital of France is" --out flow.png
    """
    from ostools.commands import depth

    depth.flow(model, prompt, out, device, dtype)


def spectra(
    prompt: Prompt, model: Model = "embedded", out: Out = None, device: Device = "auto", dtype: Dtype = "float32"
) -> None:
    """Follow the patterns' products through depth (Lemma B.6, Proposition 5.2).

    Eigenvalues of the row-stochastic matrices, and how fast their product's mass moves to the first token.

    \b
    Example:
      ostools spectra --prompt "The capital of France is" --out spectra.png
    """
    from ostools.commands import depth

    depth.spectra(model, prompt, out, device, dtype)
