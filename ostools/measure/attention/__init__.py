"""Where heads look: `attention` (of the last token), `heads` (scores of each), `baselines`
(attention alone as a profile over the tokens).
"""
