"""Where an answer is lost: `probe` (is it in the representation?), `probe_intervention` (does the output read it?) and
`failure_stage` (the verdict of every length). `answers.prefilled` makes the prompts, `captured` runs them; `ridge`
and `scores` train and test linear probes on what they hold.
"""
