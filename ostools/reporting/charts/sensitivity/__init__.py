"""Charts of sensitivities and path sums: `over_tokens`, `shape_and_layers`, `spectra`."""
