"""The look that all pictures share: `theme`, `axes`, `draw`, `answer_marks`, `notebook` (shown without a network), `pixels`."""
