"""The look that all pictures share: `theme`, `axes`, `draw`, `prompt`, `notebook`, `paper`."""
