"""Where an answer is lost: `probe` (is it in the representation?) and
`failure_stage` (the verdict of every length). `answers.prefilled` makes the
prompts, `scores` runs them and tests linear probes of what they hold, which `ridge` trains.
"""
