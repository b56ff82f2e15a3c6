"""The look that all pictures share: `theme`, `axes`, `answer_marks`, `notebook` (shown without a network), `pixels`."""
